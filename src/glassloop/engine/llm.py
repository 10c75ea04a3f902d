"""`LLM`: a model, its tokenizer and the engine, for Python. Everything here may be called from any thread."""

from __future__ import annotations

import re
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from glassloop.decode.defaults import default_sampling, resolve, split_options, with_defaults
from glassloop.decode.sampling import Sampling
from glassloop.engine.adapters import LoadedAdapter
from glassloop.engine.deadline import Deadline
from glassloop.engine.follow import afollow, follow, raise_error
from glassloop.engine.generation import as_completed, complete, sampling_of_each
from glassloop.engine.logits import RowCache, logits_after
from glassloop.engine.loop import Loop
from glassloop.engine.masked import Mask
from glassloop.engine.memory import default_memory, parse_bytes
from glassloop.engine.protocol import DrafterKind, Engine, Statistics
from glassloop.engine.request import Request
from glassloop.engine.request_maker import Messages, Prompt
from glassloop.engine.thread import EngineThread
from glassloop.errors import GlassloopError, SamplingError
from glassloop.model.drafter import DrafterFile, is_drafter, read_drafter
from glassloop.model.holes import shipped_holes
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import CATALOG, DEFAULT_MODEL, fetch
from glassloop.ops import choose_ops
from glassloop.ops.drafting import DraftOps
from glassloop.ops.quant import Float32
from glassloop.shown import shown
from glassloop.text.pieces import Pieces
from glassloop.trace.run import Run
from glassloop.trace.token import Token

if TYPE_CHECKING:
    from glassloop.decode.explain import Explanation
    from glassloop.diffuse.options import Diffusion
    from glassloop.edit.record import Edit
    from glassloop.edit.repair import Check
    from glassloop.engine.lens import Lenses
    from glassloop.model.adapter import Adapter
    from glassloop.search.solution import Solution
    from glassloop.trace.passes import PassRecord
    from glassloop.trace.store import Store
    from glassloop.trace.verdict import Verdict

MOST_WAITING = 1024
T = TypeVar("T")
_ADAPTER_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class LLM(Engine):
    """A model that generates text: the default one, or a name, a `.gguf` file, a folder with safetensors.

    `ops` names an op set; `weights` (q8, q4, f32) brings the matrices to another format on load. `kv_memory`
    is what keys and values may take, in bytes or as "2GB"; by default a quarter of the free memory, or two
    thirds of a GPU's.
    `draft` is True (guess with the drafter that the package has for the model, or from what came before),
    False, the file of a drafter, a smaller model with the same tokens, or "masks": the model itself guesses
    by filling masks behind the text, which needs an adapter for masked rows.
    `adapters` are LoRA adapters to load beside the model, by name: folders of PEFT, or files of one adapter
    each. A request chooses one with the option `adapter`.
    `store` keeps every run: True for the user's own store, a path, a `postgresql://` URL, or a `Store`.

    `default_sampling` has the sampling settings that the model's authors publish, and may be changed. A call
    without a `Sampling` uses it, with the keyword options of the call (`temperature=0`) in place of some. A
    `Sampling` that is given is used as it is.
    """

    _mask: Mask | None = None
    _drafter: DrafterKind | None = None
    _model = ""  # as it was given; a server changes `name`

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
        self.name = self._model = str(model)
        self._weights = weights
        self.store = None if store in (None, False) else _store(store)
        memory = None if kv_memory is None else parse_bytes(kv_memory)
        op_set = choose_ops(ops)
        most_running = most_running or op_set.most_running
        files = ModelFiles(fetch(self.name))
        self.path, self.config = files.path, files.config
        known = (CATALOG[self.name].sampling if self.name in CATALOG else None) or {}
        self.default_sampling = with_defaults(known, default_sampling(str(files.path), files.settings))
        drafts: bool | DrafterFile = draft is True
        if not isinstance(draft, bool) and is_drafter(draft):
            if not isinstance(op_set, DraftOps):
                raise GlassloopError(
                    f"draft is a drafter's file, which needs the op set native, not {op_set.name}"
                )
            drafts = read_drafter(Path(draft), files.config)
            draft = True
        self.transformer, self.tokenizer = files.load(op_set, weights, drafts)
        self._pieces = Pieces(self.tokenizer)
        if memory is None:
            memory = default_memory(self.transformer, most_running)
        self.drafts = draft is not False
        drafter = None
        if not isinstance(draft, bool) and draft != "masks":
            from glassloop.engine.draft_model import load_draft

            drafter = load_draft(draft, self.tokenizer, self.ops, memory // 4)
        pieces = self._pieces.__getitem__
        loop = Loop(self.transformer, self.tokenizer, pieces, memory, most_running, drafter)
        self.engine = EngineThread(loop, most_waiting)
        self._rows = RowCache(self.engine)
        self._one_adapter = Lock()
        # The engine must hold no reference to this object, or it would never be freed.
        weakref.finalize(self, self.engine.close)
        self._drafter = "lookup" if self.drafts else None
        if drafter is not None:
            self._drafter = "model"
        elif self.drafts and self.transformer.drafter is not None:
            self._drafter = "drafter"
        if draft == "masks":
            self.draft_by_masks()
        for adapter, path in (adapters or {}).items():
            self.load_adapter(adapter, path)

    def in_process(self, what: str) -> LLM:
        return self

    def check_computes(self, what: str) -> None:
        pass

    def apply(
        self,
        function: Callable[..., T],
        *args: Any,
        deadline: Deadline | None = None,
        on_event: Callable[[Any], None] | None = None,
        **options: Any,
    ) -> T:
        if on_event is not None:
            options["on_event"] = on_event
        return function(self, *args, deadline=deadline, **options)

    @property
    def ops(self) -> str:
        return self.transformer.ops.name

    @property
    def op_set(self) -> str:
        """The op set, with its instruction set if it has several."""
        return self.transformer.ops.description

    @cached_property
    def model_hash(self) -> str:
        """The SHA-256 of the model's files, with the weight format given on load: it identifies the model."""
        from glassloop.model.fingerprint import fingerprint

        return fingerprint(self.path) + (f"+{self._weights}" if self._weights else "")

    @property
    def kv_memory(self) -> int:
        """The number of bytes that keys and values may take."""
        return self.engine.loop.tree.memory

    # ── adapters ───────────────────────────────────────────────────────────────────────────────────────────

    @property
    def adapters(self) -> Mapping[str, str]:
        return {name: loaded.sha256 for name, loaded in self.engine.loop.adapters.loaded.items()}

    def load_adapter(self, name: str, path: str | Path) -> None:
        """Loads a LoRA adapter beside the model: a folder of PEFT, or a file of one adapter. Requests choose
        it by its name (`adapter=`), and several may act in one batch."""
        from glassloop.model.adapter import read_adapter

        check_adapter_name(name)
        with self._one_adapter:
            if name in self.engine.loop.adapters.loaded:
                raise GlassloopError.about("adapter", f"{shown(name)} is loaded already")
            adapter = read_adapter(path, self.config, name)
            number = self.transformer.load_adapter(adapter)
            self.engine.loop.adapters.add(name, LoadedAdapter(number, adapter.sha256))

    def unload_adapter(self, name: str) -> None:
        """Unloads an adapter. Requests that use it now are completed with it; new ones are refused."""
        with self._one_adapter:
            if name not in self.engine.loop.adapters.loaded:
                raise GlassloopError.about("adapter", f"{shown(name)} is not loaded")
            self.engine.call(lambda: self.engine.loop.remove_adapter(name))

    def adapter_number(self, name: str | None) -> int:
        """Returns the number of an adapter in a batch, 0 for None. Raises if it is not loaded."""
        if name is None:
            return 0
        loaded = self.engine.loop.adapters.loaded.get(name)
        if loaded is None:
            self.adapters_of(Sampling(adapter=name))
            raise GlassloopError.about("adapter", f"{shown(name)} was unloaded meanwhile")
        return loaded.number

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
                raise SamplingError("sampling is a list; a single Sampling is expected for a single prompt")
            chosen = resolve(sampling, options, self.default_sampling)
            request = self.prepare(prompt, chosen, priority=priority)  # type: ignore[arg-type]
            complete(self.engine, [request], progress=False)
            return _result(request)
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
        if _is_one(prompts) and (prompts or isinstance(prompts, str)):
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
        return _result(request)

    def chat(self, messages: Messages, sampling: Sampling | None = None, **options: Any) -> Run:
        """Generates the next turn of a conversation, which the model's own template turns into a prompt.
        Keyword arguments that are not fields of `Sampling` are for the template."""
        options, template = split_options(options)
        chosen = resolve(sampling, options, self.default_sampling)
        request = self.prepare_chat(messages, chosen, **template)
        complete(self.engine, [request], progress=False)
        return _result(request)

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

    def diffuse(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        diffusion: Diffusion | Mapping[str, Any] | None = None,
        on_pass: Callable[[Run, PassRecord], None] | None = None,
        deadline: Deadline | None = None,
        **options: Any,
    ) -> Run:
        """Writes the answer to a prompt by diffusion: blocks of masks, each filled in passes. `diffusion` has
        the options of `glassloop.diffuse.options.Diffusion`; `options` are fields of `Sampling`. `on_pass` is
        told of every pass, on the engine's thread. docs/diffusion.md describes it."""
        from glassloop.diffuse.write import diffuse

        chosen = resolve(sampling, options, self.default_sampling)
        return diffuse(self, prompt, chosen, diffusion, on_pass=on_pass, deadline=deadline)

    @property
    def mask(self) -> Mask:
        """What masked rows are for this model. Raises if it has been trained on none."""
        config = self.config
        if config.mask_token is not None:
            return Mask(config.mask_token, whole=True, shifted=config.masks_shifted)
        if self._mask is None and (file := shipped_holes(self._model)) is not None:
            self.load_holes(file)
        if self._mask is None:
            raise GlassloopError(
                f"{self.name} has no adapter for masked rows; load_holes() with such an adapter is expected,"
                " or a model that was trained on masked text"
            )
        return self._mask

    @property
    def drafter(self) -> DrafterKind | None:
        return self._drafter

    @property
    def can_diffuse(self) -> bool:
        known = self.config.mask_token is not None or self._mask is not None
        return known or shipped_holes(self._model) is not None

    def draft_by_masks(self) -> None:
        """Makes the model itself, by filling masks, propose the next tokens of all requests from now on. The
        output stays the same."""
        mask = self.mask
        if mask.whole:
            raise GlassloopError(f"{self.name} fills masks and does not write from left to right")
        self.engine.call(lambda: self.engine.loop.draft_by_masks(mask))
        self._drafter = "masks"

    def load_holes(self, adapter: str | Path | Adapter) -> None:
        """Loads the adapter that acts on masked rows, in place of the one there was. It changes nothing else
        that the model computes."""
        from glassloop.model.adapter import read_adapter

        made = read_adapter(adapter, self.config) if isinstance(adapter, (str, Path)) else adapter
        if made.mask_token is None or not 0 <= made.mask_token < self.config.vocab_size:
            raise GlassloopError(
                f"adapter {made.name} has no mask token; one made for masked rows is expected"
            )
        numbers: list[int] = []
        self.engine.call(lambda: numbers.append(self.transformer.load_adapter(made)))
        self._mask = Mask(made.mask_token, numbers[0], sha256=made.sha256)

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
        complete(self.engine, [request], progress=False)
        return _result(request)

    def explain(
        self, run: Run, at: int, *, deadline: Deadline | None = None, **overrides: Any
    ) -> Explanation:
        """Returns why the token at this place of a run is there; with other options (`temperature=0.3`) or
        `luck="new"`, which one a draw would have chosen. `of="prompt"` asks about a token of the prompt. In a
        text that was written by diffusion, `number=` asks about another pass than the one that filled it."""
        if run.diffusion is not None and overrides.get("of", "answer") == "answer":
            from glassloop.diffuse.replay import explain_fill

            overrides.pop("of", None)
            return explain_fill(self, run, at, deadline=deadline, **overrides)
        from glassloop.engine.replay import explain_token

        def row(ids: list[int], adapter: int) -> Float32:
            return self._rows.row(ids, deadline, adapter)

        return explain_token(self, run, at, logits=row, **overrides)

    def replay(
        self, run: Run, *, first: int = 0, strict: bool = True, deadline: Deadline | None = None
    ) -> Verdict:
        """Computes a recorded run once more, from the token `first` on, and compares every number."""
        if run.diffusion is not None:
            from glassloop.diffuse.replay import replay_passes

            return replay_passes(self, run, deadline)
        from glassloop.engine.replay import replay_run

        return replay_run(self, run, first, strict, deadline)

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
        """Replaces the spans of a text that hurt most, or, with `check`, what a verifier does not like: a
        function, or a name such as "contains:rain". `glassloop.edit.repair.repair` has the other options."""
        from glassloop.edit.repair import repair

        if isinstance(check, str):
            from glassloop.search.verify import find_verifier

            check = find_verifier(check)
        return repair(self, text, check=check, **options)

    def sharpen(self, prompt: Prompt | Messages, alpha: float = 4.0, **options: Any) -> Edit:
        """Draws a text from p^alpha by Metropolis-Hastings: `glassloop.edit.power.sharpen`."""
        from glassloop.edit.power import sharpen

        return sharpen(self, prompt, alpha, **options)

    @cached_property
    def lens(self) -> Lenses:
        """The lenses `attention`, `layers` and `neighbours`, computed when they are asked for."""
        from glassloop.engine.lens import Lenses

        return Lenses(self)

    def logits(
        self, token_ids: Sequence[int], first: int | None = None, adapter: str | None = None
    ) -> Float32:
        """Returns the logits after each token from the place `first` on, by default after the last one:
        [tokens, vocabulary]. What is in the cache is not computed again."""
        ids = self.checked(token_ids, "token_ids")
        self.check_length(len(ids))
        place = len(ids) - 1 if first is None else first
        if not 0 <= place < len(ids):
            raise GlassloopError(f"first is {first}; a place from 0 to {len(ids) - 1} is expected")
        return np.stack(list(logits_after(self.engine, ids, place, None, self.adapter_number(adapter))))

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
        each_sampling = sampling_of_each(chosen, len(prompts), same_luck)
        return [
            self.prepare(prompt, each, priority=priority)
            for prompt, each in zip(prompts, each_sampling, strict=True)
        ]

    def submit(self, request: Request, may_refuse: bool = True) -> None:
        if request.built is None:
            request.built = self.build(request.sampling)
        self.engine.submit(request, may_refuse)

    def cancel(self, request: Request, wait: bool = False) -> None:
        self.engine.cancel(request, wait)

    def after_step(self, job: Callable[[], object]) -> None:
        self.engine.after_step(job)

    def follow(self, request: Request, *, settled: bool = False) -> Iterator[Token]:
        """Yields the tokens of a prepared request. Leaving the iteration cancels it. With `settled`, a token
        comes when it cannot be taken back any more (`Sampling.revise`)."""
        tokens = follow(self.engine, request)
        if settled and request.sampling.revise:
            from glassloop.engine.revise import settled_tokens

            return settled_tokens(tokens, request.sampling.revise_window)
        return tokens

    def afollow(self, request: Request) -> AsyncIterator[Token]:
        return afollow(self.engine, request)

    # ── the rest ───────────────────────────────────────────────────────────────────────────────────────────

    def embed(self, token_ids: Sequence[int], *, deadline: Deadline | None = None) -> Float32:
        """Returns the mean of the last hidden states of all tokens, [dim]."""
        from glassloop.engine.hidden import mean_hidden

        return mean_hidden(self.engine, token_ids, deadline)

    def statistics(self) -> list[Statistics]:
        """Returns the load and the counters of this engine."""
        return [self.engine.statistics(self.name)]

    def has_room(self, tokens: int) -> bool:
        return self.engine.loop.tree.room_for(tokens)

    @property
    def keep(self) -> Callable[[Run], None] | None:
        return None if self.store is None else self.store.put

    def close(self) -> None:
        """Ends what runs, as cancelled, and frees the engine."""
        self.engine.close()
        if self.store is not None:
            self.store.flush()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


def check_adapter_name(name: str) -> None:
    """Raises unless a name fits `model: "base:adapter"` and a line of the command line."""
    if not isinstance(name, str) or not _ADAPTER_NAME.fullmatch(name):
        expected = "letters, digits, '.', '_' and '-', at most 64, are expected"
        raise GlassloopError.about("adapter", f"is {shown(name)}; {expected}")


def _store(store: Any) -> Store | None:
    from glassloop.trace.store import Store

    return Store.of(store)


def _is_one(prompt: object) -> bool:
    """Returns whether this is one prompt, a text or token ids, and not a list of prompts."""
    if isinstance(prompt, str):
        return True
    if isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, Sequence):
        raise GlassloopError(
            f"prompt is {type(prompt).__name__}; a text, a list of token ids or a list of those is expected"
        )
    return not prompt or not isinstance(prompt[0], (Sequence, np.ndarray))


def _result(request: Request) -> Run:
    run = request.runs[0]
    raise_error(run)
    return run
