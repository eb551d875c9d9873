"""The page in a real browser: it draws, asks for nothing, runs nothing of a trace, and is used by mouse and by keys."""

import itertools
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from runtime.cli.app import app
from runtime.trace.notes import Validated
from tests.runtime.explain.helpers import config_of, recording
from tests.runtime.report.helpers import HOSTILE, of_all_traces, record_hostile, resumed_twice, wander
from tests.runtime.samples.helpers import line_of, write

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make setup")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here: apt-get install chromium")


@dataclass
class Opened:
    """A page in a browser, and what it did beside drawing."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def text(self, where: str) -> str:
        """What is seen there."""
        return str(self.page.inner_text(where))

    def chart(self, name: str) -> Any:
        """A chart, by the beginning of its name."""
        return self.page.locator(f'.plot[aria-label^="{name}"]')

    def over(self, name: str, across: float = 0.5, down: float = 0.5) -> tuple[float, float]:
        """A place on a chart, on the screen."""
        chart = self.chart(name)
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        return box["x"] + across * box["width"], box["y"] + down * box["height"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


def report_of(trace: Path) -> Path:
    """The report of a trace, beside it."""
    output = trace.with_suffix(".html")
    result = CliRunner().invoke(app, ["report", str(trace), "-o", str(output)])
    assert result.exit_code == 0, result.output
    return output


def opened_in(browser: Any, output: Path, **context: Any) -> Opened:
    """A report, opened from its file."""
    page = browser.new_context(viewport={"width": 1300, "height": 900}, **context).new_page()
    opened = Opened(page)
    page.on("console", lambda message: opened.complaints.append(message.text))
    page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    page.on("dialog", lambda dialog: opened.complaints.append(f"a dialog: {dialog.message}"))
    page.on("request", lambda request: opened.asked.append(request.url))
    page.goto(output.as_uri())
    page.wait_for_selector("html[data-drawn-ms]", timeout=60_000)
    return opened


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of forty steps with losses."""
    path = tmp_path_factory.mktemp("report") / "trace.jsonl"
    grpo = {"use_dynamic_sampling": True}
    failure = {"on_dropped_prompt": "replace", "max_consecutive_dropped_prompts": 1_000, "max_skipped_prompts": 1_000}
    with recording(path, config_of("ready_first", 4, grpo=grpo, failure=failure), 400) as run:
        wander(run, 1, 500)
        run.note(Validated(3, 0.5, 0.25, 64))
    return path


@pytest.fixture(scope="module")
def output(trace: Path) -> Path:
    """Its report."""
    return report_of(trace)


@pytest.fixture
def report(browser: Any, output: Path) -> Iterator[Opened]:
    opened = opened_in(browser, output)
    yield opened
    assert opened.complaints == []
    assert len(opened.asked) == 1, "the page asked for something"
    opened.page.context.close()


def test_every_chart_is_drawn_and_nothing_is_asked_for(report: Opened) -> None:
    charts = report.page.locator(".plot")
    assert charts.count() >= 12
    inks = report.page.evaluate(
        """() => [...document.querySelectorAll(".plot > canvas:first-child")].map((canvas) => {
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          return new Set(new Uint32Array(data.buffer)).size;
        })"""
    )
    assert min(inks) > 3, inks
    assert "evenstep report" in report.page.title()
    assert "selected + " in report.text("#verdict")
    assert "Every prompt pulled is in exactly one place" in report.text("#sheet")
    assert "running rollouts" in report.text("#waits")
    assert "accuracy 0.500" in report.text("#happenings")


def test_a_prompt_s_life_is_shown_from_its_start_to_its_end(report: Opened) -> None:
    report.page.fill("#search-text", "prompt 4")  # the first after those that are held back
    report.page.keyboard.press("Enter")
    life = report.text("#life")
    assert "prompt 4 starts in group 0 on generation-0: dispatch 0, start weight 0" in life
    assert re.search(r"prompt 4 (finishes|fails) after", life)
    assert "null" not in life
    report.page.get_by_role("button", name="Show in the timeline").click()
    report.page.get_by_role("button", name="Close").click()
    assert report.page.locator("#life").is_hidden()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("step 1", "its weights are synced"),
        ("group 2", "in group 2 on"),
        ("3", "prompt 3 starts"),
        ("generation-1", "generation-1, dispatch"),
        ("the engine said <b>no</b>", "the engine said <b>no</b>"),
        ("prompt 4000000", "is not in this trace"),
        ("nothing like it", "nothing has this text"),
    ],
)
def test_what_is_searched_for_is_found(report: Opened, asked: str, told: str) -> None:
    report.page.fill("#search-text", asked)
    report.page.get_by_role("button", name="Show its life").click()
    assert told in report.text("#life")
    assert report.page.locator("#life b").count() == 0


def test_the_mouse_tells_zooms_moves_and_opens(report: Opened) -> None:
    page, whole = report.page, report.text("#timeline-tools")
    page.mouse.move(*report.over("Steps, the trainer", 0.4, 0.2))
    assert "selected + " in report.text("#tip")
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_function("text => document.querySelector('#timeline-tools').innerText !== text", arg=whole)
    zoomed = report.text("#timeline-tools")
    page.mouse.down()
    page.mouse.move(*report.over("Steps, the trainer", 0.7, 0.2), steps=4)
    page.mouse.up()
    assert report.text("#timeline-tools") != zoomed
    page.get_by_role("toolbar", name="Timeline").get_by_role("button", name="Show all").click()
    assert report.text("#timeline-tools") == whole
    page.mouse.click(*report.over("How each step was filled", 0.5))
    assert report.text("#life").startswith("Step ")


def test_groups_tell_of_themselves_under_the_mouse(report: Opened) -> None:
    x, y = report.over("Groups by worker", 0.0, 0.0)
    width = report.chart("Groups by worker").bounding_box()["width"]
    for across in range(20, int(width), 7):
        report.page.mouse.move(x + across, y + 22)
        if "prompt" in report.text("#tip"):
            break
    said = report.text("#tip")
    assert re.search(r"prompt \d+, group \d+: \w+", said)
    assert "start weight" in said
    report.page.mouse.click(x + across, y + 22)
    assert report.text("#life").startswith("Prompt ")


def test_all_of_it_is_there_for_the_keyboard(report: Opened) -> None:
    page, whole = report.page, report.text("#timeline-tools")
    report.chart("Buffer, pool").focus()
    page.keyboard.press("ArrowRight")
    assert "in flight" in page.text_content("#spoken")
    page.keyboard.press("+")
    assert report.text("#timeline-tools") != whole
    page.keyboard.press("Home")
    assert report.text("#timeline-tools") == whole
    report.chart("How each step was filled").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    told = page.text_content("#spoken")
    page.keyboard.press("Enter")
    assert report.text("#life").startswith(told.split(":")[0].replace("step", "Step").replace(" (not closed)", ""))
    page.locator("summary", has_text="All steps as a table").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#steps table")
    assert "selected" in report.text("#steps table")


def test_everything_has_a_name_that_can_be_read_aloud(report: Opened) -> None:
    nameless = report.page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, [tabindex='0'], [role]")].filter((element) => {
          const labelled = element.getAttribute("aria-label") || element.textContent.trim() ||
            document.querySelector(`label[for="${element.id}"]`) || element.getAttribute("aria-labelledby");
          return !labelled && !element.closest("[hidden]") && element.id !== "tip";
        }).map((element) => element.outerHTML)"""
    )
    assert nameless == []
    levels = report.page.evaluate("() => [...document.querySelectorAll('h1, h2, h3')].map((head) => +head.tagName[1])")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_light_and_dark_follow_the_system_and_the_button(browser: Any, output: Path) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        opened = opened_in(browser, output, color_scheme=scheme)
        ground = "() => getComputedStyle(document.documentElement).backgroundColor"
        grounds.append(opened.page.evaluate(ground))
        opened.page.click("#theme")
        grounds.append(opened.page.evaluate(ground))
        assert opened.complaints == []
        opened.page.context.close()
    assert grounds[0] == grounds[3] != grounds[1] == grounds[2]


def test_hostile_content_is_seen_as_text_and_runs_nowhere(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    record_hostile(path)
    report = opened_in(browser, report_of(path))
    page = report.page
    for asked in ("onerror", "prompt 0", "prompt 1", "step 0"):
        page.fill("#search-text", asked)
        page.keyboard.press("Enter")
    page.fill("#search-text", "onerror")
    page.keyboard.press("Enter")
    assert "</script><script>document.title='broken'</script><img src=x" in report.text("#life")
    assert "\\x1b[2J" in report.text("#happenings")
    page.mouse.move(*report.over("Groups by worker", 0.1))
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2  # the columns are taken away once they are read
    assert "broken" not in page.title()
    assert report.complaints == []
    assert len(report.asked) == 1
    page.context.close()


def test_samples_are_searched_by_text_number_and_fate_and_lead_to_a_prompt_s_life(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    record_hostile(path)
    good = line_of(1, 1, "the right answer", reward=1.0, correct=True, parts={"exact": 1.0})
    cut = line_of(2, 2, "endless", finish_reason="length", fate="filtered", prompt=0)
    many = [line_of(3, item, f"words {item}", reward=-1.0) for item in range(10, 60)]
    write(tmp_path, good, cut, *many)
    report = opened_in(browser, report_of(path))
    page, cards = report.page, report.page.locator("#samples .sample")
    assert cards.count() == 20
    assert "52 of 52 samples" in report.text("#samples")
    page.get_by_role("button", name="Show more").click()
    assert cards.count() == 40
    for asked, words in {"RIGHT ans": "the right answer", "step 2": "endless", "item 59": "words 59"}.items():
        page.fill("#samples-text", asked)
        assert cards.count() == 1
        assert words in report.text("#samples .sample")
    page.fill("#samples-text", "")
    page.select_option("#samples-order", "best")
    first = report.text("#samples .sample:first-child")
    assert "step 1" in first
    assert "reward 1 (exact 1.0), right" in first
    page.select_option("#samples-fate", "cut off")
    assert cards.count() == 1
    page.get_by_role("button", name="prompt 0").click()
    assert "prompt 0" in report.text("#life").lower()
    assert report.complaints == []
    page.context.close()


def test_hostile_samples_are_seen_as_text_and_run_nowhere(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    record_hostile(path)
    bad = HOSTILE + "\r\ud800\nsecond line" + "x" * 50_000
    turns = [{"role": bad, "text": bad}]
    write(tmp_path, line_of(0, turns=turns, prompt_text=bad, where=bad, fate=bad, parts={bad: 1.0}, finish_reason=bad))
    output = report_of(path)
    assert output.stat().st_size < 500_000
    report = opened_in(browser, output)
    page = report.page
    page.fill("#samples-text", "onerror")
    shown = report.text("#samples")
    assert "1 of 1 samples" in shown
    assert "</script><script>document.title='broken'</script><img src=x" in shown
    assert "\\x1b[2J" in shown
    assert "\\r\\ud800\nsecond line" in shown
    assert "characters left out" in shown
    assert page.locator("img").count() == 0
    assert "broken" not in page.title()
    assert report.complaints == []
    assert len(report.asked) == 1
    page.context.close()


def test_a_trace_that_was_cut_off_or_has_no_beginning_is_drawn_too(browser: Any, trace: Path, tmp_path: Path) -> None:
    lines = trace.read_bytes().splitlines(keepends=True)
    cuts = {"torn": [*lines[:40], lines[40][:15]], "begun": lines[:2], "ring": [lines[0], *lines[200:]]}
    for name, kept in cuts.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_bytes(b"".join(kept))
        report = opened_in(browser, report_of(path))
        assert report.complaints == [], name
        report.page.context.close()


def test_the_page_of_a_resumed_run_shows_all_of_its_processes(browser: Any, tmp_path: Path) -> None:
    resumed_twice(tmp_path, "in_order")
    opened = opened_in(browser, report_of(tmp_path))
    step = of_all_traces(tmp_path).processes[1].step
    assert f"resumed: trace-1.jsonl from step {step} on" in opened.text("#run")
    assert "trace-2.jsonl goes on with step" in opened.text("#happenings-body")
    assert opened.complaints == []
