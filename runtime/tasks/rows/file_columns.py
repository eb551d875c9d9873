"""Check the columns of files before `datasets` reads them: it shifts, drops or misnames what does not fit, silently."""

import csv
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import IO

from runtime.tasks.base import TaskError
from runtime.tasks.rows.source import RowSource

_NAMED = 5
"""How many columns a message lists."""


def check_columns(source: RowSource) -> None:
    """Refuse files that do not share their columns, and rows of CSV that have more fields than their header.

    Reads CSV whole, at about 100 MB/s; of Parquet and Arrow only the schema. Raises TaskError with file, line and
    columns; OSError, and pyarrow's errors.
    """
    first: tuple[Path, Sequence[str]] | None = None
    for file in source.files:
        if not file.stat().st_size:
            raise TaskError(_no_rows(file))
        if source.format in ("csv", "tsv"):
            names = _columns_of_csv(file, "\t" if source.format == "tsv" else ",")
        elif source.format in ("parquet", "arrow"):
            names = _columns_of_arrow(file, is_parquet=source.format == "parquet")
        else:
            return
        first = first or (file, names)
        _compare(*first, file, names, source.key)


def _compare(first: Path, expected: Sequence[str], file: Path, names: Sequence[str], key: str) -> None:
    lacks = [name for name in expected if name not in names]
    adds = [name for name in names if name not in expected]
    if not lacks and not adds:
        return
    said = [f"{verb} {_listed(some)}" for verb, some in (("lacks", lacks), ("adds", adds)) if some]
    raise TaskError(
        f"{file}: {' and '.join(said)}, compared with the columns of {first}; give all files of {key} the same "
        "columns, or name those that have them"
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(f"{name!r:.80}" for name in names[:_NAMED]) + more


def _columns_of_csv(file: Path, separator: str) -> Sequence[str]:
    """The header. pandas takes the first column for an index where the first row has a field too many."""
    limit = csv.field_size_limit(sys.maxsize)
    try:
        with closing(_opened(file)) as lines:
            reader = csv.reader(lines, delimiter=separator)
            header: Sequence[str] = ()
            last = 0
            for fields in reader:
                if not header:
                    header = fields
                elif len(fields) > len(header):
                    raise TaskError(
                        f"{file}:{last + 1}: has {len(fields)} fields, and the header names {len(header)} columns; "
                        f"quote a text that has {separator!r} inside, or name every column in the header"
                    )
                last = reader.line_num
    finally:
        csv.field_size_limit(limit)
    if not header:
        raise TaskError(_no_rows(file))
    return header


def _no_rows(file: Path) -> str:
    return f"{file}: has no rows; write a prompt and an answer each, or leave the file out"


def _opened(file: Path) -> IO[str]:
    """The text of a file, which may be compressed; bytes that are no UTF-8 are left for pandas to refuse."""
    import fsspec

    options = {"encoding": "utf-8-sig", "errors": "replace", "newline": ""}
    opened: IO[str] = fsspec.open(str(file), "rt", compression="infer", **options).open()
    return opened


def _columns_of_arrow(file: Path, *, is_parquet: bool) -> Sequence[str]:
    import pyarrow
    import pyarrow.parquet

    if is_parquet:
        with pyarrow.parquet.ParquetFile(file) as parquet:
            if not parquet.metadata.num_rows:
                raise TaskError(_no_rows(file))
            return list(parquet.schema_arrow.names)
    with pyarrow.memory_map(str(file)) as mapped:
        try:
            return list(pyarrow.ipc.open_stream(mapped).schema.names)
        except pyarrow.ArrowInvalid:  # the format of files, not of streams
            return list(pyarrow.ipc.open_file(mapped).schema.names)
