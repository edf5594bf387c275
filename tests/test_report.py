"""``lm-eval-rubrics report``: what is in the file, without a browser (the extended tests have one).

The numbers of the page are compared with those of the results files, and with sums made here.
"""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import hostile
import lxml.html
import pyarrow.parquet as parquet
import pytest
from big_run import TASK, changed_run, second_answers, write_run
from commands import command, judge_arguments, metrics, model_arguments, results, samples
from recorded import CATEGORIES, CLIPPED, JUDGE_CALLS, NORMALIZED, RecordedRun
from stub_server import StubServer

import lm_eval_tasks
from custom_metrics import prbench
from custom_metrics.analysis import results as reading
from custom_metrics.cli import main
from custom_metrics.report.text import LONGEST_MARKDOWN, markdown, visible


def report(*folders: Path, out: Path, more: tuple[str, ...] = ()) -> Any:
    """The page that the command makes of ``folders``, parsed."""
    assert main(["report", *map(str, folders), "-o", str(out), *more]) == 0
    return lxml.html.fromstring(out.read_text(encoding="utf-8"))


def unpacked(page: Any, name: str) -> Any:
    (text,) = page.xpath(f"//script[@id='{name}']/text()")
    return json.loads(gzip.decompress(base64.b64decode(text)))


def values(page: Any, path: str) -> list[float]:
    return [float(v) for v in page.xpath(f"{path}//data/@value")]


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        write_run(folder, seed=seed, documents=40, criteria=300)
    return folder


def sample_run(folder: Path, benchmark: str, quality: str) -> Path:
    """A run on a bundled sample, by the real command."""
    answers = Path(lm_eval_tasks.path()) / benchmark / "sample_answers" / f"{quality}.json"
    assert main(["run", "--model", "prefilled", "--model_args", json.dumps({"path": str(answers)}),
                 "--tasks", f"{benchmark}_sample", "--output_path", str(folder), "--log_samples",
                 "--metadata", '{"task_prompt": "builtin"}',
                 "--judge", "backend=lexical", "prompt=builtin"]) == 0  # fmt: skip
    return folder


# --- numbers -------------------------------------------------------------------------------------


def test_headline_and_categories_are_those_of_the_results_file(
    made_up: Path, tmp_path: Path
) -> None:
    page = report(made_up / "model-0", out=tmp_path / "r.html")
    row = metrics(results(made_up / "model-0"), TASK)
    assert values(page, "//section[@id='overview']//div[@class='headline']") == [
        row["clipped_score"], row["normalized_score"],
    ]  # fmt: skip
    shown = values(page, "//section[@id='breakdown']//table[.//th='Rubric category']")
    assert shown == [v for k, v in row.items() if k.startswith("category_") and "stderr" not in k]


def test_a_breakdown_is_the_mean_of_its_documents(made_up: Path, tmp_path: Path) -> None:
    page = report(made_up / "model-0", out=tmp_path / "r.html")
    by_topic: dict[str, list[float]] = {}
    for sample in samples(made_up / "model-0", TASK):
        by_topic.setdefault(sample["doc"]["topic"], []).append(sample["clipped_score"])
    table = "//section[@id='breakdown']//table[.//th='Topic']"
    names = page.xpath(f"{table}/tbody//th//bdi/text()")
    counts = [int(n) for n in page.xpath(f"{table}/tbody//tr/td[1]/text()")]
    assert dict(zip(names, counts, strict=True)) == {t: len(s) for t, s in by_topic.items()}
    for name, shown in zip(names, values(page, table), strict=True):
        assert shown == pytest.approx(max(0, sum(by_topic[name]) / len(by_topic[name])))


def test_several_runs_are_compared_on_the_same_documents(made_up: Path, tmp_path: Path) -> None:
    page = report(made_up, out=tmp_path / "r.html")
    first, second = (
        {s["doc"]["id"]: s["clipped_score"] for s in samples(made_up / f"model-{k}", TASK)}
        for k in (0, 1)
    )
    moves = [second[name] - first[name] for name in first]
    cells = [
        cell.text_content()
        for cell in page.xpath("//section[@id='overview']//table[.//th='Moved']/tbody/tr/td")
    ]
    stated = float(cells[0].replace("−", "-"))
    assert stated == pytest.approx(sum(moves) / len(moves), abs=5e-4)
    assert [int(cells[k]) for k in (3, 4, 5)] == [
        sum(m > 1e-9 for m in moves),
        sum(abs(m) < 1e-9 for m in moves),
        sum(m < -1e-9 for m in moves),
    ]
    headlines = [metrics(results(made_up / f"model-{k}"), TASK)["clipped_score"] for k in (0, 1)]
    assert values(page, "//section[@id='overview']//table[.//th='Score']")[::2] == headlines
    board = "//section[@id='overview']//table[.//th='Finance Hard']"
    columns = page.xpath(f"{board}//th/text()")
    assert columns[:5] == ["Model", "Finance", "Finance Hard", "Legal", "Legal Hard"]
    assert [v for v in values(page, board) if not math.isnan(v)] == headlines


def test_lost_points_are_counted(made_up: Path, tmp_path: Path) -> None:
    page = report(made_up / "model-0", out=tmp_path / "r.html")
    criteria = [c for s in samples(made_up / "model-0", TASK) for c in s["doc"]["criteria"]]
    cards = {card.findtext("h3"): card for card in page.xpath("//section[@id='lost']//div[h3]")}
    for title, harmful in (("Missed, by weight", False), ("Harm done, by weight", True)):
        for line in cards[title].xpath(".//tbody/tr"):
            weight, lost, count, _ = (cell.text_content() for cell in line)
            same = [c for c in criteria if c["weight"] == int(weight.replace("−", "-"))]
            assert int(count) == len(same)
            assert int(lost) == sum(c["met"] is harmful for c in same)
    heaviest = cards["Heaviest criteria missed"].xpath(".//span[@class='weight ']/text()")
    assert heaviest == ["+10"] * 12


def test_every_document_and_criterion_is_in_the_page(made_up: Path, tmp_path: Path) -> None:
    page = report(made_up, out=tmp_path / "r.html")
    index = unpacked(page, "index")
    blocks = [unpacked(page, f"block-{n}") for n in range(index["blocks"])]
    assert index["runs"] == ["model-0", "model-1"]
    for number in (0, 1):
        written = {
            f"{TASK}/{s['doc']['id']}": s for s in samples(made_up / f"model-{number}", TASK)
        }
        assert [doc["key"] for doc in index["docs"]] == list(written)
        for doc in index["docs"]:
            sample = written[doc["key"]]
            texts = blocks[doc["block"]][doc["at"]]
            assert doc["runs"][number]["score"] == sample["clipped_score"]
            assert doc["runs"][number]["met"] == [c["met"] for c in sample["doc"]["criteria"]]
            assert doc["weights"] == [c["weight"] for c in sample["doc"]["criteria"]]
            assert texts["criteria"] == [c["text"] for c in sample["doc"]["criteria"]]
            assert texts["messages"] == [
                [m["role"], m["content"]] for m in sample["doc"]["messages"]
            ]
            (mine,) = texts["runs"][number]
            assert mine["answer"] == sample["doc"]["answer"]
            assert [note["reason"] for note in mine["notes"]] == [
                c["explanation"] for c in sample["doc"]["criteria"]
            ]


def test_real_runs_of_both_benchmarks(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    for benchmark in ("prbench", "plawbench"):
        sample_run(folder / benchmark, benchmark, "middling")
    page = report(folder / "prbench", folder / "plawbench", out=tmp_path / "r.html")
    found = results(folder / "plawbench")
    rows = {name: metrics(found, name) for name in found["results"]}
    both = page.xpath("//select[@id='suite']/option/text()")
    assert both == ["prbench_sample", "plawbench_sample"]
    assert rows["plawbench_sample"]["overall"] in values(page, "//section[@id='overview']")
    text = page.text_content()
    for name in ("结论", "案件事实", "推理过程", "法条依据", "案例分析", "起诉状", "类别"):
        assert name in text
    subset = values(page, "//section[@id='breakdown']//table[.//th='Subset 子集']")
    assert sorted(subset) == sorted(rows[t]["acc"] for t in rows if t != "plawbench_sample")
    case = rows["plawbench_sample_case_analysis"]
    assert values(page, "//section[@id='breakdown']//table[.//th='Dimension 维度']") == [
        case[f"{name}_acc"] for name in ("conclusion", "fact", "reasoning", "law")
    ]
    assert "scores mean nothing" in text


def test_the_recorded_run(official_data: Path, official_prompts: Path, tmp_path: Path) -> None:
    recorded = RecordedRun(official_data, official_prompts)
    with StubServer(recorded.respond, models=("model", "judge")) as server:
        done = command(
            "lm-eval-rubrics", "run", "--tasks", "prbench_finance_hard",
            "--samples", recorded.samples, *model_arguments(server.url),
            *judge_arguments(server.url), "--output_path", str(tmp_path / "out"), "--log_samples",
        )  # fmt: skip
    assert done.code == 0, done.text
    page = report(tmp_path / "out", out=tmp_path / "r.html")
    headline = values(page, "//section[@id='overview']//div[@class='headline']")
    assert [round(value, 6) for value in headline] == [CLIPPED, NORMALIZED]
    table = "//section[@id='breakdown']//table[.//th='Rubric category']"
    names = [prbench.slug(name) for name in page.xpath(f"{table}/tbody//th//bdi/text()")]
    shown = [round(value, 4) for value in values(page, table)]
    assert {f"category_{n}": v for n, v in zip(names, shown, strict=True)} == CATEGORIES
    index = unpacked(page, "index")
    assert sum(len(doc["weights"]) for doc in index["docs"]) == JUDGE_CALLS
    assert sum(doc["runs"][0]["score"] < 0 for doc in index["docs"]) == 3


def test_without_samples_there_are_the_scores(made_up: Path, tmp_path: Path) -> None:
    (source,) = (made_up / "model-0").glob("results_*")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / source.name).write_bytes(source.read_bytes())
    page = report(tmp_path / "bare", out=tmp_path / "r.html")
    row = metrics(results(made_up / "model-0"), TASK)
    assert row["clipped_score"] in values(page, "//section[@id='overview']")
    assert "no samples file" in page.text_content()


def test_excluded_and_empty_documents_are_named(made_up: Path, tmp_path: Path) -> None:
    def change(found: list[Any]) -> None:
        excluded, empty, cut = found[:3]
        excluded["doc"]["criteria"][0].update(met=None, failure="no JSON in the reply")
        excluded.update(clipped_score=math.nan, judge_coverage=0.0)
        empty["doc"].update(answer="", answer_status="empty")
        cut["doc"].update(answer="", answer_status="cut_in_reasoning")

    folder = changed_run(made_up / "model-0", tmp_path / "model-0", change)
    page = report(folder, out=tmp_path / "r.html")
    facts = page.xpath("//section[@id='trust']//dl")[0]
    told = {
        name.text: text.text_content()
        for name, text in zip(facts.xpath("dt"), facts.xpath("dd"), strict=True)
    }
    assert told["Documents"] == "40, 39 scored"
    assert told["Excluded"] == "1: made-up-0000"
    assert told["Empty answers"] == "1: made-up-0001"
    assert told["Cut off in reasoning"] == "1: made-up-0002"
    index = unpacked(page, "index")
    assert index["docs"][0]["runs"][0]["score"] is None
    assert index["docs"][0]["runs"][0]["met"][0] is None


def test_opinions_that_differ_are_counted(made_up: Path, tmp_path: Path) -> None:
    split = total = 0
    by_judge: dict[str, list[float]] = {"a #1": [], "b #1": []}

    def change(found: list[Any]) -> None:
        nonlocal split, total
        for number, sample in enumerate(found):
            criteria = sample["doc"]["criteria"]
            best = sum(c["weight"] for c in criteria if c["weight"] > 0)
            for k, c in enumerate(criteria):
                other = c["met"] if (number + k) % 5 else not c["met"]
                split, total = split + (other != c["met"]), total + 1
                c["votes"] = [
                    {"judge": "a", "repeat": 0, "met": c["met"], "explanation": "A's reason"},
                    {"judge": "b", "repeat": 0, "met": other, "explanation": "B's reason"},
                ]
            for k, points in enumerate(by_judge.values()):
                points.append(sum(c["weight"] * c["votes"][k]["met"] for c in criteria) / best)

    folder = changed_run(made_up / "model-0", tmp_path / "model-0", change)
    (path,) = folder.glob("results_*")
    content = json.loads(path.read_text(encoding="utf-8"))
    content["configs"][TASK]["metadata"]["judge_opinions"] = {
        "scores": [
            {"judge": name[0], "repeat": 0, "score": max(0, sum(p) / len(p))}
            for name, p in by_judge.items()
        ]
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    page = report(folder, out=tmp_path / "r.html")
    (card,) = page.xpath("//section[@id='trust']//div[h3='Do the judges agree?']")
    told = [text.text_content() for text in card.xpath(".//dd")]
    assert told[:2] == [str(total), f"{split} ({100 * split / total:.0f}%)"]
    assert told[2:] == [f"{max(0, sum(p) / len(p)):.3f}" for p in by_judge.values()]
    assert "not known" not in page.xpath("//section[@id='trust']")[0].text_content()
    index = unpacked(page, "index")
    flags = [flag for doc in index["docs"] for flag in doc["runs"][0].get("flags", [])]
    assert sum(flag & 2 != 0 for flag in flags) == split
    notes = unpacked(page, "block-0")[0]["runs"][0][0]["notes"][0]
    assert [vote.split(": ", 1)[0] for vote in notes["votes"]] == ["a #1", "b #1"]


def test_several_answers_to_a_document_are_all_there(made_up: Path, tmp_path: Path) -> None:
    folder = changed_run(made_up / "model-0", tmp_path / "model-0", second_answers)
    page = report(folder, out=tmp_path / "r.html")
    sample = samples(folder, TASK)[0]
    index, texts = unpacked(page, "index"), unpacked(page, "block-0")[0]
    (answers,) = texts["runs"]
    assert [a["answer"] for a in answers] == [a["answer"] for a in sample["doc"]["answers"]]
    assert [a["met"] for a in answers] == [
        [c["met"] for c in a["criteria"]] for a in sample["doc"]["answers"]
    ]
    assert set(index["docs"][0]["runs"][0]["met"]) == {0.5}  # one met it, the other did not
    cards = {card.findtext("h3"): card for card in page.xpath("//section[@id='lost']//div[h3]")}
    missed = cards["Missed, by weight"].xpath(".//tbody/tr")
    assert {row[3].text_content() for row in missed} == {"50%"}


def test_runs_that_were_not_graded_alike_are_told_apart(made_up: Path, tmp_path: Path) -> None:
    def change(found: list[Any]) -> None:
        found[0]["doc"]["criteria"][0]["text"] = "Another release asks for this."

    other = changed_run(made_up / "model-1", tmp_path / "model-1", change)
    (path,) = other.glob("results_*")
    content = json.loads(path.read_text(encoding="utf-8"))
    content["configs"][TASK]["metadata"]["judge"]["model"] = "another judge"
    path.write_text(json.dumps(content), encoding="utf-8")
    page = report(made_up / "model-0", other, out=tmp_path / "r.html")
    (warning,) = page.xpath("//section[@id='overview']//p[@class='warning']/text()")
    assert "model-1 was not graded like model-0" in warning
    assert "judge.model: judge in model-0, another judge in model-1" in warning
    docs = unpacked(page, "index")["docs"]
    assert len(docs) == 41
    assert [run is None for run in docs[0]["runs"]] == [False, True]
    assert docs[-1]["key"] == f"{TASK}/made-up-0000'"
    assert [run is None for run in docs[-1]["runs"]] == [True, False]


# --- safety --------------------------------------------------------------------------------------


def test_nothing_of_a_text_is_markup(tmp_path: Path) -> None:
    write_run(tmp_path, documents=20, criteria=100, texts=hostile.TEXTS)
    page = report(tmp_path / "model-0", out=tmp_path / "r.html")
    kinds = [script.get("type") for script in page.xpath("//script")]
    assert kinds == ["text/plain"] * (len(kinds) - 1) + [None]
    assert not page.xpath("//img | //iframe | //object | //embed | //base | //link | //svg//script")
    assert not page.xpath("//@*[starts-with(name(), 'on')] | //@style | //@src")
    assert len(page.xpath("//meta[@http-equiv]")) == 1
    for address in page.xpath("//@href"):
        assert address.startswith("#")
    whole = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "\u202e" not in whole
    assert "\x00" not in whole
    # A topic stands in the page itself: the template syntax in it was not looked at.
    assert hostile.TEXTS[4] in page.xpath("//section[@id='breakdown']//bdi/text()")


def test_the_policy_allows_the_one_script_and_style_by_their_hashes(
    made_up: Path, tmp_path: Path
) -> None:
    page = report(made_up / "model-0", out=tmp_path / "r.html")
    (policy,) = page.xpath("//meta[@http-equiv='Content-Security-Policy']/@content")
    (script,) = page.xpath("//script[not(@type)]/text()")
    (style,) = page.xpath("//style/text()")
    allowed = {
        name: "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
        for name, text in (("script-src", script), ("style-src", style))
    }
    assert policy.split("; ") == [
        "default-src 'none'", *(f"{name} {digest}" for name, digest in allowed.items()),
        "base-uri 'none'", "form-action 'none'",
    ]  # fmt: skip
    head = page.xpath("//head/*")
    assert [e.tag for e in head[:2]] == ["meta", "meta"]  # before anything that it has to fence in


@pytest.mark.parametrize("text", hostile.TEXTS)
def test_markdown_makes_no_element_that_acts(text: str) -> None:
    rendered = markdown(text)
    if len(text) > LONGEST_MARKDOWN:
        assert rendered is None
        return
    assert rendered is not None
    tree = lxml.html.fromstring(f"<div>{rendered}</div>")
    tags = {element.tag for element in tree.iter()}
    allowed = (
        "div",
        "p",
        "br",
        "a",
        "em",
        "pre",
        "code",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    )
    assert tags <= set(allowed)
    for element in tree.iter("a"):
        assert re.match(r"(https?|mailto):", element.get("href"))
        assert element.get("rel") == "noopener noreferrer"
    for element in tree.iter():
        assert not [name for name in element.keys() if name.startswith("on") or name == "style"]  # noqa: SIM118


def test_markdown_keeps_what_it_does_not_render() -> None:
    shown = lxml.html.fromstring(markdown(hostile.TEXTS[0]) or "").text_content()
    assert shown.strip() == hostile.TEXTS[0]
    shown = lxml.html.fromstring(markdown(hostile.TEXTS[2]) or "").text_content()
    assert shown.strip() == hostile.TEXTS[2]
    assert markdown("# One\n\n**b** ~~s~~") == "<h4>One</h4>\n<p><strong>b</strong> <s>s</s></p>\n"


def test_control_characters_are_seen_and_do_nothing() -> None:
    assert visible("a\u202eb\x00c\td\r\ne\udc80") == "a⟦U+202E⟧b⟦U+0000⟧c\td\ne⟦U+DC80⟧"


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "start"), [("svg", b"<svg"), ("png", b"\x89PNG")])
def test_charts_are_written(made_up: Path, tmp_path: Path, form: str, start: bytes) -> None:
    report(made_up, out=tmp_path / "r.html",
           more=("--plots", str(tmp_path / "plots"), "--plot_format", form))  # fmt: skip
    found = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert found == [
        f"prbench_finance-{name}.{form}"
        for name in (
            "categories", "model-0-distribution", "model-0-length",
            "model-1-distribution", "model-1-length",
        )
    ]  # fmt: skip
    for path in (tmp_path / "plots").iterdir():
        assert path.read_bytes().startswith(start)
        assert form == "png" or b"var(--" not in path.read_bytes()


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty")]) == 2
    assert "results" in capsys.readouterr().err


def test_reading_is_of_the_newest_results(made_up: Path) -> None:
    (run,) = reading.read_runs([str(made_up / "model-0")])
    assert (run.label, len(run.documents)) == ("model-0", 40)


def test_the_verdicts_are_exported(made_up: Path, tmp_path: Path) -> None:
    report(made_up, out=tmp_path / "r.html",
           more=("--csv", f"{tmp_path}/v.csv", "--parquet", f"{tmp_path}/v.parquet"))  # fmt: skip
    rows = parquet.read_table(tmp_path / "v.parquet").to_pylist()
    wanted = [
        (f"model-{k}", s["doc"]["id"], c["id"], c["weight"], float(c["met"]), s["clipped_score"])
        for k in (0, 1)
        for s in samples(made_up / f"model-{k}", TASK)
        for c in s["doc"]["criteria"]
    ]
    names = ("run", "document", "criterion", "weight", "met", "score")
    assert [tuple(row[name] for name in names) for row in rows] == wanted
    with (tmp_path / "v.csv").open(encoding="utf-8", newline="") as lines:
        read = list(csv.DictReader(lines))
    assert [row["explanation"] for row in read] == [row["explanation"] for row in rows]
    assert [float(row["met"]) for row in read] == [row["met"] for row in rows]


def test_runs_of_other_documents_stand_side_by_side(made_up: Path, tmp_path: Path) -> None:
    """One with few of them, and one that shares none with it."""
    few = changed_run(made_up / "model-0", tmp_path / "model-0", lambda found: found.__delitem__(
        slice(2, None)))  # fmt: skip
    rest = changed_run(made_up / "model-1", tmp_path / "model-1", lambda found: found.__delitem__(
        slice(0, 2)))  # fmt: skip
    page = report(few, rest, out=tmp_path / "r.html")
    overview = page.xpath("//section[@id='overview']")[0].text_content()
    assert "Against" not in overview
    (table,) = page.xpath("//section[@id='breakdown']//div[@class='card side'][1]//table")
    values = [row.xpath("./td//data/@value") for row in table.xpath(".//tbody/tr")]
    assert len(values) == len(CATEGORIES)
    assert all(len(row) == 2 for row in values)
