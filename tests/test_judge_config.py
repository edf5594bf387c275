"""The judge's settings: three places, one winner, clear refusals, and no key in any record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from custom_metrics.arguments import read_pairs
from custom_metrics.errors import ConfigError
from custom_metrics.judge import JudgeConfig, resolve_config
from custom_metrics.judge.config import Prices
from custom_metrics.masking import is_secret_name

SECRET = "sk-not-for-results"
AZURE = {"azure_endpoint": "https://mine.openai.azure.com", "api_version": "2024-10-21"}
OWN_SERVER = "http://localhost:8000/v1"


def judge(**settings: Any) -> JudgeConfig:
    """Settings as they are once the three places are one."""
    return JudgeConfig.model_validate(settings)


def refusal(
    metadata: Any = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> str:
    """The one line with which the settings are refused."""
    with pytest.raises(ConfigError) as caught:
        resolve_config(metadata, overrides, environ or {})
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- Fields and places ---------------------------------------------------------------------------

# As strings, which is what an environment variable and a key=value pair can hold.
FIELDS: dict[str, tuple[str, Any]] = {
    "rpm": ("600", 600),
    "tpm": ("100000", 100_000),
    "max_outage": ("60", 60.0),
    "max_calls": ("100", 100),
    "max_cost": ("2.5", 2.5),
    "prices": ("1.1,0.275,4.4", Prices(prompt=1.1, cached=0.275, completion=4.4)),
    "backend": ("lexical", "lexical"),
    "model": ("gpt-mine", "gpt-mine"),
    "base_url": (OWN_SERVER, OWN_SERVER),
    "api": ("chat", "chat"),
    "azure_endpoint": ("https://mine.openai.azure.com", "https://mine.openai.azure.com"),
    "api_version": ("2024-10-21", "2024-10-21"),
    "temperature": ("0", 0.0),
    "max_tokens": ("512", 512),
    "reasoning_effort": ("low", "low"),
    "judge_model": ("hf", "hf"),
    "judge_model_args": (
        "pretrained=me/mine,batch_size=8",
        {"pretrained": "me/mine", "batch_size": 8},
    ),
    "structured": ("json_schema", "json_schema"),
    "extra_body": ('{"top_k": 1, "a": {"b": [true]}}', {"top_k": 1, "a": {"b": [True]}}),
    "concurrency": ("8", 8),
    "timeout": ("2.5", 2.5),
    "max_retries": ("0", 0),
    "prompt": ("builtin", "builtin"),
    "on_failure": ("unmet", "unmet"),
    "api_key_env": ("MY_KEY", "MY_KEY"),
    "repeats": ("3", 3),
}
OF_PANELS = {"models", "min_judges"}  # tests/test_panel_config.py
NEEDED_BESIDE = {
    "max_cost": {"prices": "1,1,1"},
    "azure_endpoint": {"api_version": "2024-10-21"},
    "judge_model": {"backend": "lm_eval"},
    "judge_model_args": {"backend": "lm_eval", "judge_model": "hf"},
}

DEFAULTS: dict[str, Any] = {
    "backend": "openai",
    "model": "o4-mini",
    "base_url": None,
    "api": "auto",
    "azure_endpoint": None,
    "api_version": None,
    "temperature": None,
    "max_tokens": None,
    "reasoning_effort": None,
    "judge_model": None,
    "judge_model_args": None,
    "structured": "auto",
    "extra_body": None,
    "concurrency": 64,
    "prompt": "official",
    "on_failure": "exclude",
    "api_key_env": None,
}


def test_the_tables_here_name_every_field() -> None:
    assert set(FIELDS) | OF_PANELS == set(JudgeConfig.model_fields)


def test_without_settings_the_defaults_hold() -> None:
    found = resolve_config(environ={}).model_dump()
    assert {name: found[name] for name in DEFAULTS} == DEFAULTS
    assert set(found) - set(DEFAULTS) == {
        "timeout",
        "max_retries",
        "rpm",
        "tpm",
        "max_outage",
        "max_calls",
        "max_cost",
        "prices",
        "repeats",
        *OF_PANELS,
    }


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_is_set_by_a_string_from_every_place(field: str) -> None:
    text, value = FIELDS[field]
    beside = NEEDED_BESIDE.get(field, {})
    found = [
        resolve_config(beside, environ={f"RUBRIC_JUDGE_{field.upper()}": text}),
        resolve_config({**beside, field: text}, environ={}),
        resolve_config(beside, {field: text}, environ={}),
        resolve_config({**beside, field: value}, environ={}),
    ]
    assert [getattr(config, field) for config in found] == [value] * 4


def test_the_environment_of_the_process_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUBRIC_JUDGE_MODEL", "from-env")
    assert resolve_config().model == "from-env"


def test_metadata_beats_the_environment_and_the_command_line_beats_both() -> None:
    environ = {"RUBRIC_JUDGE_MODEL": "a", "RUBRIC_JUDGE_TIMEOUT": "1", "RUBRIC_JUDGE_API": "chat"}
    metadata = {"model": "b", "timeout": 2}
    found = resolve_config(metadata, {"model": "c"}, environ)
    assert (found.model, found.timeout, found.api) == ("c", 2, "chat")


def test_a_wrong_value_that_a_later_place_replaces_does_no_harm() -> None:
    assert resolve_config({"timeout": 9}, environ={"RUBRIC_JUDGE_TIMEOUT": "soon"}).timeout == 9


def test_an_empty_variable_counts_as_unset() -> None:
    assert resolve_config(environ={"RUBRIC_JUDGE_BASE_URL": ""}).base_url is None


def test_a_model_whose_name_is_a_number_is_a_name() -> None:
    assert resolve_config({"model": 4}, environ={}).model == "4"


def test_other_variables_are_left_alone() -> None:
    environ = {"RUBRIC_DATA_DIR": "/x", "OPENAI_BASE_URL": "http://x", "RUBRIC_JUDGEMENT": "x"}
    assert resolve_config(environ=environ) == judge()


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValueError, match="frozen"):
        judge().model = "other"


# --- Refusals ------------------------------------------------------------------------------------

WRONG: list[tuple[str, Any, str]] = [
    ("backend", "anthropic", "lexical"),
    ("model", "", "name"),
    ("model", None, "name"),
    ("base_url", "localhost:8000", "http://localhost:8000/v1"),
    ("base_url", "ftp://host/v1", "http://localhost:8000/v1"),
    ("base_url", "http://", "http://localhost:8000/v1"),
    ("base_url", 7, "http://localhost:8000/v1"),
    ("api", "completions", "responses"),
    ("azure_endpoint", "mine", "Azure"),
    ("temperature", "hot", "0 to 2"),
    ("temperature", 2.1, "0 to 2"),
    ("temperature", -0.1, "0 to 2"),
    ("temperature", "nan", "0 to 2"),
    ("max_tokens", 0, "tokens"),
    ("max_tokens", "1e3", "tokens"),
    ("max_tokens", 1.5, "tokens"),
    ("reasoning_effort", ["low"], "low"),
    ("extra_body", "{", "JSON object"),
    ("extra_body", "[]", "JSON object"),
    ("extra_body", [1], "JSON object"),
    ("extra_body", 3, "JSON object"),
    ("concurrency", 0, "1 to 1000"),
    ("concurrency", 1001, "1 to 1000"),
    ("concurrency", "many", "1 to 1000"),
    ("concurrency", 2.5, "1 to 1000"),
    ("timeout", 0, "seconds"),
    ("timeout", -1, "seconds"),
    ("timeout", "nan", "seconds"),
    ("timeout", "10s", "seconds"),
    ("max_retries", -1, "0 to 100"),
    ("max_retries", 101, "0 to 100"),
    ("prompt", "mine", "builtin"),
    ("on_failure", "ignore", "exclude"),
    ("api_key_env", "my key", "NAME"),
    ("structured", "json", "json_schema"),
    ("judge_model", "", "vllm"),
    ("judge_model_args", "pretrained", "a=b,c=d"),
    ("judge_model_args", "{", "a=b,c=d"),
    ("judge_model_args", [1], "a=b,c=d"),
]


@pytest.mark.parametrize(("field", "value", "takes"), WRONG)
def test_a_wrong_value_names_place_value_and_what_the_field_takes(
    field: str, value: Any, takes: str
) -> None:
    for message, place in (
        (refusal({field: value}), f'metadata judge "{field}"'),
        (refusal(None, {field: value}), f"--judge {field}"),
    ):
        assert message.startswith(f"{place}: ")
        assert takes in message
        if field not in (
            "api_key_env", "azure_endpoint", "base_url", "extra_body", "judge_model_args"
        ):  # fmt: skip
            assert repr(value) in message


@pytest.mark.parametrize(
    ("field", "value", "takes"), [case for case in WRONG if isinstance(case[1], str) and case[1]]
)
def test_a_wrong_variable_is_named_in_full(field: str, value: str, takes: str) -> None:
    message = refusal(environ={f"RUBRIC_JUDGE_{field.upper()}": value})
    assert message.startswith(f"RUBRIC_JUDGE_{field.upper()}: ")
    assert takes in message


@pytest.mark.parametrize("field", ["temprature", "url", "", "Model", "api-version"])
def test_an_unknown_field_is_named_beside_the_known_ones(field: str) -> None:
    for message in (refusal({field: 1}), refusal(None, {field: 1})):
        assert repr(field) in message
        assert all(known in message for known in JudgeConfig.model_fields)


def test_an_unknown_variable_is_named() -> None:
    message = refusal(environ={"RUBRIC_JUDGE_TEMPRATURE": "0"})
    assert message.startswith("RUBRIC_JUDGE_TEMPRATURE: ")
    assert "temperature" in message


@pytest.mark.parametrize("metadata", ["o4-mini", [], ["model"], 3, True])
def test_metadata_that_is_no_object_is_refused(metadata: Any) -> None:
    message = refusal(metadata)
    assert "judge" in message
    assert '{"model": "o4-mini"}' in message


def test_two_addresses_are_refused() -> None:
    message = refusal({**AZURE, "base_url": OWN_SERVER})
    assert "base_url" in message
    assert "azure_endpoint" in message


def test_azure_without_a_version_is_refused() -> None:
    assert "api_version" in refusal({"azure_endpoint": AZURE["azure_endpoint"]})


@pytest.mark.parametrize(
    "metadata",
    [
        {"base_url": "http://[::1"},
        {"base_url": "http://host:99999/v1"},
        {"base_url": "http://host:port/v1"},
        {1: 2},
    ],
    ids=str,
)
def test_what_cannot_be_an_address_or_a_field_is_refused_in_one_line(metadata: Any) -> None:
    with pytest.raises(ConfigError, match="metadata judge"):
        assert resolve_config(metadata, environ={}).endpoint


@pytest.mark.parametrize("field", ["concurrency", "temperature", "max_tokens", "timeout"])
def test_true_is_no_number(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        resolve_config({field: True}, environ={})


# --- No key where results are written ------------------------------------------------------------

SECRET_FIELDS = (
    "api_key", "apikey", "apiKey", "API_KEY", "openai_api_key", "key", "auth_token", "authToken",
    "access-token", "token", "Authorization", "authorization", "password", "passwd", "secret",
    "client_secret", "headers", "default_headers", "extra_headers", "credentials",
)  # fmt: skip


@pytest.mark.parametrize("field", SECRET_FIELDS)
def test_a_key_is_refused_from_every_place_and_not_repeated(field: str) -> None:
    messages = [
        refusal({field: SECRET}),
        refusal(None, {field: SECRET}),
        refusal({"extra_body": {field: SECRET}}),
        refusal(None, {"extra_body": {field: {"x": SECRET}}}),
    ]
    for message in messages:
        assert SECRET not in message
        assert "RUBRIC_JUDGE_API_KEY" in message
        assert "api_key_env" in message


@pytest.mark.parametrize("name", ["RUBRIC_JUDGE_KEY", "RUBRIC_JUDGE_AUTH_TOKEN"])
def test_a_variable_that_would_be_taken_for_a_key_is_refused(name: str) -> None:
    message = refusal(environ={name: SECRET})
    assert message.startswith(name)
    assert SECRET not in message


NESTED = {"a": [{"b": {"api_key": SECRET}}]}


@pytest.mark.parametrize("body", [NESTED, json.dumps(NESTED), json.dumps({"api_key": SECRET})])
def test_a_key_anywhere_in_extra_body_is_refused(body: Any) -> None:
    assert SECRET not in refusal({"extra_body": body})
    assert SECRET not in refusal(None, {"extra_body": body})


def test_a_key_in_the_variable_of_extra_body_is_refused() -> None:
    environ = {"RUBRIC_JUDGE_EXTRA_BODY": json.dumps({"auth_token": SECRET})}
    assert SECRET not in refusal(environ=environ)


@pytest.mark.parametrize(
    "value", ["https://user:{}@host/v1", "https://{}@host/v1", "https://host/v1?api_key={}"]
)
@pytest.mark.parametrize("field", ["base_url", "azure_endpoint"])
def test_an_address_that_holds_a_key_is_refused_and_not_repeated(field: str, value: str) -> None:
    metadata = {**({} if field == "base_url" else AZURE), field: value.format(SECRET)}
    message = refusal(metadata)
    assert field in message
    assert SECRET not in message


@pytest.mark.parametrize("value", [SECRET, f"user:{SECRET}@host"])
def test_a_key_given_as_its_variables_name_is_not_repeated(value: str) -> None:
    assert SECRET not in refusal({"api_key_env": value})


@pytest.mark.parametrize(
    "metadata",
    [
        {"extra_body": f'{{"api_key": "{SECRET}"'},
        {"base_url": SECRET},
        f"api_key={SECRET}",
    ],
    ids=["extra_body that is not JSON", "as the address", "judge as a string"],
)
def test_a_key_in_the_wrong_place_is_not_repeated(metadata: Any) -> None:
    assert SECRET not in refusal(metadata)


@pytest.mark.parametrize(
    "name", ["prompt_cache_key", "stop_token_ids", "thinking_token_budget", "bad_words_token_ids"]
)
def test_request_fields_of_openai_and_vllm_are_no_keys(name: str) -> None:
    assert not is_secret_name(name)
    assert resolve_config({"extra_body": {name: [1]}}, environ={}).extra_body == {name: [1]}


@pytest.mark.parametrize(
    "name",
    ["max_tokens", "max_completion_tokens", "model", "tokenizer", "monkey", "skip_special_tokens"],
)
def test_other_names_are_no_keys(name: str) -> None:
    assert not is_secret_name(name)


def test_a_variable_that_api_key_env_names_may_begin_like_ours() -> None:
    environ = {"RUBRIC_JUDGE_API_KEY_ENV": "RUBRIC_JUDGE_VLLM_KEY", "RUBRIC_JUDGE_VLLM_KEY": SECRET}
    config = resolve_config({"base_url": OWN_SERVER}, environ=environ)
    assert config.api_key(environ) == SECRET


# --- Which key goes where ------------------------------------------------------------------------

KEYS = {
    "RUBRIC_JUDGE_API_KEY": "ours",
    "OPENAI_API_KEY": "of-OpenAI",
    "AZURE_OPENAI_API_KEY": "of-Azure",
    "MY_KEY": "mine",
}


def without(*names: str) -> dict[str, str]:
    return {name: key for name, key in KEYS.items() if name not in names}


@pytest.mark.parametrize(
    ("settings", "environ", "key"),
    [
        # The variable that api_key_env names comes first, then ours, then the vendor's.
        ({"api_key_env": "MY_KEY"}, KEYS, "mine"),
        ({}, KEYS, "ours"),
        ({}, without("RUBRIC_JUDGE_API_KEY"), "of-OpenAI"),
        (AZURE, KEYS, "ours"),
        (AZURE, without("RUBRIC_JUDGE_API_KEY"), "of-Azure"),
        ({"base_url": OWN_SERVER}, KEYS, "ours"),
        ({"base_url": OWN_SERVER, "api_key_env": "MY_KEY"}, KEYS, "mine"),
        ({"base_url": OWN_SERVER, "api_key_env": "OPENAI_API_KEY"}, KEYS, "of-OpenAI"),
        # A server of one's own needs none; a lexical judge gets none.
        ({"base_url": OWN_SERVER}, without("RUBRIC_JUDGE_API_KEY"), None),
        ({"base_url": OWN_SERVER}, {}, None),
        ({"backend": "lexical"}, KEYS, None),
        ({"backend": "lexical"}, {}, None),
        # Blank is unset, and blanks around a key are not part of it.
        ({"base_url": OWN_SERVER}, {"RUBRIC_JUDGE_API_KEY": "  "}, None),
        ({}, {"RUBRIC_JUDGE_API_KEY": " ", "OPENAI_API_KEY": " k\n"}, "k"),
    ],
)
def test_each_endpoint_gets_its_key(
    settings: dict[str, Any], environ: dict[str, str], key: str | None
) -> None:
    assert judge(**settings).api_key(environ) == key


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com/v1",
        "https://API.OpenAI.com/v1",
        "https://api.openai.com:443/v1",
        "https://api.openai.com",
        "https://eu.api.openai.com/v1",
    ],
)
def test_openais_own_key_goes_to_openai(url: str) -> None:
    found = judge(base_url=url)
    assert found.api_key({"OPENAI_API_KEY": "k"}) == "k"
    assert found.uses_responses


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com.evil.example",
        "https://api.openai.com.evil.example/v1",
        "http://api.openai.com/v1",
        "https://evil.example/api.openai.com/v1",
        "https://evil.example/v1?host=.api.openai.com",
        "https://evil.example#.api.openai.com",
        "https://evil-api.openai.com/v1",
        "https://xapi.openai.com/v1",
        "https://api-openai.com/v1",
        "https://openai.com/v1",
        "https://api.openai.com@evil.example/v1",
        "https://api.openai.com:pw@evil.example/v1",
        "https://mine.openai.azure.com/openai/v1",
        "https://openrouter.ai/api/v1",
        OWN_SERVER,
    ],
)
def test_openais_own_key_goes_nowhere_else(url: str) -> None:
    found = judge(base_url=url)
    assert found.api_key({"OPENAI_API_KEY": "k", "AZURE_OPENAI_API_KEY": "k"}) is None
    assert not found.is_openai
    assert not found.uses_responses


@pytest.mark.parametrize("character", ["\\", ";", "%2f", "%23"])
def test_a_host_with_odd_characters_is_not_openais(character: str) -> None:
    found = judge(base_url=f"https://evil.example{character}.api.openai.com/v1")
    assert not found.is_openai


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, ("RUBRIC_JUDGE_API_KEY", "OPENAI_API_KEY", "api.openai.com", "base_url")),
        (AZURE, ("RUBRIC_JUDGE_API_KEY", "AZURE_OPENAI_API_KEY", "mine.openai.azure.com")),
        ({"api_key_env": "MY_KEY"}, ("MY_KEY",)),
        ({"base_url": OWN_SERVER, "api_key_env": "MY_KEY"}, ("MY_KEY", "localhost:8000")),
    ],
)
@pytest.mark.parametrize("environ", [{}, {"MY_KEY": " ", "OPENAI_API_KEY": ""}])
def test_a_missing_key_says_which_variable_to_set(
    settings: dict[str, Any], named: tuple[str, ...], environ: dict[str, str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        judge(**settings).api_key(environ)
    assert "\n" not in str(caught.value)
    assert all(name in str(caught.value) for name in named)


def test_the_named_variable_alone_counts() -> None:
    with pytest.raises(ConfigError, match="MY_KEY"):
        judge(api_key_env="MY_KEY").api_key(without("MY_KEY"))


# --- What is written down ------------------------------------------------------------------------


def test_auto_means_responses_for_openai_alone() -> None:
    assert judge().uses_responses
    assert not judge(base_url=OWN_SERVER).uses_responses
    assert not judge(**AZURE).uses_responses
    assert judge(base_url=OWN_SERVER, api="responses").uses_responses
    assert not judge(api="chat").uses_responses


def test_the_record_says_what_was_used() -> None:
    found = judge(base_url=OWN_SERVER, model="m", temperature=0, extra_body={"top_k": 1})
    assert found.record() == {
        "backend": "openai",
        "model": "m",
        "endpoint": OWN_SERVER,
        "api": "chat",
        "temperature": 0.0,
        "extra_body": {"top_k": 1},
        "structured": "off",
        "concurrency": 64,
        "timeout": found.timeout,
        "max_retries": found.max_retries,
        "prompt": "official",
        "on_failure": "exclude",
    }


@pytest.mark.parametrize(
    "settings",
    [
        {"base_url": f"https://user:{SECRET}@host:8443/v1"},
        {"base_url": f"https://{SECRET}@host:8443/v1"},
        {"base_url": f"https://host:8443/v1?api_key={SECRET}"},
        {"base_url": f"https://host:8443/v1#{SECRET}"},
        {"azure_endpoint": f"https://host:8443/v1?api_key={SECRET}", "api_version": "1"},
    ],
)
def test_no_record_or_message_holds_what_an_address_hides(settings: dict[str, Any]) -> None:
    found = judge(**settings)
    assert found.endpoint == "https://host:8443/v1"
    assert SECRET not in json.dumps(found.record())


def test_no_record_holds_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.setenv(name, SECRET)
    for settings in ({}, AZURE, {"base_url": OWN_SERVER, "api_key_env": "MY_KEY"}):
        found = judge(**settings)
        assert found.api_key() == SECRET
        assert SECRET not in json.dumps(found.record()) + repr(found) + found.endpoint


def test_a_lexical_record_says_that_its_scores_mean_nothing() -> None:
    record = judge(backend="lexical", base_url=OWN_SERVER).record()
    assert set(record) == {"backend", "prompt", "on_failure", "note"}
    assert "mean nothing" in record["note"]


def test_an_ipv6_address_is_recorded_as_it_is() -> None:
    assert judge(base_url="http://[::1]:8000/v1").endpoint == "http://[::1]:8000/v1"


# --- A judge inside the process -------------------------------------------------------------------

IN_PROCESS = {"backend": "lm_eval", "judge_model": "hf", "judge_model_args": {"pretrained": "me/m"}}


@pytest.mark.parametrize(
    "field",
    ["model", "base_url", "api", "reasoning_effort", "extra_body", "concurrency", "timeout", "rpm",
     "tpm", "max_outage", "prices", "structured", "api_key_env"],
)  # fmt: skip
def test_what_means_nothing_in_process_is_refused(field: str) -> None:
    text, _ = FIELDS[field]
    message = refusal({**IN_PROCESS, field: text})
    assert message.startswith(f'metadata judge "{field}": ')
    assert "backend=lm_eval" in message
    variable = f"RUBRIC_JUDGE_{field.upper()}"
    assert refusal(IN_PROCESS, environ={variable: text}).startswith(f"{variable}: ")


@pytest.mark.parametrize("field", ["judge_model", "judge_model_args"])
def test_a_model_of_the_harness_wants_its_backend(field: str) -> None:
    message = refusal(None, {field: FIELDS[field][0]})
    assert message == f"--judge {field}: {field} goes with backend=lm_eval"


def test_the_backend_wants_a_model() -> None:
    message = refusal(None, {"backend": "lm_eval"})
    assert message.startswith("--judge backend: ")
    assert "judge_model" in message


@pytest.mark.parametrize(
    "arguments", [f"pretrained=me/m,token={SECRET}", {"pretrained": "m", "hf_token": SECRET},
                  {"base_url": f"http://user:{SECRET}@host/v1"}],
)  # fmt: skip
def test_a_secret_among_a_models_arguments_is_refused_and_not_repeated(arguments: Any) -> None:
    message = refusal({**IN_PROCESS, "judge_model_args": arguments})
    assert SECRET not in message
    assert "judge_model_args" in message


def test_in_process_needs_no_key_and_records_what_it_uses() -> None:
    config = resolve_config({**IN_PROCESS, "temperature": 0.5}, environ={})
    assert config.api_key({}) is None
    assert config.record() == {
        "backend": "lm_eval",
        "judge_model": "hf",
        "judge_model_args": {"pretrained": "me/m"},
        "temperature": 0.5,
        "prompt": "official",
        "on_failure": "exclude",
    }
    assert config.name == "me/m"


def test_the_models_arguments_are_the_rest_of_their_argument() -> None:
    found = read_pairs(
        "--judge",
        ["backend=lm_eval,judge_model=hf,judge_model_args=pretrained=me/m,dtype=float32",
         "max_tokens=5,prompt=builtin", 'judge_model_args={"a": "b,c=d"}'],
    )  # fmt: skip
    assert found == {
        "backend": "lm_eval", "judge_model": "hf", "max_tokens": "5", "prompt": "builtin",
        "judge_model_args": '{"a": "b,c=d"}',
    }  # fmt: skip
    first = read_pairs("--judge", ["judge_model=hf,judge_model_args=pretrained=me/m,dtype=float32"])
    assert first["judge_model_args"] == "pretrained=me/m,dtype=float32"
