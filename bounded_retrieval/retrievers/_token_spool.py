"""The terms of a new index: written as units arrive, and put in order with those of the old one at the end."""

from __future__ import annotations

from array import array
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.retrievers._arrays import ArrayWriter, read_array
from bounded_retrieval.retrievers._bm25_corpus import TokenCorpus, gathered, row_parts, terms_of
from bounded_retrieval.retrievers._bm25_files import ARRAYS

_HELD = 1_000_000  # terms kept in memory before they are written


class _Numbers(dict[str, int]):
    """Terms and their ids; one that is new gets the next."""

    def __missing__(self, term: str) -> int:
        self[term] = number = len(self)
        return number


class TokenSpool:
    """Term ids of units in the order they arrive; those that are taken over are not tokenised.

    Args:
        folder: for files of its own.
        base: the old corpus, whose terms keep their ids until `write`.

    Raises:
        StoreCorruptError: the old corpus is mapped from a damaged file.
        OSError: a file cannot be written; likewise any method.
    """

    def __init__(self, folder: Path, base: TokenCorpus | None) -> None:
        if base is not None:
            base.check()
        self._base = base
        self._vocabulary = _Numbers(base.vocabulary if base else {})
        self._lengths = array("q")
        self._path = folder / "arrived_tokens.npy"
        self._file = ArrayWriter(self._path, ARRAYS["token_ids.npy"])
        self._held = array("i")

    @property
    def has_base(self) -> bool:
        """Whether terms can be taken over."""
        return self._base is not None

    def add(self, unit: Unit) -> None:
        """Tokenise the unit that arrives next."""
        terms, numbers = terms_of(unit), self._vocabulary
        self._held.extend([numbers[term] for term in terms])
        self._lengths.append(len(terms))
        if len(self._held) >= _HELD:
            self._flush()

    def skip(self) -> None:
        """The unit that arrives next takes its terms over."""
        self._lengths.append(0)

    def write(self, tokens: Path, offsets: Path, places: NDArray[np.int64], old_rows: NDArray[np.int64]) -> TokenCorpus:
        """Write ``token_ids.npy`` and ``offsets.npy``, and give the corpus mapped from them.

        Args:
            tokens: the file of the terms.
            offsets: the file of where each unit's begin.
            places: of each row, the number of its unit among those that arrived; of no meaning where it is taken over.
            old_rows: of each row, the one in the old corpus that it is taken over from, or -1.
        """
        self._flush()
        self._file.close()
        arrived = read_array(self._path, ARRAYS["token_ids.npy"])
        own = np.array(self._lengths, dtype=np.int64)
        is_new = old_rows < 0
        lengths, starts = np.zeros(len(places), np.int64), np.zeros(len(places), np.int64)
        lengths[is_new], starts[is_new] = own[places[is_new]], (np.cumsum(own) - own)[places[is_new]]
        if self._base is not None:
            lengths[~is_new] = np.diff(self._base.offsets)[old_rows[~is_new]]
            starts[~is_new] = self._base.offsets[:-1][old_rows[~is_new]]
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        with ArrayWriter(offsets, ends.dtype) as file:
            file.append(ends)
        vocabulary, renumbered = self._used(arrived, is_new, lengths, starts, ends)
        with ArrayWriter(tokens, ARRAYS["token_ids.npy"]) as file:
            for first, end in row_parts(ends):
                part = slice(first, end)
                flat = self._part(arrived, is_new[part], lengths[part], starts[part])
                file.append(flat if renumbered is None else renumbered[flat])
        return TokenCorpus(vocabulary=vocabulary, flat=read_array(tokens, ARRAYS["token_ids.npy"]), offsets=ends)

    def close(self) -> None:
        """Let go of the file, whatever became of it."""
        with suppress(OSError):
            self._file.close()

    def _part(
        self,
        arrived: NDArray[np.int32],
        is_new: NDArray[np.bool_],
        lengths: NDArray[np.int64],
        starts: NDArray[np.int64],
    ) -> NDArray[np.int32]:
        """The terms of some rows, one row after the other."""
        if is_new.all() or self._base is None:
            return gathered(arrived, starts, lengths)
        if not is_new.any():
            return gathered(self._base.flat, starts, lengths)
        flat = np.empty(int(lengths.sum()), dtype=ARRAYS["token_ids.npy"])
        begin = np.cumsum(lengths) - lengths
        for source, chosen in ((arrived, is_new), (self._base.flat, ~is_new)):
            into = np.repeat(begin[chosen] - np.cumsum(lengths[chosen]) + lengths[chosen], lengths[chosen])
            flat[into + np.arange(len(into))] = gathered(source, starts[chosen], lengths[chosen])
        return flat

    def _used(
        self,
        arrived: NDArray[np.int32],
        is_new: NDArray[np.bool_],
        lengths: NDArray[np.int64],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
    ) -> tuple[dict[str, int], NDArray[np.int32] | None]:
        """The vocabulary without terms that no unit holds any more, and new numbers of the others if some are gone."""
        vocabulary = self._vocabulary
        if self._base is None:
            return vocabulary, None
        used = np.zeros(len(vocabulary), dtype=np.bool_)
        for first, end in row_parts(ends):
            part = slice(first, end)
            used[self._part(arrived, is_new[part], lengths[part], starts[part])] = True
        if used.all():
            return vocabulary, None
        renumbered = np.cumsum(used, dtype=np.int32) - 1
        kept = {term: int(renumbered[term_id]) for term, term_id in vocabulary.items() if used[term_id]}
        return kept, renumbered.astype(np.int32)

    def _flush(self) -> None:
        self._file.append(np.array(self._held, dtype=ARRAYS["token_ids.npy"]))
        self._held = array("i")
