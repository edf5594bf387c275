"""What the order of calls gains on a real server with a prefix cache: vLLM on this CPU.

    PYTHON benchmarks/prefix_gain.py

PYTHON is an interpreter that has torch, vLLM and this project (``.ci/run`` says how). A small
random Llama is built and served with prefix caching; 6 conversations of 8 criteria each are
judged, first with every call on its own, then in this project's order, and both once more with
other texts. The replies are a choice of two whole verdicts, since the model knows nothing. Prints a
Markdown table.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CONVERSATIONS, CRITERIA, WORDS, CONCURRENCY = 6, 8, 1000, 16
REPLIES = [f'{{"explanation": "It says so.", "criteria_met": {met}}}' for met in ("true", "false")]


@contextmanager
def vllm(folder: Path) -> Iterator[str]:
    """The address of a vLLM server with a random model, prefix caching on."""
    build = [sys.executable, str(ROOT / "tests" / "extended" / "tiny_llama.py"), str(folder)]
    subprocess.run(build, check=True, capture_output=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ["--model", str(folder), "--served-model-name", "judge", "--dtype", "float32",
                 "--host", "127.0.0.1", "--port", str(port), "--enable-prefix-caching",
                 "--enable-prompt-tokens-details"]  # fmt: skip
    log = (folder / "log").open("w")
    server = subprocess.Popen(
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments],
        stdout=log, stderr=log, env={**os.environ, "VLLM_NO_USAGE_STATS": "1",
                                     "VLLM_CPU_KVCACHE_SPACE": "4", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 400
        while True:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                if server.poll() is not None or time.monotonic() > until:
                    raise SystemExit((folder / "log").read_text()[-3000:]) from None
                time.sleep(1)
        yield f"{url}/v1"
    finally:
        server.terminate()
        try:
            server.wait(timeout=60)
        except subprocess.TimeoutExpired:  # requests are still under way
            server.kill()
            server.wait()
        log.close()


def judged(url: str, seed: int, *, in_order: bool) -> tuple[float, int, int]:
    """Seconds, prompt tokens and cached ones for one set of texts."""
    from custom_metrics.judge import Judge, JudgeCall, JudgeConfig, read_met, write_met

    words = random.Random(seed)

    vocabulary = ["loan", "rate", "risk", "court", "claim", "term", "fee", "tax"]

    def text() -> str:
        return " ".join(words.choice(vocabulary) for _ in range(WORDS))

    def call(conversation: int, criterion: int, shared: str) -> JudgeCall[Any]:
        prompt = f"{conversation} {shared}\nCriterion {criterion}: names the rate."
        return JudgeCall(
            messages=lambda: [{"role": "user", "content": prompt}],
            read=read_met,
            # A name of its own each, and no call waits for another.
            conversation=str(conversation) if in_order else f"{conversation}-{criterion}",
            label=str(criterion),
            answer="",
            criteria=("",),
            write=write_met,
        )

    texts = [text() for _ in range(CONVERSATIONS)]
    calls = [call(n, k, shared) for n, shared in enumerate(texts) for k in range(CRITERIA)]
    config = JudgeConfig(
        model="judge", base_url=url, concurrency=CONCURRENCY, max_tokens=64, temperature=0,
        extra_body={"structured_outputs": {"choice": REPLIES}},
    )  # fmt: skip
    judge = Judge(config)
    begin = time.monotonic()
    futures = judge.submit(calls)
    wait(futures)
    seconds = time.monotonic() - begin
    assert not any(future.result().failed for future in futures), futures[0].result()
    usage = judge.ledger.usage
    judge.close()
    return seconds, usage.prompt, usage.cached


def main() -> None:
    os.environ["RUBRIC_JUDGE_CACHE"] = "off"
    print(f"{CONVERSATIONS} conversations, {CRITERIA} criteria each, {CONCURRENCY} in flight\n")
    print("| order | seconds | prompt tokens | of which cached |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, vllm(Path(folder)) as url:
        judged(url, 0, in_order=True)  # what a server does once
        for seed in (1, 2):
            for in_order in (False, True):
                name = "first call alone" if in_order else "all at once"
                found = judged(url, 10 * seed + in_order, in_order=in_order)
                seconds, prompt, cached = found
                print(f"| {name} | {seconds:.1f} | {prompt} | {cached / prompt:.0%} |", flush=True)


if __name__ == "__main__":
    main()
