"""`python -m bench.gpu accuracy|bits|compiled|engine|host|packed|peers|speed|tiles`: how near logits are to
float32, whether bits are always the same, how fast compiled PyTorch, the whole engine, the engine without a
GPU, products with packed matrices, products beside cuBLAS and forward passes are, which tiles are fastest."""

from __future__ import annotations

import argparse

from bench.gpu import accuracy, bits, compiled, engine, host, packed, peers, speed, tiles

_COMMANDS = {
    "accuracy": accuracy,
    "bits": bits,
    "compiled": compiled,
    "engine": engine,
    "host": host,
    "packed": packed,
    "peers": peers,
    "speed": speed,
    "tiles": tiles,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, module in _COMMANDS.items():
        module.add_options(commands.add_parser(name, help=module.__doc__))
    given = parser.parse_args()
    _COMMANDS[given.command].main(given)


if __name__ == "__main__":
    main()
