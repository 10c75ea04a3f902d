"""A language model that writes text, in one file: everything from bytes to streamed tokens.

    python examples/one_file.py "The capital of France is"
    python examples/one_file.py "The capital of France is" --temperature 0.8 --top-p 0.9 --seed 3
    python examples/one_file.py "The capital of France is" --beams 4

It needs NumPy and a GGUF file of the Llama family (the default model, unless --model names another), and
takes nothing from the package but the code that fetches and reads such files. Read it from top to bottom:

 1. bytes → tokens       words are cut, then merged from bytes by a list of merges (BPE)
 2. the model            embeddings, positions, attention with a cache, a distribution over the next token
 3. one token            greedy, or temperature, top-k, top-p and luck
 4. many tokens          stop conditions and streaming; a draft and its verification; beam search

It computes what the engine computes with its reference op set, token for token, and a test holds it to that.
What the engine adds is speed (batches, a shared cache, kernels in C) and the record of why each token won.
"""

from __future__ import annotations

import argparse
import codecs
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from glassloop.model.gguf import GGUFFile
from glassloop.model.registry import fetch

# ── 1. Bytes → tokens ───────────────────────────────────────────────────────────────────────────────────────
# A vocabulary has a token for each of the 256 bytes, so every text can be written, and tens of thousands of
# longer ones. The file writes bytes as printable characters: 33 to 126 and most of 161 to 255 as themselves,
# the others as the characters from 256 on, in order. A space is "Ġ".

_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(_OTHERS)}
CHARACTER_OF = {byte: character for character, byte in BYTE_OF.items()}


def words(text: str) -> Iterator[str]:
    """Yields the words of a text: tokens never cross their borders. A word is a digit, a contraction, letters
    or symbols with the space before them, or white space."""
    at = 0
    while at < len(text):
        end = _end_of_word(text, at)
        yield text[at:end]
        at = end


def _end_of_word(text: str, at: int) -> int:
    for contraction in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d"):
        if text.startswith(contraction, at):
            return at + len(contraction)
    if text[at].isnumeric() and not text[at].isalpha():
        return at + 1
    start = at + (text[at] == " ")  # a space belongs to the letters or symbols behind it
    kind = _kind(text, start)
    if kind in ("letters", "symbols"):
        return _end_of_run(text, start, kind)
    end = _end_of_run(text, at, "spaces")  # at least one
    # The last space goes to the word behind it, unless the text ends, or a digit stands alone there.
    return end - 1 if end - at > 1 and end < len(text) and _kind(text, end) != "number" else end


def _end_of_run(text: str, at: int, kind: str) -> int:
    while at < len(text) and _kind(text, at) == kind:
        at += 1
    return at


def _kind(text: str, at: int) -> str:
    if at >= len(text):
        return "end"
    character = text[at]
    if character.isalpha():
        return "letters"
    if character.isnumeric():
        return "number"
    return "spaces" if character.isspace() else "symbols"


class Tokenizer:
    def __init__(self, metadata: dict[str, Any]) -> None:
        self.tokens: list[str] = metadata["tokenizer.ggml.tokens"]
        self.ids = {token: id for id, token in enumerate(self.tokens)}
        # Of two merges, the one that stands earlier in the list is made first.
        self.ranks = {tuple(merge.split(" ")): i for i, merge in enumerate(metadata["tokenizer.ggml.merges"])}
        ends = {metadata["tokenizer.ggml.eos_token_id"], self.ids.get("<|endoftext|>", -1)}
        self.end_ids = ends - {-1}

    def encode(self, text: str) -> list[int]:
        return [self.ids[piece] for word in words(text) for piece in self._pieces(word)]

    def _pieces(self, word: str) -> list[str]:
        """Merges the bytes of a word into tokens: always the neighbours with the lowest rank, until none are
        in the list."""
        pieces = [CHARACTER_OF[byte] for byte in word.encode()]
        while len(pieces) > 1:
            pairs = list(pairwise(pieces))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            at = pairs.index(best)
            pieces[at : at + 2] = ["".join(best)]
        return pieces

    def bytes_of(self, id: int) -> bytes:
        return bytes(BYTE_OF[character] for character in self.tokens[id])


# ── 2. The model ────────────────────────────────────────────────────────────────────────────────────────────


class Cache(NamedTuple):
    """The keys and values of a text, layer by layer: what later tokens look at, computed once."""

    keys: list[np.ndarray]  # each [tokens, key heads, head dim]
    values: list[np.ndarray]

    @property
    def length(self) -> int:
        return len(self.keys[0])

    def first(self, length: int) -> Cache:
        """Returns the cache of the first tokens of the text: taking back tokens costs nothing."""
        return Cache([keys[:length] for keys in self.keys], [values[:length] for values in self.values])


class Model:
    def __init__(self, path: Path) -> None:
        file = GGUFFile(path)
        facts = file.metadata
        if facts["general.architecture"] != "llama":
            raise SystemExit(
                f"{path}: the architecture is {facts['general.architecture']}; llama is expected"
            )
        self.tokenizer = Tokenizer(facts)
        self.layers = facts["llama.block_count"]
        self.heads, self.key_heads = (
            facts["llama.attention.head_count"],
            facts["llama.attention.head_count_kv"],
        )
        self.eps = np.float32(facts["llama.attention.layer_norm_rms_epsilon"])
        self.context = facts["llama.context_length"]
        self.weights = {name: tensor.float32() for name, tensor in file.tensors.items()}
        self.embedding = self.weights["token_embd.weight"]  # [vocabulary, dim]
        self.head = self.weights.get("output.weight", self.embedding)
        self.head_dim = self.weights["blk.0.attn_q.weight"].shape[0] // self.heads
        # Each pair of dimensions turns at its own speed, from a radian per token to a fraction of one in all.
        exponents = np.arange(0, self.head_dim, 2) / self.head_dim
        self.frequencies = (1 / facts["llama.rope.freq_base"] ** exponents).astype(np.float32)

    def empty_cache(self) -> Cache:
        nothing = np.zeros((0, self.key_heads, self.head_dim), np.float32)
        return Cache([nothing] * self.layers, [nothing] * self.layers)

    def forward(self, ids: Sequence[int], cache: Cache) -> tuple[np.ndarray, Cache]:
        """Computes tokens that come after those in a cache. Returns the logits after each of them, that is
        how much the model expects every token of the vocabulary next, and the cache with them."""
        x = self.embedding[list(ids)]  # [tokens, dim]: the residual stream, to which every layer adds
        positions = np.arange(cache.length, cache.length + len(ids))
        all_keys, all_values = [], []
        for layer in range(self.layers):
            h = self._norm(x, f"blk.{layer}.attn_norm")
            q = self._turn(self._linear(h, f"blk.{layer}.attn_q", self.heads), positions)
            k = self._turn(self._linear(h, f"blk.{layer}.attn_k", self.key_heads), positions)
            v = self._linear(h, f"blk.{layer}.attn_v", self.key_heads)
            keys = np.concatenate([cache.keys[layer], k])
            values = np.concatenate([cache.values[layer], v])
            x = x + self._linear(self._attend(q, keys, values, positions), f"blk.{layer}.attn_output")
            h = self._norm(x, f"blk.{layer}.ffn_norm")
            gate = self._linear(h, f"blk.{layer}.ffn_gate")
            gate = gate / (1 + np.exp(-gate))  # SiLU
            x = x + self._linear(gate * self._linear(h, f"blk.{layer}.ffn_up"), f"blk.{layer}.ffn_down")
            all_keys.append(keys)
            all_values.append(values)
        return self._norm(x, "output_norm") @ self.head.T, Cache(all_keys, all_values)

    def _linear(self, x: np.ndarray, name: str, heads: int = 0) -> np.ndarray:
        y = x @ self.weights[f"{name}.weight"].T
        return y.reshape(len(x), heads, -1) if heads else y

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        mean_square = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
        return x / np.sqrt(mean_square + self.eps) * self.weights[f"{name}.weight"]

    def _turn(self, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Turns each pair of neighbouring dimensions by an angle that grows with the position, so that the
        product of a query and a key depends on how far they are apart."""
        angles = positions.astype(np.float32)[:, None, None] * self.frequencies
        cos, sin = np.cos(angles), np.sin(angles)
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1).reshape(x.shape)

    def _attend(
        self, q: np.ndarray, keys: np.ndarray, values: np.ndarray, positions: np.ndarray
    ) -> np.ndarray:
        """Returns, for each token and head, the mean of the values of the tokens up to itself, weighted by
        how well its query fits their keys. Several query heads share the keys and values of one."""
        grouped = q.reshape(len(q), self.key_heads, -1, self.head_dim).transpose(1, 2, 0, 3)
        scores = grouped @ keys.transpose(1, 2, 0)[:, None] / np.float32(self.head_dim**0.5)
        scores = np.where(np.arange(len(keys)) <= positions[:, None], scores, np.float32(-np.inf))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed: np.ndarray = (
            weights @ values.transpose(1, 0, 2)[:, None]
        )  # [key heads, group, tokens, head dim]
        return mixed.transpose(2, 0, 1, 3).reshape(len(positions), -1)


# ── 3. One token ────────────────────────────────────────────────────────────────────────────────────────────


class Options(NamedTuple):
    temperature: float = 0.0  # 0: greedy, the likeliest token always
    top_k: int = 0  # 0: all tokens
    top_p: float = 1.0
    seed: int = 0
    max_tokens: int = 32
    stop: str = ""  # a text that ends the answer


_GOLDEN, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def luck(seed: int, position: int, ids: np.ndarray) -> np.ndarray:
    """Returns the luck of each token at a position: Gumbel noise from a hash of seed, position and token.
    Adding it to the logits and taking the highest draws each token with exactly its probability, and there is
    no state: the same question always has the same answer."""
    key = _mix((_GOLDEN + seed) & _MASK)
    key = _mix((key + _GOLDEN) & _MASK)  # the salt of the first sample is 0
    key = _mix((key + _GOLDEN + position) & _MASK)
    hashes = [_mix((key + (int(id) + 1) * _GOLDEN) & _MASK) for id in ids]
    uniform = (np.array([hash >> 12 for hash in hashes], np.float64) + 0.5) / 2**52
    return -np.log(-np.log(uniform))


def choose(logits: np.ndarray, position: int, options: Options) -> int:
    """Returns the token that wins at a position."""
    order = np.argsort(-logits, kind="stable")  # the likeliest first, of equal ones the lower id
    if options.temperature == 0:
        return int(order[0])
    scaled = logits[order].astype(np.float64) / options.temperature
    if options.top_k:
        order, scaled = order[: options.top_k], scaled[: options.top_k]
    if options.top_p < 1:
        weights = np.exp(scaled - scaled[0])
        reached = np.cumsum(weights) >= options.top_p * weights.sum()
        kept = int(np.argmax(reached)) + 1  # the fewest that have probability p together
        order, scaled = order[:kept], scaled[:kept]
    return int(order[np.argmax(scaled + luck(options.seed, position, order))])


# ── 4. Many tokens ──────────────────────────────────────────────────────────────────────────────────────────


def generate(model: Model, prompt: str, options: Options) -> Iterator[int]:
    """Yields the tokens of the answer, one at a time."""
    ids = model.tokenizer.encode(prompt)
    logits, cache = model.forward(ids, model.empty_cache())
    for position in range(len(ids), min(len(ids) + options.max_tokens, model.context)):
        token = choose(logits[-1], position, options)
        if token in model.tokenizer.end_ids:
            return
        yield token
        logits, cache = model.forward([token], cache)


def generate_with_drafts(model: Model, prompt: str, options: Options) -> Iterator[int]:
    """Yields the same tokens as `generate`, in fewer passes where the text repeats itself.

    A draft is a guess at the next tokens: here, what followed the last two tokens when they came before. One
    pass computes all of it, since reading the weights costs more than the arithmetic. A guess is right if it
    is the token that the model chooses there itself; what comes after a wrong one is thrown away."""
    ids = model.tokenizer.encode(prompt)
    last = min(len(ids) + options.max_tokens, model.context)
    logits, cache = model.forward(ids, model.empty_cache())
    rows, draft = logits[-1:], list[int]()  # rows[i] are the logits after the first i tokens of the draft
    while len(ids) < last:
        for row, guess in zip(rows, [*draft, None], strict=True):
            token = choose(row, len(ids), options)
            if token in model.tokenizer.end_ids:
                return
            yield token
            ids.append(token)
            if token != guess:
                break
        draft = _draft(ids)[: max(0, last - len(ids) - 1)]
        rows, cache = model.forward([ids[-1], *draft], cache.first(len(ids) - 1))


def _draft(ids: Sequence[int], most: int = 8) -> list[int]:
    for at in range(len(ids) - 3, -1, -1):
        if ids[at : at + 2] == ids[-2:]:
            return list(ids[at + 2 : at + 2 + most])
    return []


class Beam(NamedTuple):
    score: float  # the log-probability of all of its tokens
    tokens: list[int]
    cache: Cache
    logits: np.ndarray  # after the last of them


def beam_search(model: Model, prompt: str, width: int, options: Options) -> list[int]:
    """Returns the likeliest text of those that were looked at: in each step every beam proposes its likeliest
    tokens, and the best of all proposals are the next beams. Ended texts are compared by their score for each
    token, the end included."""
    ids = model.tokenizer.encode(prompt)
    logits, cache = model.forward(ids, model.empty_cache())
    beams = [Beam(0.0, [], cache, logits[-1])]
    ended: list[tuple[float, list[int]]] = []
    for step in range(1, options.max_tokens + 1):
        proposals = []
        for beam in beams:
            likeliest = np.argsort(-beam.logits, kind="stable")[: 2 * width]
            total = np.logaddexp.reduce(beam.logits.astype(np.float64))
            proposals += [(beam.score + beam.logits[id] - total, beam, int(id)) for id in likeliest]
        proposals.sort(key=lambda proposal: -proposal[0])
        grown: list[tuple[float, Beam, int]] = []
        for place, (score, beam, id) in enumerate(proposals[: 2 * width]):
            if len(grown) == width:
                break
            is_end = id in model.tokenizer.end_ids
            if not is_end and step < options.max_tokens:
                grown.append((score, beam, id))
            elif place < width:
                ended.append((score / step, beam.tokens if is_end else [*beam.tokens, id]))
        ended = sorted(ended, key=lambda end: -end[0])[:width]
        if len(ended) == width and all(score / step <= ended[-1][0] for score, _, _ in grown):
            break
        beams = []
        for score, beam, id in grown:
            logits, cache = model.forward([id], beam.cache)
            beams.append(Beam(score, [*beam.tokens, id], cache, logits[-1]))
    return ended[0][1]


def stream(model: Model, tokens: Iterator[int], stop: str = "") -> Iterator[str]:
    """Yields the text of tokens as soon as it is certain: no half characters, and nothing that may turn out
    to be the beginning of the stop text. What ends the text is not part of it."""
    decoder, held = codecs.getincrementaldecoder("utf-8")("replace"), ""
    for token in tokens:
        held += decoder.decode(model.tokenizer.bytes_of(token))
        if stop and stop in held:
            yield held[: held.index(stop)]
            return
        kept = next((n for n in range(min(len(stop) - 1, len(held)), 0, -1) if held.endswith(stop[:n])), 0)
        if len(held) > kept:
            yield held[: len(held) - kept]
            held = held[len(held) - kept :]
    yield held + decoder.decode(b"", final=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("prompt")
    parser.add_argument("--model", type=Path, help="a GGUF file of the Llama family")
    parser.add_argument("--beams", type=int, default=0, help="search with so many beams")
    parser.add_argument("--drafts", action="store_true", help="guess tokens ahead: the same text")
    for name, default in Options()._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    given = parser.parse_args()
    options = Options(**{name: getattr(given, name) for name in Options._fields})
    model = Model(given.model or fetch("smollm2-135m-instruct"))
    if given.beams:
        tokens = iter(beam_search(model, given.prompt, given.beams, options))
    else:
        tokens = (generate_with_drafts if given.drafts else generate)(model, given.prompt, options)
    print(given.prompt, end="", flush=True)
    for text in stream(model, tokens, options.stop):
        print(text, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
