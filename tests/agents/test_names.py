"""Names carry through URLs, files and groups; kinds come from class names."""

from __future__ import annotations

import enum
import re
from pathlib import Path
from urllib.parse import quote, unquote, urljoin

import pytest
from channels.layers import BaseChannelLayer
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agents.exceptions import AddressError, InvalidKindError, InvalidNameError
from agents.names import (
    check_kind,
    check_name,
    escape_name,
    group_name,
    kind_from_class_name,
    unescape_name,
)

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
names = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.sampled_from(".~/%-_ "),
    min_size=1,
    max_size=255,
)
thorough = settings(max_examples=300, deadline=None)
AWKWARD = [
    "+15005550006",
    "José",
    "a b",
    "user@example.org",
    "日本",
    ".",
    "..",
    "...",
    "~",
    "~41",
    "a/b",
    "%2F",
]


@pytest.mark.parametrize("name", [*AWKWARD, " ", "\n", "x", "x" * 255, "😀" * 255, "\ufffd"])
def test_a_name_is_any_text_of_1_to_255_characters(name):
    assert check_name(name) is name
    assert unescape_name(escape_name(name)) == name


@pytest.mark.parametrize("name", ["", "x" * 256, "a\0b", "\ud83d", "\ude00x", None, 5, b"x", ["x"]])
def test_what_is_no_name_is_refused(name):
    for verb in (check_name, escape_name, lambda name: group_name("support", name)):
        with pytest.raises(InvalidNameError) as caught:
            verb(name)
        assert caught.value.code == "invalid_name"
    assert isinstance(caught.value, AddressError)


def test_a_member_of_an_enumeration_is_the_text_that_it_stands_for():
    class Desk(str, enum.Enum):  # noqa: UP042 - its str() is its name
        FRONT = "front"

    name = check_name(Desk.FRONT)
    assert type(name) is str
    assert name == "front"
    assert escape_name(Desk.FRONT) == "front"
    assert type(check_kind(Desk.FRONT)) is str


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("+15005550006", "~2B15005550006"),
        ("José", "Jos~C3~A9"),
        ("a b", "a~20b"),
        ("user@example.org", "user~40example.org"),
        ("日本", "~E6~97~A5~E6~9C~AC"),
        (".", "~2E"),
        ("..", "~2E."),
        (".a.b", "~2Ea.b"),
        ("~", "~7E"),
        ("A-z_0.9", "A-z_0.9"),
        ("\n", "~0A"),
    ],
)
def test_the_escape_is_the_documented_one(name, escaped):
    assert escape_name(name) == escaped
    assert unescape_name(escaped) == name


@thorough
@given(names)
def test_every_name_comes_back_from_its_escape(name):
    escaped = escape_name(name)
    assert re.fullmatch(r"[A-Za-z0-9_.~-]+", escaped)
    assert not escaped.startswith(".")
    assert len(escaped) <= 3060
    assert unescape_name(escaped) == name


@thorough
@given(names, names)
def test_different_names_stay_different(one, other):
    assume(one != other)
    assert escape_name(one) != escape_name(other)
    assert group_name("support", one) != group_name("support", other)


@thorough
@given(names)
def test_an_escaped_name_is_one_segment_of_a_url_and_needs_no_quoting(name):
    escaped = escape_name(name)
    assert quote(escaped, safe="") == unquote(escaped) == escaped
    assert urljoin("http://x/agents/support/", f"{escaped}/rpc") == f"http://x/agents/support/{escaped}/rpc"


@pytest.mark.parametrize("name", AWKWARD)
def test_an_escaped_name_is_a_file_of_its_own(name, tmp_path: Path):
    file = tmp_path / escape_name(name)
    file.write_text(name)
    assert [found.name for found in tmp_path.iterdir()] == [escape_name(name)]
    assert file.resolve().parent == tmp_path.resolve()


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        ".a",
        "~",
        "~2",
        "a~",
        "~2b",
        "~61",
        "a~2E",
        "~2E~2E",
        "~FF",
        "~C3",
        "~00",
        "~ED~A0~80",
        "~C0~AF",
        "a b",
        "a/b",
        "a%20b",
        "José",
        "+1",
        "\n",
        "a\n",
        "x" * 256,
        None,
        b"a",
    ],
)
def test_what_the_escape_cannot_have_made_is_refused(text):
    with pytest.raises(InvalidNameError):
        unescape_name(text)


@thorough
@given(st.text("~.aF2E4C3A9\ud800é/", max_size=12))
def test_an_escaped_name_has_one_spelling(text):
    try:
        name = unescape_name(text)
    except InvalidNameError:
        return
    assert escape_name(name) == text


@thorough
@given(names)
def test_a_group_name_is_what_channels_accepts(name):
    group = group_name("support", name)
    assert BaseChannelLayer().require_valid_group_name(group)
    assert group == group_name("support", name)
    assert group != group_name("sales", name)


def test_group_names_tell_where_the_kind_ends():
    assert group_name("a", "b/c") != group_name("a-b", "c")
    with pytest.raises(InvalidKindError):
        group_name("a/b", "c")


@pytest.mark.parametrize(
    ("class_name", "kind"),
    [
        ("SupportAgent", "support"),
        ("HTTPSupportAgent", "http-support"),
        ("Support", "support"),
        ("Agent", "agent"),
        ("AgentSmith", "agent-smith"),
        ("SMSAgent", "sms"),
        ("OrderLookup2Agent", "order-lookup2"),
        ("Order2LookupAgent", "order2-lookup"),
        ("V2Agent", "v2"),
        ("ReAgent", "re"),
        ("MyHTTPAgent", "my-http"),
        ("Support_Agent", "support"),
        ("_Private__ThingAgent", "private-thing"),
        ("lowercase", "lowercase"),
        ("_Agent", "agent"),
        ("A" * 64, "a" * 64),
    ],
)
def test_a_class_name_makes_a_kind(class_name, kind):
    assert kind_from_class_name(class_name) == kind


@pytest.mark.parametrize("class_name", ["ÜberAgent", "日本Agent", "_", "A" * 65])
def test_a_class_name_that_makes_no_kind_is_refused(class_name):
    with pytest.raises(InvalidKindError):
        kind_from_class_name(class_name)


@pytest.mark.parametrize("kind", ["a", "a1", "http-support", "my_app-v2", "a" * 64])
def test_a_kind_is_words_in_lower_case(kind):
    assert check_kind(kind) == kind


@pytest.mark.parametrize(
    "kind",
    ["", "A", "1a", "-a", "a-", "a--b", "a-_b", "a b", "a/b", "a.b", "é", "a\n", "a" * 65, None, 5, b"a"],
)
def test_what_is_no_kind_is_refused(kind):
    with pytest.raises(InvalidKindError) as caught:
        check_kind(kind)
    assert caught.value.code == "invalid_kind"
