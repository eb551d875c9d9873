"""What is wrong is told before any actor starts: what, why, and the remedy."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fsm.errors import ConfigError
from runtime.launch.machine import Machine, this_machine
from runtime.launch.preflight import (
    data_problems,
    disk_problems,
    machine_problems,
    memory_parts,
    output_problems,
    preflight,
    template_problems,
)
from runtime.launch.run import check_run
from runtime.models.directory import TINY, ModelDirectoryProblem, ModelSize, inspect_model
from runtime.output.directory import begun_in, starting_in
from runtime.settings import Settings, load_settings
from runtime.tasks.config import DataConfig, JsonlTaskConfig, ReverseTaskConfig
from runtime.tasks.verdicts.handle import PoolSize

CONFIG = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 3,
    "vocab_size": 50,
}
MACHINE = Machine(cpus=2, memory_bytes=8 * 2**30)


def settings_of(*overrides: str) -> Settings:
    """Two workers of 64 sequences of at most 80 tokens, microbatches of 4096 tokens, and no checkpoints."""
    given = [
        "cluster.num_generation_workers=2",
        "generation.engine.max_batch_sequences=64",
        "generation.max_prompt_tokens=48",
        "generation.max_new_tokens=32",
        "policy.train_microbatch_tokens=4096",
        "checkpointing.enabled=false",
    ]
    return load_settings(None, [*given, *overrides])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "tokenizer.json").write_text("{}")
    save_file(
        {"a": np.zeros((50, 8), np.float32), "b": np.zeros(7, np.float32)},
        directory / "model.safetensors",
        metadata={"format": "pt"},
    )
    return directory


def problem_of(directory: Path) -> str:
    with pytest.raises(ModelDirectoryProblem) as found:
        inspect_model(directory)
    return str(found.value)


# The model


def test_a_whole_model_directory_tells_its_size(model: Path) -> None:
    assert inspect_model(model) == ModelSize(parameters=407, vocabulary=50, layers=3, key_value_width=4)


def test_a_sharded_model_is_the_sum_of_its_shards(model: Path) -> None:
    (model / "model.safetensors").rename(model / "one.safetensors")
    save_file({"c": np.zeros(3, np.float32)}, model / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert inspect_model(model).parameters == 410
    (model / "two.safetensors").unlink()
    assert "two.safetensors is missing" in problem_of(model)


def test_a_name_that_is_no_directory_is_not_downloaded(tmp_path: Path) -> None:
    assert "models are not downloaded" in problem_of(tmp_path / "meta-llama" / "Llama")


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("config.json", "no config.json"),
        ("model.safetensors", "no weights"),
        ("tokenizer.json", "no tokenizer"),
    ],
)
def test_a_missing_part_of_a_model_is_named_with_the_remedy(model: Path, missing: str, says: str) -> None:
    (model / missing).unlink()
    problem = problem_of(model)
    assert says in problem
    assert "save_pretrained" in problem


def test_weights_that_are_a_pickle_are_not_read(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    assert "pytorch_model.bin, which is a pickle and therefore not read" in problem_of(model)


def test_a_torn_download_is_told_by_its_size(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    assert "is not a complete safetensors file: it has" in problem_of(model)
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert "a Git LFS pointer" in problem_of(model)
    weights.write_bytes(b"")
    assert "is not a complete safetensors file" in problem_of(model)
    (model / "config.json").write_text("[")
    assert "cannot be read as JSON" in problem_of(model)


# The data


def jsonl(path: Path, lines: list[str], verifier: str = "runtime.tasks.verifiers:exact") -> DataConfig:
    path.write_text("\n".join(lines) + "\n")
    return DataConfig(task=JsonlTaskConfig(path=path, verifier=verifier), held_out_fraction=0.5)


LINES = [json.dumps({"prompt": f"{n} + 1 =", "answer": str(n + 1)}) for n in range(12)]


def test_good_data_has_no_problem(tmp_path: Path) -> None:
    assert data_problems(jsonl(tmp_path / "data.jsonl", LINES)) == []
    assert data_problems(DataConfig()) == []


def test_a_line_that_is_wrong_is_told_once_with_file_line_and_remedy(tmp_path: Path) -> None:
    [problem] = data_problems(jsonl(tmp_path / "data.jsonl", [*LINES, '{"prompt": "2 + 2 ="}']))
    assert f"{tmp_path / 'data.jsonl'}:13" in problem
    assert "'answer' is missing" in problem
    assert "data.task.columns.answer" in problem


def test_a_verifier_that_is_wrong_is_told_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "preflight_verifiers.py").write_text(
        "def one(completion): return 1.0\ndef raises(completion, answer): return 1 / 0\n"
        "def nan(completion, answer): return float('nan')\n"
        "def reference_alone(completion, answer): return float(completion.split()[0] == answer)\n"
        "def nan_if_empty(completion, answer): return 1.0 if completion else float('nan')\n"
    )
    (tmp_path / "broken_verifiers.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    for verifier, says in (
        ("preflight_verifiers:none", "has no function 'none'"),
        ("preflight_verifiers:one", "called once a rollout, with (completion, answer) or (completion, row)"),
        ("preflight_verifiers:reference_alone", "raised IndexError"),
        ("preflight_verifiers:nan_if_empty", "returned nan for the completion ''"),
        ("preflight_verifiers:raises", "raised ZeroDivisionError"),
        ("preflight_verifiers:nan", "returned nan"),
        ("no_such_module:f", "importing no_such_module failed"),
        ("broken_verifiers:f", "SyntaxError"),
    ):
        problems = data_problems(jsonl(tmp_path / "data.jsonl", LINES, verifier))
        assert problems, verifier
        assert all(says in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("time.sleep(1e6)", "gave no verdict within data.task.verdict_timeout_s = 2 s ("),
        ("os._exit(3)", "called os._exit ("),
        ("sys.exit('bye')", "raised SystemExit: bye ("),
        ("raise KeyboardInterrupt", "raised KeyboardInterrupt"),
        ("ctypes.string_at(0)", "crashed: Segmentation fault ("),
        ("os.kill(os.getpid(), 9)", "had its process killed by SIGKILL"),
        ("threading.Thread(target=time.sleep, args=(1e6,)).start() or print('x' * 10_000_000)", "returned None"),
    ],
)
@pytest.mark.parametrize("threads", [1, 4])
def test_a_verifier_that_misbehaves_is_refused_with_its_line_and_the_data_s(
    body: str, says: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wild_verifiers.py").write_text(
        f"import ctypes, os, sys, threading, time\ndef wild(completion, answer):\n    return {body}\n"
        if not body.startswith("raise")
        else f"def wild(completion, answer):\n    {body}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    data = jsonl(tmp_path / "data.jsonl", LINES, "wild_verifiers:wild")
    task = data.task.model_copy(update={"verdict_timeout_s": 2.0 if "= 2 s" in says else 60.0})
    told: list[str] = []
    trying = data.model_copy(update={"task": task, "validation_size": 0})
    problems = data_problems(trying, PoolSize(1, threads), told.append)
    [problem] = problems
    assert says in problem
    assert problem.startswith(f"{tmp_path / 'data.jsonl'}:1: verifier 'wild_verifiers:wild' ")
    assert "'0 + 1 ='" in problem
    if says.endswith("("):
        assert "wild_verifiers.py:3 in wild" in problem or "wild_verifiers.py:3)" in problem
    assert len(problem) < 1500
    assert told[0].startswith("training on 12 of the 12 lines")
    if "sleep(1e6)" in body and "Thread" not in body:
        assert told[1].startswith("trying verifier 'wild_verifiers:wild' on ")
    if "print" in body:
        assert "prints: 'xxx" in told[1]
    assert "wild_verifiers" not in sys.modules


def test_a_task_with_no_prompt_on_one_side_is_told() -> None:
    task = ReverseTaskConfig(min_length=1, max_length=1, letters=2)
    assert any("held_out_fraction" in problem for problem in data_problems(DataConfig(task=task, held_out_fraction=0)))


# The output directory


def test_a_new_or_empty_directory_is_fine(tmp_path: Path) -> None:
    assert list(output_problems(tmp_path / "a" / "b", resume=False)) == []
    assert list(output_problems(tmp_path, resume=False)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_holds_a_run_is_not_mixed_with_another(tmp_path: Path) -> None:
    for name in ("metrics.jsonl", "a", "b", "c"):
        (tmp_path / name).touch()
    [problem] = output_problems(tmp_path, resume=False)
    assert "is not empty (a, b, c and 1 more)" in problem
    assert f"continue its run: evenstep train CONFIG --output {tmp_path} --resume" in problem
    (tmp_path / "checkpoints" / "checkpoint-000001-step-00000004").mkdir(parents=True)
    assert list(output_problems(tmp_path, resume=True)) == []


def test_nothing_to_resume_is_told(tmp_path: Path) -> None:
    assert "nothing to resume" in next(output_problems(tmp_path / "a", resume=True))


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is a file" in next(output_problems(tmp_path / "file", resume=False))
    assert "cannot be made" in next(output_problems(tmp_path / "file" / "run", resume=False))


@pytest.mark.skipif(not Path("/proc/sys").is_dir(), reason="needs a directory that even root cannot write")
def test_a_directory_that_cannot_be_written_is_told() -> None:
    assert "cannot be written" in next(output_problems(Path("/proc/sys"), resume=True))


# A start that came to nothing


def start_and_end_with(output: Path, error: BaseException) -> None:
    with starting_in(output):
        (output / "model").mkdir()
        (output / "model" / "model.safetensors").touch()
        (output / "config.yaml").touch()
        raise error


def unbegun(output: Path) -> Path:
    """A directory as a run leaves it that is killed while it starts."""
    with pytest.raises(KeyboardInterrupt):
        start_and_end_with(output, KeyboardInterrupt())
    return output


def test_what_a_run_that_never_began_has_left_is_replaced_by_the_next(tmp_path: Path) -> None:
    output = unbegun(tmp_path / "run")
    assert list(output_problems(output, resume=False)) == []
    with starting_in(output) as removed:
        assert removed == ["config.yaml", "model"]
        assert [path.name for path in output.iterdir()] == ["not-begun"]


def test_what_no_start_made_is_kept_and_named(tmp_path: Path) -> None:
    output = unbegun(tmp_path / "run")
    (output / "notes.txt").write_text("mine", encoding="utf-8")
    [problem] = output_problems(output, resume=False)
    assert "never began, and also holds notes.txt" in problem
    with pytest.raises(ConfigError, match=r"also holds notes\.txt"), starting_in(output):
        pass
    assert (output / "notes.txt").read_text(encoding="utf-8") == "mine"
    assert (output / "model" / "model.safetensors").exists()


def test_a_directory_of_the_same_files_without_the_mark_of_a_start_is_left_alone(tmp_path: Path) -> None:
    output = unbegun(tmp_path / "run")
    begun_in(output)
    [problem] = output_problems(output, resume=False)
    assert "is not empty (config.yaml, model)" in problem
    with starting_in(output) as removed:  # as a run that is resumed does
        assert removed == []
    assert sorted(path.name for path in output.iterdir()) == ["config.yaml", "model"]


def test_a_link_among_what_was_left_is_removed_and_what_it_leads_to_is_kept(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    output = unbegun(tmp_path / "run")
    (output / "wandb").symlink_to(mine, target_is_directory=True)
    with starting_in(output) as removed:
        assert "wandb" in removed
    assert mine.is_dir()


def test_a_run_that_starts_at_this_moment_is_not_disturbed(tmp_path: Path) -> None:
    with starting_in(tmp_path):
        (tmp_path / "config.yaml").touch()
        [problem] = output_problems(tmp_path, resume=False)
        assert "a run that starts at this moment" in problem
        with pytest.raises(ConfigError, match="starts at this moment"), starting_in(tmp_path):
            pass
        assert (tmp_path / "config.yaml").exists()


@pytest.mark.parametrize("there", ["", "run", "run/deep"])
def test_a_start_that_is_refused_leaves_what_was_there_and_no_more(there: str, tmp_path: Path) -> None:
    (tmp_path / there).mkdir(parents=True, exist_ok=True)
    before = set(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="too long"):
        start_and_end_with(tmp_path / "run" / "deep", ConfigError("too long"))
    assert set(tmp_path.rglob("*")) == before


# The machine


def test_a_small_run_fits_a_small_machine() -> None:
    assert list(machine_problems(settings_of(), TINY, MACHINE)) == []
    assert list(machine_problems(settings_of(), TINY, Machine(cpus=2, memory_bytes=None))) == []


def test_too_little_memory_is_told_by_what_takes_it() -> None:
    size = ModelSize(parameters=1_000_000_000, vocabulary=100_000, layers=20, key_value_width=512)
    [problem] = machine_problems(settings_of(), size, MACHINE)
    assert "needs about" in problem
    assert "8.00 GiB are free" in problem
    assert "trainer" in problem
    assert "max_batch_sequences" in problem
    parts = memory_parts(settings_of(), size)
    assert parts["trainer"] == 200_000_000 + 16 * 10**9 + 8 * 4096 * 100_000
    assert parts["generation workers"] == 2 * (200_000_000 + 4 * (10**9 + 2 * 20 * 512 * 64 * 80))
    frozen = memory_parts(settings_of("policy.train_last_layers=1", "loss_fn.reference_policy_kl_penalty=0.1"), size)
    assert frozen["trainer"] == 200_000_000 + 8 * 10**9 + 8 * 4096 * 100_000
    assert memory_parts(settings_of("cluster.trainer_device=cuda"), size)["trainer"] == 200_000_000


def test_transfer_queue_and_the_collective_sync_are_counted_where_they_are_used() -> None:
    size = ModelSize(parameters=10**9, vocabulary=100, layers=2, key_value_width=8)
    assert not {"TransferQueue", "collective weight sync"} & memory_parts(settings_of(), size).keys()
    overrides = ["data_plane.name=transfer_queue", "data_plane.num_storage_units=2", "weight_sync.name=collective"]
    parts = memory_parts(
        settings_of(*overrides, "weight_sync.dtype=bfloat16", "cluster.num_generation_workers=3"), size
    )
    assert parts["TransferQueue"] == 4 * 200_000_000
    assert parts["collective weight sync"] == (1 + 3) * 2 * 10**9


def test_more_threads_in_a_process_than_cpus_are_told() -> None:
    problems = list(machine_problems(settings_of("policy.threads=8", "generation.engine.threads=3"), TINY, MACHINE))
    assert [problem.split(" is ")[0] for problem in problems] == ["policy.threads", "generation.engine.threads"]
    assert all("set it to 2 or less" in problem for problem in problems)


def test_checkpoints_that_do_not_fit_the_disk_are_told(tmp_path: Path) -> None:
    huge = replace(TINY, parameters=10**15)
    assert list(disk_problems(settings_of(), huge, tmp_path)) == []
    [problem] = disk_problems(settings_of("checkpointing.enabled=true", "checkpointing.keep=2"), huge, tmp_path / "new")
    assert "3 checkpoints need about" in problem


def test_a_container_has_what_its_control_group_leaves_it(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
    assert this_machine(tmp_path, meminfo) == (len(os.sched_getaffinity(0)), 5000 * 1024)
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("2500000\n")
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 400000\n")
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert this_machine(tmp_path, meminfo) == (1, 900_000)
    (tmp_path / "memory.max").write_text("max\n")
    assert this_machine(tmp_path, meminfo).memory_bytes == 5000 * 1024
    assert this_machine(tmp_path, tmp_path / "none").memory_bytes is None


# All together


def test_all_problems_are_found_in_one_go(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    settings = settings_of("policy.threads=8", f"policy.model_name={tmp_path / 'none'}")
    settings = settings.model_copy(update={"data": jsonl(tmp_path / "data.jsonl", ["{}"])})
    problems = preflight(settings, tmp_path, resume=False, machine=MACHINE)
    assert len(problems) == 4
    assert all(": " in problem for problem in problems)


def test_chat_with_a_model_that_has_no_chat_template_is_told_with_the_model(model: Path) -> None:
    chat = "data.chat=true"
    [problem] = template_problems(load_settings(None, [chat]))
    assert "the model 'tiny' (policy.model_name) has no chat template" in problem
    named = load_settings(None, [chat, f"policy.model_name={model}"])
    [problem] = template_problems(named)
    assert f"the model '{model}' (policy.model_name)" in problem
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert list(template_problems(named)) == []


def test_the_default_run_passes_on_a_machine_with_two_cores_and_four_gigabytes(tmp_path: Path) -> None:
    machine = Machine(cpus=2, memory_bytes=4 * 2**30)
    assert preflight(load_settings(None), tmp_path / "run", resume=False, machine=machine) == []


def test_smollm2_is_counted_at_its_own_size(tmp_path: Path) -> None:
    settings = load_settings(None, ["policy.model_name=smollm2"])
    machine = Machine(cpus=2, memory_bytes=3 * 2**30)
    [problem] = preflight(settings, tmp_path / "run", resume=False, machine=machine)
    assert problem.startswith("the run needs about")


def test_the_machines_of_a_cluster_are_not_looked_at(tmp_path: Path) -> None:
    machine = Machine(cpus=0, memory_bytes=1)
    assert len(preflight(load_settings(None), tmp_path / "run", resume=False, machine=machine)) == 3
    settings = load_settings(None, ["cluster.address=auto"])
    assert preflight(settings, tmp_path / "run", resume=False, machine=machine) == []


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({"sampler": "ready_first"}, True),
        ({"sampler": "windowed"}, False),
        ({"sampler": "ready_first", "epochs": 2, "replace": True}, False),
        ({"sampler": "ready_first", "epochs": 2}, True),
    ],
)
def test_data_that_fills_no_step_is_refused_before_anything_starts(tmp_path, change, refused):
    settings = Settings.model_validate(
        {
            "grpo": {"num_prompts_per_step": 8, "max_num_epochs": change.get("epochs", 1)},
            "async_rl": {
                "sampler": {"name": change["sampler"]},
                "rollout_failure": {"on_dropped_prompt": "replace" if change.get("replace") else "shrink"},
            },
            "data": {"num_prompts": 5, "validation_size": 0},
        }
    )
    if refused:
        with pytest.raises(ConfigError, match="5 prompts, fewer than"):
            check_run(settings, tmp_path / "run", resume=False)
    else:
        assert check_run(settings, tmp_path / "run", resume=False) == (5, {})


def told_of_few(folder: Path, *overrides: str) -> list[str]:
    told: list[str] = []
    check_run(load_settings(None, overrides), folder / "run", resume=False, tell=told.append)
    return [line for line in told if "held-out prompt" in line]


def test_a_set_of_few_prompts_is_told_once_with_the_key_that_raises_it(tmp_path):
    [few] = told_of_few(tmp_path, "data.validation_size=5")
    assert few == (
        "accuracy on fewer than 16 prompts is coarse; validation measures 5 held-out prompts: raise "
        "data.validation_size"
    )
    assert told_of_few(tmp_path, "data.validation_size=16") == []
    assert told_of_few(tmp_path, "data.validation_size=0") == []
    sets = "validation.sets={one: {}, other: {data: {task: {name: reverse, max_length: 3}, validation_size: 1}}}"
    [both] = told_of_few(tmp_path, "data.validation_size=2", sets)
    assert "; one measures 2 held-out prompts: raise data.validation_size; other measures 1 held-out prompt: " in both
    assert both.endswith("raise validation.sets.other.data.validation_size")


def test_of_a_file_that_holds_out_few_lines_the_fraction_is_named(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n}?", "answer": "y"}) + "\n" for n in range(60)))
    data = f"data.task={{name: jsonl, path: {path}}}"
    [few] = told_of_few(tmp_path, data, "data.held_out_fraction=0.1")
    assert few.endswith(": raise data.held_out_fraction, or give more data")
    apart = f"data.task={{name: jsonl, path: {path}, validation_path: {tmp_path / 'few.jsonl'}}}"
    (tmp_path / "few.jsonl").write_text('{"prompt": "held out", "answer": "y"}\n')
    [one] = told_of_few(tmp_path, apart)
    assert one.endswith("measures 1 held-out prompt: give more held-out data")
