"""Files as small as they may be that begin as their kind does, in base64."""

from __future__ import annotations

import base64


def b64(body: bytes) -> str:
    return base64.b64encode(body).decode("ascii")


PNG = b64(b"\x89PNG\r\n\x1a\n" + bytes(8))
JPEG = b64(b"\xff\xd8\xff\xe0" + bytes(8))
GIF = b64(b"GIF89a" + bytes(8))
WEBP = b64(b"RIFF\x04\0\0\0WEBPVP8 ")
TIFF = b64(b"II*\0" + bytes(8))
SVG = b64(b"<svg xmlns='http://www.w3.org/2000/svg'/>")
PDF = b64(b"%PDF-1.7\n")

#: How each type of picture begins.
BEGINNINGS = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}
