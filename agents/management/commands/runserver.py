"""``manage.py runserver``: Daphne's, which knows WebSockets and starts again when code changes.

Daphne is no installed app: its configuration imports Twisted, and a worker and beat would have it, too, of
which each is 17 MB larger then.
"""

from __future__ import annotations

import daphne.server  # noqa: F401 - installs Twisted's reactor, before anybody else imports one
from daphne.management.commands.runserver import Command

__all__ = ["Command"]
