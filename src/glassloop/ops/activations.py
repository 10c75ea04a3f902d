"""The names of the functions that a feed-forward or a gate applies to each value. The reference op set
defines them."""

from __future__ import annotations

from typing import Literal

Activation = Literal["gelu", "gelu_tanh", "silu", "relu", "sigmoid", "relu2", "none"]
