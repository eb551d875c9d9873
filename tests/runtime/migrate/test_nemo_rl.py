"""NeMo-RL's files for its single controller, written again with the same keys, and others of its keys."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from runtime.cli.app import app
from runtime.cli.migrate import problems_of
from runtime.migrate.frameworks import Framework, recognised, table_of
from runtime.migrate.reading import read_given
from runtime.migrate.rows import Fate, leaves, put
from runtime.migrate.translate import Translated, translate
from runtime.settings import load_settings

pytest.importorskip("omegaconf")
DATA = Path(__file__).parent / "data/nemo_rl"
EXAMPLES = (
    "single_controller", "llm/streaming", "llm/streaming_4_gpus", "llm/ready_first", "llm/synchronous",
    "llm/synchronous_4_gpus", "llm/windowed_mixture",
)  # fmt: skip
FAILURE = "async_rl.rollout_failure"
COSINE = {"name": "cosine", "warmup_steps": 13, "total_steps": 1000, "min_lr_ratio": 0.1}
STALE = "use_importance_sampling_correction is false, but the in_order sampler admits stale groups"


def migrated(example: str, **changes: Any) -> tuple[dict[str, Any], dict[str, Translated]]:
    """What is written, and the last finding of each key. Dots in names of changes are two underscores."""
    given = read_given(DATA / f"{example}.yaml", ()).document
    for path, value in changes.items():
        put(given, path.replace("__", "."), value)
    migration = translate(given, table_of(Framework.NEMO_RL))
    return migration.document, {finding.theirs: finding for finding in migration.findings}


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_example_becomes_a_file_that_check_accepts_or_refuses_by_a_rule(example: str, tmp_path: Path) -> None:
    written = tmp_path / "run.yaml"
    result = CliRunner().invoke(app, ["migrate", str(DATA / f"{example}.yaml"), "-o", str(written)])
    checked = CliRunner().invoke(app, ["check", str(written), "--scope", "quick", "--jobs", "1"])
    if example == "single_controller":
        assert (result.exit_code, checked.exit_code) == (3, 1)
        assert STALE in " ".join(checked.stderr.split())
        assert f"# - loss_fn.{STALE}" in written.read_text(encoding="utf-8"), "and the file says so"
        mended = ["loss_fn.use_importance_sampling_correction=true"]
        assert load_settings(written, mended).async_rl.sampler.name == "in_order"
    else:
        assert (result.exit_code, checked.exit_code) == (0, 0), checked.output
        load_settings(written)


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_key_of_an_example_is_known_and_counted_once(example: str) -> None:
    given = read_given(DATA / f"{example}.yaml", ()).document
    assert recognised(given) is Framework.NEMO_RL
    findings = translate(given, table_of(Framework.NEMO_RL)).findings
    assert [finding.theirs for finding in findings if "not a key that is known" in finding.note] == []
    known = {finding.theirs: finding.keys for finding in findings if finding.theirs and finding.given is not None}
    nulls = sum(value in (None, {}) for _, value in leaves(given))
    assert sum(known.values()) >= len(list(leaves(given))) - nulls


def test_what_an_example_says_of_the_sampler_the_batch_and_the_gpus_is_what_is_written() -> None:
    document, _ = migrated("llm/streaming")
    assert document["async_rl"] == {
        "sampler": {"name": "windowed", "max_staleness_versions": 1},
        "min_groups_for_streaming_train": 16,
        "max_inflight_prompts": 64,
        "max_buffered_rollouts": 128,
    }
    assert document["optimizer"]["schedule"] == {"name": "constant", "warmup_steps": 2}
    assert (document["cluster"]["num_trainer_ranks"], document["cluster"]["num_generation_workers"]) == (8, 8)
    assert document["generation"]["stop_token_ids"] == [128009]
    document, _ = migrated("llm/windowed_mixture")
    assert (document["cluster"]["num_trainer_ranks"], document["cluster"]["num_generation_workers"]) == (64, 4)
    assert document["cluster"]["address"] == "auto"
    generation = document["generation"]
    assert (generation["max_prompt_tokens"], generation["max_new_tokens"]) == (2048, 2048)


def test_keys_of_a_sampler_that_a_chain_has_replaced_are_left_out() -> None:
    document, _ = migrated("single_controller", async_rl__sampler={"name": "windowed", "max_lookahead_versions": 1})
    assert document["async_rl"]["sampler"] == {"name": "windowed"}
    _, found = migrated("single_controller", async_rl__sampler={"name": "custom", "target": "a:B"})
    assert found["async_rl.sampler"].kind is Fate.DECIDE


def test_the_older_asynchronous_mode_becomes_a_sampler_with_its_lookahead() -> None:
    document, _ = migrated("llm/qwen_30b_async", grpo__async_grpo__max_trajectory_age_steps=3)
    assert document["async_rl"]["sampler"] == {"name": "in_order", "max_lookahead_versions": 3}
    document, found = migrated("llm/qwen_math")
    assert document["async_rl"]["sampler"] == {"name": "in_order", "max_lookahead_versions": 0}
    assert found["policy.generation.colocated.enabled"].kind is Fate.DECIDE, "they share GPUs there"
    assert problems_of(document) == []


@pytest.mark.parametrize(
    ("key", "value", "here", "becomes"),
    [
        ("grpo.val_period", 0, "validation.every_steps", 0),
        ("grpo.val_period", 25, "validation.every_steps", 25),
        ("checkpointing.save_period", 0, "checkpointing.every_steps", 0),
        ("grpo.max_num_epochs", None, "grpo.max_num_epochs", None),
        ("grpo.val_num_generations_per_prompt", 4, "validation.rollouts_per_prompt", 4),
        (f"{FAILURE}.max_attempts_per_prompt", 7, f"{FAILURE}.max_infra_attempts_per_prompt", 7),
        (f"{FAILURE}.nemo_gym", {"rollout_timeout_s": 900}, f"{FAILURE}.rollout_timeout_s", 900.0),
        (f"{FAILURE}.native", {"generation_timeout_s": 60, "env_timeout_s": 5}, f"{FAILURE}.rollout_timeout_s", 65.0),
        ("loss_fn.token_level_loss", False, "loss_fn.aggregation", "sequence"),
        ("policy.megatron_cfg.scheduler.lr_decay_style", "cosine", "optimizer.schedule", COSINE),
        ("logger.wandb_enabled", True, "logger.wandb_project", "math"),
        ("policy.generation.val_top_p", 0.9, "validation.top_p", 0.9),
        ("policy.generation.val_top_k", -1, "validation.top_k", 0),
        ("policy.tokenizer.chat_template_kwargs", {"think": True}, "data.chat_template_kwargs", {"think": True}),
    ],
)
def test_a_value_is_written_in_the_words_and_units_of_evenstep(key: str, value: Any, here: str, becomes: Any) -> None:
    document, _ = migrated("single_controller", **{key.replace(".", "__"): value})
    for part in here.split("."):
        document = document[part]
    assert document == becomes


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("loss_fn.sequence_level_importance_ratios", True, Fate.DECIDE),
        ("loss_fn.use_cispo", True, Fate.DECIDE),
        ("grpo.adv_estimator.name", "reinforce_plus_plus", Fate.DECIDE),
        ("policy.generation.backend", "sglang", Fate.DECIDE),
        ("policy.generation.stop_strings", ["</answer>"], Fate.DECIDE),
        ("grpo.batch_multiplier", 3, Fate.LOST),
        ("policy.generation_batch_size", 64, Fate.LOST),
        ("grpo.something_new", 1, Fate.DECIDE),
    ],
)
def test_what_evenstep_does_not_do_is_no_silent_default(key: str, value: Any, kind: Fate) -> None:
    _, found = migrated("single_controller", **{key.replace(".", "__"): value})
    assert found[key].kind is kind
    assert found[key].note


def test_dynamic_sampling_without_replacement_is_refused_by_the_rules_and_the_reason_is_shown(tmp_path: Path) -> None:
    example, written = str(DATA / "llm/ready_first.yaml"), str(tmp_path / "run.yaml")
    result = CliRunner().invoke(app, ["migrate", example, "grpo.use_dynamic_sampling=true", "-o", written])
    assert result.exit_code == 3
    shown = " ".join(result.stdout.replace("│", " ").split())
    assert "`evenstep check` refuses it: async_rl.rollout_failure.on_dropped_prompt is shrink" in shown


def test_data_of_nemo_rl_are_read_where_they_are_and_rated_by_its_verifier() -> None:
    sums = {"dataset_name": "ResponseDataset", "data_path": "/data/sums.jsonl", "input_key": "question"}
    document, _ = migrated("math_1b", data__train=sums, data__validation={"data_path": "/data/held_out.jsonl"})
    assert document["data"]["task"] == {
        "name": "dataset", "path": "/data/sums.jsonl", "columns": {"prompt": "question", "answer": "output"},
        "validation_path": "/data/held_out.jsonl", "verifier": "runtime.tasks.verifiers:math",
    }  # fmt: skip
    assert problems_of(document) == []
    document, found = migrated("math_1b")
    assert document["data"]["task"]["path"] == "nvidia/OpenMathInstruct-2"
    assert document["data"]["task"]["columns"] == {"prompt": "problem", "answer": "expected_answer"}
    assert found["data.train"].kind is Fate.DECIDE


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("grpo.num_prompts_per_steps", "grpo.num_prompts_per_step"),
        ("policy.generation.temprature", "policy.generation.temperature"),
        ("checkpointing.save_periods", "checkpointing.save_period"),
        ("polcy", "policy"),
    ],
)
def test_a_misspelt_key_is_to_be_decided_even_in_a_block_whose_rest_is_built_in(key: str, meant: str) -> None:
    _, found = migrated("single_controller", **{key.replace(".", "__"): 7})
    assert found[key].kind is Fate.DECIDE
    assert found[key].note.endswith(f"did you mean {meant}?")


def test_the_prompt_s_template_is_read_where_the_file_is_found(tmp_path: Path) -> None:
    given = read_given(DATA / "math_1b.yaml", ()).document
    (tmp_path / "examples/prompts").mkdir(parents=True)
    (tmp_path / "examples/prompts/cot.txt").write_text("Think.\n{}\nAnswer:", encoding="utf-8")
    document = translate(given, table_of(Framework.NEMO_RL), [tmp_path]).document
    assert document["data"]["prompt_template"] == "Think.\n{prompt}\nAnswer:"
    assert yaml.safe_dump(document)


FLAT = {"dataset_name": "OpenMathInstruct-2", "prompt_file": "cot.txt", "max_input_seq_length": 512}


@pytest.mark.parametrize(
    ("data", "task"),
    [
        (
            FLAT,
            {"path": "nvidia/OpenMathInstruct-2", "split": "train_1M",
             "columns": {"prompt": "problem", "answer": "expected_answer"}},
        ),
        ({"dataset_name": "gsm8k"}, {"path": "gsm8k", "columns": {"prompt": "input", "answer": "output"}}),
        (
            {"dataset_name": "ResponseDataset", "train_data_path": "sums.jsonl", "input_key": "question"},
            {"path": "sums.jsonl", "columns": {"prompt": "question", "answer": "output"}},
        ),
    ],
)  # fmt: skip
def test_data_that_the_block_itself_names_are_what_is_trained_on(data: dict[str, Any], task: dict[str, Any]) -> None:
    given = {"grpo": {}, "policy": {}, "data": data, "env": {"math": {"num_workers": 8}}}
    migration = translate(given, table_of(Framework.NEMO_RL))
    found = {finding.theirs: finding for finding in migration.findings}
    assert migration.document["data"]["task"] == {"name": "dataset", **task, "verifier": "runtime.tasks.verifiers:math"}
    assert found["data.dataset_name"].kind is Fate.DECIDE
    if "prompt_file" in data:
        assert found["data.prompt_file"].ours == "data.prompt_template"


def test_a_file_that_names_no_data_is_refused_until_it_does(tmp_path: Path) -> None:
    given, written = tmp_path / "theirs.yaml", tmp_path / "run.yaml"
    given.write_text("grpo: {num_prompts_per_step: 4}\npolicy: {}\ndata: {shuffle: true}\n")
    result = CliRunner().invoke(app, ["migrate", str(given), "-o", str(written)])
    assert result.exit_code == 3
    assert "# - data.task: the file does not say what is trained on" in written.read_text()
    assert any("data.task" in problem for problem in problems_of(yaml.safe_load(written.read_text())))


@pytest.mark.parametrize(
    ("key", "value", "kind", "says"),
    [
        ("grpo.async_grpo.in_flight_weight_updates", False, Fate.LOST, "rollouts always go on under the new weights"),
        ("grpo.async_grpo.in_flight_weight_updates", True, Fate.DEFAULT, "the same there, as it is here"),
        ("checkpointing.metric_name", "val:accuracy", Fate.LOST, "the newest are kept, not the best"),
        ("checkpointing.metric_name", None, Fate.DEFAULT, "off there"),
        ("grpo.val_at_start", False, Fate.LOST, "always measured here"),
        ("policy.generation.vllm_cfg.async_engine", False, Fate.LOST, "always asynchronous"),
        ("policy.dtensor_cfg.tensor_parallel_size", 2, Fate.LOST, "FSDP2 alone"),
        ("policy.optimizer.name", "torch.optim.AdamW", Fate.DEFAULT, "the same there, as it is here"),
    ],
)
def test_a_value_that_asks_for_something_else_has_no_default_here(key: str, value: Any, kind: Fate, says: str) -> None:
    document: dict[str, Any] = {"grpo": {"async_grpo": {"enabled": True}}, "policy": {"dtensor_cfg": {"enabled": True}}}
    put(document, key, value)
    [found] = [each for each in translate(document, table_of(Framework.NEMO_RL)).findings if each.theirs == key]
    assert (found.kind, says in found.note) == (kind, True), found.note


def test_a_key_that_a_block_s_row_stands_for_is_named(tmp_path: Path) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_text("grpo: {}\npolicy: {}\nlogger: {wandb: {name: mine}}\n")
    written = CliRunner().invoke(app, ["migrate", str(file), "-o", str(tmp_path / "run.yaml")]).output
    assert "logger.wandb.name" in written
