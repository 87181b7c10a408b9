"""Which keywords torch's functions take, and which ones this project passes.

``python -m tests.ops.torch_signatures`` adds what the installed torch takes to the table beside this file. It needs
no other package but numpy, so it runs wherever there is a torch.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import json
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

PACKAGE = Path(__file__).parents[2] / "chiasm"
TABLE = Path(__file__).with_name("torch_signatures.json")
VARLEN = "torch.nn.attention.varlen.varlen_attn"  # called by way of a protocol: ``VarlenOp``
_METHOD = "torch.Tensor"
_STUBS = ("_C/__init__.pyi", "_C/_VariableFunctions.pyi", "_C/_nn.pyi", "_C/_distributed_c10d.pyi")
_ANY = "**"

Signatures = dict[str, list[str]]
"""By the function's name, the keywords that it takes, sorted."""


class TorchCall(NamedTuple):
    """A call with keywords.

    Attributes:
        function: its full name; of a tensor's method ``torch.Tensor.name``.
        keywords: that are passed.
        place: file and line.
    """

    function: str
    keywords: tuple[str, ...]
    place: str


def torch_calls() -> Iterator[TorchCall]:
    """All calls of torch's functions, and of methods that are called as a tensor's are."""
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(PACKAGE.rglob("*.py"))}
    own = {node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for file, tree in trees.items():
        names = dict(_imported(tree))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            keywords = tuple(sorted(keyword.arg for keyword in node.keywords if keyword.arg))
            function = _function(node.func, names, own)
            if function and keywords:
                yield TorchCall(function, keywords, f"{file.relative_to(PACKAGE.parent)}:{node.lineno}")


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(name in the file, full name) of what comes from anywhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (root, root)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _function(called: ast.expr, names: dict[str, str], own: set[str]) -> str | None:
    """The name of a function of torch; None for all else."""
    path: list[str] = []
    root = called
    while isinstance(root, ast.Attribute):
        path.insert(0, root.attr)
        root = root.value
    if isinstance(root, ast.Name) and root.id in names:
        full = ".".join([names[root.id], *path])
        return full if full.startswith("torch.") else None
    if path and path[-1] not in own and path[-1] in _stubbed() and callable(getattr(torch.Tensor, path[-1], None)):
        return f"{_METHOD}.{path[-1]}"
    return None


def accepted(function: str) -> list[str]:
    """Keywords that the installed torch takes; ``[]`` where there is no such function.

    Raises:
        LookupError: if they can't be found out.
    """
    found = _find(function)
    if found is None:
        return []
    try:
        parameters = inspect.signature(found).parameters.values()
    except (ValueError, TypeError):
        parameters = None
    if parameters is None or {p.name for p in parameters} <= {"args", "kwargs", "self"}:
        keywords = _stubbed().get(function.rpartition(".")[2]) or set(_in_schemas(function))
        if not keywords:
            raise LookupError(f"torch {torch.__version__} has no signature of {function}")
        return sorted(keywords)
    return sorted(_ANY if p.kind is p.VAR_KEYWORD else p.name for p in parameters if p.kind is not p.VAR_POSITIONAL)


def _find(function: str) -> Any:
    module, names = function, []
    while True:
        try:
            found = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, name = module.rpartition(".")
            names.insert(0, name)
    for name in names:
        found = getattr(found, name, None)
    return found


def _in_schemas(function: str) -> Iterator[str]:
    """``torch.sparse.name`` is ``aten::sparse_name``."""
    operator = "_".join(function.split(".")[1:])
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{operator}"):
        yield from (argument.name for argument in schema.arguments)


@cache
def _stubbed() -> dict[str, set[str]]:
    """Keywords of what is not written in Python, of all overloads of a name; a class has its ``__init__``'s."""
    keywords: dict[str, set[str]] = {}
    folder = Path(torch.__file__).parent
    for file in _STUBS:
        tree = ast.parse((folder / file).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                keywords.setdefault(node.name, set()).update(_parameters(node))
            elif isinstance(node, ast.ClassDef):
                for each in node.body:
                    if isinstance(each, ast.FunctionDef) and each.name in ("__init__", "__new__"):
                        keywords.setdefault(node.name, set()).update(_parameters(each))
    return keywords


def _parameters(function: ast.FunctionDef) -> Iterator[str]:
    arguments = function.args
    yield from (each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
    if arguments.kwarg:
        yield _ANY


def read_table() -> dict[str, Signatures]:
    """By torch's version."""
    table: dict[str, dict[str, str]] = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    return {version: {name: words.split() for name, words in own.items()} for version, own in table.items()}


def refused(call: TorchCall, signatures: Signatures) -> list[str]:
    """Keywords of a call that its function doesn't take.

    A method may be that of a list, a string or an array: then it is none of a tensor's.
    """
    taken = signatures[call.function]
    if _ANY in taken or any(set(call.keywords) <= other for other in _of_others(call.function)):
        return []
    return [keyword for keyword in call.keywords if keyword not in taken]


def _of_others(function: str) -> Iterator[set[str]]:
    owner, _, name = function.rpartition(".")
    if owner == _METHOD:
        for other in (list, str, np):
            if hasattr(other, name):
                yield set(inspect.signature(getattr(other, name)).parameters)


def _namesakes() -> Iterator[str]:
    """All functions of the places that ours are called from: the next one that is called is in the table already."""
    for place in ("torch", "torch.nn.functional", "torch.cuda", "torch.distributed", "torch.sparse", _METHOD):
        owner = _find(place)
        for name in dir(owner):
            if not name.startswith("_") and inspect.isroutine(getattr(owner, name, None)):
                yield f"{place}.{name}"


def _known(functions: Iterable[str]) -> Iterator[tuple[str, str]]:
    for function in functions:
        with contextlib.suppress(LookupError):
            yield function, " ".join(accepted(function))


def main() -> None:
    """Add the installed torch to the table."""
    version = str(torch.__version__).partition("+")[0]
    functions = sorted({VARLEN, *_namesakes(), *(call.function for call in torch_calls())})
    table = {known: {name: " ".join(words) for name, words in own.items()} for known, own in read_table().items()}
    table[version] = dict(_known(functions))
    TABLE.write_text(json.dumps(table, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    print(f"torch {version}: {len(table[version])} functions", file=sys.stderr)


if __name__ == "__main__":
    main()
