"""Drivers: small scripts that use a client as its documentation says, in the client's own environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.clients.environments import Environment

DRIVERS = Path(__file__).parent / "drivers"


class Driven:
    """What the scenarios of a driver found."""

    def __init__(self, found: dict[str, dict[str, Any]]) -> None:
        self._found = found

    def __getitem__(self, scenario: str) -> Any:
        result = self._found[scenario]
        assert "failed" not in result, f"{scenario}: {result['failed']}"
        return result["found"]


def drive(environment: Environment, driver: str, folder: Path, given: dict[str, Any], **variables: str) -> Driven:
    """Run a driver with the values in ``given``."""
    asked, found = folder / "given.json", folder / "found.json"
    asked.write_text(json.dumps(given), encoding="utf-8")
    environment.run("python", str(DRIVERS / driver), str(asked), str(found), cwd=folder, **variables)
    return Driven(json.loads(found.read_text(encoding="utf-8")))
