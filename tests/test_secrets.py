"""No secret reaches a stream, a file, a cache or an error, wherever it was put."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from asking import ask, call, judge_at
from commands import command, judge_arguments, model_arguments, results
from rows import World, criterion_of
from stub_server import Received, Reply, StubServer, openai_error, verdict

from custom_metrics import fetch
from custom_metrics.cli import main
from custom_metrics.errors import ConfigError, FetchError, JudgeError
from custom_metrics.judge import JudgeConfig, resolve_config
from custom_metrics.masking import is_secret_name, known_secrets, mask, mask_addresses, shown

SECRET = "sk-a-secret-0123456789abcdef"
OWN_SERVER = "http://localhost:8000/v1"


pytestmark = pytest.mark.usefixtures("small_data")


# --- what is a secret ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "openai_key", "hf_key", "judge_key", "mykey_key", "serviceKey", "auth_token", "api_key",
        "token", "key", "keys", "api_keys", "hub_token", "github_token", "x-api-key", "id_token",
        "basic_auth", "auth", "cookie", "proxy_password", "pwd", "X-Amz-Signature", "sig",
        "use_auth_token", "OPENAI_API_KEY", "HF_TOKEN", "ANTHROPIC_API_KEY", "access_token",
    ],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "max_tokens", "tokens", "eos_token", "think_end_token", "pad_token", "bos_token", "keyed",
        "key_padding", "key_padding_mask", "add_bos_token", "image_token", "prompt_cache_key",
        "stop_token_ids", "custom_prefix_token_id", "num_tokens", "skip_special_tokens", "monkey",
        "tokenized_requests", "keyword", "tokenizer", "api_key_env", "author", "design", "sort_key",
        "max_gen_toks", "primary_key", "tokenizer_backend", "signal", "thinking_token_budget",
    ],
)  # fmt: skip
def test_names_of_other_things(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("address", "masked"),
    [
        ("http://host/v1", "http://host/v1"),
        ("http://host:80/a@b", "http://host:80/a@b"),
        (f"http://user:{SECRET}@host:80/v1", "http://***@host:80/v1"),
        (f"http://{SECRET}@host/v1", "http://***@host/v1"),
        (f"http://user:{SECRET}/x@host/v1", "http://***@host/v1"),
        (f"http://user:p@{SECRET}@host/v1", "http://***@host/v1"),
        (f"http://host/v1?key={SECRET}&api-version=1", "http://host/v1?key=***&api-version=1"),
        (f"http://host/v1?{SECRET}", "http://host/v1?***"),
        (f"two: http://a:{SECRET}@h and ws://h?x={SECRET}", "two: http://***@h and ws://h?x=***"),
    ],
)
def test_addresses_are_shown_without_what_they_hide(address: str, masked: str) -> None:
    assert mask_addresses(address) == masked


def test_settings_are_masked_however_deep_and_otherwise_untouched() -> None:
    settings = {
        "x": {"api_key": SECRET, "list": [{"token": SECRET}, ("a", 1)]},
        "headers": {"Authorization": SECRET},
        "url": f"http://u:{SECRET}@host",
        "use_auth_token": True,
        "max_tokens": 5,
    }
    assert mask(settings) == {
        "x": {"api_key": "***", "list": [{"token": "***"}, ("a", 1)]},
        "headers": "***",
        "url": "http://***@host",
        "use_auth_token": True,
        "max_tokens": 5,
    }
    assert settings["headers"] == {"Authorization": SECRET}


def test_the_folder_of_a_process_is_no_password() -> None:
    variables = {"PWD": "/home/someone", "OLDPWD": "/home/someone", "DB_PWD": "a-password"}
    assert known_secrets(variables) == {"a-password"}


def test_only_numbers_and_short_plain_words_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "plain-word")
    for plain in (1, 2.5, None, True, "", "hot", "1e3", "o4-mini", ["low"]):
        assert shown(plain) == repr(plain)
    hidden = [
        SECRET, "sk-abc", "hf_abcdef", "two words", "x" * 21, "plain-word", {"a": 1}, [SECRET],
        "0123456789abcdef", "http://h",
    ]  # fmt: skip
    for value in hidden:
        assert shown(value) == "this value"


# --- the judge's settings ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field", ["temperature", "backend", "concurrency", "prompt", "rpm", SECRET]
)
def test_a_secret_as_a_value_or_a_name_is_not_repeated(field: str) -> None:
    for places in (({field: SECRET}, None), (None, {field: SECRET})):
        with pytest.raises(ConfigError) as caught:
            resolve_config(*places, environ={})
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", SECRET),
        ("model", f"x-{SECRET}"),
        ("base_url", f"http://host/{SECRET}/v1"),
        ("base_url", f"http://host/v1#{SECRET}"),
        ("extra_body", {"user": SECRET}),
        ("extra_body", {"a": [{SECRET: 1}]}),
        ("extra_body", json.dumps({"a": f"Bearer {SECRET}"})),
        ("extra_body", {"callback": "http://user:pw@host/"}),
        ("reasoning_effort", SECRET),
    ],
)
@pytest.mark.parametrize("name", ["RUBRIC_JUDGE_API_KEY", "OPENAI_API_KEY", "MINE"])
def test_a_setting_that_holds_the_key_is_refused(field: str, value: Any, name: str) -> None:
    named = {"api_key_env": name} if name == "MINE" else {}
    with pytest.raises(ConfigError, match=f'metadata judge "{field}"') as caught:
        resolve_config({**named, field: value}, environ={name: SECRET})
    assert SECRET not in str(caught.value)


def test_a_placeholder_of_a_key_may_be_a_word_of_a_setting() -> None:
    body = {"tool_choice": "none"}
    found = resolve_config({"extra_body": body}, environ={"RUBRIC_JUDGE_API_KEY": "none"})
    assert found.extra_body == body


BROKEN = ["sk-one\nsk-two", "“sk-quoted”", "sk-zero\u200bwidth", "sk-schlüssel", "Bearer sk-x"]


@pytest.mark.parametrize("key", BROKEN)
def test_a_key_that_no_header_can_carry_is_refused_by_its_variable(key: str) -> None:
    for name, settings in (("RUBRIC_JUDGE_API_KEY", {}), ("MINE", {"api_key_env": "MINE"})):
        with pytest.raises(ConfigError, match=f"^{name}: ") as caught:
            JudgeConfig.model_validate(settings).api_key({name: key})
        assert "sk-" not in str(caught.value)


def test_a_header_of_openais_that_cannot_be_sent_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org\u200b-mine")
    with (
        judge_at("https://api.openai.com/v1") as judge,
        pytest.raises(ConfigError, match=r"^OPENAI_ORG_ID: "),
    ):
        judge.check()


@pytest.mark.parametrize(
    "url", ["http://127..0:8000/v1", "http://host/v1\x01", "http://\u2025a/v1"]
)
def test_what_cannot_be_sent_at_all_is_no_outage(url: str) -> None:
    with judge_at(url) as judge, pytest.raises(JudgeError, match="no request can be sent"):
        ask(judge, [call()])


@pytest.mark.parametrize("arguments", [[SECRET], ["model=x", SECRET], [f"{SECRET},model=x"]])
def test_a_pair_without_a_sign_is_counted_and_not_repeated(
    arguments: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for start in (
        ["run", "--tasks", "prbench_finance"],
        ["estimate", "--tasks", "prbench_finance"],
    ):
        assert main([*start, "--judge", *arguments]) == 2
        errors = capsys.readouterr().err
        number = 1 + arguments.index(SECRET) if SECRET in arguments else 1
        assert errors == f"error: --judge: key=value is needed; number {number} has no '='\n"


# --- the judge's replies -------------------------------------------------------------------------


def test_a_reply_that_repeats_the_key_is_kept_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUBRIC_JUDGE_API_KEY", SECRET)
    said = verdict(True, f"You sent {SECRET}.")
    with StubServer(lambda _: Reply(said)) as server, judge_at(server.url) as judge:
        (outcome,) = ask(judge, [call()])
    assert outcome.value is not None
    assert outcome.value.explanation == "You sent ***."
    for file in fetch.cache_folder().rglob("*"):
        assert file.is_dir() or SECRET.encode() not in file.read_bytes()


@pytest.mark.parametrize("key", ["EMPTY", "none"])
def test_a_placeholder_of_a_key_is_no_word_to_mask_in_a_reply(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUBRIC_JUDGE_API_KEY", key)
    said = verdict(True, f"It is {key}.")
    with StubServer(lambda _: Reply(said)) as server, judge_at(server.url) as judge:
        (outcome,) = ask(judge, [call()])
    assert outcome.value is not None
    assert outcome.value.explanation == f"It is {key}."


def test_without_a_key_an_error_keeps_its_words() -> None:
    error = openai_error("There are none.", "invalid_request_error", code=None)
    with (
        StubServer(lambda _: Reply(status=400, error=error)) as server,
        judge_at(server.url) as judge,
    ):
        assert "There are none." in str(ask(judge, [call()])[0].failure)


# --- addresses and command lines -----------------------------------------------------------------


@pytest.mark.parametrize(
    "mirror", [f"http://user:{SECRET}@127.0.0.1:9", f"http://127.0.0.1:9?x={SECRET}"]
)
def test_the_address_of_a_mirror_is_shown_without_its_secrets(
    mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUBRIC_GITHUB_RAW", mirror)
    with pytest.raises(FetchError, match=r"127\.0\.0\.1:9") as caught:
        fetch.github_file(["owner/name"], "0" * 40, "file")
    assert SECRET not in str(caught.value)


WRONG: dict[str, tuple[Sequence[str], str]] = {
    "metadata that is no JSON": (
        ["--metadata", f'{{"api_key": "{SECRET}"'],
        "--metadata: not valid JSON (line 1, column",
    ),
    "metadata that is nothing": (["--metadata", SECRET], "--metadata: key=value is needed"),
    "model arguments that are no JSON": (["--model_args", f"{{'token': '{SECRET}'}}"], "JSON"),
    "a model argument without a sign": (["--model_args", f"model=m,{SECRET}"], "number 2"),
    "a secret for generation": (["--gen_kwargs", f"api_key={SECRET}"], "--gen_kwargs"),
    "an unknown flag": (["--judge_key", SECRET], "--judge_key, 1 more"),
    "an unknown flag with its value": ([f"--api_key={SECRET}"], "--api_key"),
    "an ambiguous flag": ([f"--m={SECRET}"], "ambiguous"),
    "no number": (["--limit", SECRET], "invalid float value"),
    "no JSON for the samples": (["--samples", f'{{"{SECRET}": '], "--samples"),
    "the key as the model": (["--judge", f"model={SECRET}"], "--judge model"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_not_repeated(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUBRIC_JUDGE_API_KEY", SECRET)
    arguments, said = WRONG[name]
    try:
        code = main(["run", "--tasks", "prbench_finance", *arguments])
    except SystemExit as ended:
        code = ended.code  # type: ignore[assignment]
    output, errors = capsys.readouterr()
    assert code == 2
    assert said in errors
    assert "Traceback" not in errors
    assert SECRET not in output + errors


def test_what_is_given_twice_is_named_and_not_shown(
    server: StubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model_args", f"path=x,auth_token={SECRET}", f"auth_token={SECRET}-2"]
    main(["run", "--model", "prefilled", "--tasks", "prbench_finance", *arguments,
          *judge_arguments(server.url, prompt="builtin")])  # fmt: skip
    output, errors = capsys.readouterr()
    assert "--model_args: the last value counts for auth_token" in errors
    assert SECRET not in output + errors


def test_a_file_that_is_no_yaml_is_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"model_args: {{token: {SECRET}\n", encoding="utf-8")
    assert main(["run", "--config", str(path)]) == 2
    errors = capsys.readouterr().err
    assert "not valid YAML (line 2, column 1)" in errors
    assert SECRET not in errors


def test_a_traceback_of_the_harness_s_shows_no_secret(server: StubServer) -> None:
    url = f"http://user:{SECRET}@127.0.0.1:9/v1/chat/completions?api_key={SECRET}"
    done = command(
        "lm-eval-rubrics", "run", "--tasks", "prbench_finance",
        "--model", "local-chat-completions", "--model_args",
        f"model=m,base_url={url},max_retries=1,num_concurrent=1",
        *judge_arguments(server.url, prompt="builtin"),
    )  # fmt: skip
    assert done.code == 1
    assert "Traceback" in done.errors
    assert SECRET not in done.text


# --- a whole run ---------------------------------------------------------------------------------

SECRETS = {
    name: f"sk-of-the-{name}-0123456789"
    for name in ("judge", "model", "user", "query", "header", "metadata", "deep", "hub", "file")
}


def test_a_run_with_secrets_everywhere_writes_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()

    def respond(received: Received) -> Reply:
        """Every endpoint repeats what it was sent."""
        sent = received.headers["authorization"]
        if received.model == "model":
            return Reply(f"{world.respond(received).text} {sent} {' '.join(SECRETS.values())}")
        if criterion_of(received).endswith("-c0"):
            return Reply(status=400, error=openai_error(f"No: {sent}", "error", code=None))
        return Reply(verdict(True, f"I was sent {sent}."))

    monkeypatch.setenv("MY_JUDGE", SECRETS["judge"])
    monkeypatch.setenv("OPENAI_API_KEY", SECRETS["model"])
    monkeypatch.setenv("HF_TOKEN", SECRETS["hub"])
    config = tmp_path / "run.yaml"
    config.write_text(
        json.dumps({
            "metadata": {"file": {"password": SECRETS["file"]}},
            "hf_hub_log_args": f"token={SECRETS['file']}",
        }),
        encoding="utf-8",
    )  # fmt: skip
    with StubServer(respond, models=("model", "judge")) as server:
        address = server.url.replace("http://", f"http://user:{SECRETS['user']}@")
        arguments = {
            "model": "model",
            "base_url": f"{address}/chat/completions?api_key={SECRETS['query']}",
            "num_concurrent": 1,
            "max_retries": 1,
            "auth_token": SECRETS["model"],
            "service_key": SECRETS["model"],
            "header": {"Authorization": f"Bearer {SECRETS['header']}"},
        }
        metadata = {
            "api_key": SECRETS["metadata"],
            "x": {"y": [{"api_key": SECRETS["deep"]}], "url": f"http://u:{SECRETS['deep']}@host/"},
        }
        done = command(
            "lm-eval-rubrics", "run", "--config", str(config), "--tasks", "prbench_finance",
            "--log_samples", "--show_config", "--output_path", str(tmp_path / "out"),
            "--model", "local-chat-completions", "--model_args", json.dumps(arguments),
            "--metadata", json.dumps(metadata),
            *judge_arguments(server.url, prompt="builtin", max_retries=0, api_key_env="MY_JUDGE"),
        )  # fmt: skip
        calls = server.received
    assert done.code == 0, done.text
    # The real values got where they belong, …
    basic = base64.b64encode(f"user:{SECRETS['user']}".encode()).decode()
    sent = {call.model: call.headers["authorization"] for call in calls}
    assert sent == {"model": f"Basic {basic}", "judge": f"Bearer {SECRETS['judge']}"}
    # … and nowhere else.
    assert results(tmp_path / "out")["config"]["model_args"]["auth_token"] == "***"
    folders = (tmp_path / "out", tmp_path / "cache", tmp_path / "hf", tmp_path / "xdg")
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert any("sqlite" in path.name for path in files)
    assert any("samples" in path.name for path in files)
    for secret in SECRETS.values():
        assert secret not in done.text
        assert [path for path in files if secret in str(path)] == []
        holding = [path.name for path in files if secret.encode() in path.read_bytes()]
        assert holding == [], secret


def test_the_group_s_metadata_is_masked_too(server: StubServer, tmp_path: Path) -> None:
    done = command(
        "lm-eval-rubrics", "run", "--tasks", "prbench", "--log_samples",
        "--output_path", str(tmp_path / "out"), *model_arguments(server.url),
        "--metadata", json.dumps({"x": {"api_key": SECRET}}), "--predict_only",
    )  # fmt: skip
    assert done.code == 0, done.text
    for path in (tmp_path / "out").rglob("*.json*"):
        assert SECRET not in path.read_text(encoding="utf-8")
