"""Data that is indexed in processes instead of parsed by each process: the same items, found again without reading."""

import asyncio
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from runtime.actors.reward_worker import RewardWorker
from runtime.checkpoints.origin import differences, origin_of, refuse_changed_data
from runtime.settings import Settings, load_settings
from runtime.tasks.base import DataFailure, Task, TaskError
from runtime.tasks.data import Stream, item_at, load_task, prepare_data
from runtime.tasks.rows import index, scanning
from runtime.tasks.split import is_held_out
from tests.runtime.bookkeeping import said

ROWS = 120


@pytest.fixture(autouse=True)
def _all_is_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(index, "LARGE_ROWS", 50)


def lines(path: Path, change: dict[int, str] | None = None) -> Path:
    made = [json.dumps({"prompt": f"{number} + 1 =", "answer": str(number + 1)}) for number in range(ROWS)]
    for number, text in (change or {}).items():
        made[number] = text
    path.write_text("\n".join(made) + "\n", encoding="utf-8")
    return path


def settings_of(path: Path, **data: Any) -> Settings:
    given = {"task": {"name": "jsonl", "path": str(path)}, **data}
    return load_settings(None, [f"data.{key}={json.dumps(value)}" for key, value in given.items()])


def training(path: Path, **data: Any) -> Task:
    return load_task(settings_of(path, **data).data, "training")


def items(task: Task) -> list[tuple[str, str | None, str]]:
    return [(task.prompt(index), task.reference(index), task.where(index)) for index in range(task.num_prompts)]


def test_large_data_has_the_items_and_the_split_of_small_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lines(tmp_path / "a.jsonl", {5: "", 7: '{"messages": [{"role": "user", "content": "hi"}], "answer": 1}'})
    other = lines(tmp_path / "b.jsonl", dict.fromkeys(range(20, ROWS), ""))
    cases: list[dict[str, Any]] = [
        {},
        {"num_prompts": 60},
        {"validation_size": 0},
        {"task": {"name": "jsonl", "path": str(path), "validation_path": str(other)}},
    ]
    large = [items(training(path, **case)) for case in cases]
    monkeypatch.setattr(index, "LARGE_ROWS", 1_000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    assert large == [items(training(path, **case)) for case in cases]
    assert not any(is_held_out(prompt, 0.1) for prompt, _, _ in large[0])
    assert ("hi", "1", f"{path}:8") in large[2]


def test_it_is_read_once_in_processes_whose_progress_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "BLOCK_ROWS", 40)
    path, told = lines(tmp_path / "a.jsonl"), []

    def tell(name: str, read: int, rows: int) -> None:
        told.append((name, read, rows))

    data = settings_of(path).data
    with pytest.MonkeyPatch.context() as blocks:
        program = "import runtime.tasks.rows.scan_process as process; process.BLOCK_ROWS = 40; process.main()"
        blocks.setattr(scanning, "PROGRAM", program)
        prepare_data(data, tell)
    assert told[0] == (str(path), 0, ROWS)
    assert [read for _, read, _ in told] == [0, 40, 80, 120]
    monkeypatch.setattr(index, "scan_in_processes", None)
    assert load_task(data, "training").num_prompts > 0


def test_a_changed_file_is_read_again_and_is_other_data(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl")
    settings = settings_of(path, validation_size=0)
    began = origin_of(settings, training(path, validation_size=0), "run")
    moved = origin_of(settings, training(lines(tmp_path / "moved.jsonl"), validation_size=0), "run")
    assert list(differences(began.data, moved.data)) == []
    refuse_changed_data(training(path, validation_size=0), began.prompts)
    lines(path, {3: '{"prompt": "3 + 1 =", "answer": "5"}'})
    with pytest.raises(TaskError, match=r"the data has changed since the run began"):
        refuse_changed_data(training(path, validation_size=0), began.prompts)
    assert len(list((tmp_path / "cache/evenstep/data").iterdir())) == 2  # the older index of the file is gone


def test_data_that_datasets_would_hold_in_memory_has_an_index_for_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr(datasets.config, "IN_MEMORY_MAX_SIZE", 1 << 30)
    for name, answer in (("a", "1"), ("b", "2")):
        rows = [{"prompt": f"{name}{number}", "answer": answer} for number in range(ROWS)]
        datasets.Dataset.from_list(rows).save_to_disk(tmp_path / name)
        task = {"name": "dataset", "path": str(tmp_path / name)}
        loaded = load_task(settings_of(tmp_path, task=task, validation_size=0).data, "training")
        assert (loaded.prompt(0), loaded.reference(0)) == (f"{name}0", answer)
    assert len(list((tmp_path / "cache/evenstep/data").iterdir())) == 2


def test_configurations_with_other_columns_keep_each_other_s_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lines(tmp_path / "a.jsonl")
    settings = [settings_of(path), settings_of(path, prompt_template="Q: {prompt}")]
    for each in settings:
        load_task(each.data, "training")
    monkeypatch.setattr(index, "scan_in_processes", None)
    for each in settings:
        assert load_task(each.data, "training").num_prompts > 0


@pytest.mark.parametrize("name", ["index.json", "digests.npy", "starts-0.npy"])
@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(b"")], ids=["gone", "empty"])
def test_an_index_that_is_not_whole_is_built_again(tmp_path: Path, name: str, damage: Any) -> None:
    path = lines(tmp_path / "a.jsonl")
    expected = items(training(path))
    [folder] = (tmp_path / "cache/evenstep/data").iterdir()
    damage(folder / name)
    assert items(training(path)) == expected
    assert [each.name for each in (tmp_path / "cache/evenstep/data").iterdir()] == [folder.name]
    assert (folder / name).stat().st_size > 0


def test_of_two_builds_at_once_the_later_one_takes_the_index_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, scan = lines(tmp_path / "a.jsonl"), scanning.scan_in_processes
    made: list[int] = []

    def slow(*given: Any) -> list[bytes]:
        monkeypatch.setattr(index, "scan_in_processes", scan)
        training(path)  # another process builds it meanwhile
        made.extend(folder.stat().st_ino for folder in (tmp_path / "cache/evenstep/data").glob("*/index.json"))
        return scan(*given)

    monkeypatch.setattr(index, "scan_in_processes", slow)
    assert training(path).num_prompts > 0
    assert made == [file.stat().st_ino for file in (tmp_path / "cache/evenstep/data").glob("*/index.json")]


def test_an_index_that_vanishes_as_soon_as_it_is_built_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index._Index, "_put", lambda self, aside: None)
    with pytest.raises(TaskError, match=r"the index of .*a.jsonl was removed or damaged.*2 times.*XDG_CACHE_HOME"):
        training(lines(tmp_path / "a.jsonl"))


def test_a_full_disk_is_told_before_a_process_dies_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = lines(tmp_path / "a.jsonl")
    with monkeypatch.context() as disk:
        disk.setattr(os, "posix_fallocate", full)
        with pytest.raises(TaskError, match=r"cannot be written to .*No space left.*XDG_CACHE_HOME"):
            training(path)
    monkeypatch.setattr(scanning, "PROGRAM", "import os; os.kill(os.getpid(), 7)")
    with pytest.raises(TaskError, match=r"exit code -7; the disk of .* may be full: .*XDG_CACHE_HOME"):
        training(path)


def test_a_checkpoint_from_before_data_was_indexed_still_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lines(tmp_path / "a.jsonl")
    settings = settings_of(path)
    large = origin_of(settings, load_task(settings.data, "training"), "run")
    monkeypatch.setattr(index, "LARGE_ROWS", 1_000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    small = origin_of(settings, load_task(settings.data, "training"), "run")
    assert small.prompts != large.prompts
    assert list(differences(small.data, large.data)) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ('{"prompt": "a"}', r"a.jsonl:101: 'answer' is missing"),
        ("{", r"a.jsonl:101: is not JSON"),
        ('{"prompt": "\\ud800", "answer": ""}', r"a.jsonl:101: the prompt is no valid text"),
    ],
)
def test_a_wrong_line_is_told_by_the_process_that_finds_it(tmp_path: Path, wrong: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        training(lines(tmp_path / "a.jsonl", {100: wrong}))
    assert list((tmp_path / "cache/evenstep/data").iterdir()) == []


def test_a_file_that_changes_under_a_run_is_a_data_failure_that_says_so(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl")
    task, worker = training(path), RewardWorker(settings_of(path).data, 1, 1)
    with path.open("r+", encoding="utf-8") as file:
        file.write("x")
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataFailure, match=r"a.jsonl:\d+: the file was changed while the run reads from it"):
        task.prompt(50)
    [[why]] = asyncio.run(worker.score([(51, [said("52")])])).groups
    assert "the file was changed" in str(why)


def test_a_process_that_dies_is_told_with_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "PROGRAM", "print('no memory', file=__import__('sys').stderr); raise SystemExit(7)")
    with pytest.raises(TaskError, match=r"a.jsonl: a process that reads it ended early, with exit code 7.*no memory"):
        training(lines(tmp_path / "a.jsonl"))


def test_a_cache_that_cannot_be_written_is_told_with_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(
        TaskError, match=r"the index of .*a.jsonl cannot be written to .*Not a directory.*XDG_CACHE_HOME"
    ):
        training(lines(tmp_path / "a.jsonl"))


def test_an_order_of_ten_million_is_a_permutation_in_forty_megabytes() -> None:
    from runtime.tasks.data import _order

    stream = Stream(num_prompts=10_000_000, seed=3, shuffle=True, max_epochs=1)
    first = [item_at(stream, prompt).index for prompt in range(5)]
    assert len(set(first)) == 5
    assert _order(3, 0, 10_000_000).nbytes == 40_000_000


def test_the_order_of_a_shuffled_epoch_is_what_checkpoints_rely_on() -> None:
    stream = Stream(num_prompts=10, seed=0, shuffle=True, max_epochs=2)
    assert [item_at(stream, prompt).index for prompt in range(20)] == ORDER


ORDER = [4, 6, 1, 5, 0, 2, 8, 9, 3, 7, 7, 5, 2, 9, 1, 0, 3, 4, 6, 8]
