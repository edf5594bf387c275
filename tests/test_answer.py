"""What is graded of what a model wrote: its answer, without its reasoning."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from custom_metrics.answer import Answer, Status, clean_answer, opens_reasoning, writable

TAGS = ("think", "thinking", "reasoning", "reason")


# Not a measure of speed: what was quadratic took a minute and more.
HANG_S = 10


def seconds_to_read(output: str) -> float:
    start = time.monotonic()
    clean_answer(output)
    opens_reasoning(output)
    return time.monotonic() - start


def graded(output: str, *, reasoning_opened: bool = False) -> str:
    """The text of an output that has an answer."""
    answer = clean_answer(output, reasoning_opened=reasoning_opened)
    assert answer.status == "answered"
    return answer.text


# --- Reasoning blocks ----------------------------------------------------------------------------


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("spell", [str.lower, str.upper, str.title])
def test_a_block_of_each_tag_in_any_case_is_removed(tag: str, spell: Callable[[str], str]) -> None:
    name = spell(tag)
    assert graded(f"<{name}>Let me see.\n\nYes.</{name}>\n\nPay the tax.") == "Pay the tax."


@pytest.mark.parametrize("tag", TAGS)
def test_the_tags_of_a_block_may_differ_in_case(tag: str) -> None:
    assert graded(f"<{tag.upper()}>a</{tag}>b") == "b"


@pytest.mark.parametrize(
    ("output", "answer"),
    [
        ("<think>a</think>b", "b"),
        ("Before <think>a</think>after", "Before after"),
        ("<think>a</think>b<think>c</think>d", "bd"),
        ("<think>a</think><reason>b</reason>c", "c"),
        ("<think>\nline 1\n\n\n\nline 2\r\n</think>\nb", "b"),
        ("<think>a < b & c > d</think>e", "e"),
        ("<think>a<think>b</think>c</think>d", "d"),
        ("<think>a<reasoning>b</reasoning>c</think>d", "d"),
        ("<think>a</reasoning>b</think>c", "c"),
        ("<think></think>b", "b"),
    ],
)
def test_blocks_are_removed_across_lines_and_nested(output: str, answer: str) -> None:
    assert graded(output) == answer


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("opened", [True, False])
def test_only_what_follows_a_closing_tag_without_an_opening_one_is_graded(
    tag: str, opened: bool
) -> None:
    assert graded(f"Let me see.\n</{tag}>\n\nPay.", reasoning_opened=opened) == "Pay."


def test_an_output_without_any_tag_is_the_answer() -> None:
    assert clean_answer("Pay the tax.") == Answer("Pay the tax.", "answered")


# --- Outputs without an answer -------------------------------------------------------------------


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("before", ["", "\n", "  \n\t"])
def test_an_output_cut_off_inside_its_reasoning_has_no_answer(tag: str, before: str) -> None:
    assert clean_answer(f"{before}<{tag}>The fee is 5%") == Answer("", "cut_in_reasoning")


def test_an_output_cut_off_inside_a_second_block_has_no_answer() -> None:
    assert clean_answer("<think>a</think>\n<think>b").status == "cut_in_reasoning"


def test_reasoning_that_the_prompt_opened_and_nothing_closed_is_no_answer() -> None:
    assert clean_answer("The fee is 5%", reasoning_opened=True) == Answer("", "cut_in_reasoning")


@pytest.mark.parametrize(
    ("output", "opened"),
    [
        ("", False),
        (" \n\t ", False),
        ("<think>a</think>", False),
        ("<think>a</think>\n\n ", False),
        ("</think>", True),
        ("a</think>\n", True),
        ("a</think>\n", False),
    ],
)
def test_an_answer_of_nothing_is_empty(output: str, opened: bool) -> None:
    assert clean_answer(output, reasoning_opened=opened) == Answer("", "empty")


@pytest.mark.parametrize(
    ("status", "empty"), [("answered", False), ("empty", True), ("cut_in_reasoning", True)]
)
def test_only_an_answered_output_is_shown_to_a_judge(status: Status, empty: bool) -> None:
    assert Answer("", status).empty is empty


# --- Text that only looks like reasoning ---------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "The lease ends because of <reason> on <date>.",
        "The lease ends because of <REASON>\nand nothing else.",
        'Send <reason code="7">late payment</reason> with the form.',
        '<reason code="7">late payment</reason>',
        "```xml\n<reason\n code='7'>late</reason>\n```",
        "The reason (see <reasons>) is </reasons> clear.",
        "I think < 5% is right; reasoning> is not a tag.",
    ],
)
def test_placeholders_and_elements_of_other_kinds_stay(text: str) -> None:
    assert graded(text) == text


def test_a_block_before_a_placeholder_is_removed_and_the_placeholder_stays() -> None:
    assert graded("<think>a</think>Terminated for <reason>.") == "Terminated for <reason>."


def test_reasoning_that_the_prompt_opened_ends_at_a_closing_tag_whatever_it_quotes() -> None:
    output = "The fee is 5%. <think> is a tag, I recall.</think>The fee is 4%."
    assert graded(output, reasoning_opened=True) == "The fee is 4%."


# --- Prompts that open the block -----------------------------------------------------------------


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("end", ["", "\n", " \n\n"])
def test_a_prompt_that_ends_with_an_opening_tag_opens_reasoning(tag: str, end: str) -> None:
    assert opens_reasoning(f"<|user|>Why?<|assistant|><{tag}>{end}")
    assert opens_reasoning(f"<|user|>Why?<|assistant|><{tag.upper()}>{end}")


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "<|user|>Why?<|assistant|>",
        "<|user|><think> is a tag<|assistant|>",
        "<|assistant|><think>\n\n</think>\n\n",
        "<|assistant|></think>",
        "<|assistant|><thinker>",
    ],
)
def test_other_prompts_do_not_open_reasoning(prompt: str) -> None:
    assert not opens_reasoning(prompt)


# --- Blank lines and blanks ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "answer"),
    [
        ("a\nb", "a\nb"),
        ("a\n\nb", "a\n\nb"),
        ("a\n\n\nb", "a\n\nb"),
        ("a\n\n\n\n\n\nb", "a\n\nb"),
        ("a\n \n\t\nb", "a\n\nb"),
        ("a\n\n \u00a0 \n\nb", "a\n\nb"),
        ("a\n\n\nb\n\n\n\nc", "a\n\nb\n\nc"),
        ("\n\n\n a \n\n\n", "a"),
        ("a<think>x\n\n\n\ny</think>\n\n\n\nb", "a\n\nb"),
    ],
)
def test_runs_of_blank_lines_become_one_and_the_ends_are_stripped(output: str, answer: str) -> None:
    assert graded(output) == answer


@pytest.mark.parametrize("indent", ["    ", "\t", " - "])
def test_the_indentation_after_blank_lines_is_kept(indent: str) -> None:
    assert graded(f"Code:\n\n\n \n{indent}x = 1") == f"Code:\n\n{indent}x = 1"


# --- Characters that files and servers refuse ----------------------------------------------------


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("plain", "plain"),
        ("a\ud800b", "a\ufffdb"),
        ("x\udfffy", "x\ufffdy"),
        ("a\udc80\ud83d", "a\ufffd\ufffd"),
        ("a\x00b", "a\ufffdb"),
        ("\u200f\u202eabc 😀 é \t\r\n <script>", "\u200f\u202eabc 😀 é \t\r\n <script>"),
    ],
)
def test_only_lone_surrogates_and_nuls_are_replaced(text: str, written: str) -> None:
    assert writable(text) == written
    assert writable(text).encode("utf-8").decode("utf-8") == written
    assert graded(f"<think>x</think>{text}.") == f"{written}."


# --- Long outputs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "unit",
    [
        "word ",
        "<",
        "\n",
        " ",
        "\n \n",
        "\n\n\nx",
        "</think>",
        "<think",
        "<think>a</think>",
        "<think a>x</think>",
    ],
)
def test_200_kb_of_anything_is_read_at_once(unit: str) -> None:
    assert seconds_to_read("Answer. " + unit * (200_000 // len(unit))) < HANG_S


@pytest.mark.parametrize("unit", ["<think>", "<think><reason>", "<reason>a</think>"])
def test_a_model_that_repeats_an_opening_tag_is_read_at_once(unit: str) -> None:
    assert seconds_to_read("Answer. " + unit * (200_000 // len(unit))) < HANG_S


def test_a_long_answer_survives_whole() -> None:
    answer = "Pay. " * 40_000 + "End"
    assert graded(f"<think>{'why ' * 50_000}</think>{answer}") == answer


# --- markers of other models ---------------------------------------------------------------------

OTHER_MARKERS = [
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
]


@pytest.mark.parametrize(("opening", "closing"), OTHER_MARKERS)
def test_reasoning_in_other_markers_is_removed(opening: str, closing: str) -> None:
    assert clean_answer(f"{opening}hm\n{closing}\nYes.") == Answer("Yes.", "answered")
    assert clean_answer(f"hm\n{closing}\nYes.") == Answer("Yes.", "answered")
    assert clean_answer(f"{opening}hm") == Answer("", "cut_in_reasoning")
    assert opens_reasoning(f"<s>[INST]Q[/INST]{opening}\n")


def test_markers_of_two_kinds_do_not_close_each_other() -> None:
    assert clean_answer("[THINK]a</think>b[/THINK]c").text == "c"


@pytest.mark.parametrize(
    ("output", "answer"),
    [
        ("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
         Answer("Yes.", "answered")),
        ("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes."
         "<|return|>", Answer("Yes.", "answered")),
        ("<|channel|>analysis<|message|>hm", Answer("", "cut_in_reasoning")),
        ("<|channel|>final<|message|>Yes.", Answer("Yes.", "answered")),
        ("analysisThe user asks.assistantfinalYes.", Answer("Yes.", "answered")),
        ("analysis of the assistantfinal kind", Answer("analysis of the assistantfinal kind",
                                                       "answered")),
        ("An analysis.", Answer("An analysis.", "answered")),
    ],
)  # fmt: skip
def test_only_the_final_channel_is_the_answer(output: str, answer: Answer) -> None:
    assert clean_answer(output) == answer
