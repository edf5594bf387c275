"""How a call's bytes travel: proxies, certificates, redirects, time limits; over real sockets."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import aiohttp
import openai
import pytest
from plain_server import PlainServer

from custom_metrics.judge.transport import Response, Transport

PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def _no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def post(base_url: str, timeout: float = 10) -> Response:
    async def once() -> Response:
        client = openai.AsyncOpenAI(base_url=base_url, api_key="key of this test")
        transport = Transport(client, timeout=timeout)
        try:
            return await transport.post("/chat/completions", b'{"model": "judge"}')
        finally:
            await transport.close()
            await client.close()

    return asyncio.run(once())


class Raw:
    """A server whose every answer is written by a function of the handler."""

    def __init__(self, answer: object, context: ssl.SSLContext | None = None) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                outer.headers.append(dict(self.headers))
                answer(self)  # type: ignore[operator]

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        outer, self.headers = self, []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port

    def __enter__(self) -> Raw:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def ok(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "2")
    handler.end_headers()
    handler.wfile.write(b"{}")


def test_the_key_and_the_content_type_are_the_openai_clients() -> None:
    with Raw(ok) as server:
        assert post(f"http://127.0.0.1:{server.port}/v1").content == b"{}"
    (headers,) = server.headers
    assert headers["Authorization"] == "Bearer key of this test"
    assert headers["Content-Type"] == "application/json"
    assert headers["User-Agent"].startswith("AsyncOpenAI/")


def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    route = "POST http://judge.invalid/v1/chat/completions"
    with PlainServer({route: lambda _: {"by": "proxy"}}) as proxy:
        monkeypatch.setenv("http_proxy", proxy.origin)
        assert json.loads(post("http://judge.invalid/v1").content) == {"by": "proxy"}


def test_no_proxy_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    route = "POST /v1/chat/completions"
    with PlainServer({route: lambda _: {"by": "server"}}) as server:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert json.loads(post(f"{server.origin}/v1").content) == {"by": "server"}


def test_a_redirect_is_not_followed() -> None:
    def elsewhere(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(301)
        handler.send_header("Location", "http://elsewhere.invalid/")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    with Raw(elsewhere) as server:
        response = post(f"http://127.0.0.1:{server.port}/v1")
    assert (response.status, response.headers["Location"]) == (301, "http://elsewhere.invalid/")


def test_the_time_limit_is_for_the_whole_call_not_between_two_bytes() -> None:
    over = threading.Event()

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        try:
            while not over.wait(0.1):
                handler.wfile.write(b" ")
                handler.wfile.flush()
        except OSError:
            pass  # the client has left, as it should

    with Raw(trickle) as server:
        with pytest.raises(asyncio.TimeoutError):
            post(f"http://127.0.0.1:{server.port}/v1", timeout=0.5)
        over.set()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


def served_over_tls(certificate: tuple[Path, Path]) -> Raw:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return Raw(ok, context)


def test_a_certificate_of_ones_own_is_taken_from_ssl_cert_file(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    with served_over_tls(certificate) as server:
        assert post(f"https://127.0.0.1:{server.port}/v1").status == 200


def test_a_certificate_that_nobody_vouches_for_is_refused(certificate: tuple[Path, Path]) -> None:
    with (
        served_over_tls(certificate) as server,
        pytest.raises(aiohttp.ClientConnectorCertificateError),
    ):
        post(f"https://127.0.0.1:{server.port}/v1")
