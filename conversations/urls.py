from django.db import transaction
from django.urls import URLPattern, URLResolver, include, path, re_path

from conversations.chat import ChatIndex, ChatView
from conversations.views import MediaView, ProviderWebhook, SentMediaView

# It has transactions of its own, also where ATOMIC_REQUESTS puts one around every request.
webhook = transaction.non_atomic_requests(ProviderWebhook.as_view())

urlpatterns: list[URLPattern | URLResolver] = [
    # With and without the last slash: a POST cannot be redirected, and providers call a redirect a failure.
    re_path(r"^webhooks/(?P<provider>[^/]+)/(?P<kind>[^/]+)/?$", webhook, name="text-webhook-kind"),
    re_path(r"^webhooks/(?P<provider>[^/]+)/?$", webhook, name="text-webhook"),
    path("media/sent/<str:token>", SentMediaView.as_view(), name="sent-media"),
    path("media/<str:kind>/<str:name>/<str:key>", MediaView.as_view(), name="media"),
    path("chat/", ChatIndex.as_view(), name="chat-index"),
    path("chat/<str:kind>/<str:name>/", ChatView.as_view(), name="chat"),
    path("dev/", include("conversations.dev.urls")),
]
