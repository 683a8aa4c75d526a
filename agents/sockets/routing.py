"""Where sockets are, for the ``websocket`` part of an ASGI application.

``names.escape_name`` makes the name's part of the path; the JavaScript client does it by itself.
"""

from __future__ import annotations

from channels.routing import URLRouter
from channels.sessions import SessionMiddlewareStack
from django.urls import path, re_path

from agents.sockets.consumer import AgentConsumer, NowhereConsumer

websocket_urlpatterns = [
    path("ws/agents/<str:kind>/<str:name>/", AgentConsumer.as_asgi()),
    re_path(r"", NowhereConsumer.as_asgi()),
]

#: Sessions as Channels finds them, then the routes above. Not Channels' users: those are looked up before a
#: handshake is accepted, one after the other in one thread. The hub does it, behind the handshake.
application = SessionMiddlewareStack(URLRouter(websocket_urlpatterns))
