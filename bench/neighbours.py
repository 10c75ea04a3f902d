"""`python -m bench.neighbours`: how fast one client's text comes beside others that ask for much.

A victim writes plain texts, each with a prompt and a seed of its own. Beside it, 1, 4 or 16 other clients
each keep one request of some kind running. Its speed is compared with that beside as many plain clients,
measured just before. Prints a table and a last line of JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from random import Random
from threading import Event, Thread
from time import perf_counter, sleep
from typing import Any

from bench.english import english
from glassloop import LLM, GlassloopError, Sampling
from glassloop.decode.diffusion import Diffusion
from glassloop.engine.owner import owned_by
from glassloop.engine.request import Request

_NUMBERS = count(1)  # of requests: no prompt and no seed comes twice
_WARM_UP = 1.0  # seconds before the victim begins


class Kinds:
    """Requests of each kind, made for a model."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._ids = llm.tokenizer.encode(english())

    def _prepare(self, length: int = 12, **options: Any) -> Request:
        number = next(_NUMBERS)
        start = Random(number).randrange(len(self._ids) - length)
        sampling = {"temperature": 1.0, "max_tokens": 400, "ignore_eos": True, "seed": number, **options}
        return self._llm.prepare(self._ids[start : start + length], Sampling(**sampling))

    def all(self) -> dict[str, Callable[[], Request]]:
        """Returns how a request of each kind is made, by the name of the kind."""
        flat = {"temperature": 2.0, "top_p": 0.95}
        cuts = {"temperature": 5.0, "top_p": 0.99, "typical_p": 0.99, "eta_cutoff": 1e-6, "min_p": 1e-6}
        filled = Diffusion(block=128, revise=64)
        kinds: dict[str, Callable[[], Request]] = {
            "plain": lambda: self._prepare(max_tokens=150),
            "temperature 2, top_p 0.95": lambda: self._prepare(**flat),
            "temperature 2, typical_p 0.95": lambda: self._prepare(temperature=2.0, typical_p=0.95),
            "all cuts, temperature 5": lambda: self._prepare(**cuts, repetition_penalty=1.1),
            "n=128": lambda: self._prepare(n=128),
            "n=128, temperature 2, top_p 0.95": lambda: self._prepare(n=128, **flat),
            "beam_width=128": lambda: self._prepare(beam_width=128, temperature=1.0, max_tokens=100),
            "prompts of 5,200 tokens": lambda: self._prepare(5200, max_tokens=4),
            "the same, prompt_logprobs=64": lambda: self._prepare(5200, max_tokens=4, prompt_logprobs=64),
        }
        if self._llm.can_diffuse:
            kinds["diffusion, blocks of 128"] = lambda: self._prepare(diffusion=filled, ignore_eos=False)
        return kinds


class Neighbours:
    def __init__(self, llm: LLM, seconds: float) -> None:
        self._llm = llm
        self._seconds = seconds
        self.kinds = Kinds(llm).all()

    def speed(self, kind: str, clients: int) -> tuple[float, float]:
        """Returns the victim's tokens per second beside so many clients, and its longest gap in seconds."""
        with self._beside(kind, clients):
            sleep(_WARM_UP if clients else 0.0)
            began, times = perf_counter(), list[float]()
            while perf_counter() - began < self._seconds:
                with owned_by("victim"):
                    request = self.kinds["plain"]()
                for _ in self._llm.follow(request):
                    times.append(perf_counter())
                    if times[-1] - began > self._seconds:
                        break
            took = perf_counter() - began
        gaps = [after - before for before, after in zip([began, *times], times, strict=False)]
        return len(times) / took, max(gaps, default=took)

    @contextmanager
    def _beside(self, kind: str, clients: int) -> Iterator[None]:
        over = Event()
        threads = [Thread(target=self._ask, args=(kind, f"client {i}", over)) for i in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def _ask(self, kind: str, client: str, over: Event) -> None:
        """Keeps one request of a client running."""
        while not over.is_set():
            with owned_by(client):
                request = self.kinds[kind]()
            ended = Event()
            request.listener = lambda run, token, it=request, end=ended: end.set() if it.ended else None
            try:
                self._llm.submit(request)
            except GlassloopError:  # too many wait
                sleep(0.05)
                continue
            while not ended.wait(0.05):
                if over.is_set():
                    self._llm.cancel(request)
                    ended.wait(10)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.neighbours", description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--clients", default="1,4", help="numbers of other clients")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each measurement")
    parser.add_argument("--kinds", help="words that the names of the kinds have, with commas between them")
    given = parser.parse_args()
    llm = LLM(given.model)
    bench = Neighbours(llm, given.seconds)
    words = given.kinds.split(",") if given.kinds else [""]
    kinds = [name for name in bench.kinds if name != "plain" and any(word in name for word in words)]
    found: dict[str, Any] = {"alone": round(bench.speed("plain", 0)[0], 1), "beside": []}
    print(f"alone: {found['alone']} tokens/s")
    print(f"{'beside':<36}{'clients':>8}{'tokens/s':>10}{'plain':>8}{'share':>8}{'gap, s':>8}")
    for clients in map(int, given.clients.split(",")):
        for kind in kinds:
            fair, _ = bench.speed("plain", clients)
            speed, gap = bench.speed(kind, clients)
            row = {"kind": kind, "clients": clients, "speed": round(speed, 1), "plain": round(fair, 1)}
            found["beside"].append(row | {"gap": round(gap, 2)})
            share = f"{100 * speed / fair:.0f} %"
            print(f"{kind:<36}{clients:>8}{speed:>10.1f}{fair:>8.1f}{share:>8}{gap:>8.2f}", flush=True)
    llm.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
