"""A model's endpoint that repeats what it is told, and refuses in the same words."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def echoing() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Its base URL, and the headers of the requests that came."""
    came: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            came.append(dict(self.headers.items()))
            said = asked["messages"][-1]["content"]
            refused = "refuse" in said
            answer: Any = {
                "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "echo-1",
                "choices": [
                    {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
                ],
                "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8},
            }  # fmt: skip
            if refused:
                answer = {"error": {"message": f"cannot answer {said}", "type": "invalid_request_error"}}
            body = json.dumps(answer).encode()
            self.send_response(400 if refused else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", came
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
