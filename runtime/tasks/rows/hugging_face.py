"""What the package `datasets` reads: parquet, arrow, CSV, JSON, saved datasets, and datasets of the hub.

`datasets` converts files to Arrow once, in its own cache (HF_DATASETS_CACHE), and maps the result into memory, whatever
HF_DATASETS_IN_MEMORY_MAX_SIZE says: each process that loads the data would hold a copy.
"""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.tasks.base import TaskError
from runtime.tasks.rows.file_columns import check_columns
from runtime.tasks.rows.hub import asking_hub
from runtime.tasks.rows.source import Format, RowSource
from runtime.tasks.rows.table import Row

if TYPE_CHECKING:
    from datasets import Dataset

_READ_ROWS = 500
"""Rows that are converted to Python at a time."""
_LONGEST_NAME = 10_000
"""Characters of a column's name. Arrow takes minutes for one of 100 MB, such as a file without any line end."""
_NEAR = 16
"""A row that is asked for so soon after the last one is taken for the next of a walk through the table."""
_NO_ROWS = "corresponds to no data"
"""How `datasets` refuses files without any row."""
_BUILDERS: dict[Format, str] = {"json": "json", "parquet": "parquet", "arrow": "arrow", "csv": "csv", "tsv": "csv"}


class HuggingFaceRows:
    """The rows of a `datasets.Dataset`. Features that need decoding, such as images, are left undecoded."""

    def __init__(self, dataset: "Dataset", source: RowSource) -> None:
        self._dataset = dataset.with_format("arrow")
        self._source = source
        self._last = -1
        self._read: tuple[int, list[Row]] = (0, [])
        """Rows that were read ahead, and the number of the first."""

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def files(self) -> Sequence[Path]:
        """Of `datasets`' cache, or of the saved dataset."""
        return [Path(file["filename"]) for file in self._dataset.cache_files]

    @property
    def size_bytes(self) -> int:
        return int(self._dataset.data.nbytes)

    def where(self, number: int) -> str:
        split = "" if self._source.split is None else f" ({self._source.split})"
        return f"{self._source.name}{split}, row {number}"

    def row(self, number: int) -> Row:
        first, rows = self._read
        if not first <= number < first + len(rows):
            ahead = _READ_ROWS if 0 < number - self._last <= _NEAR else 1
            first, rows = self._read = number, self._dataset[number : min(number + ahead, len(self))].to_pylist()
        self._last = number
        return rows[number - first]

    def rows(self, start: int, stop: int, columns: frozenset[str]) -> Iterator[Row | None]:
        """As RowTable says."""
        wanted = [name for name in self._dataset.column_names if name in columns]
        some = self._dataset.select_columns(wanted) if wanted else self._dataset
        for first in range(start, stop, _READ_ROWS):
            yield from some[first : min(first + _READ_ROWS, stop)].to_pylist()


def open_hugging_face(source: RowSource) -> HuggingFaceRows:
    """Open it; the first time this converts or downloads. Raises TaskError."""
    if find_spec("datasets") is None:
        raise TaskError(
            f"{source.name}: reading it needs the package datasets; install it in your clone: "
            "pip install -c constraints.txt -e '.[data]'"
        )
    import datasets

    datasets.disable_progress_bars()  # the run shows its own
    if source.format == "hub":
        return _of_hub(source)
    try:
        if source.format == "saved":
            dataset = datasets.load_from_disk(str(source.files[0]), keep_in_memory=False)
        else:
            check_columns(source)
            files = [str(file) for file in source.files]
            options = _as_text(source) if source.format in ("csv", "tsv") else {}
            dataset = datasets.load_dataset(
                _BUILDERS[source.format], data_files=files, split="train", keep_in_memory=False, **options
            )
    except TaskError:
        raise
    except Exception as error:  # of many kinds, from pyarrow, pandas and HTTP clients
        raise TaskError(_why(source, error)) from error
    return HuggingFaceRows(dataset, source)


def _of_hub(source: RowSource) -> HuggingFaceRows:
    """One that is downloaded, or is in the cache of `datasets`. Raises TaskError."""
    import datasets

    with asking_hub() as not_asked:
        try:
            dataset = datasets.load_dataset(source.name, source.subset, split=source.split, keep_in_memory=False)
        except Exception as error:
            found = f"{not_asked}; nor is it in the cache of datasets" if not_asked else _found(error)
            raise TaskError(_why_not_of_hub(source, found)) from error
    return HuggingFaceRows(dataset, source)


def _as_text(source: RowSource) -> dict[str, Any]:
    """Options that leave cells of CSV as they are written: 007 is no number, and an empty cell is an empty text."""
    import pandas
    from datasets import Features, Value

    separator = "\t" if source.format == "tsv" else ","
    columns = pandas.read_csv(source.files[0], sep=separator, nrows=0).columns
    if (longest := max((len(str(name)) for name in columns), default=0)) > _LONGEST_NAME:
        raise ValueError(f"its first line, which names the columns, has a name of {longest} characters")
    features = Features({str(name): Value("string") for name in columns})
    return {"sep": separator, "features": features, "keep_default_na": False}


def _why(source: RowSource, error: Exception) -> str:
    if _NO_ROWS in str(error):
        return f"{source.name}: has no rows; write a prompt and an answer each"
    return f"{source.name}: datasets cannot read it ({_found(error)}); correct the file, or {source.key}"


def _why_not_of_hub(source: RowSource, reason: str) -> str:
    named = f"{source.name!r}" if source.subset is None else f"{source.name!r}, {source.subset!r}"
    return (
        f"{source.key} {source.name!r} is no file or folder here, and the dataset of that name on the Hugging Face hub "
        f"cannot be read with subset {source.subset!r} and split {source.split!r} ({reason}). Correct the name; or on "
        f'a machine that reaches the hub run `python -c "from datasets import load_dataset; '
        f"load_dataset({named}).save_to_disk('DIR')\"`, copy DIR here, and set {source.key} to it"
    )


def _found(error: Exception) -> str:
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return f"{type(cause).__name__}: {str(cause).strip():.400}"
