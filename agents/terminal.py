"""What people wrote, shown on an operator's terminal."""

from __future__ import annotations

import datetime as dt


def shown(text: str, width: int | None = None) -> str:
    """Text in one line: characters that a terminal would obey, and those that can't be seen, are escaped."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text)
    return line if width is None or len(line) <= width else line[: width - 1] + "…"


def moment(at: dt.datetime | None) -> str:
    """A moment in UTC to the second; "-" for none."""
    return "-" if at is None else f"{at.astimezone(dt.UTC):%Y-%m-%d %H:%M:%SZ}"
