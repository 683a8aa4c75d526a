"""Where agents answer requests themselves."""

from django.urls import path

from agents.http.requests import OnRequest

urlpatterns = [
    path("agents/<str:kind>/<str:name>/", OnRequest.as_view(), name="agent-request"),
    path("agents/<str:kind>/<str:name>/<path:rest>", OnRequest.as_view(), name="agent-request-path"),
]
