"""The judge's settings, from three places, with errors that name field, value and place."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from custom_metrics.errors import ConfigError

ENV_PREFIX = "RUBRIC_JUDGE_"
OPENAI_URL = "https://api.openai.com/v1"
MASKED = "***"
_NOT_FIELDS = {"RUBRIC_JUDGE_API_KEY"}


class JudgeConfig(BaseModel):
    """How the judge is asked. A field that is None is not sent.

    Each description says what the field takes; it is what an error message shows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    backend: Literal["openai", "lexical"] = Field(
        "openai", description="openai (any OpenAI-compatible endpoint) or lexical (a smoke test)"
    )
    model: str = Field("o4-mini", min_length=1, description="the judge model's name")
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
    api_key_env: str | None = Field(
        None,
        pattern=r"^[A-Z_][A-Z0-9_]*$",
        description="the NAME of the variable that holds the key, in capitals",
    )

    @field_validator("extra_body", mode="before")
    @classmethod
    def _from_json(cls, value: Any) -> Any:
        return json.loads(value) if isinstance(value, str) else value

    @property
    def is_openai(self) -> bool:
        """Whether calls go to OpenAI's own endpoint, regional ones included, over TLS."""
        if self.azure_endpoint or self.backend != "openai":
            return False
        url = urlsplit(self.base_url or OPENAI_URL)
        host = url.hostname or ""
        return url.scheme == "https" and (
            host == "api.openai.com" or host.endswith(".api.openai.com")
        )

    @property
    def uses_responses(self) -> bool:
        return self.api == "responses" or (self.api == "auto" and self.is_openai)

    @property
    def endpoint(self) -> str:
        """Where calls go, for messages and records: never with user, password or query."""
        if self.backend == "lexical":
            return "none (lexical)"
        url = urlsplit(self.azure_endpoint or self.base_url or OPENAI_URL)
        port = f":{url.port}" if url.port else ""
        return f"{url.scheme}://{url.hostname}{port}{url.path}"

    def record(self) -> dict[str, Any]:
        """The settings as results and samples hold them: those in use, no secrets."""
        kept = self.model_dump(exclude_none=True, exclude={"base_url", "azure_endpoint"})
        if self.backend == "lexical":
            names = ("backend", "prompt", "on_failure")
            note = "lexical overlap: a smoke test whose scores mean nothing"
            return {**{name: kept[name] for name in names}, "note": note}
        return {
            **kept,
            "endpoint": self.endpoint,
            "api": "responses" if self.uses_responses else "chat",
        }

    def api_key(self, environ: Mapping[str, str] | None = None) -> str | None:
        """The key for this endpoint, or None where none is needed.

        From the variable that ``api_key_env`` names, else ``RUBRIC_JUDGE_API_KEY``, else the
        vendor's own variable, which is never sent to anyone but the vendor. Raises
        :class:`ConfigError` where a key is needed and none is set.
        """
        environ = os.environ if environ is None else environ
        if self.backend == "lexical":
            return None
        names = [self.api_key_env] if self.api_key_env else ["RUBRIC_JUDGE_API_KEY"]
        if not self.api_key_env:
            names += ["OPENAI_API_KEY"] if self.is_openai else []
            names += ["AZURE_OPENAI_API_KEY"] if self.azure_endpoint else []
        for name in names:
            if environ.get(name, "").strip():
                return environ[name].strip()
        if self.api_key_env or self.is_openai or self.azure_endpoint:
            raise ConfigError(
                f"the judge at {self.endpoint} needs an API key: set {' or '.join(names)}, or "
                "point the judge at a server of your own with base_url"
            )
        return None


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
            f'metadata \'judge\': an object such as {{"model": "o4-mini"}} is needed, '
            f"not {metadata!r}"
        )
    from_env = {
        name.removeprefix(ENV_PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(ENV_PREFIX) and name not in _NOT_FIELDS and value != ""
    }
    places: dict[str, str] = {}
    merged: dict[str, Any] = {}
    for origin, settings in (
        ("{prefix}{name}", from_env),
        ('metadata judge "{field}"', metadata or {}),
        ("--judge {field}", overrides or {}),
    ):
        for field, value in settings.items():
            place = origin.format(prefix=ENV_PREFIX, name=str(field).upper(), field=field)
            _refuse_secret(str(field), value, place)
            merged[field], places[field] = value, place
    try:
        config = JudgeConfig.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(_one_line(error, places)) from None
    if config.azure_endpoint and config.base_url:
        raise ConfigError("judge: give either base_url or azure_endpoint, not both")
    if config.azure_endpoint and not config.api_version:
        raise ConfigError("judge: azure_endpoint needs api_version as well, such as 2024-10-21")
    for name in ("base_url", "azure_endpoint"):
        url = urlsplit(getattr(config, name) or "")
        if url.username or url.password or url.query:
            raise ConfigError(
                f"{places[name]}: an address with a user, password or query is refused, since it "
                "is written to the results; put the key into the variable that api_key_env names"
            )
    return config


def _refuse_secret(field: str, value: Any, place: str) -> None:
    nested = value if isinstance(value, Mapping) else {}
    named = [field] if field not in JudgeConfig.model_fields else []
    if any(is_secret_name(str(name)) for name in [*named, *nested]):
        raise ConfigError(
            f"{place}: a key is not taken here, since it would be written to the results; put it "
            "into RUBRIC_JUDGE_API_KEY, or into a variable of your own and name that in api_key_env"
        )


def is_secret_name(name: str) -> bool:
    """Whether a setting of this name holds a secret: api_key, auth_token, password, header …"""
    words = set(re.split(r"[^a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()))
    return bool(words & _SECRET_WORDS)


_SECRET_WORDS = {
    "apikey", "authorization", "credential", "credentials", "header", "headers", "key",
    "passwd", "password", "secret", "token",
}  # fmt: skip


def _one_line(error: ValidationError, places: Mapping[str, str]) -> str:
    first = error.errors(include_url=False)[0]
    field = str(first["loc"][0]) if first["loc"] else "judge"
    place = places.get(field, field)
    if first["type"] == "extra_forbidden":
        known = ", ".join(JudgeConfig.model_fields)
        return f"{place}: the judge has no setting {field!r}; it has {known}"
    value = repr(first["input"])
    # What was put there by mistake may be a secret.
    shown = "this value" if field == "api_key_env" or "@" in value else value
    takes = JudgeConfig.model_fields[field].description
    return f"{place}: {shown} is not valid; {field} takes {takes}"
