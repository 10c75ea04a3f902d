"""Nodes of the tree of texts: the id of a prompt, or of a token after it, is a hash of the token ids up to
it, so texts with the same beginning share nodes."""

from __future__ import annotations

from hashlib import blake2b


def root_of(prompt_ids: list[int]) -> str:
    """Returns the node of a prompt."""
    return _hash(b"".join(id.to_bytes(4, "little") for id in prompt_ids))


def after(node: str, token: int) -> str:
    """Returns the node of a token that follows another."""
    return _hash(bytes.fromhex(node) + token.to_bytes(4, "little"))


def _hash(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()
