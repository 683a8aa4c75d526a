"""What must hold after every fault, whatever it was, of these agents' logs, timers and texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.faults.load import Load
from tests.faults.stand import Stand


@dataclass
class Kept:
    """What was acknowledged, and what became of it. ``problems`` is empty when every promise was kept."""

    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    unknown: int = 0
    problems: list[str] = field(default_factory=list)


def look(stand: Stand, load: Load) -> Kept:
    """Everything since the beginning, with the site at rest."""
    kept = Kept(acknowledged=load.count)
    logs = _logs(stand)
    for number in load.numbers:
        expected = load.acknowledged[number]
        log = logs.get(number, [])
        _compare(kept, f"the log of {number}", expected, [text for role, text in log if role == "user"])
        answers = [text for role, text in log if role == "assistant"]
        answered = [text for answer in answers for text in _named(answer)]
        _compare(kept, f"the answers to {number}", expected, answered)
        reminders = Counter(text for role, text in log if role == "system")
        _compare_counts(
            kept, f"the timers of {number}", Counter(f"reminder: {a}" for a in answers), reminders
        )
        _texts(kept, stand, number, answers)
    kept.problems += _others(stand, logs)
    return kept


def _logs(stand: Stand) -> dict[str, list[tuple[str, str]]]:
    logs: dict[str, list[tuple[str, str]]] = {}
    for name, role, content in rows(
        stand,
        """SELECT a.name, m.role, m.content
             FROM conversations_message m JOIN agents_actor a ON a.id = m.actor_id
            WHERE a.kind = 'test-talker' ORDER BY m.actor_id, m.seq""",
    ):
        logs.setdefault(name, []).append((role, content))
    return logs


def _named(answer: str) -> list[str]:
    return re.findall(r"\d{4}-\d+", answer)


def _compare(kept: Kept, what: str, expected: list[str], found: list[str]) -> None:
    _compare_counts(kept, what, Counter(expected), Counter(found))
    if sorted(found) == sorted(expected) and found != expected:
        kept.problems.append(f"{what}: in another order than they were acknowledged: {found} for {expected}")


def _compare_counts(kept: Kept, what: str, expected: Counter[str], found: Counter[str]) -> None:
    lost, doubled = expected - found, found - expected
    kept.lost += lost.total()
    kept.doubled += doubled.total()
    if lost:
        kept.problems.append(f"{what}: lost {sorted(lost)[:5]}")
    if doubled:
        kept.problems.append(f"{what}: too often {sorted(doubled)[:5]}")


def _texts(kept: Kept, stand: Stand, number: str, answers: list[str]) -> None:
    """Each answer is one text. What a worker held in its hands when it was killed is "unknown": never sent
    again by itself, since the provider may have it."""
    sent: Counter[str] = Counter(m.text for m in stand.sandbox.sent if m.to == number)
    written = rows(
        stand, "SELECT text, status FROM conversations_outboundtext WHERE to_number = %s ORDER BY id", number
    )
    _compare_counts(kept, f"the outbox to {number}", Counter(answers), Counter(text for text, _ in written))
    unknown: Counter[str] = Counter(text for text, status in written if status == "unknown")
    kept.unknown += unknown.total()
    _compare_counts(kept, f"the provider's texts to {number}", Counter(answers), sent | (unknown - sent))


def _others(stand: Stand, logs: dict[str, list[tuple[str, str]]]) -> Iterator[str]:
    answers = Counter({name: sum(role == "assistant" for role, _ in log) for name, log in logs.items()})
    texts = sum(role == "user" for log in logs.values() for role, _ in log)
    states = rows(stand, "SELECT name, state FROM agents_actor WHERE kind = 'test-talker'")
    for name, state in states:
        if state["answers"] != answers[name]:
            yield f"the state of {name}: {state['answers']} answers, its log has {answers[name]}"
    tallies = [state for (state,) in rows(stand, "SELECT state FROM agents_actor WHERE kind = 'test-tally'")]
    told = sum(state["answers"] for state in tallies), sum(state["texts"] for state in tallies)
    if told != (answers.total(), texts):
        yield f"the tallies count {told} answers and texts, the logs {(answers.total(), texts)}"
    for name, count in rows(
        stand,
        """SELECT a.name, count(*) FROM scheduler_task t JOIN agents_actor a ON a.id = t.actor_id
            WHERE t.method = 'tick' AND t.status = 'pending' GROUP BY a.name HAVING count(*) <> 1""",
    ):
        yield f"{name} has {count} recurring timers"
    for name, method, error in rows(
        stand,
        """SELECT a.name, t.method, t.error FROM scheduler_task t JOIN agents_actor a ON a.id = t.actor_id
            WHERE t.status = 'parked'""",
    ):
        yield f"{name} has parked {method}: {error}"


def rows(stand: Stand, query: str, *params: Any) -> list[tuple[Any, ...]]:
    with stand.postgres.connect() as connection:
        return connection.execute(query, params).fetchall()
