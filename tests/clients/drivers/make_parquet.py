"""Turns JSON lines, whose ``image`` is a path, into a Parquet file with the pictures in it."""

import json
import sys
from pathlib import Path

import datasets

lines, target = map(Path, sys.argv[1:])
rows = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
columns = {name: [row[name] for row in rows] for name in rows[0]}
columns["image"] = [{"bytes": Path(path).read_bytes(), "path": None} for path in columns["image"]]
table = datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())
table.to_parquet(target)
