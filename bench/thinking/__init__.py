"""Experiments on searches: what several paths cost beside one, and constrained decoding beside best of n.

The figures of GSM8K and IFEval come from `python -m glassloop.evaluate` (docs/evaluation.md).
"""
