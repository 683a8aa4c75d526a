"""What becomes of texts: every status and every error of the providers, in whatever order reports come."""

from __future__ import annotations

import datetime as dt
import itertools
import uuid
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from agents import clock
from agents.exceptions import ConfigurationError
from agents.models import Actor
from agents.store import get_store
from agents.testing import drain
from conversations import asking, inbox, moments, outbox, receipts
from conversations.exceptions import CannotAsk, OutcomeUnknown, PermanentFailure, TemporaryFailure
from conversations.ladder import LADDER, pause_after
from conversations.models import (
    Consent,
    InboundText,
    Message,
    OutboundText,
    Pace,
    TextEvent,
    TextStatus,
)
from conversations.models.text import RANK, is_forward
from conversations.providers import twilio
from conversations.providers.base import DeliveryReport, Outgoing, ReceivedText, SendResult, TextProvider
from conversations.providers.telnyx import FAULTS, STATUSES, Advice, TelnyxProvider
from conversations.sandbox import Sandbox
from scheduler.audit import audit
from tests.conversations.texting.agents import TextedAgent

pytestmark = pytest.mark.django_db(transaction=True)

THEIRS, OURS = "+15550001111", "+15550009999"
TELNYX = TelnyxProvider()
S = TextStatus


@pytest.fixture(autouse=True)
def the_clock_stands():
    yield
    clock.reset()


@pytest.fixture
def actor() -> Actor:
    assert TextedAgent.kind == "texting"
    return Actor.objects.create(kind="texting", name=THEIRS)


def sent(actor: Actor, **more: Any) -> OutboundText:
    fields: dict[str, Any] = {
        "actor": actor,
        "uid": uuid.uuid4(),
        "provider": "telnyx",
        "provider_id": "message-1",
        "from_number": OURS,
        "to_number": THEIRS,
        "text": "hello",
        "status": S.SENT,
        "attempts": 1,
        **more,
    }
    return OutboundText.objects.create(**fields)


_numbers = itertools.count()


def report(status: TextStatus | None, **more: Any) -> DeliveryReport:
    return DeliveryReport(
        **{
            "event_id": f"event-{next(_numbers)}",
            "provider_id": "message-1",
            "said": str(status),
            "status": status,
            **more,
        }
    )


def fresh(text: OutboundText) -> OutboundText:
    text.refresh_from_db()
    return text


# Forward only


@pytest.mark.parametrize("order", list(itertools.permutations([S.SENT, S.DELIVERED, None])))
def test_whatever_the_order_of_reports_what_arrived_has_arrived_and_all_are_kept(actor, order):
    text = sent(actor)
    for status in order:
        assert receipts.take(TELNYX, report(status))
    assert fresh(text).status == S.DELIVERED
    assert text.finished_at is not None
    assert text.events.count() == 3
    assert text.events.filter(changed=True).count() == 1


def test_a_status_only_goes_forward():
    forward = [S.QUEUED, S.SENDING, S.UNKNOWN, S.SENT, S.UNCONFIRMED, S.FAILED, S.UNDELIVERED, S.DELIVERED]
    assert list(RANK) == forward
    for (at, before), (to, after) in itertools.product(enumerate(forward), repeat=2):
        assert is_forward(before, after) is (to > at)


def test_the_same_report_again_is_kept_once(actor):
    text, said = sent(actor), report(S.DELIVERED)
    assert receipts.take(TELNYX, said)
    assert not receipts.take(TELNYX, said)
    assert text.events.count() == 1


def test_late_reports_do_not_move_a_text_back(actor):
    text = sent(actor)
    for status in (S.DELIVERED, S.SENT, S.UNDELIVERED, S.FAILED, S.UNCONFIRMED):
        receipts.take(TELNYX, report(status))
        assert fresh(text).status == S.DELIVERED
    assert text.error == ""


def test_a_report_that_overtakes_the_answer_is_applied_once_its_text_is_known(actor):
    receipts.take(TELNYX, report(S.DELIVERED))
    assert TextEvent.objects.get().text is None
    text = sent(actor)
    assert receipts.settle() == 1
    assert fresh(text).status == S.DELIVERED
    assert receipts.settle() == 0


def test_a_report_of_somebody_elses_text_is_kept_and_not_looked_at_for_ever(actor):
    receipts.take(TELNYX, report(S.DELIVERED, provider_id="another program's"))
    assert receipts.settle() == 0
    assert TextEvent.objects.get().text is None


def test_a_text_whose_answer_was_lost_is_found_by_the_name_in_the_reports_address(actor):
    text = sent(actor, provider_id="", status=S.UNKNOWN, error="no answer")
    receipts.take(TELNYX, report(S.SENT, uid=text.uid, attempt=1))
    assert (fresh(text).status, text.provider_id, text.error) == (S.SENT, "message-1", "")
    receipts.take(TELNYX, report(S.DELIVERED))
    assert fresh(text).status == S.DELIVERED


def test_that_name_counts_for_the_provider_that_the_text_went_to_alone(actor):
    text = sent(actor, provider="twilio", provider_id="")
    receipts.take(TELNYX, report(S.DELIVERED, uid=text.uid, attempt=1))
    assert fresh(text).status == S.SENT


def test_reports_of_an_earlier_try_change_nothing_unless_it_arrived_after_all(actor):
    text = sent(actor, attempts=2, provider_id="message-2")
    receipts.take(TELNYX, report(S.UNDELIVERED, uid=text.uid, attempt=1))
    assert fresh(text).status == S.SENT
    waits = sent(actor, attempts=1, provider_id="", status=S.QUEUED)
    TextEvent.objects.create(
        text=waits, provider="telnyx", event_id="e", provider_id="message-9", said="delivery_failed"
    )
    receipts.take(TELNYX, report(S.SENT, provider_id="message-9"))
    assert fresh(waits).status == S.QUEUED, "an earlier try without a name in its address"
    receipts.take(TELNYX, report(S.DELIVERED, provider_id="message-9"))
    assert fresh(waits).status == S.DELIVERED, "it is not sent again"


WILL_NOT_ARRIVE = (S.UNDELIVERED, {"passes": True, "code": "40008"})


@pytest.mark.parametrize("named", [True, False], ids=["its try is named", "it is not"])
@pytest.mark.parametrize(
    "order", list(itertools.permutations([(S.SENT, {}), (S.UNCONFIRMED, {}), WILL_NOT_ARRIVE, (None, {})]))
)
def test_whatever_the_order_of_reports_what_will_not_arrive_is_sent_again(actor, order, named):
    text = sent(actor)
    names = {"uid": text.uid, "attempt": 1} if named else {}
    for status, more in order:
        receipts.take(TELNYX, report(status, **more, **names))
    assert (fresh(text).status, text.attempts) == (S.QUEUED, 1)
    assert text.due_at > moments.now()
    receipts.take(TELNYX, report(S.DELIVERED, **names))
    assert fresh(text).status == S.DELIVERED, "it arrived after all: it is not sent again"


def test_a_failure_that_its_provider_was_asked_about_stands_against_a_late_report_too(actor):
    text = sent(actor, status=S.QUEUED, provider_id="")
    TextEvent.objects.create(
        text=text,
        provider="telnyx",
        event_id="asked",
        provider_id="message-1",
        status=S.UNDELIVERED,
        said="?",
    )
    receipts.take(TELNYX, report(S.SENT, uid=text.uid, attempt=1))
    assert fresh(text).status == S.QUEUED


def test_a_failure_that_is_reported_again_does_not_undo_an_operators_sending_again(actor):
    text = sent(actor)
    failed = {"uid": text.uid, "attempt": 1, "code": "40001"}
    receipts.take(TELNYX, report(S.FAILED, **failed))
    assert outbox.resend(fresh(text))
    receipts.take(TELNYX, report(S.UNDELIVERED, **failed))
    assert fresh(text).status == S.QUEUED


def test_a_text_that_waits_for_its_next_try_is_not_sent_again_once_it_is_reported_as_sent(actor):
    text = sent(actor, status=S.QUEUED, provider_id="", error="503")
    receipts.take(TELNYX, report(S.SENT, uid=text.uid, attempt=1))
    assert fresh(text).status == S.SENT


# Every status


TELNYX_STATUSES = [
    ("queued", S.SENT),
    ("sending", S.SENT),
    ("sent", S.SENT),
    ("scheduled", S.SENT),
    ("delivered", S.DELIVERED),
    ("delivery_unconfirmed", S.UNCONFIRMED),
    ("sending_failed", S.FAILED),
    ("delivery_failed", S.UNDELIVERED),
    ("expired", S.UNDELIVERED),
    ("unknown", None),
    # Words of the detail records.
    ("failed", S.FAILED),
    ("gw_timeout", S.UNCONFIRMED),
    ("gw_reject", S.FAILED),
    ("dlr_timeout", S.UNCONFIRMED),
]


@pytest.mark.parametrize(("said", "status"), TELNYX_STATUSES)
def test_every_status_of_telnyx_means_something_here(actor, said, status):
    text = sent(actor, status=S.SENDING, provider_id="")
    receipts.take(TELNYX, telnyx_report(text, said))
    assert fresh(text).status == (status or S.SENDING)


def test_no_status_of_telnyx_is_left_out():
    assert dict(TELNYX_STATUSES) == STATUSES


def telnyx_report(text: OutboundText, said: str, code: str = "", **payload: Any) -> DeliveryReport:
    """As Telnyx's event says it."""
    import json

    from conversations.providers.base import WebhookRequest

    event = {
        "data": {
            "event_type": "message.finalized",
            "id": str(uuid.uuid4()),
            "occurred_at": "2026-01-15T20:16:07.588+00:00",
            "payload": {
                "id": "message-1",
                "direction": "outbound",
                "to": [{"phone_number": THEIRS, "status": said}],
                "errors": [{"code": code, "title": "why", "detail": "in detail"}] if code else [],
                "webhook_url": f"https://agents.example.com/webhooks/telnyx?text={text.uid}&try={text.attempts}",
                **payload,
            },
        }
    }
    (read,) = TELNYX.read(WebhookRequest("", {}, json.dumps(event).encode()))
    assert isinstance(read, DeliveryReport)
    return read


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("accepted", S.SENT),
        ("scheduled", S.SENT),
        ("queued", S.SENT),
        ("sending", S.SENT),
        ("sent", S.SENT),
        ("partially_delivered", S.SENT),
        ("delivered", S.DELIVERED),
        ("read", S.DELIVERED),
        ("failed", S.FAILED),
        ("canceled", S.FAILED),
        ("undelivered", S.UNDELIVERED),
        ("something new", None),
    ],
)
def test_every_status_of_twilio_means_something_here(said, status):
    assert twilio.STATUSES.get(said) == status


# Every error of Telnyx: (code, advice, what the outbox does when a request is refused with it, whether a
# report of it starts another try)

AUTO, FIX, WAIT, HOLD, NEVER, CONFIGURE = (
    Advice.RETRY, Advice.FIX, Advice.WAIT, Advice.HOLD, Advice.NEVER, Advice.CONFIGURE
)  # fmt: skip
ERRORS = [
    ("40006", AUTO, "again", True),
    ("40008", AUTO, "again", True),
    ("40002", FIX, "never", False),
    ("40005", FIX, "never", False),
    ("40011", WAIT, "again", False),
    ("40014", FIX, "never", False),
    ("40016", WAIT, "again", False),
    ("40017", FIX, "never", False),
    ("40018", WAIT, "again", False),
    ("40318", WAIT, "again", False),
    ("40020", HOLD, "tomorrow", False),
    ("40320", HOLD, "in an hour", False),
    ("40001", NEVER, "never", False),
    ("40003", NEVER, "never", False),
    ("40010", NEVER, "never", False),
    ("40300", NEVER, "never", False),
    ("40314", NEVER, "never", False),
    ("40322", NEVER, "never", False),
    ("40015", CONFIGURE, "never", False),
    ("40019", CONFIGURE, "never", False),
    ("40305", CONFIGURE, "never", False),
    ("40315", CONFIGURE, "never", False),
    ("40329", CONFIGURE, "never", False),
    ("40333", CONFIGURE, "never", False),
    ("10011", WAIT, "again", False),
]
PAUSES = {"again": LADDER[0], "in an hour": 3600.0, "tomorrow": 86_400.0}


def test_no_error_of_telnyx_is_left_out():
    assert [code for code, *_ in sorted(ERRORS)] == sorted(FAULTS)
    assert all(FAULTS[code].advice is advice and FAULTS[code].means for code, advice, *_ in ERRORS)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(delay=0.02, hang=0.4) as sandbox:
        yield sandbox


@pytest.mark.parametrize(("code", "advice", "then", "again"), ERRORS)
def test_every_error_of_telnyx_in_an_answer_and_in_a_report(
    actor, sandbox, settings, code, advice, then, again
):
    settings.AGENTS = sandbox.settings
    refused = OutboundText.objects.create(
        actor=actor, uid=uuid.uuid4(), from_number=OURS, to_number=f"+150055{code}", text=f"{code} refused"
    )
    before = moments.now()
    assert outbox.send_due() == 1
    assert (fresh(refused).reason, refused.attempts) == (code, 1)
    if then == "never":
        assert refused.status == S.FAILED
    else:
        assert refused.status == S.QUEUED
        assert abs((refused.due_at - before).total_seconds() - PAUSES[then]) < 20

    told = sent(actor)
    receipts.take(TELNYX, telnyx_report(told, "delivery_failed", code))
    assert fresh(told).status == (S.QUEUED if again else S.UNDELIVERED)
    assert code in told.error
    OutboundText.objects.all().delete()


def test_a_code_that_nobody_knows_is_final_in_an_answer_and_in_a_report(actor, sandbox, settings):
    settings.AGENTS = sandbox.settings
    text = OutboundText.objects.create(
        actor=actor, uid=uuid.uuid4(), from_number=OURS, to_number="+15005549999", text="hello"
    )
    outbox.send_due()
    assert (fresh(text).status, text.reason) == (S.FAILED, "49999")
    told = sent(actor)
    receipts.take(TELNYX, telnyx_report(told, "delivery_failed", "49999"))
    assert fresh(told).status == S.UNDELIVERED


# Failures


def test_what_was_not_delivered_for_a_reason_that_passes_is_sent_again_by_the_ladder(actor):
    text = sent(actor, attempts=0)
    for attempt, pause in enumerate(LADDER, start=1):
        OutboundText.objects.filter(pk=text.pk).update(
            status=S.SENT, attempts=attempt, provider_id=f"message-{attempt}"
        )
        fresh(text)
        now = moments.now()
        said = report(S.UNDELIVERED, passes=True, code="40006", provider_id=f"message-{attempt}")
        receipts.take(TELNYX, said)
        assert (fresh(text).status, text.provider_id, text.holds) == (S.QUEUED, "", False)
        assert now <= text.due_at - dt.timedelta(seconds=pause) <= moments.now()
    attempt = len(LADDER) + 1
    OutboundText.objects.filter(pk=text.pk).update(status=S.SENT, attempts=attempt, provider_id="last")
    receipts.take(TELNYX, report(S.UNDELIVERED, passes=True, code="40006", provider_id="last"))
    assert fresh(text).status == S.UNDELIVERED
    assert pause_after(attempt) is None


def test_the_setting_turns_that_off(actor, settings):
    settings.AGENTS = {"SMS_RETRY_UNDELIVERED": False}
    text = sent(actor)
    receipts.take(TELNYX, report(S.UNDELIVERED, passes=True, code="40006"))
    assert fresh(text).status == S.UNDELIVERED


def test_the_agent_is_told_of_a_text_that_failed_for_good_once(actor):
    text = sent(actor)
    for _ in range(2):
        receipts.take(TELNYX, report(S.UNDELIVERED, code="40001", detail="a landline"))
    drain()
    assert [m.content for m in Message.objects.all()] == ["failed: hello: 40001 undelivered"]
    assert (fresh(text).reason, text.error) == ("40001", "40001 a landline")


def test_the_agent_is_told_of_a_text_that_was_refused_or_given_up_too(actor, sandbox, settings):
    settings.AGENTS = sandbox.settings
    for to in ("+15005540001", "+15005500503"):
        OutboundText.objects.create(
            actor=actor, uid=uuid.uuid4(), from_number=OURS, to_number=to, text=to, attempts=7
        )
    assert outbox.send_due() == 2
    drain()
    assert sorted(m.content for m in Message.objects.all()) == [
        "failed: +15005500503: 10007 failed",
        "failed: +15005540001: 40001 failed",
    ]


def test_a_report_that_they_want_no_texts_is_their_word(actor):
    sent(actor)
    receipts.take(TELNYX, report(S.UNDELIVERED, code="40300", detail="Blocked due to STOP", opted_out=True))
    consent = Consent.objects.get()
    assert (consent.their_number, consent.state, consent.source) == (THEIRS, "opted_out", "refusal")


# The clock


@pytest.mark.parametrize("wrong", [dt.timedelta(hours=1), dt.timedelta(hours=-1)], ids=["fast", "slow"])
def test_a_process_whose_own_clock_is_wrong_goes_by_the_databases(actor, odd, monkeypatch, wrong):
    text = queued(actor)
    first = sent(actor, provider_id="message-9")
    now = get_store().sql.now()
    own = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: own() + wrong)
    odd.answers = [TemporaryFailure("not now")]
    assert outbox.send_due() == 1
    receipts.take(TELNYX, report(S.UNDELIVERED, passes=True, code="40006", provider_id="message-9"))
    for waits in (text, first):
        assert abs((fresh(waits).due_at - now).total_seconds() - LADDER[0]) < 600


@pytest.mark.parametrize("wrong", [dt.timedelta(hours=1), dt.timedelta(hours=-1)], ids=["fast", "slow"])
def test_a_text_that_nobody_can_take_waits_by_the_databases_clock_too(monkeypatch, odd, wrong):
    now = get_store().sql.now()
    own = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: own() + wrong)
    assert (
        inbox.accept(Odd(), ReceivedText("e", "m", THEIRS, OURS, "hello", []), "nobody-has-it") == "waiting"
    )
    waits = InboundText.objects.get()
    assert waits.due_at is not None
    assert abs((waits.due_at - now).total_seconds() - inbox.PAUSE) < 600


def test_a_moved_clock_is_moved_once_for_all_that_texts_wait_for(actor, odd):
    text = queued(actor)
    odd.answers = [TemporaryFailure("not now", crowded=True)]
    later(36_000)
    now = get_store().sql.now()
    assert outbox.send_due() == 1
    assert fresh(text).claimed_at is not None and text.claimed_at is not None
    assert abs((text.claimed_at - now).total_seconds()) < 600
    assert abs((Pace.objects.get().next_at - now).total_seconds() - LADDER[0]) < 600


# Cost


def test_cost_and_parts_come_from_reports_in_any_order(actor):
    text = sent(actor, segments=2)
    receipts.take(TELNYX, report(S.DELIVERED, cost=Decimal("0.0102"), currency="USD", parts=2))
    receipts.take(TELNYX, report(S.SENT, cost=Decimal("0.0100"), currency="USD"))
    # Of one try the last word counts.
    assert (fresh(text).cost, text.currency, text.parts) == (Decimal("0.0100"), "USD", 2)


def test_each_try_is_charged_for(actor):
    text = sent(actor, attempts=2, provider_id="message-2")
    receipts.take(TELNYX, report(S.UNDELIVERED, cost=Decimal("0.005"), uid=text.uid, attempt=1))
    receipts.take(TELNYX, report(S.DELIVERED, cost=Decimal("0.005"), currency="USD", provider_id="message-2"))
    assert (fresh(text).cost, text.currency) == (Decimal("0.010"), "USD")


def test_costs_are_summed_by_conversation_kind_and_day(actor):
    other = Actor.objects.create(kind="other", name="x")
    day = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
    for owner, cost, currency, moment in (
        (actor, "0.01", "USD", day),
        (actor, "0.02", "USD", day + dt.timedelta(days=1)),
        (other, "0.04", "USD", day),
        (other, "0.08", "EUR", day),
        (other, None, "", day),
    ):
        sent(owner, cost=cost, currency=currency, sent_at=moment, segments=2, provider_id=str(next(_numbers)))
    sent(actor, status=S.QUEUED, cost="9", currency="USD", provider_id="")

    def by(*names: str) -> list[tuple[Any, ...]]:
        rows = OutboundText.objects.costs(*names)
        return [(*(row[n] for n in names), row["currency"], row["texts"], float(row["cost"])) for row in rows]

    assert by() == [("", 1, 0.0), ("EUR", 1, 0.08), ("USD", 3, 0.07)]
    assert by("kind") == [
        ("other", "", 1, 0.0),
        ("other", "EUR", 1, 0.08),
        ("other", "USD", 1, 0.04),
        ("texting", "USD", 2, 0.03),
    ]
    assert by("actor")[-1] == (other.pk, "USD", 1, 0.04)
    first, second = day.date(), day.date() + dt.timedelta(days=1)
    assert by("day")[-2:] == [(first, "USD", 2, 0.05), (second, "USD", 1, 0.02)]
    assert OutboundText.objects.costs()[0]["segments"] == 2
    with pytest.raises(ValueError, match="not by week"):
        OutboundText.objects.costs("week")


def test_the_command_prints_the_sums(actor):
    import io

    from django.core.management import call_command

    sent(actor, cost="0.01", currency="USD", segments=2)
    sent(actor, cost="0.02", currency="USD", segments=1, provider_id="2")
    out = io.StringIO()
    call_command("text_costs", "--by", "actor", stdout=out)
    assert out.getvalue() == f"texting/{THEIRS}\t2 texts\t3 segments\t0.030000 USD\n"
    out = io.StringIO()
    call_command("text_costs", "--until", "2001-01-01", stdout=out)
    assert out.getvalue() == ""


# Lost answers


class Odd(TextProvider):
    """Answers as it is told to."""

    name = "odd"
    finds = True
    asks_cost = True
    answers: list[Any] = []
    found: Any = None

    def send(self, outgoing: Outgoing) -> SendResult:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def look_up(self, text: OutboundText, taken: Any = ()) -> DeliveryReport | None:
        if isinstance(Odd.found, Exception):
            raise Odd.found
        return Odd.found


@pytest.fixture
def odd(settings):
    settings.AGENTS = {"SMS_PROVIDER": f"{__name__}.Odd", "SMS_PROVIDERS": {"odd": f"{__name__}.Odd"}}
    Odd.answers, Odd.found = [], None
    return Odd


def queued(actor: Actor, **more: Any) -> OutboundText:
    return sent(actor, **{"status": S.QUEUED, "provider": "", "provider_id": "", "attempts": 0, **more})


def later(seconds: float) -> None:
    clock.shift(dt.timedelta(seconds=seconds))


def test_a_text_that_may_have_been_sent_is_asked_for_and_found(actor, odd):
    text = queued(actor)
    odd.answers = [OutcomeUnknown("no answer")]
    outbox.send_due()
    assert fresh(text).status == S.UNKNOWN
    assert asking.ask_due() == 0, "not before a minute has passed"
    later(61)
    odd.found = report(S.DELIVERED, provider_id="found", cost=Decimal("0.01"), currency="USD")
    assert asking.ask_due() == 1
    assert (fresh(text).status, text.provider_id, text.cost) == (S.DELIVERED, "found", Decimal("0.01"))
    assert text.ask_at is None
    assert outbox.send_due() == 0


def test_a_text_that_the_provider_never_had_is_sent_again_when_it_says_so_twice(actor, odd):
    text = queued(actor)
    odd.answers = [OutcomeUnknown("no answer"), SendResult("second")]
    outbox.send_due()
    later(61)
    assert asking.ask_due() == 1
    assert fresh(text).status == S.UNKNOWN
    later(241)
    assert asking.ask_due() == 1
    assert fresh(text).status == S.QUEUED
    assert outbox.send_due() == 1
    assert (fresh(text).status, text.provider_id, text.attempts) == (S.SENT, "second", 2)


def test_a_provider_that_does_not_say_is_asked_a_few_times_and_the_text_waits_for_a_person(actor, odd):
    text = queued(actor)
    odd.answers, odd.found = [OutcomeUnknown("no answer")], CannotAsk("not now")
    outbox.send_due()
    for pause in receipts.ASK_PAUSES:
        later(pause + 1)
        assert asking.ask_due() == 1
    later(100_000)
    assert asking.ask_due() == 0
    assert (fresh(text).status, text.asks) == (S.UNKNOWN, 4)


@pytest.mark.parametrize(("setting", "status", "asks"), [("keep", S.UNKNOWN, 0), ("resend", S.QUEUED, 0)])
def test_the_setting_decides_about_texts_that_may_have_been_sent(actor, odd, settings, setting, status, asks):
    settings.AGENTS = {**settings.AGENTS, "SMS_UNKNOWN": setting}
    text = queued(actor)
    odd.answers = [OutcomeUnknown("no answer")]
    outbox.send_due()
    later(61)
    assert asking.ask_due() == asks
    assert fresh(text).status == status


def test_a_provider_whose_reports_leave_out_the_cost_is_asked_for_it(actor, odd):
    text = sent(actor, provider="odd")
    odd.found = report(S.DELIVERED, cost=Decimal("0.0079"), currency="USD", parts=1)
    receipts.take(Odd(), report(S.DELIVERED))
    later(61)
    assert asking.ask_due() == 1
    assert (fresh(text).cost, text.currency, text.ask_at) == (Decimal("0.0079"), "USD", None)


def test_what_a_worker_learns_late_is_written_and_a_report_that_was_faster_stands(actor, odd):
    text = queued(actor)

    class Slow(SendResult):
        pass

    odd.answers = [Slow("message-1")]
    (claimed,), _ = outbox.claim(1)
    receipts.take(Odd(), report(S.DELIVERED, uid=text.uid, attempt=1))
    assert fresh(text).status == S.DELIVERED
    for outcome in (TemporaryFailure("late"), PermanentFailure("late"), OutcomeUnknown("late")):
        outbox._record(claimed, outcome)
        assert fresh(text).status == S.DELIVERED
    outbox._record(claimed, SendResult("message-1"))
    assert (fresh(text).status, text.provider_id) == (S.DELIVERED, "message-1")


@pytest.mark.parametrize("status", [S.FAILED, S.UNDELIVERED, S.UNKNOWN])
def test_an_operator_sends_a_text_again(actor, odd, status):
    text = sent(actor, status=status, provider="odd", error="why")
    assert outbox.resend(text)
    odd.answers = [SendResult("again")]
    assert outbox.send_due() == 1
    assert (fresh(text).status, text.provider_id) == (S.SENT, "again")
    assert not outbox.resend(text), "it is on its way"


def test_the_audit_sees_a_text_that_is_behind_its_reports_and_two_of_one_name(actor):
    text = sent(actor)
    receipts.take(TELNYX, report(S.DELIVERED))
    assert [f for f in audit(settled=0) if f.check == "reports"] == []
    OutboundText.objects.update(status=S.SENT)
    sent(actor, text="another")
    TextEvent.objects.update(received_at=moments.now() - dt.timedelta(seconds=5))
    problems = sorted(f.problem for f in audit(settled=0) if f.check == "reports")
    assert problems == ["2 texts have this name", "sent, reported delivered"]
    assert text.pk


def test_reports_at_the_same_moment_end_with_the_furthest(actor):
    from concurrent.futures import ThreadPoolExecutor

    text = sent(actor)

    def take(status: TextStatus) -> None:
        try:
            receipts.take(TELNYX, report(status))
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(take, [S.SENT, S.DELIVERED, S.SENT, S.DELIVERED] * 3))
    assert fresh(text).status == S.DELIVERED
    assert text.events.count() == 12
    assert text.events.filter(changed=True).count() == 1


def test_a_provider_that_is_gone_leaves_its_reports_as_they_are(actor, settings):
    receipts.take(Odd(), report(S.DELIVERED, code="1"))
    sent(actor, provider="odd")
    with pytest.raises(ConfigurationError):
        from conversations.providers import get_provider

        get_provider("odd")
    assert receipts.settle() == 1
    assert OutboundText.objects.get().status == S.DELIVERED
