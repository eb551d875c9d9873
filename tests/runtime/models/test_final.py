"""A trained policy is saved as a directory that transformers and `policy.model_name` load, with the same logits."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from runtime.models import final
from runtime.models.directory import ModelNotSaved, inspect_model
from tests.runtime.models.architectures import ARCHITECTURES, BUFFERED, logits_of, save, train_a_step, trainer_of


def whole_file(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_saved_policy_gives_the_logits_of_the_trained_one(name: str, tmp_path: Path) -> None:
    source = save(name, tmp_path / "source")
    trainer = trainer_of(source)
    before = logits_of(trainer.model)
    train_a_step(trainer)
    target = trainer.save_model(tmp_path / "run" / "model" / "final")
    trained = logits_of(trainer.model)
    assert (trained - before).abs().max() > 1e-3, "the step must have moved the weights"

    assert inspect_model(target) == inspect_model(source)
    loaded, info = AutoModelForCausalLM.from_pretrained(target, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    torch.testing.assert_close(logits_of(loaded.eval()), trained, rtol=0, atol=1e-5)
    assert {key: tensor.dtype for key, tensor in whole_file(target).items()} == {
        key: tensor.dtype for key, tensor in whole_file(source).items()
    }
    again = trainer_of(target)
    torch.testing.assert_close(logits_of(again.model), trained, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", BUFFERED)
def test_types_are_those_of_the_source(name: str, tmp_path: Path) -> None:
    source = save(name, tmp_path / "source", torch.bfloat16)
    trainer = trainer_of(source)
    train_a_step(trainer)
    target = trainer.save_model(tmp_path / "final")
    kinds = {key: tensor.dtype for key, tensor in whole_file(target).items()}
    assert kinds == {key: tensor.dtype for key, tensor in whole_file(source).items()}
    assert set(kinds.values()) == {torch.bfloat16, torch.float32}
    saved = AutoModelForCausalLM.from_pretrained(target).state_dict()
    trained = trainer.model.state_dict()
    assert saved.keys() == trained.keys()
    for key, tensor in saved.items():
        torch.testing.assert_close(tensor, trained[key].to(tensor.dtype), rtol=0, atol=0, msg=key)


def test_with_only_the_top_layers_trained_the_whole_model_is_saved(tmp_path: Path) -> None:
    trainer = trainer_of(save("llama", tmp_path / "source"), train_last_layers=1)
    train_a_step(trainer)
    target = trainer.save_model(tmp_path / "final")
    torch.testing.assert_close(
        logits_of(AutoModelForCausalLM.from_pretrained(target).eval()), logits_of(trainer.model), rtol=0, atol=1e-5
    )


def test_what_is_beside_the_weights_is_the_source_s_own(tmp_path: Path) -> None:
    source = save("gpt2 tied", tmp_path / "source", attn_pdrop=0.3)
    (source / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tools.jinja").write_text("{{ tools }}")
    (source / "generation_config.json").write_text('{"eos_token_id": [1, 5], "temperature": 0.6, "do_sample": true}')
    (source / "LICENSE").write_text("free")
    (source / "README.md").write_text("a card of other weights")
    (source / "pytorch_model.bin").write_bytes(b"old")
    trainer = trainer_of(source)
    target = trainer.save_model(source / "final")  # inside the source, as in a run of the tiny model
    assert trainer.save_model(source / "final") == target
    kept = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert kept == {
        *("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
        *("chat_template.jinja", "additional_chat_templates/tools.jinja", "LICENSE"),
    }
    for name in kept - {"model.safetensors"}:
        assert (target / name).read_bytes() == (source / name).read_bytes()
    assert json.loads((target / "config.json").read_text())["attn_pdrop"] == 0.3, "the trainer turns it off for itself"
    tokenizer = AutoTokenizer.from_pretrained(target)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"
    assert AutoModelForCausalLM.from_pretrained(target).generation_config.eos_token_id == [1, 5]


def test_the_template_that_the_policy_was_trained_with_is_its_tokenizer_s(tmp_path: Path) -> None:
    source = save("gpt2 tied", tmp_path / "source")
    (source / "chat_template.jinja").write_text("{{ messages[0].role }}")
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    config = json.loads((source / "tokenizer_config.json").read_text())
    (source / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": "old"}))
    target = trainer_of(source).save_model(tmp_path / "final", "{{ messages[0].content }}!")
    tokenizer = AutoTokenizer.from_pretrained(target)
    hi = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(hi, tokenize=False) == "hi!"
    assert tokenizer.apply_chat_template(hi, tools=[{"type": "function"}], tokenize=False) == "hi!"
    assert "chat_template" not in json.loads((target / "tokenizer_config.json").read_text())
    assert (source / "chat_template.jinja").read_text() == "{{ messages[0].role }}"


def test_many_shards_are_written_with_their_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(final, "_SHARD", "20KB")
    trainer = trainer_of(save("qwen3_moe", tmp_path / "source"))
    train_a_step(trainer)
    target = trainer.save_model(tmp_path / "final")
    assert len(list(target.glob("model-*.safetensors"))) > 2
    inspect_model(target)
    loaded = AutoModelForCausalLM.from_pretrained(target).eval()
    torch.testing.assert_close(logits_of(loaded), logits_of(trainer.model), rtol=0, atol=1e-5)
    # A source with many shards is read as one.
    assert inspect_model(trainer_of(target).save_model(tmp_path / "again")) == inspect_model(target)


def test_an_existing_model_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    trainer = trainer_of(save("llama", tmp_path / "source"))
    target = trainer.save_model(tmp_path / "run" / "final")
    (target / "stale.json").write_text("{}")
    (target.parent / ".final.tmp").mkdir()
    (target.parent / ".final.old").mkdir()
    train_a_step(trainer)
    trainer.save_model(target)
    assert [path.name for path in target.parent.iterdir()] == ["final"]
    assert not (target / "stale.json").exists()
    torch.testing.assert_close(
        logits_of(AutoModelForCausalLM.from_pretrained(target).eval()), logits_of(trainer.model), rtol=0, atol=1e-5
    )


def test_a_model_that_cannot_be_written_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(save("llama", tmp_path / "source"))
    target = trainer.save_model(tmp_path / "run" / "final")
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    train_a_step(trainer)

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    for step in ("_write_weights", "sync_tree", "_copy_other_files"):
        with monkeypatch.context() as patch:
            patch.setattr(final, step, full)
            with pytest.raises(ModelNotSaved, match=r"final: .*No space left on device"):
                trainer.save_model(target)
        assert [path.name for path in target.parent.iterdir()] == ["final"]
        assert {path.name: path.read_bytes() for path in target.iterdir()} == before


def test_a_killed_writer_s_model_before_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(save("llama", tmp_path / "source"))
    target = trainer.save_model(tmp_path / "run" / "final")
    target.rename(target.with_name(".final.old"))  # killed between its two renames

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(final, "_write_weights", full)
    with pytest.raises(ModelNotSaved):
        trainer.save_model(target)
    inspect_model(target)


def test_a_source_that_has_gone_is_named(tmp_path: Path) -> None:
    trainer = trainer_of(save("llama", tmp_path / "source"))
    (tmp_path / "source" / "model.safetensors").unlink()
    with pytest.raises(ModelNotSaved, match=r"source still has the model that the run started from"):
        trainer.save_model(tmp_path / "final")
    assert not (tmp_path / "final").exists()


def test_saved_weights_are_read_by_whoever_reads_the_files_beside_them(tmp_path: Path) -> None:
    target = trainer_of(save("llama", tmp_path / "source")).save_model(tmp_path / "final")
    modes = {path.name: path.stat().st_mode & 0o777 for path in target.iterdir() if path.is_file()}
    assert modes["model.safetensors"] == modes["config.json"], modes
    assert not list(target.glob(".*mode*"))
