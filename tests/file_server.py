"""A folder served over HTTP on loopback, as a stand-in for a repository's raw files."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

from loopback import serving


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

    with serving(functools.partial(Handler, directory=str(folder))) as found.origin:
        yield found
