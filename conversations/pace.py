"""How fast a number sends: one row a number, which all processes share.

A text takes the next free place in its number's row, once, and goes when that moment comes; so texts are
never closer together than the rate says, whoever sends them, and nobody counts.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from django.db import transaction

from conversations.models import Pace


class Places:
    """The places of some numbers, locked. Belongs in a transaction."""

    def __init__(self, rates: dict[str, float], now: dt.datetime) -> None:
        self._rates = rates
        self._now = now
        limited = sorted(number for number, rate in rates.items() if rate > 0)
        if limited:
            Pace.objects.bulk_create(
                [Pace(number=number, next_at=now) for number in limited], ignore_conflicts=True
            )
        # In one order: two workers with the same numbers would else wait for each other.
        rows = Pace.objects.filter(number__in=sorted(rates)).order_by("number")
        self._rows = {row.number: row for row in rows.select_for_update()}

    def take(self, number: str) -> dt.datetime:
        """The moment when the next text of ``number`` may go; its place is taken."""
        row, rate = self._rows.get(number), self._rates.get(number, 0.0)
        if row is None:
            return self._now
        moment = max(row.next_at, self._now)
        if rate > 0:
            row.next_at = moment + dt.timedelta(seconds=1 / rate)
            row.save(update_fields=["next_at"])
        return moment


def hold(numbers: Iterable[str], until: dt.datetime) -> None:
    """Nothing goes out from these numbers before a moment: the provider said that it is too much."""
    for number in sorted(set(numbers)):
        with transaction.atomic():
            row, made = Pace.objects.select_for_update().get_or_create(
                number=number, defaults={"next_at": until}
            )
            if not made and row.next_at < until:
                row.next_at = until
                row.save(update_fields=["next_at"])
