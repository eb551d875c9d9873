"""The model that a run leaves: transformers alone gets the accuracy that was printed, and the card says the same."""

import re
import subprocess
import sys
from pathlib import Path

from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM, AutoTokenizer

from runtime.checkpoints.checkpoint import CHECKPOINTS, list_checkpoints, step_of
from runtime.output.directory import CONFIG
from runtime.settings import load_settings
from runtime.tasks.base import Completion
from runtime.tasks.data import load_task
from runtime.tasks.embedded import CharacterTask
from tests.runtime.ends.helpers import Ended, Run, train


def greedy_accuracy(model: Path, output: Path) -> float:
    """On the run's held-out prompts, by transformers and the task's own verifier."""
    settings = load_settings(output / CONFIG)
    task = load_task(settings.data, "validation")
    assert isinstance(task, CharacterTask)
    policy = AutoModelForCausalLM.from_pretrained(model, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    right = 0
    for index in range(task.num_prompts):
        prompt = settings.data.prompt_template.replace("{prompt}", task.prompt(index))
        asked = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        tokens = policy.generate(**asked, max_new_tokens=settings.generation.max_new_tokens, do_sample=False)
        answer = tokens[0, asked["input_ids"].shape[1] :]
        text = tokenizer.decode(answer, skip_special_tokens=True)
        right += task.verify(index, Completion((text,), len(answer), "stop"), 0).correct
    return right / task.num_prompts


def last_model(ended: Ended) -> Path:
    found = re.fullmatch(r"model +(.+)", ended.text.splitlines()[-1])
    assert found is not None, ended.text
    return Path(found[1])


def test_the_last_line_s_directory_has_the_printed_accuracy_and_a_card(tmp_path: Path) -> None:
    output = tmp_path / "run"
    ended = train(
        output,
        warmup__steps=60,
        data__task="{name: reverse}",
        generation__max_new_tokens=12,
        validation__temperature=0,
        data__validation_size=64,
        grpo__max_num_steps=8,
        seed=5,
    )
    assert ended.code == 0, ended.text
    printed = re.search(r"held-out accuracy (\S+) before, (\S+) after", ended.text)
    assert printed is not None, ended.text
    model = last_model(ended)
    accuracy = greedy_accuracy(model, output)
    assert f"{accuracy:.3f}" == printed[2]
    assert accuracy > 0.05, "any model has the accuracy of one that knows nothing"

    card = ModelCard.load(model / "README.md")
    made = card.data.to_dict()["evenstep"]
    assert f"{made['accuracy_before']:.3f}" == printed[1]
    assert made["accuracy_after"] == accuracy
    assert (made["steps"], made["seed"], made["sampler"]) == (8, 5, "ready_first")
    assert "grpo.max_num_steps=8" in made["command"]

    assert step_of(list_checkpoints(output / CHECKPOINTS)[0]) == 8
    command = "from runtime.cli.entry import main; main()"
    subprocess.run(
        [sys.executable, "-c", command, "export", "model", str(output), "-o", str(tmp_path / "exported")], check=True
    )
    assert greedy_accuracy(tmp_path / "exported", output) == accuracy


def test_an_interrupted_run_s_model_has_a_card_without_a_last_accuracy(tmp_path: Path) -> None:
    def stop(run: Run) -> None:
        run.wait_for("step 1 ")
        run.interrupt()

    ended = train(tmp_path / "run", stop, grpo__max_num_steps=100_000)
    assert ended.code == 130, ended.text
    made = ModelCard.load(last_model(ended) / "README.md").data.to_dict()["evenstep"]
    assert made["steps"] >= 2
    assert "accuracy_before" in made
    assert "accuracy_after" not in made
