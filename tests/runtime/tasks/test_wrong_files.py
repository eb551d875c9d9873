"""Files whose rows, columns or bytes do not fit are refused with file and line, never read in another way."""

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from runtime.tasks.base import TaskError
from tests.runtime.tasks.test_datasets import ROWS, _own_cache, datasets, load

__all__ = ["_own_cache"]  # a fixture of all tests here


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "prompt,answer\nHello, how are you,fine\nHi, there,yes\n", r"a.csv:2: has 3 fields, .* 2 columns"),
        ("a.csv", 'prompt,answer\n"two\nlines",b\n\na,b,\n', r"a.csv:5: has 3 fields, .* 2 columns; quote"),
        ("a.tsv", "prompt\tanswer\na\tb\tc\n", r"a.tsv:2: has 3 fields, .* has '.*t' inside"),
    ],
)
def test_a_row_of_csv_with_a_field_too_many_is_refused_with_its_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TaskError, match=message):
        load(tmp_path / name)


def test_commas_at_the_end_of_all_lines_of_csv_and_long_cells_are_fine(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"\ufeffprompt,answer,\na,b,\n{'c' * 200_000},d,\n")
    task = load(tmp_path / "a.csv")
    assert [(task.prompt(index)[0], task.reference(index)) for index in (0, 1)] == [("a", "b"), ("c", "d")]


@pytest.mark.parametrize("name", ["csv", "parquet"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_files_with_different_columns_are_refused_by_name(tmp_path: Path, name: str, order: tuple[int, int]) -> None:
    files = [tmp_path / f"train-{number}.{name}" for number in order]
    for file, rows in zip(files, (ROWS, [{**row, "x": "1"} for row in ROWS]), strict=True):
        made = datasets.Dataset.from_list(rows)
        _ = made.to_csv(file) if name == "csv" else made.to_parquet(file)
    problem = "adds 'x'" if order == (0, 1) else "lacks 'x'"
    with pytest.raises(TaskError, match=rf"train-1.{name}: {problem}, compared with the columns of .*train-0.{name};"):
        load(tmp_path)


def test_parquet_without_rows_is_told(tmp_path: Path) -> None:
    datasets.Dataset.from_list(ROWS).select([]).to_parquet(tmp_path / "none.parquet")
    with pytest.raises(TaskError, match=r"none.parquet: has no rows"):
        load(tmp_path / "none.parquet")


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        (b"Paris", "Paris"),
        (Decimal("1.50"), "1.50"),
        (date(2024, 2, 29), "2024-02-29"),
        (datetime(2024, 2, 29, 12, 30), "2024-02-29 12:30:00"),
        ([b"Paris"], '["Paris"]'),
        (2.5, "2.5"),
    ],
)  # fmt: skip
def test_answers_of_parquet_that_are_no_texts_have_no_quotes(tmp_path: Path, value: Any, answer: str) -> None:
    datasets.Dataset.from_dict({"prompt": ["a"], "answer": [value]}).to_parquet(tmp_path / "a.parquet")
    assert load(tmp_path / "a.parquet").reference(0) == answer
