"""``python -m apidocs``: writes the reference anew."""

from __future__ import annotations

import sys

from apidocs.pages import write_pages

for name in write_pages():
    sys.stdout.write(f"docs/reference/{name}\n")
