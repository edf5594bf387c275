"""The rows of a split: where they are found, what is refused, and what is written of it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as parquet
import pytest
from hub_server import Hub, serve_hub
from rows import FINANCE, LEGAL, Case

from custom_metrics.data import Source, find_split, read_docs
from custom_metrics.errors import DataError
from custom_metrics.prbench import row_to_doc

Write = Callable[[str, Sequence[Case]], Path]


def table(cases: Sequence[Case]) -> pyarrow.Table:
    return pyarrow.Table.from_pylist([case.row() for case in cases])


def jsonl(cases: Sequence[Case]) -> str:
    return "".join(json.dumps(case.row()) + "\n" for case in cases)


def find(split: str, revision: str | None = None) -> Source:
    return find_split(split, repository="ScaleAI/PRBench", folder="prbench", revision=revision)


def read(split: str = "finance") -> list[dict[str, Any]]:
    return read_docs(find(split), row_to_doc, split)


def ids(split: str = "finance") -> list[str]:
    return [doc["id"] for doc in read(split)]


def refusal(split: str = "finance") -> str:
    """The one line with which a split is refused."""
    with pytest.raises(DataError) as caught:
        read(split)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that ``RUBRIC_DATA_DIR`` names."""
    folder = tmp_path / "data"
    (folder / "prbench" / "data").mkdir(parents=True)
    monkeypatch.setenv("RUBRIC_DATA_DIR", str(folder))
    return folder


@pytest.fixture
def write(root: Path) -> Write:
    """Write rows under a name below ``prbench``, as its ending says."""

    def written(name: str, cases: Sequence[Case]) -> Path:
        path = root / "prbench" / name
        if name.endswith(".parquet"):
            parquet.write_table(table(cases), path)
        else:
            path.write_text(jsonl(cases), encoding="utf-8")
        return path

    return written


FINANCE_IDS = [case.id for case in FINANCE]


# --- A folder of the user's ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "finance.parquet",
        "finance.jsonl",
        "finance-00000-of-00001.parquet",
        "data/finance.parquet",
        "data/finance.jsonl",
        "data/finance-00000-of-00001.parquet",
    ],
)
def test_a_split_is_found_under_each_of_its_names(write: Write, name: str) -> None:
    path = write(name, FINANCE)
    docs = read()
    assert [doc["messages"] for doc in docs] == [case.messages for case in FINANCE]
    assert [[c["weight"] for c in doc["rubric"]] for doc in docs] == [
        [item.weight for item in case.items] for case in FINANCE
    ]
    assert find("finance").record() == {
        "origin": "RUBRIC_DATA_DIR/prbench",
        "revision": None,
        "files": [path.name],
        "fingerprint": hashlib.sha256(path.read_bytes()).hexdigest(),
    }


def test_several_shards_are_read_in_order(write: Write) -> None:
    paths = [
        write(f"data/finance-{number:05}-of-00003.parquet", [case])
        for number, case in reversed(list(enumerate(FINANCE)))
    ]
    assert ids() == FINANCE_IDS
    record = find("finance").record()
    assert record["files"] == [path.name for path in reversed(paths)]
    whole = b"".join(path.read_bytes() for path in reversed(paths))
    assert record["fingerprint"] == hashlib.sha256(whole).hexdigest()


@pytest.mark.parametrize("ending", [".parquet", ".jsonl", "-00000-of-00001.parquet"])
def test_a_split_does_not_take_the_files_of_another(write: Write, ending: str) -> None:
    write(f"finance_hard{ending}", LEGAL)
    write(f"legal{ending}", LEGAL)
    assert "'finance'" in refusal("finance")
    write(f"finance{ending}", FINANCE)
    assert ids("finance") == FINANCE_IDS
    assert ids("finance_hard") == [case.id for case in LEGAL]


def test_a_missing_split_says_where_it_was_looked_for(root: Path) -> None:
    message = refusal("legal_hard")
    for named in (
        f"RUBRIC_DATA_DIR={root}", "prbench/", "'legal_hard'", "legal_hard.parquet",
        "legal_hard.jsonl", "legal_hard-*-of-*.parquet", "unset",
    ):  # fmt: skip
        assert named in message


def test_a_folder_that_is_not_there_is_said_to_lack_the_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUBRIC_DATA_DIR", str(tmp_path / "nowhere"))
    assert str(tmp_path / "nowhere") in refusal()


def test_the_fingerprint_follows_the_content_and_not_the_place(write: Write) -> None:
    write("finance.jsonl", FINANCE)
    first = find("finance").fingerprint
    write("finance.jsonl", FINANCE[:2])
    assert find("finance").fingerprint != first
    write("finance.jsonl", FINANCE)
    assert find("finance").fingerprint == first


def test_bundled_rows_come_before_any_other(write: Write, tmp_path: Path) -> None:
    write("finance.jsonl", FINANCE)
    path = tmp_path / "sample.jsonl"
    path.write_text(jsonl(LEGAL), encoding="utf-8")
    source = find_split("finance", repository="-", folder="prbench", bundled=path)
    assert source.files == (path,)
    assert source.record()["origin"] == "bundled with lm-eval-rubrics"


@pytest.mark.parametrize("present", [(0,), (1,), (0, 2)])
def test_a_split_that_lacks_a_shard_is_refused(write: Write, present: tuple[int, ...]) -> None:
    for number in present:
        write(f"data/finance-{number:05}-of-00003.parquet", [FINANCE[number]])
    assert "of-00003" in refusal()


# --- Files that are not what they should be ------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"not a parquet file", b"PAR1 cut off PAR1"])
def test_a_bad_parquet_file_is_refused_by_name(root: Path, content: bytes) -> None:
    (root / "prbench" / "finance.parquet").write_bytes(content)
    message = refusal()
    assert message.startswith("finance.parquet: ")
    assert "parquet" in message.removeprefix("finance.parquet")


@pytest.mark.parametrize("name", ["finance.parquet", "finance.jsonl"])
def test_a_file_without_rows_is_refused(write: Write, name: str) -> None:
    path = write(name, FINANCE)
    if name.endswith(".parquet"):
        parquet.write_table(table(FINANCE).slice(0, 0), path)
    else:
        path.write_text("\n \n", encoding="utf-8")
    assert refusal() == f"{name}: no documents"


def test_a_parquet_file_without_its_rubric_column_is_refused(root: Path) -> None:
    without = table(FINANCE).drop_columns(["rubric"])
    parquet.write_table(without, root / "prbench" / "finance.parquet")
    message = refusal()
    assert message.startswith("finance.parquet, row 0 (finance-1): ")
    assert "'rubric'" in message


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", "not JSON"),
        ('{"task": "x"', "not JSON"),
        ("nonsense", "not JSON"),
        ("[]", "an object is needed"),
        ('"text"', "an object is needed"),
        ("null", "an object is needed"),
    ],
)
def test_a_bad_line_is_refused_by_its_number(root: Path, line: str, named: str) -> None:
    path = root / "prbench" / "finance.jsonl"
    path.write_text(f"{jsonl(FINANCE[:1])}\n{line}\n{jsonl(FINANCE[1:])}", encoding="utf-8")
    message = refusal()
    assert message.startswith("finance.jsonl, line 3: ")
    assert named in message


def test_a_file_in_another_encoding_is_refused(root: Path) -> None:
    path = root / "prbench" / "finance.jsonl"
    path.write_bytes(jsonl(FINANCE).encode("utf-8") + b'{"task": "caf\xe9"}\n')
    message = refusal()
    assert message.startswith("finance.jsonl: ")
    assert "UTF-8" in message


def test_a_line_that_is_nested_too_deeply_is_refused(root: Path) -> None:
    path = root / "prbench" / "finance.jsonl"
    path.write_text("[" * 100_000 + "\n", encoding="utf-8")
    assert "line 1" in refusal()


@pytest.mark.parametrize(
    ("column", "value"), [("prompt_0", None), ("rubric", []), ("rubric", "x"), ("rubric", None)]
)
def test_a_bad_row_is_refused_by_file_number_id_and_field(
    root: Path, column: str, value: Any
) -> None:
    lines = [json.dumps(FINANCE[0].row()), json.dumps({**FINANCE[1].row(), column: value})]
    (root / "prbench" / "finance.jsonl").write_text("\n".join(lines), encoding="utf-8")
    message = refusal()
    assert message.startswith("finance.jsonl, row 2 (finance-2): ")
    assert repr(column) in message


def test_a_row_without_an_id_is_refused_by_its_number(root: Path) -> None:
    row = FINANCE[0].row()
    del row["task"]
    (root / "prbench" / "finance.jsonl").write_text(json.dumps(row), encoding="utf-8")
    assert refusal().startswith("finance.jsonl, row 1: field 'task'")


def test_an_id_that_occurs_twice_is_refused_by_both_places(write: Write) -> None:
    write("finance.jsonl", [*FINANCE, FINANCE[1]])
    message = refusal()
    for named in ("finance.jsonl, row 4", "'finance-2'", "finance.jsonl, row 2"):
        assert named in message


def test_an_id_that_occurs_in_two_shards_is_refused(write: Write) -> None:
    write("finance-00000-of-00002.parquet", FINANCE)
    write("finance-00001-of-00002.parquet", FINANCE[:1])
    message = refusal()
    for named in ("finance-00001-of-00002.parquet, row 0", "finance-00000-of-00002.parquet, row 0"):
        assert named in message


# --- Characters ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        ("a\\ud800b", "a\ufffdb"),
        ("a\\udc00b", "a\ufffdb"),
        ("\\ud83d\\ude00", "😀"),
        ("a\\u0000b", "a\ufffdb"),
        ("\\u200fq \\u2028 \\u00e9", "\u200fq \u2028 é"),
    ],
)
def test_what_no_file_takes_is_replaced_in_every_text_of_a_row(
    root: Path, escaped: str, text: str
) -> None:
    row = FINANCE[0].row()
    row |= {"prompt_0": "MARK", "reference_texts_0": ["MARK"], "topic": "MARK"}
    row["rubric"][0]["title"] = "MARK"
    path = root / "prbench" / "finance.jsonl"
    path.write_text(json.dumps(row).replace("MARK", escaped), encoding="utf-8")
    (doc,) = read()
    assert doc["messages"][0]["content"] == f"Reference Text 0:\n{text}\n\n{text}"
    assert (doc["topic"], doc["rubric"][0]["text"]) == (text, text)
    json.dumps(doc, ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize("separator", ["\r\n", "\n\n"])
def test_line_ends_and_blank_lines_do_not_matter(root: Path, separator: str) -> None:
    content = jsonl(FINANCE).replace("\n", separator)
    (root / "prbench" / "finance.jsonl").write_bytes(content.encode("utf-8"))
    assert ids() == FINANCE_IDS


def test_line_separators_inside_a_text_do_not_end_a_line(root: Path) -> None:
    row = {**FINANCE[0].row(), "prompt_0": "a\u2028b\u0085c\x0bd"}
    path = root / "prbench" / "finance.jsonl"
    path.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    (doc,) = read()
    assert doc["messages"][0]["content"].endswith("a\u2028b\u0085c\x0bd")


# --- The Hub -------------------------------------------------------------------------------------

OLD, NEW = "a" * 40, "b" * 40

# huggingface_hub reads the environment when it is imported, so each look-up is a process.
SCRIPT = """
import json, sys
from custom_metrics.data import find_split
from custom_metrics.errors import DataError
found = []
for repository, split, revision in json.loads(sys.argv[1]):
    try:
        source = find_split(split, repository=repository, folder="prbench", revision=revision)
        found.append(source.record())
    except DataError as error:
        found.append({"error": str(error)})
print(json.dumps(found))
"""
Lookup = tuple[str, str, str | None]


def packed(cases: Sequence[Case]) -> bytes:
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table(cases), sink)
    return bytes(sink.getvalue())


@pytest.fixture
def hub() -> Iterator[Hub]:
    name = "data/{}-00000-of-00001.parquet".format
    old = {name("finance"): packed(FINANCE[:1])}
    new = {
        "README.md": b"# PRBench",
        "data/finance-00000-of-00002.parquet": packed(FINANCE[:2]),
        "data/finance-00001-of-00002.parquet": packed(FINANCE[2:]),
        name("finance_hard"): packed(FINANCE[1:2]),
        name("legal"): packed(LEGAL),
    }
    revisions = {"main": NEW, "first-release": OLD}
    with serve_hub(Hub("ScaleAI/PRBench", revisions, {OLD: old, NEW: new})) as running:
        yield running


def ask(hub: Hub, *lookups: Lookup, offline: bool = False) -> list[dict[str, Any]]:
    """What fresh processes of the product find on the Hub, or in its cache."""
    environment = {**os.environ, "HF_ENDPOINT": hub.origin, "HF_HUB_DISABLE_TELEMETRY": "1"}
    del environment["HF_HUB_OFFLINE"]
    if offline:
        environment["HF_HUB_OFFLINE"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(lookups)],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def finance_at(hub: Hub, commit: str) -> dict[str, Any]:
    """The record of the split ``finance`` at a commit."""
    files = {
        name.removeprefix("data/"): content
        for name, content in hub.commits[commit].items()
        if name.startswith("data/finance-")
    }
    return {
        "origin": "ScaleAI/PRBench",
        "revision": commit,
        "files": sorted(files),
        "fingerprint": hashlib.sha256(b"".join(files[n] for n in sorted(files))).hexdigest(),
    }


def test_a_split_comes_from_the_hub_at_a_commit(hub: Hub) -> None:
    (found,) = ask(hub, ("ScaleAI/PRBench", "finance", None))
    assert found == finance_at(hub, NEW)
    assert sorted(hub.downloaded) == [f"data/{name}" for name in found["files"]]


def test_a_revision_can_be_chosen_and_is_recorded_as_its_commit(hub: Hub) -> None:
    first, second, third = ask(
        hub,
        ("ScaleAI/PRBench", "finance", "first-release"),
        ("ScaleAI/PRBench", "finance", OLD),
        ("ScaleAI/PRBench", "finance", NEW),
    )
    assert first == second == finance_at(hub, OLD)
    assert third == finance_at(hub, NEW)


def test_what_was_fetched_needs_no_network_afterwards(hub: Hub) -> None:
    wanted: list[Lookup] = [
        ("ScaleAI/PRBench", "finance", None),
        ("ScaleAI/PRBench", "finance", "first-release"),
    ]
    online = ask(hub, *wanted)
    hub.requested.clear()
    offline = ask(
        hub,
        *wanted,
        ("ScaleAI/PRBench", "legal", None),
        ("ScaleAI/PRBench", "finance", "later"),
        offline=True,
    )
    assert offline[:2] == online
    assert hub.requested == []
    for found, named in zip(offline[2:], ("'legal'", "later"), strict=True):
        assert named in found["error"]
        assert "HF_HUB_OFFLINE" in found["error"]
        assert "\n" not in found["error"]


def test_what_the_hub_does_not_have_is_refused_in_one_line(hub: Hub) -> None:
    repository, revision, split = ask(
        hub,
        ("ScaleAI/Nothing", "finance", None),
        ("ScaleAI/PRBench", "finance", "no-such-tag"),
        ("ScaleAI/PRBench", "medicine", None),
    )
    for found, named in (
        (repository, ("ScaleAI/Nothing", "'finance'", "main", "RUBRIC_DATA_DIR")),
        (revision, ("ScaleAI/PRBench", "no-such-tag", "RUBRIC_DATA_DIR")),
        (split, ("ScaleAI/PRBench", "'medicine'", NEW)),
    ):
        assert "\n" not in found["error"]
        assert [name for name in named if name not in found["error"]] == [], found["error"]


def test_a_hub_that_cannot_be_reached_is_refused_in_one_line() -> None:
    (found,) = ask(
        Hub("ScaleAI/PRBench", {}, {}, origin="http://127.0.0.1:9"),
        ("ScaleAI/PRBench", "finance", None),
    )
    assert "\n" not in found["error"]
    for named in ("ScaleAI/PRBench", "connection", "RUBRIC_DATA_DIR"):
        assert named in found["error"]
