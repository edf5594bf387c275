"""The part of the Hugging Face Hub's HTTP API that fetching a data set takes, on loopback."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from loopback import answering, serving


@dataclass
class Hub:
    """One data set. ``revisions`` are names of commits, ``commits`` the files of each."""

    repository: str
    revisions: Mapping[str, str]
    commits: Mapping[str, Mapping[str, bytes]]
    origin: str = ""
    requested: list[str] = field(default_factory=list)

    @property
    def downloaded(self) -> list[str]:
        """The files whose content was sent, by their paths in the repository."""
        prefix = f"GET /datasets/{self.repository}/resolve/"
        sent = [line.removeprefix(prefix) for line in self.requested if line.startswith(prefix)]
        return [path.partition("/")[2] for path in sent]

    def answer(self, method: str, address: str) -> tuple[int, dict[str, str], bytes]:
        path = unquote(urlsplit(address).path)
        self.requested.append(f"{method} {path}")
        api, files = f"/api/datasets/{self.repository}/", f"/datasets/{self.repository}/resolve/"
        if not path.startswith((api, files)):
            code, message = "RepoNotFound", "Repository not found"
            return 404, {"X-Error-Code": code, "X-Error-Message": message}, b'{"error": "no repo"}'
        where, _, rest = path.removeprefix(api).removeprefix("revision/").partition("/")
        if path.startswith(files):
            where, _, rest = path.removeprefix(files).partition("/")
        elif where == "tree":
            where, _, _ = rest.partition("/")
        commit = self.revisions.get(where, where)
        if commit not in self.commits:
            code, message = "RevisionNotFound", f"Invalid rev id: {where}"
            return 404, {"X-Error-Code": code, "X-Error-Message": message}, b"{}"
        found = self.commits[commit]
        if path.startswith(files):
            content = found[rest]
            etag = f'"{hashlib.sha1(content).hexdigest()}"'
            return 200, {"X-Repo-Commit": commit, "ETag": etag}, content
        if path.startswith(f"{api}tree/"):
            listing: object = [
                {"type": "file", "path": name, "size": len(content), "oid": "0" * 40}
                for name, content in found.items()
            ]
        else:
            siblings = [{"rfilename": name} for name in found]
            listing = {"id": self.repository, "sha": commit, "siblings": siblings}
        return 200, {"Content-Type": "application/json"}, json.dumps(listing).encode()


@contextmanager
def serve_hub(hub: Hub) -> Iterator[Hub]:
    """Serve ``hub`` inside the block; afterwards its address refuses connections."""
    handler = answering(lambda method, address, _: hub.answer(method, address))
    with serving(handler) as hub.origin:
        yield hub
