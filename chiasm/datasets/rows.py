"""Rows of a data set, one after another, whatever files they are in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from chiasm.errors import UserError, shorten

Row = dict[str, Any]

_LINES = (".jsonl", ".ndjson")
_FORMS = (".parquet", *_LINES, ".json")
_ENCODING = "utf-8-sig"  # UTF-8, whether or not it begins with a mark
_BATCH = 16  # rows of a parquet file in memory at a time; a row may hold several pictures


def iterate_rows(path: str, split: str) -> Iterator[Row]:
    """The rows of a data set.

    Args:
        path: a file (parquet, JSON lines, a JSON list), a folder with such files, or the hub's name of a data set.
            In a folder, files count whose names begin with the split, as the hub has it
            (``data/test-00000-of-00001``); all of them if none does.
        split: such as ``test``.

    Raises:
        UserError: if there is nothing to read, saying where it may be put.
    """
    for file in find_files(path, split):
        try:
            yield from _rows_of(file)
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file.name} can't be read: {error}", param="dataset_path") from error


def find_files(path: str, split: str) -> list[Path]:
    """The files of a data set's split, in order; see ``iterate_rows``."""
    place = Path(path).expanduser()
    if place.is_file():
        if place.suffix not in _FORMS:
            _refuse(path, f"a file that ends with one of {', '.join(_FORMS)}")
        return [place]
    if place.is_dir():
        return _files_in(place, split)
    if path.count("/") != 1 or path.startswith((".", "/", "~")):
        _refuse(path, "a file, a folder, or a name on the hub of the form owner/name")
    return _files_in(_download(path, split), split)


def _refuse(path: str, limit: str) -> NoReturn:
    # The commands call it --dataset-path or --data.
    raise UserError(f"The data set must be {limit}, got {shorten(path)}.", param="dataset_path")


def _files_in(folder: Path, split: str) -> list[Path]:
    files = sorted(file for file in folder.rglob("*") if file.suffix in _FORMS and file.is_file())
    of_split = [file for file in files if file.name.startswith((f"{split}-", f"{split}.", f"{split}_"))]
    if not files:
        raise UserError(f"There is no {' nor '.join(_FORMS)} file in {folder}.", param="dataset_path")
    return of_split or files


def _download(name: str, split: str) -> Path:
    import huggingface_hub  # imported late: most data is local

    patterns = [f"{split}-*", f"*/{split}-*", f"{split}.*", f"*/{split}.*"]
    try:
        return Path(huggingface_hub.snapshot_download(name, repo_type="dataset", allow_patterns=patterns))
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"Data set {name!r} can't be had from the hub: {reason.rstrip('.')}. Where there is no network, "
            f"put its {split} files (parquet or JSON lines) into a folder and name that instead.",
            param="dataset_path",
        ) from error


def _rows_of(file: Path) -> Iterator[Row]:
    if file.suffix == ".parquet":
        yield from _parquet_rows(file)
    elif file.suffix in _LINES:
        with file.open(encoding=_ENCODING) as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _as_row(_parsed(line, f"{file.name}:{number}"), f"{file.name}:{number}")
    else:
        rows = _parsed(file.read_text(encoding=_ENCODING), file.name)
        if not isinstance(rows, list):
            raise UserError(f"{file.name} must hold a JSON list.", param="dataset_path")
        for number, row in enumerate(rows):
            yield _as_row(row, f"{file.name}[{number}]")


def _parquet_rows(file: Path) -> Iterator[Row]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UserError("Parquet files need pyarrow: pip install 'chiasm[data]'.", param="dataset_path") from error
    try:
        with parquet.ParquetFile(file) as table:
            for batch in table.iter_batches(_BATCH):
                yield from batch.to_pylist()
    except (OSError, ValueError) as error:
        raise UserError(f"{file.name} can't be read as parquet: {error}", param="dataset_path") from error


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not valid JSON: {error}", param="dataset_path") from error


def _as_row(value: object, where: str) -> Row:
    if not isinstance(value, dict):
        raise UserError(f"{where} must be a JSON object.", param="dataset_path")
    return value
