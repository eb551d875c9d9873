"""How a run starts, and how it doesn't: what is told, and what is left behind."""

import json
import re
from pathlib import Path

import pytest

from fsm.errors import ConfigError
from runtime.control.messages import Message, Notice
from runtime.launch.preflight import output_problems
from runtime.launch.run import InterruptedAtStart, run_on_ray
from runtime.settings import Settings
from runtime.trace.moment import state_at
from runtime.trace.reader import open_trace
from tests.runtime.ray.helpers import ON_POLICY, run, settings_of, start_of


def jsonl(folder: Path, verifier: str) -> Settings:
    for name, prompt in (("training", "ab>"), ("held_out", "cab>")):
        line = json.dumps({"prompt": prompt, "answer": "ba"})
        (folder / f"{name}.jsonl").write_text(f"{line}\n", encoding="utf-8")
    task = {
        "name": "jsonl",
        "path": str(folder / "training.jsonl"),
        "validation_path": str(folder / "held_out.jsonl"),
        "verifier": verifier,
    }
    return settings_of({"data.task": json.dumps(task), "data.validation_size": "1"}, steps=1)


def outcome_in(output: Path) -> tuple[str, str | None]:
    """As the trace has it."""
    ended = state_at(open_trace(output)).vitals.ended
    assert ended is not None
    return ended.status, ended.error


@pytest.mark.parametrize(
    ("verifier", "says"),
    [
        ("operator:sub", r"raised TypeError: unsupported operand .* for the completion .*; make it return 0.0"),
        ("operator:concat", r"returned '.*ba' for the completion .*; return a finite number"),
    ],
)
def test_a_verifier_that_fails_in_validation_is_told_and_counts_as_wrong(
    verifier: str, says: str, model: Path, tmp_path: Path
) -> None:
    told: list[Message] = []
    outcome = run(jsonl(tmp_path, verifier), model, tmp_path, told.append)
    assert outcome.accuracy_before == 0.0
    notice = next(n.text for n in told if isinstance(n, Notice) and "have no verdict after 0 steps" in n.text)
    assert re.search(rf"1 of 1 held-out .*held_out\.jsonl:1: verifier '{verifier}' {says}", notice)
    assert "of the prompt 'cab>' with the answer 'ba'" in notice


def test_a_drawn_prompt_that_is_too_long_stops_the_run_with_what_to_change(model: Path, tmp_path: Path) -> None:
    settings = settings_of({**ON_POLICY, "generation.max_prompt_tokens": "4"}, steps=2)  # four letters and >
    outcome = run(settings, model, tmp_path)
    assert outcome.status == "stopped"
    assert outcome.error is not None
    assert outcome_in(tmp_path) == ("stopped", outcome.error)
    for part in ("item ", "has 5 tokens and generation.max_prompt_tokens is 4", "shorten", "max_skipped_prompts"):
        assert part in outcome.error


def test_an_interrupt_while_the_model_is_loaded_ends_the_run_at_once(model: Path, tmp_path: Path) -> None:
    told: list[str] = []

    def interrupt(message: Message) -> None:
        if isinstance(message, Notice):
            told.append(message.text)
            if message.text.startswith("loading the model"):
                raise KeyboardInterrupt

    with pytest.raises(InterruptedAtStart, match="nothing was trained"):
        run(settings_of({"checkpointing.enabled": "true"}, steps=400), model, tmp_path, interrupt)
    assert "loading the model (trainer ranks: 1, generation workers: 1, engine: torch)" in told
    assert not any("measuring accuracy" in text for text in told)
    assert not list(tmp_path.glob("checkpoints/*"))


def test_the_same_run_starts_anew_where_it_was_interrupted_before_it_began(tmp_path: Path) -> None:
    settings = settings_of({**ON_POLICY, "warmup.steps": "1"}, steps=1)
    output = tmp_path / "run"
    told: list[str] = []

    def interrupt(message: Message) -> None:
        if isinstance(message, Notice) and message.text.startswith("loading the model"):
            raise KeyboardInterrupt

    def tell(message: Message) -> None:
        told.append(message.text if isinstance(message, Notice) else "")

    with pytest.raises(InterruptedAtStart, match="it may be started again"):
        run_on_ray(settings, output, start_of(settings), interrupt)
    assert (output / "config.yaml").exists()
    assert list(output_problems(output, resume=False)) == []
    assert run_on_ray(settings, output, start_of(settings), tell).status == "completed"
    assert any("never began: removed its config.yaml, model" in text for text in told)
    assert "is not empty" in next(output_problems(output, resume=False))


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"cluster.trainer_device": "cuda"}, "1 GPUs are needed, and Ray has 0"),
        ({"generation.max_prompt_tokens": "3", "policy.tiny.width": "32"}, "prompts of validation are longer than"),
    ],
)
def test_a_run_that_is_refused_leaves_no_directory(overrides: dict[str, str], says: str, tmp_path: Path) -> None:
    settings = settings_of(overrides, steps=1)
    with pytest.raises(ConfigError, match=says):
        run_on_ray(settings, tmp_path / "run", start_of(settings), lambda message: None)
    assert not (tmp_path / "run").exists()
