"""The bench: Glassloop beside other engines, on one machine, in one run, on the same files and tokens.

`python -m bench` (or `make bench`) starts here; docs/benchmarks.md says how things are measured. What runs
inside a peer's process is in `peers/` and `first_token/` and needs only the standard library and that peer.
"""
