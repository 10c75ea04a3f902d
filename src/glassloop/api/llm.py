"""`LLM`: a model in this process, with methods for Python: generate, explain, fork, edit, search.
Everything here may be called from any thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from glassloop.decode.defaults import check_sampling, resolve, split_options
from glassloop.decode.luck import list_seed
from glassloop.decode.option import hint
from glassloop.decode.sampling import Sampling
from glassloop.engine.deadline import Deadline, check_deadline
from glassloop.engine.follow import as_completed, complete, first_run
from glassloop.engine.loading import load_model
from glassloop.engine.local import MOST_WAITING, LocalModel
from glassloop.engine.request import Request, draw_seed
from glassloop.engine.request_maker import Messages, Prompt, template_values
from glassloop.errors import GlassloopError, SamplingError
from glassloop.model.registry import DEFAULT_MODEL
from glassloop.record.run import Run
from glassloop.record.token import Token
from glassloop.util.check import check_function
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from glassloop.contrast.report import ContrastReport
    from glassloop.decode.diffusion import Diffusion
    from glassloop.decode.explain import Explanation
    from glassloop.edit.record import Edit, Replay
    from glassloop.edit.repair_by_check import Check
    from glassloop.engine.lens import Lenses
    from glassloop.record.passes import PassRecord
    from glassloop.record.store.store import Store
    from glassloop.record.verdict import ReplayVerdict
    from glassloop.search.solution import Replayed, Solution


class LLM(LocalModel):
    """A model that generates text: the default one, or a name, a `.gguf` file, a folder with safetensors.

    `ops` names an op set; `weights` (q8, q4, f32) brings the matrices to another format on load. `kv_memory`
    is what keys and values may take, in bytes or as "2GB"; by default a quarter of the free memory, or two
    thirds of a GPU's.
    `draft` is True (guess with the drafter that the package has for the model, or from what came before),
    False, the file of a drafter, or a smaller model with the same tokens.
    `adapters` are LoRA adapters to load beside the model, by name: folders of PEFT, or files of one adapter
    each. A request chooses one with the option `adapter`.
    `store` keeps every run: True for the user's own store, a path, a `postgresql://` URL, or a `Store`.

    `default_sampling` has the sampling settings that the model's authors publish, and may be changed. A call
    without a `Sampling` uses it, with the keyword options of the call (`temperature=0`) in place of some. A
    `Sampling` that is given is used as it is.
    """

    def __init__(
        self,
        model: str | Path = DEFAULT_MODEL,
        ops: str | None = None,
        weights: str | None = None,
        *,
        kv_memory: int | str | None = None,
        draft: bool | str | Path = True,
        most_running: int | None = None,
        most_waiting: int = MOST_WAITING,
        store: Store | str | Path | bool | None = None,
        adapters: Mapping[str, str | Path] | None = None,
    ) -> None:
        runs = None if store in (None, False) else _store(store)
        loaded = load_model(
            str(model), ops, weights, kv_memory=kv_memory, draft=draft, most_running=most_running
        )
        super().__init__(loaded, most_waiting=most_waiting, store=runs)
        for adapter, path in (adapters or {}).items():
            self.load_adapter(adapter, path)

    def prepare(self, prompt: Prompt, sampling: Sampling | None = None, **options: Any) -> Request:
        """Returns a request, checked, with its runs; `LanguageModel.prepare` has the options. With
        `diffusion` in `sampling`, the runs are written by filling masks. The options of the diffusion are
        recorded in `run.diffusion`, not in `run.sampling`, whose options apply to each position as usual."""
        sampling = self.default_sampling if sampling is None else sampling
        check_sampling(sampling)
        if sampling.diffusion is None:
            return super().prepare(prompt, sampling, **options)
        from glassloop.diffuse.write import prepare_diffusion

        return prepare_diffusion(self, prompt, sampling, **options)

    # ── generating ─────────────────────────────────────────────────────────────────────────────────────────

    @overload
    def generate(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        *,
        priority: int = 0,
        progress: bool | None = None,
        **options: Any,
    ) -> Run: ...

    @overload
    def generate(
        self,
        prompt: Sequence[str] | Sequence[Sequence[int]],
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        priority: int = 0,
        progress: bool | None = None,
        same_luck: bool = False,
        **options: Any,
    ) -> list[Run]: ...

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        priority: int = 0,
        progress: bool | None = None,
        same_luck: bool = False,
        **options: Any,
    ) -> Run | list[Run]:
        """Generates the answer to a prompt, or to a list of prompts: all of them in one batch, in the order
        given; then an error is its run's own (`run.error`) and the others continue. With n samples,
        `run.samples` has all of them. `options` are fields of `Sampling`; `progress` shows a bar for a list
        (by default on a terminal, for eight prompts or more).

        If one `sampling` with a seed is given for a list, each prompt gets a seed derived from it, so that
        their luck is independent; `same_luck` gives all of them the same seed instead. `run.sampling` has the
        seed of the run's prompt, which alone has the same answer with these options.
        """
        if _is_one(prompt):
            if isinstance(sampling, Sequence):
                problem = f"is {shown(sampling)}; a single Sampling is expected for a single prompt"
                raise SamplingError.about("sampling", problem)
            if same_luck:
                raise GlassloopError.about(
                    "same_luck", "is given for one prompt; a list of prompts is expected"
                )
            chosen = resolve(sampling, options, self.default_sampling)
            request = self.prepare(prompt, chosen, priority=priority)  # type: ignore[arg-type]
            return self.complete(request)
        requests = self._prepare_each(prompt, sampling, options, priority, same_luck)
        complete(self.engine, requests, progress)
        return [request.runs[0] for request in requests]

    def generate_iter(
        self,
        prompts: Sequence[str] | Sequence[Sequence[int]],
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        priority: int = 0,
        same_luck: bool = False,
        **options: Any,
    ) -> Iterator[Run]:
        """Yields the runs that `generate` returns for a list of prompts, each as soon as it has ended.
        Leaving the loop cancels the others."""
        if _is_one(prompts, "prompts") and (prompts or isinstance(prompts, str)):
            raise GlassloopError.about("prompts", "is one prompt; a list of prompts is expected")
        requests = self._prepare_each(prompts, sampling, options, priority, same_luck)
        return as_completed(self.engine, requests)

    def stream(
        self, prompt: Prompt, sampling: Sampling | None = None, *, priority: int = 0, **options: Any
    ) -> Iterator[Token]:
        """Yields tokens as they are chosen. Leaving the loop cancels the request. With `revise`, a
        `TakenBack` among them says that the last tokens were taken back."""
        chosen = resolve(sampling, options, self.default_sampling)
        return self.follow(self.prepare(prompt, chosen, priority=priority))

    def astream(
        self, prompt: Prompt, sampling: Sampling | None = None, *, priority: int = 0, **options: Any
    ) -> AsyncIterator[Token]:
        """Yields tokens as they are chosen, for coroutines."""
        chosen = resolve(sampling, options, self.default_sampling)
        return self.afollow(self.prepare(prompt, chosen, priority=priority))

    async def agenerate(
        self, prompt: Prompt, sampling: Sampling | None = None, *, priority: int = 0, **options: Any
    ) -> Run:
        """Generates the answer to a prompt, for coroutines."""
        chosen = resolve(sampling, options, self.default_sampling)
        request = self.prepare(prompt, chosen, priority=priority)
        async for _ in self.afollow(request):
            pass
        return first_run(request)

    def chat(
        self,
        messages: Messages,
        sampling: Sampling | None = None,
        *,
        priority: int = 0,
        template: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Run:
        """Generates the next turn of a conversation, which the model's own template turns into a prompt.
        `template` has variables of the template (`{"enable_thinking": False}`), which may also be given as
        keywords. A name that is neither an option nor a variable of this model's template is an error."""
        options, others = split_options(options)
        for name in others:
            if not self.requests.has_variable(name):
                closest = hint(name, [field.name for field in fields(Sampling)], "options")
                problem = (
                    f"is neither an option nor a variable of the chat template of {self.name}; {closest}"
                )
                raise SamplingError.about(name, problem)
        chosen = resolve(sampling, options, self.default_sampling)
        values = {**template_values(template), **others}
        request = self.prepare_chat(messages, chosen, priority=priority, template=values)
        return self.complete(request)

    def solve(
        self, question: str | Sequence[int] | Messages, method: Any = "vote", **options: Any
    ) -> Solution:
        """Answers a question by a search: several paths, a method that decides between them, and a record of
        every decision. docs/thinking.md describes the methods and their options.

        `question` is a text, which is asked as a chat if the model has a template (`chat=False`: as it is),
        or a list of messages. `method` is a name (`vote`, `best`, `confidence`, …), an object of a subclass
        of `Search`, or None for one path as `generate` makes it. `n` is the number of paths, `extract` finds
        the answer in a text, `verify` says whether a text is right, and `budget` is a `Budget(tokens=,
        seconds=, branches=)`. All other options are those of the method or fields of `Sampling`.
        """
        from glassloop.search.solve import solve

        return solve(self, question, method=method, **options)

    def replay_search(self, solution: Solution, **options: Any) -> Replayed:
        """Makes a recorded search again and compares: what `Solution.replay` does."""
        from glassloop.search.replay import replay

        return replay(self, solution, **options)

    def diffuse(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        diffusion: Diffusion | Mapping[str, Any] | int | None = None,
        on_pass: Callable[[Run, PassRecord], None] | None = None,
        deadline: Deadline | None = None,
        **options: Any,
    ) -> Run:
        """Writes the answer to a prompt by diffusion: blocks of masks, each filled in passes. `diffusion` is
        the length of a block or has the options of `glassloop.decode.diffusion.Diffusion`; without it they
        are those of `sampling`, or the defaults. `options` are fields of `Sampling`. `on_pass` is told of
        every pass, on the engine's thread. docs/diffusion.md describes it."""
        from glassloop.diffuse.write import diffuse

        check_function("on_pass", on_pass)
        check_deadline(deadline)
        chosen = resolve(sampling, options, self.default_sampling)
        return diffuse(self, prompt, chosen, diffusion, on_pass=on_pass, deadline=deadline)

    def fork(
        self,
        run: Run,
        at: int,
        *,
        token: int | str | None = None,
        text: str | None = None,
        sampling: Sampling | None = None,
        **overrides: Any,
    ) -> Run:
        """Makes a new run from the first `at` tokens of another. It continues with a token or a text of the
        caller's choice, or with other options (`temperature=0.3`), or, if nothing is given, with new luck."""
        request = self.prepare_fork(run, at, token=token, text=text, sampling=sampling, **overrides)
        return self.complete(request)

    def explain(
        self, run: Run, at: int, *, deadline: Deadline | None = None, **overrides: Any
    ) -> Explanation:
        """Returns why the token at this place of a run is there; with other options (`temperature=0.3`) or
        `luck="new"`, which one a draw would have chosen. `of="prompt"` asks about a token of the prompt. In a
        text that was written by diffusion, `number=` asks about another pass than the one that filled it."""
        from glassloop.api.run_questions import explain

        return explain(self, run, at, deadline, **overrides)

    def replay(
        self, run: Run, *, first: int = 0, strict: bool = True, deadline: Deadline | None = None
    ) -> ReplayVerdict:
        """Computes a recorded run once more, from the token `first` on, and compares every number."""
        from glassloop.api.run_questions import replay

        return replay(self, run, first, strict, deadline)

    def contrast(
        self,
        other: LocalModel | str | Path,
        prompts: Sequence[Any],
        sampling: Sampling | None = None,
        *,
        adapter: str | None = None,
        extract: Any = None,
        tensors: int | None = None,
        measured: int | None = None,
        progress: bool | None = None,
        deadline: Deadline | None = None,
        **options: Any,
    ) -> ContrastReport:
        """Answers the same prompts with the same luck with this model and another one, and says where the
        answers part, what that changed, how far the models are apart, and which weights did it. `other` is an
        `LLM`, or the name or path of a model; with `adapter`, it answers with this adapter. docs/contrast.md
        describes the options and the report."""
        from glassloop.contrast.contrast import MEASURED, TENSORS, contrast

        check_deadline(deadline)
        chosen = resolve(sampling, options, self.default_sampling)
        more: dict[str, Any] = {
            "adapter": adapter,
            "extract": extract,
            "tensors": TENSORS if tensors is None else tensors,
            "measured": MEASURED if measured is None else measured,
            "progress": progress,
        }
        try:
            loaded = LLM(other, self.transformer.ops.name) if isinstance(other, str | Path) else other
        except GlassloopError as error:
            raise GlassloopError(f"other: {error}", field="other") from None
        try:
            return contrast(self, loaded, prompts, chosen, deadline=deadline, **more)
        finally:
            if loaded is not other:
                loaded.close()

    # ── editing ────────────────────────────────────────────────────────────────────────────────────────────

    def infill(self, before: str, after: str, tokens: int = 12, **options: Any) -> Edit:
        """Fills a hole between two texts; `glassloop.edit.infill.infill` describes the options."""
        from glassloop.edit.infill import infill

        return infill(self, before, after, tokens, **options)

    def rewrite(self, text: str, spans: Any, sampling: Sampling | None = None, **options: Any) -> Edit:
        """Replaces one or more spans of a text, given by characters: `glassloop.edit.infill.rewrite`."""
        from glassloop.edit.infill import rewrite

        return rewrite(self, text, spans, sampling, **options)

    def repair(self, text: str | Run, *, check: str | Check | None = None, **options: Any) -> Edit:
        """Replaces the spans of a text that are most surprising given both sides; or, with `check`, draws its
        end anew until a verifier lets it pass: a function, or a name such as "contains:rain".
        `glassloop.edit.repair.repair` has the other options."""
        from glassloop.edit.repair import repair

        if isinstance(check, str):
            from glassloop.search.verify import find_verifier

            check = find_verifier(check)
        return repair(self, text, check=check, **options)

    def sharpen(self, prompt: Prompt | Messages, alpha: float = 4.0, **options: Any) -> Edit:
        """Draws a text from p^alpha by Metropolis-Hastings: `glassloop.edit.power.sharpen`."""
        from glassloop.edit.power import sharpen

        return sharpen(self, prompt, alpha, **options)

    def replay_edit(self, edit: Edit, *, check: Any = None, deadline: Deadline | None = None) -> Replay:
        """Makes a recorded edit again and compares: what `Edit.replay` does."""
        from glassloop.edit.replay import replay

        return replay(edit, self, check, deadline)

    @cached_property
    def lens(self) -> Lenses:
        """The lenses `attention`, `layers`, `experts` and `neighbours`, computed when they are asked for."""
        from glassloop.engine.lens import Lenses

        return Lenses(self)

    # ── requests ───────────────────────────────────────────────────────────────────────────────────────────

    def _prepare_each(
        self,
        prompts: Sequence[Any],
        sampling: Sampling | Sequence[Sampling] | None,
        options: Mapping[str, Any],
        priority: int,
        same_luck: bool,
    ) -> list[Request]:
        """Returns a request for each prompt of a list."""
        chosen: Sampling | list[Sampling]
        if isinstance(sampling, Sequence):
            chosen = [resolve(each, options, self.default_sampling) for each in sampling]
        else:
            chosen = resolve(sampling, options, self.default_sampling)
        each_sampling = _sampling_of_each(chosen, len(prompts), same_luck)
        return [
            self.prepare(prompt, each, priority=priority)
            for prompt, each in zip(prompts, each_sampling, strict=True)
        ]


def _sampling_of_each(sampling: Sampling | Sequence[Sampling], count: int, same_luck: bool) -> list[Sampling]:
    """Returns the options of each of `count` prompts. A list of options is used as it is. If one is given for
    all, each prompt gets a seed derived from its seed, if it has one; with `same_luck` all get one seed."""
    if isinstance(sampling, Sequence):
        if same_luck:
            raise SamplingError.about(
                "same_luck", "applies to a single Sampling; in a list, each has its own seed"
            )
        if len(sampling) != count:
            problem = f"has {len(sampling)} entries; {count} are expected, one for each prompt"
            raise SamplingError.about("sampling", problem)
        return list(sampling)
    if same_luck:
        return [replace(sampling, seed=draw_seed() if sampling.seed is None else sampling.seed)] * count
    if sampling.seed is None:  # each request draws its own
        return [sampling] * count
    return [replace(sampling, seed=list_seed(sampling.seed, number)) for number in range(count)]


def _is_one(prompt: object, name: str = "prompt") -> bool:
    """Returns whether this is one prompt, a text or token ids, and not a list of prompts."""
    if isinstance(prompt, str):
        return True
    if isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, Sequence):
        problem = f"is {type(prompt).__name__}; a text, a list of token ids or a list of those is expected"
        raise GlassloopError.about(name, problem)
    return not prompt or not isinstance(prompt[0], (Sequence, np.ndarray))


def _store(store: Any) -> Store | None:
    from glassloop.record.store.store import Store

    return Store.of(store)
