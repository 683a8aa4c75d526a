"""What there is already of texts that come now: looked up in one round trip, for all of a batch.

The rules are those of ``conversations.inbox`` and ``conversations.loops``, which say the same in the words of
the ORM, for one text.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import orjson

from agents.store import get_store
from agents.store.base import Address
from agents.store.statements import Query
from conversations import conf, loops
from conversations.providers.base import ReceivedText

#: A number of theirs and one of ours.
Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Earlier:
    now: dt.datetime
    #: Places in the batch of those whose event or message was taken in already.
    same: set[int]
    #: Numbers of people of whom a text waits.
    waiting: set[str]
    #: What people wrote lately, the newest first.
    before: defaultdict[Pair, list[str]]
    actors: dict[Address, int]
    #: Addresses of which there is no actor.
    absent: set[Address]


_NOW = Query("SELECT {now}", "SELECT {now}")

# A plan that is made while the table is empty must do when it is large. Where several indexes would do for a
# few rows, the order says which one it is; BETWEEN, since what equals something needs no order.

# conversations_inbound_event and conversations_inbound_message serve it.
_SAME = Query(
    """SELECT r.at FROM json_to_recordset($1::json) AS r(at int, provider text, event text, message text)
        WHERE EXISTS (SELECT 1 FROM conversations_inboundtext t
                       WHERE t.provider = r.provider AND t.event_id BETWEEN r.event AND r.event
                       ORDER BY t.event_id OFFSET 0)
           OR EXISTS (SELECT 1 FROM conversations_inboundtext t
                       WHERE t.provider = r.provider AND t.message_id BETWEEN r.message AND r.message
                       ORDER BY t.message_id OFFSET 0)""",
    """SELECT json_extract(r.value, '$.at') FROM json_each(?1) r
        WHERE EXISTS (SELECT 1 FROM conversations_inboundtext t
                       WHERE t.provider = json_extract(r.value, '$.provider')
                         AND t.event_id = json_extract(r.value, '$.event'))
           OR EXISTS (SELECT 1 FROM conversations_inboundtext t
                       WHERE t.provider = json_extract(r.value, '$.provider')
                         AND t.message_id = json_extract(r.value, '$.message'))""",
)

# Mostly nobody's text waits: then conversations_inbound_waiting is empty. Where many do, it is read once.
_WAITING = Query(
    """SELECT DISTINCT t.from_number FROM conversations_inboundtext t
        WHERE t.status = 'waiting' AND t.due_at > '-infinity'
          AND t.from_number = ANY (ARRAY(SELECT json_array_elements_text($1::json)))""",
    """SELECT r.value FROM json_each(?1) r
        WHERE EXISTS (SELECT 1 FROM conversations_inboundtext t
                       WHERE t.from_number = r.value AND t.status = 'waiting')""",
)

# conversations_inbound_lately serves it.
_BEFORE = Query(
    """SELECT r.theirs, r.ours, k.text
         FROM json_to_recordset($1::json) AS r(theirs text, ours text) CROSS JOIN LATERAL (
              SELECT t.text FROM conversations_inboundtext t
               WHERE t.from_number = r.theirs AND t.to_number = r.ours AND t.keyword = ''
                 AND t.received_at >= (SELECT {now}) - $2::float8 * interval '1 second'
               ORDER BY t.received_at DESC LIMIT $3::int) k""",
    """SELECT t.from_number, t.to_number, t.text
         FROM json_each(?1) r JOIN conversations_inboundtext t ON t.id IN (
              SELECT i.id FROM conversations_inboundtext i
               WHERE i.from_number = json_extract(r.value, '$.theirs')
                 AND i.to_number = json_extract(r.value, '$.ours') AND i.keyword = ''
                 AND i.received_at >= strftime('%Y-%m-%d %H:%M:%f', {now}, -?2 || ' seconds')
               ORDER BY i.received_at DESC LIMIT ?3)
        ORDER BY t.received_at DESC""",
)


def look(texts: Sequence[tuple[str, ReceivedText]], addresses: Collection[Address]) -> Earlier:
    """``texts`` are a batch's, each with its provider; ``addresses`` those whose actors are looked up.

    Tried once: raises Interrupted, ConnectionLost or what the database refuses.
    """
    sql = get_store().sql
    pairs = sorted({(text.from_number, text.to_number) for _, text in texts})
    same = sql.read(
        _SAME,
        _json(
            [
                {"at": at, "provider": provider, "event": text.event_id, "message": text.message_id}
                for at, (provider, text) in enumerate(texts)
            ]
        ),
    )
    waiting = sql.read(_WAITING, _json(sorted({theirs for theirs, _ in pairs})))
    lately = sql.read(
        _BEFORE,
        _json([{"theirs": theirs, "ours": ours} for theirs, ours in pairs]),
        float(conf.get("SMS_LOOP_WINDOW")),
        loops.LOOKED_AT,
    )
    actors = sql.find(sorted(addresses))
    ((now,),) = sql.read(_NOW)()
    before: defaultdict[Pair, list[str]] = defaultdict(list)
    for theirs, ours, words in lately():
        before[theirs, ours].append(words)
    return Earlier(
        _moment(now),
        {at for (at,) in same()},
        {theirs for (theirs,) in waiting()},
        before,
        found := actors(),
        {*addresses} - found.keys(),
    )


def _json(tree: object) -> str:
    return orjson.dumps(tree).decode()


def _moment(value: dt.datetime | str) -> dt.datetime:
    return (
        value if isinstance(value, dt.datetime) else dt.datetime.fromisoformat(value).replace(tzinfo=dt.UTC)
    )
