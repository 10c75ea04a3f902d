"""Reads a tokenizer from GGUF metadata, the `tokenizer.*` keys.

The kinds of vocabulary that are read: "gpt2" (BPE with merges, words cut as `tokenizer.ggml.pre` says;
"gemma4" is one whose pieces are plain text), "llama" (SentencePiece BPE with a score for each piece) and
"bert" (WordPiece, in `word_pieces.py`). Fields mean what they mean to llama.cpp.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from math import isnan
from pathlib import Path

from glassloop.errors import TextError
from glassloop.text.alphabet import SPACE_MARK, byte_name, named_byte
from glassloop.text.bpe import BPE, Pair
from glassloop.text.chat import ChatTemplate
from glassloop.text.merges import LONGEST_PIECE, many_small_objects, merges_from_order
from glassloop.text.pipeline import SpacePrefix, TokenizerParts
from glassloop.text.pretokenizers import GGUF_RULES, WordRule
from glassloop.text.readers.word_pieces import word_pieces
from glassloop.text.vocabulary import Spelling, TokenKind, Vocabulary
from glassloop.util.fields import Fields
from glassloop.util.shown import shown

_PREFIX = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Files often name the end of text and leave out the end of a turn, or the other way round. A control token
# with one of these names always ends the text.
_END_NAMES = frozenset(
    {"<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>"}
)


def read_gguf(metadata: Mapping[str, object], name: str) -> TokenizerParts:
    fields = _Fields(metadata, name)
    model = fields.string("model")
    pieces = fields.strings("tokens")
    if not pieces:
        raise fields.error("tokens", "is empty")
    longest = max(map(len, pieces))
    if longest > LONGEST_PIECE:
        where = next(i for i, piece in enumerate(pieces) if len(piece) == longest)
        raise fields.error(
            f"tokens[{where}]", f"has {longest} characters; at most {LONGEST_PIECE} are expected"
        )
    bos = fields.token_id("bos_token_id", len(pieces))
    ends = [fields.token_id(key, len(pieces)) for key in _ENDS]
    kinds = _kinds(fields, len(pieces), [i for i in (bos, *ends) if i is not None])

    if model == "bert":
        return _word_pieces(fields, pieces, kinds)
    with many_small_objects():
        if model in ("gpt2", "gemma4"):
            rule = GGUF_RULES["gemma4"] if model == "gemma4" else _word_rule(fields)
            spelling = Spelling.BYTE_LEVEL if rule.byte_level else Spelling.SENTENCEPIECE
            vocabulary = Vocabulary(fields.short_name, pieces, kinds, spelling)
            bpe, prefix = _with_merges(fields, vocabulary, pieces, rule), False
            bos_by_default = rule.add_bos
        elif model == "llama":
            vocabulary = Vocabulary(fields.short_name, pieces, kinds, Spelling.SENTENCEPIECE)
            prefix, bos_by_default = fields.flag("add_space_prefix", True), True
            bpe = _sentencepiece(fields, vocabulary, pieces, prefix)
        else:
            raise fields.error("model", f"is {shown(model)}; 'gpt2', 'gemma4', 'llama' and 'bert' are read")

    ends += [i for i in vocabulary.literal_ids if kinds[i] == TokenKind.CONTROL and pieces[i] in _END_NAMES]
    eos_ids = tuple(dict.fromkeys(i for i in ends if i is not None))
    # By default, BOS is added only if the file has one; a file that asks for BOS or EOS must name it.
    add_bos = fields.flag("add_bos_token", bos_by_default and bos is not None)
    add_eos = fields.flag("add_eos_token", False)
    if add_bos and bos is None:
        raise fields.error("add_bos_token", "is true, but there is no tokenizer.ggml.bos_token_id")
    if add_eos and ends[0] is None:
        raise fields.error("add_eos_token", "is true, but there is no tokenizer.ggml.eos_token_id")

    return TokenizerParts(
        vocabulary,
        bpe,
        bos_id=bos,
        eos_ids=eos_ids,
        before=(bos,) if add_bos and bos is not None else (),
        after=eos_ids[:1] if add_eos else (),
        space_prefix=SpacePrefix.ALWAYS if prefix else SpacePrefix.NEVER,
        chat_template=_chat_template(fields, vocabulary.text(bos), vocabulary.text(ends[0])),
    )


def _with_merges(fields: _Fields, vocabulary: Vocabulary, pieces: list[str], rule: WordRule) -> BPE:
    lines = fields.strings("merges")
    if "".join(lines).count(" ") != len(lines):
        where = next(i for i, line in enumerate(lines) if line.count(" ") != 1)
        raise fields.error(
            f"merges[{where}]", f"is {lines[where][:60]!r}; two tokens and a space are expected"
        )

    def spaced(texts: list[str]) -> list[str]:
        # As in `_sentencepiece`, a space is a space where pieces are plain text.
        return texts if rule.byte_level else _replace_all(texts, SPACE_MARK, " ")

    def merges(pieces: Collection[str] | None) -> list[Pair]:
        merge_lines = lines
        if pieces is not None:
            spellings = pieces if rule.byte_level else {piece.replace(" ", SPACE_MARK) for piece in pieces}
            wanted = {f"{piece[:cut]} {piece[cut:]}" for piece in spellings for cut in range(1, len(piece))}
            merge_lines = [line for line in lines if line in wanted]
        pairs = [line.split(" ") for line in merge_lines]
        return list(
            zip(spaced([left for left, _ in pairs]), spaced([right for _, right in pairs]), strict=True)
        )

    texts = spaced(pieces)
    vocab = _vocab(pieces, texts, vocabulary)
    return BPE(
        vocabulary,
        vocab,
        merges,
        words=rule.build(),
        ignore_merges=rule.ignore_merges,
        byte_names=() if rule.byte_level else vocab.keys() & map(byte_name, range(256)),
    )


def _word_pieces(fields: _Fields, pieces: list[str], kinds: list[int]) -> TokenizerParts:
    count = len(pieces)
    lowercase = fields.flag("normalizer.lowercase", True)
    unknown = fields.token_id("unknown_token_id", count)
    if unknown is None:
        unknown = pieces.index("[UNK]") if "[UNK]" in pieces else None
    if unknown is None:
        raise fields.error("unknown_token_id", "is missing; a token for unknown words is expected")
    first = fields.token_id("cls_token_id", count)
    first = fields.token_id("bos_token_id", count) if first is None else first
    return word_pieces(
        fields.short_name,
        pieces,
        kinds,
        first=first if fields.flag("add_bos_token", True) else None,
        last=fields.token_id("seperator_token_id", count) if fields.flag("add_sep_token", True) else None,
        unknown=unknown,
        lowercase=lowercase,
        strip_accents=fields.flag("normalizer.strip_accents", lowercase),
    )


def _sentencepiece(fields: _Fields, vocabulary: Vocabulary, pieces: list[str], prefix: bool) -> BPE:
    scores = fields.numbers("scores", len(pieces))
    if isnan(sum(scores)):
        raise fields.error("scores", "has a value that is not a number")
    # The model's vocabulary writes a space as a space. So a "▁" in a text is not a space: it falls back to
    # its bytes, and decodes to what it was.
    texts = _replace_all(pieces, SPACE_MARK, " ")
    kinds, mergeable = vocabulary.kinds, (TokenKind.NORMAL, TokenKind.UNUSED)
    vocab = _vocab(pieces, texts, vocabulary)

    def merges(pieces: Collection[str] | None) -> list[Pair]:
        allowed = vocab if pieces is None else pieces
        order = [i for i, text in enumerate(texts) if text in allowed and kinds[i] in mergeable]
        order.sort(key=scores.__getitem__, reverse=True)
        return merges_from_order([texts[i] for i in order])

    return BPE(
        vocabulary,
        vocab,
        merges,
        space_prefix=prefix,
        byte_names=vocab.keys() & map(byte_name, range(256)),
    )


def _vocab(pieces: list[str], texts: list[str], vocabulary: Vocabulary) -> dict[str, int]:
    """Returns text → id for the BPE model. If two tokens have the same text the last one is used, as in
    llama.cpp, but a literal token comes before a normal one: it is found before anything is merged."""
    vocab = dict(zip(texts, range(len(texts)), strict=True))
    kinds = vocabulary.kinds
    for i in vocabulary.literal_ids:
        vocab[texts[i] if kinds[i] == TokenKind.USER_DEFINED else pieces[i]] = i
    named_bytes = [
        i for i in vocabulary.marked_ids if kinds[i] == TokenKind.BYTE and named_byte(pieces[i]) is not None
    ]
    for i in named_bytes:
        vocab[byte_name(named_byte(pieces[i]) or 0)] = i
    try:
        "".join(vocab).encode()
    except UnicodeEncodeError:
        # Pieces that are not valid UTF-8 (kept as surrogates) have bytes, but no text can lead to them.
        vocab = {text: i for text, i in vocab.items() if _is_text(text)}
    return vocab


def _is_text(piece: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in piece)


def _replace_all(pieces: list[str], old: str, new: str) -> list[str]:
    # One replace over all pieces, joined by a separator that none has, is several times faster.
    joined = "\0".join(pieces)
    if joined.count("\0") == len(pieces) - 1:
        return joined.replace(old, new).split("\0")
    return [piece.replace(old, new) for piece in pieces]


def _word_rule(fields: _Fields) -> WordRule:
    pre = fields.string("pre", "default")
    if pre not in GGUF_RULES:
        from difflib import get_close_matches  # not needed for a file that can be read

        near = get_close_matches(pre, GGUF_RULES, 3)
        hint = f"; near are {', '.join(near)}" if near else ""
        raise fields.error("pre", f"is {pre[:60]!r}, which is none of the {len(GGUF_RULES)} known here{hint}")
    return GGUF_RULES[pre]


def _kinds(fields: _Fields, count: int, named: list[int]) -> list[int]:
    if fields.get("token_type") is None:
        kinds = [TokenKind.NORMAL] * count
        for token_id in named:
            kinds[token_id] = TokenKind.CONTROL
        return kinds
    kinds = fields.integers("token_type", count)
    if strange := set(kinds) - set(range(1, 7)):
        if strange != {0}:
            raise fields.error("token_type", f"has the value {min(strange - {0})}; 1 to 6 are expected")
        kinds = [kind or TokenKind.NORMAL for kind in kinds]  # 0: undefined
    return kinds


def _chat_template(fields: _Fields, bos: str, eos: str) -> ChatTemplate | None:
    sources: dict[str, str] = {}
    for key, value in fields.values.items():
        if key == _TEMPLATE or key.startswith(f"{_TEMPLATE}."):
            if not isinstance(value, str):
                raise TextError(f"{fields.where}: {key} is a {type(value).__name__}; text is expected")
            sources[key[len(_TEMPLATE) + 1 :] or "default"] = value
    return ChatTemplate.choose(sources, bos=bos, eos=eos, name=f"{fields.short_name}: {_TEMPLATE}")


class _Fields(Fields):
    """The `tokenizer.ggml.*` values, each checked for its type where it is read."""

    def __init__(self, metadata: Mapping[str, object], name: str) -> None:
        super().__init__(name, metadata, _PREFIX, TextError)
        # For errors of a request: a client need not know where files are.
        self.short_name = Path(name).name.removesuffix(".gguf")

    def _required(self, key: str, default: object = None) -> object:
        value = self.get(key, default)
        if value is None:
            raise self.error(key, "is missing")
        return value

    def string(self, key: str, default: str | None = None) -> str:
        value = self._required(key, default)
        if not isinstance(value, str):
            raise self.error(key, f"is a {type(value).__name__}; text is expected")
        return value

    def strings(self, key: str) -> list[str]:
        value = self._required(key)
        if not isinstance(value, list) or set(map(type, value)) - {str}:
            raise self.error(key, "is not a list of texts")
        return value

    def integers(self, key: str, count: int) -> list[int]:
        numbers = self.numbers(key, count)
        if set(map(type, numbers)) - {int}:
            raise self.error(key, "is not a list of whole numbers")
        return numbers  # type: ignore[return-value]  # just seen

    def numbers(self, key: str, count: int) -> list[float]:
        value = self._required(key)
        numbers = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(numbers, list) or set(map(type, numbers)) - {int, float}:
            raise self.error(key, "is not a list of numbers")
        if len(numbers) != count:
            raise self.error(
                key, f"has {len(numbers)} values; one for each of the {count} tokens is expected"
            )
        return numbers

    def token_id(self, key: str, count: int) -> int | None:
        value = self.get(key)
        if value is None:
            return None
        try:
            token_id = operator.index(value)
        except TypeError:
            raise self.error(key, f"is {shown(value)}; a token id is expected") from None
        if not 0 <= token_id < count:
            raise self.error(key, f"is {token_id}, outside the vocabulary of {count} tokens")
        return token_id
