"""Files of TRL and of verl."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainingArguments

from runtime.cli.migrate import problems_of
from runtime.migrate.frameworks import Framework, recognised, table_of
from runtime.migrate.reading import read_given
from runtime.migrate.rows import Fate, put
from runtime.migrate.translate import Translated, translate

DATA = Path(__file__).parent / "data"


def translated(framework: Framework, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Translated]]:
    assert recognised(given) is framework
    migration = translate(given, table_of(framework))
    return migration.document, {finding.theirs: finding for finding in migration.findings}


def test_a_file_for_trl_s_parser_becomes_one_that_is_accepted() -> None:
    document, found = translated(Framework.TRL, read_given(DATA / "trl/sums.yaml", ()).document)
    assert problems_of(document) == []
    assert document["grpo"] == {
        "num_prompts_per_step": 8, "num_generations_per_prompt": 8, "max_num_steps": 200, "max_num_epochs": None,
    }  # fmt: skip
    assert found["per_device_train_batch_size"].ours == "policy.train_microbatch_tokens"
    assert document["optimizer"]["schedule"] == {"name": "cosine", "warmup_steps": 20, "total_steps": 200}
    assert document["loss_fn"]["aggregation"] == "dr_grpo"
    assert document["loss_fn"]["dr_grpo_length"] == 256
    assert document["loss_fn"]["ratio_clip_max"] == 0.28
    assert document["policy"]["max_total_sequence_length"] == 768
    assert not [finding for finding in found.values() if "not a key that is known" in finding.note]


def test_the_json_that_a_trainer_writes_is_read_with_all_its_keys(tmp_path: Path) -> None:
    there = {field.name: field.default for field in dataclasses.fields(TrainingArguments) if field.init}
    there |= {name: None for name, value in there.items() if value is dataclasses.MISSING}
    changed = {"max_steps": 30, "save_steps": 10, "use_cpu": True, "num_generations": 4, "max_completion_length": 64}
    given = {**there, **changed}
    file = tmp_path / "args.json"
    file.write_text(json.dumps(given, indent=2), encoding="utf-8")
    document, found = translated(Framework.TRL, read_given(file, ()).document)
    assert [name for name, finding in found.items() if "not a key that is known" in finding.note] == []
    assert "data.task.path is missing" in problems_of(document)[0], "a script names the data"
    document["data"]["task"]["path"] = "sums.jsonl"
    assert "the tiny model has policy.tiny.max_positions" in problems_of(document)[0], "it names no model"
    assert problems_of({**document, "policy": {**document["policy"], "model_name": "some/model"}}) == []
    assert document["checkpointing"]["every_steps"] == 10
    assert document["cluster"]["trainer_device"] == "cpu"


def test_every_argument_of_transformers_trainer_has_a_row() -> None:
    known = {row.theirs for row in table_of(Framework.TRL).rows}
    assert {field.name for field in dataclasses.fields(TrainingArguments)} <= known


def test_what_trl_samples_for_several_optimizer_steps_is_to_be_decided() -> None:
    given = {"num_generations": 8, "per_device_train_batch_size": 8, "num_iterations": 2, "generation_batch_size": 64}
    _, found = translated(Framework.TRL, given)
    assert found["num_iterations"].kind is Fate.DECIDE
    assert found["generation_batch_size"].kind is Fate.DECIDE
    assert found["lr_scheduler_type"].kind is Fate.DECIDE, "linear by default there, over steps that the file lacks"


def test_a_data_set_of_the_hub_and_weighted_rewards_become_a_task() -> None:
    given = {
        "dataset_name": "trl-lib/DeepMath-103K", "dataset_config": "main", "dataset_train_split": "extra",
        "eval_strategy": "steps", "reward_funcs": ["accuracy_reward", "mine.rules.brief", "some/reward-model"],
        "reward_weights": [1, 0.5, 2.0],
    }  # fmt: skip
    document, found = translated(Framework.TRL, given)
    assert document["data"]["task"] == {
        "name": "dataset", "path": "trl-lib/DeepMath-103K", "subset": "main", "split": "extra",
        "validation_split": "test", "columns": {"prompt": "prompt", "answer": "solution"},
        "rewards": [
            {"target": "runtime.tasks.verifiers:math", "weight": 1.0, "name": "accuracy_reward"},
            {"target": "mine.rules:brief", "weight": 0.5, "name": "brief"},
            {"target": "my_rewards:reward_model", "weight": 2.0, "name": "reward_model"},
        ],
        "correct_from": "accuracy_reward",
    }  # fmt: skip
    assert problems_of({**document, "policy": {**document["policy"], "model_name": "some/model"}}) == []
    decided = [finding for finding in translate(given, table_of(Framework.TRL)).findings if finding.kind is Fate.DECIDE]
    assert [each.note for each in decided if "write some/reward-model as a function" in each.note]
    assert found["dataset_name"].kind is Fate.DECIDE
    _, found = translated(Framework.TRL, {**given, "reward_weights": [1.0]})
    assert found["reward_weights"].kind is Fate.DECIDE
    assert "names 3 reward_funcs" in found["reward_weights"].note


@pytest.mark.parametrize(
    ("changes", "key", "says"),
    [
        ({"warmup_ratio": 0.1}, "warmup_ratio", "the warm-up is lost: it is 0.1 of all steps, and max_steps"),
        ({"warmup_ratio": 0.1}, "warmup_ratio", "set optimizer.schedule.warmup_steps"),
        ({"warmup_steps": 0.05}, "warmup_steps", "the warm-up is lost: it is 0.05 of all steps"),
        ({"use_vllm": True, "vllm_mode": "colocate"}, "vllm_mode", "GPUs of their own here, so a run needs at least 2"),
        ({"learning_rte": 1e-6}, "learning_rte", "not a key that is known of TRL; did you mean learning_rate?"),
    ],
)
def test_what_a_file_of_trl_leaves_open_is_to_be_decided(changes: dict[str, Any], key: str, says: str) -> None:
    _, found = translated(Framework.TRL, {"num_generations": 8, "beta": 0.0, **changes})
    assert found[key].kind is Fate.DECIDE
    assert says in found[key].note


def test_a_warm_up_whose_length_is_known_is_not_lost() -> None:
    for given in ({"warmup_ratio": 0.1, "max_steps": 50}, {"warmup_ratio": 0.1, "warmup_steps": 5}):
        document, found = translated(Framework.TRL, {"num_generations": 8, "beta": 0.0, **given})
        assert found["warmup_ratio"].kind is Fate.DEFAULT
        assert document["optimizer"]["schedule"]["warmup_steps"] == 5


def test_completions_that_are_printed_there_are_samples_here() -> None:
    given = {"num_generations": 8, "log_completions": True, "num_completions_to_print": 4}
    document, found = translated(Framework.TRL, given)
    assert document["samples"] == {"per_step": 4}
    assert "evenstep samples" in found["log_completions"].note


class TestVerl:
    @pytest.fixture(autouse=True)
    def needs_omegaconf(self) -> None:
        pytest.importorskip("omegaconf")

    def test_a_file_over_verl_s_defaults_becomes_one_that_is_accepted(self) -> None:
        given = read_given(DATA / "verl/run.yaml", ["trainer.n_gpus_per_node=4", "+trainer.val_only=false"])
        assert given.not_found == ()
        document, found = translated(Framework.VERL, given.document)
        assert problems_of(document) == []
        assert document["grpo"]["num_prompts_per_step"] == 64
        assert document["grpo"]["num_generations_per_prompt"] == 8
        assert document["optimizer"]["lr"] == 2e-6
        assert document["optimizer"]["betas"] == [0.9, 0.999], "of a file in another folder"
        assert document["policy"]["precision"] == "bfloat16", "of a group from the root"
        assert document["loss_fn"]["reference_policy_kl_penalty"] == 0.001
        assert document["data"]["task"] == {
            "name": "dataset", "path": str(Path("~/data/gsm8k/train.parquet").expanduser()),
            "columns": {"prompt": "prompt", "answer": "reward_model.ground_truth"},
            "validation_path": str(Path("~/data/gsm8k/test.parquet").expanduser()),
            "rewards": [{"target": "sums:score"}],
        }  # fmt: skip
        assert (document["validation"]["top_p"], document["validation"]["top_k"]) == (1.0, 0)
        assert found["data.train_files"].kind is Fate.RENAMED
        assert document["cluster"]["num_trainer_ranks"] == document["cluster"]["num_generation_workers"] == 2
        assert not [finding for finding in found.values() if "not a key that is known" in finding.note]

    def test_defaults_that_are_not_here_are_named_and_verl_s_own_are_written(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.yaml"
        file.write_text(
            "hydra: {searchpath: ['file://verl/trainer/config', 'pkg://no_such_package.config']}\n"
            "defaults: [ppo_trainer, _self_]\nactor_rollout_ref: {rollout: {name: vllm, n: 5}}\n",
            encoding="utf-8",
        )
        given = read_given(file, ())
        assert given.not_found == ("ppo_trainer",)
        document, found = translated(Framework.VERL, given.document)
        assert document["grpo"] == {
            "num_prompts_per_step": 1024, "num_generations_per_prompt": 5, "max_num_epochs": 30,
        }  # fmt: skip
        assert found["data.train_batch_size"].note == "its default there"

    def test_a_value_that_must_be_given_is_to_be_decided(self) -> None:
        _, found = translated(Framework.VERL, read_given(DATA / "verl/trainer.yaml", ()).document)
        assert found["actor_rollout_ref.rollout.name"].kind is Fate.DECIDE
        assert "??? in its place" in found["actor_rollout_ref.rollout.name"].note
        assert found["algorithm.adv_estimator"].kind is Fate.DECIDE, "there is no critic here"
        assert found["actor_rollout_ref.actor.ppo_mini_batch_size"].kind is Fate.DECIDE

    @pytest.mark.parametrize(
        ("key", "value", "here", "becomes"),
        [
            ("actor_rollout_ref.actor.loss_agg_mode", "seq-mean-token-mean", "aggregation", "sequence"),
            ("algorithm.adv_estimator", "rloo", "use_leave_one_out_baseline", True),
            ("algorithm.rollout_correction.rollout_is", "token", "truncated_importance_sampling_ratio", 2.0),
        ],
    )
    def test_the_loss_is_written_in_evenstep_s_words(self, key: str, value: str, here: str, becomes: Any) -> None:
        given = read_given(DATA / "verl/run.yaml", ()).document
        put(given, key, value)
        assert translated(Framework.VERL, given)[0]["loss_fn"][here] == becomes
