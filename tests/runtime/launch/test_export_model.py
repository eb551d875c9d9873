"""`evenstep export model`: a checkpoint as a directory that transformers and evenstep load, with a card."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import Result
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from runtime.checkpoints.checkpoint import CHECKPOINTS
from runtime.cli.app import app
from runtime.models.directory import inspect_model
from runtime.output.directory import FINAL_MODEL
from runtime.training.trainer import StepTrainer
from tests.runtime.checkpoints.helpers import save_world, world_at
from tests.runtime.models import architectures
from tests.runtime.training.helpers import save_trainer

MEASURED = [
    {"kind": "validation", "step": 0, "accuracy": 0.25, "rollouts": 40},
    {"kind": "validation", "set": "hard", "step": 0, "accuracy": 0.0, "rollouts": 8},
    {"kind": "step", "step": 0, "reward": 0.5},
    {"kind": "validation", "step": 1, "accuracy": 0.5, "rollouts": 40},
    {"kind": "validation", "set": "easy", "step": 1, "accuracy": 0.75, "rollouts": 1},
]


def a_run(output: Path, trainer: StepTrainer) -> Path:
    """The directory of a run with a checkpoint after each of two steps."""
    source = str(trainer.policy_config.model_name)
    output.mkdir()
    config = {"policy": {"model_name": source}, "seed": 7, "data": {"task": {"name": "reverse"}}}
    (output / "config.yaml").write_text(yaml.safe_dump(config))
    (output / "run.json").write_text(json.dumps({"run": "0123456789abcdef", "command": "evenstep train `a|b`.yaml"}))
    (output / "metrics.jsonl").write_text("\n".join(json.dumps(line) for line in MEASURED) + '\n{"kind": "valid')
    for step in (1, 2):
        architectures.train_a_step(trainer)
        save_world(output / CHECKPOINTS, world_at(step), trainer=partial(save_trainer, trainer))
    return output


def export(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["export", "model", *map(str, arguments)])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run of a mixture of experts, whose files hold separately what transformers fuses, and its logits per step."""
    folder = tmp_path_factory.mktemp("run")
    source = architectures.save("qwen3_moe", folder / "source", torch.bfloat16)
    (source / "chat_template.jinja").write_text("{{ messages[0].content }}")
    trainer = architectures.trainer_of(source)
    output = a_run(folder / "output", trainer)
    return {"output": output, "source": source, "logits": architectures.logits_of(trainer.model)}


def test_any_checkpoint_becomes_a_model_with_the_source_s_tokenizer_and_types(
    run: dict[str, Any], tmp_path: Path
) -> None:
    result = export(run["output"], "-o", tmp_path / "newest")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == f"model  {tmp_path / 'newest'}"
    assert export(run["output"], "--step", 1, "-o", tmp_path / "first").exit_code == 0
    loaded, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "newest", dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    newest = architectures.logits_of(loaded.eval())
    torch.testing.assert_close(newest, run["logits"], rtol=0, atol=0.05)  # the files are in bfloat16
    first = AutoModelForCausalLM.from_pretrained(tmp_path / "first", dtype=torch.float32).eval()
    assert (architectures.logits_of(first) - newest).abs().max() > 0.1
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "newest")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"
    assert inspect_model(tmp_path / "newest") == inspect_model(run["source"])
    torch.testing.assert_close(architectures.logits_of(architectures.trainer_of(tmp_path / "newest").model), newest)


def test_the_model_has_the_chat_template_that_the_run_was_trained_with(run: dict[str, Any], tmp_path: Path) -> None:
    output, template = tmp_path / "run", tmp_path / "own.jinja"
    shutil.copytree(run["output"], output)
    config = yaml.safe_load((output / "config.yaml").read_text())
    config["data"] |= {"chat": True, "chat_template": str(template)}
    (output / "config.yaml").write_text(yaml.safe_dump(config))
    gone = export(output, "-o", tmp_path / "model")
    assert gone.exit_code == 1, gone.output
    assert "Put the file back" in " ".join(gone.output.split())
    template.write_text("{{ messages[0].content }}?")
    assert export(output, "-o", tmp_path / "model").exit_code == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi?"


def test_the_card_says_how_often_the_run_was_continued(run: dict[str, Any], tmp_path: Path) -> None:
    output = tmp_path / "run"
    shutil.copytree(run["output"], output)
    lines = [
        {"kind": "step", "step": step, "incarnation": process} for step, process in ((0, 0), (0, 1), (1, 3), (2, 3))
    ]
    (output / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert export(output, "--step", 1, "-o", tmp_path / "model").exit_code == 0
    card = ModelCard.load(tmp_path / "model" / "README.md")
    assert card.data.to_dict()["evenstep"]["continued"] == 2
    assert "| resumed or restarted | `2 times` |" in card.text


def test_the_card_says_how_the_model_was_made(run: dict[str, Any], tmp_path: Path) -> None:
    assert export(run["output"], "--step", 1, "-o", tmp_path / "model").exit_code == 0
    card = ModelCard.load(tmp_path / "model" / "README.md")
    made = card.data.to_dict()
    assert made["library_name"] == "transformers"
    known = {key: made["evenstep"][key] for key in ("seed", "steps", "accuracy_before", "accuracy_after", "command")}
    assert known == {
        "seed": 7,
        "steps": 1,
        "accuracy_before": 0.25,
        "accuracy_after": 0.5,
        "command": "evenstep train `a|b`.yaml",
    }
    results = made["model-index"][0]["results"]
    assert [(each["dataset"]["name"], [metric["value"] for metric in each["metrics"]]) for each in results] == [
        ("reverse, held out", [0.5]),
        ("easy", [0.75]),
    ]
    assert made["model-index"][0]["name"].endswith(" after 1 step")
    assert "0.250 before, 0.500 after (40 completions)" in card.text
    assert "| held-out accuracy of hard | `0.000 before, not measured after` |" in card.text
    assert "| command | `` evenstep train `a\\|b`.yaml `` |" in card.text
    assert "| resumed or restarted |" not in card.text
    configuration = card.text.split("```yaml\n")[1].split("```")[0]
    assert yaml.safe_load(configuration)["policy"]["model_name"] == str(run["source"])


def test_a_step_without_a_validation_has_no_accuracy(run: dict[str, Any], tmp_path: Path) -> None:
    assert export(run["output"], "--step", 2, "-o", tmp_path / "model").exit_code == 0
    made = ModelCard.load(tmp_path / "model" / "README.md").data.to_dict()
    assert "accuracy_after" not in made["evenstep"]
    assert "model-index" not in made


def test_a_large_model_comes_in_shards(run: dict[str, Any], tmp_path: Path) -> None:
    assert export(run["output"], "-o", tmp_path / "model", "--max-shard-size", "20KB").exit_code == 0
    assert len(list((tmp_path / "model").glob("model-*.safetensors"))) > 2
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32).eval()
    torch.testing.assert_close(architectures.logits_of(loaded), run["logits"], rtol=0, atol=0.05)


def test_wrong_uses_say_what_there_is_and_write_nothing(run: dict[str, Any], tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "precious").write_text("mine")
    result = export(run["output"], "-o", there)
    assert result.exit_code == 2
    assert "would be overwritten" in result.output
    assert [path.name for path in there.iterdir()] == ["precious"]
    result = export(run["output"], "--step", 5, "-o", tmp_path / "model")
    assert result.exit_code == 2
    assert "there are: 1, 2" in result.output
    for size in ("big", "1B", "-5GB", "0KB", "1e-9KB", "nanGB", "infGB"):
        result = export(run["output"], "-o", tmp_path / "model", "--max-shard-size", size)
        assert result.exit_code == 2, size
        assert f"--max-shard-size {size}: allowed is a size such as 500MB or 5GB" in result.output
    result = export(tmp_path, "-o", tmp_path / "model")
    assert result.exit_code == 1
    assert "is not the directory of a run" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_changed_weights_and_a_lost_base_are_told(run: dict[str, Any], tmp_path: Path) -> None:
    output = Path(shutil.copytree(run["output"], tmp_path / "output"))
    newest = max((output / CHECKPOINTS).iterdir())
    with (newest / "trainer" / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    result = export(output, "-o", tmp_path / "model")
    assert result.exit_code == 1
    assert "does not match its checksum" in result.output
    config = yaml.safe_load((output / "config.yaml").read_text())
    config["policy"]["model_name"] = str(tmp_path / "gone")
    (output / "config.yaml").write_text(yaml.safe_dump(config))
    result = export(output, "--step", 1, "-o", tmp_path / "model")
    assert result.exit_code == 1
    assert f"{tmp_path / 'gone'} is not a directory" in result.output
    assert not (tmp_path / "model").exists()
    shutil.copytree(run["source"], output / FINAL_MODEL)  # a run that ended has all that is needed by itself
    assert export(output, "--step", 1, "-o", tmp_path / "model").exit_code == 0
    shutil.rmtree(output / FINAL_MODEL)
    architectures.save("llama", tmp_path / "gone")
    result = export(output, "--step", 1, "-o", tmp_path / "other")
    assert result.exit_code == 1
    assert "is not the model that" in result.output
