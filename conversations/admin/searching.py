"""Lists with a search over messages: it finds the newest, and says where it goes on."""

from __future__ import annotations

from django.db.models import QuerySet
from django.http import HttpRequest

from agents.adminkit import ReadOnlyAdmin
from conversations import search, terms
from conversations.models import Message


class SearchedAdmin(ReadOnlyAdmin):
    change_list_template = "conversations/searched_list.html"

    def found(self, request: HttpRequest, rows: QuerySet[Message], text: str) -> list[int]:
        """The newest of these messages that hold what is looked for; the page says if there may be more."""
        found = search.newest(rows, text)
        if found.before is not None:
            request.search = {  # type: ignore[attr-defined]
                "enough": len(found.ids) == search.HITS,
                "count": len(found.ids),
                "further": terms.going_on(text, found.before),
            }
        return found.ids
