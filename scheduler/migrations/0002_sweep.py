"""What beat sends: the sweep every second and the pruning every hour. The admin shows both."""

from django.db import migrations

# name -> (task, every, period, seconds after which one that no worker took is dropped, description)
PERIODIC = {
    "agents: sweep": (
        "scheduler.tasks.sweep",
        1,
        "seconds",
        2,
        "Finds actors with a due alarm. Everything that wakes workers faster may be lost.",
    ),
    "agents: prune": (
        "scheduler.tasks.prune",
        1,
        "hours",
        1800,
        "Deletes records that are older than the KEEP_* settings say.",
    ),
}


def create(apps, schema_editor):
    IntervalSchedule = apps.get_model("django_celery_beat", "IntervalSchedule")
    PeriodicTask = apps.get_model("django_celery_beat", "PeriodicTask")
    for name, (task, every, period, expires, description) in PERIODIC.items():
        interval = IntervalSchedule.objects.filter(every=every, period=period).first()
        if interval is None:
            interval = IntervalSchedule.objects.create(every=every, period=period)
        PeriodicTask.objects.get_or_create(
            name=name,
            defaults={
                "task": task,
                "interval": interval,
                "expire_seconds": expires,
                "description": description,
            },
        )


def remove(apps, schema_editor):
    apps.get_model("django_celery_beat", "PeriodicTask").objects.filter(name__in=PERIODIC).delete()


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0001_initial"),
        ("django_celery_beat", "0018_improve_crontab_helptext"),
    ]
    operations = [migrations.RunPython(create, remove)]
