"""The demo operator of a development site: one superuser whose password lies in ``var/``."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser

PASSWORD_BYTES = 12  # of randomness; 16 characters


class Command(BaseCommand):
    help = (
        "Makes the superuser of a development site (DEBUG only) with a random password, keeps the password "
        "in VAR_DIR/operator-password and prints both; an account that exists is left as it is."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--username", default="operator", help="The account's name. Default: operator.")

    def handle(self, *args: Any, username: str, **options: Any) -> None:
        if not settings.DEBUG:
            raise CommandError("A password in a file is for DEBUG only; use createsuperuser here.")
        file = Path(settings.VAR_DIR) / "operator-password"
        users = get_user_model()._default_manager
        user = users.filter(**{get_user_model().USERNAME_FIELD: username}).first()
        if user is None:
            password = _read(file) or _write(file, secrets.token_urlsafe(PASSWORD_BYTES))
            users.create_superuser(username, password=password)
        else:
            password = _read(file)
            if not password or not user.check_password(password):
                self.stdout.write(
                    f"Operator: {username}, with the password that somebody gave it "
                    f"(manage.py changepassword {username} sets another)"
                )
                return
        self.stdout.write(f"Operator: {username}   Password: {password}")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""


def _write(file: Path, password: str) -> str:
    """Creates the file readable by its owner alone; never open to others, not even for a moment."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as out:
        out.write(password + "\n")
    return password
