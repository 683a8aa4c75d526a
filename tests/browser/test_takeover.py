"""An operator takes a conversation over in the admin, answers, and releases it."""

from __future__ import annotations

import base64
import uuid

import pytest
from playwright.async_api import FilePayload, expect

from tests.browser.conftest import Desk
from tests.browser.test_tail import say

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_an_operator_takes_over_answers_and_releases(desk: Desk) -> None:
    chat = await desk.open("talk", f"takeover {uuid.uuid4().hex[:8]}")
    lines = chat.locator("#log > li")
    await say(chat, "hello")
    await expect(lines).to_have_count(2)
    await chat.reload()
    address = desk.url + str(await chat.get_attribute(".chat-head a", "href"))
    admin = await desk.page()
    await admin.goto(address)
    panel = admin.locator(".agents-takeover")
    await expect(panel).to_contain_text("The agent.")
    await panel.get_by_label("Reason").fill("they asked for a person")
    await panel.get_by_role("button", name="Take over").click()
    await expect(panel).to_contain_text("taken over by operator")

    # What they write is there at once, and the agent is quiet.
    await say(chat, "is anybody there?")
    await expect(admin.locator(".agents-log > li.agents-message")).to_have_count(3)
    await panel.get_by_label("Your answer").fill("Yes, I am Alice.")
    await panel.get_by_role("button", name="Send").click()
    await expect(lines.last).to_contain_text("Yes, I am Alice.")
    await expect(lines).to_have_count(4)

    # A picture goes along, and is seen by both.
    await panel.get_by_label("Pictures, files").set_input_files(
        FilePayload(name="label.png", mimeType="image/png", buffer=PNG)
    )
    await panel.get_by_role("button", name="Send").click()
    await expect(lines).to_have_count(5)
    await expect(lines.last.locator("img")).to_have_js_property("naturalWidth", 1)
    await expect(admin.locator(".agents-log > li.agents-message img")).to_have_count(1)

    await panel.get_by_role("button", name="Release to the agent").click()
    await expect(panel).to_contain_text("The agent.")
    await say(chat, "thanks")
    await expect(lines.last).to_contain_text("You said: thanks")
    await expect(lines).to_have_count(7)
