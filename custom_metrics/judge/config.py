"""The judge's settings, from three places, with errors that name field, value and place."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from custom_metrics.errors import ConfigError
from custom_metrics.judge.calls import Usage
from custom_metrics.masking import (
    LEAST_LENGTH,
    holds_secret,
    is_secret_name,
    known_secrets,
    mask,
    shown,
)

ENV_PREFIX = "RUBRIC_JUDGE_"
OPENAI_URL = "https://api.openai.com/v1"
# What does not touch a reply, and addresses, which are recorded as the endpoint.
_NOT_RECORDED = {
    "azure_endpoint", "base_url", "max_calls", "max_cost", "max_outage", "prices", "rpm", "tpm",
}  # fmt: skip
# What the harness's own model classes have no place for.
_NOT_IN_PROCESS = {
    "api", "api_key_env", "api_version", "azure_endpoint", "base_url", "concurrency", "extra_body",
    "max_cost", "max_outage", "model", "prices", "reasoning_effort", "rpm", "structured",
    "timeout", "tpm",
}  # fmt: skip
_IN_PROCESS = ("judge_model", "judge_model_args")
_NOT_FIELDS = ("RUBRIC_JUDGE_API_KEY", "RUBRIC_JUDGE_CACHE")
# Fields of extra_body by which a user sets the form of a reply.
_FORMS = {
    "format", "grammar", "guided_choice", "guided_grammar", "guided_json", "guided_regex",
    "json_schema", "response_format", "structured_outputs", "text",
}  # fmt: skip
_OPENAI_HOST = re.compile(r"([a-z0-9-]+\.)*api\.openai\.com")


class Prices(BaseModel):
    """Prices per million tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt: float = Field(ge=0)
    cached: float = Field(ge=0)
    completion: float = Field(ge=0)

    def cost(self, usage: Usage) -> float:
        """What ``usage`` costs."""
        fresh = usage.prompt - usage.cached
        return (
            fresh * self.prompt + usage.cached * self.cached + usage.completion * self.completion
        ) / 1e6


class JudgeConfig(BaseModel):
    """How the judge is asked. A field that is None is not sent.

    Each description says what the field takes; it is what an error message shows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    backend: Literal["openai", "lm_eval", "lexical"] = Field(
        "openai",
        description="openai (any OpenAI-compatible endpoint), lm_eval (a model inside this "
        "process) or lexical (a smoke test)",
    )
    model: str = Field("o4-mini", min_length=1, description="the judge model's name")
    judge_model: str | None = Field(
        None, min_length=1, description="a model type of lm_eval's, such as hf or vllm"
    )
    judge_model_args: dict[str, Any] | None = Field(
        None, description="that model's arguments, as a=b,c=d or as a JSON object"
    )
    base_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s/]+",
        description="an address such as http://localhost:8000/v1",
    )
    api: Literal["auto", "responses", "chat"] = Field(
        "auto", description="auto (responses for api.openai.com, else chat), responses or chat"
    )
    azure_endpoint: str | None = Field(
        None, pattern=r"^https?://[^\s/]+", description="the address of an Azure OpenAI resource"
    )
    api_version: str | None = Field(None, description="the API version that Azure asks for")
    temperature: float | None = Field(None, ge=0, le=2, description="a number from 0 to 2")
    max_tokens: int | None = Field(
        None, ge=1, description="the most tokens of a reply, reasoning included"
    )
    reasoning_effort: str | None = Field(
        None, description="low, medium, high, or what else the model knows"
    )
    extra_body: dict[str, Any] | None = Field(
        None, description="a JSON object of further request fields"
    )
    structured: Literal["auto", "json_schema", "off"] = Field(
        "auto",
        description="auto (a schema for the reply with the builtin prompt), json_schema (with any "
        "prompt) or off",
    )
    concurrency: int = Field(64, ge=1, le=1000, description="calls in flight, 1 to 1000")
    timeout: float = Field(600, gt=0, description="seconds for one call, more than 0")
    max_retries: int = Field(
        6, ge=0, le=100, description="how often a failed call is asked again, 0 to 100"
    )
    prompt: Literal["official", "builtin"] = Field(
        "official", description="official (the benchmark's authors') or builtin (this project's)"
    )
    on_failure: Literal["exclude", "unmet", "raise"] = Field(
        "exclude",
        description="exclude the document, count the call as unmet (the official script's way), "
        "or raise",
    )
    rpm: int | None = Field(None, ge=1, description="requests a minute, at most")
    tpm: int | None = Field(None, ge=1, description="tokens a minute, at most")
    max_outage: float = Field(
        1800, ge=0, description="seconds to wait for an endpoint that is down, 0 or more"
    )
    max_calls: int | None = Field(None, ge=0, description="requests of a run, at most")
    max_cost: float | None = Field(None, ge=0, description="cost of a run, at most; needs prices")
    prices: Prices | None = Field(
        None, description="in,cached,out: prices per million tokens, such as 1.1,0.275,4.4"
    )
    api_key_env: str | None = Field(
        None,
        pattern=r"^[A-Z_][A-Z0-9_]*$",
        description="the NAME of the variable that holds the key, in capitals",
    )

    @field_validator("extra_body", mode="before")
    @classmethod
    def _from_json(cls, value: Any) -> Any:
        return json.loads(value) if isinstance(value, str) else value

    @field_validator("judge_model_args", mode="before")
    @classmethod
    def _from_json_or_pairs(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value.lstrip().startswith("{"):
            return json.loads(value)
        from lm_eval.utils import simple_parse_args_string  # takes a second

        if not all("=" in part for part in value.split(",") if part):
            raise ValueError("key=value is needed")
        return simple_parse_args_string(value)

    @field_validator("prices", mode="before")
    @classmethod
    def _three_numbers(cls, value: Any) -> Any:
        parts = value.strip("[]() ").split(",") if isinstance(value, str) else value
        if isinstance(parts, list | tuple):
            prompt, cached, completion = parts  # raises ValueError for another number of them
            return {"prompt": prompt, "cached": cached, "completion": completion}
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("no setting is a truth value")  # true would be read as 1
        return value

    @field_validator("base_url", "azure_endpoint")
    @classmethod
    def _an_address(cls, value: str | None) -> str | None:
        if value is not None:
            _ = urlsplit(value).port  # raises ValueError for what only looks like an address
        return value

    @cached_property
    def is_openai(self) -> bool:
        """Whether calls go to OpenAI's own endpoint, regional ones included, over TLS."""
        if self.azure_endpoint or self.backend != "openai":
            return False
        url = urlsplit(self.base_url or OPENAI_URL)
        host = url.hostname or ""
        return url.scheme == "https" and bool(_OPENAI_HOST.fullmatch(host))

    @property
    def in_process(self) -> bool:
        """Whether the judge is a model of the harness's inside this process."""
        return self.backend == "lm_eval"

    @cached_property
    def name(self) -> str:
        """The judge model's name, for messages and records."""
        if not self.in_process:
            return self.model
        args = self.judge_model_args or {}
        return str(args.get("pretrained") or args.get("model") or self.judge_model)

    @cached_property
    def asks_for_schema(self) -> bool:
        """Whether a call's schema goes into its request."""
        if self.structured == "auto":
            # The official prompt goes out as its authors send it; a form of the user's own stays.
            return self.prompt == "builtin" and not _FORMS & (self.extra_body or {}).keys()
        return self.structured == "json_schema"

    @cached_property
    def uses_responses(self) -> bool:
        return self.api == "responses" or (self.api == "auto" and self.is_openai)

    @cached_property
    def endpoint(self) -> str:
        """Where calls go, for messages and records: never with user, password or query."""
        if self.backend == "lexical":
            return "none (lexical)"
        if self.in_process:
            return f"this process (lm_eval, {self.judge_model})"
        url = urlsplit(self.azure_endpoint or self.base_url or OPENAI_URL)
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"

    def record(self) -> dict[str, Any]:
        """The settings as results and samples hold them: those in use, no secrets."""
        kept: dict[str, Any] = mask(self.model_dump(exclude_none=True, exclude=_NOT_RECORDED))
        if self.backend == "lexical":
            names = ("backend", "prompt", "on_failure")
            note = "lexical overlap: a smoke test whose scores mean nothing"
            return {**{name: kept[name] for name in names}, "note": note}
        if self.in_process:
            unused = {*_NOT_IN_PROCESS, "max_retries"}
            return {name: value for name, value in kept.items() if name not in unused}
        return {
            **kept,
            "endpoint": self.endpoint,
            "api": "responses" if self.uses_responses else "chat",
            "structured": "json_schema" if self.asks_for_schema else "off",
        }

    def api_key(self, environ: Mapping[str, str] | None = None) -> str | None:
        """The key for this endpoint, or None where none is needed.

        From the variable that ``api_key_env`` names, else ``RUBRIC_JUDGE_API_KEY``, else the
        vendor's own variable, which is never sent to anyone but the vendor. Raises
        :class:`ConfigError` where a key is needed and none is set, and for one that cannot be sent.
        """
        key = self.find_api_key(environ)
        if key is not None or self.backend != "openai":
            return key
        if self.api_key_env:
            raise ConfigError(
                f"no API key for the judge at {self.endpoint}: api_key_env names "
                f"{self.api_key_env}, which is not set"
            )
        if self.is_openai or self.azure_endpoint:
            names = " or ".join(self._key_names)
            raise ConfigError(
                f"the judge at {self.endpoint} needs an API key: set {names}, or "
                "point the judge at a server of your own with base_url"
            )
        return None

    def find_api_key(self, environ: Mapping[str, str] | None = None) -> str | None:
        """:meth:`api_key`, or None where it is missing."""
        environ = os.environ if environ is None else environ
        if self.backend != "openai":
            return None
        for name in self._key_names:
            if key := environ.get(name, "").strip():
                return header_value(name, key)
        return None

    @property
    def _key_names(self) -> list[str]:
        if self.api_key_env:
            return [self.api_key_env]
        names = ["RUBRIC_JUDGE_API_KEY"]
        names += ["OPENAI_API_KEY"] if self.is_openai else []
        return names + (["AZURE_OPENAI_API_KEY"] if self.azure_endpoint else [])


def resolve_config(
    metadata: Any = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> JudgeConfig:
    """The settings: ``RUBRIC_JUDGE_<FIELD>``, then ``metadata``, then ``overrides``; later win.

    Raises :class:`ConfigError`, one line that names field, value, place and what is taken.
    """
    environ = os.environ if environ is None else environ
    if metadata is not None and not isinstance(metadata, Mapping):
        raise ConfigError(
            'metadata \'judge\': an object such as {"model": "o4-mini"} is needed, '
            f"not {type(metadata).__name__}"
        )
    named = [s.get("api_key_env") for s in (metadata or {}, overrides or {})]
    not_fields = {*_NOT_FIELDS, environ.get("RUBRIC_JUDGE_API_KEY_ENV"), *named}
    from_env = {
        name.removeprefix(ENV_PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(ENV_PREFIX) and name not in not_fields and value != ""
    }
    places: dict[str, str] = {}
    merged: dict[str, Any] = {}
    for origin, settings in (
        ("{prefix}{name}", from_env),
        ('metadata judge "{field}"', metadata or {}),
        ("--judge {field}", overrides or {}),
    ):
        for field, value in ((str(name), value) for name, value in settings.items()):
            known = field in JudgeConfig.model_fields or is_secret_name(field)
            spelt = field if known or shown(field, "") else "…"
            place = origin.format(prefix=ENV_PREFIX, name=spelt.upper(), field=spelt)
            if field not in JudgeConfig.model_fields and is_secret_name(field):
                raise _refused(place)
            merged[field], places[field] = value, place
    try:
        config = JudgeConfig.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(_one_line(error, places)) from None
    if config.max_cost is not None and config.prices is None:
        raise ConfigError(f"{places['max_cost']}: max_cost needs prices=in,cached,out as well")
    _check_backend(config, merged, places)
    if any(is_secret_name(name) for name in _names_in(config.extra_body)):
        raise _refused(places["extra_body"])
    if config.azure_endpoint and config.base_url:
        raise ConfigError("judge: give either base_url or azure_endpoint, not both")
    if config.azure_endpoint and not config.api_version:
        raise ConfigError("judge: azure_endpoint needs api_version as well, such as 2024-10-21")
    for name in ("base_url", "azure_endpoint"):
        url = urlsplit(getattr(config, name) or "")
        if url.username or url.password or url.query or url.fragment:
            raise ConfigError(
                f"{places[name]}: an address with a user, password, query or fragment is refused, "
                "since it "
                "is written to the results; put the key into the variable that api_key_env names"
            )
    keys = known_secrets(environ)
    if (
        config.api_key_env
        and len(key := environ.get(config.api_key_env, "").strip()) >= LEAST_LENGTH
    ):
        keys.add(key)
    for field, value in merged.items():
        if holds_secret(value, keys) or mask(value) != value:
            raise _refused(places[field])
    return config


def _check_backend(
    config: JudgeConfig, given: Mapping[str, Any], places: Mapping[str, str]
) -> None:
    """Refuse settings that mean nothing for the backend, and secrets among a model's arguments."""
    set_here = [name for name, value in given.items() if value is not None]
    if not config.in_process:
        for name in _IN_PROCESS:
            if name in set_here:
                raise ConfigError(f"{places[name]}: {name} goes with backend=lm_eval")
        return
    for name in set_here:
        if name in _NOT_IN_PROCESS:
            raise ConfigError(
                f"{places[name]}: {name} means nothing with backend=lm_eval, whose model is set "
                "by judge_model and judge_model_args; leave it out"
            )
    if config.judge_model is None:
        raise ConfigError(
            f"{places['backend']}: lm_eval needs judge_model as well, such as hf or vllm, and "
            "judge_model_args, such as pretrained=Qwen/Qwen3-8B"
        )
    if mask(config.judge_model_args) != config.judge_model_args:
        raise ConfigError(
            f"{places['judge_model_args']}: a secret is not taken here, since it would be written "
            "to the results; put it into the variable that the model reads, such as HF_TOKEN"
        )


def header_value(variable: str, value: str) -> str:
    """``value``, which an HTTP header can carry. Raises :class:`ConfigError` for any other."""
    if not re.fullmatch(r"[!-~]+", value):
        raise ConfigError(
            f"{variable}: its value cannot be sent in a header, since it has a blank, a line break "
            "or a character that is not ASCII in it; set it again, without quotes"
        )
    return value


def _refused(place: str) -> ConfigError:
    return ConfigError(
        f"{place}: a key is not taken here, since it would be written to the results; put it "
        "into RUBRIC_JUDGE_API_KEY, or into a variable of your own and name that in api_key_env"
    )


def _names_in(value: Any) -> Iterator[str]:
    """Every name inside a JSON value, however deep."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name)
            yield from _names_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _names_in(inner)


def _one_line(error: ValidationError, places: Mapping[str, str]) -> str:
    first = error.errors(include_url=False)[0]
    field = str(first["loc"][0]) if first["loc"] else "judge"
    place = places.get(field, "judge")
    if first["type"] == "extra_forbidden":
        known = ", ".join(JudgeConfig.model_fields)
        return f"{place}: the judge has no setting {shown(field, 'of this name')}; it has {known}"
    # What was put there by mistake may be a secret.
    telling = ("api_key_env", "azure_endpoint", "base_url", "extra_body", "judge_model_args")
    value = "this value" if field in telling else shown(first["input"])
    takes = JudgeConfig.model_fields[field].description
    return f"{place}: {value} is not valid; {field} takes {takes}"
