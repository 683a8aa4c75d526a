"""The transcript, and the pages of messages and texts, as an operator's browser gets them."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from agents import display
from agents.models import Actor
from conversations import transcripts
from conversations.models import Correspondent, InboundText, Message, OutboundText, TextStatus
from scheduler.models import Task
from tests.adminpages import HOSTILE, page, signed_in

pytestmark = pytest.mark.django_db

MESSAGES = "/admin/conversations/message/"
INBOUND = "/admin/conversations/inboundtext/"
OUTBOUND = "/admin/conversations/outboundtext/"
NOW = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)


@pytest.fixture
def client(alice: Any) -> Client:
    return signed_in(alice)


def talk(*messages: Any, name: str = "+15550001111", kind: str = "support") -> Actor:
    """An actor whose log holds these messages: (role, content) or (role, content, fields)."""
    actor = Actor.objects.create(kind=kind, name=name, seq=len(messages))
    Message.objects.bulk_create(
        Message(actor=actor, seq=seq, role=role, content=content, at=NOW, **(rest[0] if rest else {}))
        for seq, (role, content, *rest) in enumerate(messages, 1)
    )
    return actor


def transcript(actor: Actor) -> str:
    return f"{MESSAGES}transcript/{actor.pk}/"


def change(obj: Any) -> str:
    return display.url_of(obj)


def a_text_out(actor: Actor, **fields: Any) -> OutboundText:
    fields = {
        "uid": uuid.uuid4(), "provider": "console", "from_number": "+15550009999",
        "to_number": "+15550001111", "text": "It was shipped.", "status": "sent",
    } | fields  # fmt: skip
    return OutboundText.objects.create(actor=actor, **fields)


def a_text_in(actor: Actor | None, **fields: Any) -> InboundText:
    fields = {
        "provider": "telnyx", "event_id": str(uuid.uuid4()), "message_id": str(uuid.uuid4()),
        "from_number": "+15550001111", "to_number": "+15550009999", "text": "Where is my order?",
    } | fields  # fmt: skip
    return InboundText.objects.create(actor=actor, **fields)


ORDER = [
    ("system", "You are the support agent."),
    ("user", "Where is A-1001?"),
    ("assistant", "", {"tool_calls": [{"id": "c1", "name": "lookup_order", "args": {"order_id": "A-1001"}}]}),
    ("tool", '{"status": "shipped"}', {"tool_call_id": "c1"}),
    ("assistant", "It was shipped.", {"metadata": {"model": "demo"}}),
]


# The transcript


def test_a_conversation_reads_from_top_to_bottom_with_roles(client: Client) -> None:
    seen = page(client, transcript(talk(*ORDER)))
    assert seen.status == 200
    places = [seen.text.index(words) for words in (
        "You are the support agent.", "Where is A-1001?", "Asks for lookup_order", "Result of lookup_order",
        "It was shipped.",
    )]  # fmt: skip
    assert places == sorted(places)
    roles = [a["data-role"] for tag, a in seen.elements if tag == "li" and "data-role" in a]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert '"order_id": "A-1001"' in seen.text and '{"status": "shipped"}' in seen.text


def test_calls_results_reasoning_and_metadata_are_folded(client: Client) -> None:
    actor = talk(*ORDER, ("assistant", "Hm.", {"parts": [{"type": "reasoning", "reasoning": "let me see"}]}))
    seen = page(client, transcript(actor))
    folds = [attributes for tag, attributes in seen.elements if tag == "details"]
    assert len(folds) == 4
    assert not any("open" in attributes for attributes in folds)
    assert "let me see" in seen.text and '"model": "demo"' in seen.text


def test_messages_with_one_timestamp_keep_the_order_of_their_numbers(client: Client) -> None:
    actor = Actor.objects.create(kind="support", name="x", seq=4)
    for seq in (3, 1, 4, 2):
        Message.objects.create(actor=actor, seq=seq, role="user", content=f"text{seq}", at=NOW)
    text = page(client, transcript(actor)).text
    assert sorted(range(1, 5), key=lambda seq: text.index(f"text{seq}")) == [1, 2, 3, 4]


def test_an_interrupted_reply_is_marked(client: Client) -> None:
    actor = talk(("assistant", "Once upon a time", {"metadata": {"interrupted": True}}))
    assert "interrupted" in page(client, transcript(actor)).text
    assert "interrupted" not in page(client, transcript(talk(*ORDER, name="other"))).text


def test_arguments_that_never_parsed_are_shown_as_they_are(client: Client) -> None:
    call = {"id": "c", "name": "diagnostic_noop", "args": '{"value": '}
    seen = page(client, transcript(talk(("assistant", "", {"tool_calls": [call]}))))
    assert '{"value":' in seen.text


def test_what_is_more_than_text_is_named(client: Client) -> None:
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}},
        {"type": "hologram", "depth": 3},
    ]
    seen = page(client, transcript(talk(("user", "look", {"parts": parts}))))
    assert "image: https://example.org/cat.png" in seen.text
    assert "hologram" in seen.text and '"depth": 3' in seen.text
    assert not seen.fields("img")  # nothing is fetched from where people point


def test_an_empty_conversation_says_so(client: Client) -> None:
    assert "Nothing was said yet." in page(client, transcript(talk())).text


def test_a_conversation_that_is_not_there_is_not_found(client: Client) -> None:
    assert client.get(f"{MESSAGES}transcript/999999/").status_code == 404


# Pages of a long log


def test_a_long_log_opens_at_its_end_and_pages_back(client: Client) -> None:
    size = transcripts.PAGE
    actor = talk(*(("user", f"text {n}.") for n in range(1, 2 * size + 2)))
    newest = page(client, transcript(actor))
    assert f"text {2 * size + 1}." in newest.text and f"text {2 * size}." not in newest.text
    assert "Page 3 of 3" in newest.text
    assert "?page=2" in newest.hrefs() and "?page=4" not in newest.hrefs()
    middle = page(client, transcript(actor), page=2)
    assert f"text {size + 1}." in middle.text and f"text {2 * size}." in middle.text
    assert f"text {size}." not in middle.text
    first = page(client, transcript(actor), page=1)
    assert "text 1." in first.text and "Older" not in first.text and "Newer" in first.text


def test_one_page_has_no_pager(client: Client) -> None:
    actor = talk(*(("user", "x") for _ in range(transcripts.PAGE)))
    assert "Page 1 of" not in page(client, transcript(actor)).text


def test_a_link_to_a_message_opens_its_page_and_marks_it(client: Client) -> None:
    actor = talk(*(("user", f"text {n}.") for n in range(1, transcripts.PAGE + 3)))
    seen = page(client, transcript(actor), seq=2)
    assert "Page 1 of 2" in seen.text
    assert [a["id"] for tag, a in seen.elements if tag == "li" and "data-chosen" in a] == ["m2"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("page", "0"),
        ("page", "99"),
        ("page", "x"),
        ("page", "²"),
        ("seq", "-1"),
        ("seq", "0"),
        ("seq", "9" * 30),
    ],
)
def test_a_page_outside_of_the_log_is_the_nearest_one(client: Client, name: str, value: str) -> None:
    seen = page(client, transcript(talk(*ORDER)), **{name: value})
    assert seen.status == 200
    assert "Where is A-1001?" in seen.text


def test_a_log_of_thousands_costs_what_a_short_one_does(
    client: Client, django_assert_max_num_queries: Any
) -> None:
    short, long = talk(*ORDER), talk(*(("user", "text") for _ in range(5000)), name="long")
    client.get(transcript(short))
    client.get(transcript(long))  # from now on it was seen
    with django_assert_max_num_queries(12) as few:
        client.get(transcript(short))
    for query in ({}, {"page": 1}, {"page": 40}, {"seq": 2500}):
        with django_assert_max_num_queries(len(few)):
            answer = client.get(transcript(long), query)
        assert len(answer.content) < 200_000


def test_a_long_text_is_cut_and_its_own_page_has_it_whole(client: Client) -> None:
    text = "word " * (transcripts.TEXT_SHOWN // 5)
    whole, longer = talk(("user", text), name="whole"), talk(("user", text + "THE-END-OF-IT"), name="longer")
    assert "cut here" not in page(client, transcript(whole)).text
    seen = page(client, transcript(longer))
    assert "cut here" in seen.text and "THE-END-OF-IT" not in seen.text
    message = longer.messages.get()
    assert change(message) in seen.hrefs()
    assert "THE-END-OF-IT" in page(client, change(message)).text


# Beside the transcript


def test_follow_ups_and_texts_stand_beside_the_conversation(client: Client) -> None:
    actor = talk(*ORDER)
    Task.objects.create(
        actor=actor, task_id="nudge", method="nudge", due_at=timezone.now() + dt.timedelta(hours=22)
    )
    Task.objects.create(
        actor=actor,
        task_id="crm",
        method="crm",
        due_at=NOW,
        status="parked",
        parked_at=NOW,
        error="ValueError: no",
    )
    Correspondent.objects.create(
        actor=actor, their_number="+15550001111", our_number="+15550009999", wrote_at=NOW
    )
    a_text_in(actor)
    a_text_out(actor, status="failed", error="40300: blocked by STOP")
    seen = page(client, transcript(actor))
    for words in ("nudge", "in 22 h", "parked", "ValueError: no", "failed", "40300: blocked by STOP",
                  "Where is my order?", "With +15550001111"):  # fmt: skip
        assert words in seen.text
    assert f"/admin/scheduler/task/?actor={actor.pk}" in seen.hrefs()


def test_the_newest_texts_come_first_whichever_way_they_went(client: Client) -> None:
    actor = talk(*ORDER)
    for minute, make in ((1, a_text_out), (2, a_text_in), (3, a_text_out), (4, a_text_in)):
        text = make(actor, text=f"minute {minute}")
        moment = NOW + dt.timedelta(minutes=minute)
        type(text).objects.filter(pk=text.pk).update(
            **{"created_at" if make is a_text_out else "received_at": moment}
        )
    seen = page(client, transcript(actor)).text
    assert sorted(range(1, 5), key=lambda minute: seen.index(f"minute {minute}")) == [4, 3, 2, 1]


def test_the_transcript_shows_only_what_its_reader_may_see(bob: Any, charlie: Any) -> None:
    actor = talk(*ORDER)
    Task.objects.create(actor=actor, task_id="nudge", method="secret_method", due_at=NOW)
    a_text_out(actor, text="secret text")
    team = signed_in(bob)
    seen = page(team, transcript(actor))
    assert "secret_method" in seen.text and "secret text" in seen.text
    bob.user_permissions.set(bob.user_permissions.filter(codename__in=["view_message", "view_actor"]))
    seen = page(team, transcript(actor))
    assert "Where is A-1001?" in seen.text
    assert "secret_method" not in seen.html and "secret text" not in seen.html
    bob.user_permissions.clear()
    assert page(team, transcript(actor)).status == 403
    assert page(signed_in(charlie), transcript(actor)).status == 302
    assert page(Client(), transcript(actor)).status == 302


# Lists


def test_messages_are_found_by_words_role_and_actor(client: Client) -> None:
    first, second = talk(*ORDER), talk(("user", "a needle here"), name="bob")
    assert "a needle here" in page(client, MESSAGES, q="needle").text
    assert "A-1001?" not in page(client, MESSAGES, q="needle").text
    assert "needle" not in page(client, MESSAGES, role="assistant").text
    seen = page(client, MESSAGES, actor=first.pk)
    assert "A-1001?" in seen.text and "needle" not in seen.text
    assert "asks for lookup_order" in seen.text
    assert f"{transcript(first)}?seq=2" in seen.hrefs()
    assert f"{transcript(second)}?seq=1" not in seen.hrefs()


def test_a_message_has_a_page_with_everything_in_it(client: Client) -> None:
    call, result = talk(*ORDER).messages.filter(seq__in=(3, 4))
    assert "Asks for lookup_order" in page(client, change(call)).text
    seen = page(client, change(result))
    assert '{"status": "shipped"}' in seen.text
    assert f"{transcript(result.actor)}?seq=4" in seen.hrefs()


@pytest.mark.parametrize("status", TextStatus.values)
def test_an_outbound_text_shows_its_status_and_what_it_means(client: Client, status: str) -> None:
    text = a_text_out(talk(), status=status, error="why")
    assert change(text) in page(client, OUTBOUND, status=status).hrefs()
    other = next(value for value in TextStatus.values if value != status)
    assert change(text) not in page(client, OUTBOUND, status=other).hrefs()
    seen = page(client, change(text))
    assert TextStatus(status).label in seen.text and "why" in seen.text


def test_texts_are_found_by_number_and_by_the_providers_id(client: Client) -> None:
    actor = talk()
    text_in, text_out = a_text_in(actor), a_text_out(actor, provider_id="msg-1")
    orphan = a_text_in(None, from_number="+4930123456")
    assert change(text_out) in page(client, OUTBOUND, q="msg-1").hrefs()
    assert change(text_in) in page(client, INBOUND, q="0001111").hrefs()
    assert change(orphan) not in page(client, INBOUND, q="0001111").hrefs()
    assert page(client, change(orphan)).status == 200


def test_nothing_can_be_added_edited_or_deleted(client: Client) -> None:
    actor = talk(*ORDER)
    for row in (actor.messages.get(seq=2), a_text_in(actor), a_text_out(actor)):
        before = type(row).objects.values().get(pk=row.pk)
        url = display.list_url(type(row))
        assert client.post(change(row), {"content": "forged", "text": "forged"}).status_code == 403
        assert client.get(f"{url}add/").status_code == 403
        assert client.post(f"{url}{row.pk}/delete/", {"post": "yes"}).status_code == 403
        client.post(url, {"action": "delete_selected", "_selected_action": row.pk, "post": "yes"})
        assert type(row).objects.values().get(pk=row.pk) == before


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nothing_that_people_models_or_tools_wrote_runs(client: Client, hostile: str) -> None:
    """OPS-03"""
    parts = [{"type": "reasoning", "reasoning": hostile}, {"type": hostile, "x": hostile},
             {"type": "image_url", "image_url": {"url": hostile}}]  # fmt: skip
    actor = talk(
        ("user", hostile, {"name": hostile, "parts": parts}),
        ("assistant", "", {"tool_calls": [{"id": hostile, "name": hostile, "args": {hostile: hostile}}]}),
        ("tool", hostile, {"tool_call_id": hostile}),
        ("assistant", hostile, {"metadata": {"interrupted": True, hostile: hostile}}),
        name=hostile,
        kind=hostile[:30],
    )
    Task.objects.create(actor=actor, task_id=hostile, method=hostile, due_at=NOW, attempts=1, error=hostile)
    Correspondent.objects.create(actor=actor, their_number=hostile, our_number=hostile, wrote_at=NOW)
    text_in = a_text_in(actor, text=hostile, from_number=hostile, provider=hostile[:30], event_id=hostile)
    text_out = a_text_out(
        actor, text=hostile, to_number=hostile, error=hostile, provider_id=hostile, status="failed"
    )
    pages = [page(client, transcript(actor)), page(client, MESSAGES), page(client, MESSAGES, q=hostile)]
    pages += [page(client, change(message)) for message in actor.messages.all()]
    pages += [page(client, url) for url in (INBOUND, OUTBOUND, change(text_in), change(text_out))]
    shown = " ".join(hostile.split())[:20]
    for seen in pages:
        assert seen.status == 200
        assert seen.harmless
        assert shown in seen.text


def test_lists_ask_the_same_number_of_questions_and_do_not_fetch_whole_texts(
    client: Client, django_assert_max_num_queries: Any
) -> None:
    actor = talk(*ORDER)
    texts = a_text_in(actor), a_text_out(actor)
    message = actor.messages.get(seq=1)
    for url in (MESSAGES, f"{MESSAGES}?actor={actor.pk}&role=user&q=x", INBOUND, OUTBOUND,
                change(message), *map(change, texts)):  # fmt: skip
        client.get(url)
        with django_assert_max_num_queries(15) as few:
            assert client.get(url).status_code == 200
        many = [talk(*(("user", "x" * 3000) for _ in range(30)), name=str(uuid.uuid4())) for _ in range(4)]
        for other in many:
            a_text_in(other)
            a_text_out(other)
        with django_assert_max_num_queries(len(few)):
            answer = client.get(url)
        assert len(answer.content) < 150_000
        # The verbs, and no choice of all actors there are.
        assert {field["name"] for field in page(client, url).fields("select")} <= {"action"}
        Actor.objects.exclude(pk=actor.pk).delete()
