"""The chat page in a real browser, against a real site: what people do, and what networks do to them."""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from agents.names import escape_name
from tests.browser.conftest import PATIENCE, Desk, Network, Site

pytestmark = pytest.mark.asyncio(loop_scope="session")  # one browser for all


@pytest.fixture
def name() -> str:
    """A conversation of this test's own, with a name that is hard to carry."""
    return f"日本 +1 {uuid.uuid4().hex[:8]}"


async def say(page: Page, text: str) -> None:
    await page.fill("#text", text)
    await page.press("#text", "Enter")


async def log(page: Page) -> list[str]:
    """The texts of the log, in order."""
    texts = await page.locator("#log > li .chat-text").all_inner_texts()
    return [text.strip() for text in texts]


async def shows(page: Page, *texts: str) -> None:
    """Waits until the log is exactly these texts."""
    await expect(page.locator("#log > li .chat-text")).to_have_text(list(texts))


async def once_and_in_order(*pages: Page) -> None:
    """Every page shows every message number from its first on, once, and nothing is on its way."""
    for page in pages:
        seqs = await page.locator("#log > li").evaluate_all("items => items.map((item) => +item.dataset.seq)")
        assert seqs == list(range(seqs[0], seqs[0] + len(seqs))), seqs
        await expect(page.locator("#coming > li")).to_have_count(0)


def words(count: int) -> str:
    return " ".join(f"word{n}" for n in range(1, count + 1))


async def command(site: Site, *arguments: str, input: str | None = None) -> str:
    return await asyncio.to_thread(site.run, *arguments, input=input)


async def text(site: Site, phone: str, words: str) -> None:
    """A text from a phone, as its provider's webhook brings it: signed."""
    await command(site, "text", phone, words, "--kind", "talk", "--url", site.url, "--timeout", "0")


async def shows_last(page: Page, words: str) -> None:
    await expect(page.locator("#log > li .chat-text").last).to_have_text(words)


async def says(page: Page, name: str, method: str, value: Any) -> None:
    """Waits until a method of the agent returns this."""
    await page.wait_for_function(
        """async ([name, method, value]) => {
            const { AgentClient } = await import("/static/agents/agent-client.js");
            const client = new AgentClient({ kind: "talk", name });
            const said = await client.call(method);
            client.close();
            return said === value;
        }""",
        arg=[name, method, value],
        polling=200,
    )


@contextlib.asynccontextmanager
async def another_desk(site: Site, browser: Browser, cookies: Any) -> AsyncIterator[tuple[Desk, Network]]:
    """Somebody with a network of their own."""
    async with Network(site.port).running() as line:
        context = await browser.new_context(locale="en-GB", timezone_id="UTC", storage_state=cookies)
        context.set_default_timeout(PATIENCE)
        desk = Desk(context, line.url)
        yield desk, line
        await context.close()
        assert desk.complaints == []


# One conversation, many windows


async def test_two_tabs_and_a_phone_are_in_one_conversation(desk: Desk, site: Site) -> None:
    phone = f"+1555{uuid.uuid4().int % 10**7:07}"
    one, two = await desk.open("talk", phone), await desk.open("talk", phone)
    await say(one, "from the first tab")
    await shows(two, "from the first tab", "You said: from the first tab")
    await command(
        site, "text", phone, "from the phone", "--kind", "talk", "--url", site.url, "--timeout", "0"
    )
    await say(two, "from the second tab")
    for page in (one, two):
        await expect(page.locator("#log > li")).to_have_count(6)
    assert await log(one) == await log(two)
    assert sorted(await log(one)) == sorted(
        text
        for said in ("from the first tab", "from the phone", "from the second tab")
        for text in (said, f"You said: {said}")
    )
    await once_and_in_order(one, two)


async def test_the_support_agent_answers_on_the_page_and_by_text(desk: Desk, site: Site) -> None:
    phone = f"+1555{uuid.uuid4().int % 10**7:07}"
    one, two = await desk.open("support", phone), await desk.open("support", phone)
    await say(one, "Where is order 1042?")
    await expect(two.locator("#log > li")).to_have_count(4)
    await expect(two.locator("#log summary").first).to_have_text("Uses lookup_order")
    reply = await command(site, "text", phone, "and what is #1043?", "--url", site.url)
    assert "[offline model]" in reply
    for page in (one, two):
        await expect(page.locator("#log > li")).to_have_count(8)
        await expect(page.locator("#status")).to_have_text("")
    assert (await log(one))[0] == "Where is order 1042?"
    assert (await log(one))[-1] in reply
    assert await log(one) == await log(two)
    await once_and_in_order(one, two)


async def test_what_a_page_makes_live_is_what_the_server_renders(desk: Desk, name: str) -> None:
    page = await desk.open("talk", name)
    for number, text in enumerate(("hello <b>you</b>\n  two", "tool", "picture", "stream 3 0.01"), 1):
        await say(page, text)
        await expect(page.locator(f"#log > li[data-role=user] >> nth={number - 1}")).to_be_visible()
        await expect(page.locator("#log > li").last).to_have_attribute("data-role", "assistant")
    await expect(page.locator("img.chat-picture")).to_have_js_property("naturalWidth", 1)
    await expect(page.locator("#log")).to_contain_text("word3")
    live = await page.inner_html("#log")
    await page.reload()
    await expect(page.locator("#connection")).to_have_text("Connected")
    again = await page.inner_html("#log")
    assert re.sub(r"\s*<li", "<li", live) == re.sub(r"\s*<li", "<li", again).strip()


async def test_a_reply_streams_in_word_by_word_and_is_one_message(desk: Desk, name: str) -> None:
    page = await desk.open("talk", name)
    await say(page, "stream 30 0.05")
    stream = page.locator("#coming > li[data-stream]")
    await expect(stream).to_contain_text("word3")
    assert "word30" not in await stream.inner_text()
    assert await stream.get_attribute("aria-busy") == "true"
    await expect(page.locator("#stop")).to_be_visible()
    await shows(page, "stream 30 0.05", words(30))
    await expect(page.locator("#stop")).to_be_hidden()
    await once_and_in_order(page)


async def test_who_comes_in_the_middle_of_a_stream_reads_all_of_it(desk: Desk, name: str) -> None:
    page = await desk.open("talk", name)
    await say(page, "stream 2000 0.05")  # longer than the slowest machine takes to open two pages
    await expect(page.locator("#coming")).to_contain_text("word10")
    late = await desk.open("talk", name)
    await expect(late.locator("#coming")).to_contain_text("word1 word2")
    await page.reload()
    await expect(page.locator("#coming")).to_contain_text("word1 word2")
    await page.click("#stop")
    for one in (page, late):
        await expect(one.locator("#log .chat-mark")).to_have_text("interrupted")
    said = [(await log(one))[-1] for one in (page, late)]
    assert said[0] == said[1]
    count = len(said[0].split())
    assert said[0] == words(count)
    await once_and_in_order(page, late)


async def test_a_stop_from_the_second_tab_keeps_what_was_said(desk: Desk, name: str) -> None:
    one, two = await desk.open("talk", name), await desk.open("talk", name)
    await say(one, "stream 400 0.05")
    await expect(two.locator("#coming")).to_contain_text("word5")
    await two.click("#stop")
    for page in (one, two):
        await expect(page.locator("#log .chat-mark")).to_have_text("interrupted")
        assert re.fullmatch(r"word1 word2 .* word\d+", (await log(page))[-1])
        await expect(page.locator("#stop")).to_be_hidden()
    await say(one, "and now?")
    await expect(two.locator("#log > li").last).to_have_text(re.compile("You said: and now?"))
    await once_and_in_order(one, two)


async def test_escape_is_no_mistake_where_nothing_can_be_said_or_stopped(desk: Desk, name: str) -> None:
    page = await desk.open("talk-deaf", name)
    await expect(page.locator("#stop")).to_have_count(0)
    await page.keyboard.press("Escape")
    await page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    assert desk.complaints == []


async def test_escape_stops_and_says_so(desk: Desk, name: str) -> None:
    page = await desk.open("talk", name)
    await say(page, "think 60")
    await expect(page.locator("#status")).to_have_text("thinking …")
    await page.keyboard.press("Escape")
    await expect(page.locator("#status")).to_have_text("")
    await expect(page.locator("#stop")).to_be_hidden()
    await expect(page.locator("#text")).to_be_focused()


# Networks


async def test_what_happens_while_the_network_is_cut_is_shown_when_it_is_back(
    desk: Desk, site: Site, network: Network
) -> None:
    phone = f"+1555{uuid.uuid4().int % 10**7:07}"
    page = await desk.open("talk", phone)
    await say(page, "before")
    await shows(page, "before", "You said: before")
    network.cut()
    await expect(page.locator("#banner")).to_contain_text("No connection")
    await command(site, "text", phone, "meanwhile", "--kind", "talk", "--url", site.url, "--timeout", "0")
    await say(page, "in a tunnel")
    await expect(page.locator("#coming .chat-state")).to_have_text("Waiting for the connection …")
    network.mend()
    await expect(page.locator("#banner")).to_be_hidden()
    await expect(page.locator("#log > li")).to_have_count(6)
    assert (await log(page))[2:] == [
        "meanwhile",
        "You said: meanwhile",
        "in a tunnel",
        "You said: in a tunnel",
    ]
    await once_and_in_order(page)


async def test_a_stream_goes_on_over_a_cut(desk: Desk, name: str, network: Network) -> None:
    page = await desk.open("talk", name)
    await say(page, "stream 60 0.05")
    await expect(page.locator("#coming")).to_contain_text("word5")
    network.cut()
    await asyncio.sleep(0.7)
    network.mend()
    await shows(page, "stream 60 0.05", words(60))
    await once_and_in_order(page)


async def test_what_was_written_in_a_tunnel_survives_a_reload(
    desk: Desk, name: str, network: Network
) -> None:
    page = await desk.open("talk", name)
    network.cut()
    await say(page, "one")
    await say(page, "two")
    await expect(page.locator("#coming > li")).to_have_count(2)
    network.mend()
    await page.reload()
    await expect(page.locator("#log > li")).to_have_count(4)
    assert [text for text in await log(page) if not text.startswith("You said")] == ["one", "two"]
    await once_and_in_order(page)
    await page.reload()
    await expect(page.locator("#connection")).to_have_text("Connected")
    await once_and_in_order(page)


async def test_a_browser_that_is_offline_comes_back(desk: Desk, name: str) -> None:
    page = await desk.open("talk", name)
    await desk.context.set_offline(True)
    await say(page, "hello")
    await asyncio.sleep(0.5)
    await desk.context.set_offline(False)
    await shows(page, "hello", "You said: hello")
    await once_and_in_order(page)


async def test_a_tab_that_slept_shows_every_message_once_and_in_order(desk: Desk, name: str) -> None:
    awake, sleeper = await desk.open("talk", name), await desk.open("talk", name)
    devtools = await desk.context.new_cdp_session(sleeper)
    await devtools.send("Page.setWebLifecycleState", {"state": "frozen"})
    for number in range(5):
        await say(awake, f"number {number}")
        await expect(awake.locator("#log > li")).to_have_count(2 * number + 2)
    await devtools.send("Page.setWebLifecycleState", {"state": "active"})
    await expect(sleeper.locator("#log > li")).to_have_count(10)
    assert await log(sleeper) == await log(awake)
    await once_and_in_order(awake, sleeper)


async def test_a_tab_that_slept_for_ten_minutes_is_in_the_conversation_again(
    desk: Desk, site: Site, browser: Browser, operators_cookies: Any
) -> None:
    """Two tabs and a phone. One tab sleeps: its page is frozen, its connection dies, and meanwhile there are
    more events than are kept and more messages than a snapshot has. Then its clock jumps by ten minutes.
    """
    phone = f"+1555{uuid.uuid4().int % 10**7:07}"
    async with another_desk(site, browser, operators_cookies) as (bedside, line):
        awake, sleeper = await desk.open("talk", phone), await bedside.page()
        await sleeper.clock.install()
        await sleeper.goto(f"{bedside.url}/chat/talk/{escape_name(phone)}/")
        await text(site, phone, "before")
        for page in (awake, sleeper):
            await shows(page, "before", "You said: before")

        devtools = await bedside.context.new_cdp_session(sleeper)
        await devtools.send("Page.setWebLifecycleState", {"state": "frozen"})
        line.cut()
        await says(awake, phone, "windows", 2)  # the tab that is awake, and the one that asks
        await say(awake, "flood 70 1000")
        await shows_last(awake, "line 70")
        await text(site, phone, "are you asleep?")
        await shows_last(awake, "You said: are you asleep?")
        await say(awake, "stream 4000 0.05")
        await expect(awake.locator("#coming")).to_contain_text("word5")

        line.mend()
        await devtools.send("Page.setWebLifecycleState", {"state": "active"})
        await sleeper.clock.fast_forward(600_000)
        await expect(sleeper.locator("#connection")).to_have_text("Connected")
        await expect(sleeper.locator("#coming")).to_contain_text("word1 word2 word3")
        await sleeper.click("#stop")
        for page in (awake, sleeper):
            await expect(page.locator("#log .chat-mark")).to_have_text("interrupted")
            await expect(page.locator("#log > li[data-seq]")).to_have_count(2 + 71 + 2 + 2)
            await expect(page.locator("#log > .chat-more")).to_have_count(0)
            await once_and_in_order(page)
        assert await log(sleeper) == await log(awake)
        assert (await log(sleeper))[2:73] == ["flood 70 1000", *(f"line {n}" for n in range(1, 71))]
        assert re.fullmatch(r"word1 word2 .* word\d+", (await log(sleeper))[-1])
        await say(sleeper, "good morning")
        await shows_last(awake, "You said: good morning")
        await once_and_in_order(awake, sleeper)


async def test_a_site_that_restarts_loses_nothing(desk: Desk, site: Site, name: str) -> None:
    page = await desk.open("talk", name)
    await say(page, "before")
    await shows(page, "before", "You said: before")
    restarting = asyncio.create_task(asyncio.to_thread(site.restart))
    await expect(page.locator("#banner")).to_contain_text("No connection")
    await say(page, "meanwhile")
    await restarting
    await expect(page.locator("#log > li")).to_have_count(4)
    assert await log(page) == ["before", "You said: before", "meanwhile", "You said: meanwhile"]
    await once_and_in_order(page)


# What the person says


async def test_what_is_said_is_pending_then_delivered_then_in_the_log(
    desk: Desk, name: str, tmp_path: Path
) -> None:
    thought = tmp_path / "thought"
    page, other = await desk.open("talk", name), await desk.open("talk", name)
    await say(page, f"think {thought}")
    await expect(page.locator("#status")).to_have_text("thinking …")
    await say(page, "are you there?")
    pending = page.locator("#coming > li[data-pending]")
    await expect(pending).to_have_attribute("data-state", "delivered")
    await expect(pending.locator(".chat-state")).to_have_text("Delivered")
    await expect(other.locator("#coming > li")).to_have_count(0)
    id = await pending.get_attribute("data-pending")
    thought.touch()
    await shows(page, f"think {thought}", "Thought.", "are you there?", "You said: are you there?")
    await expect(page.locator(f'#log > li[data-id="{id}"]')).to_have_count(1)
    await once_and_in_order(page, other)


async def test_what_cannot_be_sent_says_why_and_can_be_discarded(desk: Desk, name: str) -> None:
    page = await desk.open("talk", name)
    await page.evaluate(
        "() => { const text = document.getElementById('text'); text.value = 'x'.repeat(300000); }"
    )
    await page.press("#text", "Enter")
    failed = page.locator("#coming > li[data-state=failed]")
    await expect(failed.locator(".chat-state")).to_contain_text("Not sent: it is too long.")
    await expect(failed.locator("[role=alert]")).to_have_count(1)
    await failed.get_by_role("button", name="Try again").click()
    await expect(failed).to_have_count(1)
    await page.reload()
    await expect(failed.locator(".chat-state")).to_contain_text("Not sent: it is too long.")
    await failed.get_by_role("button", name="Discard").click()
    await expect(page.locator("#coming > li")).to_have_count(0)
    await expect(page.locator("#text")).to_be_focused()
    await say(page, "short")
    await shows(page, "short", "You said: short")


async def test_text_is_text_whatever_it_looks_like(desk: Desk, name: str) -> None:
    page = await desk.open("talk", name)
    evil = (
        "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script> **bold** &amp;"
    )
    await say(page, evil)
    await shows(page, evil, f"You said: {evil}")
    await page.reload()
    await shows(page, evil, f"You said: {evil}")
    assert await page.title() != "owned"
    assert await page.locator("#log img, #log script, #log b, #log strong").count() == 0


async def test_lines_stay_lines_and_enter_sends(desk: Desk, name: str) -> None:
    page = await desk.open("talk", name)
    await page.locator("#text").press_sequentially("one")
    await page.keyboard.press("Shift+Enter")
    await page.locator("#text").press_sequentially("two")
    assert await page.locator("#log > li, #coming > li").count() == 0
    await page.keyboard.press("Enter")
    await shows(page, "one\ntwo", "You said: one\ntwo")
    assert await page.input_value("#text") == ""
    await page.keyboard.press("Enter")  # nothing to send
    await page.fill("#text", "   ")
    await page.keyboard.press("Enter")
    await once_and_in_order(page)


async def test_tool_calls_are_folded_and_open_by_keyboard(desk: Desk, name: str) -> None:
    page = await desk.open("talk", name)
    await say(page, "tool")
    await expect(page.locator("#log > li")).to_have_count(4)
    call, result = page.locator("#log details >> nth=0"), page.locator("#log details >> nth=1")
    await expect(call.locator("summary")).to_have_text("Uses lookup_order")
    await expect(call.locator("pre")).to_be_hidden()
    await call.locator("summary").focus()
    await page.keyboard.press("Enter")
    await expect(call.locator("pre")).to_contain_text('"note": "<b>"')
    await expect(result.locator("summary")).to_have_text("Result of lookup_order")
    await expect(result.locator("pre")).to_have_text("Order 1042: shipped.")


# Calls


async def test_calls_answer_fail_and_are_refused_with_a_code(desk: Desk, name: str) -> None:
    page = await desk.open("talk", name)
    await say(page, "hello")
    await shows(page, "hello", "You said: hello")
    outcomes = await page.evaluate(
        """async (name) => {
            const { AgentClient } = await import("/static/agents/agent-client.js");
            const client = new AgentClient({ kind: "talk", name });
            const outcome = (promise) => promise.catch(({ code, message }) => `${code}: ${message}`);
            const outcomes = [];
            for (const method of ["count", "broken", "hidden", "nothing"]) {
                outcomes.push(await outcome(client.call(method)));
            }
            outcomes.push(await outcome(client.call("count", 1, 2)));
            client.close();
            return outcomes;
        }""",
        name,
    )
    assert outcomes[0] == 2
    codes = [outcome.split(":")[0] for outcome in outcomes[1:]]
    assert codes == ["method_error", "private_method", "unknown_method", "bad_arguments"]
    assert "the back office is closed" in outcomes[1]  # to staff


# The page


async def test_a_screen_reader_hears_messages_and_not_every_word(desk: Desk, name: str) -> None:
    page = await desk.open("talk", name)
    await expect(page.get_by_role("log", name="Messages")).to_have_count(1)
    await expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    await say(page, "stream 20 0.05")
    await expect(page.locator("#coming > li[data-stream]")).to_have_count(1)
    live = "[role=log], [role=status], [role=alert], [aria-live]"
    assert (
        await page.locator("#coming > li[data-stream]").evaluate("(item, live) => item.closest(live)", live)
        is None
    )
    await expect(page.get_by_role("button", name="Stop")).to_be_visible()
    await expect(page.get_by_role("log").get_by_role("listitem")).to_have_count(2)
    for unnamed in await page.locator("button, input:not([type=hidden]), textarea, img, a").all():
        assert await unnamed.evaluate(
            "(item) => Boolean((item.innerText || item.alt || item.labels?.[0]?.innerText || '').trim())"
        )


async def test_on_a_phone_nothing_is_wider_than_the_screen(
    network: Network, browser: Browser, operators_cookies: Any
) -> None:
    context = await browser.new_context(
        viewport={"width": 360, "height": 640},
        has_touch=True,
        is_mobile=True,
        device_scale_factor=2,
        storage_state=operators_cookies,
    )
    desk = Desk(context, network.url)
    page = await desk.open("talk", f"a-very-long-name-{'x' * 100}{uuid.uuid4().hex}")
    await page.fill("#text", "x" * 500)
    await page.press("#text", "Enter")
    assert await page.input_value("#text") == "x" * 500 + "\n"  # the phone's only new line
    await page.tap(".chat-send")
    await expect(page.locator("#log > li")).to_have_count(2)
    assert await page.evaluate("document.documentElement.scrollWidth") == 360
    sizes = await page.locator("#say button:visible, #say textarea").evaluate_all(
        "items => items.map((item) => item.getBoundingClientRect().height)"
    )
    assert min(sizes) >= 36
    await context.close()
    assert desk.complaints == []


async def test_the_reader_stays_where_they_are_until_they_want_the_end(desk: Desk, name: str) -> None:
    page = await desk.open("talk", name)
    await page.set_viewport_size({"width": 600, "height": 400})
    for number in range(6):
        await say(page, f"line {number}\n" * 4)
        await expect(page.locator("#log > li")).to_have_count(2 * number + 2)
    last = page.locator("#log > li").last
    await expect(last).to_be_in_viewport()
    first = page.locator("#log > li").first
    await first.scroll_into_view_if_needed()
    before = await first.bounding_box()
    await page.evaluate(
        """async (name) => {
            const { AgentClient } = await import("/static/agents/agent-client.js");
            const client = new AgentClient({ kind: "talk", name });
            await client.say("from elsewhere");
            client.close();
        }""",
        name,
    )
    await expect(page.locator("#log > li")).to_have_count(14)
    await expect(page.locator("#jump")).to_be_visible()
    after = await first.bounding_box()
    assert before and after and abs(before["y"] - after["y"]) < 2
    await page.click("#jump")
    await expect(page.locator("#log > li").last).to_be_in_viewport()
    await expect(page.locator("#jump")).to_be_hidden()


async def test_earlier_messages_come_on_demand(desk: Desk, name: str) -> None:
    page = await desk.open("talk", name)
    for number in range(30):
        await say(page, f"number {number}")
    await expect(page.locator("#log > li")).to_have_count(60)
    await page.reload()
    await expect(page.locator("#log > li")).to_have_count(50)
    await page.locator("#earlier").click()
    await expect(page.locator("#log > li")).to_have_count(60)
    await expect(page.locator("#earlier")).to_have_count(0)
    await once_and_in_order(page)


async def test_signing_out_elsewhere_ends_it_and_says_so(desk: Desk, name: str, site: Site) -> None:
    await desk.context.clear_cookies()
    await desk.sign_in(site.user, site.password)
    page = await desk.open("talk", name)
    await say(page, "hello")
    await shows(page, "hello", "You said: hello")
    key = next(c["value"] for c in await desk.context.cookies() if c["name"] == "sessionid")
    sign_out = f"from django.contrib.sessions.models import Session; Session.objects.get(pk={key!r}).delete()"
    await command(site, "shell", "-v", "0", "-c", sign_out)
    await say(page, "still me?")
    await expect(page.locator("#banner")).to_contain_text("You are signed out")
    await expect(page.locator("#coming > li")).to_have_attribute("data-state", "failed")
    await expect(page.locator("#connection")).to_have_text("Not connected")
    await page.click("#banner a")
    await page.wait_for_url("**/admin/login/**")


async def test_without_javascript_it_is_a_transcript_with_a_form(
    site: Site, browser: Browser, operators_cookies: Any, name: str
) -> None:
    context = await browser.new_context(java_script_enabled=False, storage_state=operators_cookies)
    page = await context.new_page()
    address = f"{site.url}/chat/talk/{escape_name(name)}/"
    await page.goto(address)
    await expect(page.locator("#empty")).to_be_visible()
    await page.fill("#text", "hello <i>there</i>")
    await page.click(".chat-send")
    await page.wait_for_url(address)
    for _ in range(300):
        await page.click("noscript a")
        if await page.locator("#log > li").count() == 2:
            break
        await asyncio.sleep(0.1)
    await shows(page, "hello <i>there</i>", "You said: hello <i>there</i>")
    await expect(page.locator("#log > li").last).to_be_in_viewport()
    await context.close()


async def test_the_index_leads_to_a_conversation(desk: Desk, name: str) -> None:
    page = await desk.page()
    await page.goto(f"{desk.url}/chat/")
    await page.select_option("#kind", "talk")
    await page.fill("#name", name)
    await page.keyboard.press("Enter")
    await expect(page.locator("#connection")).to_have_text("Connected")
    await expect(page.locator("h1")).to_have_text(f"{name} talk")


# Other clients


async def test_the_terminal_is_in_the_same_conversation(desk: Desk, site: Site, name: str) -> None:
    page = await desk.open("talk", name)
    await say(page, "hello")
    await shows(page, "hello", "You said: hello")
    screen = await command(site, "chat", "talk", name, "--url", site.url, input="stream 5 0.02\n")
    assert "user: hello\nassistant: You said: hello\n" in screen
    assert screen.rstrip().endswith("assistant: word1 word2 word3 word4 word5")
    await shows(page, "hello", "You said: hello", "stream 5 0.02", words(5))


async def test_a_visitor_without_a_session_comes_in_with_a_token(
    network: Network, site: Site, browser: Browser, name: str
) -> None:
    make = f"from agents.sockets import connect_token; print(connect_token('talk', {name!r}, {{'n': 1}}))"
    token = (await command(site, "shell", "-v", "0", "-c", make)).strip()
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(f"{network.url}/admin/login/")  # a page of this site, where nobody is signed in
    outcome = await page.evaluate(
        """async ([name, token]) => {
            const { AgentClient } = await import("/static/agents/agent-client.js");
            let asked = 0;
            const tokens = ["not a token", token];
            const client = new AgentClient({ kind: "talk", name, token: async () => tokens[asked++] });
            const answer = new Promise((resolve) => {
                client.on("message", ({ role, content }) => role === "assistant" && resolve(content));
            });
            await client.say("hello");
            const content = await answer;
            client.close();
            const other = new AgentClient({ kind: "talk", name: "another", token });
            const refused = await other.say("hello").catch(({ code }) => code);
            return { asked, content, refused };
        }""",
        [name, token],
    )
    await context.close()
    assert outcome == {"asked": 2, "content": "You said: hello", "refused": "unauthorized"}
