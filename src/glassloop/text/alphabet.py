"""The two ways in which vocabularies spell bytes.

Byte-level BPE (GPT-2 and its descendants) writes each of the 256 bytes as one printable character, so that a
space is `Ġ` and a newline `Ċ`. SentencePiece writes text as it is, a space as `▁`, and a byte that no piece
covers as `<0xNN>`. Everything that reads or writes a vocabulary's own spelling goes through here.
"""

from __future__ import annotations

import re

SPACE_MARK = "\u2581"  # ▁, SentencePiece's space


def _byte_characters() -> str:
    # A byte that Latin-1 shows as a visible character stands for itself; the others take, in order,
    # the characters from U+0100 on. (0xAD, the soft hyphen, is invisible and so is not among the first.)
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in visible else next(spare)) for byte in range(256))


BYTE_CHARACTERS = _byte_characters()  # BYTE_CHARACTERS[byte] is the character that spells it
_TO_ALPHABET = dict(enumerate(BYTE_CHARACTERS))
_FROM_ALPHABET = {ord(character): byte for byte, character in enumerate(BYTE_CHARACTERS)}
_BYTE_NAME = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def to_alphabet(data: bytes) -> str:
    """Returns bytes spelled in the byte-level alphabet: `b" a"` → `"Ġa"`."""
    return data.decode("latin-1").translate(_TO_ALPHABET)


def from_alphabet(piece: str) -> bytes | None:
    """Returns the bytes that a byte-level piece spells, or None if a character is not in the alphabet."""
    word = piece.removeprefix(BYTE_CHARACTERS[0x20])
    if word.isascii() and word.isalnum():  # most are
        return (b" " if len(word) < len(piece) else b"") + word.encode()
    try:
        return bytes([_FROM_ALPHABET[ord(character)] for character in piece])
    except KeyError:
        return None


def byte_name(byte: int) -> str:
    """Returns the name that SentencePiece gives a byte, such as `<0x0A>`."""
    return f"<0x{byte:02X}>"


def named_byte(piece: str) -> int | None:
    """Returns the byte that `<0xNN>` names, or None if the piece is not such a name."""
    match = _BYTE_NAME.fullmatch(piece)
    return int(match[1], 16) if match else None


def show_bytes(data: bytes) -> str:
    """Returns bytes as text, with those that are not UTF-8 by name: `b" \\xf0\\x9f"` → `" <0xF0><0x9F>"`."""
    text = data.decode("utf-8", "surrogateescape")
    return "".join(byte_name(ord(c) - 0xDC00) if "\udc80" <= c <= "\udcff" else c for c in text)


def read_shown_bytes(shown: str) -> bytes:
    """The inverse of `show_bytes`."""
    parts = _BYTE_NAME.split(shown)  # text, hex, text, hex, …, text
    return b"".join(bytes.fromhex(part) if i % 2 else part.encode() for i, part in enumerate(parts))
