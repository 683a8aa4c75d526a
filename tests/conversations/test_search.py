"""Search over all messages: what is found on PostgreSQL, and what on SQLite."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agents.models import Actor
from conversations import search, terms
from conversations.models import Message
from tests.conversations.test_admin import NOW

pytestmark = pytest.mark.django_db

TEXTS = {
    "order": "Where is my order A-1001? It's late",
    "refund": "A REFUND for the orders, please.",
    "greek": "Καλημέρα σας",
    "tag": "<b class=fancy>Bold</b>src/main.py,see above.Please",
    "number": "call +15550001111 or mail bob@example.org",
}


@pytest.fixture(autouse=True)
def log() -> None:
    actor = Actor.objects.create(kind="support", name="x", seq=len(TEXTS))
    Message.objects.bulk_create(
        Message(actor=actor, seq=seq, role="user", content=text, name=name, at=NOW)
        for seq, (name, text) in enumerate(TEXTS.items(), 1)
    )


def found(text: str) -> list[str]:
    ids = search.newest(Message.objects.all(), text).ids
    return list(Message.objects.filter(pk__in=ids).order_by("seq").values_list("name", flat=True))


def test_all_words_must_be_there_in_any_case_and_a_beginning_is_enough():
    assert found("order") == ["order", "refund"]
    assert found("ORDER a-1001") == ["order"]
    assert found("refund order please") == ["refund"]
    assert found("order nothing") == []
    for words in ("+15550001111", "15550001111", "bob@example.org", "example"):
        assert found(words) == ["number"]
    for words in ("<b class=fancy>", "bold", "main.py", "above"):
        assert found(words) == ["tag"]
    assert found("") == found("()") == []


@pytest.mark.postgres
def test_other_alphabets_have_capitals_too():
    assert found("ΚΑΛΗΜΈΡΑ") == ["greek"]


def test_phrases_what_is_left_out_and_alternatives():
    assert found('"my order"') == ["order"]
    assert found('"order my"') == []
    assert found("order -refund") == found("nothing or late") == ["order"]
    assert found('"order A-1001"') == ["order"]
    assert found('order -"for the orders"') == found('"my order" or "in stock"') == ["order"]
    assert found("-order") == []


def test_whatever_is_typed_is_a_search():
    for text in ("'", "\\", "it's", "a' | b", ":*", "& | ! <->", "()", '"', "-", "%_", "x" * 5000):
        assert set(found(text)) <= set(TEXTS)


@pytest.mark.postgres
def test_messages_are_read_where_the_index_says_so():
    with CaptureQueriesContext(connection) as queries:
        search.newest(Message.objects.all(), '"my order" -refund')
    asked = [q["sql"] for q in queries if q["sql"].startswith("SELECT") and "@@" in q["sql"]]
    recent, check, everything, check_again = asked
    assert "octet_length" in recent and "octet_length" in everything
    assert "phraseto" in check and check == check_again
    with connection.cursor() as cursor, search._by_index():
        cursor.execute(f"EXPLAIN {everything}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
        assert "Bitmap Index Scan on conversations_message_words" in plan
    with connection.cursor() as cursor:
        cursor.execute("SHOW enable_seqscan")
        assert cursor.fetchone() == ("on",)


def test_a_search_gives_the_newest_and_says_where_it_goes_on(monkeypatch):
    actor = Actor.objects.get()
    Message.objects.bulk_create(
        Message(actor=actor, seq=seq, role="user", content=f"parcel {seq}", at=NOW) for seq in range(11, 18)
    )
    monkeypatch.setattr(search, "HITS", 3)
    monkeypatch.setattr(search, "RECENT", 2)
    rows, seen, text = Message.objects.all(), [], "parcel"
    while True:
        part = search.newest(rows, text)
        seen.append([Message.objects.get(pk=pk).seq for pk in part.ids])
        if part.before is None:
            break
        text = terms.going_on(text, part.before)
    assert seen == [[17, 16, 15], [14, 13, 12], [11]]
    assert search.newest(rows.filter(seq=12), "parcel").ids == [rows.get(seq=12).pk]


@pytest.mark.postgres
@pytest.mark.parametrize(("candidates", "read"), [(2, 400_000), (5_000, 20)])
def test_a_phrase_is_looked_for_in_so_many_messages_at_once(monkeypatch, candidates: int, read: int):
    actor = Actor.objects.get()
    said = ["late parcel", "a parcel is late", *["parcel, late"] * 4]
    Message.objects.bulk_create(
        Message(actor=actor, seq=seq, role="user", content=text, at=NOW) for seq, text in enumerate(said, 11)
    )
    assert found('"late parcel"') == [""]
    monkeypatch.setattr(search, "CANDIDATES", candidates)
    monkeypatch.setattr(search, "READ", read)
    looks, text = [], '"late parcel"'
    while True:
        part = search.newest(Message.objects.all(), text)
        looks.append(part.ids)
        if part.before is None:
            break
        text = terms.going_on(text, part.before)
    assert len(looks) == 4
    assert looks == [[], [], [Message.objects.get(seq=11).pk], []]


@pytest.mark.postgres
def test_a_message_of_any_length_can_be_written_and_its_beginning_is_found():
    actor = Actor.objects.create(kind="support", name="long")
    long = " ".join(f"{n:x}é€𐍈" for n in range(200_000))
    content = f"beginning {long} ending"
    Message.objects.create(actor=actor, seq=1, role="user", content=content, name="long", at=NOW)
    assert found("beginning") == ["long"]
    assert found("ending") == []
