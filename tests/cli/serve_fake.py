"""``chiasm`` with a fake engine, for a process of its own: ``python -m tests.cli.serve_fake serve ...``."""

from __future__ import annotations

import sys

from chiasm.cli import engine as engines
from chiasm.cli.main import main
from tests.cli.conftest import Started

if __name__ == "__main__":
    engines.start_engine = Started().start_engine
    sys.exit(main())
