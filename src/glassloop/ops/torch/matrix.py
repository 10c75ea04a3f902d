"""Weight matrices on the device: in half precision, or as the codes and scales of a quantized file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from glassloop.ops.quant import BF16, F16, Float32
from glassloop.ops.tensor import Tensor
from glassloop.ops.torch.device import DEVICE, HALF

COLUMNS = 128  # a matrix stays packed if it has a multiple of so many


class Packed(NamedTuple):
    """A quantized matrix [out, in]. A value is `scale * (code - zero) + minimum`, computed in float32 and
    rounded to half precision, so that its bits are those of the matrix in half precision.

    The codes of a row are permuted within each 128 columns (of 8 bits: 64), so that a lane of `few_rows.cu`
    finds those that it needs in 16 bytes: first the columns 0 to 3 of each 16, then 4 to 7, 8 to 11 and 12 to
    15."""

    codes: torch.Tensor  # [out, in] int8; of 4 bits, [out, in / 2] uint8: the first of two in the low bits
    scale: torch.Tensor  # [out, in / group], float16 if that is exact, else float32
    minimum: torch.Tensor | None  # likewise
    bits: int  # 8 or 4
    zero: int
    group: int  # values that share a scale

    @property
    def shape(self) -> tuple[int, int]:
        out, into = self.codes.shape
        return out, into * 8 // self.bits

    def to(self, device: torch.device) -> Packed:
        minimum = None if self.minimum is None else self.minimum.to(device)
        return self._replace(codes=self.codes.to(device), scale=self.scale.to(device), minimum=minimum)

    def rows(self, part: slice) -> Packed:
        minimum = None if self.minimum is None else self.minimum[part]
        return self._replace(codes=self.codes[part], scale=self.scale[part], minimum=minimum)

    def expanded(self) -> torch.Tensor:
        """Returns the values in half precision."""
        codes = self._wide().float().unflatten(1, (-1, self.group))
        values = codes * self.scale.float()[..., None]
        if self.minimum is not None:
            values += self.minimum.float()[..., None]
        return values.flatten(1).to(HALF)

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments besides the codes by which a kernel reads the matrix."""
        return {
            "scales": self.scale,
            "minimums": self.scale if self.minimum is None else self.minimum,  # not read if there is none
            "BITS": self.bits,
            "ZERO": self.zero,
            "GROUP": self.group,
            "MINIMUM": self.minimum is not None,
        }

    def words(self) -> torch.Tensor:
        """Returns the codes in words of 4, as the other kernels read them: [out, in / 4]."""
        return self.codes.view(torch.int32 if self.bits == 8 else torch.int16)

    def _wide(self) -> torch.Tensor:
        """Returns the codes as int8, less the zero, in the order of the columns."""
        wide = self.codes
        if self.bits == 4:
            wide = torch.stack([self.codes & 15, self.codes >> 4], 2).flatten(1).to(torch.int8) - self.zero
        return wide.unflatten(1, (-1, 4, 32 // self.bits, 4)).transpose(2, 3).flatten(1)

    def like(self, others: Sequence[Packed]) -> Packed:
        """Returns the same values in a form that these matrices can have too, so that one kernel reads all of
        them. The minimum of a value without one is minus zero, which changes no bit of a sum."""
        kinds = {
            (each.bits, each.zero, each.group, each.minimum is None, each.scale.dtype) for each in others
        }
        if len(kinds) == 1:
            return self
        times = self.group // min(each.group for each in others)
        wide = torch.float16 if all(each.scale.dtype is torch.float16 for each in others) else torch.float32
        scale = self.scale.to(wide).repeat_interleave(times, 1)
        minimum: torch.Tensor | None = None
        if any(each.minimum is not None for each in others):
            minimum = torch.full_like(scale, -0.0)
            if self.minimum is not None:
                minimum = self.minimum.to(wide).repeat_interleave(times, 1)
        return Packed(_permuted(self._wide(), 8), scale, minimum, 8, 0, self.group // times)


Stored: TypeAlias = torch.Tensor | Packed


class TorchMatrix:
    """A weight matrix [out, in]. It is copied to the device when it is first used; matrices that one product
    reads are then joined."""

    def __init__(self, tensor: Tensor) -> None:
        self.out, self.into = tensor.shape
        self._tensor: Tensor | None = tensor
        self._stored: Stored | None = None
        self.stays_packed = False  # whether a quantized matrix stays so

    @classmethod
    def of(cls, values: torch.Tensor | Packed) -> TorchMatrix:
        """Returns a matrix whose values are on the device already."""
        matrix = cls.__new__(cls)
        matrix.out, matrix.into = values.shape
        matrix._tensor, matrix._stored = None, values
        matrix.stays_packed = isinstance(values, Packed)
        return matrix

    def missing_bytes(self, packed: bool) -> int:
        """Returns the bytes that the matrix will take on the device, 0 if it is there; with `packed`, if it
        stays packed where it can."""
        if self._tensor is None:
            return 0
        if packed and can_pack(self._tensor):
            stored = self._tensor.format
            size = 4 if stored.name in _FOUR_BITS else 8
            scales = (4 if stored.block_values > 32 else 2) * (2 if stored.name in _WITH_MINIMUM else 1)
            return self.out * self.into * size // 8 + self.out * self.into // _group(stored.name) * scales
        return int(self.out * self.into * HALF.itemsize)

    @property
    def stored(self) -> Stored:
        """The matrix on the device, to which the first use copies it."""
        if self._tensor is not None:
            if self.stays_packed and can_pack(self._tensor):
                self._stored = pack(self._tensor).to(DEVICE)
            else:
                self._stored = _values(self._tensor).to(DEVICE).to(HALF)
            self._tensor.release()
            self._tensor = None
        assert self._stored is not None
        return self._stored

    @staticmethod
    def joined(matrices: Sequence[TorchMatrix], in_turn: bool = False) -> Stored:
        """Returns matrices as one, of which each then is a part: one below the other or, if `in_turn`, a row
        of each in turn."""
        parts = [matrix.stored for matrix in matrices]
        if len(parts) == 1:
            return parts[0]
        join = _in_turn if in_turn else _stacked
        packed = [part for part in parts if isinstance(part, Packed)]
        whole: Stored
        if len(packed) < len(parts):
            values = [part.expanded() if isinstance(part, Packed) else part for part in parts]
            whole = join(values)
        else:
            alike = [part.like(packed) for part in packed]
            minimums = [each.minimum for each in alike if each.minimum is not None]
            whole = alike[0]._replace(
                codes=join([each.codes for each in alike]),
                scale=join([each.scale for each in alike]),
                minimum=join(minimums) if minimums else None,
            )
        starts = np.cumsum([0, *[matrix.out for matrix in matrices]]).tolist()
        for number, matrix in enumerate(matrices):
            rows = slice(number, None, len(matrices)) if in_turn else slice(*starts[number : number + 2])
            matrix._stored = whole.rows(rows) if isinstance(whole, Packed) else whole[rows]
        return whole


def _stacked(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns arrays one below the other: as they are, if they lie so already, else copied."""
    first = parts[0]
    places = [0, *np.cumsum([part.nbytes for part in parts]).tolist()]
    if not _lie_at(parts, places, first.shape[1]):
        return torch.cat([*parts])
    rows = sum(len(part) for part in parts)
    return first.as_strided((rows, first.shape[1]), first.stride(), first.storage_offset())


def _in_turn(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns a row of each array in turn, of arrays of the same shape: as they are, if they lie so already,
    else copied."""
    first, count = parts[0], len(parts)
    rows, columns = first.shape
    places = [number * columns * first.itemsize for number in range(count)]
    if not _lie_at(parts, places, count * columns):
        return torch.stack([*parts], 1).flatten(0, 1)
    return first.as_strided((count * rows, columns), (columns, 1), first.storage_offset())


def _lie_at(parts: Sequence[torch.Tensor], places: Sequence[int], stride: int) -> bool:
    """Returns whether arrays share their memory, lie at these places (in bytes) from the first one on, and
    have rows with this stride."""
    first = parts[0]
    return all(
        part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and part.data_ptr() == first.data_ptr() + place
        and part.stride() == (stride, 1)
        for part, place in zip(parts, places, strict=False)
    )


_FOUR_BITS = ("Q4_0", "Q4_1", "Q4_K")
_WITH_MINIMUM = ("Q4_1", "Q5_1", "Q4_K", "Q5_K")


def _group(name: str) -> int:
    """Returns how many values of a quantized format share a scale."""
    return 16 if name == "Q6_K" else 32


def _permuted(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Returns codes, each in a byte, in the order that `Packed` has: the opposite of `_wide` there."""
    return codes.unflatten(1, (-1, 32 // bits, 4, 4)).transpose(2, 3).flatten(1)


def can_pack(tensor: Tensor) -> bool:
    """Returns whether a tensor is a quantized one that can stay so on the device."""
    return tensor.format.take_apart is not None and tensor.shape[1] % COLUMNS == 0


def pack(tensor: Tensor) -> Packed:
    """Returns a quantized tensor as codes, scales and minimums, on the host."""
    out, into = tensor.shape
    stored = tensor.format
    assert stored.take_apart is not None
    codes, scale, minimum = stored.take_apart(tensor.data.reshape(-1, stored.block_bytes))
    group, codes = codes.shape[2], codes.reshape(out, into)
    zero = 0
    if stored.name in _FOUR_BITS:
        zero = 8 if codes.dtype == np.int8 else 0
        codes = (codes + codes.dtype.type(zero)).astype(np.uint8)
    else:
        codes = codes.astype(np.int8)
    bits = 4 if stored.name in _FOUR_BITS else 8
    permuted = _permuted(torch.from_numpy(codes), bits)
    return Packed(
        permuted if bits == 8 else permuted[:, 0::2] | (permuted[:, 1::2] << 4),
        _narrowed(scale.reshape(out, -1), stored.block_values > 32),
        None if minimum is None else _narrowed(minimum.reshape(out, -1), stored.block_values > 32),
        bits,
        zero,
        group,
    )


def _narrowed(values: Float32, wide: bool) -> torch.Tensor:
    """Returns scales in float16, in which files have them, or in float32 if they are products of such."""
    return torch.from_numpy(np.ascontiguousarray(values if wide else values.astype(np.float16)))


def _values(tensor: Tensor) -> torch.Tensor:
    """Returns the values of a tensor on the host, floats in the precision in which they are stored."""
    if tensor.format is BF16 or tensor.format is F16:
        kind = torch.bfloat16 if tensor.format is BF16 else torch.float16
        return torch.from_numpy(np.array(tensor.data)).view(kind).reshape(tensor.shape)
    return torch.from_numpy(np.require(tensor.float32(), requirements="W"))
