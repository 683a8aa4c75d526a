"""Where each log stands, for the logs that are there; and the index of the full-text search.

Neither locks a table for long: the rows are made in batches, each a transaction of its own, and PostgreSQL builds
the index beside its writers. What was interrupted is done again from its start.
"""

from django.db import migrations

BATCH = 500
# As conversations/search.py asks for them.
PARTING = "<>&/@=+-._#|\\"
SPACES = " " * len(PARTING)
INDEX = "conversations_message_words"


def say_where_logs_stand(apps, schema_editor):
    from conversations.standing import refresh

    actors = apps.get_model("agents", "Actor").objects.filter(seq__gt=0).order_by("pk")
    after = 0
    while ids := list(actors.filter(pk__gt=after).values_list("pk", flat=True)[:BATCH]):
        refresh(ids, apps)
        after = ids[-1]


def make_index(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        drop_index(apps, schema_editor)  # an interrupted build leaves one that is of no use
        schema_editor.execute(
            f"CREATE INDEX CONCURRENTLY {INDEX} ON conversations_message"
            f" USING gin (to_tsvector('simple', translate(left(content, 100000), '{PARTING}', '{SPACES}')))"
        )


def drop_index(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {INDEX}")


class Migration(migrations.Migration):
    atomic = False
    dependencies = [
        ("conversations", "0004_conversation"),
    ]
    operations = [
        migrations.RunPython(say_where_logs_stand, migrations.RunPython.noop),
        migrations.RunPython(make_index, drop_index),
    ]
