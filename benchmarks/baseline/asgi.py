from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.urls import path

http = get_asgi_application()

from benchmarks.baseline.consumers import EchoConsumer  # noqa: E402

application = ProtocolTypeRouter(
    {"http": http, "websocket": URLRouter([path("ws/<str:name>/", EchoConsumer.as_asgi())])}
)
