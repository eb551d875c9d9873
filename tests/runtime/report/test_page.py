"""The page as a file: whole, of one piece, and with nothing of a trace as markup."""

import base64
import hashlib
import json
import re
from array import array
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from runtime.cli.app import app
from runtime.report.columns import JAVASCRIPT
from runtime.report.page import SCRIPTS, page_of
from runtime.report.perfetto import events_of
from runtime.report.samples import samples_beside
from runtime.trace.files import TraceUnreadable
from tests.runtime.explain.helpers import config_of, recording
from tests.runtime.report.helpers import HOSTILE, collected, record_hostile, wander, wandered


class Page(HTMLParser):
    """Elements of a page, and the texts of its scripts and its style."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self._within = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        named = dict(attrs).get("id")
        self._within = (named or tag) if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within:
            self.texts[self._within] = self.texts.get(self._within, "") + data

    @property
    def data(self) -> dict[str, Any]:
        given: dict[str, Any] = json.loads(self.texts["data"])
        return given


def reported(path: Path, *arguments: str) -> tuple[int, str, Path]:
    output = path.parent / "report.html"
    result = CliRunner().invoke(app, ["report", str(path), "-o", str(output), *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output, output


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A trace with hostile content wherever a text can be."""
    path = tmp_path / "trace.jsonl"
    record_hostile(path)
    return path


def test_a_page_is_of_one_piece_and_names_no_other_place(tmp_path: Path) -> None:
    wandered(tmp_path / "trace.jsonl")
    code, output, file = reported(tmp_path / "trace.jsonl")
    assert code == 0
    assert "report.html" in output
    page = Page(file.read_text(encoding="ascii"))
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert not attributes.keys() & {"src", "srcset", "action", "data", "background", "poster"}
        assert not [name for name in attributes if name.startswith("on")]
        assert attributes.get("href", "#").startswith("#")
    program = page.texts["script"]
    assert not re.search(
        r"https?://|fetch\(|XMLHttpRequest|WebSocket|import\(|innerHTML|outerHTML|document\.write", program
    )
    assert not re.search(r"url\(|@import", page.texts["style"])


def test_the_policy_allows_the_page_s_own_script_and_style_and_nothing_else(hostile: Path) -> None:
    _, _, file = reported(hostile)
    page = Page(file.read_text(encoding="ascii"))
    [policy] = [
        attributes["content"]
        for tag, attributes in page.elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    for name in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(page.texts[name].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_hostile_content_adds_no_element_and_is_there_as_text(hostile: Path, tmp_path: Path) -> None:
    _, _, file = reported(hostile)
    (tmp_path / "plain").mkdir()
    wandered(tmp_path / "plain" / "trace.jsonl", moves=5)
    _, _, plain = reported(tmp_path / "plain" / "trace.jsonl")
    page = Page(file.read_text(encoding="ascii"))
    assert page.elements[3:]
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in Page(plain.read_text(encoding="ascii")).elements]
    texts = page.data["texts"]
    assert any(text.startswith("</script><script>document.title='broken'</script>") for text in texts)
    assert any("more)" in text and text.startswith("yyy") for text in texts)
    assert all(character.isprintable() for text in texts for character in text)
    assert file.stat().st_size < 250_000


def test_columns_come_back_as_they_were(tmp_path: Path) -> None:
    with recording(tmp_path / "trace.jsonl", config_of("ready_first", 4, grpo={"use_dynamic_sampling": True})) as run:
        wander(run, 3, 80)
    told = collected(tmp_path / "trace.jsonl")
    page = Page(page_of(told, {"unknown": "nothing"}, samples_beside(told.trace.path)))
    packed = base64.b64decode(page.texts["columns"])
    codes = {name: code for code, name in JAVASCRIPT.items()}
    place = page.data["tables"]["attempts"]
    assert place["rows"] == len(told.attempts.rows) > 10
    for name, (kind, offset) in place["columns"].items():
        column = array(codes[kind])
        assert offset % column.itemsize == 0
        column.frombytes(packed[offset : offset + place["rows"] * column.itemsize])
        assert column.tobytes() == told.attempts.rows[name].tobytes(), name


def test_the_verdict_on_the_page_is_that_of_explain(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with recording(path, config_of("ready_first", 8, async_rl={"max_buffered_rollouts": 4})) as run:
        run.commit(*run.in_flight())
    _, _, file = reported(path)
    verdict = Page(file.read_text(encoding="ascii")).data["verdict"]
    explained = json.loads(CliRunner().invoke(app, ["explain", str(path), "--json"]).output)
    assert (verdict["verdict"], verdict["root"], verdict["advice"]) == (
        "deadlocked", explained["root"], explained["advice"]
    )  # fmt: skip


def test_a_trace_that_explain_cannot_follow_is_looked_at_all_the_same(tmp_path: Path) -> None:
    """Its sampler is from outside, and is not here."""
    path = tmp_path / "trace.jsonl"
    wandered(path, moves=30)
    text = path.read_text(encoding="ascii")
    path.write_text(text.replace('"sampler":{"name":"in_order"', '"sampler":{"name":"custom","target":"gone:Away"', 1))
    code, _, file = reported(path)
    assert code == 0
    data = Page(file.read_text(encoding="ascii")).data
    assert "gone" in data["verdict"]["unknown"]
    assert data["limits"] is None
    assert data["sheet"]["pulled"] > 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", ("is empty", "name a run's trace.jsonl")),
        (b"no trace\n", ("no trace of evenstep", "name a run's trace.jsonl")),
        (b'{"format":"evenstep trace 1"', ("no whole line", "read the run's output")),
        (
            b'{"format":"evenstep trace 9"}\n',
            ("this evenstep reads 'evenstep trace 1'", "use the version that wrote it"),
        ),
    ],
)
def test_what_is_empty_or_foreign_is_refused_with_what_to_do(
    tmp_path: Path, content: bytes, said: tuple[str, str]
) -> None:
    (tmp_path / "trace.jsonl").write_bytes(content)
    code, output, file = reported(tmp_path / "trace.jsonl")
    assert code == 1
    assert all(words in output for words in said)
    assert not file.exists()


def test_a_line_that_is_damaged_is_named_and_a_torn_last_one_is_left_out(tmp_path: Path) -> None:
    wandered(tmp_path / "trace.jsonl", moves=20)
    whole = (tmp_path / "trace.jsonl").read_bytes()
    (tmp_path / "trace.jsonl").write_bytes(whole[:-9])
    assert reported(tmp_path / "trace.jsonl")[0] == 0
    (tmp_path / "trace.jsonl").write_bytes(whole[:-9] + b"\n" + whole.splitlines(keepends=True)[-1])
    code, output, _ = reported(tmp_path / "trace.jsonl")
    assert code == 1
    assert "cut it off before the line" in output


def test_a_page_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    wandered(tmp_path / "trace.jsonl", moves=5)
    result = CliRunner().invoke(
        app, ["report", str(tmp_path / "trace.jsonl"), "-o", str(tmp_path / "no" / "page.html")]
    )
    assert result.exit_code == 2
    assert "cannot be written" in result.output
    _, _, file = reported(tmp_path / "trace.jsonl")
    before = file.read_bytes()
    (tmp_path / "trace.jsonl").write_bytes(b"no trace any more")
    assert reported(tmp_path / "trace.jsonl")[0] == 1
    assert file.read_bytes() == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["report.html", "trace.jsonl"]


def test_all_parts_of_the_program_are_used() -> None:
    folder = resources.files("runtime.report").joinpath("page")
    assert {part.name for part in folder.iterdir() if part.name.endswith(".js")} == set(SCRIPTS)


@pytest.mark.parametrize("theme", [":root {", ':root[data-theme="dark"] {'])
def test_words_stand_out_from_the_ground_in_light_and_dark(theme: str) -> None:
    """At least 4.5 : 1, as WCAG 2 asks of text."""
    style = resources.files("runtime.report").joinpath("page", "page.css").read_text(encoding="ascii")
    block = style[style.index(theme) :].split("}", 1)[0]
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", block))
    for ground in ("ground", "raised"):
        for ink in ("ink", "quiet", "accent", "good", "bad", "fair"):
            light, dark = sorted((_luminance(colours[ink]), _luminance(colours[ground])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (ink, ground)


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


LEAVES = st.sampled_from(
    ["null", "true", "-7", "1e308", "NaN", '""', "[]", "{}", "[[]]", '{"a": 1}', str(2**70), json.dumps(HOSTILE)]
)


@given(st.integers(0, 10**9), st.integers(0, 10**9), LEAVES)
@settings(max_examples=150, deadline=None)
def test_whatever_a_trace_holds_it_is_shown_or_refused_with_a_message(
    whole: Path, line: int, place: int, leaf: str
) -> None:
    lines = whole.read_bytes().splitlines(keepends=True)
    number = 1 + line % (len(lines) - 1)  # the header is checked by the reader
    record = json.loads(lines[number])
    leaves = list(_leaves(record))
    within, key = leaves[place % len(leaves)]
    within[key] = json.loads(leaf)
    lines[number] = json.dumps(record, separators=(",", ":")).encode() + b"\n"
    damaged = whole.parent / "damaged.jsonl"
    damaged.write_bytes(b"".join(lines))
    try:
        told = collected(damaged)
    except TraceUnreadable:
        return  # with a message, and nothing else is raised
    for record in events_of(told):
        json.dumps(record, allow_nan=False)
    page = Page(page_of(told, {"unknown": "nothing"}, samples_beside(told.trace.path)))
    assert len([tag for tag, _ in page.elements if tag == "script"]) == 3


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "trace.jsonl"
    wandered(path, "ready_first", seed=3, moves=60)
    return path


def _leaves(given: Any) -> Iterator[tuple[Any, Any]]:
    for key, item in given.items() if isinstance(given, dict) else enumerate(given):
        yield given, key
        if isinstance(item, dict | list):
            yield from _leaves(item)
