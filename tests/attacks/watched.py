"""`glassloop` with a watchdog that tells what holds up the event loop for 50 ms of processor time, and that
prints what all its threads and coroutines do when it gets SIGUSR1.
"""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import sys
from functools import partial
from types import FrameType

from glassloop.cli.main import main
from glassloop.server import serve
from glassloop.server.operation.watchdog import Watchdog

HELD = 0.05  # seconds
TOLD = "the end of what all threads and coroutines do"


def tell(number: int, frame: FrameType | None) -> None:
    faulthandler.dump_traceback(all_threads=True)
    for task in asyncio.all_tasks():
        task.print_stack(limit=12)
    print(TOLD, file=sys.stderr, flush=True)


if __name__ == "__main__":
    serve.Watchdog = partial(Watchdog, longest=HELD)
    signal.signal(signal.SIGUSR1, tell)
    main()
