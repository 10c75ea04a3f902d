"""Steps of a search by their tokens: where a step ends, and the tokens of a text that a path is made to go on
with."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from glassloop.record.run import Run
from glassloop.text.tokenizer import Tokenizer


def ends_step(run: Run, step: str | None) -> bool:
    """Returns whether the last token of a run completes the text that ends a step."""
    text = (step or "").encode()
    if not text:
        return False
    tail = b"".join(token.bytes for token in run.tokens[-len(text) - 1 :])
    return text in tail[-len(run.tokens[-1].bytes) - len(text) + 1 :]


def encode_forced(tokenizer: Tokenizer, text: str) -> list[int]:
    """Returns the tokens of a text that a path continues with. A text that is one token of the vocabulary,
    such as `</think>`, is that token."""
    found = tokenizer.id_of(text)
    return [found] if found is not None else tokenizer.encode(text, add_special=False, parse_special=False)


_step_ids: WeakKeyDictionary[Tokenizer, dict[str, frozenset[int]]] = WeakKeyDictionary()


def step_ids(tokenizer: Tokenizer, step: str) -> frozenset[int]:
    """Returns the tokens that may end a step: those with the last byte of its text."""
    known = _step_ids.setdefault(tokenizer, {})
    if step not in known:
        last = step.encode()[-1:]
        known[step] = frozenset(id for id in range(tokenizer.vocab_size) if last in tokenizer.token_bytes(id))
    return known[step]
