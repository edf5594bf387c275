"""The report in a real headless Chromium, opened from ``file://`` as a reader does.

Run by ``.ci/run`` with Debian's chromium and chromium-driver and the extra ``[browser]``; skipped
where one of them is absent. Screenshots go to ``REPORT_SCREENSHOTS``, or to the test's own folder.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium", reason="the browser tests need selenium ([browser])")
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import hostile
from big_run import TASK, changed_run, second_answers, write_run
from commands import samples

from custom_metrics.cli import main
from custom_metrics.report.text import visible

_BROWSER, _DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (_BROWSER and _DRIVER), reason="chromium and chromium-driver are not installed"
)
DESKTOP, PHONE = (1280, 900), (390, 844)


class Page:
    """A report in the browser."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self._events: list[dict[str, Any]] = []

    def open(
        self, path: Path, fragment: str = "", *, size: tuple[int, int] = DESKTOP, dark: bool = False
    ) -> None:
        theme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.cdp("Emulation.setEmulatedMedia", features=theme)
        self.cdp("Emulation.setDeviceMetricsOverride", width=size[0], height=size[1],
                 deviceScaleFactor=1, mobile=size == PHONE)  # fmt: skip
        self.driver.get("about:blank")
        self.driver.get_log("performance")
        self.driver.get_log("browser")
        self._events = []
        self.driver.get(path.as_uri() + fragment)
        self.wait(lambda: self.run("return document.documentElement.dataset.ready"))

    def cdp(self, command: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: Any, seconds: float = 20) -> Any:
        return WebDriverWait(self.driver, seconds, 0.05).until(lambda _: condition())

    def one(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def choose(self, selector: str, text: str) -> None:
        Select(self.one(selector)).select_by_visible_text(text)

    def count(self, text: str) -> None:
        """Wait until the line above the list says ``text``."""
        self.wait(lambda: self.one("#count").text == text)

    def show(self, key: str) -> None:
        """Open a document by its address, and wait for it."""
        self.run("location.hash = '#doc=' + encodeURIComponent(arguments[0])", key)
        name = visible(key.split("/", 1)[1])
        self.wait(lambda: self.run(
            "return document.querySelector('#detail-title')?.textContent") == name)  # fmt: skip

    def press(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self) -> dict[str, Any]:
        return dict(self.run(
            "const e = document.activeElement; return {tag: e.tagName, id: e.id,"
            " text: (e.textContent || '').trim().slice(0, 40), href: e.getAttribute('href')}"
        ))  # fmt: skip

    def _network(self, kind: str) -> list[dict[str, Any]]:
        self._events += [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        return [event["params"] for event in self._events if event["method"] == kind]

    def refused(self) -> list[str]:
        """Those of the requests that the page's policy stopped before they were sent."""
        stopped = {
            params["requestId"]
            for params in self._network("Network.loadingFailed")
            if params.get("blockedReason") == "csp"
        }
        return [
            params["request"]["url"]
            for params in self._network("Network.requestWillBeSent")
            if params["requestId"] in stopped
        ]

    def requests(self) -> list[str]:
        """The address of every request since the page was opened."""
        return [params["request"]["url"] for params in self._network("Network.requestWillBeSent")]

    def complaints(self) -> list[str]:
        """What the console says: refused by the policy, or an error of the script."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def screenshot(self, name: str, folder: Path) -> None:
        folder = Path(os.environ.get("REPORT_SCREENSHOTS") or folder)
        shot = self.cdp("Page.captureScreenshot", format="png")["data"]
        (folder / f"{name}.png").write_bytes(base64.b64decode(shot))


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    options = webdriver.ChromeOptions()
    options.binary_location = _BROWSER or ""
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(_DRIVER))
    try:
        yield Page(driver)
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        write_run(made, seed=seed, documents=60, criteria=900)
    return made


@pytest.fixture(scope="module")
def two_runs(folder: Path) -> Path:
    path = folder / "report.html"
    assert main(["report", str(folder), "-o", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def hostile_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hostile")
    write_run(made, documents=20, criteria=100, texts=hostile.TEXTS)
    assert main(["report", str(made), "-o", str(made / "report.html")]) == 0
    return made / "report.html"


def scores(folder: Path, run: int) -> dict[str, float]:
    return {s["doc"]["id"]: s["clipped_score"] for s in samples(folder / f"model-{run}", TASK)}


# --- what a reader does --------------------------------------------------------------------------


def test_filters_find_what_the_samples_say(page: Page, folder: Path, two_runs: Path) -> None:
    page.open(two_runs)
    page.count("60 documents")
    found = samples(folder / "model-0", TASK)

    page.choose("#facet-topic", "Contracts")
    wanted = [s for s in found if s["doc"]["topic"] == "Contracts"]
    page.count(f"{len(wanted)} of 60 documents")

    page.one("#filter-low").send_keys("0.3")
    wanted = [s for s in wanted if s["clipped_score"] >= 0.3]
    page.count(f"{len(wanted)} of 60 documents")
    page.one("#clear").click()
    page.count("60 documents")

    page.choose("#filter-verdict", "Did harm")
    page.choose("#filter-category", "Practical Utility")
    wanted = [
        s for s in found
        if any(c["weight"] < 0 and c["met"] and c["category"] == "Practical Utility"
               for c in s["doc"]["criteria"])
    ]  # fmt: skip
    page.count(f"{len(wanted)} of 60 documents")
    page.one("#clear").click()

    reason = found[41]["doc"]["criteria"][3]["explanation"]
    page.one("#filter-text").send_keys(reason.upper())
    page.count("1 of 60 documents")
    assert page.one("#list .score").text == f"{found[41]['clipped_score']:.3f}".replace("-", "−")
    page.one("#filter-text").send_keys("no such words")
    page.wait(lambda: page.one("#nothing").is_displayed())
    assert page.complaints() == []


def test_a_name_in_a_breakdown_leads_to_its_documents(
    page: Page, folder: Path, two_runs: Path
) -> None:
    page.open(two_runs)
    page.one("button[data-facet='topic'][data-value='Insolvency']").click()
    wanted = [s for s in samples(folder / "model-0", TASK) if s["doc"]["topic"] == "Insolvency"]
    page.count(f"{len(wanted)} of 60 documents")


def test_a_document_shows_all_that_the_samples_hold(
    page: Page, folder: Path, two_runs: Path
) -> None:
    page.open(two_runs)
    sample = samples(folder / "model-0", TASK)[7]
    doc = sample["doc"]
    page.one(f"a[href='#doc={TASK}%2F{doc['id']}']").click()
    page.wait(lambda: page.one("#detail-title").text == doc["id"])
    assert page.one("#detail .figure").text == f"{sample['clipped_score']:.3f}".replace("-", "−")
    for message in doc["messages"]:
        assert page.run(
            "return [...document.querySelectorAll('.message .written')]"
            ".some((e) => e.textContent === arguments[0])",
            message["content"],
        )
    criteria = page.all("#detail .criterion")
    assert len(criteria) == len(doc["criteria"])
    for shown, wanted in zip(criteria, doc["criteria"], strict=True):
        text = shown.text
        assert wanted["text"] in text
        assert wanted["explanation"] in text
        assert f"weight {wanted['weight']}".replace("-", "−") in text
        good = wanted["met"] == (wanted["weight"] > 0)
        assert ("✓" if good else "✗") in text.split("\n")[0]
    assert "##" not in page.one("#detail .rendered").text
    page.one("[aria-pressed]").click()
    answer = "section[aria-labelledby=answer-title] .written"
    assert (
        page.run("return document.querySelector(arguments[0]).textContent", answer) == doc["answer"]
    )


def test_another_run_is_shown_everywhere(page: Page, folder: Path, two_runs: Path) -> None:
    page.open(two_runs)
    first, second = scores(folder, 0), scores(folder, 1)
    name = next(n for n in first if f"{first[n]:.3f}" != f"{second[n]:.3f}")
    page.show(f"{TASK}/{name}")
    said = [f"{run[name]:.3f}".replace("-", "−") for run in (first, second)]
    assert page.one("#detail .figure").text == said[0]
    page.choose("#run", "model-1")
    page.wait(lambda: page.one("#detail .figure").text == said[1])
    shown = page.run("return [...document.querySelectorAll('[data-run]')]"
                     ".filter((e) => !e.hidden).map((e) => e.dataset.run)")  # fmt: skip
    assert set(shown) == {"1"}
    page.choose("#order", "Lowest score first")
    low = f"{min(second.values()):.3f}".replace("-", "−")
    page.wait(lambda: page.one("#list .score").text == low)


def test_another_answer_is_shown_with_its_verdicts(
    page: Page, folder: Path, tmp_path: Path
) -> None:
    made = changed_run(folder / "model-0", tmp_path / "model-0", second_answers)
    assert main(["report", str(made), "-o", str(tmp_path / "report.html")]) == 0
    page.open(tmp_path / "report.html", f"#doc={TASK}%2Fmade-up-0004")
    first = page.wait(lambda: [tag.text for tag in page.all(".criterion .line .tag:first-child")])
    page.choose("section[aria-labelledby=answer-title] select", "2 of 2")
    page.wait(lambda: page.one("section[aria-labelledby=answer-title] .rendered").text
              == "Another made-up-0004")  # fmt: skip
    second = [tag.text for tag in page.all(".criterion .line .tag:first-child")]
    good = ("✓ met", "✓ avoided")
    assert [text in good for text in second] == [text not in good for text in first]
    assert page.one(".criterion .reason").text.startswith("Otherwise: ")
    assert page.complaints() == []


def test_the_whole_page_by_keyboard(page: Page, two_runs: Path) -> None:
    page.open(two_runs)
    stops = []
    for _ in range(400):
        page.press(Keys.TAB)
        stop = page.focused()
        if stop["tag"] == "BODY" or (stops and stop == stops[0]):
            break
        stops.append(stop)
    else:
        pytest.fail("the Tab key never comes round")
    assert stops[0]["href"] == "#main"
    assert [s["href"] for s in stops[1:6]] == [
        "#overview", "#breakdown", "#lost", "#trust", "#documents",
    ]  # fmt: skip
    reached = {stop["id"] for stop in stops}
    assert {"run", "filter-text", "facet-topic", "filter-category", "filter-verdict", "filter-low",
            "filter-high", "order", "clear"} <= reached  # fmt: skip
    in_list = [s for s in stops if ((s["href"] or "").startswith("#doc=") and "lost" in s["text"])
               or s["href"] == f"#doc={TASK}%2Fmade-up-0000"]  # fmt: skip
    assert in_list

    page.run("document.querySelector('#list a[tabindex=\"0\"]').focus()")
    page.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ENTER)
    page.wait(lambda: page.focused()["id"] == "detail-title")
    assert page.focused()["text"] == "made-up-0002"
    page.press(Keys.ESCAPE)
    page.wait(lambda: page.focused()["href"] == f"#doc={TASK}%2Fmade-up-0002")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_it_fits_the_screen(
    page: Page, two_runs: Path, tmp_path: Path, size: tuple[int, int], dark: bool
) -> None:
    name = f"{'phone' if size == PHONE else 'desktop'}-{'dark' if dark else 'light'}"
    page.open(two_runs, size=size, dark=dark)
    assert page.run("return document.documentElement.scrollWidth") == size[0]
    page.screenshot(f"{name}-overview", tmp_path)
    for section in ("breakdown", "lost", "trust", "documents"):
        page.run(f"document.getElementById('{section}').scrollIntoView()")
        page.screenshot(f"{name}-{section}", tmp_path)
    page.show(f"{TASK}/made-up-0001")
    time.sleep(0.2)
    page.screenshot(f"{name}-document", tmp_path)
    assert page.run("return document.documentElement.scrollWidth") == size[0]
    if size == PHONE:
        assert not page.one("#list").is_displayed()
        page.one(".back").click()
        page.wait(lambda: page.one("#list").is_displayed())
    background = page.run("return getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 26)" if dark else "rgb(251, 250, 248)")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_serious(page: Page, two_runs: Path, dark: bool) -> None:
    axe = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    for size in (DESKTOP, PHONE):
        page.open(two_runs, dark=dark, size=size)
        page.run("document.getElementById('more').open = true")
        page.show(f"{TASK}/made-up-0001")
        page.run(axe)
        found = page.driver.execute_async_script(
            "const done = arguments[0]; axe.run(document).then(done, (e) => done(String(e)))"
        )
        serious = [
            (v["id"], v["impact"], [n["html"][:160] for n in v["nodes"][:3]])
            for v in found["violations"]
            if v["impact"] in ("serious", "critical")
        ]
        assert serious == []
        assert len(found["passes"]) > 20


# --- what a text does ----------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(hostile.TEXTS)))
def test_a_hostile_text_is_shown_and_does_nothing(
    page: Page, hostile_report: Path, number: int
) -> None:
    page.open(hostile_report)
    page.show(f"{TASK}/made-up-{number:04}")
    text = visible(hostile.TEXTS[number])
    answer = "section[aria-labelledby=answer-title]"
    assert page.run(f"return document.querySelectorAll('{answer} :is(img,script,iframe,svg,style,"
                    "base,meta,link,object,embed,form,input)').length") == 0  # fmt: skip
    rendered = page.all(f"{answer} .rendered")
    if rendered:
        for link in page.all(f"{answer} a"):
            assert link.get_attribute("rel") == "noopener noreferrer"
            assert link.get_attribute("href").startswith("http://127.0.0.1")
        page.one(f"{answer} [aria-pressed]").click()
    for place in (f"{answer} .written", ".criterion .text", ".criterion .reason"):
        assert page.run("return document.querySelector(arguments[0]).textContent", place) == text
    assert page.run("return [...document.querySelectorAll('.message .written')].at(-1).textContent"
                    ) == text  # fmt: skip
    assert page.run("return document.documentElement.scrollWidth") == DESKTOP[0]
    assert page.run("return window.hacked === undefined")
    assert page.run("return document.title").startswith("Rubric report")
    assert page.complaints() == []
    assert {address.split("#")[0] for address in page.requests()} <= {
        hostile_report.as_uri(), "about:blank",
    }  # fmt: skip


def test_a_script_that_got_in_would_not_run(page: Page, hostile_report: Path) -> None:
    page.open(hostile_report)
    page.run(
        "const s = document.createElement('script'); s.textContent = 'window.hacked = 1';"
        "document.body.append(s); const i = new Image(); i.src = 'http://127.0.0.1:9/x.png';"
        "document.body.append(i); document.body.insertAdjacentHTML('beforeend',"
        '\'<p onclick="window.hacked = 2" id=trap style="color:red">x</p>\');'
        "document.getElementById('trap').click()"
    )
    assert page.run("return window.hacked === undefined")
    assert len(page.complaints()) >= 4
    assert page.refused() == page.requests()[-1:] == ["http://127.0.0.1:9/x.png"]
