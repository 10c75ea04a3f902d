"""Choosing tokens from rows of logits that stay on the device.

Kernels find in each row what a choice needs (kernels/rows.py), some kilobytes instead of the whole row; these
are downloaded together, and C makes the choices and their records from them (ops/native/choosing.c). Rules
about single tokens that come before all others, the edits (penalties, biases, grammars), are applied to a
copy of the row on the device, which is looked through like the row itself. Cuts that keep more tokens than C
gets are followed on the device (kernels/survivors.py). A choice that needs more, as with a penalty after the
temperature, has its row downloaded and is made as for the native op set. All ways give the same record, to
the last bit.

The device also predicts each token, whatever the rules (kernels/cuts.py), so that it can compute the next
step while the host chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from glassloop.ops.native import chooser as native
from glassloop.ops.native import rows as native_rows
from glassloop.ops.native.library import MOST_HIGH, MOST_OTHERS, MOST_RACERS
from glassloop.ops.quant import Float32
from glassloop.ops.rows import Chooser, Line
from glassloop.ops.torch.device import Device
from glassloop.ops.torch.device_rows import DeviceRows
from glassloop.ops.torch.kernels import cuts as cut_kernels
from glassloop.ops.torch.kernels import edits as edit_kernels
from glassloop.ops.torch.kernels import lines as line_layout
from glassloop.ops.torch.kernels import order as order_kernels
from glassloop.ops.torch.kernels import racing as race_kernels
from glassloop.ops.torch.kernels import rows as kernels
from glassloop.ops.torch.kernels import survivors as survivor_kernels
from glassloop.ops.torch.lines import Asked, asked_of, pack_lines

# The constants of the kernels: groups of a row, and how many one program looks through, some steps at a time;
# parts that one program sums; logits that one program looks through; tokens that are listed.
SETTINGS = {
    "GROUPS": 1024,
    "SOME": 128,
    "STEPS": 16,
    "PARTS": 16,
    "BLOCK": 2048,
    "HIGH": MOST_HIGH,
    "OTHER": MOST_OTHERS,
    "RACES": MOST_RACERS // 2,
    "FOLLOWED": 4096,
    "SUMMED": 256,
}
CUTTING = (cut_kernels.count_kernel, cut_kernels.cut_kernel, cut_kernels.race_kernel)
PREDICTING = (
    kernels.maxima_kernel,
    kernels.bounds_kernel,
    *CUTTING,
    kernels.search_kernel,
    kernels.predict_kernel,
)
# What no prediction needs.
FOLLOWING = (
    order_kernels.scatter_kernel,
    order_kernels.order_kernel,
    survivor_kernels.follow_kernel,
    race_kernels.racers_kernel,
    race_kernels.first_racer_kernel,
    race_kernels.list_sum_kernel,
    race_kernels.array_sums_kernel,
)
NOTING = (kernels.winner_kernel, kernels.rank_kernel)
EDITING = (edit_kernels.copy_kernel, edit_kernels.edit_kernel)
FEW_LINES, FEW_GROUPS = 16, 16  # up to so many lines, one program looks through so many groups
MOST_SLOTS = 256  # lines whose tokens are put in order at a time
# Warps of programs that have all bins of a line in their registers, or a block of its survivors; and of one
# that mostly adds up numbers one after another.
WARPS = {
    cut_kernels.cut_kernel: 16,
    survivor_kernels.follow_kernel: 8,
    order_kernels.order_kernel: 8,
    race_kernels.racers_kernel: 8,
    race_kernels.list_sum_kernel: 1,
}
EARLY_LINES = 64  # up to which a kernel is launched before the previous one has ended


class DeviceChoices:
    """Choices from rows on the device that it has begun to make; implements `ops/rows.py:Started`."""

    def __init__(
        self,
        logits: DeviceRows,
        lines: Sequence[Line],
        asked: Sequence[Asked],
        predicted: torch.Tensor,
        found: NDArray[np.uint8],
        tokens: NDArray[np.int32],
        done: torch.cuda.Event | None,
    ) -> None:
        """`found` and `tokens` are the memory of the host that the device writes to until `done`: a piece for
        each line, then those about rows after their edits."""
        self.predicted = predicted  # on the device
        self._logits, self._lines, self._asked = logits, lines, asked
        self._found, self._tokens, self._done = found, tokens, done

    def finish(self, record: np.dtype[np.void]) -> tuple[bytearray, list[int]]:
        if self._done is not None:
            self._done.synchronize()
        logits, lines, size = self._logits, self._lines, record.itemsize
        edited, scales, after = [-1] * len(lines), [1.0] * len(lines), len(lines)
        for number, asked in enumerate(self._asked):
            if asked.edited is not None:
                edited[number], scales[number] = after, asked.scale
                after += 1
        made, missing = native.choose_found(self._found, logits.shape[1], lines, edited, scales, record)
        if missing:
            rows = logits.rows([lines[number][1] for number in missing])
            again = [(lines[number][0], place, lines[number][2]) for place, number in enumerate(missing)]
            records = native.choose(rows, again, record)
            for place, number in enumerate(missing):
                made[number * size : (number + 1) * size] = records[place * size : (place + 1) * size]
        return made, self._tokens.tolist()


class DeviceChooser:
    """Chooses tokens from rows on the device; implements `ops/rows.py:Chooser`. Rows on the host are left to
    the native chooser. Two choices at a time may be under way."""

    layout = native.layout
    follows_whole_rows = True
    survivors = staticmethod(native.survivors)
    race = staticmethod(native.race)
    luck_of = staticmethod(native.luck_of)

    def __init__(self, device: Device) -> None:
        self._device = device
        self._memory: dict[str, torch.Tensor] = {}
        self._turn = 0
        # When the device has read and written all of the last call.
        self._done: torch.cuda.Event | None = None
        self._launches_early = device.tma_processors > 0

    def choose(self, logits: Any, lines: Sequence[Line], record: np.dtype[np.void]) -> bytes | bytearray:
        if not isinstance(logits, DeviceRows):
            return native.choose(logits, lines, record)
        return self.start(logits, lines).finish(record)[0]

    def start(self, logits: DeviceRows, lines: Sequence[Line]) -> DeviceChoices:
        """Looks through rows of logits on the device for what each line needs, and predicts its token."""
        device = self._device
        with (
            device.current(),
            torch.inference_mode(),
            device.memory_errors(f"the choice of {len(lines)} tokens"),
        ):
            return self._start(logits, lines)

    def _start(self, rows: DeviceRows, lines: Sequence[Line]) -> DeviceChoices:
        _, width = rows.shape
        asked = [asked_of(request, width) for request, _, _ in lines]
        # What no prediction needs is computed beside the next step, from rows that stay.
        beside = self._device.aside if self._device.has_streams else None
        if beside is not None:
            rows.keep()
        logits = rows.values
        packed, edits = pack_lines(lines, asked, len(rows))
        size, count, pieces = native.found_bytes(width), len(lines), len(packed)
        # The memory of the host is that of every second call: the device may still read or write the other.
        self._turn = 1 - self._turn
        wanted = self._lines_on_device(packed, edits, beside)
        tokens_at = -(-pieces * size // 64) * 64  # kernels are compiled once more for other alignments
        found = self._array("found", tokens_at // 8 + (count + 1) // 2, torch.float64)
        predicted = found.view(torch.int32)[tokens_at // 4 :][:count]
        stride = logits.stride(0)
        settings = SETTINGS if pieces > FEW_LINES else SETTINGS | {"SOME": FEW_GROUPS}
        parts, blocks = -(-width // line_layout.PART.value), -(-width // settings["BLOCK"])
        is_drawing = any(request.branch_key is not None for request, _, _ in lines)
        cutting = sum(each.has_cuts for each in asked)
        slot_count = min(cutting, MOST_SLOTS)
        chunks, summing = settings["GROUPS"] // settings["SOME"], -(-parts // settings["PARTS"])
        arrays = {
            "logits": logits,
            "edited": logits
            if pieces == count
            else self._array("edited", (pieces - count) * stride, torch.float32),
            "lines": wanted,
            "words": wanted.view(torch.int32),
            "first": count,
            "maxima": self._array("maxima", pieces * settings["GROUPS"], torch.float32),
            "places": self._array("places", pieces * settings["GROUPS"], torch.int32),
            "scores": self._array("scores", pieces * settings["GROUPS"], torch.float32),
            "counts": self._array("counts", pieces * cut_kernels.BINS.value if cutting else 1, torch.int32),
            "bounds": self._array("bounds", 2 * pieces, torch.int32),
            "firsts": self._array("firsts", pieces, torch.int32),
            "slots": self._array("slots", 1 + pieces, torch.int32),
            "full": self._array("full", pieces, torch.int32),
            "untils": self._array("untils", pieces, torch.int32),
            "totals": self._array("totals", pieces, torch.int32),
            "tails": self._array("tails", 2 * max(slot_count, 1) * blocks, torch.float64),
            "blocks": blocks,
            "keys": (keys := self._array("keys", max(slot_count * stride, 1), torch.int64, spare=1)),
            "masses": keys.view(torch.float64),
            "sorted_keys": self._array("sorted keys", max(slot_count * stride, 1), torch.int64, spare=1),
            "pieces": pieces,
            "race_scores": self._array("race scores", pieces * chunks, torch.float32),
            "race_ids": self._array("race ids", pieces * chunks, torch.int32),
            "ints": found.view(torch.int32),
            "floats": found.view(torch.float32),
            "doubles": found,
            "predicted": predicted,
            "stride": stride,
            "width": width,
            "parts": parts,
            "found_bytes": size,
            "summing": 0 if beside else summing,
            "listing": blocks,
            "EARLY": self._launches_early and pieces <= EARLY_LINES,
            **settings,
        }
        programs = {
            edit_kernels.copy_kernel: blocks,
            kernels.maxima_kernel: chunks,
            kernels.search_kernel: (0 if beside else summing) + blocks + (chunks if is_drawing else 0),
            kernels.rank_kernel: blocks,
            cut_kernels.count_kernel: blocks,
            cut_kernels.race_kernel: chunks,
            order_kernels.scatter_kernel: blocks,
            order_kernels.order_kernel: blocks,
            race_kernels.racers_kernel: settings["RACES"],
            race_kernels.array_sums_kernel: summing,
        }
        skipped: set[Any] = set()
        if not is_drawing:
            skipped.add(kernels.winner_kernel)
            if pieces == count:
                skipped.add(kernels.rank_kernel)
        if cutting:
            arrays["counts"].zero_()
        else:
            skipped.update(CUTTING)
        if pieces > count:
            for kernel in EDITING:
                _launch(kernel, (pieces - count, programs.get(kernel, 1)), arrays)
        grids = {
            kernel: (pieces, programs.get(kernel, 1))
            for kernel in (*PREDICTING, *NOTING)
            if kernel not in skipped
        }
        groups = {
            first: {
                kernel: (min(slot_count, cutting - first), programs.get(kernel, 1)) for kernel in FOLLOWING
            }
            for first in range(0, cutting, MOST_SLOTS)
        }
        self._find(rows, arrays, grids, groups, summing, beside)
        made = self._array(f"host found {self._turn}", len(found), torch.float64, on_host=True)
        with nullcontext() if beside is None else torch.cuda.stream(beside):
            made.copy_(found, non_blocking=True)
            has_streams = self._device.has_streams
            self._done = torch.cuda.current_stream().record_event() if has_streams else None
        view = made.numpy().view(np.uint8)
        tokens = view[tokens_at:].view(np.int32)[:count]
        return DeviceChoices(
            rows, lines, asked, predicted, view[: pieces * size].reshape(pieces, size), tokens, self._done
        )

    def _lines_on_device(
        self, packed: NDArray[np.int64], edits: bytes, beside: torch.cuda.Stream | None
    ) -> torch.Tensor:
        """Returns packed lines, and after them their edits, on the device."""
        length = packed.size + len(edits) // 8
        lines = self._array("lines", length, torch.int64)
        host = self._array(f"host lines {self._turn}", length, torch.int64, on_host=True)
        host.numpy()[: packed.size] = packed.ravel()
        host.numpy()[packed.size :] = np.frombuffer(edits, np.int64)
        self._upload(lines, host, beside)
        return lines

    def _find(
        self,
        rows: DeviceRows,
        arrays: dict[str, Any],
        grids: dict[Any, tuple[int, int]],
        groups: dict[int, dict[Any, tuple[int, int]]],
        summing: int,
        beside: torch.cuda.Stream | None,
    ) -> None:
        """Launches the kernels: those that predict tokens, and the others on the stream beside, if there is
        one. There the sums come too, by `summing` programs for each piece, and the cuts, for one group of
        lines after another: each is the number of the first slot, and what is launched."""
        has_bounds: torch.cuda.Event | None = None
        predicted: torch.cuda.Event | None = None
        for kernel in PREDICTING:
            if kernel in grids:
                _launch(kernel, grids[kernel], arrays)
            if beside is not None and kernel is kernels.bounds_kernel:
                has_bounds = torch.cuda.current_stream().record_event()
        rows.stop_timer()
        if beside is not None:
            predicted = torch.cuda.current_stream().record_event()
        with nullcontext() if beside is None else torch.cuda.stream(beside):
            late = arrays | {"EARLY": False}
            if beside is not None:
                beside.wait_event(has_bounds)
                grid = (grids[kernels.search_kernel][0], summing)
                _launch(kernels.search_kernel, grid, late | {"summing": summing, "listing": 0})
                beside.wait_event(predicted)
                arrays["logits"].record_stream(beside)
            if groups:
                _launch(order_kernels.slots_kernel, (1, 1), late)
            for first, following in groups.items():
                for kernel, grid in following.items():
                    # Only C needs the winner of an edited row, to be found in the unedited one.
                    if kernel is race_kernels.first_racer_kernel and arrays["edited"] is arrays["logits"]:
                        continue
                    _launch(kernel, grid, late | {"first": first})
            for kernel in NOTING:
                if kernel in grids:
                    _launch(kernel, grids[kernel], late)

    def _upload(self, to: torch.Tensor, host: torch.Tensor, beside: torch.cuda.Stream | None) -> None:
        """Copies lines to the device, beside the step whose rows they are about, if there is a stream for
        that. What the last call has left to the device is done before."""
        if not self._device.has_streams:
            to.copy_(host)
            return
        stream = torch.cuda.current_stream()
        with torch.cuda.stream(stream if beside is None else beside):
            if self._done is not None:
                torch.cuda.current_stream().wait_event(self._done)
            to.copy_(host, non_blocking=True)
            if beside is not None:
                stream.wait_event(beside.record_event())

    def _array(
        self, name: str, size: int, kind: torch.dtype, on_host: bool = False, spare: int = 2
    ) -> torch.Tensor:
        """Returns an array that is kept for the next call. If it is new, it is `spare` times as large."""
        kept = self._memory.get(name)
        if kept is None or len(kept) < size:
            pinned = on_host and self._device.has_streams
            device = torch.device("cpu") if on_host else self._device.torch
            self._memory[name] = kept = torch.empty(
                spare * size, dtype=kind, device=device, pin_memory=pinned
            )
            if self._device.has_streams and not on_host:
                # The memory may be that of an array which kernels that are under way still use.
                self._device.aside.wait_stream(torch.cuda.current_stream())
        return kept[:size]


def _launch(kernel: Any, grid: tuple[int, int], arguments: dict[str, Any]) -> None:
    """Launches a kernel with those of the arguments that it has, without fusing products and sums."""
    given = {name: arguments[name] for name in kernel.arg_names}
    if given.get("EARLY"):
        given["launch_pdl"] = True
    if kernel in WARPS:
        given["num_warps"] = WARPS[kernel]
    kernel[grid](**given, enable_fp_fusion=False)


class DeviceRowOps:
    """Functions over rows of logits; implements `ops/rows.py:RowOps`."""

    summarize = staticmethod(native_rows.summarize)
    highest = staticmethod(native_rows.highest)
    log_sum_exp = staticmethod(native_rows.log_sum_exp)
    rank_of = staticmethod(native_rows.rank_of)

    def __init__(self, device: Device) -> None:
        self.chooser: Chooser = (chooser := DeviceChooser(device))
        self.start = chooser.start

    def host(self, row: Any) -> Float32:
        return row.host() if isinstance(row, DeviceRows) else row
