from django.apps import AppConfig
from django.core import checks


class ConversationsConfig(AppConfig):
    """The message log, texts in and out, transcripts."""

    name = "conversations"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from conversations import holdings  # noqa: F401 - named on import
        from conversations.checks import check_numbers, check_provider, check_public_keys, check_values

        checks.register(check_public_keys)
        checks.register(check_provider)
        checks.register(check_numbers)
        checks.register(check_values)
