"""Nodes of the tree of texts: a prompt and every token after it have an id that follows from the token ids
alone, so that texts which begin alike share nodes."""

from __future__ import annotations

from hashlib import blake2b


def root_of(prompt_ids: list[int]) -> str:
    """The node of a prompt."""
    return _hash(b"".join(id.to_bytes(4, "little") for id in prompt_ids))


def after(node: str, token: int) -> str:
    """The node of a token that comes after another."""
    return _hash(bytes.fromhex(node) + token.to_bytes(4, "little"))


def _hash(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()
