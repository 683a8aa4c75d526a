from django.apps import AppConfig
from django.core import checks


class SchedulerConfig(AppConfig):
    """Durable timers, the inbox, and who fires them."""

    name = "scheduler"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from agents import conf
        from scheduler import holdings  # noqa: F401 - named on import
        from scheduler.checks import check_pulses

        checks.register(check_pulses, checks.Tags.database)
        if conf.get("DISPATCHER") == "celery":
            from scheduler.dispatchers import celery

            celery.connect()
