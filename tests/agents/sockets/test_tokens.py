"""Tokens: for one actor, for a time, and for nobody who would change them."""

from __future__ import annotations

import pytest
import time_machine
from django.core import signing

from agents.exceptions import CodecError, InvalidNameError, TokenError, UnknownKindError
from agents.sockets.tokens import connect_token, read_token
from tests.agents.sockets.chatters.agents import ChatterAgent

KIND = ChatterAgent.kind
NOW = 1_800_000_000


def test_a_token_carries_its_claims_to_its_actor() -> None:
    token = connect_token(KIND, "日本 +1", {"name": "Ada", "plan": None})
    assert read_token(token, KIND, "日本 +1").claims == {"name": "Ada", "plan": None}
    assert read_token(connect_token(KIND, "a"), KIND, "a").claims == {}


@pytest.mark.parametrize(("kind", "name"), [(KIND, "b"), ("test-open", "a"), (KIND, "A")])
def test_a_token_for_another_actor_is_refused(kind: str, name: str) -> None:
    with pytest.raises(TokenError, match="for another actor"):
        read_token(connect_token(KIND, "a"), kind, name)


def test_a_token_admits_until_its_very_second() -> None:
    with time_machine.travel(NOW, tick=False) as time:
        token = connect_token(KIND, "a", max_age=60)
        assert read_token(token, KIND, "a").expires_at == NOW + 60
        time.move_to(NOW + 59.9)
        read_token(token, KIND, "a")
        time.move_to(NOW + 60)
        with pytest.raises(TokenError, match="expired"):
            read_token(token, KIND, "a")


@pytest.mark.parametrize(
    "token",
    ["", "nonsense", "a.b.c", signing.dumps({"kind": KIND}, salt="another")],
    ids=["empty", "nonsense", "three parts", "another salt"],  # a signature differs from process to process
)
def test_what_we_did_not_sign_is_no_token(token: str) -> None:
    with pytest.raises(TokenError, match="no token of this site"):
        read_token(token, KIND, "a")


def test_something_else_that_we_signed_is_no_token() -> None:
    with pytest.raises(TokenError):
        read_token(signing.dumps(["a", "list"], salt="agents.sockets.connect"), KIND, "a")


def test_nobody_makes_a_token_for_what_is_no_actor() -> None:
    with pytest.raises(UnknownKindError):
        connect_token("no-such-kind", "a")
    with pytest.raises(InvalidNameError):
        connect_token(KIND, "")
    with pytest.raises(CodecError):
        connect_token(KIND, "a", {"when": object()})
    with pytest.raises(ValueError, match="max_age"):
        connect_token(KIND, "a", max_age=0)
