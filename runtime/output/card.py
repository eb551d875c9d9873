"""The card of a trained model: README.md with Hugging Face's front matter, from the files of the run that made it.

Everything that a user typed is shown as text: inside YAML, or inside code spans of Markdown.
"""

import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fsm.config.strict import dump_yaml
from runtime.evaluation.config import DEFAULT_SET
from runtime.files import Json, refuse_not_plain, write_text_aside, writing
from runtime.metrics.writers import METRICS_FILE
from runtime.output.directory import RUN
from runtime.settings import SMOLLM2, TINY, Settings
from runtime.trace.show import printable
from runtime.wording import counted

CARD = "README.md"
_HUB_NAMES = {SMOLLM2: "HuggingFaceTB/SmolLM2-135M-Instruct"}
_REWARD_WORDS = ("reward", "verifier", "correct", "score", "junk")
"""Keys of a task that contain one of these are about its rewards."""


class _Accuracy(NamedTuple):
    """Held-out accuracy as it was measured."""

    before: float | None
    """Before the first step."""
    after: float | None
    """With the model's weights; None if it was not measured then."""
    rollouts: int | None


def write_card(model: Path, output: Path, settings: Settings, step: int) -> None:
    """Write the card of a model directory whose weights a run in `output` had after `step` optimizer steps.

    Raises FileNotWritten.
    """
    with writing(model / CARD, "the model has no card, and loads without one"):
        write_text_aside(model / CARD, card_of(output, settings, step))


def steps_of_model(model: Path) -> int | None:
    """The optimizer steps of a saved model, from its card; None without a card that says so."""
    try:
        refuse_not_plain(model / CARD)
        front = (model / CARD).read_text(encoding="utf-8").split("---\n")[1]
        return int(yaml.safe_load(front)["evenstep"]["steps"])
    except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError):
        return None


def card_of(output: Path, settings: Settings, step: int) -> str:
    """The card's text. Figures that the run's files lack are left out."""
    from huggingface_hub import EvalResult, ModelCard, ModelCardData  # a library of the extra `train`

    run, measured = _json(output / RUN), _accuracies(output / METRICS_FILE, step)
    accuracy = next(iter(measured.values()), _Accuracy(None, None, None))
    made = {
        "evenstep": version("evenstep"),
        "run": run.get("run"),
        "command": run.get("command"),
        "continued": _times_continued(output / METRICS_FILE) or None,
        "base_model": settings.policy.model_name,
        "seed": settings.seed,
        "steps": step,
        "sampler": settings.async_rl.sampler.name,
        **_data_of(settings),
        "accuracy_before": accuracy.before,
        "accuracy_after": accuracy.after,
    }
    tasks = {each.name: each.data.task.name for each in settings.sets}
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=tasks.get(name, settings.data.task.name),
            dataset_config=None if name == DEFAULT_SET else name,  # results of an equal type and config become one
            dataset_name=f"{settings.data.task.name}, held out" if name == DEFAULT_SET else name,
            metric_type="accuracy",
            metric_value=each.after,
        )
        for name, each in measured.items()
        if each.after is not None
    ]
    data = ModelCardData(
        base_model=_HUB_NAMES.get(settings.policy.model_name),
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["evenstep", "grpo", "reinforcement-learning"],
        model_name=f"{Path(settings.policy.model_name).name} after {counted(step, 'step')}",
        eval_results=results or None,
        evenstep={name: value for name, value in made.items() if value is not None},
    )
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n{_body(settings, made, measured)}"))


def _body(settings: Settings, made: Mapping[str, Any], measured: Mapping[str, _Accuracy]) -> str:
    base = {TINY: "a tiny transformer that evenstep makes and warms up"}.get(
        settings.policy.model_name, _HUB_NAMES.get(settings.policy.model_name, settings.policy.model_name)
    )
    grpo = settings.grpo
    prompts, completions = grpo.num_prompts_per_step, grpo.num_generations_per_prompt
    per_step = f"{counted(prompts, 'prompt')} × {counted(completions, 'completion')} a step"
    rows = {
        "base model": base,
        "data": _flow(made["data"]),
        "rewards": _flow(made["rewards"]) if made["rewards"] else None,
        "sampler": _flow(settings.async_rl.sampler.model_dump(mode="json")),
        "optimizer steps": f"{made['steps']:,} ({per_step})",
        **{
            f"held-out accuracy{'' if name == DEFAULT_SET else f' of {name}'}": _says(accuracy)
            for name, accuracy in measured.items()
        },
        "seed": settings.seed,
        "command": made["command"],
        "resumed or restarted": made["continued"] and counted(made["continued"], "time"),
        "made by": f"evenstep {made['evenstep']}",
    }
    table = "\n".join(f"| {name} | {_code(str(value))} |" for name, value in rows.items() if value is not None)
    configuration = dump_yaml(settings.model_dump(mode="json"))
    fence = "`" * 3
    while fence in configuration:
        fence += "`"
    return (
        f"# {_code(Path(settings.policy.model_name).name)} trained with evenstep\n\n"
        "A policy after reinforcement learning (asynchronous GRPO). It loads with `AutoModelForCausalLM` and "
        "`AutoTokenizer`, in vLLM, and as `policy.model_name` of another run.\n\n"
        f"| | |\n| --- | --- |\n{table}\n\n## Configuration\n\n{fence}yaml\n{configuration}{fence}\n"
    )


def _says(accuracy: _Accuracy) -> str | None:
    if accuracy.before is None and accuracy.after is None:
        return None
    shown = ["not measured" if value is None else f"{value:.3f}" for value in (accuracy.before, accuracy.after)]
    over = "" if accuracy.rollouts is None else f" ({counted(accuracy.rollouts, 'completion')})"
    return f"{shown[0]} before, {shown[1]} after{over}"


def _data_of(settings: Settings) -> dict[str, Json]:
    """The task and its rewards, as configured."""
    task = settings.data.task.model_dump(mode="json", exclude_none=True)
    rewards = {key: task.pop(key) for key in list(task) if any(word in key for word in _REWARD_WORDS)}
    return {"data": task, "rewards": rewards}


def of_whole_run(measured: Mapping[str, Mapping[str, float]], output: Path) -> dict[str, dict[str, float]]:
    """The accuracies that a resumed process measured, by set. `before` is that before the run's first step.

    It is left out if metrics.jsonl does not have it.
    """
    first = _accuracies(output / METRICS_FILE, 0)
    found = {}
    for name, by in measured.items():
        before = first[name].before if name in first else None
        after = {"after": by["after"]} if "after" in by else {}
        found[name] = after if before is None else {"before": before, **after}
    return {name: by for name, by in found.items() if by}


def _accuracies(metrics: Path, step: int) -> dict[str, _Accuracy]:
    """By held-out set, from metrics.jsonl: the first validation, if it came before training, and the last of `step`."""
    by_set: dict[str, list[Json]] = {}
    try:
        with metrics.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if '"validation"' in line and (record := _parsed(line)):
                    by_set.setdefault(record.get("set", DEFAULT_SET), []).append(record)
    except OSError:
        return {}
    found = {}
    for name, records in by_set.items():
        before = records[0]["accuracy"] if records[0]["step"] == 0 else None
        measured: Json = next((record for record in reversed(records) if record["step"] == step), {})
        found[name] = _Accuracy(before, measured.get("accuracy"), measured.get("rollouts"))
    return found


_INCARNATION = re.compile(r'"incarnation": ?(\d+)')


def _times_continued(metrics: Path) -> int:
    """How often the run was resumed or restarted, from metrics.jsonl. Older lines are of one process."""
    try:
        with metrics.open(encoding="utf-8", errors="replace") as lines:
            found = (_INCARNATION.search(line) for line in lines)
            return max(0, len({match and match[1] for match in found}) - 1)
    except OSError:
        return 0


def _parsed(line: str) -> Json | None:
    """A record of a validation; None for another line, and for half a line."""
    try:
        record: Json = json.loads(line)
    except ValueError:
        return None
    return record if record.get("kind") == "validation" else None


def _json(path: Path) -> Json:
    """The object in a small file; empty if there is none."""
    try:
        found: Json = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _flow(value: Any) -> str:
    return dump_yaml(value, default_flow_style=True, width=2**31).strip()


def _code(text: str) -> str:
    """A code span, which Markdown shows unchanged, also in a cell of a table."""
    shown = printable(text, widest=len(text)).replace("|", "\\|")
    ticks = "`"
    while ticks in shown:
        ticks += "`"
    space = " " if "`" in shown else ""
    return f"{ticks}{space}{shown}{space}{ticks}"
