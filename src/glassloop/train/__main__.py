"""`python -m glassloop.train`: the commands of `glassloop train` where only NumPy and torch are installed."""

from __future__ import annotations

import sys

from glassloop.errors import GlassloopError
from glassloop.train.commands import main
from glassloop.util.plain_text import visible

try:
    main(sys.argv[1:], "python -m glassloop.train")
except GlassloopError as error:
    print(f"glassloop: {visible(str(error), newlines=False)}", file=sys.stderr)
    sys.exit(2)
except KeyboardInterrupt:
    print("\nglassloop: interrupted", file=sys.stderr)
    sys.exit(130)
