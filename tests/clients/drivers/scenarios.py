"""How a driver is run: it does each of its scenarios and writes what each found, or how it failed, as JSON."""

import json
import sys
import traceback
from pathlib import Path


def run(scenarios):
    """Run ``scenarios`` (a dict of functions) with the values of the file that is the first argument.

    What they return goes to the file that is the second argument.
    """
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    found = {}
    for name, scenario in scenarios.items():
        try:
            found[name] = {"found": scenario(given)}
        except Exception:
            found[name] = {"failed": traceback.format_exc()}
    Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")
