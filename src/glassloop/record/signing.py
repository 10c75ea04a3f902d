"""Ed25519 signatures of receipts, by the library `cryptography` (the extra `receipts`)."""

from __future__ import annotations

import os
from typing import Any

from glassloop.errors import GlassloopError, TraceError
from glassloop.record.receipt import Receipt
from glassloop.util.files import read_at_most
from glassloop.util.shown import printable

_MOST_BYTES = 1 << 16


class SigningKey:
    """A private key, read from a PEM file such as `openssl genpkey -algorithm ed25519` writes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        name = printable(os.fspath(path))
        ed25519, serialization = _library()
        data = read_at_most(os.fspath(path), _MOST_BYTES, TraceError)
        try:
            key = serialization.load_pem_private_key(data, password=None)
        except (ValueError, TypeError) as error:
            raise TraceError(f"{name} is not a private key in PEM without a password") from error
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise TraceError(f"{name} is not an Ed25519 key; openssl genpkey -algorithm ed25519 makes one")
        self._key = key

    @property
    def public(self) -> str:
        """The public key, in hexadecimal."""
        return str(self._key.public_key().public_bytes_raw().hex())

    def sign(self, data: bytes) -> str:
        """Returns the signature of some bytes, in hexadecimal."""
        return str(self._key.sign(data).hex())


def signature_problem(receipt: Receipt, expected: str | None = None) -> str | None:
    """Returns what is wrong with the signature of a receipt, or None. `expected` is the public key that it
    must be by, in hexadecimal; without one, a receipt may have no signature."""
    if receipt.signature is None or receipt.key is None:
        return None if expected is None and receipt.key == receipt.signature else "the receipt is not signed"
    if expected is not None and receipt.key != expected.lower():
        return f"the receipt is signed by another key, {receipt.key[:16]}…"
    ed25519, _ = _library()
    from cryptography.exceptions import InvalidSignature

    try:
        key = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(receipt.key))
        key.verify(bytes.fromhex(receipt.signature), receipt.signed_bytes)
    except (InvalidSignature, ValueError):
        return "the signature is not that of the receipt: something was changed, or another key signed it"
    return None


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise GlassloopError(
            "signatures need the library cryptography: pip install 'glassloop[receipts]'"
        ) from None
    return ed25519, serialization
