"""The examples of docs/sql.md and docs/storage.md, run as they stand there."""

import json
import re
from pathlib import Path

import pytest

from agents import Agent, exposed, kinds, reads
from agents.exceptions import SqlConstraintError, SqlError
from agents.models import Actor
from agents.testing import drain

pytestmark = pytest.mark.django_db(transaction=True)

DOCS = Path(__file__).resolve().parents[3] / "docs"
NAMES = {
    "Agent": Agent, "SqlConstraintError": SqlConstraintError, "SqlError": SqlError, "exposed": exposed,
    "json": json, "reads": reads,
}  # fmt: skip


@pytest.fixture(scope="module")
def examples():
    """The classes that the pages define."""
    names = dict(NAMES)
    for page in ("sql.md", "storage.md"):
        for block in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.S):
            exec(block, names)
    yield names
    for cls in [v for v in names.values() if isinstance(v, type) and issubclass(v, Agent) and v is not Agent]:
        kinds._classes.pop(cls.kind, None)


def test_orders(examples):
    stub = examples["OrderAgent"].named("a").sync
    for sku, cents in (("tea", 350), ("cake", 420), ("tea", 350)):
        stub.record(sku, cents)
    assert stub.top() == [{"sku": "tea", "total": 700}, {"sku": "cake", "total": 420}]


def test_a_transfer_that_cannot_be_leaves_both_accounts(examples):
    stub = examples["TransferAgent"].named("a").sync
    assert [stub.move(60), stub.move(60), stub.move(40)] == [True, False, True]


def test_a_webhook_that_comes_twice_is_queued_once(examples):
    agent = examples["HookAgent"].named("a")
    assert agent.sync.received({"id": "e1"}) == "queued"
    assert agent.sync.received({"id": "e1"}) == "already handled"
    assert agent.sync.received({"id": "e2"}) == "queued"
    assert drain() == 2
    assert Actor.objects.get(kind="docs-hooks").state == {"last": "e2"}


def test_a_ledger_answers_what_was_done_and_the_model_may_ask_it(examples):
    stub = examples["LedgerAgent"].named("a").sync
    assert stub.use("add", {"a": 1, "b": 2}) == 3
    assert stub.use("fly", {}) == "no tool fly"
    stub.use("add", {"a": 2, "b": 2})
    assert stub.what_did_you_do() == [
        {"tool": "add", "calls": 2, "failed": 0},
        {"tool": "fly", "calls": 1, "failed": 1},
    ]
    assert stub.ask("SELECT result FROM calls WHERE tool = 'add' ORDER BY id DESC LIMIT 1") == [
        {"result": "4"}
    ]
    assert stub.ask("DELETE FROM calls") == "error: only reading is allowed here"
    assert stub.ask("SELECT price FROM calls") == "error: no such column: price"
    assert len(stub.what_did_you_do()) == 2


def test_a_history_is_searched_by_words(examples):
    stub = examples["HistorianAgent"].named("a").sync
    for role, content in (
        ("user", "My order of green tea has not arrived yet, and I am waiting for it since Monday morning"),
        ("assistant", "I am sorry! It will be there tomorrow."),
        ("user", 'I asked for "coffee"'),
    ):
        stub.say(role, content)
    (found,) = stub.search("orders")
    assert (found["seq"], found["role"]) == (1, "user")
    assert "[order]" in found["found"]
    assert stub.search('"coffee"')[0]["seq"] == 3
    assert stub.search("nothing AND (") == []
    assert Actor.objects.get(kind="docs-historian").seq == 3


def test_settings_by_name(examples):
    stub = examples["SettingsAgent"].named("a").sync
    stub.choose("language", "de")
    stub.choose("hours", {9, 17})
    assert stub.choices() == {"hours": {9, 17}, "language": "de"}
    stub.forget()
    assert stub.choices() == {}
