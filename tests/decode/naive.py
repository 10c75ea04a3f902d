"""The oracle: every stage over the whole vocabulary, by its definition, with nothing clever in it.

It shares no code with the engine but the hash. A logit is `base · scale` with a float32 base, as the engine
defines it; -inf marks a removed token. Masses closer than a billionth are equal.
"""

from __future__ import annotations

from math import exp, log, sqrt

import numpy as np

from glassloop.decode.chosen import RECORD, Chosen
from glassloop.decode.luck import coin, luck

ORDER = [
    "logit_bias",
    "allowed_tokens",
    "bad_words",
    "min_tokens",
    "grammar",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "no_repeat_ngram",
    "dry",
    "temperature",
    "top_k",
    "typical_p",
    "top_p",
    "min_p",
    "top_n_sigma",
    "xtc",
    "epsilon_cutoff",
    "eta_cutoff",
    "mirostat",
]


def recorded(token, logprob=None):
    """The record of a token with this log-probability after the stages; by default one that its id fixes."""
    numbers = dict.fromkeys(RECORD.names, 0.0)
    return Chosen.of(**numbers | {"id": token, "logprob": -(token % 13) / 2 if logprob is None else logprob})


class Naive:
    def __init__(
        self, logits, tokens, prompt_length, sampling, seed, position, salt=0, ending=(), logprobs=()
    ):
        self.base, self.scale = logits.copy(), 1.0
        self.tokens, self.output = list(tokens), list(tokens)[prompt_length:]
        self.sampling, self.seed, self.position, self.salt = sampling, seed, position, salt
        self.ending, self.logprobs = ending, logprobs

    def run(self, order=None):
        for name in order or self.sampling.stages or ORDER:
            getattr(self, name)(self.sampling)
        return self

    @property
    def logits(self):
        return self.base.astype(np.float64) * self.scale

    @property
    def probabilities(self):
        logits = self.logits
        weights = np.exp(logits - logits.max())
        return weights / weights.sum()

    @property
    def ranked(self):
        """Survivors, most likely first, ties by lower id."""
        return sorted(np.flatnonzero(self.base > -np.inf), key=lambda i: (-self.base[i], i))

    def move(self, token, change):
        if self.base[token] > -np.inf:
            moved = change(float(self.base[token]) * self.scale) / self.scale
            self.base[token] = np.float32(np.clip(moved, -np.finfo(np.float32).max, np.finfo(np.float32).max))

    def keep(self, tokens):
        kept = np.full_like(self.base, -np.inf)
        kept[list(tokens)] = self.base[list(tokens)]
        self.base = kept

    def logit_bias(self, s):
        for token, bias in s.logit_bias.items():
            self.move(token, lambda x, b=bias: x + b)

    def allowed_tokens(self, s):
        if s.allowed_token_ids is not None:
            self.keep(s.allowed_token_ids)

    def bad_words(self, s):
        for word in s.bad_words:
            if self.tokens[len(self.tokens) - len(word) + 1 :] == list(word[:-1]) or len(word) == 1:
                self.base[word[-1]] = -np.inf

    def min_tokens(self, s):
        if len(self.output) < s.min_tokens:
            for token in (*self.ending, *s.stop_token_ids):
                self.base[token] = -np.inf

    def grammar(self, s):
        assert s.constraint is None

    def repetition_penalty(self, s):
        r = s.repetition_penalty
        for token in set(self.tokens):
            self.move(token, lambda x: x * r if x < 0 else x / r)

    def presence_penalty(self, s):
        for token in set(self.output):
            self.move(token, lambda x: x - s.presence_penalty)

    def frequency_penalty(self, s):
        for token in set(self.output):
            self.move(token, lambda x, t=token: x - s.frequency_penalty * self.output.count(t))

    def no_repeat_ngram(self, s):
        n = s.no_repeat_ngram_size
        if n:
            ngrams = {tuple(self.tokens[i : i + n]) for i in range(len(self.tokens) - n + 1)}
            start = tuple(self.tokens[len(self.tokens) - n + 1 :])
            for token in range(len(self.base)):
                if len(start) == n - 1 and (*start, token) in ngrams:
                    self.base[token] = -np.inf

    def dry(self, s):
        if not s.dry_multiplier:
            return
        longest = {}
        for end in range(1, len(self.tokens)):
            length = 0
            while length < min(end, max(64, s.dry_allowed_length)) and (
                self.tokens[end - 1 - length] == self.tokens[-1 - length]
            ):
                length += 1
            token = self.tokens[end]
            longest[token] = max(longest.get(token, 0), length)
        for token, length in longest.items():
            if length >= s.dry_allowed_length:
                penalty = s.dry_multiplier * np.power(s.dry_base, np.float64(length - s.dry_allowed_length))
                self.move(token, lambda x, p=penalty: x - p)

    def temperature(self, s):
        if s.temperature != 0:
            self.scale *= 1 / s.temperature

    def top_k(self, s):
        if s.top_k:
            self.keep(self.ranked[: s.top_k])

    def top_p(self, s):
        if s.top_p < 1:
            kept, mass, p = [], 0.0, self.probabilities
            for token in self.ranked:
                kept.append(token)
                mass += p[token]
                if mass >= s.top_p - 1e-9:
                    break
            self.keep(kept)

    def min_p(self, s):
        if s.min_p:
            logits = self.logits
            border = logits.max() + log(s.min_p)
            self.keep([i for i in self.ranked if logits[i] >= border])

    def typical_p(self, s):
        if s.typical_p < 1:
            alive = self.ranked
            p = self.probabilities
            with np.errstate(divide="ignore"):
                surprise = -(self.logits - self.logits.max()) + np.log(
                    np.exp(self.logits - self.logits.max()).sum()
                )
            entropy = sum(p[i] * surprise[i] for i in alive)
            distance = {i: abs(surprise[i] - entropy) for i in alive}
            mass, border = 0.0, None
            for i in sorted(alive, key=lambda i: distance[i]):
                mass, border = mass + p[i], distance[i]
                if mass >= s.typical_p - 1e-9:
                    break
            self.keep([i for i in alive if distance[i] <= border + 1e-12])

    def top_n_sigma(self, s):
        if s.top_n_sigma:
            alive = self.ranked
            logits = self.logits
            if not alive:
                raise ValueError("nobody is left")
            border = logits.max() - s.top_n_sigma * logits[alive].std()
            self.keep([i for i in alive if logits[i] >= border])

    def xtc(self, s):
        if coin(self.seed, self.salt, self.position) < s.xtc_probability:
            self.base[self._likelier(s.xtc_threshold)[:-1]] = -np.inf

    def epsilon_cutoff(self, s):
        if s.epsilon_cutoff:
            self.keep(self._likelier(s.epsilon_cutoff) or self._favourites())

    def eta_cutoff(self, s):
        if s.eta_cutoff:
            p = self.probabilities
            entropy = -sum(x * log(x) for x in p if x > 0)
            border = min(s.eta_cutoff, sqrt(s.eta_cutoff) * exp(-entropy))
            self.keep(self._likelier(border) or self._favourites())

    def mirostat(self, s):
        if s.mirostat_tau:
            mu = 2 * s.mirostat_tau
            for logprob in self.logprobs:
                if logprob > -np.inf:
                    mu -= s.mirostat_eta * (-logprob / log(2) - s.mirostat_tau)
            self.keep(self._likelier(2**-mu) or self._favourites())

    def _likelier(self, border):
        p, ranked = self.probabilities, self.ranked
        return [i for i in ranked if p[i] >= border * (1 - 1e-9)]

    def _favourites(self):
        return np.flatnonzero(self.base == self.base.max())

    def winner(self):
        """(id, runner-up, margin, log-probability after the stages)."""
        alive = np.array(self.ranked)
        logits = self.logits[alive]
        noise = 0 if self.sampling.temperature == 0 else luck(self.seed, self.salt, self.position, alive)
        scores = logits + noise
        order = sorted(range(len(alive)), key=lambda i: (-scores[i], alive[i]))
        first = order[0]
        logprob = logits[first] - logits.max() - log(np.exp(logits - logits.max()).sum())
        if len(alive) == 1:
            return int(alive[first]), None, float("inf"), logprob
        return int(alive[first]), int(alive[order[1]]), scores[first] - scores[order[1]], logprob


def banned(words, tokens, by_id):
    """The tokens with which a bad word would end: each is put after the text, and the words looked for."""
    before = b"".join(by_id[token] for token in tokens)
    found = set()
    for token, data in enumerate(by_id):
        for word in words:
            if isinstance(word, str):
                size = len(word.encode())
                text = before[max(0, len(before) - size + 1) :] + data
                completes = bool(data) and word.encode() in text
            else:
                completes = [*tokens, token][-len(word) :] == list(word)
            if completes:
                found.add(token)
    return found
