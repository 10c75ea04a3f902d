"""Text ⇄ tokens: the first and the last step of every generation.

A `Tokenizer` turns text into token ids and ids into exact bytes. It is built from GGUF metadata, a folder
with `tokenizer.json` or a tiktoken rank file, and never changes afterwards, so threads may share it.
"""

from __future__ import annotations

import operator
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassloop.errors import TextError
from glassloop.text.alphabet import BYTE_CHARACTERS, byte_name, read_shown_bytes, show_bytes, to_alphabet
from glassloop.text.guard import Guard, Marks
from glassloop.text.pipeline import (
    Mode,
    SpacePrefix,
    TokenizerParts,
    first_line,
    raise_unless_from_library,
)
from glassloop.text.vocabulary import LITERAL_KINDS, SPECIAL_KINDS, Spelling, TokenKind
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Backend

_ESCAPED = re.compile("([\udc80-\udcff]+)")  # bytes that are not UTF-8, as surrogateescape decodes them

_LONG_TEXT = 8192  # characters that take a few milliseconds


def _encoding(backend: Backend, text: str) -> Encoding:
    """Returns the library's encoding of a text. The library holds the GIL for a single text but not for a
    batch, so a long text is encoded as a batch of one and other threads need not wait for it."""
    if len(text) < _LONG_TEXT:
        return backend.encode(text, add_special_tokens=False)
    return backend.encode_batch([text], add_special_tokens=False)[0]


class Tokenizer:
    def __init__(self, parts: TokenizerParts) -> None:
        self._parts = parts
        self._vocabulary = parts.vocabulary
        self.name = parts.vocabulary.name
        self._bytes: dict[int, bytes] = {}  # of the tokens used so far
        self.vocab_size = len(parts.vocabulary)
        self.bos_id = parts.bos_id
        self.eos_ids = parts.eos_ids
        self.add_bos = parts.bos_id is not None and parts.bos_id in parts.before
        self.add_eos = bool(parts.after)
        self.special_ids = frozenset(
            i for i in self._vocabulary.literal_ids if self._vocabulary.kinds[i] in SPECIAL_KINDS
        )
        self.chat_template = parts.chat_template

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object], name: str = "GGUF") -> Tokenizer:
        """Reads the metadata of a GGUF file, with the keys of the file ("tokenizer.ggml.tokens", …)."""
        from glassloop.text.readers.gguf_vocab import read_gguf

        return cls(read_gguf(metadata, name))

    @classmethod
    def from_json_folder(cls, folder: Path, rows: int | None = None) -> Tokenizer:
        """Reads a folder with tokenizer.json and, if they exist, the files that go with it. Added tokens
        whose ids are beyond this number of rows are left out."""
        from glassloop.text.readers.hf_json import read_json_folder

        return cls(read_json_folder(folder, rows))

    @classmethod
    def from_tiktoken(cls, path: Path, name: str) -> Tokenizer:
        """Reads a rank file; `name` ("cl100k_base", …) implies the word rule and the special tokens."""
        from glassloop.text.readers.tiktoken_ranks import read_tiktoken

        return cls(read_tiktoken(path, name))

    def json_files(self) -> dict[str, str]:
        """Returns the tokenizer as the files of a folder: tokenizer.json, tokenizer_config.json and, if there
        is one, the chat template. Only byte-level vocabularies can be written."""
        from glassloop.text.readers.hf_json import write_json_files

        return write_json_files(self._parts)

    @property
    def can_chat(self) -> bool:
        """Whether `encode_chat` can write a conversation."""
        return self.chat_template is not None

    @cached_property
    def longest_token(self) -> int:
        """The number of bytes of the longest token."""
        return max(len(self.token_bytes(token)) for token in range(self.vocab_size))

    @cached_property
    def missing_ids(self) -> tuple[int, ...]:
        """The ids below `vocab_size` that have no token."""
        pieces = self._vocabulary.pieces
        if all(pieces):  # the usual case, quickly
            return ()
        return tuple([token for token, piece in enumerate(pieces) if piece is None])

    # ── text → tokens ──────────────────────────────────────────────────────────────────────────────────────

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Returns the token ids of a text.

        `add_special` puts BOS and EOS around it if the model expects them. With `parse_special` the text of a
        special token becomes that token; without, it is text like any other.
        """
        ids = self._encode("parsing" if parse_special else "plain", text)
        if not parse_special:
            ids = self._spell_out_special(ids)
        return [*self._parts.before, *ids, *self._parts.after] if add_special else ids

    def encode_inside(self, text: str) -> list[int]:
        """Returns the token ids of plain text that continues other text: without BOS and EOS, without a space
        that the vocabulary would put in front of it, and never a special token."""
        return self._spell_out_special(self._encode("bare", text)) if text else []

    def encode_bytes(self, data: bytes) -> list[int]:
        """Returns the token ids of any bytes as plain text; `decode_bytes` is the inverse."""
        ids: list[int] = []
        for i, run in enumerate(_ESCAPED.split(data.decode("utf-8", "surrogateescape"))):
            if i % 2:
                ids += self._single_bytes(run.encode("utf-8", "surrogateescape"))
            elif run:
                ids += self._encode("bare" if i else "plain", run)
        return self._spell_out_special(ids)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        tools: Sequence[Any] | None = None,
        **extra: Any,
    ) -> list[int]:
        """Returns the token ids of a conversation, rendered by the model's own template. BOS is added if the
        model expects it and the template has not written it. The contents of messages and tools are text,
        and never become special tokens."""
        if self.chat_template is None:
            problem = f"{self.name} has no chat template; encode a prompt, or give the model a template"
            raise TextError(problem, field="messages")
        (messages, tools), marks = self._guard.protect((messages, tools))
        text = self.chat_template.render(
            messages,
            add_generation_prompt=add_generation_prompt and not continue_final,
            continue_final=continue_final,
            tools=tools,
            **extra,
        )
        ids = self._encode_marked(text, marks)
        before = list(self._parts.before)
        return ids if ids[: len(before)] == before else before + ids

    def _encode_marked(self, text: str, marks: Marks) -> list[int]:
        """Returns the token ids of a text without its marks; no special token has had a mark inside it."""
        first, *others = re.split(f"([{marks.cut}{marks.quote}])", text)
        found, pieces = others[::2], others[1::2]
        if marks.quote not in found:
            whole = "".join([first, *pieces])
            cuts = list(accumulate(map(len, [first, *pieces[:-1]]))) if pieces else []
            if not self._has_special_across(whole, cuts):
                return self.encode(whole, add_special=False)
        ids = self.encode(first, add_special=False)
        for mark, piece in zip(found, pieces, strict=True):
            # Up to the template's next special token, the piece continues other text.
            quoted = 1 if mark == marks.quote else 0
            place = quoted + self._guard.first_place(piece[quoted:])
            for plain in (piece[:quoted], piece[quoted:place]):
                if plain:
                    ids += self._spell_out_special(self._encode("bare", plain))
            if place < len(piece):
                ids += self.encode(piece[place:], add_special=False)
        return ids

    def _has_special_across(self, text: str, cuts: list[int]) -> bool:
        """Returns whether the tokenizer finds a special token with one of the (sorted) cuts inside it."""
        if not cuts:
            return False
        try:
            encoding = _encoding(self._parts.model.for_text(text).parsing, text)
        except BaseException as error:  # encoding it will raise the error
            raise_unless_from_library(error)
            return False
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id in self.special_ids:
                after = bisect_right(cuts, start)
                if after < len(cuts) and cuts[after] < end:
                    return True
        return False

    @cached_property
    def _guard(self) -> Guard:
        return Guard(list(map(self._vocabulary.text, self.special_ids)), self._parts.fold)

    def _encode(self, mode: Mode, text: str) -> list[int]:
        if not isinstance(text, str):
            raise TextError(f"text is expected, not {type(text).__name__}")
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            surrogate = ascii(text[error.start])
            raise TextError(
                f"character {error.start} of the text is a lone surrogate ({surrogate})"
            ) from None
        backend: Backend = getattr(self._parts.model.for_text(text), mode)
        try:
            ids: list[int] = _encoding(backend, text).ids
        except BaseException as error:
            raise_unless_from_library(error)
            raise TextError(f"{self.name} cannot encode the text: {first_line(error)}") from None
        if self._missing_bytes and self._parts.exact and not self._missing_bytes.isdisjoint(data):
            whole = mode != "bare"
            back = self.decode_bytes(ids) if whole else b"".join(map(self.token_bytes, ids))
            if back != data:
                raise self._no_token_for(self._lost_byte(data, back))
        return ids

    def _lost_byte(self, data: bytes, back: bytes) -> int:
        """Returns the byte that the library dropped, silently, because it has no token for it."""
        start = next((i for i, (a, b) in enumerate(zip(data, back, strict=False)) if a != b), len(back))
        while start and data[start] & 0xC0 == 0x80:  # back to the start of the character
            start -= 1
        return next((byte for byte in data[start:] if byte in self._missing_bytes), data[start])

    def _spell_out_special(self, ids: list[int]) -> list[int]:
        """Replaces special tokens, which plain text can merge into, by the tokens of their bytes."""
        if self.special_ids.isdisjoint(ids):
            return ids
        spelled = (self._single_bytes(self.token_bytes(i)) if i in self.special_ids else (i,) for i in ids)
        return [i for run in spelled for i in run]

    def _single_bytes(self, data: bytes) -> list[int]:
        ids = []
        for byte in data:
            token_id = self._byte_ids[byte]
            if token_id is None:
                raise self._no_token_for(byte)
            ids.append(token_id)
        return ids

    def _no_token_for(self, byte: int) -> TextError:
        return TextError(f"{self.name} has no token for the byte 0x{byte:02X}, so it cannot encode this text")

    @cached_property
    def _byte_ids(self) -> tuple[int | None, ...]:
        """The token of each single byte, never a special one; None if there is none."""
        byte_level = self._vocabulary.spelling is Spelling.BYTE_LEVEL
        names = BYTE_CHARACTERS if byte_level else [byte_name(byte) for byte in range(256)]
        ids = [self._parts.model.token_to_id(name) for name in names]
        if not self.special_ids.isdisjoint(i for i in ids if i is not None):
            # A special token has the same text and was found instead.
            pieces, wanted = self._vocabulary.pieces, {*names}
            plain = {p: i for i, p in enumerate(pieces) if p in wanted and i not in self.special_ids}
            ids = [plain.get(name) for name in names]
        return tuple(None if i is None or self.token_bytes(i) != bytes([b]) else i for b, i in enumerate(ids))

    @cached_property
    def _missing_bytes(self) -> frozenset[int]:
        return frozenset(byte for byte, token_id in enumerate(self._byte_ids) if token_id is None)

    # ── tokens → text ──────────────────────────────────────────────────────────────────────────────────────

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Returns the text of tokens; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids, skip_special=skip_special).decode("utf-8", "replace")

    def decode_bytes(self, ids: Iterable[int], *, skip_special: bool = False) -> bytes:
        """Returns the exact bytes of tokens that are a whole text.

        They are the tokens' bytes joined, except that a space which the vocabulary puts in front of text (see
        `SpacePrefix`) is left out: it was never in the text.
        """
        prefix, kinds = self._parts.space_prefix, self._vocabulary.kinds
        fresh = prefix is not SpacePrefix.NEVER
        chunks = []
        for place, token_id in enumerate(map(self._checked, ids)):
            data = self._vocabulary.token_bytes(token_id)
            literal = kinds[token_id] in LITERAL_KINDS
            if not (skip_special and token_id in self.special_ids):
                chunks.append(data[1:] if fresh and not literal and data.startswith(b" ") else data)
            if prefix is SpacePrefix.ALWAYS:
                fresh = literal
            elif prefix is SpacePrefix.FIRST:
                fresh = place == 0 and token_id == self.bos_id
        return b"".join(chunks)

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the exact bytes of one token; for a special one, its name."""
        if type(token_id) is not int:
            token_id = self._checked(token_id)
        data = self._bytes.get(token_id)
        if data is None:
            data = self._bytes[token_id] = self._vocabulary.token_bytes(token_id)
        return data

    def piece(self, token_id: int) -> str:
        """Returns a token in readable form: its text, and `<0xNN>` for each byte that is not text."""
        token_id = self._checked(token_id)
        data = self._vocabulary.token_bytes(token_id)
        if self._vocabulary.kinds[token_id] == TokenKind.BYTE and len(data) == 1:
            return byte_name(data[0])
        return show_bytes(data)

    def id_of(self, piece: str) -> int | None:
        """Returns the token with this text, or None. The text may be in the form that `piece` returns, or in
        the file's own spelling ("Ġthe", "▁the")."""
        model = self._parts.model
        byte_level = self._vocabulary.spelling is Spelling.BYTE_LEVEL

        def spelled(data: bytes) -> str:
            return (
                to_alphabet(data) if byte_level else data.decode("utf-8", "replace").replace(" ", model.space)
            )

        try:
            literal = model.token_to_id(piece)
            if literal is not None and self._vocabulary.kinds[literal] in LITERAL_KINDS:
                return literal
            for form in (spelled(piece.encode()), piece, spelled(read_shown_bytes(piece))):
                token_id = model.token_to_id(form)
                if token_id is not None:
                    return token_id
            return None if byte_level else model.token_to_id(piece.replace("\u2581", model.space))
        except UnicodeEncodeError:
            return None

    def _checked(self, token_id: int) -> int:
        try:
            return operator.index(token_id)
        except TypeError:
            raise TextError(f"a token id is expected, not {shown(token_id)}") from None
