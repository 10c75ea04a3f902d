"""The stages that come with the engine. Importing this registers them; `chain.DEFAULT_ORDER` orders them."""

from glassloop.decode.stages import cuts, mirostat, penalties, tokens

__all__ = ["cuts", "mirostat", "penalties", "tokens"]
