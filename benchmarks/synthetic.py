"""A seeded corpus of word-like text, questions about it and a cheap embedding, for benchmarks.

Nothing here says anything about quality: the words mean nothing. What is realistic is what decides the cost of a
search: units of about 60 tokens, words as unevenly frequent as in English (Zipf-Mandelbrot), function words among
them, and questions that mix frequent and rare words of one unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, product
from zlib import crc32

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

from bounded_retrieval.policies.tokenize import STOP_WORDS, tokenize

VOCABULARY = 50_000
TOKENS_PER_UNIT = 60
TERMS_PER_QUERY = 6
DIMENSIONS = 384

_ZIPF_EXPONENT, _ZIPF_SHIFT = 1.05, 2.7
_SENTENCE_TOKENS = 12
_BUCKETS = 20_011


def make_documents(units: int, seed: int) -> list[Document]:
    """Make units of 40 to 80 tokens with ids ``u0000000`` onwards and a ``source``, without titles."""
    rng = np.random.default_rng(seed)
    words = _vocabulary(rng)
    weights = 1 / (np.arange(len(words)) + 1 + _ZIPF_SHIFT) ** _ZIPF_EXPONENT
    lengths = rng.integers(TOKENS_PER_UNIT - 20, TOKENS_PER_UNIT + 20, size=units, endpoint=True)
    drawn = rng.choice(len(words), size=int(lengths.sum()), p=weights / weights.sum())
    ends = np.cumsum(lengths)
    return [
        Document(
            id=f"u{number:07d}",
            page_content=_as_sentences([words[word] for word in drawn[end - length : end]]),
            metadata={"source": f"folder/file{number // 20:05d}.md"},
        )
        for number, (length, end) in enumerate(zip(lengths.tolist(), ends.tolist(), strict=True))
    ]


def make_queries(documents: Sequence[Document], count: int, seed: int) -> list[str]:
    """Make questions of six content words that one unit holds, and three function words."""
    rng = np.random.default_rng([seed, 1])
    chosen = rng.choice(len(documents), size=count, replace=count > len(documents))
    return [_question(documents[number].page_content, rng) for number in chosen]


def content_words(text: str) -> list[str]:
    """Terms of a text without function words, as the package's own tokenizer gives them."""
    return [term for term in tokenize(text) if term not in STOP_WORDS]


class CheapEmbeddings(Embeddings):
    """Random indexing: a text's vector is the sum of its content words' random vectors, at length 1.

    It costs some hundredths of a millisecond a text and stands for no real model; every competitor uses the same one.
    """

    embedding_id = "benchmark-random-indexing-384"

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 2])
        self._vectors = rng.standard_normal((_BUCKETS, DIMENSIONS), dtype=np.float32)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector of 384 floats for each text."""
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """The vector of 384 floats of a text."""
        buckets = [crc32(word.encode()) % _BUCKETS for word in content_words(text)]
        total: NDArray[np.float32] = self._vectors[buckets].sum(axis=0)
        vector: list[float] = (total / max(float(np.linalg.norm(total)), 1e-9)).tolist()
        return vector


def _vocabulary(rng: np.random.Generator) -> list[str]:
    """Function words first (the frequent ranks), then made-up words of two to four syllables in random order."""
    syllables = ["".join(pair) for pair in product("bdfgklmnprstv", "aeiou")]
    two = map("".join, product(syllables, repeat=2))
    three = map("".join, product(syllables, repeat=3))
    made = [*two, *islice(three, VOCABULARY)]
    rng.shuffle(made)
    function_words = sorted(STOP_WORDS, key=lambda word: (len(word), word))
    return [*function_words, *(word for word in made if word not in STOP_WORDS)][:VOCABULARY]


def _as_sentences(words: list[str]) -> str:
    cut = range(0, len(words), _SENTENCE_TOKENS)
    return " ".join(f"{' '.join(words[start : start + _SENTENCE_TOKENS]).capitalize()}." for start in cut)


def _question(text: str, rng: np.random.Generator) -> str:
    distinct = list(dict.fromkeys(content_words(text)))
    first, *rest = rng.permutation(distinct)[:TERMS_PER_QUERY]
    return f"which {first} of the {' '.join(rest)}?"
