"""`LocalEngine`: a model, its tokenizer and the engine's thread, in this process; `LLM` adds the methods for
Python. Everything here may be called from any thread.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from glassloop.decode.defaults import sampling_of_model
from glassloop.decode.sampling import Sampling
from glassloop.engine.adapters import AdapterNumber, LoadedAdapter
from glassloop.engine.deadline import Deadline, check_deadline
from glassloop.engine.follow import afollow, follow
from glassloop.engine.logits import RowCache, logits_after
from glassloop.engine.loop import Loop
from glassloop.engine.memory import default_memory, parse_bytes
from glassloop.engine.owner import current_realm
from glassloop.engine.protocol import DrafterKind, Engine, Statistics
from glassloop.engine.request import Request
from glassloop.engine.tasks.masked import Mask
from glassloop.engine.thread import EngineThread
from glassloop.errors import GlassloopError, LengthError
from glassloop.model.drafter import DrafterFile, is_drafter, read_drafter
from glassloop.model.holes import shipped_holes
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import DEFAULT_MODEL, fetch
from glassloop.ops import choose_ops
from glassloop.ops.drafting import DraftOps
from glassloop.ops.quant import Float32
from glassloop.record.run import Run
from glassloop.record.token import Token
from glassloop.text.pieces import Pieces
from glassloop.util.check import check_count, check_path
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from glassloop.model.adapter import Adapter
    from glassloop.record.store.store import Store

MOST_WAITING = 1024
_ADAPTER_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class LocalEngine(Engine):
    """An engine that computes in this process: `LLM` says what its options are."""

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
        self.store = None if store in (None, False) else _store(store)
        memory = None if kv_memory is None else parse_bytes(kv_memory)
        op_set = choose_ops(ops)
        most_running = most_running or op_set.most_running
        files = ModelFiles(fetch(self.name))
        self.path, self.config = files.path, files.config
        self.notes = files.notes  # what became of weights in a form that no op set has
        self._weights = weights or "_".join(files.formats).lower()[:16] or None
        self.default_sampling = sampling_of_model(self.name, files)
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
        if not isinstance(draft, bool):
            from glassloop.engine.drafting.draft_model import load_draft

            drafter = load_draft(draft, self.tokenizer, self.ops, memory // 4)
        pieces = self._pieces.__getitem__
        loop = Loop(self.transformer, self.tokenizer, pieces, memory, most_running, drafter)
        self.engine = EngineThread(loop, most_waiting)
        self._rows = RowCache(self.engine)
        if self.store is not None:
            self.store.on_removal(weakref.WeakMethod(self.forget))
        self._one_adapter = Lock()
        # The engine must hold no reference to this object, or it would never be freed.
        weakref.finalize(self, self.engine.close)
        self._drafter = "lookup" if self.drafts else None
        if drafter is not None:
            self._drafter = "model"
        elif self.drafts and self.transformer.drafter is not None:
            self._drafter = "drafter"
        for adapter, path in (adapters or {}).items():
            self.load_adapter(adapter, path)

    @property
    def ops(self) -> str:
        return self.transformer.ops.name

    @property
    def op_set(self) -> str:
        """The op set, with its instruction set if it has several."""
        return self.transformer.ops.description

    @cached_property
    def model_hash(self) -> str:
        """The SHA-256 of the model's files, with the format of the weights if it was given on load or is not
        the one of the files: it identifies the model."""
        from glassloop.model.fingerprint import fingerprint

        return fingerprint(self.path) + (f"+{self._weights}" if self._weights else "")

    @property
    def kv_memory(self) -> int:
        """The number of bytes that keys and values may take."""
        return self.engine.loop.tree.memory

    @property
    def drafter(self) -> DrafterKind | None:
        return self._drafter

    # ── adapters ───────────────────────────────────────────────────────────────────────────────────────────

    @property
    def adapters(self) -> Mapping[str, str]:
        return {name: loaded.sha256 for name, loaded in self.engine.loop.adapters.loaded.items()}

    def load_adapter(self, name: str, path: str | Path) -> None:
        """Loads a LoRA adapter beside the model: a folder of PEFT, or a file of one adapter. Requests choose
        it by its name (`adapter=`), and several may act in one batch."""
        from glassloop.model.adapter import read_adapter

        check_adapter_name(name)
        check_path("path", path)
        with self._one_adapter:
            if name in self.engine.loop.adapters.loaded:
                raise GlassloopError.about("adapter", f"{shown(name)} is loaded already")
            adapter = read_adapter(path, self.config, name)
            number = AdapterNumber(self.transformer.load_adapter(adapter))
            self.engine.loop.adapters.add(name, LoadedAdapter(number, adapter.sha256))

    def unload_adapter(self, name: str) -> None:
        """Unloads an adapter. Requests that use it now are completed with it; new ones are refused."""
        check_adapter_name(name)
        with self._one_adapter:
            if name not in self.engine.loop.adapters.loaded:
                raise GlassloopError.about("adapter", f"{shown(name)} is not loaded")
            self.engine.call(lambda: self.engine.loop.remove_adapter(name))

    def adapter_number(self, name: str | None) -> int:
        """Returns the number of an adapter in a batch, 0 for None. Raises if it is not loaded."""
        if name is None:
            return 0
        loaded = self.engine.loop.adapters.loaded.get(name) if isinstance(name, str) else None
        if loaded is None:
            self.adapters_of(Sampling(adapter=name))
            raise GlassloopError.about("adapter", f"{shown(name)} was unloaded meanwhile")
        return loaded.number

    # ── masked rows ────────────────────────────────────────────────────────────────────────────────────────

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
    def can_diffuse(self) -> bool:
        known = self.config.mask_token is not None or self._mask is not None
        return known or shipped_holes(self._model) is not None

    def load_holes(self, adapter: str | Path | Adapter) -> None:
        """Loads the adapter that acts on masked rows, in place of the one there was. It changes nothing else
        that the model computes."""
        from glassloop.model.adapter import Adapter, read_adapter

        made = adapter
        if not isinstance(made, Adapter):
            made = read_adapter(check_path("adapter", adapter), self.config)
        if made.mask_token is None or not 0 <= made.mask_token < self.config.vocab_size:
            raise GlassloopError(
                f"adapter {made.name} has no mask token; one made for masked rows is expected"
            )
        numbers: list[int] = []
        self.engine.call(lambda: numbers.append(self.transformer.load_adapter(made)))
        self._mask = Mask(made.mask_token, numbers[0], sha256=made.sha256)

    # ── computing ──────────────────────────────────────────────────────────────────────────────────────────

    def submit(self, request: Request, may_refuse: bool = True) -> None:
        if request.built is None:
            request.built = self.build(request.sampling)
        self.engine.submit(request, may_refuse)

    def cancel(self, request: Request, wait: bool = False, run: Run | None = None) -> None:
        self.engine.cancel(request, wait, run)

    def check_may_wait(self) -> None:
        self.engine.check_may_wait()

    def after_step(self, job: Callable[[], object]) -> None:
        self.engine.after_step(job)

    def forget(self, run: Run) -> None:
        if self.engine.closed:
            return
        texts, realm = computed_texts(run), current_realm()
        for text in texts:
            self._rows.forget(text, realm)
        self.engine.call(lambda: self.engine.loop.forget(run.id, texts, realm))

    def follow(self, request: Request, *, settled: bool = False) -> Iterator[Token]:
        """Yields the tokens of a prepared request. Leaving the iteration cancels it. With `settled`, a token
        comes when it cannot be taken back any more (`Sampling.revise`)."""
        tokens = follow(self.engine, request)
        if settled and request.sampling.revise:
            from glassloop.engine.tasks.revise import settled_tokens

            return settled_tokens(tokens, request.sampling.revise_window)
        return tokens

    def afollow(self, request: Request) -> AsyncIterator[Token]:
        return afollow(self.engine, request)

    def logits(
        self, token_ids: Sequence[int], first: int | None = None, adapter: str | None = None
    ) -> Float32:
        """Returns the logits after each token from the place `first` on, by default after the last one:
        [tokens, vocabulary]. What is in the cache is not computed again."""
        ids = self.checked(token_ids, "token_ids")
        self.check_length(len(ids), "token_ids")
        place = len(ids) - 1 if first is None else check_count("first", first, 0, len(ids) - 1, "a place")
        return np.stack(list(logits_after(self.engine, ids, place, None, self.adapter_number(adapter))))

    def embed(self, token_ids: Sequence[int], *, deadline: Deadline | None = None) -> Float32:
        """Returns the mean of the last hidden states of all tokens, [dim]."""
        from glassloop.engine.hidden import mean_hidden

        check_deadline(deadline)
        ids, context = self.checked(token_ids, "token_ids"), self.config.context
        if not 1 <= len(ids) <= context:
            raise LengthError.about("token_ids", f"has {len(ids)} tokens; 1 to {context} are expected")
        return mean_hidden(self.engine, ids, deadline)

    # ── operation ──────────────────────────────────────────────────────────────────────────────────────────

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


def computed_texts(run: Run) -> list[list[int]]:
    """Returns the token ids of all texts that were computed for a run: its own, and those of the beams of its
    search."""
    texts, inner = [run.prompt_ids + run.token_ids], {beam.parent for beam in run.beams}
    known = {beam.number: beam for beam in run.beams}
    for beam in run.beams:
        if beam.number not in inner:
            text, at = list[int](), known.get(beam.number)
            while at is not None:
                text.append(at.id)
                at = None if at.parent is None else known.get(at.parent)
            texts.append(run.prompt_ids + text[::-1])
    return texts


def check_adapter_name(name: str) -> None:
    """Raises unless a name fits `model: "base:adapter"` and a line of the command line."""
    if not isinstance(name, str) or not _ADAPTER_NAME.fullmatch(name):
        expected = "letters, digits, '.', '_' and '-', at most 64, are expected"
        raise GlassloopError.about("adapter", f"is {shown(name)}; {expected}")


def _store(store: Any) -> Store | None:
    from glassloop.record.store.store import Store

    return Store.of(store)
