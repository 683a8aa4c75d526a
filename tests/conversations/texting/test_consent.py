"""STOP and its kin: they reach no agent, and no text goes out after one."""

from __future__ import annotations

import base64
import datetime as dt
import io
import itertools
import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client

from agents import clock
from agents.models import Actor
from agents.testing import drain
from conversations import consent, outbox
from conversations.exceptions import OptedOutError
from conversations.management.commands.text import event as telnyx_event
from conversations.management.commands.text import twilio_form
from conversations.models import (
    Consent,
    ConsentChange,
    ConsentSource,
    ConsentState,
    InboundText,
    Message,
    OutboundText,
)
from conversations.providers import memory
from conversations.signatures import sign, sign_twilio
from scheduler.audit import audit
from scheduler.models import Attempt, Task, TaskStatus
from tests.conversations.texting.agents import TextedAgent
from tests.conversations.texting.test_cross_checks import KEY

pytestmark = pytest.mark.django_db(transaction=True)

THEIRS, OURS, OTHER = "+15550001111", "+15550009999", "+15550008888"
OUT, IN = ConsentState.OPTED_OUT, ConsentState.OPTED_IN
TOKEN = "token"


@pytest.fixture(autouse=True)
def site(settings):
    settings.AGENTS = {
        "TELNYX_PUBLIC_KEYS": [base64.b64encode(KEY.public_key().public_bytes_raw()).decode()],
        "TWILIO_AUTH_TOKENS": [TOKEN],
        "SMS_PROVIDER": "memory",
        "SMS_KIND": "texting",
    }
    memory.outbox.clear()
    yield
    clock.reset()


@pytest.fixture
def texted() -> Any:
    return TextedAgent.named(THEIRS).sync


def telnyx(words: str, to: str = OURS, **payload: Any) -> str:
    event = telnyx_event(THEIRS, to, words)
    event["data"]["payload"].update(payload)
    body = json.dumps(event).encode()
    answer = Client().generic("POST", "/webhooks/telnyx/", body, "application/json", headers=sign(body, KEY))
    status: str = answer.json()["status"]
    return status


def twilio(words: str, **fields: str) -> None:
    form = {**twilio_form(THEIRS, OURS, words), **fields}
    signed = sign_twilio("http://testserver/webhooks/twilio/", {k: [v] for k, v in form.items()}, TOKEN)
    content_type = "application/x-www-form-urlencoded"
    answer = Client().generic(
        "POST", "/webhooks/twilio/", urlencode(form).encode(), content_type, headers=signed
    )
    assert answer.status_code == 200


def texts() -> list[str]:
    """What went out."""
    while outbox.send_due():
        pass
    return [sent.text for sent in memory.outbox]


def said() -> list[str]:
    return [message.content for message in Message.objects.order_by("seq")]


OPT_OUTS = [
    "STOP",
    " stop ",
    "Stop.",
    "UNSUBSCRIBE",
    "CANCEL",
    "END",
    "QUIT",
    "STOPALL",
    "Stop all!",
    "opt-out",
]
CONTROLS = ["STOP 12345", "please don't stop", "stop by tomorrow?", "stop?", "can you stop", "the end"]


@pytest.mark.parametrize("words", OPT_OUTS)
def test_a_word_of_opting_out_reaches_no_agent_and_is_written_down(texted, words):
    assert telnyx(words) == "keyword"
    assert drain() == 0
    assert consent.is_opted_out(THEIRS, OURS)
    row = Consent.objects.get()
    assert (row.their_number, row.our_number, row.state, row.source) == (THEIRS, OURS, OUT, "keyword")
    assert row.word == words.strip()
    text = InboundText.objects.get()
    assert (text.status, text.keyword, text.text) == ("keyword", "stop", words)


@pytest.mark.parametrize("words", CONTROLS)
def test_a_word_among_others_is_a_text_like_any_other(words):
    assert telnyx(words) == "accepted"
    drain()
    assert said() == [words]
    assert not Consent.objects.exists()


def test_a_flag_of_the_provider_counts_whatever_the_words_are(texted):
    assert telnyx("basta", autoresponse_type="STOP") == "keyword"
    row = Consent.objects.get()
    assert (row.state, row.source, row.word) == (OUT, "provider", "basta")
    twilio("start again please", OptOutType="START")
    assert not consent.is_opted_out(THEIRS, OURS)
    twilio("what is this", OptOutType="HELP")
    assert drain() == 0
    assert texts() == []


def test_no_second_confirmation_is_sent_where_the_provider_answers_itself():
    telnyx("STOP", autoresponse_type="STOP")
    twilio("STOP")
    twilio("HELP")
    assert texts() == []


def test_where_it_does_not_the_site_answers_once_for_each_change():
    for words in ("STOP", "STOP", "START", "start", "HELP"):
        assert telnyx(words) == "keyword"
    assert [line.split(".")[0] for line in texts()] == [
        "You get no more texts from this number",
        "You get texts from this number again",
        "Reply STOP to get no more texts from this number",
    ]
    assert {(sent.to, sent.sender) for sent in memory.outbox} == {(THEIRS, OURS)}
    assert not Actor.objects.exists(), "a word about consent makes no conversation"


def test_what_is_answered_is_a_setting_and_may_be_nothing(settings):
    settings.AGENTS = {**settings.AGENTS, "SMS_STOP_REPLY": "", "SMS_HELP_REPLY": "Shop, 555-0100"}
    telnyx("STOP")
    telnyx("HELP")
    assert texts() == ["Shop, 555-0100"]


def test_the_words_are_a_setting(settings):
    settings.AGENTS = {**settings.AGENTS, "SMS_STOP_WORDS": ["arrêt"]}
    assert telnyx("Arrêt !") == "keyword"
    assert telnyx("STOP") == "accepted"


# After it


def test_further_texts_are_refused_before_the_provider_is_called(texted):
    telnyx("hello")
    drain()
    telnyx("STOP")
    texts()
    memory.outbox.clear()
    with pytest.raises(OptedOutError) as caught:
        texted.say("are you there?")
    assert (caught.value.to, caught.value.sender) == (THEIRS, OURS)
    assert texted.unwanted()
    assert texts() == []
    # Other numbers of ours, and other people, are other pairs.
    texted.say("from another number", sender=OTHER)
    texted.say("to another person", to="+15550002222", sender=OURS)
    assert texts() == ["from another number", "to another person"]


def test_the_refusal_is_in_the_turns_record_and_the_task_is_parked_at_once(texted):
    telnyx("hello")
    telnyx("STOP")
    texted.tell("say_as_task", "are you there?")
    drain()
    attempt = Attempt.objects.get(method="say_as_task")
    assert "OptedOutError" in attempt.error and "OptedOutError" in attempt.traceback
    assert Task.objects.get(method="say_as_task").status == TaskStatus.PARKED


def test_texts_that_wait_when_the_word_comes_are_not_sent(texted):
    telnyx("hello")
    drain()
    texted.say("one")
    telnyx("STOP", autoresponse_type="STOP")
    assert texts() == []
    text = OutboundText.objects.get()
    assert (text.status, text.reason) == ("failed", "opted_out")
    assert "wants no texts" in text.error
    drain()
    assert said()[-1] == "failed: one: opted_out failed"


def test_start_undoes_it(texted):
    telnyx("hello")
    telnyx("STOP")
    telnyx("UNSTOP")
    drain()
    texted.say("welcome back")
    assert texts()[-1] == "welcome back"
    assert [change.state for change in ConsentChange.objects.order_by("pk")] == [OUT, IN]


def test_the_agent_is_told_so_that_it_can_cancel_what_it_planned(texted):
    telnyx("hello")
    drain()
    telnyx("STOP")
    telnyx("start")
    drain()
    assert said() == ["hello", "opted_out: STOP", "opted_in: start"]


def test_somebody_without_texts_may_still_write_and_is_heard(texted):
    telnyx("STOP")
    assert telnyx("one more question") == "accepted"
    drain()
    assert said() == ["one more question"]


def test_an_old_word_that_arrives_late_does_not_undo_a_newer_one():
    day = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)

    def record(state: ConsentState, seconds: float) -> bool:
        return consent.record(
            THEIRS, OURS, state, ConsentSource.KEYWORD, at=day + dt.timedelta(seconds=seconds)
        )

    assert record(OUT, 0)
    assert not record(IN, -1)
    assert consent.is_opted_out(THEIRS, OURS)
    assert record(IN, 600)
    assert not record(OUT, 500)
    assert not consent.is_opted_out(THEIRS, OURS)
    # So near that clocks decide: then it is the safe one.
    assert record(OUT, 545)
    assert consent.is_opted_out(THEIRS, OURS)
    assert ConsentChange.objects.count() == 5


DAY = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize("erased", [False, True], ids=["known", "erased"])
@pytest.mark.parametrize("last", [OUT, IN])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_last_word_counts_in_whatever_order_words_are_delivered(order, last, erased):
    other = IN if last == OUT else OUT
    words = [(last, DAY), (other, DAY + dt.timedelta(hours=1)), (last, DAY + dt.timedelta(hours=2))]
    for state, at in (words[place] for place in order):
        if erased:
            pair = consent.hashes_of(THEIRS, OURS)[0]
            lines = ["pair,state,changed_at", f"{pair},{state},{at.isoformat()}"]
            assert not consent.load(lines).refused
        else:
            consent.record(THEIRS, OURS, state, ConsentSource.KEYWORD, at=at)
    assert Consent.objects.get().state == last
    assert consent.is_opted_out(THEIRS, OURS) is (last == OUT)


def test_a_word_that_is_said_again_is_in_the_history_and_since_when_it_counts_stays():
    for hours in (0, 2, 1):
        said = DAY + dt.timedelta(hours=hours)
        assert consent.record(THEIRS, OURS, OUT, ConsentSource.KEYWORD, at=said) is (hours == 0)
    row = Consent.objects.get()
    assert row.changed_at == DAY
    assert [change.at.hour for change in row.changes.order_by("at")] == [12, 14]


def test_the_same_word_at_the_same_moment_is_one_record():
    def stop(_: int) -> None:
        try:
            consent.record(THEIRS, OURS, OUT, ConsentSource.KEYWORD)
        finally:
            connection.close()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(stop, range(6)))
    assert (Consent.objects.count(), ConsentChange.objects.count()) == (1, 1)


# Erasure


def test_consent_outlives_the_erasure_of_the_conversation_and_of_the_number(texted):
    telnyx("hello")
    drain()
    telnyx("STOP")
    Actor.objects.all().delete()
    assert consent.erase(THEIRS) == 1
    stored = json.dumps(list(Consent.objects.values("their_number", "our_number", "word", "pair")))
    stored += json.dumps(list(ConsentChange.objects.values("word", "by")))
    assert THEIRS not in stored and OURS not in stored and "STOP" not in stored
    with pytest.raises(OptedOutError):
        texted.say("hello again", to=THEIRS, sender=OURS)
    assert not consent.is_opted_out(THEIRS, OTHER)
    telnyx("START")
    assert not consent.is_opted_out(THEIRS, OURS)
    assert Consent.objects.get().their_number == THEIRS, "they are back"


def test_the_hash_goes_on_working_when_the_key_is_rotated_and_the_old_one_kept(settings):
    consent.record(THEIRS, OURS, OUT, ConsentSource.KEYWORD)
    consent.erase(THEIRS)
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "another", [settings.SECRET_KEY]
    assert consent.is_opted_out(THEIRS, OURS)
    settings.SECRET_KEY_FALLBACKS = []
    assert not consent.is_opted_out(THEIRS, OURS)


def test_a_number_that_was_not_erased_is_found_without_its_key_and_a_key_of_its_own_may_be_set(settings):
    consent.record(THEIRS, OURS, OUT, ConsentSource.KEYWORD)
    settings.SECRET_KEY = "another"
    assert consent.is_opted_out(THEIRS, OURS)
    settings.AGENTS = {**settings.AGENTS, "CONSENT_KEYS": ["new", "old"]}
    assert consent.is_opted_out(THEIRS, OURS)
    assert consent.record(THEIRS, OURS, IN, ConsentSource.OPERATOR)
    assert Consent.objects.get().pair == consent.hashes_of(THEIRS, OURS)[0]
    settings.AGENTS = {**settings.AGENTS, "CONSENT_KEYS": ["new"]}
    assert not consent.is_opted_out(THEIRS, OURS)


# What the provider says


def test_a_provider_that_refuses_for_it_is_believed(texted, settings):
    from conversations.exceptions import PermanentFailure

    telnyx("hello")
    drain()
    memory.failures.append(PermanentFailure("blocked", reason="40300", opted_out=True))
    texted.say("one")
    assert texts() == []
    assert (Consent.objects.get().source, Consent.objects.get().word) == ("refusal", "40300")
    with pytest.raises(OptedOutError):
        texted.say("two")


def test_the_audit_finds_a_text_that_went_out_after_all(texted):
    telnyx("hello")
    drain()
    texted.say("one")
    texts()
    assert [f for f in audit(settled=0) if f.check == "unwanted"] == []
    past = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
    consent.record(THEIRS, OURS, OUT, ConsentSource.IMPORT, at=past)
    (finding,) = [f for f in audit(settled=0) if f.check == "unwanted"]
    assert THEIRS in finding.subject


# Files


def test_records_are_exported_and_imported_again(tmp_path):
    consent.record(THEIRS, OURS, OUT, ConsentSource.KEYWORD, word="STOP")
    consent.record("+15550002222", OURS, IN, ConsentSource.KEYWORD, word="START")
    consent.record("+15550003333", OURS, OUT, ConsentSource.KEYWORD)
    consent.erase("+15550003333")
    path = tmp_path / "consent.csv"
    call_command("consent", "export", str(path), stdout=io.StringIO())
    before = list(Consent.objects.order_by("pair").values_list("pair", "state", "changed_at"))
    Consent.objects.all().delete()
    out = io.StringIO()
    call_command("consent", "import", str(path), stdout=out)
    assert "3 changed, 0 unchanged" in out.getvalue()
    assert list(Consent.objects.order_by("pair").values_list("pair", "state", "changed_at")) == before
    assert consent.is_opted_out("+15550003333", OURS)
    out = io.StringIO()
    call_command("consent", "import", str(path), stdout=out)
    assert "0 changed, 3 unchanged" in out.getvalue()


def test_a_providers_list_of_numbers_is_imported_for_our_numbers(tmp_path):
    path = tmp_path / "optouts.csv"
    path.write_text("phone_number,reason\n15550001111,STOP\n,\n+15550002222,x\n")
    out, err = io.StringIO(), io.StringIO()
    call_command("consent", "import", str(path), "--ours", OURS, "--ours", OTHER, stdout=out, stderr=err)
    assert "4 changed" in out.getvalue()
    assert "line 3" in err.getvalue()
    assert consent.is_opted_out(THEIRS, OURS) and consent.is_opted_out("+15550002222", OTHER)
    with pytest.raises(CommandError, match="our_number is missing"):
        call_command("consent", "import", str(path), stdout=io.StringIO(), stderr=io.StringIO())


def test_what_is_no_number_is_refused_line_by_line_as_it_is_for_one(tmp_path):
    """Nobody could ever be found by it: a list that looks imported would protect nobody."""
    path = tmp_path / "optouts.csv"
    path.write_text("number\n2125550123\nnot a number\n+15550001111\n22395\n1\n")
    out, err = io.StringIO(), io.StringIO()
    call_command("consent", "import", str(path), "--ours", OURS, stdout=out, stderr=err)
    assert out.getvalue() == "2 changed, 0 unchanged, 3 refused.\n"
    assert [line.split(":")[0] for line in err.getvalue().splitlines()] == ["line 2", "line 3", "line 6"]
    assert "'2125550123' is not a phone number" in err.getvalue()
    assert set(Consent.objects.values_list("their_number", flat=True)) == {THEIRS, "22395"}


def test_our_number_in_a_file_may_be_a_name_and_must_be_one_that_texts_come_from(tmp_path):
    path = tmp_path / "optouts.csv"
    path.write_text(f"number,our_number\n{THEIRS},SHOP\n{THEIRS},2125550123\n")
    out = io.StringIO()
    call_command("consent", "import", str(path), stdout=out, stderr=io.StringIO())
    assert out.getvalue() == "1 changed, 0 unchanged, 1 refused.\n"
    assert Consent.objects.get().our_number == "SHOP"


def test_a_line_of_which_one_number_is_refused_changes_nothing():
    result = consent.load(["number", THEIRS], ours=[OURS, "not a number at all"])
    assert [line for line, _ in result.refused] == [2]
    assert not Consent.objects.exists()


def test_an_operator_sets_and_shows_one(tmp_path):
    out = io.StringIO()
    call_command("consent", "set", THEIRS, OURS, "opted_out", "--by", "alice", stdout=out)
    assert consent.is_opted_out(THEIRS, OURS)
    assert ConsentChange.objects.get().by == "alice"
    out = io.StringIO()
    call_command("consent", "show", "15550001111", stdout=out)
    assert "opted_out" in out.getvalue() and "alice" in out.getvalue()
    with pytest.raises(CommandError, match="not a phone number"):
        call_command("consent", "set", "nobody", OURS, "opted_out")
    with pytest.raises(CommandError):
        call_command("consent", "import", str(tmp_path / "nowhere.csv"))


def test_a_notice_goes_out_although_they_want_no_texts_and_nothing_else(texted):
    telnyx("hello")
    drain()
    actor = Actor.objects.get()
    consent.record(THEIRS, OURS, OUT, ConsentSource.KEYWORD)
    for notice in (True, False):
        OutboundText.objects.create(
            actor=actor, uid=uuid.uuid4(), from_number=OURS, to_number=THEIRS, text=str(notice), notice=notice
        )
    assert texts() == ["True"]
