"""`evenstep check` that comes to no verdict: samplers that end the process, lost processes, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from runtime.cli import app

ROOT = Path(__file__).parents[2]
# A shell starts what it has in the background with SIGINT ignored, and that is inherited down to here.
HEARS_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
EVENSTEP = (sys.executable, "-c", f"{HEARS_SIGINT}; from runtime.entry import main; main()", "check")
SAMPLER = """
import os
import sys
from fsm.samplers.builtin import ReadyFirst


class Ends(ReadyFirst):
    def select(self, view, min_groups, max_groups):
        {body}
"""


@pytest.fixture
def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def sampler_file(folder, name, body):
    file = folder / f"{name}.py"
    file.write_text(SAMPLER.format(body=body), encoding="utf-8")
    return file


def checked_on_two_processes(file, environment):
    """`evenstep check` of the sampler `Ends` in a file, as a process of its own."""
    return subprocess.run(
        [*EVENSTEP, "--jobs", "2", "--sampler", f"{file}:Ends"],
        cwd=file.parent, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("exits", "sys.exit(0)", "SystemExit(0)"),
        ("raises_exit", "raise SystemExit(0)", "SystemExit(0)"),
        ("raises_key", "raise KeyboardInterrupt", "KeyboardInterrupt()"),
        ("raises_base", "raise BaseException('odd')", "BaseException(odd)"),
    ],
)
def test_a_sampler_that_would_end_the_process_is_to_blame_and_exits_with_1(tmp_path, name, body, said):
    file = sampler_file(tmp_path, f"ends_by_{name}", body)
    result = CliRunner().invoke(app, ["check", "--jobs", "1", "--scope", "quick", "--sampler", f"{file}:Ends"])

    assert result.exit_code == 1, result.output
    assert f"sampler ends_by_{name}:Ends: {said} was raised in {file}, line 9, in select" in result.stderr


def test_a_sampler_that_answers_now_this_and_now_that_is_to_blame(tmp_path):
    asked = "calls = self.__dict__; calls['n'] = calls.get('n', 0) + 1"
    body = f"{asked}; return super().select(view, min_groups, max_groups) if calls['n'] % 3 else ()"
    file = sampler_file(tmp_path, "moody", body)
    result = CliRunner().invoke(app, ["check", "--jobs", "1", "--sampler", f"{file}:Ends"])

    assert result.exit_code == 1, result.output
    assert "there is no verdict" in result.stderr
    assert "moody:Ends gave different answers for the same view" in result.stderr


def test_on_several_processes_too(tmp_path, environment):
    file = sampler_file(tmp_path, "ends", "sys.exit(0)")
    ended = checked_on_two_processes(file, environment)

    assert ended.returncode == 1
    assert f"SystemExit(0) was raised in {file}, line 9, in select" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_process_that_is_lost_is_said_and_is_no_verdict(tmp_path, environment):
    file = sampler_file(tmp_path, "vanishes", "os._exit(0)")
    ended = checked_on_two_processes(file, environment)

    assert ended.returncode == 1
    assert "a process that went through cases is lost" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("import_exits", b"import sys\nsys.exit(0)\n", "import_exits.py, line 2: SystemExit: 0"),
        ("import_syntax", b"x = 1\nclass X(:\n", "import_syntax.py, line 2: SyntaxError: invalid syntax"),
        ("import_null", b"x\0y", "import_null.py: SyntaxError: source code string cannot contain null bytes"),
        ("import_encoding", b"\xff\xfe", "import_encoding.py, line 1: SyntaxError"),
        ("import_raises", b"\nraise RuntimeError('boom')\n", "import_raises.py, line 2: RuntimeError: boom"),
        ("import_missing", b"import no_such_thing\n", "import_missing.py, line 1: ModuleNotFoundError: No module"),
        ("import_key", b"raise KeyboardInterrupt\n", "KeyboardInterrupt() was raised in"),
    ],
)
def test_a_file_that_cannot_be_imported_is_refused_with_its_line(tmp_path, name, text, said):
    file = tmp_path / f"{name}.py"
    file.write_bytes(text)
    result = CliRunner().invoke(app, ["check", "--sampler", f"{file}:Sampler"])

    assert result.exit_code == 1
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert said in result.stderr
    assert str(file) in result.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my-sampler", "my-sampler can't be a module's name; rename the file"),
        ("2nd", "as in sampler_2nd.py"),
        ("statistics", "its module would be statistics, but module statistics is that of"),
        ("__main__", "but module __main__ is one that is loaded already"),
    ],
)
def test_a_file_whose_name_is_no_module_of_its_own_is_refused_as_that(tmp_path, name, said):
    file = sampler_file(tmp_path, name, "return ()")
    result = CliRunner().invoke(app, ["check", "--sampler", f"{file}:Ends"])

    assert result.exit_code == 1
    assert said in result.stderr


def test_a_file_below_a_folder_that_is_no_package_is_loaded_from_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "my-samplers"
    folder.mkdir()
    sampler_file(folder, "below_a_dash", "return super().select(view, min_groups, max_groups)")
    args = ["check", "--jobs", "1", "--scope", "quick", "--sampler", "my-samplers/below_a_dash.py:Ends"]

    assert "sampler custom below_a_dash:Ends" in CliRunner().invoke(app, args).stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("name=windowed",), "name is a key of the sampler's block"),
        (("target=a:B",), "target is a key of the sampler's block"),
        (("short_tokens=1", "short_tokens=2"), "short_tokens is given twice"),
    ],
)
def test_no_option_of_the_constructor_names_another_sampler(options, said):
    given = [part for option in options for part in ("--sampler-option", option)]
    result = CliRunner().invoke(app, ["check", "--sampler", "examples.short_first:ShortFirst", *given])

    assert result.exit_code == 1
    assert said in result.stderr


def processes_of(group):
    """Process ids of a process group, without those that have ended and wait to be reaped."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue  # it has ended since
            if int(its_group) == group and state != "Z":
                found.append(int(entry.name))
    return found


def wait_until(holds, within_s):
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s, f"not within {within_s} s"
        time.sleep(0.05)


@pytest.fixture
def deep_check(tmp_path, environment):
    """A check that takes minutes, on two processes that are at work."""
    config = ROOT / "examples" / "windowed.yaml"
    with subprocess.Popen(
        [*EVENSTEP, str(config), "--scope", "deep", "--jobs", "2"],
        cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as started:  # fmt: skip
        with_workers_and_tracker = 4
        wait_until(lambda: len(processes_of(started.pid)) == with_workers_and_tracker, within_s=60)
        yield started
        for process in processes_of(started.pid):
            os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize(
    ("send", "signum", "code"),
    [(os.killpg, signal.SIGINT, 130), (os.kill, signal.SIGINT, 130), (os.kill, signal.SIGTERM, 143)],
)
def test_a_signal_ends_it_and_all_its_processes_at_once(deep_check, send, signum, code):
    send(deep_check.pid, signum)

    assert deep_check.wait(timeout=10) == code
    assert deep_check.stderr.read() == f"evenstep check: ended by {signum.name}; there is no verdict\n"
    wait_until(lambda: not processes_of(deep_check.pid), within_s=5)


def test_no_process_outlives_one_that_is_killed(deep_check):
    deep_check.kill()

    wait_until(lambda: not processes_of(deep_check.pid), within_s=10)
