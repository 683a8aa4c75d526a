from django.apps import AppConfig


class ExamplesConfig(AppConfig):
    """Agents to read, run and copy from."""

    name = "examples"
