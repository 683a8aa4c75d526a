"""Full-text search over all messages, the newest first; how much one search reads is bounded.

On PostgreSQL words are looked up in an index (``to_tsvector('simple', ...)``, GIN): the language doesn't
matter, nor do capitals; a word of three letters or more also finds longer ones that begin with it. The index
knows words, not their order: a phrase is looked for in messages that have all its words, the newest of them,
and whoever asks is told where to look on (``Found.before``). SQLite has no such index here: there every word
is looked for in every message, as a part of it (LIKE).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Any

from django.contrib.postgres.search import SearchQuery, SearchVectorField
from django.db import connection, transaction
from django.db.models import F, Func, IntegerField, Max, Q, QuerySet

from conversations.models import Message
from conversations.terms import PREFIX, Term, parse

#: Characters of a message that are searched. A longer one could be more than a tsvector holds (1 MiB), and
#: then its turn could not commit.
SEARCHED = 100_000

#: Messages that a search gives at most.
HITS = 200
#: Messages that are looked for a phrase, and the bytes of them that are read: some 0.2 s.
CANDIDATES, READ = 5_000, 400_000
#: The newest ids are looked at first. Where a word is common there are enough; else it is so rare that all of
#: them are few.
RECENT = 50_000
#: Signs that part words: PostgreSQL's parser would take what is around them for one word, such as an address,
#: or leave it out, such as a tag.
PARTING = "<>&/@=+-._#|\\"
#: What is indexed; the index was made with these very words (migration 0005).
DOCUMENT = (
    "to_tsvector('simple', translate("
    f"left(%(expressions)s, {SEARCHED}), '{PARTING}', '{' ' * len(PARTING)}'))"
)

# How PostgreSQL's planner is kept from reading messages that the index need not name. It can't know how
# common words are, and takes making a tsvector of a message for nearly free.
_BY_INDEX = {
    "enable_seqscan": "off",
    "enable_indexscan": "off",
    "max_parallel_workers_per_gather": "0",
    "cpu_operator_cost": "1",
    "random_page_cost": "1000",
    "jit": "off",  # such costs would call for a compiler
    # A bitmap of millions of rows; one that doesn't fit remembers pages alone, whose rows are all read.
    "work_mem": "'64MB'",
}


@dataclass(frozen=True)
class Found:
    """The newest messages that a search found, and the id before which there may be more (None: no)."""

    ids: list[int]
    before: int | None = None


class _Document(Func):
    template = DOCUMENT
    output_field = SearchVectorField()


class _Size(Func):
    function = "octet_length"
    output_field = IntegerField()


def newest(rows: QuerySet[Message], text: str) -> Found:
    """Those of the messages that hold what is looked for: the newest HITS."""
    search = parse(text)
    alternatives = search.alternatives
    if not alternatives:
        return Found([])
    rows = rows.order_by("-pk")
    if search.before is not None:
        rows = rows.filter(pk__lt=search.before)
    if connection.vendor != "postgresql":
        return _enough(list(rows.filter(_like(alternatives)).values_list("pk", flat=True)[:HITS]))
    words, exact = _query(alternatives, "plain"), _query(alternatives, "phrase")
    phrases = any(term.phrase for terms in alternatives for term in terms)
    end = search.before or (Message.objects.aggregate(last=Max("pk"))["last"] or 0) + 1
    having = rows.alias(document=_Document(F("content"))).filter(document=words)
    with _by_index():
        found = Found([])
        for some in (having.filter(pk__gte=end - RECENT), having):
            found = _with(some, exact) if phrases else _enough(list(some.values_list("pk", flat=True)[:HITS]))
            if found.before is not None:
                break
    return found


def _enough(ids: list[int]) -> Found:
    return Found(ids, ids[-1] if len(ids) == HITS else None)


def _with(having: QuerySet[Message], exact: Any) -> Found:
    """Those of the newest of these that have the phrase."""
    candidates, read = [], 0
    for pk, size in having.values_list("pk", _Size("content"))[:CANDIDATES]:
        candidates.append(pk)
        read += min(size, SEARCHED)
        if read > READ:
            break
    of_these = Message.objects.filter(pk__in=candidates).alias(document=_Document(F("content")))
    found = _enough(list(of_these.filter(document=exact).order_by("-pk").values_list("pk", flat=True)[:HITS]))
    if found.before is None and (len(candidates) == CANDIDATES or read > READ):
        return Found(found.ids, candidates[-1])
    return found


@contextmanager
def _by_index() -> Iterator[None]:
    """In here messages are read where the index says so, and not one after the other."""

    def setting(value: Callable[[str], str]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("; ".join(f"SET LOCAL {name} TO {value(name)}" for name in _BY_INDEX))

    with transaction.atomic():
        setting(_BY_INDEX.__getitem__)
        yield
        setting(lambda name: "DEFAULT")


# What is asked for


def _query(alternatives: list[list[Term]], phrases: str) -> Any:
    """The terms for the index. ``phrases``: "phrase", or "plain" for whatever has all their words."""
    return reduce(or_, (reduce(and_, _parts(terms, phrases)) for terms in alternatives))


def _parts(terms: list[Term], phrases: str) -> Iterator[Any]:
    for term in terms:
        if term.phrase:
            part = SearchQuery(" ".join(term.words), config="simple", search_type=phrases)
            if not term.without:
                yield part
            elif phrases == "phrase":  # who has all its words may not have the phrase
                yield ~part
        elif term.without:
            yield ~SearchQuery(" ".join(term.words), config="simple", search_type="plain")
        else:
            starts = (f"'{word}'{':*' if len(word) >= PREFIX else ''}" for word in term.words)
            yield SearchQuery(" & ".join(starts), config="simple", search_type="raw")


def _like(alternatives: list[list[Term]]) -> Q:
    return reduce(or_, (reduce(and_, map(_contains, terms)) for terms in alternatives))


def _contains(term: Term) -> Q:
    contains = Q(content__icontains=term.typed)
    return ~contains if term.without else contains
