"""The chat page as the server gives it: who may see it, what is in it, and the form without JavaScript."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from agents.models import Actor
from agents.names import escape_name
from agents.testing import drain
from conversations.chat import SHOWN, chat_url
from conversations.models import Message
from tests.browser.talkers.agents import OpenAgent, TalkAgent

pytestmark = pytest.mark.django_db(transaction=True)
NAME = "日本 +1"


def url(agent: Any = TalkAgent, name: str = NAME) -> str:
    return chat_url(agent.kind, name)


def log_of(html: str) -> list[tuple[str, str, str]]:
    """(role, seq, text) of each message in a page."""
    items = re.findall(
        r'<li class="chat-message" data-role="(\w+)" data-seq="(\d+)".*?</li>', html, re.DOTALL
    )
    texts = re.findall(r'<li class="chat-message".*?</li>', html, re.DOTALL)
    return [
        (role, seq, unescape(re.sub(r"<p class=\"chat-by\">.*?</p>|<[^>]+>", "", text, flags=re.DOTALL)))
        for (role, seq), text in zip(items, texts, strict=True)
    ]


def say(client: Client, text: str, agent: Any = TalkAgent, **more: str) -> Any:
    return client.post(url(agent), {"text": text, **more})


@pytest.fixture
def at_alices(client: Client, alice: Any) -> Client:
    client.force_login(alice)
    return client


# Who may


def test_a_stranger_is_asked_to_sign_in_and_nothing_comes_to_be(client: Client) -> None:
    for path in (url(), reverse("chat-index")):
        assert client.get(path)["Location"].startswith("/admin/login/?next=")
    assert client.post(url(), {"text": "hello"}).status_code == 302
    assert not Actor.objects.exists()


def test_staff_that_may_look_at_actors_are_let_in(client: Client, bob: Any) -> None:
    client.force_login(bob)
    assert client.get(url()).status_code == 200
    assert client.get(reverse("chat-index")).status_code == 200


def test_somebody_else_is_turned_away_unless_the_class_says_otherwise(client: Client, charlie: Any) -> None:
    client.force_login(charlie)
    assert client.get(url()).status_code == 403
    assert say(client, "hello").status_code == 403
    assert client.get(reverse("chat-index")).status_code == 403
    assert client.get(url(OpenAgent)).status_code == 200
    assert say(client, "hello", OpenAgent).status_code == 302
    assert list(Actor.objects.values_list("kind", flat=True)) == [OpenAgent.kind]


@pytest.mark.parametrize("path", ["/chat/nope/x/", "/chat/talk/" + "x" * 256 + "/", "/chat/talk/a%00b/"])
def test_what_names_no_actor_is_not_found(at_alices: Client, path: str) -> None:
    assert at_alices.get(path).status_code == 404


def test_a_name_typed_as_it_is_leads_to_the_page(at_alices: Client) -> None:
    assert at_alices.get("/chat/talk/日本 +1/")["Location"] == url()
    assert at_alices.get("/chat/talk/+15550001111/")["Location"] == "/chat/talk/~2B15550001111/"
    assert at_alices.get("/chat/talk/plain/").status_code == 200


# The page


def test_a_conversation_that_has_not_begun_says_so_and_creates_nothing(at_alices: Client) -> None:
    page = at_alices.get(url()).content.decode()
    assert 'data-cursor="0" data-seq="0"' in page
    assert '<p class="chat-empty" id="empty">Nothing was said yet.</p>' in page
    assert not Actor.objects.exists()


def test_what_people_wrote_is_text_and_never_html(at_alices: Client) -> None:
    evil = '<script>alert(1)</script> & "quotes"'
    say(at_alices, evil)
    drain(TalkAgent.named(NAME))
    page = at_alices.get(url()).content.decode()
    assert "<script>alert" not in page
    assert log_of(page) == [("user", "1", evil), ("assistant", "2", f"You said: {evil}")]


def test_the_page_runs_only_our_own_scripts_and_is_kept_nowhere(at_alices: Client) -> None:
    response = at_alices.get(url())
    policy = dict(part.split(" ", 1) for part in response["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["connect-src"] == "'self' ws://testserver"
    assert response["Cache-Control"] == "no-store"
    html = response.content.decode()
    assert re.findall(r"<script(?![^>]* src=)|<style| style=| on\w+=", html) == []


def test_static_files_of_another_host_are_allowed_from_there(at_alices: Client, settings: Any) -> None:
    settings.STATIC_URL = "https://files.example.org/static/"
    policy = at_alices.get(url())["Content-Security-Policy"]
    assert "script-src 'self' https://files.example.org;" in policy


def test_calls_results_pictures_and_thoughts_are_shown(at_alices: Client) -> None:
    for text in ("tool", "picture"):
        say(at_alices, text)
        drain(TalkAgent.named(NAME))
    page = at_alices.get(url()).content.decode()
    assert "<summary>Uses <b>lookup_order</b></summary>" in page
    assert "&quot;note&quot;: &quot;&lt;b&gt;&quot;" in page
    assert "<summary>Result of <b>lookup_order</b></summary><pre>Order 1042: shipped.</pre>" in page
    assert re.search(r'<img class="chat-picture" src="data:image/png;base64,\w+', page)
    assert "<summary>Reasoning</summary><pre>They want to see it.</pre>" in page


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "url": "javascript:alert(1)"},
        {"type": "image", "url": "http://plain.example/a.png"},
        {"type": "image", "base64": "PHN2Zz4=", "mime_type": "image/svg+xml"},
        {"type": "image", "url": "data:text/html;base64,PHN2Zz4="},
    ],
)
async def test_a_picture_that_could_be_something_else_is_not_shown_in_place(part: dict[str, Any]) -> None:
    from conversations.chat import bubbles_of

    row = {"pk": 1, "seq": 1, "role": "assistant", "content": "x", "parts": [part], "name": "", "at": None}
    row |= {"tool_calls": None, "tool_call_id": "", "metadata": None}
    from django.utils import timezone

    (bubble,) = bubbles_of([row | {"at": timezone.now()}])
    assert bubble.pictures == []
    assert len(bubble.folds) == 1


def test_the_newest_messages_come_first_and_the_earlier_ones_by_a_link(at_alices: Client) -> None:
    say(at_alices, "first")
    drain(TalkAgent.named(NAME))
    actor = Actor.objects.get()
    template = Message.objects.get(seq=1)
    Message.objects.bulk_create(
        Message(actor=actor, seq=seq, role="user", content=f"m{seq}", at=template.at)
        for seq in range(3, SHOWN + 4)
    )
    Actor.objects.update(seq=SHOWN + 3)
    page = at_alices.get(url()).content.decode()
    assert [int(seq) for _, seq, _ in log_of(page)] == list(range(4, SHOWN + 4))
    link = re.search(r'id="earlier" href="(\?before=4)"', page)
    assert link
    earlier = at_alices.get(url() + link[1]).content.decode()
    assert [int(seq) for _, seq, _ in log_of(earlier)] == [1, 2, 3]
    assert 'id="say"' not in earlier and "chat.js" not in earlier and 'id="earlier"' not in earlier
    assert log_of(at_alices.get(f"{url()}?before=1").content.decode()) == []
    assert len(log_of(at_alices.get(f"{url()}?before=nonsense").content.decode())) == SHOWN


def test_a_page_of_long_messages_holds_fewer_of_them(at_alices: Client) -> None:
    say(at_alices, "first")
    drain(TalkAgent.named(NAME))
    actor, at = Actor.objects.get(), Message.objects.get(seq=1).at
    for seq in (3, 4, 5):
        Message.objects.create(actor=actor, seq=seq, role="user", content="x" * 500_000, at=at)
    Actor.objects.update(seq=5)
    assert [seq for _, seq, _ in log_of(at_alices.get(url()).content.decode())] == ["4", "5"]


def test_what_the_system_says_is_for_operators_alone(client: Client, alice: Any, charlie: Any) -> None:
    client.force_login(charlie)
    say(client, "hello", OpenAgent)
    drain(OpenAgent.named(NAME))
    Message.objects.filter(seq=2).update(role="system", content="a secret of the trade")
    page = client.get(url(OpenAgent)).content.decode()
    assert [role for role, _, _ in log_of(page)] == ["user"]
    assert 'data-seq="1"' in page and 'data-seq="2"' not in page
    assert client.get(f"{url(OpenAgent)}?message=2").status_code == 404
    client.force_login(alice)
    assert "a secret of the trade" in client.get(url(OpenAgent)).content.decode()


def test_one_message_is_given_for_itself(at_alices: Client) -> None:
    say(at_alices, "picture")
    drain(TalkAgent.named(NAME))
    one = at_alices.get(f"{url()}?message=2")
    assert one.status_code == 200
    page = at_alices.get(url()).content.decode()
    assert one.content.decode().strip() in page
    assert at_alices.get(f"{url()}?message=3").status_code == 404


# Without JavaScript


def test_the_form_says_something_and_leads_back(at_alices: Client) -> None:
    response = say(at_alices, "  hello  ", id="form-1")
    assert (response.status_code, response["Location"]) == (302, url())
    drain(TalkAgent.named(NAME))
    message = Message.objects.get(seq=1)
    assert (message.content, message.metadata) == ("hello", {"id": "form-1"})
    assert 'data-seq="1" data-id="form-1"' in at_alices.get(url()).content.decode()


def test_the_same_form_sent_twice_is_one_message(at_alices: Client) -> None:
    page = at_alices.get(url()).content.decode()
    id = re.search(r'name="id" value="(\w{32})"', page)
    assert id
    for _ in range(2):
        assert say(at_alices, "hello", id=id[1]).status_code == 302
    drain(TalkAgent.named(NAME))
    assert Message.objects.filter(role="user").count() == 1


def test_what_cannot_be_sent_is_kept_in_the_form_with_the_reason(at_alices: Client) -> None:
    response = say(at_alices, "x" * 300_000)
    page = response.content.decode()
    assert response.status_code == 400
    assert 'role="alert">That is too long.</p>' in page and "x" * 300_000 in page
    assert say(at_alices, "   ").status_code == 400
    assert say(at_alices, "hello", id="x" * 129).status_code == 400
    assert say(at_alices, "hello", id="x" * 128).status_code == 302


def test_a_form_from_another_site_is_refused(alice: Any) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)
    assert say(client, "hello").status_code == 403


def test_an_agent_that_does_not_listen_has_no_form(at_alices: Client) -> None:
    page = at_alices.get("/chat/talk-deaf/x/").content.decode()
    assert 'id="say"' not in page
    assert "hear nothing" in page
    response = at_alices.post("/chat/talk-deaf/x/", {"text": "hello"})
    assert response.status_code == 400


# Where to go


def test_the_index_lists_the_kinds_that_listen(at_alices: Client) -> None:
    page = at_alices.get(reverse("chat-index")).content.decode()
    assert "<option>talk</option>" in page and "<option>talk-open</option>" in page
    assert "talk-deaf" not in page


def test_the_index_leads_to_a_conversation(at_alices: Client) -> None:
    response = at_alices.get(reverse("chat-index"), {"kind": "talk", "name": NAME})
    assert response["Location"] == f"/chat/talk/{escape_name(NAME)}/"
    for wrong in ({"kind": "nope", "name": "x"}, {"kind": "talk", "name": "x" * 256}):
        response = at_alices.get(reverse("chat-index"), wrong)
        assert response.status_code == 400
        assert 'role="alert"' in response.content.decode()
