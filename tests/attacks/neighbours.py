"""Clients that ask for as much as they may, one valid request after the other: many samples, wide beams,
diffusion, long prompts, readings, repairs, flat distributions, all cuts, grammars.
"""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

from attacks.harness import Server

_NUMBERS = count(1)  # of requests: no prompt comes twice, so that no cache shortens it
_FLAT = {"temperature": 2.0, "top_p": 0.95}
_CUTS = {
    "temperature": 5.0,
    "top_p": 0.99,
    "typical_p": 0.99,
    "top_n_sigma": 8.0,
    "epsilon_cutoff": 1e-6,
    "eta_cutoff": 1e-6,
    "min_p": 1e-6,
    "xtc_probability": 0.5,
    "repetition_penalty": 1.1,
    "no_repeat_ngram_size": 3,
}
_GRAMMAR = 'start: item+\nitem: "(" item* ")" | /[a-z]{1,9}/ " "'

Made = tuple[str, dict[str, Any]]  # a path and a body


def _text(words: int) -> str:
    number = next(_NUMBERS)
    rng = Random(number)
    return f"{number} " + " ".join(
        f"{rng.choice(['sea', 'glass', 'loop'])}{rng.randrange(99)}" for _ in range(words)
    )


def _completion(words: int = 5, tokens: int = 400, **options: Any) -> Made:
    body = {"prompt": _text(words), "max_tokens": tokens, "ignore_eos": True, **options}
    return "/v1/completions", body


KINDS: dict[str, Callable[[], Made]] = {
    "n=128": lambda: _completion(n=128),
    "n=128, flat": lambda: _completion(n=128, **_FLAT),
    "flat": lambda: _completion(**_FLAT),
    "all cuts": lambda: _completion(**_CUTS),
    "beams": lambda: _completion(beam_width=128, temperature=1.0, tokens=100),
    "diffusion": lambda: (
        "/api/diffusions",
        {"prompt": _text(5), "sampling": {"max_tokens": 400}, "diffusion": {"block": 128, "revise": 64}},
    ),
    "long prompt": lambda: _completion(2500, 4),
    "prompt_logprobs": lambda: _completion(2500, 4, prompt_logprobs=20),
    "repair": lambda: ("/api/edits/repair", {"text": _text(60), "budget": 200_000, "candidates": 64}),
    "embeddings": lambda: ("/v1/embeddings", {"input": [_text(600) for _ in range(20)]}),
    "grammar": lambda: _completion(grammar=_GRAMMAR, ignore_eos=False, **_FLAT),
    "lens": lambda: _completion(1200, 1),  # whose layers are looked at then
}


class Neighbours:
    """Keeps so many clients with one key asking, from `with` on until it ends."""

    def __init__(self, server: Server, key: str, clients: int, seed: int) -> None:
        self._server = server
        self._headers = {"authorization": f"Bearer {key}"}
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(Random(f"{seed} neighbour {number}"),), daemon=True)
            for number in range(clients)
        ]
        self.statuses: Counter[str] = Counter()

    def __enter__(self) -> Neighbours:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(90)

    def _ask(self, rng: Random) -> None:
        while not self._over.is_set() and self._server.alive:
            kind = rng.choice(sorted(KINDS))
            path, body = KINDS[kind]()
            patience = rng.choice([0.5, 5.0, 60.0])  # some leave before they are answered
            try:
                answer = self._server.post(path, body, headers=self._headers, timeout=patience)
                if kind == "lens" and answer.status == 200:
                    run = answer.headers["x-glassloop-run"]
                    looked = f"/api/runs/{run}/lens/layers"
                    answer = self._server.get(looked, headers=self._headers, timeout=patience)
                told = str(answer.status)
            except TimeoutError:
                told = "left"
            except (OSError, http.client.HTTPException):
                told = "closed"
            self.statuses[f"{kind}: {told}"] += 1
            if told not in ("200", "left"):
                self._over.wait(0.2)
