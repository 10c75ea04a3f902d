"""`python -m bench.gpu bits|compiled|engine|few|host|peers|speed|tiles`: are the bits always the same, how
fast are compiled PyTorch, the whole engine, products of few rows, the engine without a GPU, products beside
cuBLAS and forward passes, which tiles are fastest."""

from __future__ import annotations

import argparse

from bench.gpu import bits, compiled, engine, few, host, peers, speed, tiles

_COMMANDS = {
    "bits": bits,
    "compiled": compiled,
    "engine": engine,
    "few": few,
    "host": host,
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
