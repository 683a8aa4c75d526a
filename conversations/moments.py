"""The one clock of texts: the database's, as for turns and tasks. What is due is due for all processes alike.

Tests move it (``agents/clock.py``).
"""

from __future__ import annotations

import datetime as dt

from django.db import connection
from django.db.models import DateTimeField, ExpressionWrapper, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Now

from agents import clock
from agents.store import get_store


def now() -> dt.datetime:
    """The database's time, at this very moment."""
    return get_store().sql.now()


def now_in_query() -> Combinable:
    """The same inside of a query, without asking first."""
    if not clock.offset:
        return Now()
    return ExpressionWrapper(Now() + Value(clock.offset), output_field=DateTimeField())


def skips_locked() -> bool:
    """Whether the database passes over rows that another worker holds; SQLite has one writer instead."""
    return connection.features.has_select_for_update_skip_locked
