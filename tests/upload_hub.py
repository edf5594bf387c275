"""The part of the Hugging Face Hub's HTTP API that uploading to data sets takes, on loopback."""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from loopback import answering, serving

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_REPOSITORY = re.compile(r"/api/datasets/(?P<name>[^/]+/[^/]+)(?P<rest>/.*)?")


@dataclass
class UploadHub:
    """``files`` holds what was committed, by data set and path; ``private`` those that are so."""

    origin: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=lambda: defaultdict(dict))
    private: dict[str, bool] = field(default_factory=dict)

    def answer(self, method: str, address: str, body: bytes) -> tuple[int, dict[str, Any]]:
        path = urlsplit(address).path
        if (method, path) == ("POST", "/api/repos/create"):
            given = json.loads(body)
            name = f"{given['organization']}/{given['name']}"
            # Its client says it as ``private``, a newer one as ``visibility``.
            self.private[name] = given.get("private", given.get("visibility") == "private")
            return 200, {"url": f"{self.origin}/datasets/{name}"}
        match = _REPOSITORY.fullmatch(path)
        if match is None:
            return 404, {"error": f"{method} {path}"}
        name, rest = match["name"], match["rest"] or ""
        if method == "POST" and rest.startswith("/preupload/"):
            return 200, {
                "files": [
                    {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                    for file in json.loads(body)["files"]
                ]
            }
        if method == "POST" and rest.startswith("/commit/"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    value = line["value"]
                    self.files[name][value["path"]] = base64.b64decode(value["content"])
            where = f"{self.origin}/datasets/{name}/commit/{COMMIT}"
            return 200, {"success": True, "commitOid": COMMIT, "commitUrl": where}
        siblings = [{"rfilename": file} for file in self.files[name]]
        return 200, {"id": name, "sha": COMMIT, "private": True, "siblings": siblings}


@contextmanager
def serve_upload_hub() -> Iterator[UploadHub]:
    """A hub inside the block."""
    hub = UploadHub()

    def answer(method: str, address: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        status, said = hub.answer(method, address, body)
        return status, {"Content-Type": "application/json"}, json.dumps(said).encode()

    with serving(answering(answer)) as hub.origin:
        yield hub
