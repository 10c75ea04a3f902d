"""Experiments on editing: holes in paragraphs of books, planted errors, IFEval with the checker, the cost.

Each module is one command (`python -m bench.editing.holes --help`). They write one JSON object a line and go
on where they were when they are started again. They need the engine and NumPy and nothing else.
"""
