"""The settings of several judges: each one's own over the common ones, and no key astray."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from custom_metrics import ranks
from custom_metrics.arguments import read_pairs
from custom_metrics.errors import ConfigError
from custom_metrics.judge import resolve_config
from custom_metrics.judge.ledger import Ledger, PanelLedger, total

A = {"model": "a", "base_url": "http://localhost:1/v1"}
B = {"model": "b", "base_url": "http://localhost:2/v1"}
C = {"model": "c"}
KEY = "sk-not-for-results-0123456789"


def refusal(settings: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_config(settings, environ=environ or {})
    message = str(caught.value)
    assert "\n" not in message
    assert KEY not in message
    return message


def test_each_judge_has_its_own_settings_over_the_common_ones() -> None:
    found = resolve_config(
        {"temperature": 0.5, "timeout": 9, "models": [A, {**B, "temperature": 1, "repeats": 2}]},
        environ={"RUBRIC_JUDGE_MAX_RETRIES": "1"},
    )
    first, second = found.members
    assert (first.model, first.base_url, first.temperature) == ("a", A["base_url"], 0.5)
    assert (second.model, second.temperature, second.repeats) == ("b", 1, 2)
    assert {m.timeout for m in found.members} == {9}
    assert {m.max_retries for m in found.members} == {1}
    assert found.opinions == (("a", 0), ("b", 0), ("b", 1))
    assert found.least_judges == 2


@pytest.mark.parametrize("place", ["environment", "metadata", "metadata as text", "command line"])
def test_the_judges_are_set_in_every_place(place: str) -> None:
    text = json.dumps([A, B])
    found = {
        "environment": lambda: resolve_config(environ={"RUBRIC_JUDGE_MODELS": text}),
        "metadata": lambda: resolve_config({"models": [A, B]}, environ={}),
        "metadata as text": lambda: resolve_config({"models": text}, environ={}),
        "command line": lambda: resolve_config(
            None, read_pairs("--judge", [f"prompt=builtin,models={text},repeats=2"]), {}
        ),
    }[place]()
    assert [judge.model for judge in found.members] == ["a", "b"]


@pytest.mark.parametrize(
    ("given", "pairs"),
    [
        (['models=[{"model": "a", "x": "b,c=d"}, {"model": "e"}],repeats=2'],
         {"models": '[{"model": "a", "x": "b,c=d"}, {"model": "e"}]', "repeats": "2"}),
        (['repeats=2,extra_body={"a": "b,c=d"}', "timeout=5"],
         {"repeats": "2", "extra_body": '{"a": "b,c=d"}', "timeout": "5"}),
        (['models=[{"model": "a"}] '], {"models": '[{"model": "a"}] '}),
        (['models=[{"model": ,repeats=2'], {"models": '[{"model": ', "repeats": "2"}),
        (["a=1,2,b=3"], {"a": "1,2", "b": "3"}),
    ],
)  # fmt: skip
def test_json_on_the_command_line_keeps_its_commas(given: list[str], pairs: Any) -> None:
    assert read_pairs("--judge", given) == pairs


def test_the_readmes_example_is_read_as_a_shell_hands_it_over() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"lm-eval-rubrics run … (--judge .*?)\n```", text, re.DOTALL)
    option, *pairs = shlex.split(line)
    found = resolve_config(None, read_pairs(option, pairs), {})
    assert [judge.repeats for judge in found.members] == [2, 2, 1]
    assert [judge.prices is not None for judge in found.members] == [True] * 3
    assert found.max_cost == 30


def test_one_judge_in_the_list_is_no_panel() -> None:
    common = {"max_calls": 5, "on_failure": "unmet", "temperature": 0}
    found = resolve_config({**common, "models": [A]}, environ={})
    assert found == resolve_config({**common, **A}, environ={})
    assert len(found.opinions) == 1


def test_a_single_judges_record_does_not_speak_of_panels() -> None:
    assert not {"repeats", "models", "min_judges"} & resolve_config(A, environ={}).record().keys()
    assert resolve_config({**A, "repeats": 3}, environ={}).record()["repeats"] == 3


def test_the_record_names_every_judge_and_what_decides() -> None:
    found = resolve_config({"models": [A, {**B, "repeats": 2}], "max_calls": 9}, environ={})
    record = found.record()
    assert record["model"] == "a + b"
    assert [judge["endpoint"] for judge in record["models"]] == [A["base_url"], B["base_url"]]
    assert record["models"][1]["repeats"] == 2
    assert record["min_judges"] == 2
    assert record["prompt"] == "official"
    assert "max_calls" not in json.dumps(record)


def test_judges_of_one_model_are_told_apart_by_their_place() -> None:
    found = resolve_config({"models": [A, B, {**B, "temperature": 1}]}, environ={})
    assert found.judge_names == ("a", "b #2", "b #3")


def test_common_settings_without_meaning_for_a_backend_are_left_to_the_others() -> None:
    local = {"backend": "lm_eval", "judge_model": "hf", "judge_model_args": "pretrained=me/m"}
    found = resolve_config({"timeout": 9, "rpm": 60, "models": [A, local]}, environ={})
    assert found.in_process
    assert found.members[0].rpm == 60
    assert found.members[1].rpm is None
    assert found.judge_names == ("a", "me/m")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"models": "[{"}, "a JSON list of judges"),
        ({"models": []}, "a JSON list of judges"),
        ({"models": {"model": "a"}}, "a JSON list of judges"),
        ({"models": ["a", "b"]}, "a JSON list of judges"),
        ({"models": True}, "a JSON list of judges"),
        ({"models": [A, {**B, "temprature": 1}]}, 'judge "models", judge 2, temprature'),
        ({"models": [A, {**B, "temperature": 9}]}, 'judge "models", judge 2, temperature'),
        ({"models": [A, {**B, "on_failure": "raise"}]}, "the panel's as a whole"),
        ({"models": [A, {**B, "models": [A]}]}, "the panel's as a whole"),
        ({"models": [A, A]}, "judges 1 and 2 are the same one"),
        ({"models": [A, {**A, "repeats": 3, "timeout": 5}]}, "judges 1 and 2 are the same one"),
        ({"models": [A, B], "min_judges": 3}, "models has 2"),
        ({"models": [A], "min_judges": 2}, "models has 1"),
        ({"min_judges": 1}, "min_judges goes with models"),
        ({"models": [A, B], "repeats": 0}, "1 to 100"),
        ({"models": [A, B], "max_cost": 5}, "prices of every judge"),
        ({"models": [{**A, "prices": "1,1,1"}, B], "max_cost": 5}, "prices of every judge"),
        ({"models": [A, {**B, "max_cost": 5}]}, "max_cost needs prices"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_judge(settings: dict[str, Any], named: str) -> None:
    assert named in refusal(settings)


# --- keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "judge",
    [
        {**B, "api_key": KEY},
        {**B, "extra_body": {"auth_token": KEY}},
        {**B, "model": KEY},
        {**B, "base_url": f"http://me:{KEY}@localhost:2/v1"},
        {**B, "extra_body": {"user": KEY}},
    ],
)
def test_a_key_among_a_judges_settings_is_refused(judge: dict[str, Any]) -> None:
    environ = {"RUBRIC_JUDGE_SECOND": KEY}
    message = refusal({"models": [{**A, "api_key_env": "RUBRIC_JUDGE_SECOND"}, judge]}, environ)
    assert "judge 2" in message


def test_each_judge_has_the_key_that_it_names() -> None:
    judges = [{**A, "api_key_env": "RUBRIC_JUDGE_FIRST"}, {**B, "api_key_env": "SECOND"}, C]
    environ = {"RUBRIC_JUDGE_FIRST": "one", "SECOND": "two", "OPENAI_API_KEY": "three",
               "RUBRIC_JUDGE_MODELS": json.dumps(judges)}  # fmt: skip
    found = resolve_config(environ=environ)
    assert [judge.api_key(environ) for judge in found.members] == ["one", "two", "three"]


def test_the_general_key_goes_nowhere_if_the_judges_are_at_several_endpoints() -> None:
    environ = {"RUBRIC_JUDGE_API_KEY": KEY, "OPENAI_API_KEY": "openai"}
    found = resolve_config({"models": [A, C]}, environ=environ)
    assert [judge.api_key(environ) for judge in found.members] == [None, "openai"]
    copied = [judge.model_copy(update={"rpm": 9}) for judge in found.members]
    assert copied[0].api_key(environ) is None
    found = resolve_config({"models": [A, {**A, "model": "b"}]}, environ=environ)
    assert [judge.api_key(environ) for judge in found.members] == [KEY, KEY]


def test_one_named_key_for_several_endpoints_is_refused() -> None:
    message = refusal({"api_key_env": "SOME", "models": [A, B]}, {"SOME": KEY})
    assert "its own api_key_env" in message
    resolve_config({"api_key_env": "SOME", "models": [A, {**A, "model": "b"}]}, environ={})


def test_ranks_share_every_judges_limits() -> None:
    whole = resolve_config(
        {"concurrency": 8, "max_calls": 10, "models": [A, {**B, "rpm": 7, "max_calls": 5}]},
        environ={},
    )
    parts = [ranks.share(whole, rank, 3) for rank in range(3)]
    assert sum(part.max_calls or 0 for part in parts) == 10
    for number, judge in enumerate(whole.members):
        each = [part.members[number] for part in parts]
        assert sum(one.concurrency for one in each) == judge.concurrency == 8
        assert sum(one.rpm or 0 for one in each) == (judge.rpm or 0)
        assert sum(one.max_calls or 0 for one in each) == (judge.max_calls or 0)
    assert {part.opinions for part in parts} == {whole.opinions}


def test_the_ledgers_of_ranks_are_added_up_judge_by_judge() -> None:
    made = [PanelLedger({"a": Ledger(calls=n), "b": Ledger(calls=10 * n)}) for n in (1, 2)]
    record = total(made).record()
    assert record["calls"] == 33
    assert {name: own["calls"] for name, own in record["judges"].items()} == {"a": 3, "b": 30}
