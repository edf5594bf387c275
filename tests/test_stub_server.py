"""The stub judge, seen through the client that the project uses."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from stub_server import (
    Received,
    Reply,
    StubServer,
    calls_per_second,
    content_filtered,
    no_such_route,
    rate_limited,
    rate_limited_inside_200,
    server_error,
    unknown_model,
    unsupported_parameter,
    verdict,
)

KEY = "sk-the-right-key"


@pytest.fixture
def server() -> Iterator[StubServer]:
    with StubServer(lambda call: Reply(f"to: {call.prompt}")) as running:
        yield running


def sync_client(server: StubServer, *, timeout: float = 5, key: str = KEY) -> openai.OpenAI:
    quick = openai.DefaultHttpxClient(verify=False)  # loading certificates takes 60 ms a client
    return openai.OpenAI(
        base_url=server.url, api_key=key, max_retries=0, timeout=timeout, http_client=quick
    )


def chat(server: StubServer, text: str = "hi", *, timeout: float = 5) -> ChatCompletion:
    with sync_client(server, timeout=timeout) as client:
        return client.chat.completions.create(
            model="judge", messages=[{"role": "user", "content": text}]
        )


def respond(server: StubServer, text: Any = "hi") -> Response:
    with sync_client(server) as client:
        return client.responses.create(model="judge", input=text)


def failure_of(server: StubServer, reply: Reply) -> openai.APIStatusError:
    server.responder = lambda _: reply
    with pytest.raises(openai.APIStatusError) as caught:
        chat(server)
    return caught.value


def port_of(server: StubServer) -> int:
    return int(server.origin.rpartition(":")[2])


def send_bare_call(server: StubServer) -> socket.socket:
    """A call without a client that interprets what comes back."""
    connection = socket.create_connection(("127.0.0.1", port_of(server)), timeout=5)
    connection.sendall(b"POST /v1/responses HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
    return connection


# --- Successes -----------------------------------------------------------------------------------


def test_a_chat_completion_is_complete_and_recorded(server: StubServer) -> None:
    answer = chat(server, "hello there")
    ChatCompletion.model_validate(answer.to_dict())  # the client itself validates nothing
    assert answer.choices[0].message.content == "to: hello there"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 3)
    (call,) = server.received
    assert (call.path, call.model, call.number) == ("/v1/chat/completions", "judge", 0)
    assert call.headers["authorization"] == f"Bearer {KEY}"
    assert call.messages == [{"role": "user", "content": "hello there"}]


def test_a_responses_answer_is_complete_and_recorded(server: StubServer) -> None:
    answer = respond(server, "hello there")
    Response.model_validate(answer.to_dict())
    assert (answer.status, answer.output_text) == ("completed", "to: hello there")
    (call,) = server.received
    assert (call.path, call.model, call.prompt) == ("/v1/responses", "judge", "hello there")
    assert call.messages == [{"role": "user", "content": "hello there"}]


def test_prompts_join_messages_and_text_parts(server: StubServer) -> None:
    parts = [{"type": "input_text", "text": "b"}, {"type": "input_text", "text": "c"}]
    respond(server, [{"role": "system", "content": "a"}, {"role": "user", "content": parts}])
    assert server.received[0].prompt == "a\nbc"


def test_usage_can_be_set(server: StubServer) -> None:
    server.responder = lambda _: Reply(prompt_tokens=2000, completion_tokens=7, cached_tokens=1024)
    chat_usage, usage = chat(server).usage, respond(server).usage
    assert chat_usage is not None
    assert chat_usage.prompt_tokens_details is not None
    assert chat_usage.prompt_tokens_details.cached_tokens == 1024
    assert (chat_usage.prompt_tokens, chat_usage.total_tokens) == (2000, 2007)
    assert usage is not None
    assert usage.input_tokens_details.cached_tokens == 1024
    assert (usage.input_tokens, usage.output_tokens) == (2000, 7)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thinking_that_eats_the_cap(
    server: StubServer, field: Literal["reasoning_content", "reasoning"]
) -> None:
    server.responder = lambda _: Reply(
        None, finish_reason="length", reasoning="Let me see", reasoning_field=field
    )
    (choice,) = chat(server).choices
    assert (choice.message.content, choice.finish_reason) == (None, "length")
    assert getattr(choice.message, field) == "Let me see"
    answer = respond(server)
    Response.model_validate(answer.to_dict())
    assert (answer.status, answer.output_text) == ("incomplete", "")
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert [item.type for item in answer.output] == ["reasoning"]


def test_odd_characters_and_long_prompts_travel(server: StubServer) -> None:
    text = "NUL \0, surrogate \ud800, العربية\u200f, <script>"
    server.responder = lambda _: Reply(text)
    assert chat(server, "法" * 2_000_000).choices[0].message.content == text
    assert len(server.received[0].prompt) == 2_000_000


def test_verdict_is_a_fenced_object() -> None:
    lines = verdict(False, "No “date”.").splitlines()
    assert (lines[0], lines[-1]) == ("```json", "```")
    found = json.loads("\n".join(lines[1:-1]))
    assert found == {"criteria_met": False, "explanation": "No “date”."}


# --- Clients and addresses -----------------------------------------------------------------------


def test_async_clients_over_both_transports(server: StubServer) -> None:
    async def ask(client: openai.AsyncOpenAI) -> tuple[str | None, str, list[str]]:
        async with client:
            completion = await client.chat.completions.create(
                model="judge", messages=[{"role": "user", "content": "a"}]
            )
            answer = await client.responses.create(model="judge", input="b")
            models = [model.id async for model in client.models.list()]
            return completion.choices[0].message.content, answer.output_text, models

    for transport in (openai.DefaultAsyncHttpxClient, openai.DefaultAioHttpClient):
        client = openai.AsyncOpenAI(base_url=server.url, api_key=KEY, http_client=transport())
        assert asyncio.run(ask(client)) == ("to: a", "to: b", ["judge"])


def test_azure_addresses_by_deployment(server: StubServer) -> None:
    with openai.AzureOpenAI(
        azure_endpoint=server.origin, api_key=KEY, api_version="2025-04-01-preview"
    ) as client:
        client.chat.completions.create(
            model="gpt-mine", messages=[{"role": "user", "content": "a"}]
        )
        client.responses.create(model="gpt-mine", input="b")
    first, second = server.received
    assert first.path == "/openai/deployments/gpt-mine/chat/completions"
    assert Received(first.path, {}, {}, 0).model == "gpt-mine"
    assert second.path == "/openai/responses"
    assert first.headers["api-key"] == KEY


def test_azure_v1_addresses(server: StubServer) -> None:
    with openai.OpenAI(base_url=f"{server.origin}/openai/v1", api_key=KEY) as client:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])
        client.responses.create(model="m", input="b")
    paths = [call.path for call in server.received]
    assert paths == ["/openai/v1/chat/completions", "/openai/v1/responses"]


def test_models_are_listed_and_counted(server: StubServer) -> None:
    with sync_client(server) as client:
        assert [model.id for model in client.models.list()] == ["judge"]
    assert server.model_lists == 1
    assert server.received == []


def test_models_can_be_hidden() -> None:
    with (
        StubServer(lambda _: Reply(), models=None) as server,
        sync_client(server) as client,
        pytest.raises(openai.NotFoundError),
    ):
        client.models.list()


# --- Refusals ------------------------------------------------------------------------------------


def test_another_key_is_refused_and_not_echoed() -> None:
    with StubServer(lambda _: Reply("yes"), api_key=KEY) as server:
        assert chat(server).choices[0].message.content == "yes"
        with openai.AzureOpenAI(
            azure_endpoint=server.origin, api_key=KEY, api_version="2025-04-01-preview"
        ) as azure:
            azure.responses.create(model="judge", input="a")
        with sync_client(server, key="sk-another") as client:
            for call in (
                lambda: client.models.list(),
                lambda: client.responses.create(model="judge", input="a"),
            ):
                with pytest.raises(openai.AuthenticationError) as caught:
                    call()
                assert caught.value.code == "invalid_api_key"
                assert "sk-" not in caught.value.response.text
        assert [call.number for call in server.received] == [0, 1, 2]


@pytest.mark.parametrize(
    ("reply", "status", "code", "param"),
    [
        (unsupported_parameter("max_tokens"), 400, "unsupported_parameter", "max_tokens"),
        (content_filtered(), 400, "content_filter", "prompt"),
        (unknown_model("judge-9"), 404, "model_not_found", None),
        (rate_limited(), 429, "rate_limit_exceeded", None),
        (server_error(), 500, None, None),
        (Reply(status=503), 503, None, None),
    ],
)
def test_failures_in_openais_shape(
    server: StubServer, reply: Reply, status: int, code: str | None, param: str | None
) -> None:
    error = failure_of(server, reply)
    assert (error.status_code, error.code, error.param) == (status, code, param)


def test_retry_after_is_visible(server: StubServer) -> None:
    assert failure_of(server, rate_limited("2")).response.headers["retry-after"] == "2"
    assert "retry-after" not in failure_of(server, rate_limited()).response.headers


def test_a_server_without_the_responses_api(server: StubServer) -> None:
    server.responder = lambda call: no_such_route() if call.is_responses else Reply("yes")
    assert chat(server).choices[0].message.content == "yes"
    with pytest.raises(openai.NotFoundError):
        respond(server)


def test_a_rate_limit_inside_a_success(server: StubServer) -> None:
    server.responder = lambda _: rate_limited_inside_200()
    answer: Any = chat(server)
    assert answer.choices is None
    assert answer.error["code"] == 429


def test_a_raw_body_is_sent_as_it_is(server: StubServer) -> None:
    page = b"<html>bad gateway</html>"
    error = failure_of(server, Reply(status=502, raw=page, content_type="text/html"))
    assert error.response.content == page
    assert error.response.headers["content-type"] == "text/html"


def test_a_body_that_is_no_object_is_refused(server: StubServer) -> None:
    with sync_client(server) as client, pytest.raises(openai.BadRequestError):
        client.post("/chat/completions", cast_to=object, body=["not", "an", "object"])


# --- Broken connections --------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["reset", "close"])
def test_dropped_connections(server: StubServer, fault: Literal["reset", "close"]) -> None:
    server.responder = lambda _: Reply(fault=fault)
    with pytest.raises(openai.APIConnectionError) as caught:
        chat(server)
    assert not isinstance(caught.value, openai.APITimeoutError)
    server.responder = lambda _: Reply("back")
    assert chat(server).choices[0].message.content == "back"


@pytest.mark.parametrize("fault", ["reset", "close", "hang"])
def test_faults_over_aiohttp(server: StubServer, fault: Literal["reset", "close", "hang"]) -> None:
    server.responder = lambda _: Reply(fault=fault)

    async def ask() -> None:
        async with openai.AsyncOpenAI(
            base_url=server.url,
            api_key=KEY,
            max_retries=0,
            timeout=0.3,
            http_client=openai.DefaultAioHttpClient(),
        ) as client:
            await client.responses.create(model="judge", input="a")

    with pytest.raises(openai.APIConnectionError):
        asyncio.run(ask())


def test_a_reset_on_the_wire(server: StubServer) -> None:
    server.responder = lambda _: Reply(fault="reset")
    with send_bare_call(server) as connection, pytest.raises(ConnectionResetError):
        connection.recv(1)


def test_a_close_on_the_wire(server: StubServer) -> None:
    server.responder = lambda _: Reply(fault="close")
    with send_bare_call(server) as connection:
        assert connection.recv(1) == b""


def test_a_hanging_call_times_out_and_leaves(server: StubServer) -> None:
    server.responder = lambda _: Reply(fault="hang")
    with pytest.raises(openai.APITimeoutError):
        chat(server, timeout=0.2)
    server.reset()
    server.responder = lambda _: Reply("back")
    chat(server)
    assert server.peak == 1


def test_delay_is_kept(server: StubServer) -> None:
    server.responder = lambda _: Reply(delay=0.1)
    start = time.monotonic()
    chat(server)
    assert time.monotonic() - start >= 0.1


# --- The server itself ---------------------------------------------------------------------------


def ask_at_once(server: StubServer, count: int) -> list[Any]:
    """The results of calls that are all in flight together, exceptions among them."""

    async def ask() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=server.url, api_key=KEY, max_retries=0) as client:
            calls = (client.responses.create(model="m", input=str(i)) for i in range(count))
            return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(ask())


def test_peak_counts_calls_in_flight_and_reset_clears(server: StubServer) -> None:
    server.responder = lambda _: Reply(delay=0.2)
    ask_at_once(server, 12)
    assert server.peak == 12
    assert sorted(call.number for call in server.received) == list(range(12))
    server.reset()
    assert (server.received, server.model_lists, server.peak) == ([], 0, 0)
    server.responder = lambda _: Reply()
    chat(server)
    assert (server.received[0].number, server.peak) == (0, 1)


@pytest.mark.parametrize("reply", [Reply(fault="hang"), Reply(delay=60)], ids=["hang", "late"])
def test_leaving_ends_open_calls(reply: Reply) -> None:
    with StubServer(lambda _: reply) as server:
        connection = send_bare_call(server)
        while not server.received:
            time.sleep(0.005)
        start = time.monotonic()
    assert time.monotonic() - start < 5
    with connection:
        assert connection.recv(1) == b""


def test_a_failing_responder_fails_the_test() -> None:
    def responder(call: Received) -> Reply:
        assert call.model == "another", "the wrong model"
        return Reply()

    with (
        pytest.raises(AssertionError, match="the wrong model"),
        StubServer(responder) as server,
        pytest.raises(openai.InternalServerError),
    ):
        chat(server)


def test_a_port_in_use_is_reported(server: StubServer) -> None:
    second = StubServer(lambda _: Reply(), port=port_of(server))
    with pytest.raises(OSError, match="address already in use"), second:
        pass


def test_calls_per_second() -> None:
    assert calls_per_second([]) == calls_per_second([1.0]) == 0
    assert calls_per_second([1.0, 1.5, 2.0]) == 2


def test_the_script_serves_until_told_to_stop() -> None:
    script = Path(__file__).with_name("stub_server.py")
    command = [sys.executable, str(script), "--delay", "0.01"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with openai.OpenAI(base_url=url, api_key="any") as client:
            for _ in range(3):
                answer = client.responses.create(model="judge", input="a")
                assert '"criteria_met": true' in answer.output_text
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read().startswith("3 calls, ")
        assert process.wait() == 0
