"""A process that computes digests of large data. It prints JSON for every block of rows, and ends at an error.

Started by `scanning` with a pickled Scan on its standard input.
"""

import json
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runtime.tasks.base import TaskError
from runtime.tasks.rows.digest import digest_rows
from runtime.tasks.rows.item import RowColumns
from runtime.tasks.rows.opening import DIGESTS, open_table
from runtime.tasks.rows.source import RowSource

BLOCK_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class Scan:
    """Which blocks of a source to digest, and the folder of its index that they are written to."""

    source: RowSource
    columns: RowColumns
    folder: Path
    blocks: tuple[int, ...]


def main() -> None:
    """Digest the blocks in their order."""
    scan: Scan = pickle.load(sys.stdin.buffer)
    table = open_table(scan.source, scan.folder)
    digests = np.load(scan.folder / DIGESTS, mmap_mode="r+")
    for block in scan.blocks:
        start = block * BLOCK_ROWS
        stop = min(start + BLOCK_ROWS, len(table))
        try:
            found = digest_rows(table, scan.columns, start, stop)
        except TaskError as error:
            print(json.dumps({"wrong": str(error)}), flush=True)  # noqa: T201
            return
        digests[start:stop] = found.digests
        print(json.dumps({"block": block, "rows": stop - start, "answers": found.answers.hex()}), flush=True)  # noqa: T201
