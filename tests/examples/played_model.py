"""A model whose answers a test gives one after another, as a stream of Chat Completions, on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: A list is of calls, ``(id, name, args)``; None breaks off in the middle.
Answer = str | list[tuple[str, str, dict[str, Any]]] | None


@contextmanager
def played_model(*answers: Answer) -> Iterator[str]:
    """The base address of a model that gives these answers, the last of them for ever."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            answer = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for choice in _choices(answer):
                chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "played"}
                self.wfile.write(f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, format: str, *args: Any) -> None: ...

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}/v1"
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def _choices(answer: Answer) -> Iterator[dict[str, Any]]:
    if answer is None:
        yield {"index": 0, "delta": {"content": "I was about to"}, "finish_reason": None}
    elif isinstance(answer, str):
        yield {"index": 0, "delta": {"content": answer}, "finish_reason": "stop"}
    else:
        calls = [
            {
                "index": at,
                "id": id,
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(args)},
            }
            for at, (id, name, args) in enumerate(answer)
        ]
        yield {"index": 0, "delta": {"tool_calls": calls}, "finish_reason": "tool_calls"}
