"""`load_settings`: the default run, files, and overrides."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError
from typer.testing import CliRunner

from fsm.config.setup import set_up
from fsm.config.wording import models_in
from fsm.errors import ConfigError
from runtime.cli.app import app
from runtime.output.directory import write_config
from runtime.settings import Settings, load_settings


def test_without_a_file_it_is_the_default_run() -> None:
    settings = load_settings(None)
    assert settings.async_rl.sampler.name == "ready_first"
    assert settings.grpo.use_dynamic_sampling
    assert set_up(settings, settings.data.drawn_prompts).notices == ()


def test_a_file_starts_from_the_defaults_of_the_keys(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("grpo: {num_prompts_per_step: 4}\n", encoding="utf-8")
    settings = load_settings(path)
    assert settings.grpo.num_prompts_per_step == 4
    assert not settings.grpo.use_dynamic_sampling
    assert settings.async_rl.sampler.name == "in_order"


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("", encoding="utf-8")
    assert load_settings(path) == Settings()


def test_overrides_are_read_as_yaml_and_the_last_one_counts() -> None:
    overrides = ["grpo.max_num_steps=5", "grpo.max_num_steps=7", "async_rl.sampler={name: in_order}"]
    settings = load_settings(None, overrides)
    assert settings.grpo.max_num_steps == 7
    assert settings.async_rl.sampler.name == "in_order"


def test_a_key_of_a_block_with_a_name_needs_no_name() -> None:
    settings = load_settings(None, ["generation.engine.batching=whole", "data.task.max_length=4"])
    assert settings.generation.engine.name == "torch"
    assert settings.data.task.name == "reverse"


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("grpo.max_num_step=5", "did you mean max_num_steps"),
        ("grpo.max_num_steps=many", "grpo.max_num_steps"),
        ("grpo.max_num_steps", "allowed is key=value"),
        ("seed.of.something=1", "did you mean seed|seed is"),
        ("generation.max_new_tokens=500", "policy.max_total_sequence_length"),
        ("generation.temperature=0", "siblings would be equal"),
        ("generation.engine.max_batch_sequences=8", "num_generations_per_prompt is 16"),
        ("validation.rollouts_per_prompt=4000", "validation.rollouts_per_prompt is 4000"),
        ("policy.max_total_sequence_length=256", "policy.tiny.max_positions"),
    ],
)
def test_a_wrong_override_names_the_key_and_the_remedy(override: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_settings(None, [override])


def test_a_file_that_is_not_there_or_not_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml cannot be read"):
        load_settings(tmp_path / "absent.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("grpo: [", encoding="utf-8")
    with pytest.raises(ConfigError, match="line"):
        load_settings(broken)


FREE = (
    ("data.chat_template_kwargs", "data: {{chat: true, chat_template_kwargs: {given}}}"),
    ("data.task", "data: {{task: {{name: custom, target: 'a:B', options: {given}}}}}"),
    ("data.task", "data: {{task: {{name: reasoning_gym, dataset: chain_sum, options: {given}}}}}"),
    ("async_rl.sampler", "async_rl: {{sampler: {{name: custom, target: 'a:B', options: {given}}}}}"),
    ("async_rl.sampler", "async_rl: {{sampler: {{name: custom, target: 'a:B', x: 0, <<: {given}}}}}"),
)
"""Keys that hold what a template or class of the user's takes."""


@pytest.mark.parametrize(("key", "document"), FREE)
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("{a: 2026-01-01}", 'a is 2026-01-01, which YAML reads as a date: quote it, "2026-01-01"'),
        ("{a: {b: [1, .inf]}}", "a.b[1] is inf, which JSON has no form for"),
        ("{a: .nan}", "a is nan"),
        ("{a: !!set {b}}", "a is {'b'}, a set"),
        ("{a: !!binary /w==}", r"a is b'\xff', a bytes"),
        ("{a: !!pairs [b: 1]}", "a[0] is ('b', 1), a tuple"),
        ("{a: {1: b}}", 'a has the key 1, and keys are texts: quote it, "1"'),
    ],
)
def test_what_a_resume_would_read_as_another_value_is_refused(
    key: str, document: str, given: str, says: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(document.format(given=given), encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        load_settings(file)
    assert key in str(refused.value)
    assert says in str(refused.value)


def times(block: type[BaseModel]) -> Iterator[tuple[type[BaseModel], str]]:
    """Every key that is a time, with its block."""
    for name, field in block.model_fields.items():
        if name.endswith("_s") and not block.__module__.startswith("fsm."):  # event loops wait for the core's
            yield block, name
        for inner in models_in(field.annotation):
            yield from times(inner)


def test_a_time_that_no_timer_takes_is_refused_by_its_key() -> None:
    found = sorted(set(times(Settings)), key=str)
    assert len(found) >= 20
    for block, name in found:
        with pytest.raises(ValidationError) as refused:
            block.model_validate({name: 1e10})
        assert ((name,), "less_than_equal") in {(error["loc"], error["type"]) for error in refused.value.errors()}
    with pytest.raises(ConfigError, match=r"chat_template_timeout_s .*at most 1000000000\b"):
        load_settings(None, ["data.chat_template_timeout_s=1.0e10"])


def test_texts_that_look_like_numbers_are_texts_to_a_resume(tmp_path: Path) -> None:
    kwargs = {each: each for each in ("1e5", ".5e-1", "0x1", "1_0", "on", "~", "2026-01-01", "1:30", "\x85")}
    settings = Settings.model_validate({"data": {"chat": True, "chat_template_kwargs": {**kwargs, "all": [kwargs]}}})
    write_config(tmp_path, settings)
    assert load_settings(tmp_path / "config.yaml") == settings


def test_every_key_has_a_description() -> None:
    blocks: list[tuple[str, type[BaseModel]]] = [("", Settings)]
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            blocks.append((f"{name}.", field.annotation))
    silent = [
        f"{path}{name}" for path, block in blocks for name, field in block.model_fields.items() if not field.description
    ]
    assert silent == []


@pytest.mark.parametrize(
    "module", ["runtime.settings", "runtime.control.controller", "runtime.cli.train", "runtime.launch.run"]
)
def test_it_is_imported_without_torch(module: str) -> None:
    """The controller's process and the command line must not pay for torch."""
    program = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("given", "there", "meant"),
    [
        ("wnidowed.yaml", "windowed.yaml", "windowed.yaml"),
        ("windowed.yaml", "examples/windowed.yaml", "examples/windowed.yaml"),
        ("runs/windowed", "runs/windowed.yml", "runs/windowed.yml"),
        ("runs/first", "runs/first/config.yaml", "runs/first/config.yaml"),
    ],
)
def test_a_file_that_is_not_there_is_refused_with_the_one_that_may_be_meant(
    given: str, there: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path(there)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    with pytest.raises(ConfigError, match=rf"{given} cannot be read: .*did you mean {meant}\?"):
        load_settings(Path(given))


@pytest.mark.parametrize("command", ["train", "check"])
def test_a_command_without_its_file_says_how_one_is_made(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [command, "missing.yaml"])
    assert result.exit_code != 0
    assert "missing.yaml cannot be read: No such file or directory" in result.stderr
    assert "`evenstep config` prints every key that a file may have" in result.stderr
    assert "without a file the default run starts" in result.stderr
    assert "did you mean" not in result.stderr


def test_a_value_that_is_no_yaml_is_told_with_how_to_quote_it() -> None:
    with pytest.raises(
        ConfigError, match=r"(?s)not YAML: .*quote it, as in --set 'data.prompt_template=\"…\"'"
    ) as told:
        load_settings(None, ["data.prompt_template={prompt} >"])
    load_settings(None, ['data.prompt_template="{prompt} >"'])
    assert "{prompt} >" in str(told.value)
