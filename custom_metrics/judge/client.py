"""One request to an OpenAI-compatible endpoint, and what its failure means.

The ``openai`` client knows addresses, authentication and Azure, and is asked what can be found
out before a run; the calls themselves, thousands of them, travel by :mod:`.transport`.
"""

from __future__ import annotations

import asyncio
import email.utils
import hashlib
import json
import logging
import math
import os
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import aiohttp
import openai
import orjson

from custom_metrics.errors import JudgeError
from custom_metrics.judge.calls import JudgeCall, Reply, Usage
from custom_metrics.judge.config import OPENAI_URL, JudgeConfig, header_value
from custom_metrics.judge.transport import Transport
from custom_metrics.masking import LEAST_LENGTH, MASKED, hide, known_secrets, learn, mask

logger = logging.getLogger(__name__)

# The two names of one limit: each is refused by some servers.
_OTHER_NAME = {"max_completion_tokens": "max_tokens", "max_tokens": "max_completion_tokens"}
_UNSUPPORTED = re.compile(
    r"unsupported|not support|unrecognized|unknown|not permitted|extra inputs", re.IGNORECASE
)
# The field that holds a schema, chat's and that of responses, and how servers speak of it.
_SCHEMA_FIELDS = {"response_format", "text"}
_SCHEMA_WORDS = re.compile(r"response_format|text\.format|json_?schema|structured.?output", re.I)
_MOST_EMPTY = 3
_MESSAGE_LENGTH = 300
_QUOTA_CODES = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"}
_FILTER_CODES = {"content_filter", "content_policy_violation"}
_MOST_TOKENS = 1e12  # of one reply; a server that says more is in error


class PassingFailure(Exception):
    """A request that may succeed when it is sent again, after ``retry_after`` seconds if given.

    ``reached`` says that the endpoint answered, though with a fault that may be its own or the
    call's; ``busy``, that it is well and only asks to come back later.
    """

    def __init__(
        self,
        reason: str,
        retry_after: float | None = None,
        *,
        reached: bool = False,
        busy: bool = False,
    ) -> None:
        super().__init__(reason)
        self.retry_after = retry_after
        self.reached = reached
        self.busy = busy


class FinalFailure(Exception):
    """A request that will fail however often it is sent; others may not.

    ``filtered`` says that the endpoint objects to what this one is about.
    """

    def __init__(self, reason: str, *, filtered: bool = False) -> None:
        super().__init__(reason)
        self.filtered = filtered


class ParameterDropped(Exception):
    """A request that was refused for a parameter, which is left out from now on."""


class OpenAIClient:
    """Asks one endpoint. To be made and used on one event loop."""

    def __init__(self, config: JudgeConfig) -> None:
        self.config = config
        self.dropped: set[str] = set()
        self._key = config.api_key()
        # The engine asks again: it counts, and it knows about outages.
        self._client = openai_client(config, max_retries=0)
        self._transport = Transport(self._client, timeout=config.timeout)
        self._answered = False
        # A field of the user's own is not ours to leave out.
        self._schema_fields = _SCHEMA_FIELDS - (config.extra_body or {}).keys()
        self._empty = 0

    async def close(self) -> None:
        await self._transport.close()
        await self._client.close()

    async def check(self) -> None:
        """Find out before anything is spent whether the endpoint can be reached and takes the key.

        Lists the models, which is free. Raises :class:`JudgeError` if that settles the matter;
        a server that does not list models is taken at its word.
        """
        if self.config.azure_endpoint:
            return
        config = self.config
        try:
            listed = await asyncio.wait_for(
                self._client.get("/models", cast_to=object), min(config.timeout, 30)
            )
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise self._refused_key(error.status_code) from None
        except (openai.APIConnectionError, asyncio.TimeoutError) as error:
            cause = self._hide(_cause(error))
            raise JudgeError(
                f"the judge at {config.endpoint} cannot be reached ({cause}). Start it or "
                "mend base_url; to generate now and judge later, use --predict_only"
            ) from None
        except (openai.OpenAIError, ValueError):
            return
        data = listed.get("data") if isinstance(listed, Mapping) else None
        names = [str(m.get("id")) for m in data or [] if isinstance(m, Mapping)]
        if names and config.model not in names:
            shown = ", ".join(sorted(names)[:8]) + (" …" if len(names) > 8 else "")
            logger.warning(
                "The judge at %s does not list the model %s; it lists %s",
                config.endpoint, config.model, self._hide(shown),
            )  # fmt: skip
            await self._try_the_model()

    async def send(self, call: JudgeCall[Any], max_tokens: int | None) -> Reply:
        """The reply to one call, of at most ``max_tokens`` tokens.

        Raises :class:`PassingFailure`, :class:`FinalFailure`, :class:`ParameterDropped`, or
        :class:`JudgeError` where every further call would fail too.
        """
        path, body = request_of(self.config, call.messages(), max_tokens, call.schema)
        self._leave_out(body)
        constrained = call.schema is not None and bool(self._schema_fields & body.keys())
        content = _json(body)
        try:
            response = await self._transport.post(path, content)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
            if _is_local(error):
                raise _unsendable(self.config, error) from None
            raise PassingFailure(self._hide(_cause(error))) from None
        try:
            result = _parsed(response.content)
        except (ValueError, RecursionError):
            result = None
        if not 200 <= response.status < 300:
            text = response.content.decode("utf-8", "replace")
            details = _error_of(result)
            if response.status in (400, 422):
                self._drop_unsupported(details, text, body)
            message = str(details.get("message") or text)
            raise self._failure(response.status, details, message, response.headers)
        if result is None:
            raise PassingFailure("not an API response (no JSON)")
        if not isinstance(result, Mapping):
            raise PassingFailure("the response is not a JSON object", reached=True)
        if result.get("error"):
            details = _error_of(result)
            code = str(details.get("code"))
            status = int(code) if code.isdigit() else 500
            message = str(details.get("message") or result["error"])
            raise self._failure(status, details, message, response.headers)
        self._answered = True
        try:
            reply = reply_in(result)
            reply = replace(reply, request_bytes=len(content), constrained=constrained)
        except (KeyError, TypeError, IndexError, AttributeError):
            raise PassingFailure("the response has no message", reached=True) from None
        if constrained and not reply.cut and not reply.text.strip():
            self._came_back_empty(body)
        # A shorter key is a word like any other.
        if self._key and len(self._key) >= LEAST_LENGTH and self._key in reply.text:
            return replace(reply, text=reply.text.replace(self._key, MASKED))
        return reply

    def _leave_out(self, body: dict[str, Any]) -> None:
        for name in self.dropped & body.keys():
            value = body.pop(name)
            other = _OTHER_NAME.get(name)
            if other and other not in self.dropped:
                body[other] = value

    def _came_back_empty(self, body: Mapping[str, Any]) -> None:
        """Servers that cannot think under a schema say nothing: after some such replies, none."""
        self._empty += 1
        if self._empty == _MOST_EMPTY:
            self.dropped.update(self._schema_fields & body.keys())
            logger.warning(
                "The judge %s says nothing where a schema is asked for; replies are free from now "
                "on (structured=off asks for none)",
                self.config.model,
            )

    async def _try_the_model(self) -> None:
        """Find out with one short call whether a model is known that the server does not list."""
        path, body = request_of(self.config, [{"role": "user", "content": "Say ok."}], 16)
        try:
            await asyncio.wait_for(
                self._client.post(path, body=body, cast_to=object), min(self.config.timeout, 60)
            )
        except openai.NotFoundError as error:
            raise self._failure(404, {}, str(error), {}) from None
        except (openai.OpenAIError, asyncio.TimeoutError, ValueError):
            return  # whatever it is, it is not that

    def _drop_unsupported(
        self, details: Mapping[str, Any], text: str, body: Mapping[str, Any]
    ) -> None:
        """Leave out from now on a parameter that the server says it does not support.

        Raises :class:`ParameterDropped` if the refused request had one to leave out.
        """
        param = str(details.get("param") or "").split(".")[0]
        optional = [name for name in body if name not in ("model", "messages", "input")]
        named = next((n for n in optional if n == param), None)
        unsupported = details.get("code") in ("unsupported_parameter", "unsupported_value")
        if unsupported or _UNSUPPORTED.search(text):
            named = named or next((n for n in optional if _mentions(text, n)), None)
        else:  # whatever a server has against a schema of ours, it can do without
            ours = self._schema_fields & body.keys()
            named = next((n for n in ours if n == named or _mentions(text, n)), None)
        if named is None:
            return
        if named not in self.dropped:  # a sibling in flight may have dropped it meanwhile
            self.dropped.add(named)
            logger.warning(
                "The judge %s does not support %r; it is left out from now on",
                self.config.model,
                named,
            )
        raise ParameterDropped

    def _failure(
        self, status: int, details: Mapping[str, Any], message: str, headers: Mapping[str, str]
    ) -> Exception:
        code = str(details.get("code") or "")
        config = self.config
        message = " ".join(self._hide(message).split())[:_MESSAGE_LENGTH]
        if status == 401 or (status == 403 and not self._answered):
            return self._refused_key(status)
        if status == 402 or code in _QUOTA_CODES:
            return JudgeError(
                f"the judge at {config.endpoint} says that the account has no credit left: "
                f"{message}. Mend that and run again"
            )
        elsewhere = status == 404 or 300 <= status < 400
        if elsewhere and not self._answered:
            return JudgeError(
                f"the judge at {config.endpoint} does not know the model {config.model!r} or the "
                f"address ({status}: {message}). Mend the judge's model, base_url or api "
                f"(now {'responses' if config.uses_responses else 'chat'})"
            )
        busy = status in (408, 409, 425, 429)
        # What has answered before knows the address: such a 404 is a load balancer's hiccup.
        if busy or elsewhere or status >= 500:
            return PassingFailure(
                f"{status}: {message}", retry_after(headers), reached=status <= 501, busy=busy
            )
        return FinalFailure(f"{status}: {message}", filtered=code in _FILTER_CODES)

    def _hide(self, text: str) -> str:
        """``text`` for a message: no key, also a short one, and nothing that addresses hide."""
        return hide(text, known_secrets() | ({self._key} if self._key else set()))

    def _refused_key(self, status: int) -> JudgeError:
        source = self.config.api_key_env or "RUBRIC_JUDGE_API_KEY (or the vendor's variable)"
        return JudgeError(
            f"the judge at {self.config.endpoint} refuses the API key ({status}). Check {source}"
        )


def _parsed(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except ValueError:  # it takes no escaped lone surrogate, and no NaN
        return json.loads(content)


def _error_of(result: Any) -> Mapping[str, Any]:
    """The error object of a response: under ``error``, or the whole body (older vLLM)."""
    error = result.get("error", result) if isinstance(result, Mapping) else None
    return error if isinstance(error, Mapping) else {}


def openai_client(config: JudgeConfig, *, max_retries: int) -> openai.AsyncOpenAI:
    """The client for the judge's endpoint, with its key and nobody else's.

    Raises :class:`ConfigError` for a key that is missing or cannot be sent, and
    :class:`JudgeError` for an address that no request can be sent to.
    """
    key = config.api_key()
    learn({"api_key": key})  # its variable may have any name
    if config.is_openai:
        for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):  # the client sends them as headers
            if value := os.environ.get(name):
                header_value(name, value)
    common: dict[str, Any] = {"timeout": config.timeout, "max_retries": max_retries}
    try:
        client = _client_of(config, key or "none", common)
    except Exception as error:
        if _is_local(error):
            raise _unsendable(config, error) from None
        raise
    if not config.is_openai:
        # An organisation's or project's name is for OpenAI alone.
        client.organization = client.project = None
    return client


def _client_of(config: JudgeConfig, key: str, common: dict[str, Any]) -> openai.AsyncOpenAI:
    if config.azure_endpoint:
        return openai.AsyncAzureOpenAI(
            azure_endpoint=config.azure_endpoint,
            api_version=config.api_version,
            azure_deployment=None if config.uses_responses else config.model,
            api_key=key,
            **common,
        )
    # The address is always given: the client would else follow OPENAI_BASE_URL.
    return openai.AsyncOpenAI(base_url=config.base_url or OPENAI_URL, api_key=key, **common)


def _mentions(text: str, field: str) -> bool:
    pattern = _SCHEMA_WORDS if field in _SCHEMA_FIELDS else rf"\b{re.escape(field)}\b"
    return re.search(pattern, text) is not None


def request_of(
    config: JudgeConfig,
    messages: list[dict[str, str]],
    max_tokens: int | None,
    schema: Mapping[str, Any] | None = None,
) -> tuple[str, dict[str, Any]]:
    """Path and body of a request: what was configured, and nothing that was not."""
    form = None
    if schema is not None and config.asks_for_schema:
        form = {"name": "verdict", "strict": True, "schema": schema}
    if config.uses_responses:
        path = "/responses"
        parameters: dict[str, Any] = {
            "input": messages,
            "temperature": config.temperature,
            "max_output_tokens": max_tokens,
            "reasoning": config.reasoning_effort and {"effort": config.reasoning_effort},
            "text": form and {"format": {"type": "json_schema", **form}},
        }
    else:
        path = "/chat/completions"
        parameters = {
            "messages": messages,
            "temperature": config.temperature,
            "max_completion_tokens": max_tokens,
            "reasoning_effort": config.reasoning_effort,
            "response_format": form and {"type": "json_schema", "json_schema": form},
        }
    body: dict[str, Any] = {"model": config.model}
    body |= {name: value for name, value in parameters.items() if value is not None}
    body |= config.extra_body or {}
    return path, body


def request_key(
    config: JudgeConfig,
    messages: list[dict[str, str]],
    max_tokens: int | None,
    schema: Mapping[str, Any] | None = None,
    repeat: int = 0,
) -> str:
    """A key over everything that determines a reply: endpoint, configured request, repeat."""
    if config.in_process:
        request: tuple[Any, ...] = (
            mask(config.judge_model_args), messages, config.temperature, max_tokens,
        )  # fmt: skip
    else:
        request = request_of(config, messages, max_tokens, schema)
    parts = [config.backend, config.endpoint, config.api_version, *request, repeat]
    return hashlib.sha256(_json(parts, orjson.OPT_SORT_KEYS)).hexdigest()


def _json(value: Any, option: int = 0) -> bytes:
    """``value`` as JSON, its keys in their order: a schema's says what a judge writes first.

    The standard library takes a fifth of a call's time for a long prompt.
    """
    try:
        return orjson.dumps(value, option=option)
    except orjson.JSONEncodeError:  # a lone surrogate, or an integer beyond 64 bits
        return json.dumps(value, sort_keys=bool(option)).encode()


def reply_in(result: Mapping[str, Any]) -> Reply:
    """The reply in a response's body, of either API.

    Raises :class:`FinalFailure` where a filter stopped it, and ``KeyError``, ``TypeError``,
    ``IndexError`` or ``AttributeError`` where there is none.
    """
    return _responses_reply(result) if "output" in result else _chat_reply(result)


def _chat_reply(result: Mapping[str, Any]) -> Reply:
    choice = result["choices"][0]
    if choice.get("finish_reason") == "content_filter":
        raise FinalFailure("the endpoint's content filter stopped the reply", filtered=True)
    # Text that only stands in a reasoning field is thinking that ate the limit: no reply.
    text = choice["message"].get("content")
    if isinstance(text, list):
        text = "".join(str(part.get("text") or "") for part in text)
    usage = _mapping(result.get("usage"))
    details = _mapping(usage.get("prompt_tokens_details"))
    return Reply(
        text if isinstance(text, str) else "",
        cut=choice.get("finish_reason") == "length",
        usage=Usage(
            _count(usage.get("prompt_tokens")),
            _count(details.get("cached_tokens")),
            _count(usage.get("completion_tokens")),
        ),
    )


def _responses_reply(result: Mapping[str, Any]) -> Reply:
    parts = [
        str(part.get("text") or "")
        for item in result["output"]
        if item.get("type") == "message"
        for part in item.get("content") or []
        if part.get("type") == "output_text"
    ]
    usage = _mapping(result.get("usage"))
    details = _mapping(usage.get("input_tokens_details"))
    return Reply(
        "".join(parts),
        cut=result.get("status") == "incomplete",
        usage=Usage(
            _count(usage.get("input_tokens")),
            _count(details.get("cached_tokens")),
            _count(usage.get("output_tokens")),
        ),
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    """A server's odd accounts must not cost the reply that they are about."""
    return value if isinstance(value, Mapping) else {}


def _count(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and 0 < value < _MOST_TOKENS else 0


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a ``Retry-After`` header asks for: a number or an HTTP date."""
    value = headers.get("retry-after") or ""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def warn_of_ignored_environment(config: JudgeConfig) -> None:
    """Say that ``OPENAI_BASE_URL`` does not move the judge, where someone might expect it to."""
    if config.is_openai and not config.base_url and os.environ.get("OPENAI_BASE_URL"):
        logger.warning(
            "The judge does not follow OPENAI_BASE_URL and asks %s; set RUBRIC_JUDGE_BASE_URL",
            config.endpoint,
        )


# Errors of the HTTP library for what it will not send, by name: it is the client's own choice.
_LOCAL = {"InvalidURL", "LocalProtocolError", "UnsupportedProtocol"}


def _is_local(error: BaseException) -> bool:
    """Whether the request was never sent, because it cannot be."""
    causes = [error, error.__cause__] if isinstance(error, openai.APIConnectionError) else [error]
    return any(isinstance(c, ValueError) or type(c).__name__ in _LOCAL for c in causes)


def _unsendable(config: JudgeConfig, error: Exception) -> JudgeError:
    cause = error.__cause__ or error
    return JudgeError(  # not its text, which may show a header
        f"no request can be sent to the judge at {config.endpoint} ({type(cause).__name__}): mend "
        "its address or what goes into the headers"
    )


def _cause(error: BaseException) -> str:
    if isinstance(error, asyncio.TimeoutError | openai.APITimeoutError):
        return "timed out"
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError):
        return "cut off"
    return f"no connection: {error.__cause__ or error}"
