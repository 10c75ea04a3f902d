"""Hypothesis looks for new examples every time on a developer's machine. In CI it takes the same ones, so
that a change is judged by itself and not by the luck of the draw.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")

# No test writes to the store of the person who runs it.
os.environ["GLASSLOOP_STORE"] = str(Path(tempfile.mkdtemp(prefix="glassloop-")) / "runs.db")
