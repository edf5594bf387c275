"""A stub of OpenAI's Batch API: files, and batches that are done as a test says.

Every line is answered by the responder of the `StubServer` that this is, in reverse order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from stub_server import CREATED, Received, Reply, StubServer, parsed_object, reply_object


@dataclass
class Ending:
    """How a batch ends: its status, after how many polls, and how many lines are done by then."""

    status: str = "completed"
    polls: int = 1
    lines: int | None = None
    message: str = ""


@dataclass
class Made:
    """A batch, and what it has come to."""

    name: str
    given: dict[str, Any]
    ending: Ending
    polled: int = 0
    output: str | None = None
    errors: str | None = None
    counts: dict[str, int] = field(default_factory=dict)
    ended: bool = False


class BatchServer(StubServer):
    """`endings` are those of the batches in the order in which they are made; then all complete.

    `batched` counts the calls that were made for batches. `faults` are statuses that the next
    requests to the Batch API get instead of an answer, `odd` are bodies that they get with 200;
    `lost` lets that many batches be made without an answer. `missing` are files and batches that
    the API does not find, `status` is what it says of every batch that has not ended, `strangers`
    are lines that come with the replies.
    """

    def __init__(self, *args: Any, endings: Sequence[Ending] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.files: dict[str, bytes] = {}
        self.batches: list[Made] = []
        self.batched = 0
        self.faults: list[int] = []
        self.odd: list[bytes] = []
        self.missing: set[str] = set()
        self.status = "in_progress"
        self.strangers: list[dict[str, Any]] = []
        self.lost = 0
        self.hold = False
        self._endings = list(endings)

    def _app(self) -> web.Application:
        app = super()._app()
        app.middlewares.append(self._faulty)
        app.add_routes([
            web.post("/v1/files", self._upload),
            web.get("/v1/files/{name}/content", self._content),
            web.post("/v1/batches", self._create),
            web.get("/v1/batches", self._list),
            web.get("/v1/batches/{name}", self._retrieve),
        ])  # fmt: skip
        return app

    @web.middleware
    async def _faulty(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.faults and request.path.startswith(("/v1/files", "/v1/batches")):
            status = self.faults.pop(0)
            return web.json_response({"error": {"message": f"a fault of {status}"}}, status=status)
        if self.odd and request.path.startswith(("/v1/files", "/v1/batches")):
            return web.Response(body=self.odd.pop(0), content_type="application/json")
        if request.match_info.get("name") in self.missing:
            return web.json_response({"error": {"message": "no such thing"}}, status=404)
        return await handler(request)

    async def _upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        assert form["purpose"] == "batch"
        uploaded = form["file"]
        assert isinstance(uploaded, web.FileField)
        return web.json_response(self._file(uploaded.file.read()))

    def _file(self, content: bytes) -> dict[str, Any]:
        name = f"file-{len(self.files)}"
        self.files[name] = content
        return {
            "id": name, "object": "file", "bytes": len(content), "created_at": CREATED,
            "filename": "requests.jsonl", "purpose": "batch", "status": "processed",
        }  # fmt: skip

    async def _content(self, request: web.Request) -> web.Response:
        return web.Response(body=self.files[request.match_info["name"]])

    async def _create(self, request: web.Request) -> web.Response:
        given = await request.json()
        assert given["completion_window"] == "24h"
        lines = self.files[given["input_file_id"]].splitlines()
        assert {json.loads(line)["url"] for line in lines} == {given["endpoint"]}
        ending = self._endings.pop(0) if self._endings else Ending()
        self.batches.append(Made(f"batch_{len(self.batches)}", given, ending))
        if self.lost:
            self.lost -= 1
            return web.json_response({"error": {"message": "lost"}}, status=500)
        return web.json_response(self._shown(self.batches[-1]))

    async def _list(self, _: web.Request) -> web.Response:
        data = [self._shown(made) for made in reversed(self.batches)]
        return web.json_response({"object": "list", "data": data, "has_more": False})

    async def _retrieve(self, request: web.Request) -> web.Response:
        found = [made for made in self.batches if made.name == request.match_info["name"]]
        if not found:
            return web.json_response({"error": {"message": "no such batch"}}, status=404)
        (made,) = found
        made.polled += 1
        if not self.hold and made.polled > made.ending.polls and not made.ended:
            self._end(made)
        return web.json_response(self._shown(made))

    def _end(self, made: Made) -> None:
        made.ended = True
        if made.ending.status == "failed":
            return
        lines = [json.loads(line) for line in self.files[made.given["input_file_id"]].splitlines()]
        done = lines if made.ending.lines is None else lines[: made.ending.lines]
        output, errors = [], []
        for number, line in enumerate(done):
            body = parsed_object(json.dumps(line["body"]).encode())
            assert body is not None
            call = Received(line["url"], {}, body, number)
            self.batched += 1
            reply: Reply = self.responder(call)
            response = {"status_code": reply.status, "request_id": f"r{number}",
                        "body": reply_object(call, reply)}  # fmt: skip
            row = {"id": f"l{number}", "custom_id": line["custom_id"], "response": response,
                   "error": None}  # fmt: skip
            (output if reply.status == 200 else errors).append(row)
        for line in lines[len(done) :]:
            error = {"code": "batch_expired", "message": "This request could not be executed."}
            errors.append({"id": "l", "custom_id": line["custom_id"], "response": None,
                           "error": error})  # fmt: skip
        output += self.strangers
        made.counts = {"total": len(lines), "completed": len(output), "failed": len(errors)}
        made.output, made.errors = self._written(output), self._written(errors)

    def _written(self, rows: list[dict[str, Any]]) -> str | None:
        text = "".join(json.dumps(row) + "\n" for row in reversed(rows))
        return self._file(text.encode())["id"] if rows else None

    def _shown(self, made: Made) -> dict[str, Any]:
        status = made.ending.status if made.ended else self.status
        errors = {"object": "list", "data": [{"code": "x", "message": made.ending.message}]}
        return {
            "id": made.name, "object": "batch", "endpoint": made.given["endpoint"],
            "input_file_id": made.given["input_file_id"], "completion_window": "24h",
            "status": status, "created_at": CREATED, "metadata": made.given.get("metadata"),
            "output_file_id": made.output, "error_file_id": made.errors,
            "errors": errors if status == "failed" else None,
            "request_counts": made.counts or None,
        }  # fmt: skip


# --- a batch runner without an API ----------------------------------------------------------------


def answered(
    requests: Path, respond: Callable[[Received], Reply], shape: str = "openai"
) -> list[dict[str, Any]]:
    """The result lines of a batch runner, as OpenAI's API or vLLM's runner write them."""
    lines = []
    for number, text in enumerate(requests.read_text("utf-8").splitlines()):
        request = json.loads(text)
        call = Received(request["url"], {}, request["body"], number)
        reply = respond(call)
        body: dict[str, Any] = {
            "object": "chat.completion", "model": "judge",
            "choices": [{"index": 0, "finish_reason": reply.finish_reason,
                         "message": {"role": "assistant", "content": reply.text,
                                     "reasoning": "thought"}}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        }  # fmt: skip
        response: dict[str, Any] = {"status_code": 200, "request_id": "r", "body": body}
        error: Any = None
        if reply.status != 200 and shape == "vllm":
            response, error = {"status_code": 400, "request_id": "r", "body": None}, "no room"
        elif reply.status != 200:
            response = {"status_code": reply.status, "body": {"error": reply.error}}
        lines.append({"id": "x", "custom_id": request["custom_id"], "response": response,
                      "error": error})  # fmt: skip
    return lines


def write_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path
