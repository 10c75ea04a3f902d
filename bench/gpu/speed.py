"""Times whole forward passes with random weights: steps of one row for each of some streams, and prefill."""

from __future__ import annotations

import argparse
import itertools
import statistics
import time

import numpy as np
import torch

from bench.gpu.shapes import random_model
from glassloop.ops.batch import Batch, pages_for
from glassloop.ops.torch import program as engine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="8b")
    parser.add_argument("--streams", default="1,16,64,256")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--prefill", default="512,2048")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument(
        "--sweep", action="store_true", help="time attention with other numbers of warps and stages"
    )
    given = parser.parse_args()
    began = time.monotonic()
    model = random_model(given.shape)
    torch.cuda.synchronize()
    print(f"{given.shape}: made in {time.monotonic() - began:.1f} s", flush=True)
    program = model._program.__self__  # type: ignore[attr-defined]
    streams = [int(each) for each in given.streams.split(",")]
    each = pages_for(max(given.context + 64, 2048))
    pages = model.ops.cache(model.cache_specs, model.page_bytes * each * max(streams))
    tables = [np.arange(i * each, (i + 1) * each, dtype=np.int32)[None] for i in range(max(streams))]
    for count in streams:
        step = Batch.of([(tables[i], given.context, [i + 1]) for i in range(count)])
        began = time.monotonic()
        model.forward(step, pages)
        first = time.monotonic() - began
        whole = []
        for _ in range(20):
            began = time.perf_counter()
            model.forward(step, pages)
            whole.append(time.perf_counter() - began)
        (graph, _), *_rest = [program._graphs[key] for key in program._graphs if key[0] >= count]
        device = _graph_seconds(graph)
        print(
            f"{count:4} streams, context {given.context}: graph {device * 1e3:.3f} ms = {count / device:,.0f} tok/s;"
            f" with upload and download {statistics.median(whole) * 1e3:.3f} ms; first {first:.1f} s",
            flush=True,
        )
    for warps, stages in itertools.product((1, 2, 4, 8), (2, 3, 4)) if given.sweep else ():
        engine.ATTENDING.update(num_warps=warps, num_stages=stages)
        program._graphs.clear()
        found = []
        for count in streams:
            step = Batch.of([(tables[i], given.context, [i + 1]) for i in range(count)])
            model.forward(step, pages)
            (graph, _) = next(program._graphs[key] for key in program._graphs if key[0] >= count)
            found.append(f"{_graph_seconds(graph) * 1e3:.3f}")
        print(f"attention with {warps} warps, {stages} stages:", *found, "ms", flush=True)
    for rows in [int(each) for each in given.prefill.split(",") if each]:
        batch = Batch.of([(tables[0], 0, [i % 1000 for i in range(rows)])])
        model.forward(batch, pages)
        whole = []
        for _ in range(5):
            torch.cuda.synchronize()
            began = time.perf_counter()
            model.forward(batch, pages)
            whole.append(time.perf_counter() - began)
        seconds = statistics.median(whole)
        print(f"prefill of {rows}: {seconds * 1e3:.2f} ms = {rows / seconds:,.0f} tok/s", flush=True)
        if given.profile:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
                model.forward(batch, pages)
            print(
                seen.key_averages().table(sort_by="cuda_time_total", row_limit=12, max_name_column_width=40)
            )
    if given.profile:
        for count in streams:
            step = Batch.of([(tables[i], given.context, [i + 1]) for i in range(count)])
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
                model.forward(step, pages)
            print(
                count,
                seen.key_averages().table(sort_by="cuda_time_total", row_limit=12, max_name_column_width=40),
            )


def _graph_seconds(graph: torch.cuda.CUDAGraph, rounds: int = 30) -> float:
    """Returns the median time of a replay."""
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


if __name__ == "__main__":
    main()
