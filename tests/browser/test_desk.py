"""An operator's morning in a real browser: what is stuck, why, again, and where somebody said something."""

from __future__ import annotations

import re
import uuid

import pytest
from playwright.async_api import expect

from tests.browser.conftest import Desk

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_stuck_conversation_is_found_understood_and_replayed(desk: Desk) -> None:
    name = f"stuck {uuid.uuid4().hex[:8]}"
    chat = await desk.open("talk", name)
    await chat.fill("#text", "stuck on order 1042")
    await chat.press("#text", "Enter")
    await expect(chat.locator("#log > li")).to_have_count(1)

    page = await desk.page()
    part = page.locator(".agents-stuck ul li", has_text="talk: answer")

    while True:
        await page.goto(f"{desk.url}/admin/")
        if await part.count():
            break
    await expect(part).to_contain_text("402: the model wants to be paid")

    await part.locator("a").click()
    row = page.locator("#result_list tr", has_text=name)
    await expect(row).to_contain_text("parked")
    await row.locator(".field-task a").first.click()
    await expect(page.get_by_role("region", name="Payload")).to_contain_text("stuck on order 1042")
    await expect(page.get_by_role("region", name="Latest attempts")).to_contain_text("GiveUp")
    task = page.url

    await page.get_by_role("link", name="Transcript").click()
    await expect(page.locator("h1 .agents-badge[role=status]")).to_have_text("live")
    await expect(page.locator(".agents-log > li.agents-message")).to_have_count(1)
    await expect(page.locator(".agents-turn summary").first).to_contain_text("receive")

    other = await desk.page()
    await other.goto(task)
    await other.get_by_role("link", name="Replay with another payload").click()
    await expect(other.locator("textarea[name=payload]")).to_have_value('"stuck on order 1042"')
    await other.fill("textarea[name=payload]", '"order 1042"')
    await other.fill("textarea[name=reason]", "The model was paid.")
    await other.get_by_role("button", name="Show what would run").click()
    await expect(other.get_by_role("region", name="What would run")).to_contain_text(name)
    await other.get_by_role("button", name="Replay 1 task").click()
    await expect(other.locator(".messagelist")).to_contain_text("Began: 1 tasks")
    # The reply arrives on the page that is open, with the turn that wrote it.
    messages = page.locator(".agents-log > li.agents-message")
    await expect(messages).to_have_count(2)
    await expect(messages.last).to_contain_text("You said: order 1042")
    await expect(messages.last.locator(".agents-turn summary")).to_contain_text("answer")


async def test_what_somebody_said_is_found_among_all_conversations(desk: Desk) -> None:
    word, name = f"zanzi{uuid.uuid4().hex[:8]}", f"found {uuid.uuid4().hex[:8]}"
    chat = await desk.open("talk", name)
    await chat.fill("#text", f"a parcel for {word} <b>please</b>")
    await chat.press("#text", "Enter")
    await expect(chat.locator("#log > li")).to_have_count(2)
    page = await desk.page()
    await page.goto(f"{desk.url}/admin/conversations/conversation/")
    await page.fill("#searchbar", f"PARCEL {word}")
    await page.click("#changelist-search input[type=submit]")
    rows = page.locator("#result_list tbody tr")
    await expect(rows).to_have_count(1)
    await expect(rows.first).to_contain_text("You said: a parcel for")
    await expect(rows.locator(".agents-badge[data-tone=new]")).to_have_text("2")
    await rows.locator(".field-conversation a").click()
    await expect(page.locator(".agents-log > li.agents-message").first).to_contain_text("<b>please</b>")
    await page.go_back()
    await page.reload()
    await expect(page.locator("#result_list .agents-badge[data-tone=new]")).to_have_count(0)
    await page.fill("input[name=state]", "$.a ~ 1")
    await page.press("input[name=state]", "Enter")
    await expect(page.locator(".messagelist")).to_contain_text("not understood")
    assert re.search(r"[?&]q=PARCEL", page.url)  # the search is still on


async def test_somebody_is_erased_and_the_desk_says_so(desk: Desk) -> None:
    word, name = f"secret{uuid.uuid4().hex[:8]}", f"leaves {uuid.uuid4().hex[:8]}"
    chat = await desk.open("talk", name)
    await chat.fill("#text", f"my code is {word}")
    await chat.press("#text", "Enter")
    await expect(chat.locator("#log > li")).to_have_count(2)
    await chat.close()
    page = await desk.page()
    await page.goto(f"{desk.url}/admin/agents/actor/?q={name}")
    await page.locator("#result_list tbody tr a").first.click()
    await page.get_by_role("link", name="Erase").click()
    await page.get_by_role("button", name="Erase").click()
    await expect(page.locator("[name=reason]")).to_be_focused()  # not without a reason
    await page.fill("[name=reason]", "asked for by letter")
    await page.get_by_role("button", name="Erase").click()
    await expect(page.locator(".messagelist")).to_contain_text("rased")
    await page.goto(f"{desk.url}/admin/agents/actor/?q={name}")
    await expect(page.locator("#result_list tbody tr")).to_have_count(0)
    await page.goto(f"{desk.url}/admin/conversations/conversation/?q={word}")
    await expect(page.locator("#result_list tbody tr")).to_have_count(0)
    await page.goto(f"{desk.url}/admin/agents/erasure/")
    await expect(page.locator("#result_list")).to_contain_text("asked for by letter")


@pytest.mark.parametrize("width", [390, 1280])
async def test_no_page_is_wider_than_its_window(desk: Desk, width: int) -> None:
    chat = await desk.open("talk", f"wide {uuid.uuid4().hex[:8]}")
    await chat.fill("#text", "x" * 400)
    await chat.press("#text", "Enter")
    await expect(chat.locator("#log > li")).to_have_count(2)
    await chat.reload()
    transcript = str(await chat.get_attribute(".chat-head a", "href"))
    page = await desk.page()
    await page.set_viewport_size({"width": width, "height": 800})
    for path in ("/admin/", "/admin/?span=week", "/admin/conversations/conversation/", transcript):
        await page.goto(desk.url + path)
        wider = await page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert wider <= 0, path
