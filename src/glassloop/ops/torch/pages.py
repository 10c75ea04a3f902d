"""The cache of keys and values on the device."""

from __future__ import annotations

import torch

from glassloop.ops.batch import PAGE, Span, check_page, pages_for
from glassloop.ops.kv_cache import CacheSpec, Place
from glassloop.ops.quant import Float32
from glassloop.ops.torch.device import Device


class TorchPages:
    """Keys and values in half precision: [pages, layers, kv heads, tokens of a page, head dim].

    There is one page more than `count`, which belongs to no branch: rows that only fill up a batch write to
    it.
    """

    lines = 1

    def __init__(self, spec: CacheSpec, count: int, device: Device) -> None:
        self.count = count
        self.spec = spec
        shape = (count + 1, spec.layers, spec.kv_heads, PAGE, spec.head_dim)
        self.keys = torch.zeros(shape, dtype=device.half, device=device.torch)
        self.values = torch.zeros(shape, dtype=device.half, device=device.torch)
        self.page_bytes = page_bytes(spec, device)

    def copy(self, source: int, target: int) -> None:
        """Copies a page. The copy is on the stream of the programs, so it is done before their next step."""
        check_page(source, self.count)
        check_page(target, self.count)
        self.keys[target].copy_(self.keys[source])
        self.values[target].copy_(self.values[source])

    def read_keys(self, place: Place, span: Span) -> Float32:
        group, layer = place
        pages = span.pages[group, : pages_for(span.length)]
        check_page(int(pages.min()), self.count)
        check_page(int(pages.max()), self.count)
        index = torch.from_numpy(pages).to(self.keys.device, torch.int64)
        keys = self.keys[index, layer].transpose(1, 2)  # [pages, PAGE, kv heads, head dim]
        host_keys: Float32 = keys.flatten(0, 1)[: span.length].float().cpu().numpy()
        return host_keys


def page_bytes(spec: CacheSpec, device: Device) -> int:
    """Returns the bytes of a page: keys and values of PAGE tokens in all layers of a pool."""
    return int(2 * device.half.itemsize * PAGE * spec.layers * spec.kv_heads * spec.head_dim)
