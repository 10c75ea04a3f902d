"""Reads a tokenizer from a folder with `tokenizer.json` and the files that go with it.

`tokenizers` runs the file as it is, normalizer included. What is read here is how its pieces spell bytes,
which tokens are added around a text, and which tokens end one; `tokenizer_config.json`,
`special_tokens_map.json`, `generation_config.json` and `chat_template.jinja` are used if they exist.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassloop.errors import TextError
from glassloop.text.alphabet import SPACE_MARK, named_byte
from glassloop.text.chat import ChatTemplate
from glassloop.text.pipeline import (
    Pipeline,
    Ready,
    SpacePrefix,
    TokenizerParts,
    component_state,
    first_line,
    raise_unless_from_library,
)
from glassloop.text.readers.split_patterns import complaint
from glassloop.text.vocabulary import Spelling, TokenKind, Vocabulary
from glassloop.util.fields import json_object
from glassloop.util.files import read_at_most
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_LARGEST_ID = 1 << 22  # ids are indices of a list; a file with a larger one is not a vocabulary
_MOST_BYTES, _MOST_OF_OTHERS = 256_000_000, 10_000_000  # of tokenizer.json and of each other file


def read_json_folder(folder: Path, rows: int | None = None) -> TokenizerParts:
    path = folder / "tokenizer.json"
    parsing = _backend(path)
    states = [component_state(c) for c in (parsing.normalizer, parsing.pre_tokenizer, parsing.decoder)]
    parts = [part for state in states for part in _flat(state)]
    spelling = _spelling(path, parts)
    _check_patterns(path, parts)
    if rows is not None:
        parsing = _within(parsing, rows)
    vocabulary = _vocabulary(path, parsing, spelling)

    config = _read_object(folder / "tokenizer_config.json")
    fallback = _read_object(folder / "special_tokens_map.json")
    generation = _read_object(folder / "generation_config.json")

    def named(key: str) -> int | None:
        value = config.get(key, fallback.get(key))
        text = value.get("content") if isinstance(value, dict) else value
        if text is None:
            return None
        try:
            token_id = parsing.token_to_id(text) if isinstance(text, str) else None
        except UnicodeEncodeError:
            token_id = None
        if token_id is None:
            raise TextError(f"{folder}: {key} is {shown(text)}, which is not a token of tokenizer.json")
        return int(token_id)

    bos, eos = named("bos_token"), named("eos_token")
    before, after = _around(path, parsing, len(vocabulary))
    if bos is None and len(before) == 1:
        bos = before[0]
    # tokenizer_config.json comes before the file's own post-processor.
    if isinstance(config.get("add_bos_token"), bool) and bos is not None:
        before = (bos,) if config["add_bos_token"] else ()
    if isinstance(config.get("add_eos_token"), bool) and eos is not None:
        after = (eos,) if config["add_eos_token"] else ()
    ends = [*([eos] if eos is not None else []), *_generation_ends(folder, generation, len(vocabulary))]

    plain = _without_special(parsing)
    return TokenizerParts(
        vocabulary,
        Ready(Pipeline(parsing, plain, plain), SPACE_MARK),
        bos_id=bos,
        eos_ids=tuple(dict.fromkeys(ends)),
        before=before,
        after=after,
        space_prefix=_space_prefix(parts),
        exact=not states[0],
        chat_template=_chat_template(folder, config, vocabulary.text(bos), vocabulary.text(eos)),
        fold=_fold(parsing),
    )


def _backend(path: Path) -> Backend:
    from tokenizers import Tokenizer as Backend

    data = read_at_most(path, _MOST_BYTES, TextError)
    try:
        backend = Backend.from_str(data.decode())
    except BaseException as error:  # the library raises plain Exception, and UnicodeDecodeError is one too
        raise_unless_from_library(error)
        raise TextError(f"{path}: is not a tokenizer.json: {first_line(error)}") from None
    backend.no_truncation()
    backend.no_padding()
    return backend


def _flat(state: Any) -> Iterator[dict[str, Any]]:
    """Yields the components of a normalizer, pre-tokenizer or decoder, with those inside a Sequence."""
    if isinstance(state, dict):
        for key in ("normalizers", "pretokenizers", "decoders"):
            for inner in state.get(key) or ():
                yield from _flat(inner)
        yield state


def _spelling(path: Path, parts: list[dict[str, Any]]) -> Spelling:
    kinds = {part.get("type") for part in parts}
    if "ByteLevel" in kinds:
        return Spelling.BYTE_LEVEL
    if kinds & {"Metaspace", "ByteFallback"}:
        return Spelling.SENTENCEPIECE
    names = ", ".join(sorted(str(kind) for kind in kinds)) or "none"
    raise TextError(
        f"{path}: byte-level and SentencePiece vocabularies are supported; its components ({names}) belong to"
        " neither"
    )


def _check_patterns(path: Path, parts: list[dict[str, Any]]) -> None:
    for part in parts:
        pattern = part.get("pattern")
        expression = pattern.get("Regex") if isinstance(pattern, dict) else None
        wrong = complaint(expression) if isinstance(expression, str) else None
        if wrong is not None:
            raise TextError(f"{path}: the expression {shown(expression)} {wrong}, which can take forever")


def _within(parsing: Backend, rows: int) -> Backend:
    """Returns the tokenizer without the added tokens that the model has no row for. (Text-only models share
    their tokenizer.json with models that have a few more tokens.)"""
    added = sorted(parsing.get_added_tokens_decoder().items())
    kept = [(token_id, token) for token_id, token in added if token_id < rows]
    if len(kept) == len(added):
        return parsing
    smaller = _rebuilt(parsing, kept)
    smaller.decoder, smaller.post_processor = parsing.decoder, parsing.post_processor
    same = all(smaller.token_to_id(token.content) == token_id for token_id, token in kept)
    return smaller if same else parsing


def _rebuilt(backend: Backend, added: list[tuple[int, Any]]) -> Backend:
    """Returns a tokenizer of the same model with these added tokens."""
    from tokenizers import Tokenizer as Backend

    rebuilt = Backend(backend.model)
    rebuilt.normalizer = backend.normalizer
    rebuilt.pre_tokenizer = backend.pre_tokenizer
    # Tokens that the model does not hold get their ids in the order in which they are added.
    rebuilt.add_tokens([token for _, token in added])
    return rebuilt


def _vocabulary(path: Path, backend: Backend, spelling: Spelling) -> Vocabulary:
    vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    added = backend.get_added_tokens_decoder()
    if not vocab:
        raise TextError(f"{path}: has no tokens")
    largest = max(max(vocab.values()), max(added, default=0))
    if largest > _LARGEST_ID:
        raise TextError(f"{path}: has the token id {largest}; at most {_LARGEST_ID} is expected")
    pieces: list[str | None] = [None] * (largest + 1)
    kinds = bytearray([TokenKind.NORMAL]) * (largest + 1)
    for piece, token_id in vocab.items():
        pieces[token_id] = piece
        if spelling is Spelling.SENTENCEPIECE and named_byte(piece) is not None:
            kinds[token_id] = TokenKind.BYTE
    for token_id, token in added.items():
        pieces[token_id] = token.content
        kinds[token_id] = TokenKind.CONTROL if token.special else TokenKind.USER_DEFINED
    return Vocabulary(path.parent.resolve().name, pieces, kinds, spelling)


def _without_special(parsing: Backend) -> Backend:
    """Returns a tokenizer of the same model that treats special tokens in a text as text. (The library's
    switch for that, `encode_special_tokens`, belongs to the object, so it is set once and not per call.)"""
    from tokenizers import Tokenizer as Backend

    added = sorted(parsing.get_added_tokens_decoder().items())
    if all(parsing.model.token_to_id(token.content) == token_id for token_id, token in added):
        added = [(token_id, token) for token_id, token in added if not token.special]
    plain = _rebuilt(parsing, added)
    if any(plain.token_to_id(token.content) != token_id for token_id, token in added):
        plain = Backend.from_str(parsing.to_str())
    plain.encode_special_tokens = True
    return plain


def _fold(backend: Backend) -> Callable[[str], str] | None:
    """Returns the normalizer if the file looks for special tokens in normalized text, else None."""
    added = backend.get_added_tokens_decoder().values()
    if backend.normalizer is None or not any(token.special and token.normalized for token in added):
        return None
    fold: Callable[[str], str] = backend.normalizer.normalize_str
    return fold


def _around(path: Path, backend: Backend, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the tokens that the post-processor puts before and after a text, found by encoding one."""
    try:
        inside = backend.encode("a", add_special_tokens=False).ids
        whole = backend.encode("a", add_special_tokens=True).ids
    except BaseException as error:
        raise_unless_from_library(error)
        raise TextError(f"{path}: cannot encode a text: {first_line(error)}") from None
    if max(whole, default=0) >= count:
        raise TextError(
            f"{path}: post_processor adds the token id {max(whole)}; an id below {count} is expected"
        )
    for start in range(len(whole) - len(inside) + 1):
        if whole[start : start + len(inside)] == inside:
            return tuple(whole[:start]), tuple(whole[start + len(inside) :])
    return (), ()


def _space_prefix(parts: list[dict[str, Any]]) -> SpacePrefix:
    for part in parts:
        if part.get("type") == "Prepend" and part.get("prepend") == SPACE_MARK:
            return SpacePrefix.ALWAYS
        if part.get("type") == "Metaspace":
            scheme = part.get("prepend_scheme")
            return {"always": SpacePrefix.ALWAYS, "first": SpacePrefix.FIRST}.get(
                str(scheme), SpacePrefix.NEVER
            )
    return SpacePrefix.NEVER


def _generation_ends(folder: Path, generation: dict[str, Any], count: int) -> list[int]:
    value = generation.get("eos_token_id")
    ends = [] if value is None else value if isinstance(value, list) else [value]
    for end in ends:
        if type(end) is not int or not 0 <= end < count:
            raise TextError(
                f"{folder / 'generation_config.json'}: eos_token_id is {shown(end)}; "
                f"an id below {count} is expected"
            )
    return ends


def _chat_template(folder: Path, config: dict[str, Any], bos: str, eos: str) -> ChatTemplate | None:
    path = folder / "chat_template.jinja"
    where = f"{folder / 'tokenizer_config.json'}: chat_template"
    value = config.get("chat_template")
    sources: dict[str, str] = {}
    if path.is_file():
        return ChatTemplate.from_file(path, bos=bos, eos=eos)
    if isinstance(value, str):
        sources["default"] = value
    elif isinstance(value, list):  # [{"name": "default", "template": "…"}, …]
        for i, entry in enumerate(value):
            if not isinstance(entry, dict) or not all(
                isinstance(entry.get(k), str) for k in ("name", "template")
            ):
                raise TextError(f"{where}[{i}] is not an object with the texts name and template")
            sources[entry["name"]] = entry["template"]
    elif value is not None:
        raise TextError(f"{where} is a {type(value).__name__}; text or a list is expected")
    name = f"{folder.resolve().name}: chat_template"
    return ChatTemplate.choose(sources, bos=bos, eos=eos, name=name)


def _read_object(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    return json_object(read_at_most(path, _MOST_OF_OTHERS, TextError), str(path), TextError)


def write_json_files(parts: TokenizerParts) -> dict[str, str]:
    """Returns the files of a byte-level tokenizer, by name, as `read_json_folder` reads them."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders

    vocabulary = parts.vocabulary
    if vocabulary.spelling is not Spelling.BYTE_LEVEL:
        raise TextError(f"{vocabulary.name}: only byte-level vocabularies can be written as tokenizer.json")
    backend = Backend.from_str(parts.model.whole.parsing.to_str())
    backend.decoder = decoders.ByteLevel()
    names: dict[str, int | None] = {
        "bos_token": parts.bos_id,
        "eos_token": parts.eos_ids[0] if parts.eos_ids else None,
    }
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{key: vocabulary.text(token_id) for key, token_id in names.items() if token_id is not None},
        "add_bos_token": parts.bos_id is not None and parts.bos_id in parts.before,
        "add_eos_token": bool(parts.after),
        "clean_up_tokenization_spaces": False,
    }
    files = {
        "tokenizer.json": backend.to_str(pretty=True),
        "tokenizer_config.json": json.dumps(config, indent=1, ensure_ascii=False),
    }
    if len(parts.eos_ids) > 1:
        files["generation_config.json"] = json.dumps({"eos_token_id": list(parts.eos_ids)})
    if parts.chat_template is not None:
        files["chat_template.jinja"] = parts.chat_template.source
    return files
