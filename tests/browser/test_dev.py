"""The story of a conversation, against the site that ``bin/dev`` starts in a copy of the project."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.browser.conftest import PATIENCE, Desk
from tests.browser.test_chat import log, once_and_in_order, say
from tests.servers import free_port
from tests.test_bin import manage, password, project, running  # noqa: F401 - a fixture

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]


@pytest_asyncio.fixture(loop_scope="session")
async def desk(project: Path, browser: Browser) -> AsyncIterator[Desk]:  # noqa: F811
    port = free_port()
    with running(project, port) as (_, said):
        context = await browser.new_context(locale="en-GB", timezone_id="UTC")
        context.set_default_timeout(PATIENCE)
        desk = Desk(context, f"http://127.0.0.1:{port}")
        await desk.sign_in("operator", password(said))
        yield desk
        await context.close()
        assert desk.complaints == []
        assert "Traceback" not in said.read_text()


async def test_two_tabs_and_a_phone_talk_to_the_support_agent_and_stop_it(desk: Desk, project: Path) -> None:  # noqa: F811
    phone = "+15550001111"
    one, two = await desk.open("support", phone), await desk.open("support", phone)
    await say(one, "Where is order 1042?")
    for page in (one, two):
        await expect(page.locator("#log > li")).to_have_count(4)
        await expect(page.locator("#log summary").first).to_have_text("Uses lookup_order")
    reply = await asyncio.to_thread(manage, project, "text", phone, "and what is #1043?", "--url", desk.url)
    for page in (one, two):
        await expect(page.locator("#log > li")).to_have_count(8)
        assert (await log(page))[-1] in reply

    await say(one, "I read a long letter aloud. " * 80)
    await expect(two.locator("#coming > li[data-stream]")).to_contain_text("I read a long letter")
    await one.reload()  # in the middle of the reply
    await expect(one.locator("#coming > li[data-stream]")).to_contain_text("I read a long letter")
    await two.click("#stop")
    for page in (one, two):
        await expect(page.locator("#log .chat-mark")).to_have_text("interrupted")
        await expect(page.locator("#stop")).to_be_hidden()
        await once_and_in_order(page)
    assert await log(one) == await log(two)
    assert re.match(r"\[offline model\] I read: I read a long letter", (await log(one))[-1])
