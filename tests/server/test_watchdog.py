"""The event loop is watched: a callback that computes for long is told, waiting is not."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest

from glassloop.server.operation.watchdog import LONGEST, Watchdog, Watched

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


def test_the_collection_of_garbage_is_told_by_its_name():
    told = []
    objects = [[number] for number in range(300_000)]

    async def main() -> None:
        watchdog = Watchdog(lambda seconds, place: told.append(place), longest=0.01)
        while not told:
            gc.collect()
            await asyncio.sleep(0)
            await asyncio.sleep(0.01)
        watchdog.close()

    asyncio.run(main())
    assert "the collection of garbage" in told and objects


def test_waiting_is_not_told():
    assert _told(lambda: time.sleep(3 * LONGEST)) == []


def test_the_loop_of_an_application_is_watched_from_its_first_request_on():
    """As an ingress of Ray Serve is, which has no server of ours around it."""
    told: list[tuple[float, str]] = []

    async def answer(scope, receive, send) -> None:
        _compute_for_long()

    async def main() -> None:
        app = Watched(answer, lambda seconds, place: told.append((seconds, place)))
        await app({"type": "http"}, None, None)
        await asyncio.sleep(0.3)

    asyncio.run(main())
    assert "_compute_for_long" in told[0][1] and told[-1][0] > 2 * LONGEST


def test_a_shorter_limit_is_kept():
    told = []

    async def main() -> None:
        watchdog = Watchdog(lambda seconds, place: told.append(seconds), longest=0.05)
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass
        await asyncio.sleep(0.1)
        watchdog.close()

    asyncio.run(main())
    assert told and told[-1] < LONGEST
