"""The op set for training: plain differentiable torch functions, on the CPU or a GPU.

It computes whole sequences at once and keeps keys and values only for samples. A batch is a `SequenceBatch`:
sequences of one length, each made of one or several documents, which do not see each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F

from glassloop.errors import ModelError
from glassloop.ops import rows as reference_rows
from glassloop.ops.kv_cache import CacheSpec, Pages, Place
from glassloop.ops.memory import FreeMemory, host_memory
from glassloop.ops.protocol import Activation, Array, Forward, LowRank, Matrix, Ops, Output, QueryGrowth
from glassloop.ops.quant import Float32, Format
from glassloop.ops.routing import Expert, Gating, Router, Routing
from glassloop.ops.rows import RowOps
from glassloop.ops.tensor import Tensor
from glassloop.ops.without_states import RECURRENT_OPS, WithoutStates
from glassloop.train.expert_ops import choose_experts, sum_of_experts


@dataclass
class SequenceBatch:
    """The rows of one forward pass for training: `sequences` sequences of `length` tokens each."""

    tokens: torch.Tensor  # [rows], rows = sequences * length
    positions: torch.Tensor  # [rows], from 0 in each document
    sequences: int
    length: int
    documents: torch.Tensor | None = None  # [sequences, length] a number for each document; None: one each
    wanted: torch.Tensor | None = None  # the rows whose logits are computed; None: all
    adapters: Sequence[int] = ()  # of each row, as in `Batch`; what is trained is in the matrices themselves
    look_ahead: bool = False  # without the causal mask: every token sees the whole of its document
    cuts: torch.Tensor | None = None  # [documents + 1] the first row of each document, and the end (int32)
    masks: dict[int | None, torch.Tensor | None] = field(default_factory=dict)  # by window
    # Keys and values of the tokens before these, by layer, to which those of these tokens are added. Rows see
    # all of them, so behind a part of a text there is one row. None: nothing is kept.
    past: dict[Place, tuple[torch.Tensor, torch.Tensor]] | None = None

    def mask(self, window: int | None) -> torch.Tensor | None:
        """Returns which tokens each token sees, [sequences or 1, 1, length, length], or None if these are all
        tokens before it in its sequence."""
        if window not in self.masks:
            self.masks[window] = self._mask(window)
        return self.masks[window]

    def make_masks(self, windows: Iterable[int | None]) -> None:
        """Computes the masks for layers with these windows, before the first layer asks for one."""
        if self.cuts is None:
            for window in windows:
                self.mask(window)

    def _mask(self, window: int | None) -> torch.Tensor | None:
        limited = window is not None and window < self.length
        if not limited and self.documents is None and not self.look_ahead:
            return None
        place = torch.arange(self.length, device=self.tokens.device)
        back = place[:, None] - place[None, :]  # how far a query looks back for a key
        visible = torch.ones_like(back, dtype=torch.bool) if self.look_ahead else back >= 0
        if limited:
            visible = visible & (back < window)
        if self.documents is None:
            return visible[None, None]
        same = self.documents[:, :, None] == self.documents[:, None, :]
        return (visible[None] & same)[:, None]


class TrainedLowRank:
    """A low-rank addition to a matrix: x @ (weight + scaling * up @ down).T (LoRA)."""

    def __init__(self, down: torch.Tensor, up: torch.Tensor, scaling: float, dropout: float) -> None:
        self.down = down  # [rank, in]
        self.up = up  # [out, rank]
        self.scaling = scaling
        self.dropout = dropout


@dataclass
class TrainMatrix:
    """A matrix that is trained or, with an adapter, frozen."""

    weight: torch.Tensor  # [out, in]
    adapter: TrainedLowRank | None = None


def as_ops(ops: object) -> Ops:
    """Returns an op set for training as a model takes it: the types of its arrays are hidden."""
    return cast(Ops, ops)


def tensor_of(array: Array) -> torch.Tensor:
    """Returns what a model has computed with an op set for training."""
    return cast(torch.Tensor, array)


def weight_of(matrix: Matrix) -> torch.Tensor:
    """Returns the weight of a matrix of an op set for training."""
    return cast(TrainMatrix, matrix).weight


class TrainOps(WithoutStates):
    """Implements `Ops` with torch functions that have gradients. The weights that a model asks for are in
    `matrices` and `vectors`, by the names of their tensors."""

    name = description = "train"
    step_rows = rows_beside = most_running = 0  # nothing is generated with this op set
    # There is no cache, which a layer could share with another one.
    lacks: frozenset[str] = frozenset({"attention:sinks", "attend"}) | RECURRENT_OPS
    rows: RowOps = reference_rows

    def __init__(self, device: str = "cpu", dtype: Any = torch.float32, dropout: float = 0.0) -> None:
        self.device = device
        self.dtype = dtype
        self.dropout = dropout  # of attention weights and of what a sublayer adds
        self.training = False  # whether dropout is applied
        self.matrices: dict[str, TrainMatrix] = {}
        self.vectors: dict[str, torch.Tensor] = {}
        self._sent: dict[bytes, torch.Tensor] = {}

    def host(self, array: torch.Tensor) -> Float32:
        values: Float32 = array.detach().float().cpu().numpy()
        return values

    def seconds(self, results: object) -> None:
        return None

    def program(
        self, compute: Forward[Output], sizes: Sequence[int] = (), adapted: bool = False
    ) -> Forward[Output]:
        return compute

    def cache_memory(self) -> int:
        return 0

    def free_memory(self) -> FreeMemory:
        return host_memory()

    def matrix_bytes(self, shape: tuple[int, ...], format: Format) -> int:
        return 4 * math.prod(shape)

    def page_bytes(self, spec: CacheSpec) -> int:
        return 0

    def cache(self, specs: Sequence[CacheSpec], memory: int) -> list[Pages]:
        return []

    def matrix(self, tensor: Tensor) -> TrainMatrix:
        if tensor.name not in self.matrices:
            self.matrices[tensor.name] = TrainMatrix(self._parameter(tensor))
            tensor.release()
        return self.matrices[tensor.name]

    def vector(self, tensor: Tensor) -> torch.Tensor:
        return self.vectors.setdefault(tensor.name, self._parameter(tensor))

    def _parameter(self, tensor: Tensor) -> torch.Tensor:
        values = torch.from_numpy(np.array(tensor.float32()))
        return values.to(self.device, self.dtype).requires_grad_()

    def low_rank(self, down: Tensor, up: Tensor, scale: float) -> LowRank[torch.Tensor]:
        matrices = [
            torch.from_numpy(np.array(each.float32())).to(self.device, self.dtype) for each in (down, up)
        ]
        return LowRank(matrices[0], matrices[1], scale)

    def adapt(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        adapters: Sequence[int],
        parts: Sequence[LowRank[torch.Tensor] | None],
    ) -> torch.Tensor:
        numbers = torch.tensor(adapters, device=y.device)
        for number, part in enumerate(parts):
            if part is not None:
                added = F.linear(F.linear(x, part.down), part.up) * part.scale
                y = torch.where((numbers == number)[:, None], y + added, y)
        return y

    def embed(self, table: TrainMatrix, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, table.weight)

    def linear(self, x: torch.Tensor, weight: TrainMatrix, bias: torch.Tensor | None) -> torch.Tensor:
        y = F.linear(x, weight.weight, bias)
        adapter = weight.adapter
        if adapter is None:
            return y
        h = F.dropout(x, adapter.dropout, self.training) if adapter.dropout else x
        return y + F.linear(F.linear(h, adapter.down), adapter.up) * adapter.scaling

    def head(self, x: torch.Tensor, weight: TrainMatrix) -> torch.Tensor:
        return self.linear(x, weight, None)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(x.to(weight.dtype), (x.shape[-1],), weight, eps)

    def layer_norm(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
    ) -> torch.Tensor:
        return F.layer_norm(x.to(weight.dtype), (x.shape[-1],), weight, bias, eps)

    def split_heads(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return x.reshape(len(x), heads, -1)

    def angles(
        self, positions: torch.Tensor, frequencies: Float32, factor: float, growth: QueryGrowth | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        speed = self._on_device(frequencies)
        turns = positions.to(torch.float32)[:, None, None] * speed  # [rows, 1, half]
        cos, sin = turns.cos() * factor, turns.sin() * factor
        if growth is not None:
            grown = 1 + growth.rate * torch.log1p((positions // growth.step).float())[:, None, None]
            cos, sin = cos * grown, sin * grown
        return cos.to(self.dtype), sin.to(self.dtype)

    def _on_device(self, frequencies: Float32) -> torch.Tensor:
        """Returns frequencies on the device. They are sent once: each transfer would wait for the device."""
        key = frequencies.tobytes()
        if key not in self._sent:
            self._sent[key] = torch.from_numpy(np.array(frequencies, np.float32)).to(self.device)
        return self._sent[key]

    def rotate(self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        cos, sin = angles
        half = cos.shape[-1]
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        turned = [a * cos - b * sin, b * cos + a * sin]
        return torch.cat([*turned, rest.to(turned[0].dtype)] if rest.shape[-1] else turned, dim=-1)

    def attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        batch: Any,
        pages: Sequence[Pages],
        place: Place,
        scale: float,
        window: int | None,
        softcap: float | None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Lets each token attend to those before it in its document: [rows, heads * head dim]. No pages are
        written."""
        packed: SequenceBatch = batch
        rows, heads, head_dim = q.shape
        dropout = self.dropout if self.training else 0.0
        if packed.cuts is not None:
            return _flash_attention(q, k, v, packed, dropout, scale, window)
        q, k, v = (
            x.to(v.dtype).reshape(packed.sequences, packed.length, -1, head_dim).transpose(1, 2)
            for x in (q, k, v)
        )  # [sequences, heads, length, head dim]
        mask = packed.mask(window)
        if packed.past is not None:
            before = packed.past.get(place)
            if before is not None:
                k, v = (torch.cat([old, new], dim=2) for old, new in zip(before, (k, v), strict=True))
                k, v = (x if window is None else x[:, :, -window:] for x in (k, v))
                mask = torch.ones(1, k.shape[2], dtype=torch.bool, device=k.device)
            packed.past[place] = k, v
        shared = heads != k.shape[1]  # several query heads read one key-value head
        if shared and (mask is not None or softcap is not None):
            # The kernels that take a mask do not share heads: torch would compute the whole matrix of scores.
            k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))
            shared = False
        if softcap is None:
            mixed = F.scaled_dot_product_attention(
                q, k, v, mask, dropout, is_causal=mask is None, scale=scale, enable_gqa=shared
            )
        else:
            mixed = _capped_attention(q, k, v, mask, dropout, scale, softcap)
        return mixed.transpose(1, 2).reshape(rows, heads * head_dim)

    def attend(self, *_: Any, **__: Any) -> torch.Tensor:
        raise ModelError("the op set train has no cache, which a layer could share with another one")

    def activate(self, x: torch.Tensor, kind: Activation) -> torch.Tensor:
        match kind:
            case "relu":
                return F.relu(x)
            case "relu2":
                return F.relu(x).square()
            case "sigmoid":
                return torch.sigmoid(x)
            case "silu":
                return F.silu(x)
            case "gelu_tanh":
                return F.gelu(x, approximate="tanh")
            case "gelu":
                return F.gelu(x)

    def gate(self, gate: torch.Tensor, up: torch.Tensor, kind: Activation) -> torch.Tensor:
        return self.activate(gate, kind) * up

    def route(self, x: torch.Tensor, router: Router, routing: Routing) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            bias = None if router.bias is None else router.bias.float()
            logits = F.linear(x.float(), router.weight.weight.float(), bias)
            return choose_experts(logits, routing, router.choice_bias, router.factors)

    def experts(
        self,
        x: torch.Tensor,
        routes: torch.Tensor,
        experts: Sequence[Expert],
        gating: Gating,
        weigh_input: bool,
    ) -> torch.Tensor:
        def compute(number: int, rows: torch.Tensor) -> torch.Tensor:
            expert = experts[number]
            gate = self.linear(rows, expert.gate, expert.gate_bias)
            up = self.linear(rows, expert.up, expert.up_bias)
            return self.linear(self._gated(gate, up, gating), expert.down, expert.down_bias)

        return sum_of_experts(x, routes, compute, weigh_input)

    def _gated(self, gate: torch.Tensor, up: torch.Tensor, gating: Gating) -> torch.Tensor:
        if gating.limit is not None:
            gate, up = gate.clamp(max=gating.limit), up.clamp(-gating.limit, gating.limit)
        if gating.slope != 1.0:
            return gate * torch.sigmoid(gating.slope * gate) * (up + gating.shift)
        return self.activate(gate, gating.activation) * (up + gating.shift)

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + (F.dropout(y, self.dropout, self.training) if self.dropout else y)

    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * float(np.float32(factor))

    def softcap(self, x: torch.Tensor, cap: float) -> torch.Tensor:
        return torch.tanh(x / cap) * cap

    def take(self, x: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        return x if rows is None else x[rows]


def _flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    packed: SequenceBatch,
    dropout: float,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """Returns attention within the documents that `packed.cuts` names, by torch's flash kernel, which needs
    a GPU and bfloat16."""
    q, k = q.to(v.dtype), k.to(v.dtype)
    limit = None if window is None or window >= packed.length else window - 1
    mixed = torch.ops.aten._flash_attention_forward(
        q,
        k,
        v,
        packed.cuts,
        packed.cuts,
        packed.length,
        packed.length,
        dropout,
        not packed.look_ahead,
        False,
        scale=scale,
        window_size_left=limit,
        window_size_right=None if limit is None or packed.look_ahead else 0,
    )[0]
    rows: torch.Tensor = mixed.reshape(len(q), -1)
    return rows


def _capped_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    scale: float,
    softcap: float,
) -> torch.Tensor:
    """Returns attention whose scores go through a soft cap, which torch's own function does not have."""
    if mask is None:
        mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).tril()
    scores = torch.tanh(q @ k.transpose(-1, -2) * scale / softcap) * softcap
    weights = torch.softmax(scores.masked_fill(~mask, -torch.inf).float(), dim=-1).to(v.dtype)
    return F.dropout(weights, dropout, training=True) @ v if dropout else weights @ v
