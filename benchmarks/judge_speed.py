"""How fast a judge's calls go out: this project's engine beside plainer clients, on one stub.

    python benchmarks/judge_speed.py [--calls 5085] [--delay 0.05] [--at 64 256]

Each client runs in a process of its own against a stub server on loopback that answers after
``--delay`` seconds, one after another, so that they share the machine's mood; the ratios are what
counts. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CONVERSATIONS = 300
PROMPT_CHARACTERS = 16_000
FILLER = ("The client asks about the terms of a loan and its risks. " * 400)[:PROMPT_CHARACTERS]


@contextmanager
def stub(delay: float, until: str = "Criterion") -> Iterator[str]:
    """The address of a stub judge that gives the same verdict to every call; see its file."""
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("stub_judge.py")),
         "--delay", str(delay), "--until", until],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        yield server.stdout.readline().split()[-1]
    finally:
        server.terminate()
        server.wait(timeout=30)


def prompts_of(calls: int) -> Iterator[tuple[str, int]]:
    """``(conversation, criterion)`` pairs: the shape of ``finance_hard`` without its text."""
    each = -(-calls // CONVERSATIONS)
    pairs = ((f"conversation {c}", k) for c in range(CONVERSATIONS) for k in range(each))
    return islice(pairs, calls)


def messages_of(conversation: str, criterion: int) -> list[dict[str, str]]:
    """A chat of ``PROMPT_CHARACTERS``, made when it is sent: 20,000 of them are 320 MB."""
    content = f"{conversation}\n{FILLER}\nCriterion {criterion}: names the rate."
    return [{"role": "user", "content": content}]


def measured(seconds: float, begin: float, cpu: float, calls: int) -> dict[str, Any]:
    """``seconds`` of calls, and what has passed since ``begin`` on clock and processor."""
    return {
        "seconds": seconds,
        "whole": time.monotonic() - begin,
        "cpu_ms": (time.process_time() - cpu) / calls * 1000,
    }


def engine(url: str, calls: int, concurrency: int) -> dict[str, Any]:
    """This project's engine, store included, in a process that has the harness in memory."""
    import custom_metrics.task  # noqa: F401
    from custom_metrics.judge import Judge, JudgeCall, JudgeConfig, read_met, write_met

    def call(conversation: str, criterion: int) -> JudgeCall[Any]:
        return JudgeCall(
            messages=lambda: messages_of(conversation, criterion),
            read=read_met,
            conversation=conversation,
            label=str(criterion),
            answer="",
            criteria=("",),
            write=write_met,
        )

    judge = Judge(JudgeConfig(model="judge", base_url=url, concurrency=concurrency))
    judge.check()
    pairs = [call(*pair) for pair in prompts_of(calls)]
    begin, cpu = time.monotonic(), time.process_time()
    futures = judge.submit(pairs)
    wait(futures)
    outcomes = [future.result() for future in futures]
    assert not any(outcome.failed for outcome in outcomes)
    result = measured(judge.ledger.last - judge.ledger.first, begin, cpu, calls)
    begin = time.monotonic()
    for future in judge.submit(pairs):
        future.result()
    judge.close()
    return {**result, "rescore": time.monotonic() - begin}


def openai_client(url: str, calls: int, concurrency: int, *, aiohttp: bool) -> dict[str, Any]:
    """The openai client as its documentation shows it, a semaphore around each call."""
    import openai

    async def all_calls() -> float:
        http = {"http_client": openai.DefaultAioHttpClient()} if aiohttp else {}
        gate = asyncio.Semaphore(concurrency)
        async with openai.AsyncOpenAI(base_url=url, api_key="none", **http) as client:

            async def one(conversation: str, criterion: int) -> None:
                async with gate:
                    await client.chat.completions.create(
                        model="judge", messages=messages_of(conversation, criterion)
                    )

            begin = time.monotonic()
            await asyncio.gather(*(one(*pair) for pair in prompts_of(calls)))
            return time.monotonic() - begin

    begin, cpu = time.monotonic(), time.process_time()
    return measured(asyncio.run(all_calls()), begin, cpu, calls)


def bare_aiohttp(url: str, calls: int, concurrency: int) -> dict[str, Any]:
    """What this machine can do at most: aiohttp and nothing around it."""
    import aiohttp

    async def all_calls() -> float:
        queue = prompts_of(calls)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def worker() -> None:
                for pair in queue:
                    body = {"model": "judge", "messages": messages_of(*pair)}
                    content = json.dumps(body).encode()
                    async with session.post(f"{url}/chat/completions", data=content) as response:
                        json.loads(await response.read())

            begin = time.monotonic()
            await asyncio.gather(*(worker() for _ in range(concurrency)))
            return time.monotonic() - begin

    begin, cpu = time.monotonic(), time.process_time()
    return measured(asyncio.run(all_calls()), begin, cpu, calls)


CLIENTS = {
    "bare aiohttp": bare_aiohttp,
    "this engine": engine,
    "openai client, aiohttp": lambda *a: openai_client(*a, aiohttp=True),
    "openai client, default transport": lambda *a: openai_client(*a, aiohttp=False),
}


def in_a_process(name: str, url: str, calls: int, concurrency: int) -> dict[str, Any]:
    """Run one client by itself; its memory is its process's."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, __file__, "--one", name, "--url", url, "--calls", str(calls),
             "--concurrency", str(concurrency)],
            env={**os.environ, "RUBRIC_CACHE_DIR": cache}, capture_output=True, text=True,
            check=False, timeout=900,
        )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=5085)
    parser.add_argument("--delay", type=float, default=0.05)
    parser.add_argument("--at", type=int, nargs="+", default=[64, 256], help="calls in flight")
    parser.add_argument("--one", choices=CLIENTS, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--concurrency", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        found = CLIENTS[chosen.one](chosen.url, chosen.calls, chosen.concurrency)
        found["mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(found))
        return
    print(f"{chosen.calls} calls of {PROMPT_CHARACTERS / 1000:.0f} kB, {CONVERSATIONS} "
          f"conversations, a stub that answers after {chosen.delay * 1000:.0f} ms\n")  # fmt: skip
    print("| client | in flight | seconds | calls/s | of the bound | CPU ms/call | peak MB |")
    print("|---|---|---|---|---|---|---|")
    with stub(chosen.delay) as url:
        for at in chosen.at:
            bound = chosen.calls * chosen.delay / at
            print(f"| latency bound | {at} | {bound:.1f} | {chosen.calls / bound:.0f} | 100% | | |")
            for name in CLIENTS:
                found = in_a_process(name, url, chosen.calls, at)
                rate = chosen.calls / found["seconds"]
                print(
                    f"| {name} | {at} | {found['seconds']:.1f} | {rate:.0f} | "
                    f"{bound / found['seconds']:.0%} | {found['cpu_ms']:.2f} | {found['mb']:.0f} |",
                    flush=True,
                )
                if "rescore" in found:
                    print(f"| … again, all from the store | | {found['rescore']:.1f} | | | | |")


if __name__ == "__main__":
    main()
