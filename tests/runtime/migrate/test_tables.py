"""The tables name conversions and keys that exist, and the hints for unknown keys say the same."""

from collections import Counter
from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from fsm.config.wording import models_in
from fsm.errors import ConfigError
from runtime.migrate import rows, translate
from runtime.migrate.frameworks import Framework, table_of
from runtime.settings import Settings, load_settings


def keys_of(block: type[BaseModel], path: str = "") -> Iterator[str]:
    for name, field in block.model_fields.items():
        yield f"{path}{name}"
        for inner in models_in(field.annotation):
            yield from keys_of(inner, f"{path}{name}.")


@pytest.mark.parametrize("framework", Framework)
def test_every_row_leads_to_a_key_that_is_there_by_a_conversion_that_is_there(framework: Framework) -> None:
    known = set(keys_of(Settings))
    table = table_of(framework)
    assert [row.ours for row in table.rows if row.ours is not None and row.ours not in known] == []
    assert [each.ours for each in table.always if each.ours not in known] == []
    calls = {row.theirs: rows.read_conversion(row.conversion) for row in table.rows}
    assert [key for key, call in calls.items() if call.name not in translate._CONVERSIONS] == []
    assert [pair for pair, times in Counter((row.theirs, row.ours) for row in table.rows).items() if times > 1] == []
    there = {row.theirs for row in table.rows}
    assert [path for path in table.defaults if path not in there] == []
    conditions = [path for call in calls.values() for path, _ in call.in_use]
    assert [
        path for path in conditions if not any(f"{at}.".startswith(path) or path.startswith(at) for at in there)
    ] == []


SAY_IT_THEMSELVES = {"same", "if_set", "if_positive", "zero_if_off", "top_k_if_set", "listed", "float_of"}
"""Conversions to a key whose name and value tell all."""


@pytest.mark.parametrize("framework", Framework)
def test_every_row_says_what_becomes_of_the_key(framework: Framework) -> None:
    silent = [
        row.theirs
        for row in table_of(framework).rows
        if not row.note
        and (row.ours is None or rows.read_conversion(row.conversion).name not in SAY_IT_THEMSELVES)
    ]  # fmt: skip
    assert silent == []


@pytest.mark.parametrize("conversion", ["same(", "same)", "two words", "unless([)"])
def test_a_row_that_is_none_is_refused(conversion: str) -> None:
    with pytest.raises(ValueError, match=r"conversion|unless"):
        rows.read_conversion(conversion)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("grpo.val_num_generations_per_prompt=2", "is validation.rollouts_per_prompt here"),
        ("async_rl.rollout_failure.max_attempts_per_prompt=2", "rollout_failure.max_infra_attempts_per_prompt here"),
        ("loss_fn.sequence_level_importance_ratios=true", "is loss_fn.aggregation here"),
        ("grpo.val_period=5", "is validation.every_steps here"),
        ("validation.val_period=5", "is validation.every_steps here"),
        ("policy.generation_batch_size=4", "generation_batch_size has no counterpart here"),
        ("async_rl.rollout_failure.nemo_gym={}", "async_rl.rollout_failure.rollout_timeout_s here"),
        ("async_rl.rollout_failure.native={}", "async_rl.rollout_failure.rollout_timeout_s here"),
        ("policy.generation={}", "its keys are elsewhere here"),
        ("policy.tokenizer={}", "NeMo-RL has the block policy.tokenizer"),
        ("grpo.val_at_end=true", "NeMo-RL's val_at_end needs no key here"),
        ("optimizer.learning_rate=1e-6", "TRL's learning_rate is optimizer.lr here"),
        ("policy.learning_rate=1e-6", "TRL's learning_rate is optimizer.lr here"),
        ("data.prompt_key=prompt", "verl's prompt_key is data.task.columns.prompt here"),
        ("num_generations=8", "TRL's num_generations is grpo.num_generations_per_prompt here"),
        ("optimizer.adam_epsilon=1e-6", "TRL's adam_epsilon is optimizer.eps here"),
        ("per_device_train_batch_size=8", "TRL's per_device_train_batch_size is grpo.num_prompts_per_step here"),
        ("grpo.max_completion_length=64", "TRL's max_completion_length is generation.max_new_tokens here"),
        ("loss_fn.epsilon=0.2", "is loss_fn.ratio_clip_min here, and decides loss_fn.ratio_clip_max"),
        ("beta=0.04", "TRL's beta is loss_fn.reference_policy_kl_penalty here"),
        ("grpo.kl_coef=0.1", "verl's kl_coef has no counterpart here: the weight of the KL divergence in the reward"),
        ("algorithm.kl_ctrl.kl_coef=0.1", "verl's kl_coef has no counterpart here"),
        ("actor_rollout_ref.rollout.n=8", "verl's n is grpo.num_generations_per_prompt here"),
        ("grpo.n=8", "verl's rollout.n is grpo.num_generations_per_prompt here; verl's val_kwargs.n is validation"),
        ("policy.optimizer.kwargs.lr=1e-6", "NeMo-RL's lr is optimizer.lr here"),
        ("actor_rollout_ref={}", "`evenstep migrate` translates such a file"),
        ("defaults=base.yaml", "`evenstep migrate` reads a chain of files"),
        ("grpo.num_prompts_per_step='${a.b}'", "interpolation is resolved by `evenstep migrate`"),
    ],
)  # fmt: skip
def test_another_framework_s_key_is_told_by_what_it_is_here(override: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_settings(None, [override])
    assert says in str(refused.value)
    assert "did you mean" not in str(refused.value)


def test_a_whole_file_of_another_framework_is_told_how_it_is_translated() -> None:
    overrides = ["num_generations=8", "beta=0.0", "learning_rate=1e-6"]
    with pytest.raises(ConfigError, match=r"`evenstep migrate FILE -o run.yaml` translates the whole file$"):
        load_settings(None, overrides)
    block = ["actor_rollout_ref={rollout: {n: 8, temperature: 1.0, top_p: 1.0, gpu_memory_utilization: 0.5, top_k: 5}}"]
    with pytest.raises(ConfigError, match=r"translates the whole file$") as told:
        load_settings(None, [*block, "trainer.total_epochs=2"])
    assert "and 1 more key" in str(told.value)
    with pytest.raises(ConfigError) as refused:
        load_settings(None, overrides[:2])
    assert "translates the whole file" not in str(refused.value)


def test_a_misspelt_key_of_evenstep_still_has_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"did you mean max_num_steps\?"):
        load_settings(None, ["grpo.max_num_step=5"])
    with pytest.raises(ConfigError, match="max_num_steps is not a known key; it is a key of grpo"):
        load_settings(None, ["max_num_steps=5"])


def test_a_key_of_evenstep_in_the_wrong_block_is_not_taken_for_one_of_theirs() -> None:
    with pytest.raises(ConfigError, match=r"grpo.shuffle is not a known key of grpo; it is a key of data; "):
        load_settings(None, ["grpo.shuffle=true"])


def test_off_is_written_as_there() -> None:
    overrides = ["validation.every_steps=0", "checkpointing.every_steps=0", "grpo.max_num_epochs=null"]
    settings = load_settings(None, overrides)
    assert (settings.validation.every_steps, settings.checkpointing.every_steps) == (0, 0)
    assert settings.grpo.max_num_epochs is None
