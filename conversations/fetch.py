"""Fetching what an address from outside names, without becoming somebody's way into our network.

- https alone, on its own port; what else may be reached is named beforehand (``exempt``).
- The host is looked up once and the connection goes to the address that was checked: a name that means
  something else a moment later changes nothing. Every address that it means must be a public one.
- Redirects are followed by hand, each under the same rules; credentials go to the first address alone.
- Bounded: bytes as they come, in the time that was given, uncompressed.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

import httpcore
import httpx

from conversations.exceptions import MediaError, MediaRefusedError, MediaUnavailableError
from conversations.public import origin_of

logger = logging.getLogger(__name__)

MAX_REDIRECTS = 5
REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: Answers after which a later try gets the same.
NEVER = frozenset({400, 401, 403, 405, 406, 410, 451})

Origin = tuple[str, str, int]  # scheme, host, port

# Addresses within an IPv6 address that reach an IPv4 one: NAT64 (RFC 6052, RFC 8215).
_NAT64 = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))


@dataclass(frozen=True, slots=True)
class Fetched:
    body: bytes
    content_type: str  # without parameters, in lower case; "" where the answer names none
    url: str  # after redirects


def fetch(
    url: str,
    *,
    maximum: int,
    timeout: float,
    headers: Mapping[str, str] | None = None,
    exempt: Collection[Origin] = (),
) -> Fetched:
    """The body at an address, ``maximum`` bytes at most, within ``timeout`` seconds. Synchronous.

    ``headers`` (credentials) are sent to ``url`` itself and never after a redirect. ``exempt`` origins may be
    without TLS and at private addresses. Raises MediaRefusedError or MediaUnavailableError.
    """
    deadline = time.monotonic() + timeout
    for hop in range(MAX_REDIRECTS + 1):
        answer = _get(url, dict(headers or {}) if hop == 0 else {}, maximum, deadline, exempt)
        if isinstance(answer, Fetched):
            return answer
        url = answer
    raise MediaRefusedError(f"more than {MAX_REDIRECTS} redirects")


def _get(
    url: str, headers: dict[str, str], maximum: int, deadline: float, exempt: Collection[Origin]
) -> Fetched | str:
    """The body, or the address of a redirect."""
    origin = _origin(url)
    is_exempt = origin in exempt
    if not is_exempt and origin[0] != "https":
        raise MediaRefusedError(f"{origin[0]} addresses are not fetched")
    if not is_exempt and origin[2] != 443:
        raise MediaRefusedError(f"port {origin[2]} is not fetched from")
    left = deadline - time.monotonic()
    if left <= 0:
        raise MediaUnavailableError("the time is over")
    sent: dict[bytes | str, bytes | str] = {
        "Host": origin[1] if origin[2] in (80, 443) else f"{origin[1]}:{origin[2]}",
        "User-Agent": "conversations",
        "Accept": "*/*",
        "Accept-Encoding": "identity",  # what is compressed has no size before it is unpacked
    }
    sent.update(headers.items())
    timeouts = dict.fromkeys(("connect", "read", "write", "pool"), left)
    try:
        with (
            httpcore.ConnectionPool(
                ssl_context=httpx.create_ssl_context() if origin[0] == "https" else None,
                network_backend=_Pinned(public_only=not is_exempt),
            ) as pool,
            pool.stream("GET", url, headers=sent, extensions={"timeout": timeouts}) as response,
        ):
            return _read(url, response, maximum, deadline)
    except MediaError:
        raise
    except (OSError, UnicodeError, ValueError, httpcore.UnsupportedProtocol) as error:
        raise MediaUnavailableError(f"{type(error).__name__}: {error}") from error
    except (
        httpcore.NetworkError,
        httpcore.TimeoutException,
        httpcore.ProtocolError,
        httpcore.ConnectionNotAvailable,
        httpcore.ProxyError,
    ) as error:
        raise MediaUnavailableError(f"{type(error).__name__}: {error}") from error


def _origin(url: str) -> Origin:
    try:
        return origin_of(url)
    except ValueError as error:
        raise MediaRefusedError(str(error)) from error


def _read(url: str, response: Any, maximum: int, deadline: float) -> Fetched | str:
    headers = {name.lower(): value.decode("latin-1") for name, value in response.headers}
    status = response.status
    if status in REDIRECTS and headers.get(b"location"):
        return urljoin(url, headers[b"location"])
    if status != 200:
        refused = MediaRefusedError if status in NEVER else MediaUnavailableError
        raise refused(f"HTTP {status}")
    if headers.get(b"content-encoding", "identity").lower() not in ("", "identity"):
        raise MediaRefusedError("the answer is compressed")
    announced = headers.get(b"content-length", "")
    if announced.isdecimal() and int(announced) > maximum:
        raise MediaRefusedError(f"{announced} bytes are more than {maximum}")
    body = bytearray()
    for chunk in response.iter_stream():
        body += chunk
        if len(body) > maximum:
            raise MediaRefusedError(f"more than {maximum} bytes")
        if time.monotonic() > deadline:
            raise MediaUnavailableError("the time is over")
    content_type = headers.get(b"content-type", "").split(";")[0].strip().lower()
    return Fetched(bytes(body), content_type, url)


class _Pinned(httpcore.NetworkBackend):
    """Connects to the very address that was looked at."""

    def __init__(self, *, public_only: bool) -> None:
        self._public_only = public_only
        self._sockets = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        addresses = resolve(host, port)
        if self._public_only and not all(is_public(address) for address in addresses):
            raise MediaRefusedError(f"{host} is not a public address")
        error: Exception | None = None
        for address in addresses[:4]:
            try:
                return self._sockets.connect_tcp(
                    address, port, timeout=timeout, local_address=local_address, socket_options=socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as failed:
                error = failed
        raise error or httpcore.ConnectError(f"{host} has no address")

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        raise MediaRefusedError("a socket of this machine is not fetched from")

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, in the resolver's order."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise MediaUnavailableError(f"{host} cannot be looked up: {error}") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_public(address: str) -> bool:
    """Whether an address is reachable for everybody, whatever it is wrapped in."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.is_site_local:
            return False
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and any(ip in network for network in _NAT64):
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is None and ip.teredo:
            return False
        if inner is not None:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast and not ip.is_reserved and not ip.is_unspecified
