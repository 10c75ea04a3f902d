"""The cache of keys and values on the device."""

from __future__ import annotations

import torch

from glassloop.ops.batch import PAGE, Span, check_page, pages_for
from glassloop.ops.kv_cache import CacheSpec, Place
from glassloop.ops.quant import Float32


class TorchPages:
    """Keys and values in the op set's half floats: [pages, layers, kv heads, tokens of a page, head dim]. The
    last page is no branch's: rows that only fill a batch up write to it."""

    def __init__(self, spec: CacheSpec, count: int, device: torch.device, half: torch.dtype) -> None:
        self.count = count
        self.spec = spec
        shape = (count + 1, spec.layers, spec.kv_heads, PAGE, spec.head_dim)
        self.keys = torch.zeros(shape, dtype=half, device=device)
        self.values = torch.zeros(shape, dtype=half, device=device)
        self.page_bytes = page_bytes(spec)

    def copy(self, source: int, target: int) -> None:
        check_page(source, self.count)
        check_page(target, self.count)
        self.keys[target].copy_(self.keys[source])
        self.values[target].copy_(self.values[source])

    def read_keys(self, place: Place, span: Span) -> Float32:
        group, layer = place
        pages = span.pages[group, : pages_for(span.length)]
        check_page(int(pages.min()), self.count)
        check_page(int(pages.max()), self.count)
        keys = self.keys[
            torch.from_numpy(pages).to(self.keys.device).long(), layer
        ]  # [pages, kv heads, PAGE, dim]
        rows = keys.transpose(1, 2).reshape(-1, *keys.shape[1:2], keys.shape[3])
        found: Float32 = rows[: span.length].float().cpu().numpy()
        return found


def page_bytes(spec: CacheSpec) -> int:
    return 2 * 2 * PAGE * spec.layers * spec.kv_heads * spec.head_dim
