"""Conversions of data sets and of reward functions, as blocks of `data.task`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runtime.migrate.rows import Converted, Fate, Theirs

MATH = "runtime.tasks.verifiers:math"
_ACCURACY = ("accuracy_reward", "reasoning_accuracy_reward")
"""TRL's rewards that compare with the column `solution` by math_verify."""
_UNKNOWN_MODULE = "my_rewards"
"""Module of the placeholder for a reward that has no function here."""


class _Known(NamedTuple):
    """A data set that NeMo-RL knows by name."""

    path: str
    split: str
    prompt: str
    answer: str


_NEMO_RL_SETS = {
    "OpenMathInstruct-2": _Known("nvidia/OpenMathInstruct-2", "train_1M", "problem", "expected_answer"),
    "DeepScaler": _Known("agentica-org/DeepScaleR-Preview-Dataset", "train", "problem", "answer"),
    "DAPOMath17K": _Known("BytedTsinghua-SIA/DAPO-Math-17k", "train", "prompt", "reward_model.ground_truth"),
}
"""Source: nemo_rl/data/datasets/response_datasets."""


def _task(path: Any, columns: Mapping[str, str], **splits: Any) -> dict[str, Any]:
    """A task of the kind `dataset`; splits that are null are left out."""
    given = {key: value for key, value in splits.items() if value is not None}
    return {"name": "dataset", "path": path, **given, "columns": dict(columns)}


def _files(value: Any) -> str | list[str] | None:
    """A path or a list of paths, with the home directory in place of `~`; None for what is no path."""
    paths = value if isinstance(value, list) else [value]
    if not paths or not all(isinstance(path, str) and "://" not in path for path in paths):
        return None
    found = [str(Path(path).expanduser()) if path.startswith("~") else path for path in paths]
    return found[0] if len(found) == 1 else found


def parquet(value: Any, theirs: Theirs) -> Converted:
    """verl's training files: the prompt is in `data.prompt_key`, the answer in `reward_model.ground_truth`."""
    path = _files(value)
    if path is None:
        return Converted(Fate.DECIDE, is_written=False, note="files of this machine, as data.task.path")
    columns = {"prompt": str(theirs.get("data.prompt_key", "prompt")), "answer": "reward_model.ground_truth"}
    return Converted(Fate.RENAMED, _task(path, columns))


def parquet_files(value: Any, _: Theirs) -> Converted:
    """verl's held-out files."""
    if value is None:
        return Converted(Fate.DEFAULT, note="a fraction of the training data is held out")
    path = _files(value)
    return Converted(Fate.RENAMED if path else Fate.DECIDE, path, is_written=path is not None)


def hub_data(value: Any, theirs: Theirs) -> Converted:
    """TRL's data set: a name of the hub or a path. Its rewards say in which column the answers are."""
    if not isinstance(value, str):
        return Converted(Fate.DECIDE, is_written=False, note="a script's data set: name it as data.task.path")
    answer = "solution" if any(name in _ACCURACY for name in _names(theirs.get("reward_funcs"))) else "answer"
    split = theirs.get("dataset_train_split", "train")
    held_out = theirs.get("dataset_test_split", "test") if theirs.get("eval_strategy", "no") != "no" else None
    task = _task(
        value,
        {"prompt": "prompt", "answer": answer},
        subset=theirs.get("dataset_config"),
        split=None if split == "train" else split,
        validation_split=None if held_out == split else held_out,
    )
    return Converted(Fate.DECIDE, task)


def nemo_data(value: Any, theirs: Theirs) -> Converted:
    """NeMo-RL's training data: a named data set, or a file with two columns, which it calls input and output."""
    block = value[0] if isinstance(value, list) and value else value
    if not isinstance(block, dict):
        return Converted(Fate.DECIDE, is_written=False, note="what evenstep trains on is data.task (docs/data_sets.md)")
    name, path = block.get("dataset_name"), _files(block.get("data_path"))
    known = _NEMO_RL_SETS.get(str(name)) if path is None else None
    if known is not None:
        task = _task(known.path, {"prompt": known.prompt, "answer": known.answer}, split=known.split)
    elif (path := path or name) is None:
        return Converted(Fate.DECIDE, is_written=False, note="data.task.path is missing (docs/data_sets.md)")
    else:
        columns = {"prompt": block.get("input_key", "input"), "answer": block.get("output_key", "output")}
        task = _task(path, columns, subset=block.get("subset"), split=block.get("split"))
    if isinstance(value, list) and len(value) > 1:
        return Converted(
            Fate.DECIDE, task, f"{len(value)} data sets there, one here: list their files in data.task.path"
        )
    return Converted(Fate.DECIDE, task)


def nemo_flat_data(value: Any, theirs: Theirs) -> Converted:
    """NeMo-RL's training data where the block `data` itself names them."""
    if value is None or theirs.get("data.train") is not None:
        return Converted(Fate.DEFAULT, note="data.train names the data")
    block = {key: theirs.get(f"data.{key}") for key in ("subset", "input_key", "output_key")}
    given = {key: each for key, each in block.items() if each is not None}
    path = theirs.get("data.train_data_path", theirs.get("data.data_path"))
    split = theirs.get("data.train_split", theirs.get("data.split"))
    return nemo_data({**given, "dataset_name": value, "data_path": path, "split": split}, theirs)


def nemo_held_out(value: Any, _: Theirs) -> Converted:
    """NeMo-RL's held-out data."""
    block = value[0] if isinstance(value, list) and value else value
    if not isinstance(block, dict):
        return Converted(Fate.DEFAULT, note="a fraction of the training data is held out")
    path = _files(block.get("data_path"))
    if path is not None:
        return Converted(Fate.DECIDE, path)
    note = f"{block.get('dataset_name')}: with other columns than the training data it is a set of validation.sets"
    return Converted(Fate.DECIDE, is_written=False, note=f"{note} (docs/evaluation.md)")


def math_verifier(_value: Any, theirs: Theirs) -> Converted:
    """The verifier for mathematics, if there are data for it."""
    if theirs.get("data.train") is None and theirs.get("data.dataset_name") is None:
        return Converted(Fate.DECIDE, is_written=False, note=f"data.task.verifier: {MATH}, once data.task names data")
    return Converted(Fate.RENAMED, MATH)


def _names(value: Any) -> list[str]:
    return [] if value is None else [str(each) for each in (value if isinstance(value, list) else [value])]


def _target(name: str) -> str:
    """`module:function` of a reward by TRL's name for it; a placeholder where there is none."""
    if name in _ACCURACY:
        return MATH
    module, _dot, function = name.rpartition(".")
    if module and "/" not in name:
        return f"{module}:{function}"
    return f"{_UNKNOWN_MODULE}:{_word(name)}"


def _word(name: str) -> str:
    """A name of the hub as one of a function."""
    return "".join(letter if letter.isalnum() else "_" for letter in name.rpartition("/")[2]) or "reward"


def _labels(names: Sequence[str]) -> list[str]:
    """A name for each reward; those of one name are numbered."""
    words = [_word(name.rpartition(".")[2] if "/" not in name else name) for name in names]
    return [word if words.count(word) == 1 else f"{word}_{number}" for number, word in enumerate(words, start=1)]


def reward_functions(value: Any, theirs: Theirs) -> Converted:
    """TRL's rewards with their weights."""
    names = _names(value)
    if not names:
        return Converted(Fate.DEFAULT, note="a script's rewards: data.task.verifier or data.task.rewards")
    weights = theirs.get("reward_weights")
    if not isinstance(weights, list) or len(weights) != len(names):
        weights = [1.0] * len(names)
    rewards = [
        {"target": _target(name), "weight": float(weight), "name": label}
        for name, weight, label in zip(names, weights, _labels(names), strict=True)
    ]
    written = [name for name in names if _target(name).startswith(f"{_UNKNOWN_MODULE}:")]
    missing = f"write {', '.join(written)} as a function and name it in target; " if written else ""
    return Converted(Fate.DECIDE, rewards, f"{missing}each is called with one completion and its answer or row, "
                     "not with lists (docs/tasks.md)")  # fmt: skip


def correct_reward(value: Any, _: Theirs) -> Converted:
    """The reward that says what is correct, if one of several is an accuracy."""
    names = _names(value)
    found = [label for name, label in zip(names, _labels(names), strict=True) if name in _ACCURACY]
    if len(names) < 2 or not found:
        return Converted(Fate.DEFAULT, note="the total reward says what is correct: data.task.correct_at")
    return Converted(Fate.RENAMED, found[0])


def reward_weights(value: Any, theirs: Theirs) -> Converted:
    """One weight for each reward."""
    names = _names(theirs.get("reward_funcs"))
    if value is None or (isinstance(value, list) and len(value) == len(names)):
        return Converted(Fate.DEFAULT)
    note = f"the file names {len(names)} reward_funcs: write each weight into data.task.rewards"
    return Converted(Fate.DECIDE, is_written=False, note=note)


def reward_function(value: Any, theirs: Theirs) -> Converted:
    """verl's function in a file; without one it rates by `data_source`."""
    if value is not None:
        name = theirs.get("custom_reward_function.name", "compute_score")
        return Converted(Fate.DECIDE, [{"target": f"{Path(value).stem}:{name}"}])
    if _files(theirs.get("data.train_files")) is None:
        return Converted(Fate.DEFAULT, note="data.task.verifier rates")
    note = "there data_source chooses the function; math_verify is written (evenstep[math])"
    return Converted(Fate.DECIDE, [{"target": MATH}], note)


CONVERSIONS = (
    parquet, parquet_files, hub_data, nemo_data, nemo_flat_data, nemo_held_out, math_verifier, reward_functions,
    correct_reward, reward_weights, reward_function,
)  # fmt: skip
