"""A judge on loopback that costs next to nothing, so that a benchmark measures its clients.

    python benchmarks/stub_judge.py [--delay 0.05] [--until TEXT]

Answers every chat completion with one verdict after ``--delay`` seconds and lists one model. It
reads no JSON: it takes a request's body up to ``--until`` for the conversation, and counts as a
miss each call whose conversation had no answer yet when it arrived, as a server's
prefix cache would. ``GET /counts`` tells calls, misses, the most calls in flight, the monotonic
time of the first call and the seconds from it to the last, and begins anew. Calls below
``/model/`` are answered and not counted: there the stub stands in for the model under test.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

_VERDICT = json.dumps(
    {"explanation": "The response names what the criterion asks for.", "criteria_met": True}
)
_COMPLETION = {
    "id": "stub", "object": "chat.completion", "created": 0, "model": "judge",
    "choices": [{"index": 0, "finish_reason": "stop",
                 "message": {"role": "assistant", "content": f"```json\n{_VERDICT}\n```"}}],
    "usage": {"prompt_tokens": 4000, "completion_tokens": 40, "total_tokens": 4040},
}  # fmt: skip
_MODELS = {"object": "list", "data": [{"id": "judge", "object": "model"}]}


def _response(body: object) -> bytes:
    content = json.dumps(body).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    return f"{head}\r\n\r\n".encode() + content


class Counts:
    """What the server has seen since it was last asked."""

    def __init__(self) -> None:
        self.answered: set[int] = set()
        self.calls = self.misses = self.in_flight = self.peak = 0
        self.first = self.last = 0.0

    def arrived(self, prefix: int) -> None:
        self.first = self.first or time.monotonic()
        self.calls += 1
        self.misses += prefix not in self.answered
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)

    def left(self, prefix: int) -> None:
        self.answered.add(prefix)
        self.in_flight -= 1
        self.last = time.monotonic()

    def record(self) -> dict[str, float]:
        return {"calls": self.calls, "misses": self.misses, "peak": self.peak,
                "first": self.first, "seconds": self.last - self.first}  # fmt: skip


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection, kept alive; bodies need a Content-Length."""

    reply = _response(_COMPLETION)
    models = _response(_MODELS)
    counts = Counts()
    delay = 0.0
    until = b"Criterion"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._buffer = bytearray()
        self._needed = 0

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= self._needed:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._buffer[:end]).lower()
            _, _, length = head.partition(b"content-length:")
            size = int(length.split(b"\r\n", 1)[0]) if length else 0
            self._needed = end + 4 + size
            if len(self._buffer) < self._needed:
                return
            body = bytes(self._buffer[end + 4 : self._needed])
            prefix = hash(body[: body.rfind(self.until)])
            del self._buffer[: self._needed]
            self._needed = 0
            self._answer(head, prefix)

    def _answer(self, head: bytes, prefix: int) -> None:
        if head.startswith(b"get /counts"):
            record = Connection.counts.record()
            Connection.counts = Counts()
            self._transport.write(_response(record))
        elif head.startswith(b"get "):
            self._transport.write(self.models)
        else:
            counts = None if head.startswith(b"post /model/") else Connection.counts
            if counts is not None:
                counts.arrived(prefix)
            loop = asyncio.get_running_loop()
            loop.call_later(self.delay, self._reply, counts, prefix)

    def _reply(self, counts: Counts | None, prefix: int) -> None:
        if counts is not None:
            counts.left(prefix)
        if not self._transport.is_closing():
            self._transport.write(self.reply)


async def serve(delay: float, until: str) -> None:
    Connection.delay, Connection.until = delay, until.encode()
    server = await asyncio.get_running_loop().create_server(
        Connection, "127.0.0.1", 0, backlog=2048
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay", type=float, default=0.05, help="seconds before each answer")
    parser.add_argument("--until", default="Criterion", help="where a conversation's part ends")
    chosen = parser.parse_args()
    asyncio.run(serve(chosen.delay, chosen.until))
