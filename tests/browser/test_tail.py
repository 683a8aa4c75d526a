"""A transcript in the admin that goes on while somebody reads it."""

from __future__ import annotations

import re
import uuid

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import Desk, Network

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def say(page: Page, text: str) -> None:
    await page.fill("#text", text)
    await page.press("#text", "Enter")


async def test_a_transcript_in_the_admin_goes_on_by_itself(desk: Desk, network: Network) -> None:
    chat = await desk.open("talk", f"日本 +1 {uuid.uuid4().hex[:8]}")
    await say(chat, "hello <b>")
    await expect(chat.locator("#log > li")).to_have_count(2)
    await chat.reload()
    admin = await desk.page()
    await admin.goto(desk.url + str(await chat.get_attribute(".chat-head a", "href")))
    messages = admin.locator(".agents-log > li.agents-message")
    await expect(admin.locator("h1 .agents-badge[role=status]")).to_have_text("live")
    await expect(messages).to_have_count(2)

    await say(chat, "stream 40 0.05")
    await expect(messages.last).to_have_text(re.compile(r"^word1 word2 word3"))
    await expect(messages).to_have_count(4)
    await expect(messages.last).to_have_attribute("id", "m4")
    await expect(messages.last).to_contain_text("word40")

    network.cut()
    await expect(admin.locator("h1 .agents-badge[role=status]")).to_have_text("connecting …")
    network.mend()
    await expect(admin.locator("h1 .agents-badge[role=status]")).to_have_text("live")
    await say(chat, "tool")
    await expect(messages).to_have_count(8)
    ids = await messages.evaluate_all("items => items.map((item) => item.id)")
    assert ids == [f"m{n}" for n in range(1, 9)]
    await expect(messages.nth(0)).to_contain_text("hello <b>")


async def test_an_earlier_page_of_a_transcript_stands_still(desk: Desk) -> None:
    chat = await desk.open("talk", f"many {uuid.uuid4().hex[:8]}")
    for number in range(26):
        await say(chat, f"number {number}")
    await expect(chat.locator("#log > li")).to_have_count(52)
    await chat.reload()
    admin = await desk.page()
    address = desk.url + str(await chat.get_attribute(".chat-head a", "href"))
    await admin.goto(f"{address}?page=1")
    assert await admin.locator("script[src*=tail]").count() == 0
    await admin.goto(address)
    await expect(admin.locator("h1 .agents-badge[role=status]")).to_have_text("live")
    await expect(admin.locator(".agents-log > li.agents-message")).to_have_count(2)
    await say(chat, "one more")
    await expect(admin.locator(".agents-log > li.agents-message")).to_have_count(4)
