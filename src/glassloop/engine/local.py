"""`LocalModel`: a language model that computes in this process; `LLM` adds the methods for Python."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from glassloop.decode.sampling import Sampling
from glassloop.engine.adapters import AdapterNumber, LoadedAdapter
from glassloop.engine.deadline import Deadline, check_deadline
from glassloop.engine.language_model import LanguageModel
from glassloop.engine.loading import LoadedModel
from glassloop.engine.logits import RowCache, logits_after, mean_hidden
from glassloop.engine.owner import current_realm
from glassloop.engine.protocol import DrafterKind
from glassloop.engine.request_maker import RequestMaker, adapters_of
from glassloop.engine.tasks.masked import Mask
from glassloop.engine.thread import EngineThread
from glassloop.errors import GlassloopError, LengthError
from glassloop.model.shipped_holes import shipped_holes
from glassloop.model.transformer import Transformer
from glassloop.ops.quant import Float32
from glassloop.record.run import Run
from glassloop.util.check import check_count, check_path
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from glassloop.model.adapter import Adapter
    from glassloop.record.store.store import Store

T = TypeVar("T")
MOST_WAITING = 1024
_ADAPTER_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class LocalModel(LanguageModel):
    """A model that computes in this process, on the thread `engine`. `store` keeps every run."""

    engine: EngineThread

    def __init__(
        self, loaded: LoadedModel, *, most_waiting: int = MOST_WAITING, store: Store | None = None
    ) -> None:
        self.engine = EngineThread(loaded.loop, most_waiting)
        self.requests = RequestMaker(
            self,
            loaded.name,
            loaded.loop.transformer.config,
            loaded.loop.context.tokenizer,
            default_sampling=loaded.default_sampling,
            drafts=loaded.drafter is not None,
            pieces=loaded.pieces,
        )
        self.path, self.notes = loaded.path, loaded.notes
        self._loaded_as = loaded.name  # a server changes `name`
        self.weights = loaded.weights
        self._drafter = loaded.drafter
        self._mask: Mask | None = None
        self._rows = RowCache(self.engine)
        self._one_adapter = Lock()
        self.store = store
        if store is not None:
            store.on_removal(weakref.WeakMethod(self.forget))
        # The engine must hold no reference to this object, or it would never be freed.
        weakref.finalize(self, self.engine.close)

    @property
    def transformer(self) -> Transformer:
        return self.engine.loop.transformer

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

        return fingerprint(self.path) + (f"+{self.weights}" if self.weights else "")

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
            adapters_of(self, Sampling(adapter=name))
            raise GlassloopError.about("adapter", f"{shown(name)} was unloaded meanwhile")
        return loaded.number

    # ── masked rows ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def mask(self) -> Mask:
        """What masked rows are for this model. Raises if it has been trained on none."""
        config = self.config
        if config.is_recurrent:
            raise GlassloopError(
                f"{self.name} has recurrent layers, whose rows see nothing after them: it cannot fill masks"
            )
        if config.mask_token is not None:
            return Mask(config.mask_token, whole=True, shifted=config.masks_shifted)
        if self._mask is None and (file := shipped_holes(self._loaded_as)) is not None:
            self.load_holes(file)
        if self._mask is None:
            raise GlassloopError(
                f"{self.name} has no adapter for masked rows; load_holes() with such an adapter is expected,"
                " or a model that was trained on masked text"
            )
        return self._mask

    @property
    def can_diffuse(self) -> bool:
        if self.config.is_recurrent:
            return False
        has_mask = self.config.mask_token is not None or self._mask is not None
        return has_mask or shipped_holes(self._loaded_as) is not None

    def load_holes(self, adapter: str | Path | Adapter) -> None:
        """Loads the adapter that acts on masked rows, in place of the one there was. It changes nothing else
        that the model computes."""
        from glassloop.model.adapter import Adapter, read_adapter

        if self.config.is_recurrent:
            raise GlassloopError(f"{self.name} has recurrent layers; a model without them can fill masks")
        holes = adapter
        if not isinstance(holes, Adapter):
            holes = read_adapter(check_path("adapter", holes), self.config)
        if holes.mask_token is None or not 0 <= holes.mask_token < self.config.vocab_size:
            raise GlassloopError(
                f"adapter {holes.name} has no mask token; one made for masked rows is expected"
            )
        numbers: list[int] = []
        self.engine.call(lambda: numbers.append(self.transformer.load_adapter(holes)))
        self._mask = Mask(holes.mask_token, numbers[0], sha256=holes.sha256)

    # ── computing ──────────────────────────────────────────────────────────────────────────────────────────

    def after_step(self, job: Callable[[], object]) -> None:
        self.engine.after_step(job)

    def forget(self, run: Run) -> None:
        if self.engine.closed:
            return
        texts, realm = computed_texts(run), current_realm()
        for text in texts:
            self._rows.forget(text, realm)
        self.engine.call(lambda: self.engine.loop.forget(run.id, texts, realm))

    def logits(
        self, token_ids: Sequence[int], first: int | None = None, adapter: str | None = None
    ) -> Float32:
        """Returns the logits after each token from the place `first` on, by default after the last one:
        [tokens, vocabulary]. What is in the cache is not computed again."""
        ids = self.requests.checked(token_ids, "token_ids")
        self.requests.check_length(len(ids), "token_ids")
        place = len(ids) - 1 if first is None else check_count("first", first, 0, len(ids) - 1, "a place")
        return np.stack(list(logits_after(self.engine, ids, place, None, self.adapter_number(adapter))))

    def logits_row(self, ids: Sequence[int], adapter: str | None, deadline: Deadline | None) -> Float32:
        """Returns the logits after these tokens, [vocabulary]; the rows that were asked for last are kept."""
        return self._rows.row(ids, deadline, self.adapter_number(adapter))

    def embed(self, token_ids: Sequence[int], *, deadline: Deadline | None = None) -> Float32:
        """Returns the mean of the last hidden states of all tokens, [dim]."""
        check_deadline(deadline)
        ids, context = self.requests.checked(token_ids, "token_ids"), self.config.context
        if not 1 <= len(ids) <= context:
            raise LengthError.about("token_ids", f"has {len(ids)} tokens; 1 to {context} are expected")
        return mean_hidden(self.engine, ids, deadline)

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

    # ── operation ──────────────────────────────────────────────────────────────────────────────────────────

    def has_room(self, tokens: int) -> bool:
        return self.engine.loop.tree.room_for(tokens)

    @property
    def keep(self) -> Callable[[Run], None] | None:
        return None if self.store is None else self.store.put

    def close(self) -> None:
        """Ends what runs, as cancelled, and frees the engine."""
        super().close()
        if self.store is not None:
            self.store.flush()


def computed_texts(run: Run) -> list[list[int]]:
    """Returns the token ids of all texts that were computed for a run: its own, and those of the beams of its
    search."""
    texts, inner = [run.prompt_ids + run.token_ids], {beam.parent for beam in run.beams}
    nodes = {beam.number: beam for beam in run.beams}
    for beam in run.beams:
        if beam.number not in inner:
            text, at = list[int](), nodes.get(beam.number)
            while at is not None:
                text.append(at.id)
                at = None if at.parent is None else nodes.get(at.parent)
            texts.append(run.prompt_ids + text[::-1])
    return texts


def check_adapter_name(name: str) -> None:
    """Raises unless a name fits `model: "base:adapter"` and a line of the command line."""
    if not isinstance(name, str) or not _ADAPTER_NAME.fullmatch(name):
        expected = "letters, digits, '.', '_' and '-', at most 64, are expected"
        raise GlassloopError.about("adapter", f"is {shown(name)}; {expected}")
