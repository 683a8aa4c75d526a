"""What ``manage.py check --database default`` says about who fires the tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Warning
from django.db import DEFAULT_DB_ALIAS, DatabaseError

from agents import conf
from scheduler.models import Pulse, PulseName

#: Sweeps come every second or so.
SILENCE = 60.0  # seconds

LOCAL_HINT = "Let manage.py serve run, or manage.py run_scheduler beside serve --no-scheduler."
WORKER_HINT = "Let a worker run: celery -A agentsite worker."
BEAT_HINT = "Let one beat run: celery -A agentsite beat. Workers sweep by themselves, a little later."


def check_pulses(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Nobody has swept, or no beat has been seen, for a minute."""
    if DEFAULT_DB_ALIAS not in (databases or ()):
        return []
    try:
        ages = Pulse.objects.ages()
    except DatabaseError:
        return []  # not migrated yet: Django says so
    celery = conf.get("DISPATCHER") == "celery"
    messages: list[CheckMessage] = []
    if (silence := _silence(ages, PulseName.SWEEP)) is not None:
        hint = WORKER_HINT if celery else LOCAL_HINT
        messages.append(
            Warning(f"No sweep was seen {silence}: due tasks wait.", hint=hint, id="scheduler.W001")
        )
    elif celery and (silence := _silence(ages, PulseName.BEAT)) is not None:
        messages.append(Warning(f"No beat was seen {silence}.", hint=BEAT_HINT, id="scheduler.W002"))
    return messages


def _silence(ages: dict[str, float], name: PulseName) -> str | None:
    """For how long nobody was seen, in words; None if somebody was."""
    age = ages.get(name)
    if age is None:
        return "ever"
    return f"for {age:.0f} s" if age > SILENCE else None
