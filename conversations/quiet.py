"""Quiet hours: when a text may go, by the clock where its recipient lives.

The zone comes from the number (its country code and area code, as the phonenumbers library knows them).
Where a number could be in several zones, it must be no quiet hour in any of them; where it could be nearly
anywhere (toll-free, unassigned), the setting's own zone counts. Nothing here needs a database.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

import phonenumbers

from agents.exceptions import ConfigurationError
from conversations import conf

#: More zones than this say nothing about where somebody is.
MAX_ZONES = 6
_SETTING = "SMS_QUIET_HOURS"


@dataclass(frozen=True, slots=True)
class QuietHours:
    """From ``start`` until before ``end``, by local clocks; it may span midnight."""

    start: dt.time
    end: dt.time
    zone: str  # where a number tells nothing

    def covers(self, moment: dt.datetime) -> bool:
        """Whether this local moment is in a quiet hour."""
        time = moment.time()
        if self.start < self.end:
            return self.start <= time < self.end
        return time >= self.start or time < self.end

    def end_after(self, moment: dt.datetime) -> dt.datetime:
        """The first end behind a local moment."""
        day = moment.date() if moment.time() < self.end else moment.date() + dt.timedelta(days=1)
        return dt.datetime.combine(day, self.end, moment.tzinfo)


def configured() -> QuietHours | None:
    """The setting SMS_QUIET_HOURS. Raises ConfigurationError."""
    value = conf.get(_SETTING)
    return None if not value else read(value)


def read(value: Any) -> QuietHours:
    """From ``{"start": "21:00", "end": "08:00", "zone": "America/New_York"}``. Raises ConfigurationError."""
    if not isinstance(value, dict) or set(value) - {"start", "end", "zone"}:
        raise _wrong(f"{_SETTING} has start, end and zone, got {value!r}")
    try:
        start, end = (dt.time.fromisoformat(value[name]) for name in ("start", "end"))
        zone = ZoneInfo(value.get("zone", "UTC")).key
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise _wrong(f"{_SETTING}: {error!r}") from error
    if start == end or start.tzinfo or end.tzinfo:
        raise _wrong(f"{_SETTING}: start and end must be two different local times")
    return QuietHours(start, end, zone)


def moment_for(number: str, at: dt.datetime, hours: QuietHours) -> dt.datetime:
    """``at``, or the first moment behind it that is no quiet hour where ``number`` is."""
    found = zones_of(number)
    zones = found if 0 < len(found) <= MAX_ZONES else (hours.zone,)
    return first_moment(at, zones, hours) or first_moment(at, (hours.zone,), hours) or at


def first_moment(at: dt.datetime, zones: Sequence[str], hours: QuietHours) -> dt.datetime | None:
    """The first moment (UTC) from ``at`` on that is quiet in none of the zones; None where there is none."""
    clocks = [ZoneInfo(zone) for zone in zones]
    moment = at.astimezone(dt.UTC)
    # Each round passes one zone's night; two days hold every night twice.
    for _ in range(2 * len(clocks) + 2):
        ends = [hours.end_after(local) for local in map(moment.astimezone, clocks) if hours.covers(local)]
        if not ends:
            return moment
        moment = max(end.astimezone(dt.UTC) for end in ends)
    return None


@lru_cache(maxsize=4096)
def zones_of(number: str) -> tuple[str, ...]:
    """The IANA zones where a number may be; none for what is no number or is assigned nowhere."""
    from phonenumbers import timezone  # a megabyte of tables: for sites with quiet hours

    try:
        parsed = phonenumbers.parse(number, None)
    except phonenumbers.NumberParseException:
        return ()
    return tuple(zone for zone in timezone.time_zones_for_number(parsed) if zone != "Etc/Unknown")


def _wrong(message: str) -> ConfigurationError:
    return ConfigurationError(message, setting=_SETTING)
