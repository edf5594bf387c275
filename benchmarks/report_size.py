"""How large a report of a whole benchmark run is, and how long a browser takes to open it.

    python benchmarks/report_size.py [RUNS]

Makes RUNS (1) runs of 1,100 documents with 18,692 criteria of the project's own words, and their
report; where selenium, chromium and chromium-driver are installed, opens it from ``file://`` five
times. "ready" is when the list can be used, from the browser's own clock.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from big_run import CRITERIA, DOCUMENTS, write_run

from custom_metrics.analysis.results import read_runs
from custom_metrics.report import summarise, write_report

_WORDS = "no such words"


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(count):
            write_run(Path(folder), seed=seed)
        start = time.perf_counter()
        runs = read_runs([folder])
        read = time.perf_counter()
        path = write_report(summarise(runs), Path(folder) / "report.html")
        written = time.perf_counter()
        print(
            f"{count} runs of {DOCUMENTS} documents and {CRITERIA} criteria: "
            f"read {read - start:.1f} s, "
            f"report {written - read:.1f} s, {path.stat().st_size / 1e6:.1f} MB"
        )
        _open(path)


def _open(path: Path) -> None:
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        print("selenium is not installed, so nothing was opened")
        return
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))

    def until(script: str) -> float:
        while not (value := driver.execute_script(script)):
            time.sleep(0.01)
        return float(value)

    try:
        ready, opened, searched, frames = [], [], [], []
        for _ in range(5):
            driver.get("about:blank")
            driver.get(path.as_uri())
            ready.append(until("return document.documentElement.dataset.ready"))
            opened.append(until(_TIMED.format(act="location.hash = document.querySelector"
                "('#list li:nth-child(700) a').getAttribute('href')",
                done="document.querySelector('#detail-title')")))  # fmt: skip
            searched.append(until(_TIMED.format(
                act=f"const i = document.getElementById('filter-text'); i.value = '{_WORDS}';"
                "i.dispatchEvent(new Event('input', {bubbles: true}))",
                done="!document.getElementById('nothing').hidden")))  # fmt: skip
            driver.execute_script("document.getElementById('clear').click()")
            frames.append(until(_SCROLLED))
        for name, values in (
            ("ready", ready),
            ("a document opened", opened),
            ("first search of all texts", searched),
            ("longest frame while scrolling the list", frames),
        ):
            print(f"{name}: median {statistics.median(values):.0f} ms, most {max(values):.0f} ms")
    finally:
        driver.quit()


# Acts once, and answers with the milliseconds until it is done.
_TIMED = """
if (!window.timed) {{
  window.timed = {{start: performance.now(), end: 0}};
  {act};
  const look = () => {{
    if ({done}) window.timed.end = performance.now(); else setTimeout(look, 5);
  }};
  look();
}}
const took = window.timed.end && window.timed.end - window.timed.start;
if (took) window.timed = null;
return took;
"""

_SCROLLED = """
if (!window.scrolled) {
  window.scrolled = {longest: 0, done: false};
  const list = document.getElementById('list');
  document.getElementById('browser').scrollIntoView();
  let last = performance.now(), n = 0;
  const step = (now) => {
    window.scrolled.longest = Math.max(window.scrolled.longest, now - last);
    last = now;
    list.scrollTop += 900;
    if (n++ < 100) requestAnimationFrame(step); else window.scrolled.done = true;
  };
  requestAnimationFrame((now) => { last = now; requestAnimationFrame(step); });
}
const longest = window.scrolled.done && window.scrolled.longest;
if (longest) window.scrolled = null;
return longest;
"""


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
