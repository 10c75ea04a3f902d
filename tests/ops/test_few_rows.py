"""The order in which the warps of `few_rows.cu` pass sums on, emulated: no order of events makes them wait
for each other forever, and every sum runs over its chunks in ascending order."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

WARPS = 16


class Barrier:
    """An mbarrier that one arrival completes. A wait knows only the parity of a phase."""

    def __init__(self) -> None:
        self.phase = 0

    def passes(self, parity: int) -> bool:
        return self.phase % 2 != parity


class Block:
    """A block: each warp is a generator that yields what it waits for, or None between its steps."""

    def __init__(self, tiles: int, chunks: int, together: int, entries: int, depth: int = 0) -> None:
        self.tiles, self.chunks, self.together, self.entries = tiles, chunks, together, entries
        self.full = [[Barrier() for _ in range(entries)] for _ in range(WARPS)]
        self.empty = [[Barrier() for _ in range(entries)] for _ in range(WARPS)]
        self.mail: list[list[tuple[int, int] | None]] = [[None] * entries for _ in range(WARPS)]
        self.done: list[int] = []

    def cursor(self, warp: int) -> Iterator[tuple[int, int]]:
        """As `Cursor` of the kernel."""
        number, chunk, first, end = 0, warp, 0, min(self.together, self.tiles)
        if warp >= self.chunks:
            return
        while number < self.tiles:
            yield number, chunk
            number += 1
            if number < end:
                continue
            number = first
            chunk += WARPS
            if chunk < self.chunks:
                continue
            chunk, number, first = warp, end, end
            end = min(end + self.together, self.tiles)

    def warp(self, warp: int) -> Iterator[tuple[Barrier, int] | None]:
        received = sent = 0
        to = (warp + 1) % WARPS
        for tile, chunk in self.cursor(warp):
            place, parity = sent % self.entries, sent // self.entries % 2
            if chunk < self.chunks - 1:
                yield self.empty[to][place], parity ^ 1
            sums = (tile, 0)  # the tile and the chunks that have been added
            if chunk > 0:
                own, own_parity = received % self.entries, received // self.entries % 2
                yield self.full[warp][own], own_parity
                found = self.mail[warp][own]
                assert found is not None
                sums = found
            assert sums == (tile, chunk)
            yield None
            sums = (tile, chunk + 1)
            if chunk < self.chunks - 1:
                assert self.mail[to][place] is None  # nothing is overwritten before it is read
                self.mail[to][place] = sums
                yield None
                self.full[to][place].phase += 1
                sent += 1
            if chunk > 0:
                self.mail[warp][own] = None
                yield None
                self.empty[warp][own].phase += 1
                received += 1
            if chunk == self.chunks - 1:
                self.done.append(tile)

    def run(self, rng: random.Random) -> None:
        """Runs the warps in a random order: some for long, while others do not go on."""
        running = {number: self.warp(number) for number in range(WARPS)}
        waits = {number: next(each, "end") for number, each in running.items()}
        while running:
            ready = []
            for number in [*running]:
                waited = waits[number]
                if waited == "end":
                    del running[number]
                elif waited is None or waited[0].passes(waited[1]):
                    ready.append(number)
            assert ready or not running, "all warps wait"
            rng.shuffle(ready)
            for number in ready[: rng.choice((1, 1, 1, 4))]:
                for _ in range(rng.choice((1, 3, 50))):
                    waited = waits[number]
                    if waited == "end" or (waited is not None and not waited[0].passes(waited[1])):
                        break
                    waits[number] = next(running[number], "end")


@pytest.mark.parametrize("seed", range(40))
def test_no_order_of_events_stops_the_warps(seed):
    rng = random.Random(seed)
    for _ in range(4):
        together, entries = rng.randint(1, 8), rng.choice((1, 2, 4))
        block = Block(
            rng.randint(1, 20), rng.choice((1, 2, 15, 16, 17, 31, 32, 33, 37, 48, 112)), together, entries
        )
        block.run(rng)
        assert sorted(block.done) == [*range(block.tiles)]
