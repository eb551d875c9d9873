"""`evenstep check` of a sampler that never answers ends in time and says where it hangs; so do other commands."""

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fsm.config.parse import parse_config
from fsm.errors import ConfigError
from runtime.cli import scenario as scenario_command
from runtime.cli.app import app
from runtime.launch import signals
from runtime.launch.signals import NoAnswer, answering_within, set_up_in_time
from specs.processes import hanging
from specs.processes.hanging import Hang, Hangs, alive, hang_in, nobody_asked, watched
from tests.runtime.cli.check.helpers import checked

ROOT = Path(__file__).parents[4]
WHERE = {
    "imported": "{body}\n",
    "made": "    def __init__(self):\n        {body}\n",
    "set_up": "    def required_buffer_capacity(self, size):\n        {body}\n",
    "asked": "    def select(self, view, min_groups, max_groups):\n        {body}\n",
    "asked_of_a_loss": "    def charge_step_for_lost_group(self, target_step, assembling_version):\n        {body}\n",
}
METHOD = {
    "imported": "while it was imported", "made": "__init__ did not return",
    "set_up": "required_buffer_capacity did not return", "asked": "select did not return",
    "asked_of_a_loss": "charge_step_for_lost_group did not return",
}  # fmt: skip
HANGS = {
    "sleeps": "time.sleep(10**6)",
    "computes": "while True: pass",
    "waits": "threading.Event().wait()",
    "holds_the_lock": "re.match('(a+)+$', 40 * 'a' + 'b')",
}


def hanging_sampler(folder: Path, name: str, where: str, body: str) -> Path:
    """A file with a sampler `Hangs`; line 8 at the most is the one on which it hangs."""
    file = folder / f"{name}.py"
    text = WHERE[where].format(body=body)
    head = "import re\nimport threading\nimport time\nfrom fsm.samplers.builtin import ReadyFirst\n"
    made = f"{text}class Hangs(ReadyFirst):\n    pass\n" if where == "imported" else f"class Hangs(ReadyFirst):\n{text}"
    file.write_text(head + made, encoding="utf-8")
    return file


def line_of(file: Path, body: str) -> int:
    return next(n for n, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1) if body in line)


@pytest.mark.parametrize(
    ("where", "how"),
    [*((where, "sleeps") for where in WHERE), ("imported", "holds_the_lock"), *(("asked", how) for how in HANGS)],
)
def test_a_sampler_that_hangs_is_named_with_the_method_the_file_and_the_line(tmp_path, capfd, monkeypatch, where, how):
    monkeypatch.setattr(hanging, "LOADING_S", 2.0)
    file = hanging_sampler(tmp_path, f"hangs_{where}_{how}", where, HANGS[how])
    began_s = time.monotonic()
    result = checked(capfd, "--jobs", "1", "--scope", "quick", "--seconds", "1", "--sampler", f"{file}:Hangs")

    assert result.exit_code == 1, result.output
    line = line_of(file, HANGS[how])
    said = rf"sampler {file.stem}:Hangs hangs: {METHOD[where]}, for [3-6] s, in {re.escape(str(file))}, line {line}\b"
    assert re.search(said, result.stderr), result.stderr
    assert "There is no verdict" in result.stderr
    assert "Traceback" not in result.stderr
    assert time.monotonic() - began_s < 60


def test_on_several_processes_too(tmp_path):
    file = hanging_sampler(tmp_path, "hangs_on_two", "asked", HANGS["sleeps"])
    args = ["--jobs", "2", "--scope", "quick", "--seconds", "1", "--sampler", f"{file}:Hangs"]
    ended = subprocess.run(
        [sys.executable, "-c", "from runtime.cli.entry import main; main()", "check", *args],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=180,
        check=False,
    )  # fmt: skip

    assert ended.returncode == 1, ended.stderr
    assert "sampler hangs_on_two:Hangs hangs: select did not return" in ended.stderr
    assert f"{file}, line 7" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_sampler_that_is_slow_and_does_answer_is_undetermined_at_the_bound(tmp_path, capfd):
    body = "time.sleep(0.4); return super().select(view, min_groups, max_groups)"
    file = hanging_sampler(tmp_path, "is_slow", "asked", body)
    result = checked(capfd, "--jobs", "1", "--scope", "quick", "--seconds", "1", "--sampler", f"{file}:Hangs")

    assert result.exit_code == 3, result.output
    assert "more than 1 s" in result.stdout


def in_a_process_of_its_own(words: Path, code: str) -> subprocess.Popen[bytes]:
    """Some lines that know `hangs`, whose watch fires after three seconds."""
    lines = (
        "import time\nfrom pathlib import Path\nfrom specs.processes import hanging\n"
        "from specs.processes.hanging import Hangs, alive, nobody_asked, watched\n"
        f"hanging.LOADING_S = hanging.ASKING_S = 3.0\nhangs = Hangs(Path({str(words)!r}), 0.0)\n"
    )
    return subprocess.Popen([sys.executable, "-c", lines + code], env={**os.environ, "PYTHONPATH": str(ROOT)})


@pytest.mark.parametrize(
    ("code", "hung"),
    [
        ("with watched(hangs): time.sleep(600)", True),
        ("with watched(hangs): pass\ntime.sleep(5)", False),
        ("with watched(None): time.sleep(5)", False),
        ("with watched(hangs):\n  for _ in range(6): time.sleep(0.8); alive(0.0)", False),
        ("with watched(hangs):\n  for _ in range(6): time.sleep(0.8)", True),
        ("with watched(hangs), nobody_asked(): time.sleep(5)", False),
        ("with watched(hangs):\n  with nobody_asked(): pass\n  time.sleep(600)", True),
        ("alive(0.0)\ntime.sleep(5)", False),
    ],
)
def test_a_process_ends_itself_where_what_is_watched_does_not_come_back(tmp_path, code, hung):
    assert in_a_process_of_its_own(tmp_path, code).wait(120) == (1 if hung else 0)
    found = hang_in(tmp_path)
    assert (found is not None) is hung
    if found is not None:
        assert found.within_s == 3.0
        assert found.method == "", "no sampler was asked"


def test_processes_that_hang_at_the_same_moment_each_leave_their_own_word(tmp_path):
    at_s = time.time() + 5
    code = f"time.sleep({at_s} - time.time())\nwith watched(hangs): time.sleep(600)"
    processes = [in_a_process_of_its_own(tmp_path, code) for _ in range(4)]
    assert [process.wait(120) for process in processes] == [1, 1, 1, 1]
    words = [file.read_text(encoding="utf-8") for file in tmp_path.iterdir()]
    assert len(words) == 4
    assert all(word.count("Timeout") == 1 and word.count("<string>") == 1 for word in words)


def test_a_hang_in_the_users_code_is_told_before_one_elsewhere(tmp_path):
    begin = "Timeout (0:00:06)!\nThread 0x1 (most recent call first):\n"
    called = '  File "fsm/rules/sampler_calls.py", line 9 in ask\n'
    (tmp_path / "1").write_text(f'{begin}  File "elsewhere.py", line 3 in wait\n', encoding="utf-8")
    (tmp_path / "2").write_text(f'{begin}  File "mine.py", line 7 in select\n{called}', encoding="utf-8")
    assert hang_in(tmp_path) == Hang(6.0, "sampler", "select", "mine.py, line 7")


def test_the_watch_is_off_again_whatever_happens_meanwhile(tmp_path):
    with pytest.raises(ZeroDivisionError), watched(Hangs(tmp_path, None)):
        raise ZeroDivisionError
    with nobody_asked():
        alive(None)
    assert hang_in(tmp_path) is None


# Scenarios and setups


def test_what_does_not_answer_in_time_is_interrupted_with_its_place():
    began_s = time.monotonic()
    with (
        pytest.raises(NoAnswer, match=r"no answer within 0.2 s; it was at .*threading.py, line \d+"),
        answering_within(0.2),
    ):
        threading.Event().wait(600)
    assert time.monotonic() - began_s < 60
    with answering_within(0.2):
        pass
    time.sleep(0.4)


@pytest.mark.parametrize("where", ["imported", "made", "set_up"])
def test_a_setup_with_a_sampler_that_hangs_is_refused_with_its_line(tmp_path, monkeypatch, where):
    monkeypatch.setattr(signals, "LOADING_S", 1.0)
    monkeypatch.syspath_prepend(tmp_path)
    file = hanging_sampler(tmp_path, f"hangs_at_setup_{where}", where, HANGS["sleeps"])
    config = parse_config({"async_rl": {"sampler": {"name": "custom", "target": f"{file.stem}:Hangs"}}})
    with pytest.raises(ConfigError, match=f"NoAnswer: no answer within 1 s; it was at {file}, line"):
        set_up_in_time(config, 16)


def test_a_scenario_whose_sampler_hangs_fails_and_the_others_are_run(tmp_path, monkeypatch):
    monkeypatch.setattr(scenario_command, "LOADING_S", 1.0)
    monkeypatch.syspath_prepend(tmp_path)
    for name, body in (("a_hangs", HANGS["sleeps"]), ("b_answers", "return ()")):
        hanging_sampler(tmp_path, name, "asked", body)
        (tmp_path / f"{name}.yaml").write_text(
            f"name: {name}\nconfig:\n  grpo: {{num_prompts_per_step: 2}}\n"
            f"  async_rl: {{sampler: {{name: custom, target: '{name}:Hangs'}}}}\n"
            "data: {num_prompts: 2}\nmoves:\n  - commit: [0, 1]\nexpect: {outcome: deadlocked}\n",
            encoding="utf-8",
        )
    result = CliRunner().invoke(app, ["scenario", "run", str(tmp_path)])

    assert result.exit_code == 1
    assert "a_hangs:Hangs: select raised NoAnswer: no answer within 1 s" in result.output
    assert f"{tmp_path}/a_hangs.py, line 7" in result.output
    assert "2 scenarios: 1 holds, 1 fails" in result.output
