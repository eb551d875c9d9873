"""`evenstep check` that comes to no verdict: samplers that end the process, lost processes, signals."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.runtime.cli.check.helpers import checked

ROOT = Path(__file__).parents[4]
# A shell starts what it has in the background with SIGINT ignored, and that is inherited down to here.
HEARS_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
EVENSTEP = (sys.executable, "-c", f"{HEARS_SIGINT}; from runtime.cli.entry import main; main()", "check")
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


def checked_from_a_shell(file, environment, *args):
    """`evenstep check` of the sampler `Ends` in a file, as a process of its own."""
    return subprocess.run(
        [*EVENSTEP, *args, "--sampler", f"{file}:Ends"],
        cwd=file.parent, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("error", ["SystemExit(0)", "BaseException('odd')"])
def test_a_sampler_that_would_end_the_process_violates_as_one_that_raises(tmp_path, capfd, error):
    name, _, said = error.rstrip(")'").replace("'", "").partition("(")
    file = sampler_file(tmp_path, f"raises_{name.lower()}", f"raise {error}")
    result = checked(capfd, "--jobs", "1", "--scope", "quick", "--sampler", f"{file}:Ends")

    assert result.exit_code == 2, result.output
    assert "violated: sampler: no run is stopped by its sampler" in result.stdout
    assert f"select raised {name}: {said}" in result.stdout


def test_a_ctrl_c_that_nobody_pressed_is_the_samplers(tmp_path, capfd):
    file = sampler_file(tmp_path, "raises_key", "raise KeyboardInterrupt")
    result = checked(capfd, "--jobs", "1", "--scope", "quick", "--sampler", f"{file}:Ends")

    assert result.exit_code == 1, result.output
    assert f"sampler raises_key:Ends: KeyboardInterrupt() was raised in {file}, line 9, in select" in result.stderr


def test_a_sampler_that_answers_now_this_and_now_that_is_to_blame(tmp_path, capfd):
    asked = "calls = self.__dict__; calls['n'] = calls.get('n', 0) + 1"
    body = f"{asked}; return super().select(view, min_groups, max_groups) if calls['n'] % 3 else ()"
    file = sampler_file(tmp_path, "moody", body)
    result = checked(capfd, "--jobs", "1", "--sampler", f"{file}:Ends")

    assert result.exit_code == 1, result.output
    assert "there is no verdict" in result.stderr
    assert "moody:Ends gave different answers for the same view" in result.stderr


def test_on_several_processes_too(tmp_path, environment):
    file = sampler_file(tmp_path, "ends", "raise KeyboardInterrupt")
    ended = checked_from_a_shell(file, environment, "--jobs", "2")

    assert ended.returncode == 1
    assert f"KeyboardInterrupt() was raised in {file}, line 9, in select" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_process_that_is_lost_is_said_and_is_no_verdict(tmp_path, environment):
    file = sampler_file(tmp_path, "vanishes", "os._exit(0)")
    ended = checked_from_a_shell(file, environment, "--jobs", "2")

    assert ended.returncode == 1
    assert "a process that explored cases is lost" in ended.stderr
    assert "Traceback" not in ended.stderr


ENDINGS = {
    "os._exit(0)": "with exit code 0",
    "os.kill(os.getpid(), 9)": "by SIGKILL, or was killed",
    "os.execv('/bin/true', ['true'])": "code 0",
}
WHERE = {
    "imported": "{ending}\nfrom fsm.samplers.builtin import ReadyFirst as Ends\n",
    "made": "class Ends(ReadyFirst):\n    def __init__(self):\n        {ending}\n",
    "set_up": "class Ends(ReadyFirst):\n    def required_buffer_capacity(self, size):\n        {ending}\n",
    "asked": "class Ends(ReadyFirst):\n    def select(self, view, min_groups, max_groups):\n        {ending}\n",
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("where", WHERE)
def test_nothing_that_ends_the_process_makes_a_verdict_wherever_it_happens(tmp_path, capfd, where, ending):
    file = tmp_path / f"ends_when_{where}.py"
    text = "import os\nfrom fsm.samplers.builtin import ReadyFirst\n" + WHERE[where].format(ending=ending)
    file.write_text(text, encoding="utf-8")
    result = checked(capfd, "--jobs", "1", "--scope", "quick", "--sampler", f"{file}:Ends")

    assert result.exit_code == 1, result.output
    assert f"sampler ends_when_{where}:Ends ended the process that it was asked in" in result.stderr
    assert ENDINGS[ending] in result.stderr
    assert "Traceback" not in result.stderr


def test_a_sampler_that_a_configuration_names_may_not_end_the_process_either(tmp_path, capfd, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    sampler_file(tmp_path, "ends_as_configured", "os._exit(0)")
    config = tmp_path / "run.yaml"
    config.write_text("async_rl: {sampler: {name: custom, target: 'ends_as_configured:Ends'}}\n", encoding="utf-8")
    result = checked(capfd, "--jobs", "1", "--scope", "quick", str(config))

    assert result.exit_code == 1, result.output
    assert "sampler ends_as_configured:Ends ended the process that it was asked in" in result.stderr


def test_a_thread_that_a_sampler_leaves_behind_keeps_no_verdict_back(tmp_path, environment):
    file = tmp_path / "leaves_a_thread.py"
    file.write_text(
        "import threading\nfrom fsm.samplers.builtin import ReadyFirst as Ends\n"
        "print('imported')\nthreading.Thread(target=threading.Event().wait).start()\n",
        encoding="utf-8",
    )
    ended = checked_from_a_shell(file, environment, "--jobs", "1", "--scope", "quick")

    assert ended.returncode == 0, ended.stderr
    assert "imported" in ended.stdout


def test_a_command_whose_reader_went_away_ends_without_a_traceback(tmp_path, environment):
    file = sampler_file(tmp_path, "reads_no_more", "return super().select(view, min_groups, max_groups)")
    with subprocess.Popen(
        [*EVENSTEP, "--jobs", "1", "--scope", "quick", "--sampler", f"{file}:Ends"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as started:  # fmt: skip
        started.stdout.close()
        assert started.wait(timeout=60) == 1
        assert started.stderr.read() == ""


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
def test_a_file_that_cannot_be_imported_is_refused_with_its_line(tmp_path, capfd, name, text, said):
    file = tmp_path / f"{name}.py"
    file.write_bytes(text)
    result = checked(capfd, "--sampler", f"{file}:Sampler")

    assert result.exit_code == 1
    assert "Traceback" not in result.stderr
    assert said in result.stderr
    assert str(file) in result.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my-sampler", "my-sampler cannot be a module's name; rename the file"),
        ("2nd", "as in sampler_2nd.py"),
        ("statistics", "its module would be statistics, but module statistics is that of"),
        ("__main__", "but module __main__ is one that is loaded already"),
    ],
)
def test_a_file_whose_name_is_no_module_of_its_own_is_refused_as_that(tmp_path, capfd, name, said):
    file = sampler_file(tmp_path, name, "return ()")
    result = checked(capfd, "--sampler", f"{file}:Ends")

    assert result.exit_code == 1
    assert said in result.stderr


def test_a_file_below_a_folder_that_is_no_package_is_loaded_from_its_own_folder(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "my-samplers"
    folder.mkdir()
    sampler_file(folder, "below_a_dash", "return super().select(view, min_groups, max_groups)")
    args = ["--jobs", "1", "--scope", "quick", "--sampler", "my-samplers/below_a_dash.py:Ends"]

    assert "sampler custom below_a_dash:Ends" in checked(capfd, *args).stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("name=windowed",), "name is a key of the sampler's block"),
        (("target=a:B",), "target is a key of the sampler's block"),
        (("short_tokens=1", "short_tokens=2"), "short_tokens is given twice"),
    ],
)
def test_no_option_of_the_constructor_names_another_sampler(capfd, options, said):
    given = [part for option in options for part in ("--sampler-option", option)]
    result = checked(capfd, "--sampler", "examples.short_first:ShortFirst", *given)

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


@pytest.fixture(params=["windowed", "custom_sampler"])
def deep_check(tmp_path, environment, request):
    """A check that takes minutes, on two processes that are at work; a custom sampler has one more around them."""
    config = ROOT / "examples" / f"{request.param}.yaml"
    with subprocess.Popen(
        [*EVENSTEP, str(config), "--scope", "deep", "--jobs", "2"],
        cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as started:  # fmt: skip
        with_workers_and_tracker = 5 if request.param == "custom_sampler" else 4
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
