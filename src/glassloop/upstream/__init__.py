"""Another engine behind an OpenAI-compatible API, seen through: its runs are recorded with the tokens and the
log-probabilities that it gives, and what it does not tell is unknown. docs/upstream.md describes it.
"""

from glassloop.upstream.engine import UpstreamEngine

__all__ = ["UpstreamEngine"]
