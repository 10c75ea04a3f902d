"""The event loop is watched: a callback that computes for long is told, waiting is not."""

from __future__ import annotations

import asyncio
import time

import pytest

from glassloop.server.operation.watchdog import LONGEST, Watchdog

pytestmark = pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="no clocks of threads")


def _told(block) -> list[tuple[float, str]]:
    """What the watchdog tells of a loop in which `block` runs."""
    told: list[tuple[float, str]] = []

    async def main() -> None:
        watchdog = Watchdog(lambda seconds, place: told.append((seconds, place)))
        await asyncio.sleep(0.3)
        block()
        await asyncio.sleep(0.3)
        watchdog.close()

    asyncio.run(main())
    return told


def _compute_for_long() -> None:
    until = time.thread_time() + 3 * LONGEST
    while time.thread_time() < until:
        pass


def test_a_callback_that_computes_is_told_with_its_place():
    told = _told(_compute_for_long)
    assert "_compute_for_long" in told[0][1]
    assert told[-1][0] > 2 * LONGEST


def test_a_call_into_c_is_told_too():
    assert _told(lambda: sum(range(100_000_000)))[-1][0] > LONGEST


def test_waiting_is_not_told():
    assert _told(lambda: time.sleep(3 * LONGEST)) == []
