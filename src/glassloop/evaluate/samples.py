"""Draws samples of every item of a task and records them, so that methods can be computed from them later.

Voting, best of n and online stopping all work on independent samples: drawn once, with the confidence of
every token, they give the results of these methods for any n without the model (`analyse.py`). Sample k of an
item has the seed and the salt that path k of a search has, so its tokens are the same.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from glassloop.decode.luck import list_seed
from glassloop.decode.sampling import Sampling
from glassloop.engine.request import Request
from glassloop.evaluate.evaluation_task import EvaluationTask, TaskItem
from glassloop.evaluate.record import Record
from glassloop.record.run import Run
from glassloop.record.token import Token
from glassloop.search.path_confidence import likelihood, token_confidences

if TYPE_CHECKING:
    from glassloop.api.llm import LLM

GREEDY, SAMPLES = "greedy", "samples"
ALTERNATIVES = 20  # that the confidence of a token is made of, as in the method `confidence`


@dataclass(frozen=True)
class Plan:
    """What to draw for each item: one greedy answer, and n samples."""

    greedy: bool
    n: int
    temperature: float
    max_tokens: int
    seed: int
    options: tuple[tuple[str, Any], ...] = ()  # other options of `Sampling`, for the samples

    def header(self, task: EvaluationTask, llm: LLM) -> dict[str, Any]:
        """Returns the header of the record. The number of items is not in it, so that more can be added, nor
        is n of the greedy answer."""
        return {
            "what": "samples",
            "task": task.name,
            "digest": task.digest,
            "model": llm.name.rpartition("/")[2].removesuffix(".gguf"),
            "hash": llm.model_hash,
            "ops": llm.ops,
            "n": self.n,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
            "options": dict(self.options),
        }


def draw(
    llm: LLM,
    task: EvaluationTask,
    indices: Sequence[int],
    plan: Plan,
    record: Record,
    told: Callable[[int], None],
) -> None:
    """Draws what the record does not have yet, for the items with these indices. `told` is given the number
    of tokens of each finished row."""
    have = {(row["item"], row["kind"]) for row in record.rows}
    for kind in [GREEDY] * plan.greedy + [SAMPLES] * bool(plan.n):
        missing = [
            (index, task.items[index]) for index in indices if (task.items[index].id, kind) not in have
        ]
        if not missing:
            continue
        record.begin()
        requests = ((item, _request(llm, task, plan, kind, index, item)) for index, item in missing)
        paths = plan.n if kind == SAMPLES else 1
        for item, request in _completed(llm, requests, paths):
            record.add({"item": item.id, "kind": kind, **_row(request)})
            told(sum(len(run.tokens) for run in request.runs))


def _request(llm: LLM, task: EvaluationTask, plan: Plan, kind: str, index: int, item: TaskItem) -> Request:
    shared: dict[str, Any] = {
        "max_tokens": plan.max_tokens,
        "stop": list(task.stop),
        "seed": list_seed(plan.seed, index),
    }
    if kind == GREEDY:
        sampling = Sampling(temperature=0, **shared)
    else:
        options = {"temperature": plan.temperature, "logprobs": ALTERNATIVES, "n": plan.n}
        sampling = Sampling(**{**shared, **options, **dict(plan.options)})
    return request_for(llm, task, item, sampling)


def request_for(llm: LLM, task: EvaluationTask, item: TaskItem, sampling: Sampling) -> Request:
    """Returns the request for the answer to an item."""
    if not isinstance(item.question, str):
        return llm.prepare_chat(item.question, sampling)
    if task.chat or (task.chat is None and llm.tokenizer.chat_template is not None):
        return llm.prepare_chat([{"role": "user", "content": item.question}], sampling)
    return llm.prepare(item.question, sampling)


def _row(request: Request) -> dict[str, Any]:
    runs = [
        {
            "text": run.text,
            "tokens": len(run.tokens),
            "finish": run.finish_reason,
            "logprob": round(likelihood(run), 6),
            "confidence": pack(token_confidences(run.tokens)),
        }
        for run in request.runs
    ]
    return {"prompt_tokens": len(request.prompt_ids), "runs": runs}


def pack(values: np.ndarray[Any, Any]) -> str:
    """Returns numbers as float32 in base64."""
    return b64encode(np.asarray(values, "<f4").tobytes()).decode()


def unpack(text: str) -> np.ndarray[Any, Any]:
    """Returns the numbers that `pack` has packed."""
    return np.frombuffer(b64decode(text), "<f4").astype(np.float64)


def _completed(
    llm: LLM, requests: Iterator[tuple[TaskItem, Request]], paths: int
) -> Iterator[tuple[TaskItem, Request]]:
    """Submits requests as there is room for them, and yields each when all of its runs have ended."""
    llm.check_may_wait()
    ended: SimpleQueue[tuple[TaskItem, Request]] = SimpleQueue()
    window = max(2, 2 * llm.engine.loop.scheduler.most_running // paths)
    running: dict[str, Request] = {}

    def submit() -> bool:
        item, request = next(requests, (None, None))
        if item is None or request is None:
            return False
        request.listener = _listener(item, request, ended)
        running[item.id] = request
        llm.engine.submit(request, may_refuse=False)
        return True

    try:
        more = True
        while more or running:
            while more and len(running) < window:
                more = submit()
            if running:
                item, request = ended.get()
                del running[item.id]
                for run in request.runs:
                    if run.error is not None:
                        raise run.error
                yield item, request
    finally:
        for request in running.values():
            llm.engine.cancel(request)


def _listener(
    item: TaskItem, request: Request, ended: SimpleQueue[tuple[TaskItem, Request]]
) -> Callable[[Run, Token | None], None]:
    left = len(request.runs)

    def tell(run: Run, token: Token | None) -> None:
        nonlocal left
        if token is None:
            left -= 1
            if not left:
                ended.put((item, request))

    return tell
