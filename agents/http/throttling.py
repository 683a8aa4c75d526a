"""How many requests one client may make: API_RATE for an account, API_ANON_RATE for an address.

Counted in Django's cache: with the default one each process counts for itself.
"""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.settings import api_settings
from rest_framework.throttling import SimpleRateThrottle

from agents import conf
from agents.sockets.tokens import Grant


class Rate(SimpleRateThrottle):
    scope = "agents"

    def __init__(self) -> None:
        """The rate is the client's, and so not known yet."""

    def allow_request(self, request: Request, view: Any) -> bool:
        known = request.user.is_authenticated or isinstance(request.auth, Grant)
        self.rate = conf.get("API_RATE" if known else "API_ANON_RATE")
        self.num_requests, self.duration = self.parse_rate(self.rate)
        return bool(super().allow_request(request, view))

    def get_cache_key(self, request: Request, view: Any) -> str:
        if request.user.is_authenticated:
            who = f"user.{request.user.pk}"
        elif isinstance(request.auth, Grant):
            # Everybody with a token of this actor together.
            who = f"actor.{view.kwargs['kind']}.{view.kwargs['name'][:150]}"
        else:
            who = f"address.{self.get_ident(request)}"
        return f"agents.rate.{who}"

    def get_ident(self, request: Request) -> str:
        # Without a word about proxies REST framework takes the whole X-Forwarded-For, which is the client's
        # own: another one each time would be another client each time.
        if api_settings.NUM_PROXIES is None:
            return str(request.META.get("REMOTE_ADDR", ""))
        return str(super().get_ident(request))
