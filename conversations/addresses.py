"""Which addresses in a log are this site's own. Pure."""

from __future__ import annotations


def is_own(url: str) -> bool:
    """Whether a browser asks this site for it: a path, and no address that only begins like one."""
    return url.startswith("/") and not url.startswith(("//", "/\\"))
