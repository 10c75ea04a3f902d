"""What tasks are made with: the model, the tokenizer, the KV tree, the drafter and the queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from glassloop.decode.compiled import Compiled
from glassloop.decode.decoder import Decoder
from glassloop.decode.stage import OwnTime
from glassloop.engine.adapters import LoadedAdapters
from glassloop.engine.drafting.guesser import DraftSource
from glassloop.engine.tasks.task import Task
from glassloop.engine.tree import KVTree
from glassloop.model.transformer import Transformer
from glassloop.record.run import Past, Run
from glassloop.record.token import Pieces
from glassloop.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TaskContext:
    transformer: Transformer
    tokenizer: Tokenizer
    pieces: Pieces
    tree: KVTree
    adapters: LoadedAdapters
    drafts: DraftSource
    queue: Callable[[Task], None]  # hands a task to the scheduler

    def decoder(
        self,
        drawn: Run | Past,
        prompt_ids: Sequence[int],
        compiled: Compiled | None = None,
        never: Sequence[int] = (),
        own_time: OwnTime | None = None,
    ) -> Decoder:
        """Returns a decoder with the options, seed and salt of a run, or of the past of a fork, for a branch
        of this model. Without `compiled` the options are compiled here. `never` are ids that it must not
        choose, and `own_time` counts how long stages take that are not built in."""
        decoder = Decoder(
            drawn.sampling,
            self.transformer.config.vocab_size,
            drawn.seed,
            prompt_ids,
            drawn.salt,
            self.tokenizer,
            tuple(self.tokenizer.eos_ids),
            self.transformer.ops.rows,
            compiled,
            never,
        )
        if own_time is not None:
            decoder.step.own_time = own_time
        return decoder
