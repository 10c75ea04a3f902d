"""The time of a CUDA graph on the device."""

from __future__ import annotations

import statistics

import torch


def graph_seconds(graph: torch.cuda.CUDAGraph, rounds: int) -> float:
    """Returns the median time of a replay, by events of the device."""
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)
