"""A folder served over HTTP on loopback, as a stand-in for a repository's raw files."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class FileServer:
    """``origin`` is its address, ``requested`` the paths that were asked for, in order."""

    origin: str
    requested: list[str] = field(default_factory=list)


@contextmanager
def serve(folder: Path) -> Iterator[FileServer]:
    """Serve ``folder`` inside the block; afterwards its address refuses connections."""
    found = FileServer("")

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            found.requested.append(self.path)
            super().do_GET()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    handler = functools.partial(Handler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        found.origin = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()
