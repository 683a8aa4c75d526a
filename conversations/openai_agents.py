"""The OpenAI Agents SDK beside this project: its import name, and its ``Session`` over the log.

The SDK is imported as ``agents``, which is this project's own app. Python has one module of a name, and the
site's folder comes first on its path, so ``import agents`` is ours everywhere. ``sdk()`` gives the SDK under
the name ``openai_agents`` instead::

    from conversations.openai_agents import LogSession, sdk

    async def process(self):
        agents = sdk()
        helper = agents.Agent(name="Helper", instructions="...")
        result = await agents.Runner.run(helper, text, session=LogSession(self.messages, self.name))
"""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from agents.exceptions import ConfigurationError, MessageError

if TYPE_CHECKING:
    from conversations.log import MessageLog

#: The SDK's name here, and the one that its own modules use for it.
NAME, THEIR_NAME = "openai_agents", "agents"


def sdk(folder: str | Path | None = None) -> ModuleType:
    """The OpenAI Agents SDK, imported on first use (it takes seconds) as ``openai_agents``.

    ``folder`` is where it was installed to, if not into this environment (``pip install --target``); what it
    needs must be importable. Raises ConfigurationError where it isn't there.
    """
    if NAME in sys.modules:
        return sys.modules[NAME]
    package = Path(folder) / THEIR_NAME if folder is not None else _installed()
    if not (package / "__init__.py").exists():
        raise ConfigurationError(f"there is no OpenAI Agents SDK at {package}")
    sys.meta_path.insert(0, _Finder(package))
    return importlib.import_module(NAME)


class LogSession:
    """The SDK's ``Session`` over an actor's log: its runs begin with the log's newest part and end in it.

    What a run adds is part of the turn, all or nothing: the SDK's own repair of half-saved runs isn't needed,
    and what it would need for that, taking items back, a log that only grows doesn't do.
    """

    session_settings: Any = None

    def __init__(self, log: MessageLog, session_id: str, last: int = 40) -> None:
        self.session_id = session_id
        self._log = log
        self._last = last

    async def get_items(self, limit: int | None = None) -> list[dict[str, Any]]:
        """The newest part of the conversation: whole exchanges, about ``limit`` messages."""
        return await self._log.to_openai_responses(last=limit if limit is not None else self._last)

    async def add_items(self, items: Iterable[Any]) -> None:
        await self._log.append_openai_responses(list(items))

    async def pop_item(self) -> dict[str, Any] | None:
        raise MessageError("the log only grows: a failed turn leaves nothing in it to take back")

    async def clear_session(self) -> None:
        raise MessageError("the log only grows: a new conversation is an actor with another name")


class _Finder(MetaPathFinder):
    """Finds ``openai_agents`` in the folder of the SDK's ``agents``, and the modules under it."""

    def __init__(self, package: Path) -> None:
        self._package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == NAME:
            main = str(self._package / "__init__.py")
            return spec_from_file_location(
                fullname, loader=_Loader(fullname, main), submodule_search_locations=[str(self._package)]
            )
        if not fullname.startswith(f"{NAME}."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    """Runs a module of the SDK so that ``agents`` is the SDK in it, and in no other."""

    def exec_module(self, module: ModuleType) -> None:
        # A module's builtins are its own: this reaches its functions too, whenever they import.
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    if level == 0 and name.split(".")[0] == THEIR_NAME:
        theirs = NAME + name.removeprefix(THEIR_NAME)
        importlib.import_module(theirs)
        if not fromlist:
            return sys.modules[NAME]
        return builtins.__import__(theirs, globals, locals, fromlist, 0)
    return builtins.__import__(name, globals, locals, fromlist or (), level)


def _installed() -> Path:
    try:
        return Path(str(distribution("openai-agents").locate_file(THEIR_NAME)))
    except PackageNotFoundError:
        raise ConfigurationError(
            "the OpenAI Agents SDK is not installed: pip install openai-agents"
        ) from None
