"""Training: text in, weights out. It runs the forward pass of `model/transformer.py` through an op set with
gradients (`ops.py`), so that the model that is trained is the model that generates.

Everything but reading text needs torch (the extra `train`). Importing this package imports nothing.
"""
