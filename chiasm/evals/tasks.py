"""lm-eval's ChartQA and MMMU, from the hub or from files. Importing this module needs lm-eval (``chiasm[eval]``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import yaml
from lm_eval import tasks as lm_eval_tasks
from lm_eval.tasks import TaskManager

from chiasm.datasets.pictures import read_picture
from chiasm.datasets.rows import Row, iterate_rows
from chiasm.errors import UserError, refuse

TASKS = ("chartqa", "mmmu")

_FOLDER = Path(lm_eval_tasks.__file__).parent
_CHARTQA = _FOLDER / "chartqa" / "chartqa.yaml"
_MMMU = "mmmu_val"
_PICTURES = "image"  # how the columns with pictures begin


@dataclass(frozen=True)
class Chosen:
    """Tasks to run.

    Attributes:
        names: as lm-eval knows them.
        manager: that finds them.
    """

    names: Sequence[str]
    manager: TaskManager


def from_hub(task: str) -> Chosen:
    """The task as lm-eval has it."""
    return Chosen([_MMMU if task == "mmmu" else task], TaskManager())


def from_files(task: str, path: str, limit: int | None, folder: Path) -> Chosen:
    """The task with other data.

    Args:
        task: one of ``TASKS``.
        path: see ``iterate_rows``; of MMMU a folder with one for each subject, such as ``Accounting``.
        limit: rows that are needed, of each subject.
        folder: an empty one for files of the way between.

    Raises:
        UserError: if the data can't be read.
    """
    if task == "chartqa":
        _write_task("chartqa_local", _CHARTQA, "test", iterate_rows(path, "test"), limit, folder)
        return _found(folder, ["chartqa_local"])
    place, names = Path(path).expanduser(), []
    for file in sorted((_FOLDER / "mmmu").glob("mmmu_*.yaml")):
        subject = _value(file, "dataset_name")
        if subject and (place / subject).is_dir():
            names.append(f"{file.stem}_local")
            rows = iterate_rows(str(place / subject), "validation")
            _write_task(names[-1], file, "validation", rows, limit, folder)
    if not names:
        refuse("data", path, "a folder with folders of MMMU's subjects, such as Accounting")
    return _found(folder, names)


def _found(folder: Path, names: Sequence[str]) -> Chosen:
    return Chosen(names, TaskManager(include_path=str(folder)))


def _value(file: Path, name: str) -> str | None:
    """A plain value of a task's file, whose other tags only lm-eval can read."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:")), None)


def _write_task(name: str, base: Path, split: str, rows: Iterable[Row], limit: int | None, folder: Path) -> None:
    """A task like the one in the file ``base``, but with these rows."""
    data = folder / f"{name}.parquet"
    kept = [_with_pictures(row) for _, row in zip(range(limit or 10**9), rows, strict=False)]
    if not kept:
        raise UserError(f"There are no rows for {name}.", param="data")
    datasets.Dataset.from_list(kept).to_parquet(data)
    fields: dict[str, Any] = {
        "include": str(base),
        "task": name,
        "dataset_path": "parquet",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {split: str(data)}},
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(fields), encoding="utf-8")


def _with_pictures(row: Row) -> Row:
    pictures = {name: value for name, value in row.items() if name.startswith(_PICTURES) and value is not None}
    return {**row, **{name: read_picture(value) for name, value in pictures.items()}}
