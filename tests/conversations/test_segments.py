"""Pure: what a text costs."""

from __future__ import annotations

import pytest

from conversations.segments import fit, segments


@pytest.mark.parametrize(
    ("text", "encoding", "count"),
    [
        ("", "GSM-7", 0),
        ("a" * 160, "GSM-7", 1),
        ("a" * 161, "GSM-7", 2),
        ("a" * 306, "GSM-7", 2),
        ("a" * 307, "GSM-7", 3),
        ("]" * 80, "GSM-7", 1),
        ("]" * 81, "GSM-7", 2),
        ("a" * 159 + "]", "GSM-7", 2),
        ("a" * 152 + "]" + "a" * 7, "GSM-7", 2),
        ("]" * 84 + "😘", "UCS-2", 2),
        ("😎" * 35, "UCS-2", 1),
        ("😎" * 70, "UCS-2", 3),
        ("a" * 159 + "\u2019", "UCS-2", 3),
        ("ñ" * 70 + "ü" * 90, "GSM-7", 1),
        ("á" * 70, "UCS-2", 1),
        ("á" * 71, "UCS-2", 2),
        ("£€\n", "GSM-7", 1),
    ],
)
def test_segments_are_counted_as_carriers_count_them(text, encoding, count):
    assert (segments(text).encoding, segments(text).count) == (encoding, count)


def test_no_character_is_split_between_segments():
    # 152 units, then one of two: it begins the second segment, and the rest no longer fits into it.
    assert segments("a" * 152 + "]" + "a" * 151).count == 2
    assert segments("a" * 152 + "]" + "a" * 152).count == 3


def test_what_fits_stays_and_what_does_not_is_cut_to_the_last_unit():
    assert fit("a" * 1530) == "a" * 1530
    assert fit("a" * 1531) == "a" * 1527 + "..."
    assert segments(fit("á" * 5000)).count == 10
    assert segments(fit("word " * 2000)).count == 10
    assert not fit("word " * 2000).endswith(" ...")
    assert fit("a" * 200, maximum=1) == "a" * 157 + "..."
