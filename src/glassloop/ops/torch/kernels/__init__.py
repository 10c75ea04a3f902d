"""Triton kernels. docs/ops.md defines the arithmetic: the order of every sum, and where values are rounded.

All are compiled without contraction of a product and a sum (`enable_fp_fusion=False`), so that an expression
has the same bits in every kernel that contains it.
"""
