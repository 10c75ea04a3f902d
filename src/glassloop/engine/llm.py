"""`LLM`: a model, its tokenizer and the loop. One request at a time: prefill the prompt, then choose a token,
append it and compute the next, until something says stop.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

from glassloop.decode.decoder import Chosen, Decoder
from glassloop.decode.sampling import Sampling
from glassloop.decode.stop import Ending, Stopper
from glassloop.engine.run import Alternative, Run, Timings, Token
from glassloop.errors import GlassloopError, SamplingError, TextError
from glassloop.model.cache import Branches
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import DEFAULT_MODEL, fetch
from glassloop.ops import choose_ops
from glassloop.ops.vocabulary import row_ops
from glassloop.text.stops import StopStream, StopStrings
from glassloop.text.stream import TextStream

# Rows of one forward pass while the prompt is computed: bounds memory, and Ctrl-C is heard between two.
_PREFILL_ROWS = 512


class LLM:
    """The default model, or a name, a `.gguf` file, a folder with safetensors.

    `ops` names an op set; `weights` (q8, q4, f32) brings the matrices to another format on load.
    """

    def __init__(
        self, model: str | Path = DEFAULT_MODEL, ops: str | None = None, weights: str | None = None
    ) -> None:
        self.name = str(model)
        op_set = choose_ops(ops)
        files = ModelFiles(fetch(self.name))
        self.config = files.config
        # Python builds the tokenizer while C packs the weights.
        with ThreadPoolExecutor(1) as beside:
            tokenizer = beside.submit(files.tokenizer)
            self.transformer = files.transformer(op_set, weights)
            self.tokenizer = tokenizer.result()
        self._pieces: dict[int, str] = {}  # tokens as people read them: every step names a few

    @property
    def ops(self) -> str:
        return self.transformer.ops.name

    def generate(self, prompt: str | Sequence[int], sampling: Sampling | None = None) -> Run:
        run = self.start(prompt, sampling)
        for _ in self.loop(run):
            pass
        return run

    def stream(self, prompt: str | Sequence[int], sampling: Sampling | None = None) -> Iterator[Token]:
        yield from self.loop(self.start(prompt, sampling))

    def start(self, prompt: str | Sequence[int], sampling: Sampling | None = None) -> Run:
        """A run that has its prompt and seed, and no token yet."""
        sampling = sampling or Sampling()
        _check_supported(sampling)
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else self._checked(prompt)
        if not ids:
            raise TextError("prompt is empty; at least one token is expected")
        if len(ids) >= self.config.context:
            raise TextError(
                f"prompt has {len(ids)} tokens; {self.name} has room for {self.config.context},"
                " the answer included"
            )
        seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        return Run(self.name, ids, seed, self.config.context, sampling)

    def loop(self, run: Run) -> Iterator[Token]:
        """The autoregressive loop. Tokens are put into the run and handed out as they are chosen."""
        began = perf_counter()
        first = None
        # Leaving the loop early (Ctrl-C, a closed generator) is a cancellation; every other end names itself.
        run.finish_reason = "cancelled"
        text = _Text(run.sampling)
        try:
            decoder = self.decoder(run)
            stopper = Stopper(run.sampling, self.tokenizer.eos_ids, self.config.context)
            room = min(len(run.prompt_ids) + run.sampling.max_tokens, self.config.context)
            cache = Branches(self.transformer, room)
            pending, known = run.prompt_ids, 0  # what is still to compute, and how much the cache holds
            while True:
                while len(pending) > _PREFILL_ROWS:
                    head, pending = pending[:_PREFILL_ROWS], pending[_PREFILL_ROWS:]
                    cache.forward([(0, known, head)])
                    known += len(head)
                    ending = stopper.in_time(perf_counter() - began)
                    if ending:
                        run.finish_reason, run.stop_reason = ending.reason, ending.detail
                        return
                logits = cache.forward([(0, known, pending)])
                known += len(pending)
                chosen = decoder.choose(logits[0])
                first = first or perf_counter()
                data = self.tokenizer.token_bytes(chosen.id)
                ending = (
                    Ending("stop", self.tokenizer.piece(chosen.id)) if stopper.before(chosen.id) else None
                )
                if ending and not run.sampling.include_stop:
                    run.end = self._token(chosen, data, "")
                    run.finish_reason, run.stop_reason = ending.reason, ending.detail
                    return
                decoder.commit(chosen.id)
                certain = text.feed(data, decoder.history.generated_length > run.sampling.min_tokens)
                run.tokens.append(self._token(chosen, data, certain))
                ending = ending or text.ending or stopper.after(decoder.history, perf_counter() - began)
                if ending:
                    run.finish_reason, run.stop_reason = ending.reason, ending.detail
                yield run.tokens[-1]
                if ending:
                    return
                pending = [chosen.id]
        except Exception:
            run.finish_reason = "error"
            raise
        finally:
            run.tail = text.flush()
            ended = perf_counter()
            run.timings = Timings(prefill=(first or ended) - began, decode=ended - (first or ended))

    def decoder(self, run: Run) -> Decoder:
        """The choosing half of a run's branch, at the end of its prompt."""
        return Decoder(
            run.sampling,
            self.config.vocab_size,
            run.seed,
            run.prompt_ids,
            run.salt,
            self.tokenizer,
            tuple(self.tokenizer.eos_ids),
            row_ops(self.ops),
        )

    def _token(self, chosen: Chosen, data: bytes, text: str) -> Token:
        rows = zip(
            chosen.alternative_ids.tolist(),
            chosen.alternative_logprobs.tolist(),
            chosen.alternative_raw_logprobs.tolist(),
            strict=True,
        )
        return Token(
            chosen.id,
            text,
            data,
            chosen.logprob,
            chosen.raw_logprob,
            chosen.rank,
            chosen.rank_after,
            chosen.entropy,
            chosen.log_sum_exp,
            chosen.luck,
            chosen.margin,
            tuple([Alternative(i, self._piece(i), after, raw) for i, after, raw in rows]),
        )

    def _piece(self, token: int) -> str:
        piece = self._pieces.get(token)
        if piece is None:
            # A model may have more logits than its tokenizer has tokens.
            known = token < self.tokenizer.vocab_size
            piece = self._pieces[token] = self.tokenizer.piece(token) if known else f"<{token}>"
        return piece

    def _checked(self, ids: Sequence[int]) -> list[int]:
        for index, token in enumerate(ids):
            if not isinstance(token, int) or not 0 <= token < self.config.vocab_size:
                raise GlassloopError(
                    f"prompt[{index}] is {token!r}; a token id below {self.config.vocab_size} is expected"
                )
        return list(ids)


class _Text:
    """From a branch's bytes to what a reader sees: stop strings, then characters."""

    def __init__(self, sampling: Sampling) -> None:
        self._stops = StopStream(StopStrings(sampling.stop), sampling.include_stop) if sampling.stop else None
        self._characters = TextStream()
        self.ending: Ending | None = None

    def feed(self, data: bytes, may_stop: bool) -> str:
        if self._stops is not None:
            fed = self._stops.feed(data, may_stop)
            data = fed.data
            self.ending = Ending("stop", fed.stop) if fed.stop else None
        return self._characters.feed(data)

    def flush(self) -> str:
        held = b"" if self._stops is None else self._stops.flush()
        return self._characters.feed(held) + self._characters.flush()


def _check_supported(sampling: Sampling) -> None:
    """What the options can say and this loop cannot do yet is refused, never ignored."""
    for name, off in (("n", 1), ("beam_width", 1), ("prompt_logprobs", 0)):
        if getattr(sampling, name) != off:
            raise SamplingError(f"{name} is {getattr(sampling, name)}; {off} is all that is possible as yet")
