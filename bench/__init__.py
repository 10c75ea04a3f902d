"""Benchmarks of Glassloop and other engines, on one machine, in one run, with the same files and tokens.

`python -m bench` (or `make bench`) starts here; docs/benchmarks.md describes the method. The code that runs
inside a peer's process is in `peers/` and `first_token/` and needs only the standard library and that peer.
"""
