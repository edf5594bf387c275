"""A stub judge: an OpenAI-compatible server on loopback that answers, or fails, as a test says.

A test passes a responder, a function from the `Received` call to the `Reply` it deserves:

    with StubServer(lambda call: Reply(verdict("Paris" in call.prompt))) as server:
        client = OpenAI(base_url=server.url, api_key="any", max_retries=0)
        ...
        assert server.received[0].model == "judge"

Run as a script it answers every call with one verdict, as a load target for benchmarks.
"""

import argparse
import asyncio
import json
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Literal

from aiohttp import web

CHAT_ROUTES: Final = (
    "/v1/chat/completions",
    "/openai/v1/chat/completions",
    "/openai/deployments/{deployment}/chat/completions",
)
RESPONSES_ROUTES: Final = ("/v1/responses", "/openai/v1/responses", "/openai/responses")
MODELS_ROUTES: Final = ("/v1/models", "/openai/v1/models")

MAX_BODY: Final = 300 * 1024**2  # more than a batch file may hold
SHUTDOWN_GRACE: Final = 0.05  # seconds for calls still open when the server stops
LINGER_ZERO: Final = struct.pack("ii", 1, 0)  # closing then sends RST instead of FIN
CREATED: Final = 1_700_000_000  # constant, so that equal calls get equal bodies


# --- What came in, and what to answer ------------------------------------------------------------


@dataclass(frozen=True)
class Received:
    """One completion call. Header names are in lower case."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    number: int

    @property
    def is_responses(self) -> bool:
        """Whether it came through the Responses API rather than chat completions."""
        return self.path.endswith("/responses")

    @property
    def model(self) -> str:
        """The model asked for; an Azure path may name it instead of the body."""
        _, _, tail = self.path.partition("/deployments/")
        return str(self.body.get("model") or tail.partition("/")[0])

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The chat messages, or the Responses `input` in the same form."""
        given = self.body.get("input" if self.is_responses else "messages")
        return [{"role": "user", "content": given}] if isinstance(given, str) else list(given or ())

    @property
    def prompt(self) -> str:
        """The text of all messages, joined by newlines."""
        return "\n".join(content_text(message.get("content")) for message in self.messages)


@dataclass(frozen=True)
class Reply:
    """What the server does with one call; the defaults are a prompt, empty, successful answer."""

    text: str | None = ""
    status: int = 200
    finish_reason: str = "stop"
    reasoning: str | None = None
    reasoning_field: Literal["reasoning_content", "reasoning"] = "reasoning_content"  # chat only
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0  # seconds before the answer, or before the fault
    error: dict[str, Any] | None = None  # with status 200: beside `choices: null`
    raw: bytes | None = None  # this body as it is, instead of a built one
    content_type: str = "application/json"
    fault: Literal["reset", "hang", "close"] | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


Responder = Callable[[Received], Reply]


# --- Replies that tests need often ---------------------------------------------------------------


def verdict(met: bool, explanation: str = "The response does what the criterion asks.") -> str:
    """The fenced block in which a rubric judge gives its verdict."""
    found = {"explanation": explanation, "criteria_met": met}
    return f"```json\n{json.dumps(found, indent=2, ensure_ascii=False)}\n```"


def openai_error(message: str, kind: str, *, code: str | None, param: str | None = None) -> Any:
    """The object under `error` in OpenAI's failures."""
    return {"message": message, "type": kind, "param": param, "code": code}


def unsupported_parameter(name: str) -> Reply:
    """What a reasoning model answers to `max_tokens`, `temperature`, `stop`."""
    hint = " Use 'max_completion_tokens' instead." if name == "max_tokens" else ""
    message = f"Unsupported parameter: '{name}' is not supported with this model.{hint}"
    kind, code = "invalid_request_error", "unsupported_parameter"
    return Reply(status=400, error=openai_error(message, kind, code=code, param=name))


def rate_limited(retry_after: str | None = None) -> Reply:
    """A 429; `retry_after` is the header's value, seconds or an HTTP date."""
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    error = openai_error("Rate limit reached.", "requests", code="rate_limit_exceeded")
    return Reply(status=429, headers=headers, error=error)


def rate_limited_inside_200() -> Reply:
    """The rate limit of some gateways: a success without choices, the 429 in the body."""
    return Reply(error={"message": "Rate limit exceeded.", "code": 429})


def content_filtered() -> Reply:
    """The prompt was refused: final, whatever the number of retries."""
    message = "The response was filtered due to the prompt triggering the content policy."
    error = openai_error(message, "invalid_request_error", code="content_filter", param="prompt")
    return Reply(status=400, error=error)


def unknown_model(name: str) -> Reply:
    message = f"The model `{name}` does not exist or you do not have access to it."
    error = openai_error(message, "invalid_request_error", code="model_not_found")
    return Reply(status=404, error=error)


def server_error(status: int = 500) -> Reply:
    message = "The server had an error while processing your request."
    return Reply(status=status, error=openai_error(message, "server_error", code=None))


def no_such_route() -> Reply:
    """What a local server without the Responses API says to it: FastAPI's 404."""
    return Reply(status=404, raw=b'{"detail":"Not Found"}')


def unauthorized() -> Reply:
    """A 401. OpenAI's own message quotes the key; this one must not, so it cannot reach a log."""
    error = openai_error(
        "Incorrect API key provided.", "invalid_request_error", code="invalid_api_key"
    )
    return Reply(status=401, error=error)


# --- From a reply to bytes -----------------------------------------------------------------------


def content_text(content: Any) -> str:
    """The text of one message's content: a string, or a list of parts that may hold text."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


@dataclass(frozen=True)
class Tokens:
    prompt: int
    cached: int
    completion: int
    reasoning: int


def tokens_of(call: Received, reply: Reply) -> Tokens:
    """The counts to report: the reply's own, or four characters a token."""
    reasoning = len(reply.reasoning or "") // 4
    prompt, completion = reply.prompt_tokens, reply.completion_tokens
    return Tokens(
        prompt=len(call.prompt) // 4 if prompt is None else prompt,
        cached=reply.cached_tokens or 0,
        completion=len(reply.text or "") // 4 + reasoning if completion is None else completion,
        reasoning=reasoning,
    )


def chat_body(call: Received, reply: Reply) -> dict[str, Any]:
    """A chat completion."""
    tokens = tokens_of(call, reply)
    message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None}
    if reply.reasoning is not None:
        message[reply.reasoning_field] = reply.reasoning
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": reply.finish_reason,
        "logprobs": None,
    }
    return {
        "id": f"chatcmpl-{call.number}",
        "object": "chat.completion",
        "created": CREATED,
        "model": call.model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": tokens.prompt,
            "prompt_tokens_details": {"cached_tokens": tokens.cached},
            "completion_tokens": tokens.completion,
            "completion_tokens_details": {"reasoning_tokens": tokens.reasoning},
            "total_tokens": tokens.prompt + tokens.completion,
        },
    }


def incomplete_reason(finish_reason: str) -> str | None:
    """Why a Responses answer is incomplete, in that API's words; None when it is complete."""
    if finish_reason == "length":
        return "max_output_tokens"
    return "content_filter" if finish_reason == "content_filter" else None


def output_items(call: Received, reply: Reply, status: str) -> list[dict[str, Any]]:
    """The `output` of a Responses answer: reasoning first, and no message without text."""
    items: list[dict[str, Any]] = []
    if reply.reasoning is not None:
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        items.append({"type": "reasoning", "id": f"rs_{call.number}", "summary": summary})
    if reply.text is not None:
        content = [{"type": "output_text", "text": reply.text, "annotations": []}]
        message = {"type": "message", "id": f"msg_{call.number}", "role": "assistant"}
        items.append({**message, "status": status, "content": content})
    return items


def responses_body(call: Received, reply: Reply) -> dict[str, Any]:
    """A Responses answer."""
    tokens = tokens_of(call, reply)
    reason = incomplete_reason(reply.finish_reason)
    status = "completed" if reason is None else "incomplete"
    return {
        "id": f"resp_{call.number}",
        "object": "response",
        "created_at": CREATED,
        "model": call.model,
        "status": status,
        "error": None,
        "incomplete_details": None if reason is None else {"reason": reason},
        "instructions": call.body.get("instructions"),
        "metadata": {},
        "output": output_items(call, reply, status),
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {
            "input_tokens": tokens.prompt,
            "input_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": 0},
            "output_tokens": tokens.completion,
            "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
            "total_tokens": tokens.prompt + tokens.completion,
        },
    }


def reply_object(call: Received, reply: Reply) -> dict[str, Any]:
    """The JSON object to answer with, when the reply has no raw body."""
    if reply.status >= 400:
        fallback = openai_error(f"Stub error {reply.status}.", "stub_error", code=None)
        return {"error": fallback if reply.error is None else reply.error}
    if reply.error is not None:
        return {"choices": None, "error": reply.error}
    return responses_body(call, reply) if call.is_responses else chat_body(call, reply)


def reply_body(call: Received, reply: Reply) -> bytes:
    if reply.raw is not None:
        return reply.raw
    # json.dumps escapes all that is not ASCII, so a lone surrogate in the text can travel
    return json.dumps(reply_object(call, reply)).encode()


def models_body(models: Sequence[str]) -> dict[str, Any]:
    """A list of models."""
    common = {"object": "model", "created": CREATED, "owned_by": "stub"}
    return {"object": "list", "data": [{"id": name, **common} for name in models]}


def is_authorized(headers: dict[str, str], api_key: str | None) -> bool:
    """Whether OpenAI's or Azure's header holds the key that is asked for, if one is."""
    if api_key is None:
        return True
    return headers.get("authorization") == f"Bearer {api_key}" or headers.get("api-key") == api_key


def lower_headers(request: web.Request) -> dict[str, str]:
    return {name.lower(): value for name, value in request.headers.items()}


def parsed_object(body: bytes) -> dict[str, Any] | None:
    """The body as a JSON object, None when it is anything else."""
    try:
        parsed = json.loads(body)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def drop_connection(request: web.Request, *, reset: bool) -> None:
    """End the connection before any byte of an answer, with an RST or in good order."""
    transport = request.transport
    if transport is None:  # the client went first
        return
    if not reset:
        transport.close()
        return
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
    transport.abort()


# --- The server ----------------------------------------------------------------------------------


class StubServer:
    """The server, running while its `with` block does.

    `responder` runs in the server's event loop, so it must be quick, and may be replaced at any
    time. An exception in it answers 500, and is raised again when the `with` block ends well.
    With `api_key` set, a call without it is recorded and gets 401. `models=None` hides the list of
    models, as some servers do. `record=False` keeps no calls, for long benchmarks.
    """

    def __init__(
        self,
        responder: Responder,
        *,
        models: Sequence[str] | None = ("judge",),
        api_key: str | None = None,
        port: int = 0,
        record: bool = True,
    ) -> None:
        self.responder = responder
        self.received: list[Received] = []
        self.model_lists = 0
        self.peak = 0
        self._models = models
        self._api_key = api_key
        self._port = port
        self._record = record
        self._arrived = 0
        self._in_flight = 0
        self._failure: BaseException | None = None
        self._lock = threading.Lock()  # tests reset from their own thread
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="stub-server", daemon=True)

    @property
    def origin(self) -> str:
        """Scheme, host and port: what AzureOpenAI takes as `azure_endpoint`."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        """What OpenAI takes as `base_url`."""
        return f"{self.origin}/v1"

    def reset(self) -> None:
        """Forget the calls so far; the next one is number 0 again."""
        with self._lock:
            self.received = []
            self.model_lists = self.peak = self._arrived = 0

    def __enter__(self) -> "StubServer":
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if error is None and self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = self._failure or error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        # Without handler_cancellation a call whose client has left would count as in flight
        runner = web.AppRunner(
            self._app(),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=SHUTDOWN_GRACE,
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port, backlog=1024).start()
        self._port = runner.addresses[0][1]
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY)
        app.add_routes(web.post(route, self._completion) for route in CHAT_ROUTES)
        app.add_routes(web.post(route, self._completion) for route in RESPONSES_ROUTES)
        app.add_routes(web.get(route, self._list_models) for route in MODELS_ROUTES)
        return app

    async def _list_models(self, request: web.Request) -> web.Response:
        with self._lock:
            self.model_lists += 1
        if not is_authorized(lower_headers(request), self._api_key):
            return web.json_response({"error": unauthorized().error}, status=401)
        if self._models is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response(models_body(self._models))

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        with self._lock:
            self._in_flight += 1
            self.peak = max(self.peak, self._in_flight)
        try:
            return await self._answer(request)
        finally:  # before the answer is written: a client's next call never overlaps its last
            with self._lock:
                self._in_flight -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = parsed_object(await request.read())
        if body is None:
            message = "We could not parse the JSON body of your request."
            error = openai_error(message, "invalid_request_error", code=None)
            return web.json_response({"error": error}, status=400)
        call = self._received(request, body)
        reply = self._reply(call)
        if reply.delay:
            await asyncio.sleep(reply.delay)
        if reply.fault is None:
            headers = {"Content-Type": reply.content_type, **reply.headers}
            return web.Response(body=reply_body(call, reply), status=reply.status, headers=headers)
        if reply.fault == "hang":
            assert self._stop is not None
            await self._stop.wait()
        drop_connection(request, reset=reply.fault == "reset")
        return web.Response()  # goes nowhere

    def _received(self, request: web.Request, body: dict[str, Any]) -> Received:
        with self._lock:
            call = Received(request.path, lower_headers(request), body, self._arrived)
            self._arrived += 1
            if self._record:
                self.received.append(call)
        return call

    def _reply(self, call: Received) -> Reply:
        if not is_authorized(call.headers, self._api_key):
            return unauthorized()
        try:
            return self.responder(call)
        except Exception as error:
            self._failure = self._failure or error
            return Reply(status=500, error=openai_error(repr(error), "stub_error", code=None))


# --- As a load target ----------------------------------------------------------------------------


def calls_per_second(arrivals: Sequence[float]) -> float:
    """The mean rate between the first and the last arrival, idle time around them left out."""
    if len(arrivals) < 2 or arrivals[-1] == arrivals[0]:
        return 0.0
    return (len(arrivals) - 1) / (arrivals[-1] - arrivals[0])


def main(argv: Sequence[str] | None = None) -> None:
    """Answer every call with one verdict until SIGTERM or SIGINT, then print the rate."""
    parser = argparse.ArgumentParser(description="A stub judge on loopback, for benchmarks.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each answer")
    options = parser.parse_args(argv)

    reply = Reply(verdict(True), delay=options.delay)
    arrivals: list[float] = []

    def respond(_: Received) -> Reply:
        arrivals.append(time.monotonic())
        return reply

    # Blocked before the server's thread starts, which inherits the mask: only sigwait sees them
    stopping = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stopping)
    with StubServer(respond, port=options.port, record=False) as server:
        print(server.url, flush=True)
        signal.sigwait(stopping)
        rate, peak = calls_per_second(arrivals), server.peak
    print(f"{len(arrivals)} calls, {rate:.0f} requests/s, at most {peak} in flight", flush=True)


if __name__ == "__main__":
    main()
