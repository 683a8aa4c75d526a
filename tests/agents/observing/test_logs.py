"""Lines of the log: what they are about, and what they leave out."""

from __future__ import annotations

import json
import logging
import uuid
from typing import Any

import pytest
from django.test import AsyncClient, Client

from agents.exceptions import ConfigurationError, GiveUp
from agents.observing import carrying
from agents.observing.logs import Context, Json, Plain, Quoted, masked
from agents.testing import drain
from scheduler.models import Task
from tests.agents.cast import Writer

SAID = "my card is 4111 1111"


@pytest.fixture(autouse=True)
def _discreet(settings: Any) -> None:
    settings.AGENTS = {**settings.AGENTS, "LOG_CONTENT": False}


def record(message: str, *args: Any, name: str = "agents.test", error: BaseException | None = None) -> Any:
    exc_info = (type(error), error, error.__traceback__) if error is not None else None
    made = logging.LogRecord(name, logging.ERROR, __file__, 1, message, args, exc_info)
    assert Context().filter(made)
    return made


def plain(*args: Any, **options: Any) -> str:
    return Plain("{levelname} {name}: {message}{context}", style="{").format(record(*args, **options))


def as_json(*args: Any, **options: Any) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(Json().format(record(*args, **options)))
    return loaded


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_what_an_error_says_is_left_out_and_its_type_stays():
    assert plain("it failed: %s", ValueError(SAID)) == "ERROR agents.test: it failed: ValueError"
    assert plain("it failed: %r", GiveUp(SAID)).endswith("it failed: 'GiveUp'")
    assert plain("%(what)s", {"what": ValueError(SAID)}).endswith(": ValueError")


def test_errors_that_are_ours_say_what_they_say():
    error = ConfigurationError("set MODEL", setting="MODEL")
    assert plain("no: %s", error).endswith("no: ConfigurationError: set MODEL")


def test_tracebacks_say_where_and_not_what():
    try:
        try:
            raise KeyError(SAID)
        except KeyError as error:
            raise ExceptionGroup(SAID, [raised(ValueError(SAID))]) from error
    except ExceptionGroup as group:
        for line in (plain("failed", error=group), as_json("failed", error=group)["exc_info"]):
            assert SAID not in line
            assert "KeyError" in line and "ValueError" in line and "test_logs.py" in line
            assert "direct cause" in line


def test_content_is_there_for_those_who_ask(settings: Any):
    settings.AGENTS = {**settings.AGENTS, "LOG_CONTENT": True}
    line = plain("to +15550001111: %s %s", ValueError(SAID), Quoted(SAID), error=raised(KeyError(SAID)))
    assert line.count(SAID) == 3
    assert "+15550001111" in line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("+15550001111", "+***1111"),
        ("test/+4915112345678.", "test/+***5678."),
        ("/agents/support/%2B15550001111/", "/agents/support/%2B***1111/"),
        ("at 2026-11-30T10:00:00+00:00", "at 2026-11-30T10:00:00+00:00"),
        ("+123456", "+123456"),
        ("turn 15550001111 of 3", "turn 15550001111 of 3"),
    ],
)
def test_phone_numbers_keep_their_last_digits(text: str, shown: str):
    assert masked(text) == shown


def test_secrets_are_never_shown(settings: Any):
    settings.SECRET_KEY = "a-secret-of-the-site"
    keys = {"TELNYX_API_KEY": "KEY0123456789", "TWILIO_AUTH_TOKENS": ["t" * 32]}
    settings.AGENTS = {**settings.AGENTS, "LOG_CONTENT": True, **keys}
    line = plain("keys: %s", f"a-secret-of-the-site KEY0123456789 {'t' * 32}")
    assert line.endswith("keys: *** *** ***")
    assert as_json("Bearer KEY0123456789")["message"] == "Bearer ***"


def test_what_asyncio_shows_of_tasks_is_left_out():
    text = f"Task exception was never retrieved\nfuture: <Task exception=ValueError('{SAID}')>"
    assert plain(text, name="asyncio").endswith("Task exception was never retrieved")


def test_an_object_a_line_with_what_there_is_and_no_more():
    line = as_json("hello %s", "world")
    assert line.keys() == {"timestamp", "level", "logger", "message"}
    assert (line["level"], line["logger"], line["message"]) == ("ERROR", "agents.test", "hello world")
    odd = record("hello")
    odd.request, odd.body = object(), SAID
    assert SAID not in Json().format(odd)


def test_a_record_is_left_as_it_was_for_other_handlers():
    made = record("it failed: %s", ValueError(SAID), error=raised(ValueError(SAID)))
    Plain("{message}", style="{").format(made)
    assert made.getMessage() == f"it failed: {SAID}"
    assert not made.exc_text


# Requests


def test_each_answer_names_its_request_and_a_proxys_id_is_taken():
    fresh = Client().get("/health/live")["X-Request-ID"]
    assert uuid.UUID(fresh)
    assert (
        Client(headers={"x-request-id": "proxy-1.2_abc"}).get("/health/live")["X-Request-ID"]
        == "proxy-1.2_abc"
    )
    for bad in ("short", "x" * 65, "with space and", "a\tb234567", "15550001111", "<script>alert"):
        assert Client(headers={"x-request-id": bad}).get("/health/live")["X-Request-ID"] != bad
    assert carrying.request_id.get() == ""


async def test_under_asgi_too():
    answer = await AsyncClient().get("/health/live", headers={"x-request-id": "proxy-1234"})
    assert answer["X-Request-ID"] == "proxy-1234"


@pytest.mark.django_db(transaction=True)
def test_lines_about_a_turn_name_it_and_the_request_that_led_to_it(caplog: pytest.LogCaptureFixture):
    caplog.handler.addFilter(context := Context())
    try:
        token = carrying.request_id.set("request-1")
        try:
            Writer.named("w").sync.tell("give_up")
        finally:
            carrying.request_id.reset(token)
        assert Task.objects.get().carried == "request-1"
        drain(Writer.named("w"))
    finally:
        caplog.handler.removeFilter(context)
    (line,) = [r for r in caplog.records if r.name == "scheduler.drain"]
    assert line.actor == "test-writer/w"  # type: ignore[attr-defined]
    assert uuid.UUID(line.turn)  # type: ignore[attr-defined]
    assert line.request_id == "request-1"  # type: ignore[attr-defined]
    shown = json.loads(Json().format(line))
    assert shown["message"] == "give_up of test-writer/w is parked after 1 attempts: GiveUp"
    assert (shown["actor"], shown["request_id"]) == ("test-writer/w", "request-1")


@pytest.mark.django_db(transaction=True)
def test_what_a_turn_schedules_carries_its_request_on():
    token = carrying.request_id.set("request-2")
    try:
        Writer.named("w").sync.everything()
    finally:
        carrying.request_id.reset(token)
    assert Task.objects.get(task_id="later").carried == "request-2"
