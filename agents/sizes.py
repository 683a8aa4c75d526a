"""What may be no larger than a setting says."""

from __future__ import annotations

from agents import conf
from agents.exceptions import LimitError


def check_size(size: int, limit: str, what: str) -> None:
    """Raises LimitError where ``what`` has more bytes of JSON than the setting ``limit`` allows."""
    maximum = conf.get(limit)
    if size > maximum:
        raise LimitError(
            f"{what} has {size} bytes of JSON, and the limit is {maximum} ({limit})",
            limit=limit, maximum=maximum, actual=size,
        )  # fmt: skip
