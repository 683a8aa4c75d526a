"""What crosses a boundary: Python values as plain JSON trees, and back, each as the type that went in.

A *tree* is what PostgreSQL's jsonb, SQLite and every JSON reader keep unchanged: dicts with text keys,
lists, text, 64-bit integers, floats that a decimal number holds, booleans and null. ``encode`` makes a
tree of a value and ``decode`` makes the value of a tree. What JSON has no word for becomes a *tagged* dict
with one key, such as ``{"$date": "2026-02-28"}``; a dict of the user's whose keys begin with ``$`` is
written with one more ``$`` before each such key, so nothing that looks like a tag is taken for one.

Three rules hold everywhere (docs/codec.md has the table of types):

- Keys are sorted, in ``encode`` and again in ``decode``, because jsonb gives them back in an order of its
  own: a value is the same bytes in the turn that wrote it and in every later one.
- U+0000 and lone surrogates in text, keys included, become U+FFFD: PostgreSQL can store neither, UTF-8 has
  no surrogates. Of two keys that become one, the later in the dict's own order stays.
- What cannot be kept raises ``CodecError``, which names the path, before anything is stored.

``encode`` and ``decode`` (``pack`` is both) run for every argument, message and state of every turn. Almost
all of those are JSON already, and then orjson, writing and reading them once, copies, sorts and checks
several times faster than any loop here could. What it would change or refuse goes the long way, with the
same result.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import re
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NoReturn, TypeVar

import orjson

from agents.exceptions import CodecError

Tree = Any
Moment = TypeVar("Moment", dt.datetime, dt.time)

#: Nested lists and dicts a tree may have. A set, tuple or frozenset takes two levels of it, a dict with
#: keys that are not text three. orjson writes 254 levels; what wraps a tree (a patch, a row) needs a few.
MAX_DEPTH = 200

TAG = "$"
REPLACEMENT = "\ufffd"

_MIN_INT = -(2**63)
_MAX_INT = 2**63 - 1
# Beyond these, repr() and orjson write an exponent, and jsonb, which stores decimal numbers, answers with
# other digits: 1e16 comes back as the integer 10000000000000000.
_MIN_PLAIN_FLOAT = 1e-4
_MAX_PLAIN_FLOAT = 1e16
_SURROGATE = re.compile("[\ud800-\udfff]")
_PLAIN_KEY = re.compile(r"[^\W\d]\w*")
_MAX_SEGMENT = 80  # characters of one key in an error's path
_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
# orjson sorts by UTF-8 bytes, which is Python's own order of text.
_SORTED = _STRICT | orjson.OPT_SORT_KEYS
# It refuses integers beyond 53 bits, so also those between 2**63 and 2**64 that it could write.
_SORTED_SAFE = _SORTED | orjson.OPT_STRICT_INTEGER
_ATOMS = frozenset({str, int, bool, type(None)})


# The verbs


def encode(value: Any) -> Tree:
    """The tree of a value. Raises CodecError; changes and keeps nothing of ``value``."""
    try:
        quick = _quick(value)
        return quick if quick is not None else _encode(value, MAX_DEPTH)
    except _UnfitError as unfit:
        raise unfit.report() from None
    except RecursionError:
        raise CodecError("the value is nested too deep for the stack that is left", path="$") from None


def decode(tree: Tree) -> Any:
    """The value of a tree that ``encode`` made; shares nothing that can change with it.

    Raises CodecError for a tree that ``encode`` cannot have made, such as one with a tag of a newer version.
    """
    kind = type(tree)
    if kind is not dict and kind is not list:
        return tree
    try:
        text = orjson.dumps(tree, option=_SORTED)
        if b'"$' not in text:  # no tag and no escaped key
            return orjson.loads(text)
        return _decode(tree)
    except TypeError as error:
        raise CodecError(f"not a plain JSON tree: {error}", path="$") from None
    except _UnfitError as unfit:
        raise unfit.report() from None
    except RecursionError:
        raise CodecError("the tree is nested too deep for the stack that is left", path="$") from None


class Packed:
    """A value on its way across a boundary, as the JSON of its tree: written once, read where it arrives."""

    __slots__ = ("_text",)

    def __init__(self, text: bytes) -> None:
        self._text = text

    @property
    def size(self) -> int:
        """Bytes of the tree's JSON, as ``size`` says."""
        return len(self._text)

    @property
    def tagged(self) -> bool:
        """Whether the tree is another than the value, or may be."""
        return b'"$' in self._text

    def tree(self) -> Tree:
        """The tree anew each time, as ``encode`` gives it."""
        return orjson.loads(self._text)

    def value(self) -> Any:
        """The value anew each time, as ``decode`` gives it."""
        tree = orjson.loads(self._text)
        return _decode(tree) if self.tagged else tree


def pack(value: Any) -> Packed:
    """``encode``, ``size`` and ``decode`` in one, for what is encoded, measured and decoded anyway.

    Raises CodecError; changes and keeps nothing of ``value``.
    """
    kind = type(value)
    try:
        text = _quick_text(value) if kind is dict or kind is list else None
        return Packed(orjson.dumps(_encode(value, MAX_DEPTH), option=_SORTED) if text is None else text)
    except _UnfitError as unfit:
        raise unfit.report() from None
    except RecursionError:
        raise CodecError("the value is nested too deep for the stack that is left", path="$") from None


def copy(value: Any) -> Any:
    """What arrives on the other side of a call: the value as ``decode`` will give it. Raises CodecError."""
    try:
        quick = _quick(value)
        return quick if quick is not None else decode(encode(value))
    except RecursionError:
        raise CodecError("the value is nested too deep for the stack that is left", path="$") from None


def tagged(tree: Tree) -> bool:
    """Whether a tree is another than its value, or may be: it has a tag, or a key that begins as one."""
    return b'"$' in orjson.dumps(tree, option=_STRICT)


def plain(value: Any) -> Any:
    """A copy of strict plain JSON from outside (a socket's frame, a request's body), with its text cleaned.

    Tags mean nothing here: ``{"$date": ...}`` stays the dict that it is. Raises CodecError, naming the
    path, for NaN and the infinities, for what is not JSON, and past ``MAX_DEPTH``.
    """
    try:
        quick = _quick(value)
        return quick if quick is not None else _plain(value, MAX_DEPTH)
    except _UnfitError as unfit:
        raise unfit.report() from None
    except RecursionError:
        raise CodecError("the value is nested too deep for the stack that is left", path="$") from None


def parse(text: str | bytes) -> Any:
    """Plain JSON from outside, from its text. Raises CodecError.

    Not orjson, as in ``loads``: that refuses the escapes of lone surrogates, which JavaScript sends when it
    cuts a text inside an emoji, and makes floats of integers beyond 64 bits.
    """
    try:
        value = json.loads(text.decode() if isinstance(text, bytes) else text)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not JSON: {error}", path="$") from None
    return plain(value)


def clean_text(text: str) -> str:
    """Text that every database and every UTF-8 reader takes: U+0000 and lone surrogates become U+FFFD.

    Two surrogates that form a pair (text that came from UTF-16 unit by unit) become their character.
    """
    if "\0" in text:
        text = text.replace("\0", REPLACEMENT)
    # isascii() reads a flag. For other text, trying UTF-8 is much faster than searching it.
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return _SURROGATE.sub(REPLACEMENT, joined)
    return text


def dumps(tree: Tree) -> bytes:
    """The JSON of a tree (or of what ``plain`` gave), compact, UTF-8. Raises CodecError for other types."""
    try:
        return orjson.dumps(tree, option=_STRICT)
    except TypeError as error:
        raise CodecError(f"not a plain JSON tree: {error}", path="$") from None


def loads(text: str | bytes) -> Tree:
    """A tree from its JSON, as ``dumps`` or the database wrote it. Strict: raises CodecError."""
    try:
        return orjson.loads(text)
    except ValueError as error:
        raise CodecError(f"not JSON: {error}", path="$") from None


def size(tree: Tree) -> int:
    """Bytes of the tree's JSON."""
    return len(dumps(tree))


# Errors


class _UnfitError(Exception):
    """A value that cannot be kept, on its way up: each container adds where it was."""

    def __init__(self, reason: str, *, too_deep: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.too_deep = too_deep
        # Innermost first: the id of a container and which of its members could not be kept.
        self.trail: list[tuple[int, Any]] = []

    def within(self, container: Any, member: Any) -> None:
        self.trail.append((id(container), member))

    def standing_for(self, container: Any) -> None:
        """The outermost container so far was a shallow copy of this one."""
        if self.trail:
            self.trail[-1] = (id(container), self.trail[-1][1])

    def report(self) -> CodecError:
        trail = self.trail[::-1]
        if self.too_deep:
            # A value that contains itself runs out of depth before anything else, and then one container
            # stands twice on the way down.
            seen: set[int] = set()
            for steps, (container, _) in enumerate(trail):
                if container in seen:
                    path = "$" + "".join(_segment(member) for _, member in trail[:steps])
                    return CodecError(f"{path}: the value contains itself", path=path)
                seen.add(container)
        path = "$" + "".join(_segment(member) for _, member in trail)
        return CodecError(f"{path}: {self.reason}", path=path)


def _too_deep() -> NoReturn:
    raise _UnfitError(f"nested deeper than {MAX_DEPTH} levels", too_deep=True)


def _segment(key: Any) -> str:
    """A key, an index or a set's member in a path: ``.price``, ``["unit price"]``, ``[7]``."""
    if isinstance(key, str):
        key = _text(key)
        if len(key) <= _MAX_SEGMENT and _PLAIN_KEY.fullmatch(key):
            return f".{key}"
        text = json.dumps(clean_text(key[:_MAX_SEGMENT]), ensure_ascii=False)
    else:
        try:
            text = clean_text(repr(key)[:_MAX_SEGMENT])
        except Exception:  # somebody else's repr()
            text = f"<{type(key).__qualname__}>"
    return f"[{text}]"


# The short way


def _quick(value: Any) -> Any:
    """A sorted copy of a dict or list that is its own tree; None for every other value."""
    kind = type(value)
    if kind is not dict and kind is not list:
        return None
    text = _quick_text(value)
    return None if text is None else orjson.loads(text)


def _quick_text(value: dict[Any, Any] | list[Any]) -> bytes | None:
    """The JSON of a dict or list that is its own tree, with sorted keys; None for every other."""
    if not _is_plain(value, MAX_DEPTH):
        return None
    try:
        text = orjson.dumps(value, option=_SORTED_SAFE)
    except TypeError:
        return None  # a surrogate, a large integer, a key that is not text
    # U+0000, or perhaps a key that begins as a tag does.
    if b"\\u0000" in text or b'"$' in text:
        return None
    return text


def _is_plain(value: dict[Any, Any] | list[Any], room: int) -> bool:
    """Whether all members, at every level, are of JSON's types and every float is stored as it is."""
    if not room:
        return False
    for item in value.values() if type(value) is dict else value:
        kind = type(item)
        if kind in _ATOMS:
            continue
        if kind is dict or kind is list:
            if not _is_plain(item, room - 1):
                return False
        elif kind is not float or _encode_float(item, room) is not item:
            return False
    return True


# Encoding


def _encode(value: Any, room: int) -> Tree:
    kind = type(value)
    if kind is str:
        return clean_text(value)
    if kind is dict:
        return _encode_dict(value, room)
    if kind is list:
        return _encode_list(value, room)
    if kind is int:
        return value if _MIN_INT <= value <= _MAX_INT else {"$int": hex(value)}
    if value is None or kind is bool:
        return value
    encoder = _ENCODERS.get(kind)
    if encoder is not None:
        return encoder(value, room)
    return _encode_subclass(value, room)


def _encode_dict(value: dict[Any, Any], room: int) -> Tree:
    if not room:
        _too_deep()
    items = {}
    for key, item in value.items():
        if not isinstance(key, str):
            return _encode_odd_dict(value, room)
        items[clean_text(_text(key))] = item
    tree = {}
    key = None
    try:
        for key in sorted(items):
            tree[TAG + key if key.startswith(TAG) else key] = _encode(items[key], room - 1)
    except _UnfitError as unfit:
        unfit.within(value, key)
        raise
    return tree


def _encode_list(value: list[Any] | tuple[Any, ...], room: int) -> Tree:
    if not room:
        _too_deep()
    tree: list[Tree] = []
    try:
        for item in value:
            tree.append(_encode(item, room - 1))
    except _UnfitError as unfit:
        unfit.within(value, len(tree))
        raise
    return tree


def _encode_float(value: float, room: int) -> Tree:
    if _MIN_PLAIN_FLOAT <= value < _MAX_PLAIN_FLOAT or -_MAX_PLAIN_FLOAT < value <= -_MIN_PLAIN_FLOAT:
        return value
    if value == 0.0 and math.copysign(1.0, value) > 0:
        return value
    return {"$float": float.__repr__(value)}


# The tagged types. Each tag's reader is in _DECODERS under the same name.


def _encode_tuple(value: tuple[Any, ...], room: int) -> Tree:
    return {"$tuple": _encode_list(value, _inside_tag(room))}


def _encode_set(value: set[Any], room: int) -> Tree:
    return {"$set": _encode_members(value, _inside_tag(room))}


def _encode_frozenset(value: frozenset[Any], room: int) -> Tree:
    return {"$frozenset": _encode_members(value, _inside_tag(room))}


def _encode_members(value: set[Any] | frozenset[Any], room: int) -> Tree:
    """The members of a set, in the order of their JSON: a set's own order differs between processes."""
    if not room:
        _too_deep()
    members = {}
    item = None
    try:
        for item in value:
            tree = _encode(item, room - 1)
            members[dumps(tree)] = tree
    except _UnfitError as unfit:
        unfit.within(value, item)
        raise
    return [members[text] for text in sorted(members)]


def _encode_odd_dict(value: dict[Any, Any], room: int) -> Tree:
    """A dict with keys that are not all text: pairs, in the order of their keys' JSON."""
    room = _inside_tag(room)
    if room < 2:
        _too_deep()
    pairs = {}
    key = None
    try:
        for key, item in value.items():
            tree = _encode(key, room - 2)
            pairs[dumps(tree)] = [tree, _encode(item, room - 2)]
    except _UnfitError as unfit:
        unfit.within(value, key)
        raise
    return {"$dict": [pairs[text] for text in sorted(pairs)]}


def _inside_tag(room: int) -> int:
    if not room:
        _too_deep()
    return room - 1


def _encode_datetime(value: dt.datetime, room: int) -> Tree:
    return {"$datetime": _moment(value, dt.datetime.isoformat)}


def _encode_time(value: dt.time, room: int) -> Tree:
    return {"$time": _moment(value, dt.time.isoformat)}


def _moment(value: Any, isoformat: Callable[[Any], str]) -> Tree:
    """ISO 8601 with the UTC offset (a zone's name is not kept), in a list with 1 where ``fold`` is set."""
    if value.tzinfo is not None:
        offset = value.utcoffset()
        if offset is None:
            raise _UnfitError(f"a {type(value).__qualname__} whose zone gives it no offset cannot be stored")
        if offset.microseconds:
            # fromisoformat() takes an offset below one second for UTC.
            return [isoformat(value.replace(tzinfo=None)), value.fold, _timedelta(offset)]
    text = isoformat(value)
    return [text, 1] if value.fold else text


def _encode_date(value: dt.date, room: int) -> Tree:
    return {"$date": dt.date.isoformat(value)}


def _encode_timedelta(value: dt.timedelta, room: int) -> Tree:
    return {"$timedelta": _timedelta(value)}


def _timedelta(value: dt.timedelta) -> Tree:
    return [value.days, value.seconds, value.microseconds]


def _encode_decimal(value: Decimal, room: int) -> Tree:
    return {"$decimal": Decimal.__str__(value)}


def _encode_uuid(value: uuid.UUID, room: int) -> Tree:
    return {"$uuid": uuid.UUID.__str__(value)}


def _encode_bytes(value: bytes, room: int) -> Tree:
    return {"$bytes": base64.b64encode(value).decode("ascii")}


def _encode_pattern(value: re.Pattern[Any], room: int) -> Tree:
    pattern = value.pattern
    # DEBUG would print again with every read.
    flags = value.flags & ~re.DEBUG
    if isinstance(pattern, bytes):
        return {"$pattern": [_encode_bytes(pattern, room), flags]}
    if clean_text(pattern) != pattern:
        # Cleaned, it would match something else, or not compile.
        raise _UnfitError("a pattern with U+0000 or a surrogate in its text: write it as an escape")
    return {"$pattern": [_text(pattern), flags]}


def _text(value: str) -> str:
    """The plain text of a subclass: ``str()`` of an enumeration's member may be its name."""
    return value if type(value) is str else str.__str__(value)


_ENCODERS: dict[type, Callable[[Any, int], Tree]] = {
    float: _encode_float,
    tuple: _encode_tuple,
    dt.datetime: _encode_datetime,
    dt.date: _encode_date,
    dt.time: _encode_time,
    dt.timedelta: _encode_timedelta,
    Decimal: _encode_decimal,
    uuid.UUID: _encode_uuid,
    bytes: _encode_bytes,
    set: _encode_set,
    frozenset: _encode_frozenset,
    re.Pattern: _encode_pattern,
}

# A subclass is kept as its base: how to look through it, past any method that it overrides. The first five
# are JSON's own.
_BASES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, _text),
    (int, int.__index__),
    (float, float.__float__),
    (dict, lambda value: dict(dict.items(value))),
    (list, list.copy),
    (tuple, lambda value: tuple.__getitem__(value, slice(None))),
    (set, lambda value: set(set.__iter__(value))),
    (frozenset, lambda value: frozenset(frozenset.__iter__(value))),
    (bytes, lambda value: bytes.__getitem__(value, slice(None))),
)
_JSON_BASES = 5
# A datetime is a date, so it comes first.
_SUBCLASS_ENCODERS: tuple[tuple[type, Callable[[Any, int], Tree]], ...] = (
    (dt.datetime, _encode_datetime),
    (dt.date, _encode_date),
    (dt.time, _encode_time),
    (dt.timedelta, _encode_timedelta),
    (Decimal, _encode_decimal),
    (uuid.UUID, _encode_uuid),
)


def _encode_subclass(value: Any, room: int) -> Tree:
    for base, through in _BASES:
        if isinstance(value, base):
            try:
                return _encode(through(value), room)
            except _UnfitError as unfit:
                unfit.standing_for(value)
                raise
    for base, encoder in _SUBCLASS_ENCODERS:
        if isinstance(value, base):
            return encoder(value, room)
    raise _UnfitError(f"{_type_name(value)} cannot be stored")


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# Decoding


def _decode(tree: Tree) -> Any:
    kind = type(tree)
    if kind is dict:
        return _decode_dict(tree)
    if kind is list:
        return [_decode(item) for item in tree]
    return tree


def _decode_dict(tree: dict[str, Tree]) -> Any:
    if len(tree) == 1:
        [(key, content)] = tree.items()
        if key.startswith(TAG) and not key.startswith(TAG + TAG):
            return _decode_tag(key, content)
    value = {}
    for key in sorted(tree):
        if not key.startswith(TAG):
            value[key] = _decode(tree[key])
        elif key.startswith(TAG + TAG):
            value[key[1:]] = _decode(tree[key])
        else:
            raise _UnfitError(f"the tag {key[:_MAX_SEGMENT]} stands beside other keys")
    return value


def _decode_tag(tag: str, content: Tree) -> Any:
    decoder = _DECODERS.get(tag)
    if decoder is None:
        raise _UnfitError(f"unknown tag {tag[:_MAX_SEGMENT]}")
    try:
        return decoder(content)
    except (TypeError, ValueError, ArithmeticError, LookupError, re.error) as error:
        raise _UnfitError(f"{tag} holds what was never encoded: {error}") from None


def _decode_members(content: Tree) -> list[Any]:
    if type(content) is not list:
        raise TypeError(f"a list was expected, not {type(content).__name__}")
    return [_decode(item) for item in content]


def _decode_datetime(content: Tree) -> dt.datetime:
    if type(content) is list:
        return _decode_moment(dt.datetime.fromisoformat, *content)
    return dt.datetime.fromisoformat(content)


def _decode_time(content: Tree) -> dt.time:
    if type(content) is list:
        return _decode_moment(dt.time.fromisoformat, *content)
    return dt.time.fromisoformat(content)


def _decode_moment(
    fromisoformat: Callable[[str], Moment], text: str, fold: int, offset: Tree = None
) -> Moment:
    moment = fromisoformat(text).replace(fold=fold)
    return moment if offset is None else moment.replace(tzinfo=dt.timezone(_decode_timedelta(offset)))


def _decode_timedelta(content: Tree) -> dt.timedelta:
    days, seconds, microseconds = content
    return dt.timedelta(days, seconds, microseconds)


def _decode_bytes(content: Tree) -> bytes:
    return base64.b64decode(content, validate=True)


def _decode_pattern(content: Tree) -> re.Pattern[Any]:
    pattern, flags = content
    return re.compile(_decode(pattern), flags)


def _decode_dict_of_pairs(content: Tree) -> dict[Any, Any]:
    return {_decode(key): _decode(item) for key, item in content}


_DECODERS: dict[str, Callable[[Tree], Any]] = {
    "$int": lambda content: int(content, 16),
    "$float": float,
    "$tuple": lambda content: tuple(_decode_members(content)),
    "$set": lambda content: set(_decode_members(content)),
    "$frozenset": lambda content: frozenset(_decode_members(content)),
    "$dict": _decode_dict_of_pairs,
    "$datetime": _decode_datetime,
    "$date": dt.date.fromisoformat,
    "$time": _decode_time,
    "$timedelta": _decode_timedelta,
    "$decimal": Decimal,
    "$uuid": uuid.UUID,
    "$bytes": _decode_bytes,
    "$pattern": _decode_pattern,
}


# Plain JSON


def _plain(value: Any, room: int) -> Any:
    kind = type(value)
    if kind is str:
        return clean_text(value)
    if kind is dict:
        return _plain_dict(value, room)
    if kind is list:
        return _plain_list(value, room)
    if value is None or kind is bool or kind is int:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise _UnfitError(f"{value} is not JSON")
        return value
    for base, through in _BASES[:_JSON_BASES]:
        if isinstance(value, base):
            try:
                return _plain(through(value), room)
            except _UnfitError as unfit:
                unfit.standing_for(value)
                raise
    raise _UnfitError(f"{_type_name(value)} is not JSON")


def _plain_dict(value: dict[Any, Any], room: int) -> dict[str, Any]:
    if not room:
        _too_deep()
    items = {}
    key = None
    try:
        for key, item in value.items():
            if not isinstance(key, str):
                raise _UnfitError(f"a key of type {_type_name(key)} is not JSON")
            items[clean_text(_text(key))] = _plain(item, room - 1)
    except _UnfitError as unfit:
        unfit.within(value, key)
        raise
    return {key: items[key] for key in sorted(items)}


def _plain_list(value: list[Any], room: int) -> list[Any]:
    if not room:
        _too_deep()
    items: list[Any] = []
    try:
        for item in value:
            items.append(_plain(item, room - 1))
    except _UnfitError as unfit:
        unfit.within(value, len(items))
        raise
    return items
