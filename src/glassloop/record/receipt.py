"""Receipts: small files that say which answer a model gave to a prompt, without saying what either was.

A receipt has salted digests of the prompt, the options, the tokens and the bits of their numbers, and in the
clear the model's hash and the arithmetic. Somebody who has the run too can check that it is the run of the
receipt (`differences`), and with the model that it is what the model computes (`engine/receipts.py`).
docs/receipts.md describes the file.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

from glassloop.errors import TraceError
from glassloop.record.format.glass_bytes import from_bytes_as, to_bytes
from glassloop.record.format.header import options_in_header
from glassloop.record.run_record import RunRecord
from glassloop.record.token import Token
from glassloop.util.check import FileChecks, number_between, one_of, text_matching, whole_between
from glassloop.util.files import read_at_most, write_text
from glassloop.util.shown import printable

VERSION = 1
_SALT_BYTES = 32
_TAG_CHARACTERS = 8  # of the digest of one token: it only says where the first difference is
_MOST_BYTES = 64 << 20
_MOST_TOKENS = 1 << 24


class Signer(Protocol):
    """What signs a receipt, such as a `SigningKey` (record/signing.py)."""

    @property
    def public(self) -> str: ...

    def sign(self, data: bytes) -> str: ...


@dataclass(frozen=True)
class Receipt:
    """The receipt of one run. The digests are HMAC-SHA-256 with the salt as key, in hexadecimal."""

    run: str  # the id of the run
    created: float  # when the run began, in seconds since 1970
    model: str
    model_hash: str
    adapters: dict[str, str]  # the hashes of the adapters that the tokens were drawn with, by name
    arithmetic: str  # the op set
    salt: str
    prompt_tokens: int
    prompt: str  # the digest of the prompt's token ids
    options: str  # the digest of everything that tokens were drawn with: options, seed, luck, plugins
    answer: str  # the digest of the answer's token ids, of where each came from, and of how the run ended
    text: str  # the digest of the answer's text
    numbers: str  # the digest of all bits of the records of all tokens
    tags: tuple[str, ...]  # the beginning of a digest of each token's record, its id included
    # Ed25519, over everything else: the public key and the signature, both in hexadecimal.
    key: str | None = None
    signature: str | None = None
    # The run itself, where the receipt was made or where the file has it. It is not signed: the digests are.
    content: RunRecord | None = field(default=None, repr=False, compare=False)

    def save(self, path: str | os.PathLike[str], *, with_text: bool = False) -> None:
        """Writes the receipt as JSON. `with_text` adds the run, so that nothing else is needed to verify it;
        then the file does tell the prompt and the answer."""
        write_text(Path(path), json.dumps(self.to_dict(with_text=with_text), indent=1) + "\n")

    def to_dict(self, *, with_text: bool = False) -> dict[str, Any]:
        """Returns the receipt as JSON has it; `with_text` adds the run itself."""
        plain = {name: getattr(self, name) for name in _STATED}
        plain |= {"glassloop_receipt": VERSION, "tags": list(self.tags), "seal": self.seal}
        if with_text:
            plain["content"] = base64.b64encode(to_bytes([self._with_content()])).decode()
        return plain

    @property
    def seal(self) -> str:
        """A digest of all fields but the signature. It finds accidents; a signature finds forgeries."""
        return hashlib.sha256(self.signed_bytes).hexdigest()

    @property
    def signed_bytes(self) -> bytes:
        """What a signature signs: all fields but itself."""
        names = [name for name in _STATED if name != "signature"]
        return _canonical({"glassloop_receipt": VERSION} | {name: getattr(self, name) for name in names})

    def signed(self, key: Signer) -> Receipt:
        """Returns the receipt with a signature."""
        receipt = replace(self, key=key.public, signature=None)
        return replace(receipt, signature=key.sign(receipt.signed_bytes))

    def is_text(self, text: str) -> bool:
        """Returns whether this is the text of the answer."""
        return hmac.compare_digest(self.text, _digest(bytes.fromhex(self.salt), "text", _encoded(text)))

    def differences(self, run: RunRecord) -> list[str]:
        """Returns in what a run is not the one of the receipt, one sentence for each part."""
        fresh = _receipt(run, bytes.fromhex(self.salt))
        wrong = []
        for name, what in _PARTS.items():
            if getattr(fresh, name) != getattr(self, name):
                wrong.append(f"{what} of the run {'are' if what.endswith('s') else 'is'} not the receipt's")
        pairs = list(zip(self.tags, fresh.tags, strict=False))
        if self.tags != fresh.tags:
            first = next((at for at, (one, other) in enumerate(pairs) if one != other), len(pairs))
            wrong.append(f"the first token that differs is token {first}")
        return wrong

    def _with_content(self) -> RunRecord:
        if self.content is None:
            raise TraceError.about(
                "with_text", "is given, but only the run that the receipt is of has the text"
            )
        return self.content


_STATED = tuple(each.name for each in fields(Receipt) if each.name != "content")
# The parts that are compared with a run, and what a sentence calls them.
_PARTS = {
    "run": "the id",
    "created": "the time",
    "model": "the name of the model",
    "model_hash": "the model",
    "adapters": "the adapters",
    "arithmetic": "the arithmetic",
    "prompt_tokens": "the length of the prompt",
    "prompt": "the prompt",
    "options": "the options",
    "answer": "the tokens",
    "text": "the text",
    "numbers": "the numbers",
}


def receipt_of(run: RunRecord) -> Receipt:
    """Returns the receipt of a run that has ended, with a new salt."""
    run.check_computable()
    if not run.origin.in_order:
        raise TraceError.about(
            "run", f"{run.id} was written by filling masks; a receipt is for a run that was written in order"
        )
    if run.finish_reason is None:
        raise TraceError.about("run", f"{run.id} has not ended; a run that has ended is expected")
    if not run.identity:
        raise TraceError.about("run", f"{run.id} does not say which model made it")
    return _receipt(run, os.urandom(_SALT_BYTES))


def _receipt(run: RunRecord, salt: bytes) -> Receipt:
    records = [*run.prompt_tokens, *run.tokens, *([] if run.end is None else [run.end])]
    ending = [run.finish_reason, run.stop_reason, run.end is not None, run.pending]
    answer = [[token.id, token.source] for token in run.tokens]
    return Receipt(
        run=run.id,
        created=run.created,
        model=run.model,
        model_hash=run.identity,
        adapters=dict(sorted(run.adapters.items())),
        arithmetic=run.ops,
        salt=salt.hex(),
        prompt_tokens=len(run.prompt_ids),
        prompt=_digest(salt, "prompt", _canonical(list(run.prompt_ids))),
        options=_digest(salt, "options", _canonical(options_in_header(run))),
        answer=_digest(salt, "answer", _canonical([answer, ending])),
        text=_digest(salt, "text", _encoded(run.text)),
        numbers=_digest(salt, "numbers", *[token.chosen.data for token in records]),
        tags=tuple(_tags(salt, run.tokens)),
        content=run,
    )


def _tags(salt: bytes, tokens: Sequence[Token]) -> list[str]:
    labels = (f"token {at}" for at in range(len(tokens)))
    return [
        _digest(salt, label, token.source.encode(), token.chosen.data)[:_TAG_CHARACTERS]
        for label, token in zip(labels, tokens, strict=True)
    ]


def _digest(salt: bytes, label: str, *parts: bytes) -> str:
    """Returns the HMAC of parts, each with its length before it, so that no other parts have the same."""
    code = hmac.new(salt, digestmod=hashlib.sha256)
    for part in (label.encode(), *parts):
        code.update(len(part).to_bytes(8, "little") + part)
    return code.hexdigest()


def _canonical(value: Any) -> bytes:
    return _encoded(json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


# ── reading ────────────────────────────────────────────────────────────────────────────────────────────────

_checks = FileChecks(TraceError)


def _matching(pattern: str, expected: str) -> Any:
    return _checks.of(text_matching(re.compile(pattern), expected))


_DIGEST = _matching("[0-9a-f]{64}", "a digest of 64 hexadecimal digits")
_TEXT = _checks.must_be(
    "a text of at most 1024 characters", lambda it: isinstance(it, str) and len(it) <= 1024
)
_FIELDS = {
    "glassloop_receipt": _checks.of(one_of(VERSION)),
    "run": _TEXT,
    "created": _checks.of(number_between(-1e12, 1e12)),
    "model": _TEXT,
    "model_hash": _matching(r"[0-9a-f]{64}(\+[a-z0-9_]{1,16})?", "the hash of a model"),
    "adapters": _checks.must_be(
        "an object of hashes",
        lambda it: (
            isinstance(it, dict) and all(isinstance(each, str) and len(each) <= 128 for each in it.values())
        ),
    ),
    "arithmetic": _TEXT,
    "salt": _DIGEST,
    "prompt_tokens": _checks.of(whole_between(0, _MOST_TOKENS)),
    **dict.fromkeys(("prompt", "options", "answer", "text", "numbers", "seal"), _DIGEST),
    "tags": _checks.list_of(_matching("[0-9a-f]{8}", "8 hexadecimal digits"), 0, _MOST_TOKENS),
    "key": _checks.optional(_DIGEST),
    "signature": _checks.optional(_matching("[0-9a-f]{128}", "a signature of 128 hexadecimal digits")),
    "content": _checks.must_be("the bytes of a run in base64", lambda it: isinstance(it, str)),
}


def load_receipt(path: str | os.PathLike[str], kind: type[RunRecord] = RunRecord) -> Receipt:
    """Returns the receipt of a file, with the run as an object of this class where the file has it."""
    name = os.fspath(path)
    data = read_at_most(name, _MOST_BYTES, TraceError)
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{printable(name)} is not a receipt: it is not JSON") from error
    try:
        return receipt_from(plain, kind)
    except TraceError as error:
        raise TraceError(f"{printable(name)} is not a valid receipt: {error}") from error


def receipt_from(plain: Any, kind: type[RunRecord] = RunRecord) -> Receipt:
    """Returns the receipt that `to_dict` or a file gave. Raises if a field is missing, wrong or changed."""
    if not isinstance(plain, dict) or "glassloop_receipt" not in plain:
        raise TraceError("there is no field glassloop_receipt")
    _checks.object_of(_FIELDS, optional=("content",))("", plain)
    content = None
    if "content" in plain:
        try:
            packed = base64.b64decode(plain["content"], validate=True)
        except ValueError:
            raise TraceError("content is not base64") from None
        content = from_bytes_as(kind, packed, "content")[0]
    stated = {name: plain[name] for name in _STATED}
    receipt = Receipt(**stated | {"tags": tuple(plain["tags"])}, content=content)
    if receipt.seal != plain["seal"]:
        raise TraceError("it was changed: its seal is not that of its fields")
    return receipt
