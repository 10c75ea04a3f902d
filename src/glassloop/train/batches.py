"""Cuts documents into the sequences of an epoch, and sequences into batches.

Two ways of packing. "stream": documents are laid end to end and cut every `length` tokens, so no token is
padding and a long document spans several sequences. "whole": a sequence takes whole documents while they fit.
Either way the mask and the positions keep documents apart, and what an epoch looks like is a pure function of
(seed, epoch).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glassloop.decode.luck import hash_ids, luck_key
from glassloop.train.token_files import TokenFiles

Packing = Literal["stream", "whole"]
IGNORED = -100  # the target of a row that the loss does not count, as torch's cross_entropy has it

# What a hash is used for. Each use has hashes of its own.
DOCUMENTS, BLOCKS, SHIFT, DROPOUT, ON_POLICY = range(5)


def order(seed: int, epoch: int, use: int, count: int) -> NDArray[np.int64]:
    """Returns the numbers below `count` in the order of their hashes."""
    hashes = hash_ids(luck_key(seed, epoch, use), np.arange(count, dtype=np.int64))
    return np.argsort(hashes, kind="stable").astype(np.int64)


def number(seed: int, epoch: int, use: int, below: int) -> int:
    """Returns one hashed number below a bound."""
    return luck_key(seed, epoch, use) % below


class Range(NamedTuple):
    """Tokens `start` to `stop` of all documents, which all belong to one document."""

    start: int
    stop: int


@dataclass(frozen=True)
class TrainingRows:
    """The arrays of a batch, [sequences, length]."""

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]  # IGNORED where there is none
    positions: NDArray[np.int64]
    documents: NDArray[np.int64] | None  # None if every sequence is a single document

    @property
    def count(self) -> int:
        """The number of tokens that the loss counts."""
        return int(np.count_nonzero(self.targets != IGNORED))

    def part(self, start: int, stop: int, length: int | None = None) -> TrainingRows:
        """Returns some of the sequences, with the first `length` tokens of each."""
        cut = slice(start, stop), slice(length)
        documents = None if self.documents is None else self.documents[cut]
        return TrainingRows(self.tokens[cut], self.targets[cut], self.positions[cut], documents)


class Epoch:
    """The sequences of one pass over the documents, in their order."""

    def __init__(
        self,
        files: TokenFiles,
        ranges: Sequence[Range],
        length: int,
        packing: Packing,
        seed: int | None,  # None: in the order of the files
        epoch: int,
    ) -> None:
        self._files = files
        self._length = length
        shuffled = np.arange(len(ranges)) if seed is None else order(seed, epoch, DOCUMENTS, len(ranges))
        bounds = np.array(ranges, np.int64).reshape(-1, 2)[shuffled]
        self._documents = bounds
        if packing == "stream":
            shift = 0 if seed is None else number(seed, epoch, SHIFT, length)
            self._cuts = _even_cuts(int((bounds[:, 1] - bounds[:, 0]).sum()), length, shift)
        else:
            self._cuts = _whole_cuts(bounds[:, 1] - bounds[:, 0], length)
        count = len(self._cuts) - 1
        self._order = np.arange(count) if seed is None else order(seed, epoch, BLOCKS, count)
        # Where each document begins in the stream of this epoch.
        self._begins = np.concatenate([[0], np.cumsum(bounds[:, 1] - bounds[:, 0])]).astype(np.int64)

    def __len__(self) -> int:
        return len(self._order)

    def sequence(self, place: int) -> tuple[NDArray[np.int64], ...]:
        """Returns tokens, targets, positions and document numbers of a sequence: [length] each. Where the
        sequence is shorter, the rest is padding: a document of its own without targets."""
        block = int(self._order[place])
        tokens = np.zeros(self._length, np.int64)
        targets = np.full(self._length, IGNORED, np.int64)
        positions = np.zeros(self._length, np.int64)
        documents = np.full(self._length, -1, np.int64)
        at = 0
        for which, piece in enumerate(self._pieces(int(self._cuts[block]), int(self._cuts[block + 1]))):
            document_end = int(self._documents[piece[0], 1])
            start, stop = piece[1], piece[2]
            ids, learned = self._files.read(start, min(stop + 1, document_end))
            size = stop - start
            tokens[at : at + size] = ids[:size]
            next_ids, counted = ids[1 : size + 1], learned[1 : size + 1]
            targets[at : at + len(next_ids)] = np.where(counted, next_ids, IGNORED)
            positions[at : at + size] = np.arange(size)
            documents[at : at + size] = which
            at += size
        positions[at:] = np.arange(self._length - at)
        return tokens, targets, positions, documents

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yields (document, first token, last token + 1) for a stretch of the epoch's stream."""
        which = int(np.searchsorted(self._begins, start, "right")) - 1
        while start < stop:
            end = min(stop, int(self._begins[which + 1]))
            offset = int(self._documents[which, 0]) - int(self._begins[which])
            yield which, start + offset, end + offset
            start, which = end, which + 1


class Cursor(NamedTuple):
    """Where training stands in its data: the next sequence of an epoch."""

    epoch: int
    place: int


class Batches:
    """The sequences of all epochs, one after the other, without end."""

    def __init__(
        self,
        files: TokenFiles,
        ranges: Sequence[Range],
        length: int,
        packing: Packing = "stream",
        seed: int | None = 0,
        borders: bool = True,
    ) -> None:
        def make(epoch: int) -> Epoch:
            return Epoch(files, ranges, length, packing, seed, epoch)

        self._make = make
        self._borders = borders
        self._epoch = (0, make(0))

    def epoch(self, number: int) -> Epoch:
        if self._epoch[0] != number:
            self._epoch = (number, self._make(number))
        return self._epoch[1]

    def take(self, cursor: Cursor, count: int) -> tuple[TrainingRows, Cursor]:
        """Returns the next `count` sequences and where the data goes on."""
        taken: list[tuple[NDArray[np.int64], ...]] = []
        epoch, place = cursor
        while len(taken) < count:
            sequences = self.epoch(epoch)
            if place >= len(sequences):
                epoch, place = epoch + 1, 0
                continue
            taken.append(sequences.sequence(place))
            place += 1
        return stack(taken, self._borders), Cursor(epoch, place)


def stack(sequences: Sequence[tuple[NDArray[np.int64], ...]], borders: bool = True) -> TrainingRows:
    """Returns sequences as a batch. Without borders, documents of a sequence see each other, and positions
    count from the start of the sequence."""
    tokens, targets, positions, documents = (np.stack(parts) for parts in zip(*sequences, strict=True))
    if not borders:
        positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape).copy()
        return TrainingRows(tokens, targets, positions, None)
    single = bool((documents == documents[:, :1]).all())
    return TrainingRows(tokens, targets, positions, None if single else documents)


def document_cuts(documents: NDArray[np.int64]) -> NDArray[np.int32]:
    """Returns the first row of each document of a batch, and the number of rows. The list is filled up with
    the latter to a power of two, so that few lengths occur."""
    new = np.ones(documents.shape, bool)
    new[:, 1:] = documents[:, 1:] != documents[:, :-1]
    begins = np.flatnonzero(new)
    cuts = np.full((1 << len(begins).bit_length()) + 1, documents.size, np.int32)
    cuts[: len(begins)] = begins
    return cuts


def split_validation(files: TokenFiles, share: float) -> tuple[list[Range], list[Range]]:
    """Returns the documents for training, and the last `share` of the tokens for validation. Documents are
    kept whole, unless there is only one, which is cut."""
    begins = np.concatenate([[0], files.ends[:-1]])
    cut = round(files.tokens * (1 - share))
    if not share:
        return [Range(int(a), int(b)) for a, b in zip(begins, files.ends, strict=True)], []
    if files.documents == 1:
        return [Range(0, cut)], [Range(cut, files.tokens)]
    documents = [Range(int(a), int(b)) for a, b in zip(begins, files.ends, strict=True)]
    kept = min(max(1, int(np.searchsorted(begins, cut, "left"))), len(documents) - 1)
    return documents[:kept], documents[kept:]


def _even_cuts(total: int, length: int, shift: int) -> NDArray[np.int64]:
    """Returns where a stream of tokens is cut: after `shift` tokens, then every `length`."""
    cuts = np.arange(shift or length, total, length, dtype=np.int64)
    return np.concatenate([[0], cuts, [total]]).astype(np.int64)


def _whole_cuts(sizes: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Returns the cuts between documents, as many of them in a sequence as fit."""
    cuts, total, used = [0], 0, 0
    for size in sizes.tolist():
        if used and used + size > length:
            cuts.append(total)
            used = 0
        used += size
        total += size
    return np.array([*cuts, total], np.int64)
