import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("agents", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Connection",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=64)),
                ("name", models.CharField(max_length=255)),
                ("user_id", models.CharField(default="", max_length=255)),
                ("claims", models.JSONField(null=True)),
                ("headers", models.JSONField(default=dict)),
                ("greeted", models.BooleanField(default=True)),
                ("connected_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("seen_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "indexes": [
                    models.Index(fields=["kind", "name"], name="agents_connection_actor"),
                    models.Index(fields=["seen_at"], name="agents_connection_seen"),
                ],
            },
        ),
    ]
