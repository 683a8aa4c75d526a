"""A process's own metrics on a port of its own, for processes that serve no site: workers, the scheduler."""

from __future__ import annotations

import logging
import os
import re
import threading
from typing import Any

from agents import conf

logger = logging.getLogger("agents.metrics")

_PORTS = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_lock = threading.Lock()
_server: Any = None


def ports(text: str) -> range:
    """ "9101" or "9101-9120" as ports, the last one included; none for an empty text. Raises ValueError."""
    if not text:
        return range(0)
    match = _PORTS.fullmatch(text)
    if match is None:
        raise ValueError(f"a port or a range such as 9101-9120, got {text!r}")
    first, last = int(match[1]), int(match[2] or match[1])
    if not 0 < first <= last < 65_536:
        raise ValueError(f"ports are 1 to 65535, the lower one first, got {text!r}")
    return range(first, last + 1)


def serve() -> int | None:
    """Shows this process's metrics on the first free port of METRICS_PORTS; that port, or None.

    Once a process; a second call changes nothing. Never fails: a process without its port works on, and says
    so in its log.
    """
    global _server
    wanted, host = ports(conf.get("METRICS_PORTS")), conf.get("METRICS_HOST")
    with _lock:
        if _server is not None or not wanted:
            return None
        from prometheus_client import start_http_server

        for port in wanted:
            try:
                _server, _ = start_http_server(port, host)
            except OSError as error:
                trouble = error
            else:
                logger.info("metrics of this process: http://%s:%d/metrics", host, port)
                return port
    logger.error("metrics are not shown: no free port among %s: %s", conf.get("METRICS_PORTS"), trouble)
    return None


def close() -> None:
    """Gives the port back."""
    global _server
    with _lock:
        server, _server = _server, None
    if server is not None:
        server.shutdown()
        server.server_close()


def _after_fork() -> None:
    """The parent's port is the parent's."""
    global _lock, _server
    _lock = threading.Lock()
    if _server is not None:
        _server.socket.close()
        _server = None


os.register_at_fork(after_in_child=_after_fork)
