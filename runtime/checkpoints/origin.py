"""The run, data and model that a checkpoint belongs to, compared before a run resumes from it (C3, C4).

Data and model are identified by content, not by path: a file or model directory that was moved is the same one, one
that was changed in place is another.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path

from runtime.files import Json, sha256_of
from runtime.models.directory import identity_of_directory
from runtime.settings import SMOLLM2, TINY, Settings
from runtime.tasks.base import Chat, Task, TaskError
from runtime.tasks.config import DataConfig, DatasetTaskConfig, JsonlTaskConfig

DRAWN_SAMPLE = 64
"""Of a task that draws its prompts, so many are hashed at the start of the epoch, and as many spread over it.

So are messages, tools and columns of large data.
"""
_COMPARED = (
    *("seed", "shuffle", "held_out_fraction"),
    *("prompt_template", "chat", "system_prompt", "chat_template_kwargs"),
)
"""Keys of the data block that decide which prompts a run sees, in which order, and in which words."""
_HASH = "the hash of the"
"""The start of the names of hashes."""
_PROMPTS, _ROWS = f"{_HASH} prompts", f"{_HASH} rows"
"""Only large data has the latter (`Task.identity`). Older checkpoints of it have the former, which is not compared."""
_LINES = "the number of lines"
_WHOLE = f"{_HASH} messages, tools and columns"
"""What the prompts' hash leaves out. Older checkpoints lack it."""
_TEMPLATE = f"{_HASH} data.chat_template"
"""Checkpoints that have `data.chat_template_kwargs` lack it only if there was no template."""
_FREE = ("path", "validation_path", "verdict_timeout_s", "timeout_s", "processes", "memory_mib")
"""Keys of a task that a resume may change: paths (the prompts' hash identifies the data), and deadlines."""


@dataclass(frozen=True, slots=True)
class Origin:
    """In every checkpoint. `data` and `model` are plain JSON, by configuration key or by name."""

    run: str
    """The run's random id, which its resumes keep."""
    data: Json
    model: Json

    @property
    def prompts(self) -> str:
        """The hash of the prompts, or of all rows of large data."""
        found: str = self.data[_ROWS] if _ROWS in self.data else self.data[_PROMPTS]
        return found


def origin_of(settings: Settings, task: Task, run: str) -> Origin:
    """The origin of checkpoints that a run with these settings writes. `task` is its training split."""
    uses_template = settings.data.chat or (task.is_listed and isinstance(task.opening(0), Chat))
    return Origin(run, _data(settings.data, task), _model(settings, uses_template))


def differences(saved: Json, here: Json) -> Iterator[str]:
    """What differs, with both values; hashes only if nothing else differs, since they follow from the rest.

    Keys that only one side has are not compared, since another version wrote them.
    """
    if "data.chat_template_kwargs" in saved:
        saved = {_TEMPLATE: None, **saved}
    keys = [key for key, before in saved.items() if key in here and here[key] != before]
    named = [key for key in keys if not key.startswith(_HASH)]
    for key in named or keys:
        yield f"{key} was {saved[key]!r}, is {here[key]!r}"


def has_another_template(data: DataConfig, began_with: Origin) -> bool:
    """Whether the file of `data.chat_template` is not the one that the run began with."""
    before = began_with.data.get(_TEMPLATE)
    return before is not None and _hash_of_template(data) != before


def changed_content(saved: Json, here: Json) -> list[str]:
    """Which contents differ, as `prompts`; [] unless hashes alone differ, which nobody can set."""
    differing = [text.partition(" was ")[0] for text in differences(saved, here)]
    if not all(name.startswith(_HASH) for name in differing):
        return []
    return [name.removeprefix(f"{_HASH} ") for name in differing]


def changed_files(saved: Json, here: Json, data: DataConfig) -> list[str]:
    """The files of `data` whose content differs, each with what was expected and what was found.

    [] if something differs that is no content of a file, or nothing does.
    """
    found = list(differences(saved, here))
    if not all(text.startswith((_LINES, _HASH)) for text in found):
        return []
    template = [text.removeprefix(f"{_TEMPLATE} ") for text in found if text.startswith(_TEMPLATE)]
    rows = [text.replace(_PROMPTS, f"{_PROMPTS} and answers") for text in found if not text.startswith(_TEMPLATE)]
    return [
        *([f"{_rows_of(data)}: {'; '.join(rows)}"] if rows else []),
        *([f"{data.chat_template} (data.chat_template): its hash {template[0]}"] if template else []),
    ]


def _rows_of(data: DataConfig) -> str:
    """What the prompts are read or drawn from."""
    if not isinstance(data.task, JsonlTaskConfig | DatasetTaskConfig):
        return f"the task {data.task.name} (data.task)"
    path = data.task.path
    return f"{path if isinstance(path, str | Path) else ', '.join(path)} (data.task.path)"


def refuse_changed_data(task: Task, began_with: str | None) -> None:
    """Raise TaskError if a process that loads the data during the run finds other data than the run began with.

    began_with: `Origin.prompts` of the run; None if it is not known.
    """
    if began_with is not None and task.is_listed and identity_of(task) != began_with:
        raise TaskError(
            "the data has changed since the run began: its prompts would be rated by the answers of others. Put the "
            "old file back and continue with --resume; or add --new-data to read the new one"
        )


def refuse_changed_set(name: str, task: Task, began_with: str | None) -> None:
    """The same for an evaluation set and its held-out prompts. began_with: their `identity_of`."""
    if began_with is not None and task.is_listed and identity_of(task) != began_with:
        raise TaskError(
            f"the data of the evaluation set {name} has changed since the run began: its prompts would be rated by the "
            "answers of others. Put the old file back and continue with --resume; with the new file --resume measures "
            "that from then on"
        )


def identity_of(task: Task) -> str:
    """A hash of all prompts and answers of a list, or of a sample of drawn prompts."""
    return task.identity or _hash_of_prompts(task)


def _data(data: DataConfig, task: Task) -> Json:
    block = data.model_dump(mode="json")
    options = {f"data.task.{key}": value for key, value in block["task"].items() if key not in _FREE}
    return {
        **options,
        _TEMPLATE: _hash_of_template(data),
        **{f"data.{key}": block[key] for key in _COMPARED},
        _LINES if task.is_listed else "data.num_prompts": task.num_prompts,
        **({_PROMPTS: _hash_of_prompts(task)} if task.identity is None else {_ROWS: task.identity}),
        _WHOLE: _hash_of_whole(task),
    }


def _hash_of_template(data: DataConfig) -> str | None:
    if data.chat_template is None:
        return None
    return sha256_of(data.chat_template)[:16] if data.chat_template.is_file() else "no such file"


def _hash_of_prompts(task: Task) -> str:
    """A hash of every prompt of a list with its answer, or of a sample of drawn prompts."""
    return _hash_of([task.prompt(index), task.reference(index)] for index in _hashed(task))


def _hash_of_whole(task: Task) -> str:
    """A hash of what a prompt has besides texts and answer, and a verifier's columns; of a sample of large data."""

    def whole(index: int) -> object:
        opening = task.opening(index)
        return [asdict(opening) if isinstance(opening, Chat) else None, sorted(task.columns(index).items())]

    return _hash_of(whole(index) for index in _hashed(task))


def _hash_of(values: Iterable[object]) -> str:
    digest = hashlib.sha256()
    for value in values:
        digest.update(json.dumps(value, default=_as_text).encode("ascii") + b"\n")
    return digest.hexdigest()[:16]


def _as_text(value: object) -> str:
    """A value of a column that JSON has no form for; of an image and the like its type, since its repr may vary."""
    return str(value) if isinstance(value, bytes | date | time | timedelta | Decimal) else type(value).__name__


def _hashed(task: Task) -> Iterable[int]:
    """The prompts that are hashed one by one: all of a list that is not large."""
    count = task.num_prompts
    if (task.is_listed and task.identity is None) or count <= 2 * DRAWN_SAMPLE:
        return range(count)
    spread = (number * count // DRAWN_SAMPLE for number in range(DRAWN_SAMPLE))
    return sorted({*range(DRAWN_SAMPLE), *spread})


def _model(settings: Settings, uses_template: bool) -> Json:
    policy = settings.policy
    common = {"policy.train_last_layers": policy.train_last_layers}
    if policy.model_name == TINY:
        shape = policy.tiny.model_dump(include={"num_layers", "width", "head_size", "max_positions"})
        return {"policy.model_name": TINY, **{f"policy.tiny.{key}": value for key, value in shape.items()}, **common}
    if policy.model_name == SMOLLM2:
        return {"policy.model_name": SMOLLM2, **common}
    identity = identity_of_directory(Path(policy.model_name))
    if not uses_template:
        del identity["the chat template"]  # no prompt uses it
    return {"policy.model_name": "a directory", **identity, **common}
