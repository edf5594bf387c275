"""A small HTTP server on loopback for what is not OpenAI's protocol: one function a route."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

Route = Callable[[dict[str, Any]], Any]


@dataclass
class PlainServer:
    """Answers ``"POST /path"`` or ``"GET /path"`` with the JSON of its function's result."""

    routes: Mapping[str, Route]
    received: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __enter__(self) -> PlainServer:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def bodies(self, route: str) -> list[dict[str, Any]]:
        """What was sent to ``route``, in order."""
        return [body for name, body in self.received if name == route]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(f"GET {self.path}", {})

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                self._answer(f"POST {self.path}", json.loads(self.rfile.read(length)))

            def _answer(self, name: str, body: dict[str, Any]) -> None:
                outer.received.append((name, body))
                route = outer.routes.get(name)
                found = {"detail": "Not Found"} if route is None else route(body)
                payload = json.dumps(found).encode()
                self.send_response(404 if route is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        return Handler
