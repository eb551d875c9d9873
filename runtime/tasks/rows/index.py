"""The digests of all rows. Those of large data are computed once a machine, by several processes, and cached.

An index is a folder in $XDG_CACHE_HOME/evenstep/data (~/.cache), about 16 bytes a row. The first half of its name
stands for the files and the columns, the second for the files' sizes and times: a file that changes gets another index,
which replaces the older one of the same columns. `index.json` is written last, into a folder aside that is then
renamed. A folder that is not whole is built again.
"""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from runtime.files import reason_of, sync_tree, write_json
from runtime.tasks.base import TaskError
from runtime.tasks.rows.digest import Digests, digest_rows
from runtime.tasks.rows.item import RowColumns
from runtime.tasks.rows.json_lines import Starts
from runtime.tasks.rows.opening import DIGESTS, find_starts, load_starts, open_lines, open_table, save_starts
from runtime.tasks.rows.scanning import RowsRead, scan_in_processes
from runtime.tasks.rows.source import RowSource
from runtime.tasks.rows.table import RowTable

LARGE_ROWS, LARGE_BYTES = 100_000, 64_000_000
"""Data with more rows or bytes is large."""
_BUILDS = 2
"""How often an index is built that is gone when it is opened."""
_INFO, _FORM, _HASH_LETTERS = "index.json", 3, 16


@dataclass(frozen=True, slots=True)
class IndexedRows:
    """A table, and the digests of its rows."""

    table: RowTable
    digests: Digests
    identity: str | None
    """A hash of all rows of large data; None for small data, whose prompts are quickly hashed."""


def open_rows(source: RowSource, columns: RowColumns, tell: RowsRead = lambda name, read, rows: None) -> IndexedRows:
    """Open a source. Every row is read and checked: of large data once, by as many processes as there are CPUs.

    Raises TaskError with file and row of the first row found that is wrong.
    """
    is_lines = source.format == "json lines"
    if not is_lines:
        tell(source.name, 0, 0)  # datasets may convert or download it
    table = None if is_lines else open_table(source, None)
    index = _Index.of(source, columns, table.files if source.format == "hub" and table else _files_of(source))
    if found := index.open(table):
        return found
    starts = find_starts(source) if is_lines else ()
    small = sum(int(each[-1]) for each in starts) <= LARGE_BYTES
    table = table or open_lines(source, starts, in_memory=small)
    if not is_large(table):
        return IndexedRows(table, digest_rows(table, columns, 0, len(table)).digests, None)
    for _ in range(_BUILDS):
        index.build(len(table), starts, tell)
        if found := index.open(None if is_lines else table):
            return found
    raise TaskError(
        f"the index of {source.name} was removed or damaged as soon as it was written, {_BUILDS} times "
        f"({index.folder}); find the process that does it, or set XDG_CACHE_HOME to another folder"
    )


def is_large(table: RowTable) -> bool:
    """Whether the rows are indexed, and not parsed by each process that loads them."""
    return len(table) > LARGE_ROWS or table.size_bytes > LARGE_BYTES


@dataclass(frozen=True, slots=True)
class _Index:
    source: RowSource
    columns: RowColumns
    folder: Path

    @classmethod
    def of(cls, source: RowSource, columns: RowColumns, files: Sequence[Path]) -> "_Index":
        """The index of these files as they are now. Raises TaskError if one is gone."""
        try:
            stamps = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        except OSError as error:
            raise TaskError(f"{source.name}: cannot be read: {error}; check {source.key}") from error
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evenstep" / "data"
        named = source.name if source.format == "hub" else None
        paths = [path for path, _, _ in stamps]
        place = _hash_of([_FORM, source.format, named, source.subset, source.split, paths, asdict(columns)])
        return cls(source, columns, cache / f"{place}-{_hash_of(stamps)}")

    @property
    def parts(self) -> "_Parts | None":
        """What the folder holds; None if it is not there, or not whole."""
        starts: list[Starts] = []
        try:
            identity = str(json.loads((self.folder / _INFO).read_text(encoding="utf-8"))["identity"])
            digests = np.load(self.folder / DIGESTS, mmap_mode="r")
            if self.source.format == "json lines":
                starts = load_starts(self.source, self.folder)
        except (OSError, EOFError, ValueError, KeyError, TypeError):  # gone, empty, or cut short
            return None
        return _Parts(identity, digests, starts)

    def open(self, table: RowTable | None) -> IndexedRows | None:
        """table: None for JSON lines. Returns None if the index is not there, or not whole."""
        parts = self.parts
        if parts is None:
            return None
        table = table or open_lines(self.source, parts.starts, in_memory=False)
        return IndexedRows(table, parts.digests, parts.identity)

    def build(self, rows: int, starts: Sequence[Starts], tell: RowsRead) -> None:
        """Compute the digests, and remove older indices of the same files and columns. Raises TaskError."""
        cache = self.folder.parent
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f"{self.folder.name}-", dir=cache) as made:
                aside = Path(made) / "index"
                aside.mkdir()
                save_starts(starts, aside)
                digests = np.lib.format.open_memmap(aside / DIGESTS, mode="w+", dtype=np.int64, shape=(rows,))
                _reserve(aside / DIGESTS)
                answers = scan_in_processes(self.source, self.columns, aside, rows, tell)
                identity = sha256(b"".join(answers))
                identity.update(digests.data)
                write_json(aside / _INFO, {"identity": identity.hexdigest()[:16]})
                sync_tree(aside)
                self._put(aside)
        except OSError as error:
            raise TaskError(
                f"the index of {self.source.name} cannot be written to {cache} ({reason_of(error)}); it takes about "
                f"{16 * rows / 1e6:.0f} MB: free some space, or set XDG_CACHE_HOME to another folder"
            ) from error
        for old in cache.glob(f"{self.folder.name.partition('-')[0]}-{'?' * _HASH_LETTERS}"):
            if old != self.folder:
                shutil.rmtree(old, ignore_errors=True)

    def _put(self, aside: Path) -> None:
        """Rename a new index to its place, unless another process was faster. Raises OSError."""
        while self.parts is None:
            try:
                aside.rename(self.folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                with suppress(FileNotFoundError):  # another process moved the broken one away
                    self.folder.rename(tempfile.mkdtemp(dir=aside.parent))


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the folder of an index holds. `starts`: of JSON lines."""

    identity: str
    digests: Digests
    starts: Sequence[Starts]


def _files_of(source: RowSource) -> Sequence[Path]:
    """The files whose change is another state of the data."""
    return sorted(source.files[0].iterdir()) if source.format == "saved" else source.files


def _reserve(file: Path) -> None:
    """Give a sparse file its space: a process that maps it is killed if the disk is full. Raises OSError."""
    with file.open("r+b") as opened:
        os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)


def _hash_of(value: object) -> str:
    return sha256(json.dumps(value).encode()).hexdigest()[:_HASH_LETTERS]
