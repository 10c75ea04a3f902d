"""`solve` and `solve_each`: one search, or many at a time in one batch, from a question to its solution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from glassloop.decode.defaults import resolve, split_options
from glassloop.decode.luck import list_seed
from glassloop.decode.sampling import Sampling
from glassloop.engine.request import Request, draw_seed
from glassloop.engine.request_maker import check_priority
from glassloop.errors import GlassloopError
from glassloop.record.run import Run
from glassloop.record.token import Token
from glassloop.search.budget import Budget
from glassloop.search.methods import make_method
from glassloop.search.record import plain
from glassloop.search.running import RecordedSearch, Running
from glassloop.search.search import Search
from glassloop.search.solution import Solution
from glassloop.search.verdict import Extractor, Verifier
from glassloop.util.check import check_function
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from glassloop.engine.local import LocalModel

Question = str | Sequence[int] | Sequence[Mapping[str, Any]]
Watch = Callable[[Running], None]  # called before each round and after the last

TEMPERATURE = 0.7  # of the paths, where neither the caller nor the model's authors give one
MAX_TOKENS = 512  # of a path, where the caller gives none
_WORKERS = 4  # threads that extract, verify and decide for many searches at a time


class Stopped(KeyboardInterrupt):
    """Ctrl-C during a search. What was found until then is in `solution`."""

    def __init__(self, solution: Solution) -> None:
        super().__init__(f"interrupted after {solution.usage.tokens} tokens")
        self.solution = solution


def solve(llm: LocalModel, question: Question, *, watch: Watch | None = None, **options: Any) -> Solution:
    """Returns what `LLM.solve` does. `watch` is called before each round and after the last."""
    check_function("watch", watch)
    running = prepare(llm, question, **options)
    return drive(running, watch)


def solve_each(
    llm: LocalModel,
    questions: Sequence[Question],
    method: str | Search | None = "vote",
    *,
    sampling: Sampling | None = None,
    verify: Verifier | str | Sequence[Verifier | str | None] | None = None,
    in_flight: int | None = None,
    **options: Any,
) -> Iterator[Solution]:
    """Yields the solution of each question as soon as it is found; `solution.index` is its place in the list.

    All paths of all questions in flight are in one batch. `verify` may be a list with one entry for each
    question. If the options have a seed, each question gets a seed derived from it, as in `LLM.generate`.
    Leaving the loop cancels the searches that run.
    """
    each = (
        [verify] * len(questions) if verify is None or isinstance(verify, str) or callable(verify) else verify
    )
    if len(each) != len(questions):
        raise GlassloopError.about("verify", f"has {len(each)} entries; {len(questions)} are expected")
    sampling_options, _ = split_options(options)
    seed = sampling_options.get("seed", None if sampling is None else sampling.seed)

    def make(index: int) -> Running:
        seeded: dict[str, Any] = {} if seed is None else {"seed": list_seed(seed, index)}
        all_options = {**options, **seeded}
        return prepare(llm, questions[index], method, sampling=sampling, verify=each[index], **all_options)

    window = in_flight or max(2, 2 * llm.engine.loop.scheduler.most_running // _paths(method, options))
    return drive_all(llm, make, len(questions), window)


def prepare(
    llm: LocalModel,
    question: Question,
    method: str | Search | None = "vote",
    *,
    n: int | None = None,
    samples: int | None = None,
    extract: str | Extractor | None = None,
    verify: str | Verifier | None = None,
    judge: str | Verifier | None = None,
    sampling: Sampling | None = None,
    budget: Budget | dict[str, Any] | None = None,
    chat: bool | None = None,
    priority: int = 0,
    past: RecordedSearch | None = None,
    **options: Any,
) -> Running:
    """Returns a checked search that has not begun."""
    sampling_options, others = split_options(options)
    count = n if n is not None else samples
    searcher = make_method(method, others if count is None else {"n": count, **others})
    if method is not None and sampling is None:
        sampling_options = _with_defaults(llm, sampling_options)
    chosen = searcher.sampling(resolve(sampling, sampling_options, llm.default_sampling))
    if chosen.seed is None:
        chosen = replace(chosen, seed=draw_seed())
    request = _request(llm, question, chosen, chat)
    check_priority(priority)
    request.priority = priority
    if extract is None and method is not None:
        extract = "auto"
    named = {"extract": _name(extract), "verify": _name(verify), "judge": _name(judge)}
    limits = Budget.of(budget)
    return Running(
        llm,
        request,
        searcher,
        limits,
        extractor=named_extractor(extract),
        verifier=named_verifier(verify),
        judge=named_verifier(judge, "judge"),
        named=named,
        past=past,
    )


# ── driving ────────────────────────────────────────────────────────────────────────────────────────────────


def drive(running: Running, watch: Watch | None) -> Solution:
    """Runs one search on the calling thread. Ctrl-C ends it with what it has and raises `Stopped`."""
    running.llm.check_may_wait()
    interrupted = False
    ended: SimpleQueue[None] = SimpleQueue()
    while True:
        requests: list[Request] = []
        try:
            requests = running.next_round()
            if watch is not None and not interrupted:
                watch(running)
            if not requests:
                break
            submit(running, requests, lambda: ended.put(None))
            ended.get()
        except KeyboardInterrupt:
            interrupted = True
            running.cancel("interrupted")
            withdraw(running, requests)
        except BaseException:
            withdraw(running, requests)
            raise
    solution = running.solution()
    if interrupted:
        raise Stopped(solution)
    return solution


def drive_all(llm: LocalModel, make: Callable[[int], Running], count: int, window: int) -> Iterator[Solution]:
    """Runs searches, at most `window` at a time. What is done between the rounds of one search delays no
    other: it runs on a few threads."""
    llm.check_may_wait()
    news: SimpleQueue[tuple[int, Future[list[Request]] | None]] = SimpleQueue()
    open_searches: dict[int, tuple[Running, list[Request]]] = {}
    begun = 0
    with ThreadPoolExecutor(_WORKERS, "glassloop-search") as pool:

        def advance(index: int) -> None:
            future = pool.submit(open_searches[index][0].next_round)
            future.add_done_callback(lambda done: news.put((index, done)))

        try:
            while begun < count or open_searches:
                while begun < count and len(open_searches) < window:
                    open_searches[begun] = make(begun), []
                    advance(begun)
                    begun += 1
                index, decided = news.get()
                running, _ = open_searches[index]
                if decided is None:
                    advance(index)
                elif requests := decided.result():
                    open_searches[index] = running, requests
                    submit(running, requests, lambda index=index: news.put((index, None)))  # type: ignore[misc]
                else:
                    del open_searches[index]
                    solution = running.solution()
                    solution.index = index
                    yield solution
        finally:
            for running, requests in open_searches.values():
                running.cancel("the caller has left")
                withdraw(running, requests)


def submit(
    running: Running, requests: Sequence[Request], ended: Callable[[], object], may_refuse: bool = False
) -> None:
    """Submits the requests of a round. `ended` is called on the engine's thread when all have ended. If
    `may_refuse`, raises `Busy` where too many requests wait already."""
    left = sum(len(request.runs) for request in requests)
    engine = running.llm

    def tell(run: Run, token: Token | None) -> None:
        nonlocal left
        if token is None:
            left -= 1
            if not left:  # the runs may be continued at once, so the engine must have let go of them
                engine.after_step(ended)

    for request in requests:
        request.listener = tell
        for run in request.runs:  # those that have paused go on
            run.finish_reason, run.stop_reason, run.tail = None, None, ""
    for request in requests:
        engine.submit(request, may_refuse)


def withdraw(running: Running, requests: Sequence[Request], wait: bool = True) -> None:
    """Cancels the requests of a round, and waits until they have given back what they held, if `wait`."""
    engine = running.llm
    open_requests = [request for request in requests if not request.ended]
    for request in open_requests:
        engine.cancel(request, wait and request is open_requests[-1])


# ── options ────────────────────────────────────────────────────────────────────────────────────────────────


def _with_defaults(llm: LocalModel, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sampling options with those that a search has by default: several paths with temperature 0
    would all be the same."""
    defaults = {"max_tokens": MAX_TOKENS, **options}
    if llm.default_sampling.temperature == Sampling().temperature:
        defaults.setdefault("temperature", TEMPERATURE)
    return defaults


def _request(llm: LocalModel, question: Question, sampling: Sampling, chat: bool | None) -> Request:
    """Returns the request for a question: a text or messages in a chat, if the model has a template."""
    if isinstance(question, str):
        if chat or (chat is None and llm.tokenizer.chat_template is not None):
            return llm.prepare_chat([{"role": "user", "content": question}], sampling)
        return llm.prepare(question, sampling)
    if not isinstance(question, Sequence) or not question:
        problem = f"is {shown(question)}; a text, a list of messages or token ids are expected"
        raise GlassloopError.about("question", problem)
    if isinstance(question[0], Mapping):
        return llm.prepare_chat(question, sampling)  # type: ignore[arg-type]
    return llm.prepare(question, sampling)  # type: ignore[arg-type]


def _paths(method: str | Search | None, options: Mapping[str, Any]) -> int:
    """Returns about how many paths one search runs at a time."""
    count = options.get("n", options.get("samples", getattr(method, "n", 8)))
    return count if isinstance(count, int) and count > 0 else 8


def named_extractor(extract: str | Extractor | None) -> Extractor | None:
    if extract is None or callable(extract):
        return extract
    from glassloop.search.extract import find_extractor

    return find_extractor(extract)


def named_verifier(verify: str | Verifier | None, field: str = "verify") -> Verifier | None:
    """Returns the verifier of a name or a function; an error is about `field`."""
    if verify is None or callable(verify):
        return verify
    from glassloop.search.verify import find_verifier

    return find_verifier(verify, field)


def _name(function: object) -> str | None:
    """Returns how a record names an extractor or a verifier; a function in angle brackets."""
    return function if function is None or isinstance(function, str) else f"<{plain(function)}>"
