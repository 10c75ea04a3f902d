"""Measures the torch op set on a GPU: `python -m bench.gpu`. Weights are random and made on the device, so it
needs no model."""
