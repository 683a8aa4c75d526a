"""Where this site is reached from outside: what webhooks' signatures cover, and where providers report to."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from django.http import HttpRequest

from agents import conf as agents_conf
from conversations import conf


def base_url() -> str:
    """The site's public address without a slash at its end; "" when only this machine can reach it.

    WEBHOOK_BASE_URL, or else SITE_URL unless that is a loopback address.
    """
    if given := conf.get("WEBHOOK_BASE_URL"):
        return str(given).rstrip("/")
    site: str = agents_conf.get("SITE_URL")
    return "" if is_loopback(site) else site.rstrip("/")


def reachable_url(api: str) -> str:
    """``base_url()``; for an API on this machine (the sandbox) a loopback address too. "" without either."""
    return base_url() or (agents_conf.get("SITE_URL").rstrip("/") if is_loopback(api) else "")


def url_of(request: HttpRequest) -> str:
    """The address that a provider called, whatever proxy passed it on.

    Where no public address is configured it is what Django sees: ``X-Forwarded-Proto`` counts only with
    SECURE_PROXY_SSL_HEADER (TRUST_PROXY).
    """
    base = base_url()
    return f"{base}{request.get_full_path()}" if base else request.build_absolute_uri()


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def origin_of(url: str) -> tuple[str, str, int]:
    """(scheme, host, port) of an address. Raises ValueError for what is none."""
    parts = urlsplit(url)
    port = parts.port or {"https": 443, "http": 80}.get(parts.scheme, 0)
    if not parts.hostname or not port:
        raise ValueError(f"{url!r:.200} is no address")
    return parts.scheme, parts.hostname.lower(), port
