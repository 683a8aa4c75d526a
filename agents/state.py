"""The state of an actor: one dict, read whole, patched or replaced, written in the turn's commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from agents.codec import Packed, Tree, decode, encode, pack, tagged
from agents.exceptions import CodecError
from agents.masking import masked
from agents.merge_patch import compose, diff, merge_patch
from agents.parts import Part
from agents.sizes import check_size

if TYPE_CHECKING:
    from agents.turn import Turn
    from agents.writes import Writes

Values = dict[str, Any]
# A TypedDict is a Mapping to type checkers; at run time it is the dict that the rules ask for.
Given = Mapping[str, Any]
Changed = Callable[[Any, Any], Awaitable[None]]


class State(Part):
    """The part of a turn that holds the actor's state.

    What is buffered has passed the codec: it looks exactly as a later turn will read it, and nothing that a
    caller keeps or gets can change it. The engine commits ``tree`` when ``dirty``, and records ``change``.
    """

    def __init__(
        self, turn: Turn, initial: Callable[[], Given], changed: Changed | None, share: bool
    ) -> None:
        """``initial()`` answers until the first write; ``changed(next, prev)`` is awaited after each write;
        ``share`` makes each write an event that clients see."""
        super().__init__(turn)
        self.dirty = False
        #: The state as a codec tree; None as long as nothing was ever written.
        self.tree: Tree = turn.actor.state
        self._initial = initial
        self._initial_tree: Tree = None
        self._changed = changed
        self._share = share
        # What was written since the last commit, {"patch": tree} or {"replace": tree} each, and the state
        # before the first of them.
        self._writes: list[dict[str, Tree]] = []
        self._before: Tree = None
        # The state in the database; None as long as nothing was ever written.
        self._stored: Tree = turn.actor.state
        # How many of them the commit under way took, and the state that it writes.
        self._taken: tuple[int, Tree] | None = None

    async def get(self) -> Values:
        """A copy of the state."""
        return self._value(self._current())

    async def set(self, patch: Given) -> Values:
        """Merges a patch (RFC 7396: recursively, ``None`` deletes); returns a copy of the new state.

        Raises, and leaves the state alone: CodecError for a value that cannot be stored or a patch that is
        no dict, LimitError past MAX_STATE_BYTES.
        """
        self.turn.writing()
        given = _packed(patch, "a state patch")
        current, patch_tree = self._current(), given.tree()
        if given.tagged or tagged(current):
            merged = merge_patch(decode(current), given.value())
        else:  # trees and values are the same
            merged = merge_patch(current, patch_tree)
        return await self._write({"patch": patch_tree}, current, pack(merged))

    async def replace(self, next: Given) -> Values:
        """Writes the whole state anew; returns a copy of it. Raises as ``set`` does."""
        self.turn.writing()
        written = _packed(next, "a state")
        return await self._write({"replace": written.tree()}, self._current(), written)

    async def _write(self, change: dict[str, Tree], current: Tree, written: Packed) -> Values:
        check_size(written.size, "MAX_STATE_BYTES", "the state")
        tree = written.tree()
        if not self._writes:
            self._before = current
        self._writes.append(change)
        self.tree = tree
        self.dirty = True
        if self._share:
            self.turn.emit("state", self._event(change, current, tree))
        if self._changed is not None:
            await self._changed(written.value(), self._value(current))
        value: Values = written.value()
        return value

    def _event(self, change: dict[str, Tree], current: Tree, tree: Tree) -> dict[str, Tree]:
        """A patch that any client's merge patch applies rightly, or else the whole state.

        Clients merge trees, where a date is a dict too: one tag would merge into another. They are shown no
        sensitive value.
        """
        kind = self.turn.actor.kind
        if "patch" in change and merge_patch(current, change["patch"]) == tree:
            return {"patch": masked(kind, change["patch"])}
        return {"snapshot": masked(kind, tree)}

    # For the engine

    @property
    def change(self) -> dict[str, Tree] | None:
        """What happened since the last commit, for the turn's record: ``{"patch": tree}``, when one patch
        says it, ``{"replace": tree}`` otherwise, None when nothing did."""
        if not self._writes:
            return None
        patch = self._patch()
        return {"replace": self.tree} if patch is None else {"patch": patch}

    @property
    def undo(self) -> dict[str, Tree] | None:
        """What leads back to the state before: in the form of ``change``; ``{"replace": None}`` where nothing
        had ever been written."""
        if not self._writes:
            return None
        if self._stored is None:
            return {"replace": None}
        if tagged(self.tree) or tagged(self._stored):
            exact = diff(decode(self.tree), decode(self._stored))
            return {"replace": self._stored} if exact is None else {"patch": encode(exact)}
        exact = diff(self.tree, self._stored)  # trees and values are the same
        return {"replace": self._stored} if exact is None else {"patch": exact}

    def _patch(self) -> Tree | None:
        if any("replace" in change for change in self._writes):
            return None
        first, *others = (change["patch"] for change in self._writes)
        if not others:
            return first
        composed: Values = decode(first)
        for other in others:
            both = compose(composed, decode(other))
            if both is None:
                # No patch does this to every state; to the one that was there, perhaps.
                exact = diff(decode(self._before), decode(self.tree))
                return None if exact is None else encode(exact)
            composed = both
        return encode(composed)

    def collect(self, writes: Writes) -> None:
        self._taken = len(self._writes), self.tree

    def committed(self) -> None:
        count, self._before = self._taken or (len(self._writes), self.tree)
        self._stored = self._before
        self._taken = None
        # What was written while a checkpoint was on its way belongs to the next commit.
        del self._writes[:count]
        self.dirty = bool(self._writes)

    # Trees and values

    def _current(self) -> Tree:
        if self.tree is not None:
            return self.tree
        if self._initial_tree is None:
            self._initial_tree = _packed(self._initial(), "the initial state").tree()
        return self._initial_tree

    @staticmethod
    def _value(tree: Tree) -> Values:
        value: Values = decode(tree)
        return value


def _packed(value: Any, name: str) -> Packed:
    if not isinstance(value, dict):
        raise CodecError(f"{name} is a dict, got {type(value).__name__}", path="$")
    return pack(value)
