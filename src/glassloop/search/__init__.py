"""Searches: answers that are found by generating several paths and deciding between them.

`search.py` is the interface of a method, `methods/` has the methods, `running.py` drives one search in
rounds, and `solve.py` runs one search or many of them on the engine.
"""
