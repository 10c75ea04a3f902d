"""Makes transformers load a GGUF file in a fraction of the time. The `gguf` package reads the arrays of a
file element by element, and transformers reads a file twice and makes the table of all names of tensors anew
for each module of the model. With the 262,144 tokens of Gemma, that is most of the time that loading takes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import gguf
import pytest
from gguf import GGUFReader, GGUFValueType
from transformers import modeling_gguf_pytorch_utils as loading

_LONG = 1000  # elements of an array, from which on it is a part of the vocabulary


@contextmanager
def vocabularies_skipped() -> Iterator[None]:
    """Makes the package read only the sizes of long arrays: those of the vocabulary, which the weights do not
    need. Tables of names are made once."""
    every, parse = GGUFReader._get_field_parts, loading._gguf_parse_value
    latest: tuple[Any, Any] = (None, None)

    def parts(reader: GGUFReader, start: int, kind: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if kind != GGUFValueType.ARRAY:
            return every(reader, start, kind)
        of, count = struct.unpack_from("<IQ", reader.data, start)
        if count < _LONG:
            return every(reader, start, kind)
        end = start + 12
        if of == GGUFValueType.STRING:
            for _ in range(count):
                end += 8 + struct.unpack_from("<Q", reader.data, end)[0]
        else:
            end += count * reader.gguf_scalar_to_np[GGUFValueType(of)]().itemsize
        first = every(reader, start + 12, of)
        # As many elements as there are, all of them the first one: transformers counts the tokens.
        types = [GGUFValueType.ARRAY, *first[3]]
        return end - start, first[1], first[2] * (count if of == GGUFValueType.STRING else 1), types

    def parse_once(value: Any, types: list[Any]) -> Any:
        nonlocal latest
        if value is not latest[0]:
            latest = value, parse(value, types)
        return latest[1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GGUFReader, "_get_field_parts", parts)
        patch.setattr(loading, "_gguf_parse_value", parse_once)
        patch.setattr(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map))
        yield
