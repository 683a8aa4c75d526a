"""What tests of the admin's pages look for: what would run, and what is shown."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from django.test import Client

#: Texts that would run in the operator's session if a page let them.
HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</script></textarea></title><svg onload=alert(1)>",
    "\"'><a href=javascript:alert(1)>x",
)


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


class Page:
    """A page as a browser would read it."""

    def __init__(self, response: Any) -> None:
        self.response = response
        self.status: int = response.status_code
        self.html: str = response.content.decode()
        parsed = _Elements()
        parsed.feed(self.html)
        self.elements = parsed.found
        self.text = " ".join("".join(parsed.text).split())

    @property
    def harmless(self) -> bool:
        """Whether no element came from what people wrote."""
        for tag, attributes in self.elements:
            if any(name.startswith("on") for name in attributes):
                return False
            if tag in ("svg", "img") and (attributes.get("src") == "x" or "onload" in attributes):
                return False
            if (attributes.get("href") or "").strip().lower().startswith("javascript:"):
                return False
        return "<script>alert" not in self.html

    def hrefs(self) -> list[str]:
        return [
            attributes["href"] or ""
            for tag, attributes in self.elements
            if tag == "a" and "href" in attributes
        ]

    def fields(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


def page(client: Client, url: str, **query: Any) -> Page:
    return Page(client.get(url, query))


def signed_in(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client
