"""``python -m chiasm.cli``."""

import sys

from chiasm.cli.main import main

sys.exit(main())
