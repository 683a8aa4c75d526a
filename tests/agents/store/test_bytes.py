"""Rows with bytes in them: pages of actors' databases, which travel beside the JSON of the others."""

from __future__ import annotations

import pytest

from agents import faults
from agents.models import Page
from agents.store import commits
from agents.writes import Table, Writes
from tests.agents.store.stage import Stage

PAGE = Table("agents.Page", ("actor_id", "number", "version", "data"), conflict=("actor_id", "number"))


def pages(actor_id: int, version: int, *data: bytes) -> Writes:
    writes = Writes()
    for number, page in enumerate(data, 1):
        row = {"actor_id": actor_id, "number": number, "version": version, "data": page}
        writes.upsert(PAGE, row)
    return writes


def test_bytes_come_back_as_they_were(stage: Stage) -> None:
    actor = stage.actor()
    data = [bytes(range(256)), b"", b"\x00", b"\\x41", b'"quoted", {braces}', b"\xff" * 65536]
    claimed = stage.claim(actor)
    first = stage.commit(stage.dirty(claimed, writes=pages(actor, 1, *data), release=False))
    stored = Page.objects.filter(actor_id=actor).order_by("number").values_list("data", flat=True)
    assert [bytes(page) for page in stored] == data
    stage.commit(stage.dirty(claimed, after=first, writes=pages(actor, 2, *data[::-1])))
    assert [bytes(page) for page in stored.all()] == data[::-1]


def test_many_pages_go_in_several_statements_of_one_commit(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "BINARY_ROWS", 3)
    actors = [stage.actor() for _ in range(2)]
    passed: list[int] = []
    batch = [
        stage.dirty(stage.claim(actor), writes=pages(actor, 1, *(b"%d" % n for n in range(5))))
        for actor in actors
    ]
    with faults.at("commit.rows", lambda: passed.append(Page.objects.count())):
        results = stage.store.commit(batch)
    assert [r.version for r in results] == [1, 1]  # type: ignore[union-attr]
    assert len(passed) == 4
    assert Page.objects.count() == 10


def test_a_commit_that_fails_between_its_pages_leaves_none(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "BINARY_ROWS", 1)
    actor = stage.actor()

    def fail() -> None:
        raise ValueError("the third page")

    commit = stage.dirty(stage.claim(actor), writes=pages(actor, 1, b"a", b"b"))
    with faults.at("commit.rows", fail):
        assert isinstance(stage.refused(commit), ValueError)
    assert not Page.objects.exists()
    assert stage.commit(commit).version == 1
