"""PostgreSQL: an hour of rows is found by a BRIN index on their moment, which costs their writers next to nothing."""

from django.db import migrations

COLUMNS = {
    "agents_turnrecord": "committed_at",
    "conversations_inboundtext": "received_at",
    "conversations_outboundtext": "created_at",
    "scheduler_attempt": "started_at",
}


def make(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        drop(apps, schema_editor)  # an interrupted build leaves one that is of no use
        for table, column in COLUMNS.items():
            schema_editor.execute(
                f"CREATE INDEX CONCURRENTLY {table}_{column} ON {table} USING brin ({column})"
                " WITH (pages_per_range = 32, autosummarize = on)"
            )


def drop(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        for table, column in COLUMNS.items():
            schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {table}_{column}")


class Migration(migrations.Migration):
    atomic = False
    dependencies = [
        ("scheduler", "0005_tally"),
        ("agents", "0004_turn_notes"),
        ("conversations", "0004_conversation"),
    ]
    operations = [migrations.RunPython(make, drop)]
