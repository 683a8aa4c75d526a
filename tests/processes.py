"""What the processes that tests start need to know."""

from __future__ import annotations

import os

from django.db import connection


def database_url() -> str:
    """Where this test's own database is, for another process's ``DATABASE_URL``."""
    name = connection.settings_dict["NAME"]
    if connection.vendor == "sqlite":
        return f"sqlite:///{name}"
    return os.environ["DATABASE_URL"].rsplit("/", 1)[0] + f"/{name}"
