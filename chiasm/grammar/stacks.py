"""Room on the stack for compiling forms: llguidance recurses once for each rule or reference that leads to another.

Running out of it ends the process. What has been tried out in little room is followed in much more, so that a form
can cost the process that tries it out and never a rank.
"""

from __future__ import annotations

TRYING_BYTES = 2 * 2**20
FOLLOWING_BYTES = 64 * 2**20
