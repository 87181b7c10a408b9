"""lm-eval's ChartQA and MMMU, from the hub or from files. Importing this module needs lm-eval (``chiasm[eval]``)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import yaml
from lm_eval import tasks as lm_eval_tasks
from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager

from chiasm.datasets.pictures import read_picture
from chiasm.datasets.rows import Row, iterate_rows
from chiasm.errors import UserError, refuse, shorten
from chiasm.evals.charts.rows import chartqa_rows

TASKS = ("chartqa", "mmmu")
DRAWN = "charts"
"""Data of ChartQA's form that is there without a network: charts that are drawn."""

_NUM_DRAWN = 200

_FOLDER = Path(lm_eval_tasks.__file__).parent
_CHARTQA = _FOLDER / "chartqa" / "chartqa.yaml"
_MMMU = "mmmu_val"
_PICTURES = "image"  # how the columns with pictures begin
_COLUMNS = {
    "chartqa": ("image", "query", "label"),
    "mmmu": ("question", "question_type", "answer", "image_1"),
}


@contextmanager
def loaded_tasks(task: str, data: str | None, limit: int | None) -> Iterator[list[Task]]:
    """A task of lm-eval with its data, while the context is open; MMMU is one for each subject.

    Args:
        task: one of ``TASKS``.
        data: see ``iterate_rows``; of MMMU a folder with one for each subject, such as ``Accounting``; of ChartQA
            ``DRAWN``, too. None takes the hub's.
        limit: rows that are needed, of each subject.

    Raises:
        UserError: if the data can't be had.
    """
    if data is None:
        yield _from_hub(task)
        return
    with tempfile.TemporaryDirectory() as folder:
        names = _write_tasks(task, data, limit, Path(folder))
        yield _load(names, folder)


def _from_hub(task: str) -> list[Task]:
    name = _MMMU if task == "mmmu" else task
    try:
        return _load([name], str(_FOLDER / task))
    except OSError as error:  # no network, and nothing in the cache
        message = f"The data of {task} can't be had from the hub; --data names files or a folder with them"
        message += f", or {DRAWN}, which are drawn." if task == "chartqa" else "."
        raise UserError(message, param="data") from error


def _load(names: list[str], folder: str) -> list[Task]:
    """Tasks that are described in a folder; lm-eval has thousands of others, and reads them for seconds."""
    manager = TaskManager(include_path=folder, include_defaults=False)
    return list(manager.load(names)["tasks"].values())


def _write_tasks(task: str, path: str, limit: int | None, folder: Path) -> list[str]:
    """Tasks like lm-eval's own with other data, and their names."""
    place = Path(path).expanduser()
    if task == "chartqa":
        rows = islice(chartqa_rows(), _NUM_DRAWN) if path == DRAWN else iterate_rows(path, "test")
        beside = place if place.is_dir() else place.parent
        _write_task("chartqa_local", _CHARTQA, "test", _read(rows, "chartqa", beside), limit, folder)
        return ["chartqa_local"]
    names = []
    for file in sorted((_FOLDER / "mmmu").glob("mmmu_*.yaml")):
        subject = _value(file, "dataset_name")
        if subject and (place / subject).is_dir():
            names.append(f"{file.stem}_local")
            rows = iterate_rows(str(place / subject), "validation")
            _write_task(names[-1], file, "validation", _read(rows, "mmmu", place / subject), limit, folder)
    if not names:
        refuse("data", path, "a folder with folders of MMMU's subjects, such as Accounting")
    return names


def _value(file: Path, name: str) -> str | None:
    """A plain value of a task's file, whose other tags only lm-eval can read."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:")), None)


def _write_task(name: str, base: Path, split: str, rows: Iterable[Row], limit: int | None, folder: Path) -> None:
    """A task like the one in the file ``base``, but with these rows."""
    data = folder / f"{name}.parquet"
    kept = list(islice(rows, limit))
    if not kept:
        raise UserError(f"The data has no rows of the split {split}.", param="data")
    datasets.Dataset.from_list(kept).to_parquet(data)
    fields: dict[str, Any] = {
        "include": str(base),
        "task": name,
        "dataset_path": "parquet",
        "dataset_name": None,
        # Else a copy of every run's data would stay in the user's cache.
        "dataset_kwargs": {"data_files": {split: str(data)}, "cache_dir": str(folder)},
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(fields), encoding="utf-8")


def _read(rows: Iterable[Row], task: str, folder: Path) -> Iterator[Row]:
    """Rows with their pictures read; paths of these begin in the folder.

    Raises:
        UserError: for a row that lacks something, naming both.
    """
    for number, row in enumerate(rows, start=1):
        lacking = [name for name in _COLUMNS[task] if row.get(name) in (None, [], "")]
        if lacking:
            message = f"Row {number} has no {' nor '.join(lacking)}; it has {shorten(', '.join(row))}."
            raise UserError(message, param="data")
        yield {name: _cell(name, value, folder) for name, value in row.items()}


def _cell(name: str, value: object, folder: Path) -> object:
    if name.startswith(_PICTURES) and value is not None:
        return read_picture(value, folder)
    if name == "label":  # right answers, or the only one
        return [str(answer) for answer in (value if isinstance(value, list) else [value])]
    return value
