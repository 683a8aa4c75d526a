"""Pages of the admin on which an operator says why, and then something is done to one actor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from agents import permissions
from agents.display import url_of
from agents.exceptions import AgentsError
from agents.models import Actor


class WhyForm(forms.Form):
    """The reason, which goes into the log of operators' deeds."""

    reason = forms.CharField(
        max_length=2000, required=False, widget=forms.Textarea(attrs={"rows": 2, "cols": 60})
    )


class NeededWhyForm(WhyForm):
    """The same where nothing is done without one."""

    reason = forms.CharField(max_length=2000, widget=forms.Textarea(attrs={"rows": 2, "cols": 60}))


@dataclass(frozen=True)
class Verb:
    """One thing to do to an actor.

    ``run(actor, user's name, the form's data)`` returns what to say, or a page to show; raises AgentsError.
    """

    name: str
    label: str
    text: str
    permission: str
    run: Callable[[Actor, str, dict[str, Any]], str | HttpResponse]
    form: type[forms.Form] = WhyForm
    danger: bool = False
    offered: Callable[[Actor], bool] = field(default=lambda actor: True)


#: Of all apps, in the order of their buttons.
VERBS: dict[str, Verb] = {}


def register(verb: Verb) -> None:
    VERBS[verb.name] = verb


def urls(admin: Any) -> list[URLPattern]:
    """To be put in front of an admin's own."""

    def view(request: HttpRequest, pk: int, verb: str) -> HttpResponse:
        return _view(admin, request, pk, verb)

    return [path("<int:pk>/do/<str:verb>/", admin.admin_site.admin_view(view), name="agents_actor_do")]


def url(actor: Actor, verb: str) -> str:
    return reverse("admin:agents_actor_do", args=[actor.pk, verb])


def _view(admin: Any, request: HttpRequest, pk: int, name: str) -> HttpResponse:
    actor = get_object_or_404(permissions.visible(request.user, Actor.objects.defer("state")), pk=pk)
    verb = VERBS.get(name)
    if verb is None or not permissions.may(request.user, verb.permission, actor.kind):
        raise PermissionDenied
    form = verb.form(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            said = verb.run(actor, request.user.get_username(), form.cleaned_data)
        except AgentsError as error:
            form.add_error(None, f"{error} ({error.code})")
        else:
            if isinstance(said, HttpResponse):
                return said
            messages.success(request, said)
            if not Actor.objects.filter(pk=pk).exists():
                return HttpResponseRedirect(reverse("admin:agents_actor_changelist"))
            LogEntry.objects.log_actions(request.user.pk, [actor], CHANGE, said)  # type: ignore[arg-type]
            return HttpResponseRedirect(url_of(actor))
    context = {
        **admin.admin_site.each_context(request),
        "title": f"{verb.label}: {actor.name}",
        "opts": admin.opts,
        "actor": actor,
        "actor_url": url_of(actor),
        "verb": verb,
        "form": form,
        "media": admin.media + form.media,
    }
    request.current_app = admin.admin_site.name
    return TemplateResponse(request, "agents/actor_verb.html", context)
