"""All conversations of ``finance_hard`` as a model behind a chat API receives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
from commands import command, model_arguments
from stub_server import Received, Reply, StubServer

# As published for the split: characters of all messages of a conversation, added up.
MEAN, LEAST, MOST = 10_796.97, 103, 132_961


def expected_chat(row: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """The turns of a row as ``(role, content)``, built here from the columns."""
    prompts = [row[f"prompt_{turn}"] for turn in range(10) if row[f"prompt_{turn}"]]
    chat = []
    for turn, prompt in enumerate(prompts):
        content = ""
        for k, text in enumerate(row[f"reference_texts_{turn}"] or []):
            content += f"Reference Text {k}:\n{text}\n\n"
        chat.append(("user", content + prompt))
        if turn + 1 < len(prompts):
            chat.append(("assistant", row[f"response_{turn}"]))
    return tuple(chat)


def received_chat(call: Received) -> tuple[tuple[str, str], ...]:
    assert all(message.keys() == {"role", "content"} for message in call.messages)
    return tuple((message["role"], message["content"]) for message in call.messages)


def test_the_messages_that_reach_the_model_are_those_of_the_data(
    official_data: Path, tmp_path: Path
) -> None:
    rows = parquet.read_table(official_data / "prbench" / "finance_hard.parquet").to_pylist()
    expected = [expected_chat(row) for row in rows]
    with StubServer(lambda _: Reply("An answer."), models=("model",)) as server:
        done = command(
            "lm-eval-rubrics", "run", "--tasks", "prbench_finance_hard", "--predict_only",
            *model_arguments(server.url, concurrent=32), "--output_path", str(tmp_path / "out"),
        )  # fmt: skip
        assert done.code == 0, done.text
        received = [received_chat(call) for call in server.received]

    assert sorted(received) == sorted(expected)
    assert len(received) == 300
    assert sum(sum(role == "user" for role, _ in chat) > 1 for chat in received) == 136
    assert max(sum(role == "user" for role, _ in chat) for chat in received) == 10
    with_references = [
        chat for chat in received if any(text.startswith("Reference Text 0:\n") for _, text in chat)
    ]
    assert len(with_references) == 10
    lengths = [sum(len(text) for _, text in chat) for chat in received]
    assert round(sum(lengths) / len(lengths), 2) == MEAN
    assert (min(lengths), max(lengths)) == (LEAST, MOST)
