"""Replies that a schema constrains: when it is asked for, and what happens where it is not had."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asking import ask, judge_at, kept
from asking import call as plain_call
from stub_server import Received, Reply, StubServer, openai_error, unsupported_parameter, verdict

from custom_metrics.judge import MET_SCHEMA, JudgeCall, JudgeConfig, Met
from custom_metrics.judge.client import request_key, request_of
from custom_metrics.plawbench import (
    SECTIONS,
    SECTIONS_SCHEMA,
    TOTAL_SCHEMA,
    read_sections,
    read_total,
)

MESSAGES = [{"role": "user", "content": "Is it met?"}]
FIELDS = {"chat": "response_format", "responses": "text"}
# A server of one's own knows both ways; only the builtin prompt asks by itself.
BUILTIN = {"prompt": "builtin"}


def calls(count: int) -> list[JudgeCall[Met]]:
    return [
        replace(plain_call(f"Question {n}?", f"document {n}"), schema=MET_SCHEMA)
        for n in range(count)
    ]


def met(_: Received) -> Reply:
    return Reply(verdict(True))


def schema_of(body: dict[str, Any]) -> Any:
    if "response_format" in body:
        assert body["response_format"]["type"] == "json_schema"
        return body["response_format"]["json_schema"]
    if "text" in body:
        form = dict(body["text"]["format"])
        assert form.pop("type") == "json_schema"
        return form
    return None


def objects_in(schema: Any) -> list[dict[str, Any]]:
    found = [schema] if schema.get("type") == "object" else []
    inner = [*schema.get("properties", {}).values(), *filter(None, [schema.get("items")])]
    return found + [each for value in inner for each in objects_in(value)]


@pytest.mark.parametrize("schema", [MET_SCHEMA, SECTIONS_SCHEMA, TOTAL_SCHEMA])
def test_the_schemas_are_what_the_strict_mode_takes(schema: dict[str, Any]) -> None:
    objects = objects_in(schema)
    assert objects[0] is schema
    for each in objects:
        assert each["additionalProperties"] is False
        assert each["required"] == list(each["properties"])
    json.dumps(schema)


def test_a_reply_of_each_schema_is_read() -> None:
    section = {"total_points": 1, "max_points": 2, "breakdown": [
        {"rubric_item": "a", "points_awarded": 1, "rationale": "b"}]}  # fmt: skip
    details = {key: section for _, _, key in SECTIONS}
    assert set(details) == set(SECTIONS_SCHEMA["properties"]["score_details"]["properties"])
    grading = read_sections(json.dumps({"score_details": details}, ensure_ascii=False))
    assert set(grading.awarded.values()) == {1}
    analysis = "- 要点1：2分，理由为：写到了 {a}\n- 要点2：0分，理由为：没有"
    total = read_total(json.dumps({"analysis": analysis, "total_points": 2, "max_points": 5}))
    assert total.awarded == {"total": 2}
    assert total.explanation == analysis
    assert [item.points for item in total.breakdown["total"]] == [2, 0]


@pytest.mark.parametrize("api", FIELDS)
@pytest.mark.parametrize(
    ("settings", "asked"),
    [({}, False), (BUILTIN, True), ({"structured": "json_schema"}, True),
     ({**BUILTIN, "structured": "off"}, False),
     ({**BUILTIN, "extra_body": {"structured_outputs": {"choice": ["a"]}}}, False)],
)  # fmt: skip
def test_when_a_schema_is_asked_for(api: str, settings: dict[str, Any], asked: bool) -> None:
    with StubServer(met) as server, judge_at(server.url, api=api, **settings) as judge:
        ask(judge, calls(1))
    (received,) = server.received
    expected = {"name": "verdict", "strict": True, "schema": MET_SCHEMA}
    assert schema_of(received.body) == (expected if asked else None)


def test_the_key_covers_what_is_configured_and_nothing_else() -> None:
    off, builtin = JudgeConfig(), JudgeConfig(prompt="builtin")
    assert request_of(off, MESSAGES, None, MET_SCHEMA) == request_of(off, MESSAGES, None)
    keys = {
        request_key(config, MESSAGES, None, schema)
        for config in (off, builtin)
        for schema in (None, MET_SCHEMA, TOTAL_SCHEMA)
    }
    assert len(keys) == 3


@pytest.mark.parametrize("api", FIELDS)
@pytest.mark.parametrize(
    "refusal",
    [
        lambda name: unsupported_parameter(name),
        lambda name: Reply(status=400, error=openai_error(
            f"Invalid parameter: '{name}' of type 'json_schema' is not supported with this model.",
            "invalid_request_error", code=None, param=f"{name}.format")),
        lambda _: Reply(status=400, error={"message": "This response_format type is unavailable"}),
        lambda _: Reply(status=422, raw=b'{"detail": "json_schema: input should be json_object"}'),
    ],
)  # fmt: skip
def test_a_server_without_schemas_is_asked_without(
    api: str, refusal: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def respond(received: Received) -> Reply:
        return refusal(FIELDS[api]) if schema_of(received.body) else met(received)

    with StubServer(respond) as server, judge_at(
        server.url, api=api, concurrency=1, max_retries=0, **BUILTIN
    ) as judge, caplog.at_level(logging.WARNING):  # fmt: skip
        outcomes = ask(judge, calls(4))
        assert judge.dropped == {FIELDS[api]}
    assert not any(outcome.failed for outcome in outcomes)
    assert len(server.received) == 5
    assert caplog.text.count("does not support") == 1


@pytest.mark.parametrize("empty", [Reply(None, reasoning="so"), Reply(" \n ")])
def test_an_empty_constrained_reply_is_asked_for_again_without_the_schema(
    empty: Reply, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def respond(received: Received) -> Reply:
        return empty if schema_of(received.body) else met(received)

    with StubServer(respond) as server, judge_at(
        server.url, concurrency=1, max_retries=1, **BUILTIN
    ) as judge, caplog.at_level(logging.WARNING):  # fmt: skip
        outcomes = ask(judge, calls(8))
        assert judge.dropped == {"response_format"}
    assert [outcome.attempts for outcome in outcomes] == [2, 2, 2, 1, 1, 1, 1, 1]
    assert not any(outcome.failed for outcome in outcomes)
    assert sum(schema_of(call.body) is not None for call in server.received) == 3
    assert caplog.text.count("says nothing where a schema is asked for") == 1
    assert sum(usable for _, usable in kept(tmp_path / "cache" / "judge.sqlite")) == 8
    with StubServer(respond) as other, judge_at(server.url, **BUILTIN) as again:
        ask(again, calls(8))  # all kept under what was configured
        assert not other.received
        assert again.ledger.from_store == 8


def test_a_constrained_reply_is_checked_like_any_other() -> None:
    with StubServer(lambda _: Reply('{"verdict": "met"}')) as server, judge_at(
        server.url, max_retries=0, **BUILTIN
    ) as judge:  # fmt: skip
        (outcome,) = ask(judge, calls(1))
    assert outcome.failed
    assert "criteria_met" in str(outcome.failure)


def test_a_users_own_form_is_sent_as_it_is() -> None:
    own = {"response_format": {"type": "json_object"}}
    with StubServer(met) as server, judge_at(
        server.url, structured="json_schema", extra_body=own
    ) as judge:  # fmt: skip
        ask(judge, calls(1))
    assert server.received[0].body["response_format"] == {"type": "json_object"}
