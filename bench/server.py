"""`python -m bench.server`: tokens per second over HTTP with 1, 8 and 16 clients. Our server, the server of
llama-cpp-python and our engine without a server take turns. Prints a table and a last line of JSON.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from time import monotonic, perf_counter, sleep
from typing import Any

from bench.catalog import LLAMA, ROOT
from bench.environments import Absent, log_file, python_for
from bench.process import environment
from bench.statistics import ratio, summarize
from glassloop import LLM, Sampling
from glassloop.model.registry import DEFAULT_MODEL, fetch
from glassloop.ops.native.library import wanted_threads

CLIENTS = (1, 8, 16)
TOKENS = 64
Result = tuple[float, float]  # total tokens per second, and the mean seconds to the first token
Way = Callable[[int, int], Result]  # (clients, round)


class Failed(Exception):
    """The response of a server that is not an answer."""


def prompts(clients: int, number: int) -> list[str]:
    """Returns prompts without a common prefix, so that no cache helps."""
    return [
        f"Round {number}, client {client}. Once upon a time, in a small town," for client in range(clients)
    ]


def through_server(port: int) -> Way:
    def run(clients: int, number: int) -> Result:
        found: list[tuple[int, float]] = []
        failed: list[BaseException] = []

        def one(prompt: str) -> None:
            try:
                found.append(stream(port, prompt))
            except BaseException as error:
                failed.append(error)

        threads = [Thread(target=one, args=(prompt,)) for prompt in prompts(clients, number)]
        began = perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = perf_counter() - began
        if failed:
            raise failed[0]
        return sum(tokens for tokens, _ in found) / took, sum(first for _, first in found) / clients

    return run


def stream(port: int, prompt: str) -> tuple[int, float]:
    """Returns the number of tokens received, and the seconds until the first."""
    body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "stream": True}
    began = perf_counter()
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise Failed(answer.read()[:300].decode("utf-8", "replace"))
        tokens, first = 0, 0.0
        for line in answer:
            if line.startswith(b"data: {"):
                tokens += 1
                first = first or perf_counter() - began
        return tokens, first
    finally:
        connection.close()


def through_engine(llm: LLM) -> Way:
    sampling = Sampling(temperature=0, max_tokens=TOKENS)

    def run(clients: int, number: int) -> Result:
        began = perf_counter()
        runs = llm.generate(prompts(clients, number), sampling, progress=False)
        took = perf_counter() - began
        return sum(len(run.tokens) for run in runs) / took, sum(
            run.tokens[0].seconds for run in runs
        ) / clients

    return run


@contextmanager
def serving(command: list[str], port: int, log: Path, threads: int) -> Iterator[Way]:
    """Starts a server, and yields it when it has answered once."""
    with log.open("a") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, cwd=ROOT, env=environment(threads))
    try:
        deadline = monotonic() + 60
        while True:
            try:
                if not stream(port, prompts(1, 0)[0])[0]:
                    raise ConnectionError
                break
            except (OSError, HTTPException):
                if process.poll() is not None:
                    raise Absent(f"the server died ({process.returncode}); see {log}") from None
                if monotonic() > deadline:
                    raise Absent(f"the server does not answer; see {log}") from None
                sleep(0.2)
        yield through_server(port)
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def start_ours(stack: ExitStack, model: Path, threads: int) -> Way:
    port = free_port()
    store = Path(stack.enter_context(TemporaryDirectory())) / "runs.db"
    command = [sys.executable, "-m", "glassloop", "serve", "--model", str(model), "--port", str(port)]
    command += ["--store", str(store)]
    return stack.enter_context(serving(command, port, log_file(LLAMA).with_name("server.log"), threads))


def start_llama(stack: ExitStack, model: Path, threads: int) -> Way:
    for plain in ([], ["plain"]):
        port = free_port()
        script = str(ROOT / "bench" / "peers" / "llama_cpp_server.py")
        # (-P: otherwise a file beside the script would shadow the package of the same name)
        command = [str(python_for(LLAMA)), "-P", script, str(model), str(port), str(threads), *plain]
        try:
            return stack.enter_context(serving(command, port, log_file(LLAMA), threads))
        except Absent as error:
            reason = error
    raise reason


def main() -> None:
    parser = argparse.ArgumentParser("bench.server", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds (5)")
    parser.add_argument("--alone", action="store_true", help="our engine and server only")
    options = parser.parse_args()
    model, threads = fetch(DEFAULT_MODEL), wanted_threads()
    found: dict[str, dict[str, list[Result]]] = {}
    with ExitStack() as stack, LLM() as llm:
        ways = {"engine": through_engine(llm), "server": start_ours(stack, model, threads)}
        try:
            if not options.alone:
                ways["llama.cpp"] = start_llama(stack, model, threads)
        except Absent as error:
            print(f"llama.cpp takes no part: {error}", file=sys.stderr)
        for clients in CLIENTS:
            results = found[str(clients)] = {name: [] for name in ways}
            for number in range(options.rounds + 1):
                for name, way in ways.items():
                    sleep(0.1)
                    result = way(clients, 100 * clients + number)
                    if number:  # the first round warms up
                        results[name].append(result)
    print(report(found))
    print(json.dumps({"server": found}))


def report(found: dict[str, dict[str, list[Result]]]) -> str:
    lines = [f"tokens a second of all clients together, {TOKENS} tokens each; first token, ms"]
    for clients, results in found.items():
        lines.append(f"\n{clients} client{'' if clients == '1' else 's'}")
        ours = [speed for speed, _ in results["server"]]
        for name, values in results.items():
            speeds, firsts = (
                summarize([speed for speed, _ in values]),
                summarize([first for _, first in values]),
            )
            assert speeds is not None and firsts is not None
            share: Any = ratio(ours, [speed for speed, _ in values])
            compared = "" if name == "server" else f"   server / {name} {share:.2f}×"
            lines.append(
                f"  {name:10}{speeds.median:8.1f} ±{100 * speeds.spread:.0f} %"
                f"{1000 * firsts.median:10.0f}{compared}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
