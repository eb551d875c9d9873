"""Which files a configuration means: from a path, a glob, a folder or a name to a `RowSource`."""

import glob
import json
import re
from codecs import BOM_UTF8
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal

from fsm.config.wording import nearest_of
from runtime.files import reason_of, why_not_plain
from runtime.tasks.base import TaskError

Format = Literal["json lines", "json", "parquet", "arrow", "csv", "tsv", "saved", "hub"]
"""saved: a folder that `Dataset.save_to_disk` wrote. hub: a dataset that is downloaded. The others are files."""
_SUFFIXES: dict[str, Format] = {
    ".jsonl": "json lines",
    ".ndjson": "json lines",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".csv": "csv",
    ".tsv": "tsv",
}
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_SPLITS = ("train", "training", "validation", "valid", "val", "dev", "test", "eval")
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_SIMILAR = 0.7
"""difflib's likeness of two names from which on one is taken for the other misspelt."""
_NAMED = 5
"""How many files a message lists."""


@dataclass(frozen=True, slots=True)
class RowSource:
    """What one table is read from. `key` is the configuration's key that names it, for messages."""

    files: tuple[Path, ...]
    """In the order of their rows; of `saved` the folder; of `hub` none."""
    format: Format
    key: str
    name: str
    """As messages call it: the path or name that the user gave."""
    split: str | None = None
    """Of `hub`."""
    subset: str | None = None
    """Of `hub`: one of the dataset's configurations."""
    left_out: tuple[Path, ...] = ()
    """Of a folder or a glob: the files that belong to other splits."""


def find_source(path: str | Sequence[str], split: str | None, subset: str | None, key: str) -> RowSource:
    """The source that `path` means.

    Args:
        path: A file, a glob, a folder, a list of them, or a name on the Hugging Face hub.
        split: One of the splits that the files' names or the saved dataset have; None for `train`, or for all rows if
            there are no splits. Files that are named one by one are all taken, or refused.
        subset: The configuration of a dataset of the hub.
        key: The configuration's key that names the path.

    Raises TaskError: nothing is there, or files of several formats.
    """
    paths = [path] if isinstance(path, str) else list(path)
    for each in paths:
        _check_path(each, key)
    name = ", ".join(paths)
    if len(paths) == 1:
        folder = Path(paths[0])
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            return RowSource((_saved(folder, split, key),), "saved", key, name)
        if not folder.exists() and _is_hub_name(paths[0]):
            return RowSource((), "hub", key, name, split or "train", subset)
    places = {file: place for each in paths for file, place in _files(each, key)}
    named = {Path(each) for each in paths} & places.keys()
    for file in named if split else ():
        _of_split({file: places[file]}, split, str(file), key)
    found = {file: place for file, place in places.items() if file not in named}
    chosen = named.union(_of_split(found, split, name, key) if found else ())
    files = [file for file in places if file in chosen]
    formats = {format_of(file): file for file in files}
    if len(formats) > 1:
        listed = " and ".join(f"{file} ({kind})" for kind, file in formats.items())
        raise TaskError(f"{name}: has files of several formats, such as {listed}; name those of one in {key}")
    left_out = tuple(file for file in places if file not in chosen)
    return RowSource(tuple(files), next(iter(formats)), key, name, left_out=left_out)


def source_of_lines(file: Path, key: str) -> RowSource:
    """A file of JSON lines, whatever its suffix. Raises TaskError, also for data of a format that is read otherwise."""
    _check_path(str(file), key)
    _plain(file, key)
    suffix = file.suffix.lower()
    other = suffix in _COMPRESSED or _SUFFIXES.get(suffix, "json lines") != "json lines"
    if other and not _begins_with_an_object(file) and file.stat().st_size:
        raise TaskError(
            f"{file}: the task jsonl reads JSON lines only; set data.task.name to dataset, which reads {suffix}"
        )
    return RowSource((file,), "json lines", key, str(file))


def format_of(file: Path) -> Format:
    """The format of a file, by its suffix; a `.json` file may hold JSON lines. Raises TaskError."""
    suffixes = [suffix.lower() for suffix in file.suffixes]
    compressed = bool(suffixes) and suffixes[-1] in _COMPRESSED
    kind = _SUFFIXES.get((suffixes[:-1] if compressed else suffixes)[-1:][0]) if suffixes[compressed:] else None
    if kind is None:
        raise TaskError(
            f"{file}: its format is not known by its suffix {''.join(file.suffixes)!r}; rename it to one of "
            f"{', '.join(_SUFFIXES)}"
        )
    if kind == "json lines" and compressed:
        return "json"  # datasets unpacks it
    return "json lines" if kind == "json" and not compressed and _begins_with_an_object(file) else kind


def _begins_with_an_object(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(1 << 12).removeprefix(BOM_UTF8).lstrip().startswith(b"{")


def _check_path(path: str, key: str) -> None:
    """Raise TaskError for a path that the system refuses, such as one with a null character."""
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # the caller tells it with the nearest name
    except OSError as error:
        raise TaskError(f"{path:.200}: {reason_of(error)}; correct {key}") from error
    except ValueError as error:
        raise TaskError(f"{path!r:.200}: is no path ({error}); correct {key}") from error


def _is_hub_name(path: str) -> bool:
    """Not a path that does not exist: a name has one slash at most, no file's suffix, and its owner is no folder here.

    A version, as in `owner/name-v1.5`, is no suffix, while a misspelt one, as in `owner/name.parqet`, is.
    """
    suffix, owner = PurePath(path).suffix.lower(), PurePath(path).parts[0]
    misspelt = nearest_of(suffix, [*_SUFFIXES, *_COMPRESSED], _SIMILAR)
    is_file = misspelt is not None or ("/" not in path and suffix[1:].isalpha())
    return bool(_HUB_NAME.fullmatch(path)) and not is_file and not Path(owner).exists()


def _saved(folder: Path, split: str | None, key: str) -> Path:
    """The folder of one split of a saved dataset."""
    if not (folder / "dataset_dict.json").is_file():
        if split in (None, "train"):
            return folder
        raise TaskError(f"{folder}: is saved without splits, so it has no split {split!r}; leave the split out")
    splits = json.loads((folder / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
    wanted = split or ("train" if "train" in splits else splits[0] if len(splits) == 1 else None)
    if wanted not in splits:
        asked = "more than one split" if split is None else f"no split {split!r}"
        raise TaskError(f"{folder}: has {asked}; name one of {', '.join(splits)} in data.task")
    return folder / str(wanted)


def _files(path: str, key: str) -> list[tuple[Path, str]]:
    """The files of a path, a glob or a folder, in the order of their names, and where each lies below it."""
    given = Path(path)
    if glob.has_magic(path) and not given.exists():
        found = [Path(name) for name in sorted(glob.glob(path, recursive=True))]
        files = [file for file in found if file.is_file()]
        if not files:
            raise TaskError(f"{path}: no file matches{_looked_in(given)}; correct {key}")
        fixed = sum(not glob.has_magic(part) for part in given.parent.parts)
        return [(file, "/".join(file.parts[fixed:])) for file in files]
    if given.is_dir():
        files = [
            file
            for file in sorted(given.rglob("*"))
            if file.is_file()
            and not _SUFFIXES.keys().isdisjoint(file.suffixes)
            and not any(part.startswith((".", "_")) for part in file.relative_to(given).parts)
        ]
        if not files:
            raise TaskError(
                f"{path}: has no data file ({', '.join(_SUFFIXES)}), and is not a folder that Dataset.save_to_disk "
                f"wrote; correct {key}"
            )
        return [(file, str(file.relative_to(given))) for file in files]
    return [(_plain(given, key), given.name)]


def _plain(file: Path, key: str) -> Path:
    if problem := why_not_plain(file):
        raise TaskError(f"{file}: {problem}; correct {key}")
    if not file.exists():
        raise TaskError(f"{file}: does not exist{_looked_in(file)}{_nearest(file)}; correct {key}")
    return file


def _looked_in(path: Path) -> str:
    """The working directory, where a relative path starts."""
    return "" if path.is_absolute() else f" in {Path.cwd()}"


def _nearest(file: Path) -> str:
    """The file in the same folder whose name begins most like this one's, as a question; empty if none is near."""
    names = sorted(path.name for path in file.parent.glob("*") if path.is_file())
    near = nearest_of(file.name.partition(".")[0], dict.fromkeys(name.partition(".")[0] for name in names), _SIMILAR)
    meant = [name for name in names if name.partition(".")[0] == near]
    same_kind = [name for name in meant if name.endswith(file.suffix)]
    return f"; did you mean {file.with_name((same_kind or meant)[0])}?" if meant else ""


def _of_split(places: dict[Path, str], split: str | None, name: str, key: str) -> list[Path]:
    """The files whose places have the split, between other letters than a to z: `test-00000.parquet`, `test/a.csv`."""
    if split is None:
        return [file for file, place in places.items() if _has_split(place, "train")] or list(places)
    found = [file for file, place in places.items() if _has_split(place, split)]
    if not found:
        if split == "train" and not any(_has_split(place, known) for place in places.values() for known in _SPLITS):
            return list(places)
        listed = ", ".join([*places.values()][:_NAMED])
        more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
        raise TaskError(
            f"{name}: no file's name has the split {split!r}; there are {listed}{more}. "
            f"Correct the split, or name the files of the split in {key}"
        )
    return found


def _has_split(place: str, split: str) -> bool:
    return re.search(rf"(?<![a-z]){re.escape(split.lower())}(?![a-z])", place.lower()) is not None
