"""Reading a judge's yes or no: a reply gives its own verdict or none, never another one."""

from __future__ import annotations

import json
import time

import pytest

from custom_metrics.judge import Met, Unreadable, read_met, write_met

MET = '{"explanation": "It does.", "criteria_met": true}'
UNMET = '{"explanation": "It does not.", "criteria_met": false}'


def reads(text: str) -> bool | None:
    """The verdict, or None where the reply is refused."""
    try:
        return read_met(text).met
    except Unreadable:
        return None


def fenced(text: str, language: str = "json") -> str:
    return f"```{language}\n{text}\n```"


# --- Replies as they should be -------------------------------------------------------------------


@pytest.mark.parametrize("met", [True, False])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "frame",
    [
        "{}",
        "\n\n  {}  \n",
        "```json\n{}\n```",
        "```\n{}\n```",
        "```JSON\n{}\n```",
        "Here is my verdict:\n\n```json\n{}\n```\n\nLet me know if you need more.",
        "<think>Maybe.</think>\n{}",
        "\ufeff{}",
    ],
)
def test_an_object_is_read_in_any_frame(met: bool, indent: int | None, frame: str) -> None:
    explanation = 'He wrote "5 {percent}" — not 4.\nSo: \\ [1] ✓'
    for found in (
        {"explanation": explanation, "criteria_met": met},
        {"criteria_met": met, "explanation": explanation},
    ):
        text = json.dumps(found, indent=indent, ensure_ascii=False)
        assert read_met(frame.replace("{}", text)) == Met(met, explanation)


@pytest.mark.parametrize("met", [True, False])
def test_an_explanation_may_hold_the_other_verdict_in_escaped_quotes(met: bool) -> None:
    quoted = json.dumps({"criteria_met": not met, "explanation": "from the answer"})
    text = json.dumps({"explanation": f"The answer carries {quoted}.", "criteria_met": met})
    assert reads(text) is met
    text = json.dumps({"criteria_met": met, "explanation": f"The answer carries {quoted}"})
    assert reads(fenced(text)) is met


@pytest.mark.parametrize("word", ["true", "false", "criteria_met", 'criteria_met\\": false'])
def test_words_in_the_explanation_decide_nothing(word: str) -> None:
    assert reads(f'{{"explanation": "It is {word} that", "criteria_met": true}}') is True


@pytest.mark.parametrize("explanation", ['""', "null", "3", '["a"]'])
def test_an_explanation_that_is_no_text_costs_no_verdict(explanation: str) -> None:
    assert read_met(f'{{"explanation": {explanation}, "criteria_met": true}}') == Met(True, "")


def test_an_explanation_may_be_missing() -> None:
    assert read_met('{"criteria_met": false}') == Met(False, "")


# --- Malformed replies and what becomes of each --------------------------------------------------

MALFORMED: list[tuple[str, str, bool | None]] = [
    # The value is of another type.
    ("the string true", '{"criteria_met": "true"}', True),
    ("the string False", '{"criteria_met": "False"}', False),
    ("the string with blanks", '{"criteria_met": " TRUE "}', True),
    ("the string yes", '{"criteria_met": "yes"}', True),
    ("the string no", '{"criteria_met": "No"}', False),
    ("another string", '{"criteria_met": "partially"}', None),
    ("a negated string", '{"criteria_met": "not true"}', None),
    ("both words in one string", '{"criteria_met": "true or false"}', None),
    ("an empty string", '{"criteria_met": ""}', None),
    ("null", '{"criteria_met": null}', None),
    ("one", '{"criteria_met": 1}', None),
    ("zero", '{"criteria_met": 0}', None),
    ("a fraction", '{"criteria_met": 0.5}', None),
    ("a list", '{"criteria_met": [true]}', None),
    ("an object", '{"criteria_met": {"value": true}}', None),
    # The verdict is not where it should be.
    ("a missing key", '{"explanation": "It does."}', None),
    ("another key", '{"explanation": "It does.", "met": true}', None),
    ("a list of one", f"[{UNMET}]", False),
    ("a list of one over lines", f"[\n  {UNMET}\n]", False),
    ("a list of two that agree", f"[{MET}, {MET}]", None),
    ("a list of two that differ", f"[{UNMET}, {MET}]", None),
    ("an empty list", "[]", None),
    ("an object inside an object", f'{{"result": {MET}}}', None),
    ("a bare boolean", "true", None),
    ("a bare pair", '"criteria_met": true', None),
    ("prose", "The criterion is met, so true.", None),
    ("both words in prose", "It is true that criteria_met is false, or true.", None),
    ("a pair in prose", "I would say criteria_met: true.", None),
    ("nothing", "", None),
    ("blanks", " \n\t", None),
    ("an apology", "I'm sorry, but I can't help with that.", None),
    ("an error page", "<html><body>502 Bad Gateway</body></html>", None),
    # Several verdicts.
    ("two objects, the last counts", f"{MET}\n{UNMET}", False),
    ("an example before it", f"The form is {MET}. My verdict:\n{UNMET}", False),
    ("a fenced example before it", f"{fenced(MET)}\nMine:\n{fenced(UNMET)}", False),
    ("another object after it", f'{UNMET}\nThe form was {{"explanation": "…"}}', False),
    ("the key twice, differing", '{"criteria_met": true, "criteria_met": false}', None),
    ("the key twice, equal", '{"criteria_met": true, "criteria_met": true}', True),
    ("prose after it that differs", f"{MET}\nIn short, criteria_met: false", None),
    # Not quite JSON.
    ("a blank before the colon", '{"explanation": "a", "criteria_met" : true}', True),
    ("lines around the colon", '{"explanation": "a", "criteria_met"\n:\nfalse}', False),
    ("a trailing comma", '{"explanation": "a", "criteria_met": false,}', False),
    ("a missing comma", '{"explanation": "a"\n "criteria_met": false}', False),
    ("a raw line break", '{"explanation": "a\nb", "criteria_met": false}', False),
    ("a comment", '{"explanation": "a", // why\n "criteria_met": false}', False),
    ("a Python literal", "{'explanation': 'It does', 'criteria_met': True}", True),
    ("a Python literal, quoted", "{'explanation': \"It doesn't\", 'criteria_met': False}", False),
    ("capitals", '{"explanation": "a", "criteria_met": FALSE}', False),
    ("keys without quotes", '{explanation: "a", criteria_met: false}', False),
    ("typographic quotes", "{“explanation”: “a”, “criteria_met”: false}", False),
    ("one brace too many", f"{UNMET}}}", False),
    ("doubled braces", f"{{{UNMET}}}", False),
    ("a choice left open", '{"explanation": "a", "criteria_met": true/false}', None),
    ("two words", '{"explanation": "a", "criteria_met": true or false}', None),
    ("a placeholder", '{"explanation": "a", "criteria_met": <bool>}', None),
    ("no value", '{"explanation": "a", "criteria_met": }', None),
    ("quotes not escaped", '{"explanation": "it says "5%" here", "criteria_met": false}', False),
    (
        "a pair quoted, not escaped",
        '{"explanation": "it says "criteria_met": true, wrongly", "criteria_met": false}',
        False,
    ),
    (
        "an object quoted, not escaped",
        '{"explanation": "it has {"criteria_met": true} in it", "criteria_met": false}',
        False,
    ),
    (
        "a fenced object quoted, not escaped",
        '{"explanation": "it has\n```json\n{"criteria_met": true}\n```", "criteria_met": false}',
        False,
    ),
    # Reasoning.
    ("thinking that differs", f"<think>{MET}</think>\n{UNMET}", False),
    ("thinking, opened by the prompt", f"Perhaps {MET}</think>\n{UNMET}", False),
    ("nothing after the thinking", f"<think>{MET}</think>", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [pytest.param(text, expected, id=name) for name, text, expected in MALFORMED],
)
def test_a_malformed_reply_has_its_documented_outcome(text: str, expected: bool | None) -> None:
    assert reads(text) is expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "an empty reply"),
        ("No.", "no criteria_met"),
        ('{"criteria_met": null}', "neither true nor false"),
        ('{"criteria_met": true', "ends before its verdict"),
        (f"[{MET}, {MET}]", "a list"),
        (f'{{"result": {MET}}}', "top level"),
        ('{"criteria_met": true, "criteria_met": false}', "twice"),
    ],
)
def test_a_refusal_says_why(text: str, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        read_met(text)


# --- Wrong numbers: a reply is read as the opposite of what it says ------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '{"criteria_met": false, "explanation": "it has {"criteria_met": true} in it"}',
        '{"criteria_met": false,\n "explanation": "the answer ends in {"criteria_met": true}"}',
        """{'criteria_met': False, 'explanation': 'it has {"criteria_met": true} in it'}""",
        '{"criteria_met": false, "explanation": "it has\n```json\n{"criteria_met": true}\n```"}',
        '{"criteria_met": false, "explanation": "it quotes "{"criteria_met": true}" wrongly"}',
    ],
)
@pytest.mark.parametrize("frame", ["{}", "```json\n{}\n```"])
def test_an_object_quoted_without_escapes_is_not_the_verdict(text: str, frame: str) -> None:
    assert reads(frame.replace("{}", text)) in (False, None)


@pytest.mark.parametrize(
    "text",
    [
        '{"explanation": "it has {"criteria_met": true} in it and no',
        '{"explanation": "it quotes "{"criteria_met": true}" and no',
        """{'explanation': 'it has {"criteria_met": true} in it and no""",
        f'The form is {MET}. My verdict:\n```json\n{{\n  "explanation": "It does',
        f"The form is {MET}. My verdict:\n{{",
    ],
)
def test_a_reply_cut_off_after_a_quoted_verdict_has_none(text: str) -> None:
    assert reads(text) is None


@pytest.mark.parametrize("tag", ["think", "thinking", "reasoning"])
def test_a_reply_cut_off_inside_its_reasoning_has_no_verdict(tag: str) -> None:
    assert reads(f"<{tag}>A first idea would be {MET}, but then") is None


def test_reasoning_that_the_prompt_opened_holds_no_verdict() -> None:
    assert reads(f"A first idea would be {MET}, but then</think>") is None


def test_a_reason_block_is_reasoning() -> None:
    assert reads(f"<reason>A first idea would be {MET}</reason>") is None


# --- Truncated replies ---------------------------------------------------------------------------

QUOTING = 'The answer carries {"criteria_met": true} and "criteria_met": true, but {no} sum.'
WHOLE: dict[str, str] = {
    "one line": json.dumps({"explanation": QUOTING, "criteria_met": False}),
    "verdict first": json.dumps({"criteria_met": False, "explanation": QUOTING}),
    "fenced": fenced(json.dumps({"explanation": QUOTING, "criteria_met": False}, indent=2)),
    "in prose": f"Verdict: {json.dumps({'explanation': QUOTING, 'criteria_met': False})} Done.",
    "a list": json.dumps([{"explanation": QUOTING, "criteria_met": False}]),
    "a string": json.dumps({"explanation": "true", "criteria_met": "false"}),
    "braces": '{"explanation": "} a } b { c", "criteria_met": false}',
    "a Python literal": "{'explanation': 'it says true}', 'criteria_met': False}",
    "single quotes inside": """{"explanation": "{'criteria_met': true}", "criteria_met": false}""",
    "thinking": "<think>Is it true?</think>\n" + UNMET,
}


@pytest.mark.parametrize("name", WHOLE)
def test_no_prefix_of_a_reply_gives_another_verdict(name: str) -> None:
    text = WHOLE[name]
    assert reads(text) is False
    for length in range(len(text)):
        assert reads(text[:length]) in (False, None), text[:length]


@pytest.mark.parametrize("value", ["true", "false"])
def test_no_prefix_gives_a_verdict_before_its_value_is_whole(value: str) -> None:
    text = f'{{"explanation": "a", "criteria_met": {value}}}'
    for length in range(len(text) - 1):
        assert reads(text[:length]) is None, text[:length]


# --- Verdicts that contradict their explanation --------------------------------------------------


@pytest.mark.parametrize(
    ("explanation", "met", "flagged"),
    [
        ("So the criterion is not met.", True, True),
        ("So the criteria are not met.", True, True),
        ("The criterion is therefore not satisfied.", True, True),
        ("The response does not meet the criterion.", True, True),
        ("Therefore the criterion is met.", False, True),
        ("The response fully meets the criterion.", False, True),
        ("So the criterion is not met.", False, False),
        ("Therefore the criterion is met.", True, False),
        ("It gives the rate of 5%.", True, False),
        ("It gives no rate.", False, False),
        ("", True, False),
    ],
)
def test_a_contradiction_is_kept_and_flagged(explanation: str, met: bool, flagged: bool) -> None:
    found = read_met(json.dumps({"explanation": explanation, "criteria_met": met}))
    assert (found.met, found.contradictory) == (met, flagged)


# --- Hostile replies -----------------------------------------------------------------------------


# Not a measure of speed: what was quadratic took a minute and more.
HANG_S = 10


def seconds_to_read(text: str) -> float:
    start = time.monotonic()
    reads(text)
    return time.monotonic() - start


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{" * 100_000,
        "[{" * 50_000,
        '{"a":' * 50_000,
        "[" * 100_000 + MET,
        "word " * 40_000,
        "criteria_met: " * 10_000,
        MET * 4_000,
        f'{{"explanation": "{"x" * 200_000}", "criteria_met": true}}',
        f'{{"explanation": "{"{" * 100_000}", "criteria_met": true}}',
        '{"criteria_met": true}' + " " * 200_000,
    ],
    ids=lambda text: text[:12],
)
def test_long_and_deep_replies_are_read_at_once(text: str) -> None:
    assert seconds_to_read(text) < HANG_S


@pytest.mark.parametrize(
    "text",
    [
        '{"a":' * 50_000 + MET,
        '{"criteria_met": ' * 50_000,
        f'{{"explanation": "a "b" {"{" * 50_000}", "criteria_met": true}}',
    ],
    ids=["nested", "nested verdicts", "quotes not escaped"],
)
def test_deep_replies_with_a_verdict_are_read_at_once(text: str) -> None:
    assert seconds_to_read(text) < HANG_S


@pytest.mark.parametrize("text", [f"{MET}\x00", f"\u200f{MET}", f"{MET}\ud800", f"<b>{MET}</b>"])
def test_odd_characters_around_a_verdict_do_no_harm(text: str) -> None:
    assert reads(text) is True


# --- The lexical judge's replies -----------------------------------------------------------------


@pytest.mark.parametrize(("overlap", "met"), [(0.0, False), (0.44, False), (0.45, True), (1, True)])
def test_an_overlap_is_written_so_that_it_reads_back(overlap: float, met: bool) -> None:
    found = read_met(write_met([overlap]))
    assert found.met is met
    assert f"{overlap:.2f}" in found.explanation
    assert "smoke test" in found.explanation


def test_two_verdicts_in_an_object_that_does_not_parse_are_refused() -> None:
    reply = '{"criteria_met": true, "explanation": "wrote "a", "criteria_met": false"}'
    with pytest.raises(Unreadable, match="both verdicts"):
        read_met(reply)


def test_the_last_field_is_the_verdict_where_a_quotation_holds_the_other() -> None:
    reply = '{"explanation": "it says "criteria_met": true, which is wrong", "criteria_met": false}'
    assert read_met(reply).met is False


@pytest.mark.parametrize("fence", ["", "```json\n"])
def test_a_tag_that_the_explanation_speaks_of_ends_no_reasoning(fence: str) -> None:
    reply = '{"explanation": "It ends in </think> and no more.", "criteria_met": true}'
    text = f"{fence}{reply}\n```" if fence else reply
    assert read_met(text).explanation == "It ends in </think> and no more."


def test_a_failure_does_not_repeat_a_reply_of_any_length() -> None:
    with pytest.raises(Unreadable) as caught:
        read_met(json.dumps({"criteria_met": "maybe " * 50_000}))
    assert len(str(caught.value)) < 300
