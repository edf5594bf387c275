"""How the bytes of a call travel: aiohttp, one pool, headers made once.

Half of the CPU time of a call through the openai client is its request building: typed options,
copies, and some hundred look-ups in header maps. Address, headers and authentication are the
client's own here too, Azure's included, but taken from it once.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import certifi
import openai

# Servers close idle connections (uvicorn after 5 s); ours are gone before, so that no call is sent
# into one that is just closing.
_IDLE_S = 4.0


@dataclass(frozen=True)
class Response:
    """What came back. Header names are in any case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class Transport:
    """Sends JSON to the endpoint that ``client`` is for. To be made and used on one event loop."""

    def __init__(self, client: openai.AsyncOpenAI, *, timeout: float) -> None:
        self._base = str(client.base_url).rstrip("/")
        self._query = {name: str(value) for name, value in client.default_query.items()}
        headers = {**client.default_headers, **client.auth_headers}
        self._session = aiohttp.ClientSession(
            # Its own limit would only queue calls a second time.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S, ssl=_trusted()),
            headers={name: value for name, value in headers.items() if isinstance(value, str)},
            timeout=aiohttp.ClientTimeout(total=timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=_proxy_for(self._base),
        )

    async def post(self, path: str, content: bytes) -> Response:
        """One request and its whole response, within the time limit.

        Redirects are not followed: a POST would arrive as a GET. Raises ``aiohttp.ClientError``
        and ``TimeoutError``.
        """
        async with self._session.post(
            self._base + path, data=content, params=self._query, allow_redirects=False
        ) as response:
            return Response(response.status, response.headers, await response.read())

    async def close(self) -> None:
        await self._session.close()


def _proxy_for(address: str) -> str | None:
    """The proxy that the environment names for ``address``; aiohttp would look at every call."""
    url = urlsplit(address)
    if proxy_bypass(url.hostname or ""):
        return None
    proxies = getproxies()
    return proxies.get(url.scheme) or proxies.get("all")


def _trusted() -> ssl.SSLContext:
    """The certificates of ``SSL_CERT_FILE`` or ``SSL_CERT_DIR``, else the system's and certifi's.

    The openai client knows certifi's, which a bare container may need.
    """
    context = ssl.create_default_context()
    if not (os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")):
        context.load_verify_locations(certifi.where())
    return context
