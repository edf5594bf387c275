"""PLawBench from rows to prompts and from replies to scores, without any judge."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from custom_metrics import data, plawbench, prompts
from custom_metrics import plawbench_prompts as official
from custom_metrics.answer import Answer
from custom_metrics.errors import DataError
from custom_metrics.judge import Outcome, Unreadable
from custom_metrics.plawbench import SECTIONS, points_of, read_sections, read_total
from custom_metrics.rubric import Judgement

FILES = {
    "case_analysis": "practical_case_analysis_250.jsonl",
    "legal_consultation": "public_legal_consultation_18.json",
    "plaintiff_statement": "Plantiffs_Statement.json",
    "defendant_statement": "Defendants_Statement.json",
}
TASK_PROMPTS = {
    "case_analysis": official.TASK_CASE_ANALYSIS,
    "legal_consultation": official.TASK_LEGAL_CONSULTATION,
    "plaintiff_statement": official.TASK_DRAFTING,
    "defendant_statement": official.TASK_DRAFTING,
}
JUDGE_PROMPTS = {
    "case_analysis": official.JUDGE_CASE_ANALYSIS,
    "legal_consultation": official.JUDGE_LEGAL_CONSULTATION,
    "plaintiff_statement": official.JUDGE_DRAFTING,
    "defendant_statement": official.JUDGE_DRAFTING,
}


def docs(subset: str, folder: Path) -> list[dict[str, Any]]:
    source = data.Source("test", None, (folder / "plawbench" / FILES[subset],), "")
    return data.read_docs(source, plawbench.row_to_doc, subset)


def raw(subset: str, folder: Path) -> list[dict[str, Any]]:
    text = (folder / "plawbench" / FILES[subset]).read_text(encoding="utf-8")
    if subset == "case_analysis":
        return [json.loads(line) for line in text.splitlines()]
    return list(json.loads(text))


def task_prompt(subset: str, doc: Mapping[str, Any]) -> str:
    loaded = prompts.load(TASK_PROMPTS[subset], "official")
    (message,) = plawbench.doc_to_messages(doc, loaded)
    assert message["role"] == "user"
    return message["content"]


# --- the released data ---------------------------------------------------------------------


def test_all_items_are_read_with_their_totals(official_data: Path) -> None:
    sizes = {subset: len(docs(subset, official_data)) for subset in FILES}
    assert list(sizes.values()) == [250, 18, 6, 6]
    for subset in ("plaintiff_statement", "defendant_statement"):
        scores = [row["score"] for row in raw(subset, official_data)]
        assert [doc["total"] for doc in docs(subset, official_data)] == scores
    for row, doc in zip(
        raw("case_analysis", official_data), docs("case_analysis", official_data), strict=True
    ):
        assert doc["total"] == sum(int(section["points"]) for section in row["rubrics"])
        assert doc["category"] == row["label"]


CONSULTATION_TOTALS = {
    1: 16, 2: 18, 3: 15, 4: 15, 5: 13, 6: 21, 7: 17, 8: 18, 9: 18, 10: 16, 11: 17,
    12: 33, 13: 30, 14: 24, 15: 20, 16: 14, 17: 13, 18: 18,
}  # fmt: skip


def test_consultation_totals_are_the_sums_of_the_marks(official_data: Path) -> None:
    found = {doc["id"]: doc["total"] for doc in docs("legal_consultation", official_data)}
    assert found == {f"legal_consultation-{k}": v for k, v in CONSULTATION_TOTALS.items()}


def test_the_one_header_that_contradicts_its_marks_is_noted(official_data: Path) -> None:
    notes = {d["id"]: d["note"] for d in docs("legal_consultation", official_data) if d["note"]}
    assert list(notes) == ["legal_consultation-17"]
    assert "12" in notes["legal_consultation-17"]
    assert "13" in notes["legal_consultation-17"]


@pytest.mark.parametrize(
    ("subset", "mean", "least", "most"),
    [
        ("case_analysis", 2730.18, 2147, 4883),
        ("legal_consultation", 1852.94, 1513, 2612),
        ("plaintiff_statement", 1494.67, 1267, 2050),
        ("defendant_statement", 4203.0, 2794, 5890),
    ],
)
@pytest.mark.usefixtures("official_prompts")
def test_task_prompts_have_the_published_lengths(
    official_data: Path, subset: str, mean: float, least: int, most: int
) -> None:
    lengths = [len(task_prompt(subset, doc)) for doc in docs(subset, official_data)]
    assert (round(statistics.mean(lengths), 2), min(lengths), max(lengths)) == (mean, least, most)


@pytest.mark.parametrize("subset", FILES)
def test_prompts_are_the_official_templates_filled(
    official_data: Path, official_prompts: Path, subset: str
) -> None:
    def template(name: str) -> str:
        return (official_prompts / f"plawbench_{name}.txt").read_bytes().decode("utf-8")

    kind, judge = {
        "case_analysis": ("case_analysis", "case_analysis_merge"),
        "legal_consultation": ("legal_consultation", "legal_qa"),
    }.get(subset, ("document_generation", "document_generation"))
    instruction = template(f"task_{kind}_mid" if kind == "legal_consultation" else f"task_{kind}")
    question = template(f"task_user_{kind}")
    for row, doc in list(zip(raw(subset, official_data), docs(subset, official_data), strict=True))[
        :3
    ]:
        asked = row.get("question") or row["conversation"]
        filled = question.replace("{context}", row.get("context", ""))
        expected = instruction + filled.replace("{question}", asked)
        assert task_prompt(subset, doc) == expected

        rubric = row.get("rubrics") or row["Rubrics"]
        if subset == "case_analysis":
            rubric = json.dumps(rubric, ensure_ascii=False, indent=2)
        total = CONSULTATION_TOTALS.get(row.get("id", 0), 0)
        total = total if subset == "legal_consultation" else row.get("score", 0)
        user = template(f"judge_user_{judge}")
        system = template(f"judge_system_{judge}")
        if subset == "case_analysis":  # malformed as released: see test_the_case_template_…
            system, user = repaired(system), repaired(user)
        conversation = f"user: {expected}\n\nassistant: 回答 <<score>> {{x}}\n\n"
        before, after = user.split("<<conversation>>")
        (call,) = plawbench.doc_to_judge(
            doc,
            plawbench.doc_to_messages(doc, prompts.load(TASK_PROMPTS[subset], "official")),
            Answer("回答 <<score>> {x}", "answered"),
            prompts.load(JUDGE_PROMPTS[subset], "official"),
        )
        assert call.messages() == [
            {"role": "system", "content": system.replace("<<num>>", "25")},
            {
                "role": "user",
                "content": before
                + conversation
                + after.replace("<<rubric_item>>", rubric).replace("<<score>>", str(total)),
            },
        ]


def repaired(template: str) -> str:
    return template.replace(
        '"total_points": 0,\n      "max_points": 0,',
        '"total_points": ...,\n      "max_points": ...,',
    ).replace('}     "others"', '},\n    "others"')


@pytest.mark.usefixtures("official_prompts")
def test_the_case_template_is_repaired_and_says_so() -> None:
    prompt = prompts.load(official.JUDGE_CASE_ANALYSIS, "official")
    for role, template in prompt.templates.items():
        assert "repaired" in prompt.record()[role]
        block = template.text.split("```json")[1].split("```")[0]
        # With the ellipses filled in it is JSON now, and no section is pinned to 0 points.
        filled = json.loads(block.replace("[...]", "[]").replace("...", "1"))
        sections = filled["score_details"]
        assert {section["max_points"] for section in sections.values()} == {1}
        assert set(sections) == {key for _, _, key in SECTIONS} | {"others"}
    assert "repaired" not in prompts.load(official.JUDGE_DRAFTING, "official").record()["user"]


@pytest.mark.parametrize("subset", FILES)
def test_builtin_prompts_hold_what_they_are_given(subset: str) -> None:
    task = prompts.load(TASK_PROMPTS[subset], "builtin")
    doc = {"context": "案情 {{ x }}", "question": "问题 <<score>>"}
    (message,) = plawbench.doc_to_messages(doc, task)
    assert "问题 <<score>>" in message["content"]
    judge = prompts.load(JUDGE_PROMPTS[subset], "builtin")
    system, user = judge.messages(conversation="对话", rubric_item="细则", score="20", num="25")
    assert "对话" in user["content"]
    assert "细则" in user["content"]
    assert system["role"] == "system"


# --- the normalised table, and bad rows ----------------------------------------------------

SECTION_ROWS = [
    {"criterion": f"{tag}：要点", "points": str(points), "tags": tag}
    for (_, tag, _), points in zip(SECTIONS, (10, 20, 30, 15), strict=True)
]
CASE = {
    "id": "a", "task": "case_analysis", "judge_type": "case_analysis_merge", "category": "民事",
    "context": "某甲与某乙", "question": "如何处理？", "rubrics": SECTION_ROWS, "max_points": 75,
}  # fmt: skip
CONSULTATION = {
    **CASE, "task": "legal_consultation", "judge_type": "legal_qa", "context": "",
    "rubrics": "1.（+2分）一\n2.( + 1.5 分 )二\n3.(＋3分）三", "max_points": 6.5,
}  # fmt: skip


def test_a_normalised_table_gives_each_subset_its_own_rows() -> None:
    assert plawbench.row_to_doc(CASE, "legal_consultation", 1) is None
    doc = plawbench.row_to_doc(CASE, "case_analysis", 1)
    assert doc is not None
    assert (doc["total"], doc["note"], doc["category"]) == (75, None, "民事")
    assert [s["points"] for s in doc["sections"]] == [10, 20, 30, 15]
    as_text = {**CASE, "rubrics": json.dumps(SECTION_ROWS, ensure_ascii=False)}
    assert plawbench.row_to_doc(as_text, "case_analysis", 1) == doc


@pytest.mark.parametrize("row", [CASE, CONSULTATION])
def test_max_points_of_a_normalised_table_wins_with_a_note(row: dict[str, Any]) -> None:
    right = plawbench.row_to_doc(row, row["task"], 1)
    other = plawbench.row_to_doc({**row, "max_points": 80}, row["task"], 1)
    assert right is not None
    assert right["note"] is None
    assert other is not None
    assert other["total"] == 80
    assert f"{row['max_points']:g}" in other["note"]


@pytest.mark.parametrize(
    ("row", "split", "named"),
    [
        ({"a": 1}, "case_analysis", "neither the released shape"),
        ({"conversation": "x", "rubrics": "y"}, "legal_consultation", "（+N分）"),
        ({"conversation": "x", "Rubrics": "y"}, "plaintiff_statement", "'score'"),
        ({"conversation": "x", "Rubrics": "y", "score": 0}, "plaintiff_statement", "'score'"),
        ({"conversation": "", "rubrics": "（+1分）"}, "legal_consultation", "'conversation'"),
        ({**CASE, "task": "essay"}, "case_analysis", "'task'"),
        ({**CASE, "max_points": "many"}, "case_analysis", "'max_points'"),
        ({**CASE, "max_points": None}, "case_analysis", "'max_points'"),
        ({**CASE, "question": " "}, "case_analysis", "'question'"),
        ({**CASE, "rubrics": "[1"}, "case_analysis", "'rubrics'"),
        ({**CASE, "rubrics": SECTION_ROWS[:3]}, "case_analysis", "法条依据得分"),
        ({**CASE, "rubrics": [*SECTION_ROWS, SECTION_ROWS[0]]}, "case_analysis", "twice"),
        (
            {**CASE, "rubrics": [{**SECTION_ROWS[0], "points": "十"}, *SECTION_ROWS[1:]]},
            "case_analysis",
            "section 0",
        ),
    ],
)
def test_a_row_that_fits_no_shape_names_its_field(
    row: dict[str, Any], split: str, named: str
) -> None:
    with pytest.raises(DataError, match=named.replace("+", r"\+")):
        plawbench.row_to_doc(row, split, 1)


# --- replies -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "points"),
    [
        (8, 8), (7.5, 7.5), (0, 0), ("8", 8), (" 7.5 ", 7.5), ("8/10", 8), ("8 / 10", 8),
        ("8分", 8), ("8.5 分", 8.5), ("8分/10分", 8), ("８／１０", 8), ("+3", 3),
        (True, None), (False, None), (None, None), (-1, None), ("-1", None), ("", None),
        ("满分", None), ("8到10", None), ("1e400", None), (float("nan"), None),
        (float("inf"), None), ([8], None), ({"x": 8}, None), ("错误码429", None),
    ],
)  # fmt: skip
def test_points_however_they_are_written(written: object, points: float | None) -> None:
    assert points_of(written) == points


TOTAL = (
    "分析如下：\n-要点1: 2分，理由为：写明了被告。\n-要点2: 0分，理由为：没有写。\n```json\n{}\n```"
)


@pytest.mark.parametrize(
    ("body", "points"),
    [
        ('{"total_points": 85, "max_points": 100}', 85),
        ('    {\n        "total_points": 85,\n        "max_points": 100,\n    },', 85),
        ('{"total_points": "85/100", "max_points": 100}', 85),
        ('{"total_points": 85.5, "max_points": 9}', 85.5),
        ('{"total_points": 85, "max_points": 10', 85),
        ('{"total_points": 85,', 85),
        ('{"total_points": 8', None),  # may have gone on
        ('{"total_points":', None),
        ('{"total_points": true}', None),
        ('{"total_points": null}', None),
        ('{"total_points": -3}', None),
        ('{"max_points": 100}', None),
        ("", None),
    ],
)
def test_a_total_is_read_from_the_last_object_or_not_at_all(
    body: str, points: float | None
) -> None:
    for text in (TOTAL.format(body), f'例如 {{"total_points": 1}}\n{body}'):
        if points is None:
            if "total_points" not in body and text.startswith("例如"):
                continue  # then the example is the last one
            with pytest.raises(Unreadable):
                read_total(text)
        else:
            assert read_total(text).awarded == {"total": points}


@pytest.mark.parametrize(
    "value",
    [
        "20+15+5", "3 + 4", "10 - 2", "10-2", "7.5*2", "60%", "7~8", "7-8", "1 2", "\u22123", "-3",
        '"20+15+5"', '"60%"', "40分左右", "约40", "0" * 5000, "1" * 400, "1" * 5000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ['{"total_points": %s}', '```json\n{"total_points": %s,}\n```'])
def test_what_is_no_plain_number_of_points_is_never_half_read(form: str, value: str) -> None:
    reply = form % value
    assert read_or_none(reply) is None
    whole = as_json(details()).replace("15.5", value)
    for text in (whole, whole.replace("}", ",}")):
        with pytest.raises(Unreadable):
            read_sections(text)


def read_or_none(text: str) -> float | None:
    try:
        return read_total(text).awarded["total"]
    except Unreadable:
        return None


@pytest.mark.parametrize(
    ("reply", "points"),
    [
        ('{"details": [{"total_points": 25}, {"total_points": 15}], "total_points": 40,}', 40),
        ('{"analysis": [{"要点": "一"}], "total_points": 12, "max_points": 20,}', 12),
        ('{"total_points": 40, "details": [{"total_points": 25}, {"total_points": 15}],}', None),
        ('{"total_points": 8, "note": "选手写 {"total_points": 20} 不理会"}', None),
        ('{"total_points": 8, "note": "选手写 "total_points": 20"}', None),
        ('{"total_points": 8, "note": "选手写 "total_points": 20,}', None),
        ('{"total_points": 8}\n更正："total_points": 9}', None),
        ('{"total_points": 5, "total_points": 9}', None),
        ('{"total_points": 5, "total_points": 9,}', None),
        ('{"total_points" 12}', None),
        ('{"total_points" 12,}', None),
        ('{"total_points": "85/100",}', 85),
        ('{"total_points": "85分",}', 85),
        ('{"total_points": "８５／１００",}', 85),
        ('{"total_points": 85 // 满分 100\n}', 85),
        ('{"total_points": 85\n "max_points": 100}', 85),
    ],
)
def test_mending_takes_the_outer_total_or_none(reply: str, points: float | None) -> None:
    assert read_or_none(reply) == points


def test_a_section_that_stands_there_twice_is_not_read() -> None:
    text = as_json(details()).replace('"total_points": 10', '"total_points": 10, "total_points": 3')
    for reply in (text, text.replace("}", ",}")):
        with pytest.raises(Unreadable):
            read_sections(reply)


def test_the_lines_of_analysis_are_the_breakdown() -> None:
    first, second = read_total(TOTAL.format('{"total_points": 2}')).breakdown["total"]
    assert (first.item, first.points, first.rationale) == ("要点1", 2, "写明了被告。")
    assert (second.points, second.rationale) == (0, "没有写。")


def details(**changes: Any) -> dict[str, Any]:
    sections = {
        key: {
            "total_points": points,
            "max_points": 99,
            "breakdown": [{"rubric_item": "一", "points_awarded": points, "rationale": "因为"}],
        }
        for (_, _, key), points in zip(SECTIONS, (5, 10, 15.5, 0), strict=True)
    }
    return {"score_details": {**sections, **changes}, "total_score": {"total_awarded": 1}}


RIGHT = {"conclusion": 5, "fact": 10, "reasoning": 15.5, "law": 0}


def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)


@pytest.mark.parametrize(
    "text",
    [
        as_json(details()),
        f"先说几句。\n```json\n{as_json(details())}\n```\n谢谢",
        as_json(details()).replace("}", ",}"),
        as_json(details())[:-3],
        as_json(details()) + "}}",
        f"<think>{as_json(details(结论={'total_points': 1}))}</think>{as_json(details())}",
        as_json(details(结论={"total_points": 1})) + "\n更正：\n" + as_json(details()),
        as_json(details(结论={"total_points": "5/10"})),
        as_json(details()).replace('"因为"', '"因为"重要""'),
    ],
)
def test_sections_are_read_through_the_usual_blemishes(text: str) -> None:
    assert read_sections(text).awarded == RIGHT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "我认为得 80 分",
        as_json({"total_points": 80}),
        as_json({"score_details": [1]}),
        as_json({"score_details": dict(list(details()["score_details"].items())[:3])}),
        as_json(details(结论={"max_points": 10})),
        as_json(details(结论={"total_points": None})),
        as_json(details(结论={"total_points": True})),
        as_json(details(结论={"total_points": -5})),
        as_json(details(结论={"total_points": "较高"})),
        as_json(details(结论=5)),
    ],
)  # fmt: skip
def test_a_section_without_points_is_a_failure_and_no_zero(text: str) -> None:
    with pytest.raises(Unreadable):
        read_sections(text)


def test_a_reply_cut_anywhere_is_whole_or_unread() -> None:
    text = f"分析：\n```json\n{as_json(details())}\n```"
    for end in range(len(text)):
        try:
            found = read_sections(text[:end]).awarded
        except Unreadable:
            continue
        assert found == RIGHT, text[:end][-40:]


# --- scores --------------------------------------------------------------------------------


def judged(reply: str | None, failed_is_unmet: bool = False) -> Judgement:
    outcome: Outcome[Any] = (
        Outcome(1, failure="unread") if reply is None else Outcome(1, read_sections(reply))
    )
    return Judgement(Answer("答", "answered"), (outcome,), failed_is_unmet)


def case() -> dict[str, Any]:
    doc = plawbench.row_to_doc(CASE, "case_analysis", 1)
    assert doc is not None
    return doc


def test_a_case_is_scored_on_the_points_of_the_data() -> None:
    scores = plawbench.process_results(case(), [judged(as_json(details()))])
    assert scores["acc"] == pytest.approx(30.5 / 75)
    assert scores["conclusion_acc"] == 0.5
    assert scores["fact_acc"] == 0.5
    assert scores["reasoning_acc"] == pytest.approx(15.5 / 30)
    assert scores["law_acc"] == 0
    assert scores["judge_coverage"] == 1
    first = scores["grading"]["sections"][0]
    assert (first["awarded"], first["points"]) == (5, 10)
    assert first["breakdown"] == [{"item": "一", "points": 5, "rationale": "因为"}]


def test_points_above_an_allocation_are_clamped_to_it() -> None:
    reply = as_json(details(结论={"total_points": 1000}))
    scores = plawbench.process_results(case(), [judged(reply)])
    assert scores["conclusion_acc"] == 1
    assert scores["acc"] == pytest.approx((10 + 10 + 15.5) / 75)
    assert scores["points_clamped"] == 1
    first, second, *_ = scores["grading"]["sections"]
    assert (first["awarded"], first["given"]) == (10, 1000)
    assert second["awarded"] == second["given"]


@pytest.mark.parametrize("points", [10**7, 1e300, "9999999999"])
def test_points_beyond_any_rubric_are_none(points: Any) -> None:
    assert plawbench.points_of(points) is None


def test_a_failed_grading_has_no_score_but_bounds() -> None:
    scores = plawbench.process_results(case(), [judged(None)])
    assert scores["acc"] != scores["acc"]
    assert scores["law_acc"] != scores["law_acc"]
    assert (scores["acc_low"], scores["acc_high"], scores["judge_coverage"]) == (0, 1, 0)
    unmet = plawbench.process_results(case(), [judged(None, failed_is_unmet=True)])
    assert (unmet["acc"], unmet["law_acc"], unmet["judge_coverage"]) == (0, 0, 1)
    assert set(unmet) == set(scores)


def test_an_empty_answer_has_no_points() -> None:
    scores = plawbench.process_results(case(), [Judgement(Answer("", "empty"))])
    assert (scores["acc"], scores["empty_answers"], scores["judge_coverage"]) == (0, 1, 1)


# --- overall -------------------------------------------------------------------------------

# Rows of the published tables that their own columns contradict: by an equal-weighted mean of the
# parts, or by drafting columns that do not add up to the drafting average.
EXCEPTIONS = {
    "2026-02 table, 24 models": {
        "GPT-5.2-1211-global",
        "Qwen-4b-instruct-2507",
        "Qwen-4b-thinking-2507",
        "Qwen-8b",
    },
    "authors' repository, 10 models": {"claude-sonnet-4-5-20250929", "Qwen3-max-20250923"},
}


def test_overall_reproduces_the_published_tables(official_data: Path) -> None:
    path = official_data / "plawbench" / "published_scores.tsv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    differing: dict[str, set[str]] = {}
    for row in rows:
        computed = plawbench.overall({name: float(row[name]) for name in FILES})
        if abs(computed - float(row["overall"])) > 0.02 + 1e-9:
            differing.setdefault(row["table"], set()).add(row["model"])
    assert len(rows) == 34
    assert differing == EXCEPTIONS


def test_overall_is_absent_without_all_subsets() -> None:
    values = {name: {"acc": [0.2, 0.4]} for name in FILES}
    assert plawbench.group_overall(values) == pytest.approx(0.3)
    one = 0.1**2  # the squared standard error of 0.2 and 0.4
    expected = ((0.2**2 + 0.5**2 + 2 * 0.15**2) * one) ** 0.5
    assert plawbench.group_overall_stderr(values) == pytest.approx(expected)
    nothing = {**values, "case_analysis": {"acc": [float("nan")]}}
    assert plawbench.group_overall(nothing) is None
    assert (
        plawbench.group_overall({k: v for k, v in values.items() if k != "case_analysis"}) is None
    )
    single = {**values, "case_analysis": {"acc": [0.5]}}
    assert plawbench.group_overall_stderr(single) == "N/A"
