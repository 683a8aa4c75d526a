"""The private SQL database of an actor. ``database.py`` is where it begins, docs/sql.md says what holds."""

from agents.sql.cursor import SqlCursor
from agents.sql.database import Sql

__all__ = ["Sql", "SqlCursor"]
