"""What layers are made of: mixers, feed-forwards, and the norms and residuals around them.

A kind of either is a class with a `forward`, which `model/transformer.py` calls; its description is a class
of `model/config.py`.
"""
