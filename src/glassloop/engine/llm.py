"""`LLM`: a model, its tokenizer and the loop. One request at a time: prefill the prompt, then choose a token,
append it and compute the next, until something says stop.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter

from glassloop.decode.choose import choose
from glassloop.decode.sampling import Sampling
from glassloop.engine.run import Run, Timings, Token
from glassloop.errors import GlassloopError, TextError
from glassloop.model.cache import Branches
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import DEFAULT_MODEL, fetch
from glassloop.ops import choose_ops
from glassloop.text.stream import TextStream

# Rows of one forward pass while the prompt is computed: bounds memory, and Ctrl-C is heard between two.
_PREFILL_ROWS = 512


class LLM:
    """The default model, or a name, a `.gguf` file, a folder with safetensors."""

    def __init__(self, model: str | Path = DEFAULT_MODEL, ops: str | None = None) -> None:
        self.name = str(model)
        op_set = choose_ops(ops)
        files = ModelFiles(fetch(self.name))
        self.config = files.config
        self.tokenizer = files.tokenizer()
        self.transformer = files.transformer(op_set)

    @property
    def ops(self) -> str:
        return self.transformer.ops.name

    def generate(self, prompt: str | Sequence[int], sampling: Sampling | None = None) -> Run:
        run = self.start(prompt, sampling)
        for _ in self.loop(run, sampling):
            pass
        return run

    def stream(self, prompt: str | Sequence[int], sampling: Sampling | None = None) -> Iterator[Token]:
        yield from self.loop(self.start(prompt, sampling), sampling)

    def start(self, prompt: str | Sequence[int], sampling: Sampling | None = None) -> Run:
        """A run that has its prompt and seed, and no token yet."""
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else self._checked(prompt)
        if not ids:
            raise TextError("prompt is empty; at least one token is expected")
        if len(ids) >= self.config.context:
            raise TextError(
                f"prompt has {len(ids)} tokens; {self.name} has room for {self.config.context},"
                " the answer included"
            )
        seed = (sampling or Sampling()).seed
        return Run(self.name, ids, secrets.randbits(32) if seed is None else seed, self.config.context)

    def loop(self, run: Run, sampling: Sampling | None = None) -> Iterator[Token]:
        """The autoregressive loop. Tokens are put into the run and handed out as they are chosen."""
        sampling = sampling or Sampling()
        text = TextStream()
        cache = Branches(
            self.transformer, min(len(run.prompt_ids) + sampling.max_tokens, self.config.context)
        )
        pending, known = run.prompt_ids, 0  # what is still to compute, and how much the cache holds
        began = perf_counter()
        first = None
        # Leaving the loop early (Ctrl-C, a closed generator) is a cancellation; every other end names itself.
        run.finish_reason = "cancelled"
        try:
            while True:
                while len(pending) > _PREFILL_ROWS:
                    head, pending = pending[:_PREFILL_ROWS], pending[_PREFILL_ROWS:]
                    cache.forward([(0, known, head)])
                    known += len(head)
                logits = cache.forward([(0, known, pending)])
                known += len(pending)
                choice = choose(logits[0], sampling.temperature, run.seed, known)
                first = first or perf_counter()
                if choice.id in self.tokenizer.eos_ids:
                    run.finish_reason, run.stop_reason = "stop", self.tokenizer.piece(choice.id)
                    return
                raw = self.tokenizer.token_bytes(choice.id)
                token = Token(choice.id, text.feed(raw), raw, choice.logprob, choice.raw_logprob)
                run.tokens.append(token)
                if len(run.tokens) == sampling.max_tokens or known + 1 == self.config.context:
                    run.finish_reason = "length"
                    yield token
                    return
                yield token
                pending = [choice.id]
        finally:
            run.tail = text.flush()
            ended = perf_counter()
            run.timings = Timings(prefill=(first or ended) - began, decode=ended - (first or ended))

    def _checked(self, ids: Sequence[int]) -> list[int]:
        for index, token in enumerate(ids):
            if not isinstance(token, int) or not 0 <= token < self.config.vocab_size:
                raise GlassloopError(
                    f"prompt[{index}] is {token!r}; a token id below {self.config.vocab_size} is expected"
                )
        return list(ids)
