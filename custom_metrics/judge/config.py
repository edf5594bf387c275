"""The judge's settings, from three places, with errors that name field, value and place."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator

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
# What is the panel's as a whole: no judge of it has its own, and none has it from the others.
_OF_PANEL = ("models", "min_judges", "on_failure", "prompt")
_NOT_INHERITED = {"models", "min_judges", "on_failure", "max_calls", "max_cost"}
# What makes no other judge of it.
_NOT_IDENTITY = {"api_key_env", "concurrency", "max_retries", "repeats", "timeout"}
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
    repeats: int = Field(
        1, ge=1, le=100, description="how often the judge is asked each question, 1 to 100"
    )
    models: tuple[JudgeConfig, ...] | None = Field(
        None,
        min_length=1,
        description="a JSON list of judges, each an object of settings such as "
        '{"model": "…", "base_url": "…", "api_key_env": "…"}',
    )
    min_judges: int | None = Field(
        None, ge=1, description="how many judges of models have to give a verdict, 1 or more"
    )
    # Whether the judge's general key is this one's: not if a panel has several endpoints.
    _general_key: bool = PrivateAttr(True)

    @field_validator("extra_body", "models", mode="before")
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

    @property
    def members(self) -> tuple[JudgeConfig, ...]:
        """The judges of a panel, or the one judge."""
        return self.models or (self,)

    @property
    def panel(self) -> tuple[JudgeConfig, ...]:
        """:attr:`members` as each is asked in a panel, which itself minds failures and budget."""
        if self.models:
            return self.models
        whole = {"on_failure": "exclude", "max_calls": None, "max_cost": None}
        return (self.model_copy(update=whole),)

    @property
    def judge_names(self) -> tuple[str, ...]:
        """A name for each of :attr:`members`: its model's, with its place where that is not one's
        alone."""
        names = [member.name for member in self.members]
        count = Counter(names)
        return tuple(
            name if count[name] == 1 else f"{name} #{place}" for place, name in enumerate(names, 1)
        )

    @property
    def opinions(self) -> tuple[tuple[str, int], ...]:
        """Whose opinion on each call is asked for, and which time: ``(judge, repeat)``."""
        return tuple(
            (name, repeat)
            for name, member in zip(self.judge_names, self.members, strict=True)
            for repeat in range(member.repeats)
        )

    @property
    def least_judges(self) -> int:
        """How many judges have to give a verdict: more than half, unless it is set."""
        return self.min_judges or len(self.members) // 2 + 1

    @property
    def lexical(self) -> bool:
        """Whether a judge among them is the smoke test."""
        return any(member.backend == "lexical" for member in self.members)

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
        """Whether the judge, or one of them, is a model of the harness's inside this process."""
        return self.backend == "lm_eval" or any(m.in_process for m in self.models or ())

    @cached_property
    def name(self) -> str:
        """The judge model's name, for messages and records."""
        if self.models:
            return " + ".join(self.judge_names)
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
        if self.models:
            own = [m.record().items() for m in self.models]
            return {
                "model": self.name,
                "models": [{n: v for n, v in each if n not in _OF_PANEL} for each in own],
                "min_judges": self.least_judges,
                "prompt": self.prompt,
                "on_failure": self.on_failure,
            }
        once = {"repeats"} if self.repeats == 1 else set()
        excluded = _NOT_RECORDED | once
        kept: dict[str, Any] = mask(self.model_dump(exclude_none=True, exclude=excluded))
        if self.backend == "lexical":
            names = ["backend", "prompt", "on_failure", *({"repeats"} & kept.keys())]
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
            names = " or ".join(self._key_names or ["api_key_env"])
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
        names = ["RUBRIC_JUDGE_API_KEY"] if self._general_key else []
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
    in_env = {n: environ.get(f"{ENV_PREFIX}{n.upper()}") for n in ("api_key_env", "models")}
    named = {n for s in (in_env, metadata or {}, overrides or {}) for n in _key_variables(s)}
    not_fields = {*_NOT_FIELDS, *named}
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
    keys = known_secrets(environ)
    keys |= {k for n in named if len(k := environ.get(n, "").strip()) >= LEAST_LENGTH}
    if merged.get("models") in (None, ""):
        if merged.get("min_judges") is not None:
            raise ConfigError(f"{places['min_judges']}: min_judges goes with models")
        return _validated({n: v for n, v in merged.items() if n != "models"}, places, keys)
    return _panel(merged, places, keys)


def _key_variables(settings: Mapping[str, Any]) -> Iterator[str]:
    """The variables that ``api_key_env`` names, in ``models`` too, whatever else is wrong there."""
    models = settings.get("models")
    with contextlib.suppress(ValueError, RecursionError):
        models = json.loads(models) if isinstance(models, str) else models
    judges = list(models) if isinstance(models, list | tuple) else []
    for judge in (settings, *judges):
        if isinstance(judge, Mapping) and isinstance(name := judge.get("api_key_env"), str):
            yield name


def _panel(merged: Mapping[str, Any], places: Mapping[str, str], keys: set[str]) -> JudgeConfig:
    """The settings of several judges: each one's own over the common ones."""
    place = places["models"]
    given = _given_judges(merged["models"], place)
    common = {n: v for n, v in merged.items() if n != "models" and v is not None}
    judges = [
        _validated(
            {**(inherited := _inherited(common, own)), **own},
            {n: places[n] for n in inherited} | {n: f"{place}, judge {number}, {n}" for n in own},
            keys,
        )
        for number, own in enumerate(given, 1)
    ]
    _refuse_held_secrets(common, places, keys)
    of_panel = {n: v for n, v in common.items() if n in {*_OF_PANEL, "max_calls", "max_cost"}}
    panel = _validated(of_panel, places, keys, prices_elsewhere=True)
    if panel.min_judges is not None and panel.min_judges > len(judges):
        raise ConfigError(
            f"{places['min_judges']}: {panel.min_judges} judges have to give a verdict, and models "
            f"has {len(judges)}"
        )
    paid = [judge for judge in judges if judge.backend == "openai"]
    if panel.max_cost is not None and any(judge.prices is None for judge in paid):
        raise ConfigError(f"{places['max_cost']}: max_cost needs the prices of every judge as well")
    if len(judges) == 1:  # no panel: all that is common is this judge's own
        (judge,) = judges
        own = {n: getattr(panel, n) for n in ("on_failure", "max_calls", "max_cost")}
        own = {n: v for n, v in own.items() if n in common and n not in given[0]}
        return judge.model_copy(update=own)
    _refuse_same(judges, place)
    _part_keys(judges, common, places)
    return panel.model_copy(update={"models": tuple(judges)})


def _given_judges(given: Any, place: str) -> list[dict[str, Any]]:
    """Each judge's own settings, none of which may be the panel's."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            given = None
    listed = isinstance(given, list | tuple) and all(isinstance(j, Mapping) for j in given)
    if not listed or not given:
        takes = JudgeConfig.model_fields["models"].description
        raise ConfigError(f"{place}: this value is not valid; models takes {takes}")
    judges = [{str(name): value for name, value in judge.items()} for judge in given]
    for number, own in enumerate(judges, 1):
        for name in own:
            here = f"{place}, judge {number}, {name}"
            if name not in JudgeConfig.model_fields and is_secret_name(name):
                raise _refused(here)
            if name in _OF_PANEL:
                raise ConfigError(f"{here}: it is the panel's as a whole; set it there")
            if name not in JudgeConfig.model_fields:
                spelt = name if shown(name, "") else "…"
                raise ConfigError(_no_setting(f"{place}, judge {number}, {spelt}", name))
    return judges


def _refuse_same(judges: Sequence[JudgeConfig], place: str) -> None:
    """Two judges that are one would say the same and be counted twice."""
    seen: dict[str, int] = {}
    for number, config in enumerate(judges, 1):
        record = {n: v for n, v in config.record().items() if n not in _NOT_IDENTITY}
        first = seen.setdefault(json.dumps(record, sort_keys=True, default=str), number)
        if first != number:
            raise ConfigError(
                f"{place}: judges {first} and {number} are the same one, so that both would say "
                "the same; repeats asks one judge several times"
            )


def _inherited(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The common settings that mean something to a judge with its ``own``."""
    backend = own.get("backend", common.get("backend", "openai"))
    others: set[str] = set(_NOT_IN_PROCESS if backend == "lm_eval" else _IN_PROCESS)
    for one, other in (("base_url", "azure_endpoint"), ("azure_endpoint", "base_url")):
        if own.get(one) is not None:
            others.add(other)
    return {n: v for n, v in common.items() if n not in others | _NOT_INHERITED}


def _part_keys(
    judges: Sequence[JudgeConfig], common: Mapping[str, Any], places: Mapping[str, str]
) -> None:
    """See that no key meant for one endpoint goes to another."""
    of_all = common.get("api_key_env")
    without = [c for c in judges if c.backend == "openai" and c.api_key_env == of_all]
    if len({config.endpoint for config in without}) < 2:
        return
    if of_all is not None:
        raise ConfigError(
            f"{places['api_key_env']}: one key for judges at several endpoints; give each judge "
            "of models its own api_key_env"
        )
    for config in without:
        config._general_key = False


def _validated(
    merged: Mapping[str, Any],
    places: Mapping[str, str],
    keys: set[str],
    *,
    prices_elsewhere: bool = False,
) -> JudgeConfig:
    try:
        config = JudgeConfig.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(_one_line(error, places)) from None
    if config.max_cost is not None and config.prices is None and not prices_elsewhere:
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
    _refuse_held_secrets(merged, places, keys)
    return config


def _refuse_held_secrets(
    settings: Mapping[str, Any], places: Mapping[str, str], keys: set[str]
) -> None:
    for field, value in settings.items():
        if holds_secret(value, keys) or mask(value) != value:
            raise _refused(places[field])


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


def _no_setting(place: str, name: str) -> str:
    known = ", ".join(JudgeConfig.model_fields)
    return f"{place}: the judge has no setting {shown(name, 'of this name')}; it has {known}"


def _one_line(error: ValidationError, places: Mapping[str, str]) -> str:
    first = error.errors(include_url=False)[0]
    field = str(first["loc"][0]) if first["loc"] else "judge"
    place = places.get(field, "judge")
    if first["type"] == "extra_forbidden":
        return _no_setting(place, field)
    # What was put there by mistake may be a secret.
    telling = (
        "api_key_env", "azure_endpoint", "base_url", "extra_body", "judge_model_args", "models",
    )  # fmt: skip
    value = "this value" if field in telling else shown(first["input"])
    takes = JudgeConfig.model_fields[field].description
    return f"{place}: {value} is not valid; {field} takes {takes}"
