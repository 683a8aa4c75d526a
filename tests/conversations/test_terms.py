"""What a search understands of what was typed."""

from __future__ import annotations

import pytest

from conversations.terms import WORDS, goes_on, going_on, parse


def understood(text: str) -> list[list[str]]:
    """Each term as it would be written: with its signs, its words joined by +."""
    return [
        [f"{'-' * t.without}{'=' * t.phrase}{'+'.join(t.words)}" for t in terms]
        for terms in parse(text).alternatives
    ]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("order refund", [["order", "refund"]]),
        ('"in stock" -refund', [["=in+stock", "-refund"]]),
        ('refund -"in stock"', [["refund", "-=in+stock"]]),
        ("a or b c OR d", [["a"], ["b", "c"], ["d"]]),
        ('"or" b', [["or", "b"]]),
        ("A-1001 it's", [["A+1001", "it+s"]]),
        ('"unclosed phrase', [["=unclosed+phrase"]]),
        ('near"far away"', [["near", "=far+away"]]),
        ("-refund", []),
        ("-refund or order", [["order"]]),
        ("<b> & | ! () ' \\ :* %_", [["b"]]),
        ("", []),
        ("नमस्ते e\u0301te\u0301 “quoted”", [["नमस्ते", "e\u0301te\u0301", "quoted"]]),
    ],
)
def test_words_phrases_and_signs(text: str, terms: list[list[str]]) -> None:
    assert understood(text) == terms


def test_a_search_has_so_many_words_at_most() -> None:
    (terms,) = parse(" ".join(f"w{n}" for n in range(100))).alternatives
    assert len(terms) == WORDS
    (terms,) = parse(f'"{" ".join(str(n) for n in range(100))}" more').alternatives
    assert [len(term.words) for term in terms] == [WORDS]


def test_a_search_goes_on_before_a_message() -> None:
    text = going_on('"in stock" order', 1234)
    assert text == '"in stock" order before:1234'
    assert goes_on(text) and not goes_on('"in stock" order')
    assert parse(text).before == 1234 and parse("order").before is None
    assert going_on(text, 77) == '"in stock" order before:77'
    assert parse(text).alternatives == parse('"in stock" order').alternatives
    # Not what somebody looks for.
    assert parse("before:noon").before is None and understood("before:noon") == [["before+noon"]]
    assert parse("before:" + "9" * 30).before is None
