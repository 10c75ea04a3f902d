"""Times whole forward passes with random weights: steps of one row for each of some streams, and prefill."""

from __future__ import annotations

import argparse
import itertools
import statistics
import time

import numpy as np
import torch

from bench.gpu.shapes import SHAPES, WEIGHTS, random_model
from bench.gpu.timing import graph_seconds
from glassloop.model.transformer import Transformer
from glassloop.ops.batch import Batch, pages_for
from glassloop.ops.kv_cache import Pages
from glassloop.ops.torch import launcher as torch_launcher
from glassloop.ops.torch import program as torch_program


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", default="8b", choices=SHAPES)
    parser.add_argument("--weights", default="bf16", choices=WEIGHTS)
    parser.add_argument("--streams", default="1,16,64,256")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--prefill", default="512,2048")
    parser.add_argument("--profile", action="store_true", help="print the time of each kernel")
    parser.add_argument("--sweep", action="store_true", help="time attention with other warps and stages")


def main(given: argparse.Namespace) -> None:
    began = time.monotonic()
    model = random_model(given.shape, weights=given.weights)
    torch.cuda.synchronize()
    print(f"{given.shape}: made in {time.monotonic() - began:.1f} s", flush=True)
    streams = _numbers(given.streams)
    prefills = _numbers(given.prefill)
    each = pages_for(max([given.context + 1, *prefills]))
    pages = model.ops.cache(model.cache_specs, model.page_bytes * each * max(streams))
    tables = np.arange(each * max(streams), dtype=np.int32).reshape(-1, 1, each)
    steps = {
        count: Batch.of([(tables[i], given.context, [i + 1]) for i in range(count)]) for count in streams
    }
    for count, step in steps.items():
        first = _seconds(model, step, pages, 1)
        whole = _seconds(model, step, pages, 20)
        device = _graph_seconds(model, count)
        print(
            f"{count:4} streams, context {given.context}: graph {device * 1e3:.3f} ms ="
            f" {count / device:,.0f} tok/s;"
            f" with upload and download {whole * 1e3:.3f} ms; first {first:.1f} s",
            flush=True,
        )
    for warps, stages in itertools.product((1, 2, 4, 8), (2, 3, 4)) if given.sweep else ():
        torch_launcher.ATTENTION.update(num_warps=warps, num_stages=stages)
        _program(model)._graphs.clear()
        found = []
        for count, step in steps.items():
            model.forward(step, pages)
            found.append(f"{_graph_seconds(model, count) * 1e3:.3f}")
        print(f"attention with {warps} warps, {stages} stages:", *found, "ms", flush=True)
    prompts = {rows: Batch.of([(tables[0], 0, [i % 1000 for i in range(rows)])]) for rows in prefills}
    for rows, prompt in prompts.items():
        model.forward(prompt, pages)
        seconds = _seconds(model, prompt, pages, 5)
        print(f"prefill of {rows}: {seconds * 1e3:.2f} ms = {rows / seconds:,.0f} tok/s", flush=True)
    if given.profile:
        for rows, batch in (prompts | steps).items():
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
                model.forward(batch, pages)
            about = {"sort_by": "cuda_time_total", "row_limit": 12, "max_name_column_width": 40}
            print(f"{rows} rows:", seen.key_averages().table(**about))


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",") if each]


def _seconds(model: Transformer, batch: Batch, pages: list[Pages], rounds: int) -> float:
    """Returns the median time of a forward pass, the upload of the batch and the download of all logits
    included."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        model.ops.host(model.forward(batch, pages))
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _program(model: Transformer) -> torch_program.CudaProgram:
    program: torch_program.CudaProgram = model._program.plain.__self__  # type: ignore[attr-defined]
    return program


def _graph_seconds(model: Transformer, streams: int, rounds: int = 30) -> float:
    """Returns the median time of a replay of the graph for this many streams, without upload and download."""
    size = next(size for size in torch_program.SIZES if size >= streams)
    graph = next(graph for key, graph in _program(model)._graphs.items() if key[0] == size)
    return graph_seconds(graph, rounds)
