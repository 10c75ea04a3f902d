"""Writes and reads tables of tiles as JSON: `python -m bench.gpu tiles --save` finds one for a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from glassloop.errors import GlassloopError
from glassloop.ops.torch.tiles import ANY, Table, Tile, most_stages, output_bytes
from glassloop.util.check import one_of, require


def table_text(table: Table) -> str:
    """Returns a table as JSON."""
    return json.dumps(table._asdict())


def read_table(text: str, shared_memory: int) -> Table:
    """Returns the table in a text that `table_text` has made. Raises if it is anything else, or if a tile
    does not fit into the shared memory."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GlassloopError(f"the table of tiles is not JSON: {error}") from None
    if not isinstance(given, dict) or given.keys() != {*Table._fields}:
        raise GlassloopError(f"the table of tiles has to have the fields {', '.join(Table._fields)}")

    def tile(each: Any, where: str) -> Tile:
        made = _tile(each, where)
        name = where.partition("[")[0]
        if (
            most_stages(made, 0 if name == "plain" else output_bytes(made, name == "gated"), shared_memory)
            < 1
        ):
            raise GlassloopError(
                f"the table of tiles: {where} does not fit into {shared_memory} bytes of shared memory"
            )
        return made

    def widths(each: Any, where: str) -> Any:
        return _limits(each, where, tile)

    return Table(**{name: _limits(given[name], name, widths) for name in Table._fields})


def _limits(given: Any, where: str, read: Callable[[Any, str], Any]) -> Any:
    """Returns pairs of a limit and what `read` returns: the limits ascend, and the last one is `ANY`."""
    if not isinstance(given, list) or not all(isinstance(each, list) and len(each) == 2 for each in given):
        raise GlassloopError(f"the table of tiles: {where} has to be a list of pairs")
    limits = [limit for limit, _ in given]
    ascend = all(type(limit) is int for limit in limits) and limits == sorted({*limits})
    if not limits or not ascend or limits[-1] != ANY:
        raise GlassloopError(f"the table of tiles: the limits of {where} have to ascend to {ANY}")
    return tuple((limit, read(each, f"{where}[{at}]")) for at, (limit, each) in enumerate(given))


_POSSIBLE: dict[str, tuple[Any, ...]] = {
    "rows": (16, 32, 64, 128, 256),
    "width": (16, 32, 64, 128, 256),
    "step": (32, 64, 128, 256, 512),
    "swapped": (False, True),
    "warps": (1, 2, 4, 8),
    "stages": (1, 2, 3, 4, 5, 6),
    "pieces": (1, 2, 4),
}


def _tile(given: Any, where: str) -> Tile:
    """Returns a tile from a list of its fields."""
    if not isinstance(given, list) or len(given) != len(Tile._fields):
        raise GlassloopError(f"the table of tiles: {where} has to be a list of {', '.join(Tile._fields)}")
    for name, value in zip(Tile._fields, given, strict=True):
        require(f"the table of tiles: {where}.{name}", value, one_of(*_POSSIBLE[name]))
    return Tile(*given)
