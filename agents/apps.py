from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate


class AgentsConfig(AppConfig):
    """The actor runtime: claims, turns, commits."""

    name = "agents"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from agents import kinds, own_holdings, permissions  # noqa: F401 - holdings are named on import
        from agents.checks import check_channel_layer, check_database, check_dispatcher, check_settings
        from agents.sockets import pruning
        from agents.sockets.publisher import publisher
        from agents.turn import on_events

        kinds.discover()
        on_events.extend([publisher.committed, pruning.committed])
        post_migrate.connect(permissions.create_permissions, sender=self)
        checks.register(check_settings)
        checks.register(check_database)
        checks.register(check_dispatcher)
        checks.register(check_channel_layer)
