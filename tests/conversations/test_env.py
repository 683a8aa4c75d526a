"""What ``self.env`` gives."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from agents.env import Env, endpoint, env
from agents.exceptions import ConfigurationError

made: list[object] = []
gate = threading.Event()


def thing() -> object:
    made.append(object())
    gate.wait(30)
    return made[-1]


def broken() -> object:
    made.append(None)
    if len(made) == 1:
        raise ConfigurationError("not yet")
    return "now"


def both() -> tuple[object, object]:
    return env.THING, env.THING


@pytest.fixture(autouse=True)
def clean():
    made.clear()
    gate.set()


def bind(settings, **names: str) -> None:
    settings.AGENTS = {"ENV": {name: f"{__name__}.{factory}" for name, factory in names.items()}}


def test_a_binding_is_made_once_a_process_whoever_asks_first(settings):
    bind(settings, THING="thing")
    gate.clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(lambda: env.THING) for _ in range(8)]
        gate.set()
        assert len({id(future.result()) for future in asked}) == 1
    assert len(made) == 1


def test_a_factory_may_ask_for_another_binding(settings):
    bind(settings, THING="thing", BOTH="both")
    assert env.BOTH == (env.THING, env.THING)


def test_a_factory_that_failed_is_asked_again(settings):
    bind(settings, BROKEN="broken")
    with pytest.raises(ConfigurationError):
        _ = env.BROKEN
    assert env.BROKEN == "now"


def test_names_of_the_project_come_beside_those_of_the_box(settings):
    bind(settings, THING="thing")
    assert set(env) == {"THING", "OPENAI", "MODEL", "TELNYX"}
    assert "THING" in dir(env)


def test_an_unknown_name_names_what_is_bound(settings):
    settings.AGENTS = {}
    with pytest.raises(AttributeError, match=r"env\.ORACLE; bound are MODEL, OPENAI, TELNYX"):
        _ = env.ORACLE
    assert not hasattr(Env(), "__wrapped__")


def test_a_factory_that_is_not_there_is_a_configuration_error(settings):
    bind(settings, GONE="gone")
    with pytest.raises(ConfigurationError, match="GONE"):
        _ = env.GONE


def test_a_fork_makes_its_own(settings):
    bind(settings, THING="thing")
    before = id(env.THING)
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: a fork beside other threads
        child = os.fork()
    if child == 0:  # pragma: no cover - the child
        os.write(write, b"same" if env._made.get("THING") else b"none")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"none"
    os.close(read)
    os.close(write)
    assert id(env.THING) == before


OPENAI = {"OPENAI_API_KEY": "sk-test"}
TELNYX = {"TELNYX_API_KEY": "KEY-test"}


@pytest.mark.parametrize(
    ("chosen", "label", "base_url", "key", "model"),
    [
        (OPENAI, "OpenAI", None, "sk-test", "gpt-4o"),
        (OPENAI | TELNYX | {"MODEL": "m"}, "OpenAI", None, "sk-test", "m"),
        ({"OPENAI_BASE_URL": "http://vllm/v1", "MODEL": "m"}, "OpenAI", "http://vllm/v1", "none", "m"),
        (TELNYX, "Telnyx", "https://api.telnyx.com/v2/ai/openai", "KEY-test", "zai-org/GLM-5.2"),
        (TELNYX | {"TELNYX_BASE_URL": "http://t/v2/"}, "Telnyx", "http://t/v2/ai/openai", "KEY-test", None),
        ({}, "offline", "http://127.0.0.1:8000/dev/model/v1", "offline", "offline"),
        ({"SITE_URL": "http://127.0.0.1:9000/"}, "offline", "http://127.0.0.1:9000/dev/model/v1", None, None),
    ],
)
def test_the_settings_choose_where_models_are_asked(settings, chosen, label, base_url, key, model):
    settings.DEBUG = True
    settings.AGENTS = chosen
    found = endpoint()
    assert (found.label, found.base_url) == (label, base_url)
    assert key in (None, found.api_key)
    assert model in (None, found.model)
    assert found.model == env.MODEL


async def test_the_client_goes_where_the_settings_say(settings, caplog):
    settings.DEBUG = True
    settings.AGENTS = {}
    client = env.OPENAI
    assert str(client.base_url) == "http://127.0.0.1:8000/dev/model/v1/"
    assert "OFFLINE" in caplog.text
    await env.close()
    assert client.is_closed()
    assert env.OPENAI is not client, "closed ones are not given out"
    await env.close()
    settings.AGENTS = OPENAI
    assert str(env.OPENAI.base_url) == "https://api.openai.com/v1/"
    assert env.OPENAI.api_key == "sk-test"
    await env.close()


def test_without_a_key_only_a_development_site_has_a_model(settings):
    settings.AGENTS = {}
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        _ = env.OPENAI
    with pytest.raises(ConfigurationError):
        _ = env.MODEL


def test_an_endpoint_of_one_s_own_needs_the_name_of_its_model(settings):
    settings.AGENTS = {"OPENAI_BASE_URL": "http://vllm/v1"}
    with pytest.raises(ConfigurationError, match="MODEL"):
        _ = env.MODEL


def test_telnyx_needs_its_key(settings):
    settings.AGENTS = {}
    with pytest.raises(ConfigurationError, match="TELNYX_API_KEY"):
        _ = env.TELNYX
    settings.AGENTS = TELNYX
    assert env.TELNYX.api_key == "KEY-test"
    assert str(env.TELNYX.base_url) == "https://api.telnyx.com/v2/"
    asyncio.run(env.close())


def test_warming_makes_what_is_configured_and_leaves_out_the_rest(settings):
    settings.AGENTS = {"ENV": {"THING": f"{__name__}.thing"}}
    env.warm()
    assert set(env._made) == {"THING"}
