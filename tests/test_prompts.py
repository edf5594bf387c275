"""The judge's prompts: where they come from, and that each is what it says it is."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_server import FileServer, serve

from custom_metrics import prompts
from custom_metrics.errors import FetchError
from custom_metrics.prbench import JUDGE_PROMPTS
from custom_metrics.prompts import Builtin, Official, Specs, Template, string_constant

TEXT = "Grade «this»:\n\n<<conversation>>\n\n# Item: <<rubric_item>>\nReply yes or no.\n\n"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SOURCE = (
    f'"""Constants."""\nimport nowhere\n\nOTHER = "x"\nGRADER = """{TEXT}"""\nraise SystemExit\n'
)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def official(text: str = TEXT, repositories: tuple[str, ...] = ("owner/bench",)) -> Official:
    """A made-up prompt of a made-up repository."""
    return Official(
        repositories=repositories,
        commit=COMMIT,
        path="src/constants.py",
        constant="GRADER",
        file_name="grader.txt",
        sha256=sha256(text),
    )


def specs(part: Official | Builtin) -> Specs:
    return {"official": {"user": (part,)}}


def text_of(part: Official | Builtin) -> str:
    return prompts.load(specs(part), "official").templates["user"].text


def publish(root: Path, source: str | bytes, repository: str = "owner/bench") -> None:
    """Put ``source`` where the repository has its constants."""
    path = root / repository / COMMIT / "src" / "constants.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(source if isinstance(source, bytes) else source.encode("utf-8"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "repositories"
    folder.mkdir()
    return folder


@pytest.fixture
def server(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    with serve(root) as running:
        monkeypatch.setenv("RUBRIC_GITHUB_RAW", running.origin)
        yield running


def refusal(part: Official) -> str:
    """The one line that says why there is no prompt."""
    with pytest.raises(FetchError) as caught:
        text_of(part)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- Taking a string out of a file ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ('NAME = "text"', "text"),
        ("NAME = 'text'", "text"),
        ('NAME = """\nline <<x>>\n\\n\\t\\u00e9\n"""', "\nline <<x>>\n\n\té\n"),
        ('NAME = r"\\n"', "\\n"),
        ('NAME = ("one "\n        "two")', "one two"),
        ('NAME = """\n text \n""".strip()', "text"),
        ('A = NAME = "text"', "text"),
        ('NAME = None\nNAME = "text"', "text"),
        ('import nowhere\nraise SystemExit\nNAME = "text"', "text"),
        ('def f():\n    NAME = "inner"\n\nNAME = "outer"', "outer"),
    ],
)
def test_the_string_that_a_name_is_assigned(source: str, text: str) -> None:
    assert string_constant(source, "NAME") == text


def test_the_string_under_a_key_of_a_dict() -> None:
    source = 'NAME = {1: "one", "a": f(), "b": """\n text\n""".strip(), **more}'
    assert string_constant(source, "NAME", "b") == "text"


def test_no_code_is_run(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    source = (
        f'open({str(proof)!r}, "w").close()\nNAME = "text"\nNAMES = [open({str(proof)!r}, "w")]'
    )
    assert string_constant(source, "NAME") == "text"
    for evil in (f'NAME = open({str(proof)!r}, "w").name', "NAME = __import__('os').getcwd()"):
        with pytest.raises(FetchError):
            string_constant(evil, "NAME")
    assert not proof.exists()


@pytest.mark.parametrize(
    "source",
    [
        "",
        'OTHER = "text"',
        "NAME = 3",
        'NAME = b"text"',
        'NAME = f"text {x}"',
        'NAME = "a" + other',
        'NAME = OTHER.strip("x")',
        'NAME = "text".upper()',
        'NAME = "xtextx".strip("x")',
        'NAME = {"a": "text"}',
        'obj.NAME = "text"',
        'class C:\n    NAME = "text"',
        "<html>Sign in to the network</html>",
        'NAME = "text',
        "NAME = 'a\x00'",
    ],
)
def test_anything_else_is_refused(source: str) -> None:
    with pytest.raises(FetchError):
        string_constant(source, "NAME")


@pytest.mark.parametrize(
    "source", ['NAME = "text"', "NAME = {}", 'NAME = {"a": 3}', "NAME = {**a}"]
)
def test_a_missing_key_is_refused(source: str) -> None:
    with pytest.raises(FetchError, match="'a'"):
        string_constant(source, "NAME", "a")


# --- From a folder of the user's -----------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    chosen = tmp_path / "prompts"
    chosen.mkdir()
    monkeypatch.setenv("RUBRIC_PROMPTS_DIR", str(chosen))
    return chosen


def test_a_prompt_is_read_from_the_folder_and_nothing_is_fetched(
    folder: Path, server: FileServer
) -> None:
    (folder / "grader.txt").write_bytes(TEXT.encode("utf-8"))
    assert text_of(official()) == TEXT
    assert server.requested == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        TEXT.encode("utf-8") + b"\n",
        TEXT.encode("utf-8").replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + TEXT.encode("utf-8"),
        TEXT.encode("latin-1"),
        TEXT.replace("yes", "Yes").encode("utf-8"),
    ],
    ids=["empty", "newline", "CRLF", "BOM", "Latin-1", "other text"],
)
def test_another_text_in_the_folder_is_refused(folder: Path, content: bytes) -> None:
    (folder / "grader.txt").write_bytes(content)
    message = refusal(official())
    for named in (str(folder / "grader.txt"), sha256(TEXT), "RUBRIC_PROMPTS_DIR", "builtin"):
        assert named in message


def test_a_folder_without_the_prompt_is_refused(folder: Path, server: FileServer) -> None:
    message = refusal(official())
    for named in (f"RUBRIC_PROMPTS_DIR={folder}", "grader.txt", "unset", "builtin"):
        assert named in message
    assert server.requested == []


# --- From the repository, and then from the cache ------------------------------------------------


def test_a_prompt_is_fetched_once_at_its_commit(root: Path, server: FileServer) -> None:
    publish(root, SOURCE)
    assert text_of(official()) == TEXT
    assert text_of(official()) == TEXT
    assert server.requested == [f"/owner/bench/{COMMIT}/src/constants.py"]


def test_a_fetched_prompt_needs_no_network_afterwards(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(root, SOURCE)
    with serve(root) as running:
        monkeypatch.setenv("RUBRIC_GITHUB_RAW", f"{running.origin}/")
        assert text_of(official()) == TEXT
    assert text_of(official()) == TEXT


def test_the_cache_is_where_it_was_asked_for(
    root: Path, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(root, SOURCE)
    monkeypatch.setenv("RUBRIC_CACHE_DIR", str(tmp_path / "mine"))
    text_of(official())
    (kept,) = [path for path in (tmp_path / "mine").rglob("*") if path.is_file()]
    assert kept.read_bytes() == TEXT.encode("utf-8")
    assert server.requested != []


def cached(tmp_path: Path) -> Path:
    (kept,) = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    return kept


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", TEXT.encode("utf-8")[:-1]])
def test_a_damaged_cache_is_fetched_again(
    root: Path, server: FileServer, tmp_path: Path, damage: bytes
) -> None:
    publish(root, SOURCE)
    text_of(official())
    cached(tmp_path).write_bytes(damage)
    assert text_of(official()) == TEXT
    assert cached(tmp_path).read_bytes() == TEXT.encode("utf-8")
    assert len(server.requested) == 2


def test_a_damaged_cache_without_network_is_refused(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(root, SOURCE)
    with serve(root) as running:
        monkeypatch.setenv("RUBRIC_GITHUB_RAW", running.origin)
        text_of(official())
    cached(tmp_path).write_bytes(b"other text")
    assert "RUBRIC_PROMPTS_DIR" in refusal(official())


def test_prompts_of_one_name_do_not_share_a_cache(root: Path, server: FileServer) -> None:
    publish(root, SOURCE)
    text_of(official())
    publish(root, 'GRADER = "newer"')
    assert text_of(official("newer")) == "newer"
    assert text_of(official()) == TEXT
    assert len(server.requested) == 2


def test_other_names_of_the_repository_are_tried_in_turn(root: Path, server: FileServer) -> None:
    publish(root, SOURCE, "third/bench")
    part = official(repositories=("first/bench", "second/bench", "third/bench", "fourth/bench"))
    assert text_of(part) == TEXT
    assert [path.split("/")[1] for path in server.requested] == ["first", "second", "third"]


@pytest.mark.parametrize(
    "source",
    [
        SOURCE.replace("yes or no", "no or yes"),
        SOURCE.replace("GRADER =", "GRADERS ="),
        "<html>Sign in to the network</html>",
        b"",
        b'GRADER = "\xe9"',
        b"\x89PNG\r\n\x00",
    ],
    ids=["other text", "no such name", "a sign-in page", "empty", "Latin-1", "binary"],
)
def test_what_is_not_the_prompt_is_refused_and_not_kept(
    root: Path, server: FileServer, tmp_path: Path, source: str | bytes
) -> None:
    publish(root, source)
    message = refusal(official())
    for named in ("grader.txt", "RUBRIC_PROMPTS_DIR", "RUBRIC_GITHUB_RAW", "builtin"):
        assert named in message
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert server.requested != []


def test_a_repository_without_the_file_is_refused(server: FileServer) -> None:
    message = refusal(official())
    for named in (f"{server.origin}/owner/bench/{COMMIT}", "404", "RUBRIC_PROMPTS_DIR", "builtin"):
        assert named in message


def test_without_network_the_message_says_how_to_go_on() -> None:
    message = refusal(official())
    for named in (
        "grader.txt",
        "RUBRIC_PROMPTS_DIR",
        "RUBRIC_GITHUB_RAW",
        "builtin",
        "127.0.0.1:9",
    ):
        assert named in message


@pytest.mark.parametrize("address", ["nowhere", "http://[::1", "ftp://127.0.0.1"])
def test_a_wrong_mirror_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUBRIC_GITHUB_RAW", address)
    assert "RUBRIC_GITHUB_RAW" in refusal(official())


def test_a_cache_that_cannot_be_written_costs_no_run(
    root: Path, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(root, SOURCE)
    (tmp_path / "file").touch()
    monkeypatch.setenv("RUBRIC_CACHE_DIR", str(tmp_path / "file"))
    assert text_of(official()) == TEXT
    assert server.requested != []


# --- The text that was checked, mended -----------------------------------------------------------


def test_a_repair_follows_the_check_and_is_recorded(root: Path, server: FileServer) -> None:
    publish(root, SOURCE)
    part = dataclasses.replace(official(), repairs=(("yes or no", "true or false"),))
    template = prompts.load(specs(part), "official").templates["user"]
    assert template.text == TEXT.replace("yes or no", "true or false")
    assert template.record["sha256"] == sha256(template.text)
    assert template.record["official_sha256"] == [sha256(TEXT)]
    assert "repaired" in template.record
    assert server.requested != []


def test_the_parts_of_a_template_are_joined(root: Path, server: FileServer) -> None:
    publish(root, SOURCE)
    loaded = prompts.load({"two": {"system": (official(),), "user": (official(),) * 2}}, "two")
    texts = {role: template.text for role, template in loaded.templates.items()}
    assert texts == {"system": TEXT, "user": TEXT + TEXT}
    assert len(server.requested) == 1


# --- Filling -------------------------------------------------------------------------------------

FILLING = {"a": "<<b>> {b} {{ b }} \\1 \\g<0>", "b": "B"}


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("angle", "x <<a>> y <<b>> z"),
        ("brace", "x {a} y {b} z"),
        ("jinja", "x {{ a }} y {{ b }} z"),
    ],
)
def test_placeholders_are_filled_in_one_pass(style: prompts.Style, text: str) -> None:
    assert Template(text, style, {}).render(FILLING) == f"x {FILLING['a']} y B z"


@pytest.mark.parametrize(
    ("style", "text"),
    [("angle", "{a} {{ a }} <<c>> << a >> <a>"), ("brace", '<<a>> {"a": 1} {c} { a } {}')],
)
def test_what_is_no_placeholder_of_the_style_stays(style: prompts.Style, text: str) -> None:
    assert Template(text, style, {}).render(FILLING) == text


# --- The prompts of PRBench ----------------------------------------------------------------------


def test_the_builtin_prompt_needs_no_file_and_no_network() -> None:
    loaded = prompts.load(JUDGE_PROMPTS, "builtin")
    (message,) = loaded.messages(conversation="user: A\nassistant: B", rubric_item="Says B.")
    assert message["role"] == "user"
    for part in ("user: A\nassistant: B", "Says B.", '"criteria_met"', '"explanation"'):
        assert message["content"].count(part) == 1 or part.startswith('"')
        assert part in message["content"]
    assert "{{" not in message["content"]


def test_the_builtin_prompt_is_no_copy_of_the_official_one(official_prompts: Path) -> None:
    builtin = prompts.load(JUDGE_PROMPTS, "builtin").templates["user"].text
    theirs = (official_prompts / "prbench_grader.txt").read_text(encoding="utf-8")
    sentences = [line.strip() for line in builtin.splitlines() if len(line.strip()) > 40]
    assert sentences
    assert not [sentence for sentence in sentences if sentence in theirs]


def test_the_records_name_prompt_source_and_hash(official_prompts: Path) -> None:
    text = (official_prompts / "prbench_grader.txt").read_bytes().decode("utf-8")
    record = prompts.load(JUDGE_PROMPTS, "official").record()
    assert record["name"] == "official"
    assert record["user"] == {
        "sha256": "0821305c3d82d01fe4e8cc4e98c78761b71416a5c221d07527e97a74ec488708",
        "source": "github.com/scaleapi/PRBench/blob/cc0152a6e5c7b401b35c86d17fa1b78de01b4d17/"
        "constants.py#GRADER_TEMPLATE",
    }
    assert sha256(text) == record["user"]["sha256"]
    builtin = prompts.load(JUDGE_PROMPTS, "builtin").record()
    assert builtin["name"] == "builtin"
    assert builtin["user"]["source"].endswith("builtin_prompts/prbench_grader.jinja")
    assert len(builtin["user"]["sha256"]) == 64


def test_the_official_prompt_is_the_text_in_the_folder(official_prompts: Path) -> None:
    template = prompts.load(JUDGE_PROMPTS, "official").templates["user"]
    assert template.text.encode("utf-8") == (official_prompts / "prbench_grader.txt").read_bytes()
    assert template.text.count("<<conversation>>") == template.text.count("<<rubric_item>>") == 1


def test_the_official_prompt_can_come_from_a_mirror_of_its_repository(
    shared: Path, root: Path, server: FileServer
) -> None:
    text = (shared / "reference" / "prompts" / "prbench_grader.txt").read_text(encoding="utf-8")
    (path,) = [
        root / "scaleapi" / "PRBench" / part.commit / part.path
        for parts in JUDGE_PROMPTS["official"].values()
        for part in parts
        if isinstance(part, Official)
    ]
    path.parent.mkdir(parents=True)
    path.write_text(f"GRADER_TEMPLATE = {text!r}\n", encoding="utf-8")
    assert prompts.load(JUDGE_PROMPTS, "official").templates["user"].text == text
    assert len(server.requested) == 1
