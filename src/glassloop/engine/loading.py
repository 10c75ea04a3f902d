"""Loading a model from its files: the weights, the tokenizer, what makes drafts, and the loop around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from glassloop.decode.defaults import sampling_of_model
from glassloop.decode.sampling import Sampling
from glassloop.engine.kv_memory import default_memory, parse_bytes
from glassloop.engine.loop import Loop
from glassloop.engine.protocol import DrafterKind
from glassloop.errors import GlassloopError
from glassloop.model.config import ModelConfig
from glassloop.model.drafter import DrafterFile, is_drafter, read_drafter
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import fetch
from glassloop.ops import choose_ops
from glassloop.ops.drafting import DraftOps
from glassloop.ops.protocol import Ops
from glassloop.text.pieces import Pieces


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to compute, with what is known of its files."""

    name: str
    loop: Loop
    path: Path = Path()
    weights: str | None = None  # their format, if it was given on load or is not the one of the files
    notes: Sequence[str] = ()  # what became of weights in a form that no op set has
    default_sampling: Sampling = field(default_factory=Sampling)
    drafter: DrafterKind | None = "lookup"
    pieces: Pieces | None = None  # the texts of tokens that the loop has made already


def load_model(
    name: str,
    ops: str | None = None,
    weights: str | None = None,
    *,
    kv_memory: int | str | None = None,
    draft: bool | str | Path = True,
    most_running: int | None = None,
) -> LoadedModel:
    """Loads a model. `LLM` describes the options."""
    memory = None if kv_memory is None else parse_bytes(kv_memory)
    op_set = choose_ops(ops)
    most_running = most_running or op_set.most_running
    files = ModelFiles(fetch(name))
    default_sampling = sampling_of_model(name, files)
    drafting = _drafting(draft, files.config, op_set)
    transformer, tokenizer = files.load(op_set, weights, drafting.file)
    pieces = Pieces(tokenizer)
    if memory is None:
        memory = default_memory(transformer, most_running)
    draft_model = None
    if drafting.model is not None:
        from glassloop.engine.drafting.draft_model import load_draft

        draft_model = load_draft(drafting.model, tokenizer, op_set.name, memory // 4)
    return LoadedModel(
        name,
        Loop(transformer, tokenizer, pieces.__getitem__, memory, most_running, draft_model),
        files.path,
        weights or "_".join(files.formats).lower()[:16] or None,
        files.notes,
        default_sampling,
        "drafter" if drafting.kind == "lookup" and transformer.drafter is not None else drafting.kind,
        pieces,
    )


class _Drafting(NamedTuple):
    """What the option `draft` means."""

    kind: DrafterKind | None  # None: no drafts
    file: DrafterFile | bool = False  # True: the drafter that the package has for the model, if any
    model: str | Path | None = None  # a smaller model


def _drafting(draft: bool | str | Path, config: ModelConfig, op_set: Ops) -> _Drafting:
    if isinstance(draft, bool):
        return _Drafting("lookup" if draft else None, draft)
    if not is_drafter(draft):
        return _Drafting("model", model=draft)
    if not isinstance(op_set, DraftOps):
        raise GlassloopError(f"draft is a drafter's file, which needs the op set native, not {op_set.name}")
    return _Drafting("lookup", read_drafter(Path(draft), config))
