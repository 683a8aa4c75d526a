"""The OpenAI Agents SDK itself, over the log, beside the app whose import name it has too."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from django.conf import settings

import agents
from agents.exceptions import ConfigurationError, MessageError
from conversations.openai_agents import NAME, LogSession, sdk
from tests.conversations.conftest import Conversation
from tests.conversations.strict_server import strict_server

PACKAGE = "openai-agents==0.24.0"
INSTALL_TIMEOUT = 300  # seconds


def _installed() -> Path:
    """A folder with the SDK and what it needs. Not in the environment: it wants other versions there."""
    folder = Path(settings.VAR_DIR) / "python" / PACKAGE.replace("==", "-")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
            try:
                done = subprocess.run(
                    [*pip, "--upgrade", "--target", str(folder), PACKAGE],
                    capture_output=True,
                    text=True,
                    timeout=INSTALL_TIMEOUT,
                )
            except subprocess.TimeoutExpired:
                pytest.skip(f"pip did not install {PACKAGE} within {INSTALL_TIMEOUT} s")
            if done.returncode:
                pytest.skip(f"pip cannot install {PACKAGE}: {done.stderr.strip()[-500:]}")
            (folder / "done").touch()
    return folder


@pytest.fixture(scope="module")
def theirs() -> Iterator[Any]:
    folder = _installed()
    sys.path.append(str(folder))  # behind everything else: only what is nowhere else is taken from there
    try:
        module = sdk(folder)
        module.set_tracing_disabled(True)
        yield module
    finally:
        sys.path.remove(str(folder))


def _agent(theirs: Any, model: Any) -> Any:
    @theirs.function_tool
    def lookup(word: str) -> str:
        """Looks a word up."""
        return f"{word} was found"

    return theirs.Agent(name="Helper", instructions="Be brief.", model=model, tools=[lookup])


@pytest.mark.timeout(400)
def test_the_sdk_and_the_app_of_its_name_live_side_by_side(theirs: Any):
    assert theirs.__name__ == NAME
    assert theirs.Agent.__module__ == "openai_agents.agent"
    assert sys.modules["agents"] is agents
    assert not Path(str(agents.__file__)).is_relative_to(Path(str(theirs.__file__)).parent)
    assert not [name for name in sys.modules if name.startswith("agents.") and _is_theirs(name, theirs)]


def _is_theirs(name: str, theirs: Any) -> bool:
    file = getattr(sys.modules[name], "__file__", None) or ""
    return file.startswith(str(Path(str(theirs.__file__)).parent))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_runs_begin_with_the_log_and_end_in_it(theirs: Any, conversation: Conversation, api: str):
    with strict_server() as server:
        async with openai.AsyncOpenAI(api_key="x", base_url=f"{server.url}/v1", max_retries=0) as client:
            models = {
                "responses": theirs.OpenAIResponsesModel,
                "chat": theirs.OpenAIChatCompletionsModel,
            }
            agent = _agent(theirs, models[api](model="strict", openai_client=client))
            for text in ("Please look up one two", "Thanks"):
                log = conversation.turn()
                session = LogSession(log, "alice")
                assert isinstance(session, theirs.Session)
                result = await theirs.Runner.run(agent, text, session=session)
                await conversation.commit(log)
        assert server.refused == []
    stored = await conversation.turn().all()
    assert [message.role for message in stored] == [
        "user", "assistant", "tool", "tool", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert [message.content for message in stored if message.role == "tool"] == [
        "one was found",
        "two was found",
    ]
    assert stored[-1].content == result.final_output


@pytest.mark.timeout(400)
async def test_a_run_without_a_session_is_recorded_in_one_line(theirs: Any, conversation: Conversation):
    log = conversation.turn()
    await log.add("user", "Please look up one")
    with strict_server() as server:
        async with openai.AsyncOpenAI(api_key="x", base_url=f"{server.url}/v1", max_retries=0) as client:
            agent = _agent(theirs, theirs.OpenAIResponsesModel(model="strict", openai_client=client))
            result = await theirs.Runner.run(agent, await log.to_openai_responses(last=40))
        await log.append_openai_responses([item.to_input_item() for item in result.new_items])
        assert server.refused == []
    assert [message.role for message in await log.all()] == ["user", "assistant", "tool", "assistant"]


async def test_what_a_log_that_only_grows_does_not_do_is_refused(conversation: Conversation):
    session = LogSession(conversation.turn(), "alice", last=2)
    await session.add_items([{"role": "user", "content": str(number)} for number in range(5)])
    assert [item["content"] for item in await session.get_items()] == ["3", "4"]
    assert [item["content"] for item in await session.get_items(limit=1)] == ["4"]
    with pytest.raises(MessageError):
        await session.pop_item()
    with pytest.raises(MessageError):
        await session.clear_session()


def test_a_folder_without_the_sdk_is_named(tmp_path: Path):
    loaded = sys.modules.pop(NAME, None)
    try:
        with pytest.raises(ConfigurationError):
            sdk(tmp_path)
    finally:
        if loaded is not None:
            sys.modules[NAME] = loaded
