"""URLs of the site: the admin, the API, and what each app brings."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", include("conversations.urls")),  # webhooks first: they come the most
    path("admin/", admin.site.urls),
    path("api/", include("agentsite.api")),
    path("", include("agents.http.urls")),
]
