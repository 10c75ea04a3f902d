"""Many clients at once, of which a third disconnect: the others are not affected, nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time

import httpx2 as httpx
from waiting import wait_until

from glassloop import Sampling

from .test_operation import idle, metric

CLIENTS = int(os.environ.get("GLASSLOOP_LOAD_CLIENTS", "64"))
SECONDS = float(os.environ.get("GLASSLOOP_LOAD_SECONDS", "2"))
PROMPTS = [
    "Once upon a time",
    "The capital of France is",
    "In the beginning there was a small village where",
    "def fibonacci(n):",
    "The three most important things in life are",
    "Dear Sir or Madam, I am writing to",
]


def options(number: int) -> dict:
    made = {"max_tokens": 12 + number % 13, "seed": number % 24, "temperature": (0, 0.8, 1.2)[number % 3]}
    if number % 5 == 0:
        made["top_p"] = 0.9
    if number % 7 == 0:
        made["repetition_penalty"] = 1.2
    return made


async def client(number: int, url: str, until: float, seen: dict, dropped: list[int]) -> None:
    chance = random.Random(number)
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        turn = 0
        while turn == 0 or time.monotonic() < until:
            job = (number * 7 + turn * 3) % 24
            turn += 1
            leaves = chance.random() < 1 / 3
            body = {"prompt": PROMPTS[job % len(PROMPTS)], "stream": True, **options(job)}
            text = ""
            async with http.stream("POST", "/v1/completions", json=body) as answer:
                assert answer.status_code == 200
                pieces = 0
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        told = json.loads(line[6:])
                        text += told["choices"][0]["text"]
                        pieces += 1
                        if leaves and pieces == 3:
                            break
                    elif line == "data: [DONE]":
                        seen.setdefault(job, set()).add(text)
            if leaves:
                dropped.append(number)


def test_answers_under_load_are_what_each_prompt_gives_alone(server, llm):
    seen: dict[int, set[str]] = {}
    dropped: list[int] = []

    async def all_of_them() -> None:
        until = time.monotonic() + SECONDS
        await asyncio.gather(*(client(n, server.url, until, seen, dropped) for n in range(CLIENTS)))

    before = metric(server, "glassloop_runs_total")
    asyncio.run(all_of_them())
    assert len(dropped) >= CLIENTS // 10 and len(seen) >= 20
    for job, texts in seen.items():
        alone = llm.generate(PROMPTS[job % len(PROMPTS)], Sampling(**options(job))).text
        assert texts == {alone}, job
    assert metric(server, "glassloop_runs_total") > before
    wait_until(lambda: idle(server))
    assert metric(server, "glassloop_kv_pages_held") == 0
