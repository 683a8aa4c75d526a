"""Kinds: stable names, and how classes get them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from django.core.exceptions import ImproperlyConfigured

from agents import Agent, kinds
from agents.exceptions import InvalidKindError, UnknownKindError
from tests.agents.cast import Counter


def test_a_kind_is_the_class_name_in_kebab_case_without_a_trailing_agent():
    class KindTestSupportAgent(Agent): ...

    class KindTestHTTPProxy(Agent): ...

    assert KindTestSupportAgent.kind == "kind-test-support"
    assert KindTestHTTPProxy.kind == "kind-test-http-proxy"
    assert kinds.get("kind-test-support") is KindTestSupportAgent


def test_an_explicit_kind_stands_and_is_not_inherited():
    class KindTestOne(Agent):
        kind = "kind-test-explicit"

    class KindTestTwo(KindTestOne): ...

    assert (KindTestOne.kind, KindTestTwo.kind) == ("kind-test-explicit", "kind-test-two")


def test_two_classes_of_one_kind_are_a_start_up_error():
    class KindTestTaken(Agent):
        kind = "kind-test-taken"

    with pytest.raises(ImproperlyConfigured, match="kind-test-taken"):

        class KindTestTaker(Agent):
            kind = "kind-test-taken"

    assert kinds.get("kind-test-taken") is KindTestTaken


@pytest.mark.parametrize("bad", ["", "Upper", "a b", "a/b", "x" * 65, "-a", "ä"])
def test_a_kind_is_lower_case_letters_digits_and_dashes(bad):
    with pytest.raises(InvalidKindError):
        type("KindTestBad", (Agent,), {"kind": bad})
    assert bad not in kinds.installed()


def test_an_abstract_class_claims_no_kind_and_its_children_do():
    class KindTestBase(Agent):
        abstract = True

    class KindTestChild(KindTestBase): ...

    assert "kind-test-base" not in kinds.installed()
    assert "kind-test-child" in kinds.installed()


@pytest.mark.parametrize("name", ["alarm", "call", "stop", "sync", "tell"])
def test_names_of_the_stubs_and_of_the_scheduler_are_reserved(name):
    with pytest.raises(TypeError, match=name):
        type("KindTestReserved", (Agent,), {name: None})
    assert "kind-test-reserved" not in kinds.installed()


def test_what_is_not_installed_is_an_error():
    with pytest.raises(UnknownKindError):
        kinds.get("kind-test-nowhere")
    assert kinds.get("test-counter") is Counter


def test_agents_can_be_imported_before_the_apps_are_ready():
    script = """
import django
from agents import Agent, exposed, reads
class EarlyBirdAgent(Agent):
    @exposed
    @reads
    async def look(self): ...
django.setup()
print(EarlyBirdAgent.named("a"))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("<early-bird/a>\n", "")
