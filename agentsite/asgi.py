"""ASGI entry point: HTTP through Django, WebSockets through Channels."""

import os
from typing import Any

from channels.routing import ProtocolTypeRouter
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentsite.settings")

site = get_asgi_application()  # loads the apps, which what follows needs

from agents.sockets.routing import application as websocket  # noqa: E402
from agentsite.lean import ApiHandler, LeanHandler  # noqa: E402

webhooks, api = LeanHandler(), ApiHandler()
#: What waits, for a reply or for a turn. Not the API's document and its page, which are for browsers.
WAITING = ("/api/actors/", "/api/tasks/", "/agents/")


async def http(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Providers' deliveries and the API take short ways: they hold no thread while they wait."""
    path = scope["path"]
    handler = webhooks if path.startswith("/webhooks/") else api if path.startswith(WAITING) else site
    await handler(scope, receive, send)


application = ProtocolTypeRouter({"http": http, "websocket": websocket})
