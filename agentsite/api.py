"""The REST API at ``/api/``: the views of each app, the OpenAPI document, and a page to try it on."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import path, re_path, register_converter
from django.urls.converters import IntConverter
from django.views.decorators.csrf import csrf_exempt
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView

from agents.http import errors
from agents.http.actors import Actors, Call, OneActor, State, Stop
from agents.http.views import rendered
from conversations.api.messages import Messages
from scheduler.api.tasks import AllTasks, Attempts, Cancel, OneTask, Replay, ReplayAttempt, RunNow, Tasks


class NumberConverter(IntConverter):
    """A row's number: no more than the database counts."""

    regex = "[0-9]{1,18}"


register_converter(NumberConverter, "number")


class TryIt(SpectacularSwaggerView):
    """``/api/docs/``: the document, and a button on each operation. For whoever is signed in."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return redirect_to_login(request.get_full_path())
        response: HttpResponseBase = super().dispatch(request, *args, **kwargs)
        return response


async def nothing(request: HttpRequest) -> HttpResponseBase:
    """Any other address, in the API's own words."""
    return rendered(errors.answer_of(Http404(), is_operator=False))


actor = "actors/<str:kind>/<str:name>/"

urlpatterns = [
    path("schema/", SpectacularAPIView.as_view(), name="api-schema"),
    path("docs/", TryIt.as_view(url_name="api-schema"), name="api-docs"),
    path("actors/", Actors.as_view(), name="api-actors"),
    path(actor, OneActor.as_view(), name="api-actor"),
    path(f"{actor}state/", State.as_view(), name="api-state"),
    path(f"{actor}messages/", Messages.as_view(), name="api-messages"),
    path(f"{actor}call/<str:method>/", Call.as_view(), name="api-call"),
    path(f"{actor}stop/", Stop.as_view(), name="api-stop"),
    path("tasks/", AllTasks.as_view(), name="api-all-tasks"),
    path(f"{actor}tasks/", Tasks.as_view(), name="api-tasks"),
    path(f"{actor}tasks/<number:number>/", OneTask.as_view(), name="api-task"),
    path(f"{actor}tasks/<number:number>/replay/", Replay.as_view(), name="api-replay"),
    path(f"{actor}tasks/<number:number>/run-now/", RunNow.as_view(), name="api-run-now"),
    path(f"{actor}tasks/<number:number>/cancel/", Cancel.as_view(), name="api-cancel"),
    path(f"{actor}attempts/", Attempts.as_view(), name="api-attempts"),
    path(f"{actor}attempts/<number:number>/replay/", ReplayAttempt.as_view(), name="api-replay-attempt"),
    re_path("", csrf_exempt(nothing), name="api-nothing"),
]
