from __future__ import annotations

import json

import numpy as np
import pytest
from langchain_core.documents import Document

from bounded_retrieval.errors import StoreCorruptError, StoreMissingError, StoreVersionError
from bounded_retrieval.retrievers._bm25_files import ARRAYS, LEXICAL_FILES
from bounded_retrieval.retrievers.bm25 import BM25Searcher

BACKENDS = ["bm25s", "rank_bm25"]

DOCUMENTS = [
    Document(id="u1", page_content="red pump red"),
    Document(id="u2", page_content="pump valve", metadata={"kind": "note"}),
    Document(id="u3", page_content="blue valve fan motor shaft", metadata={"title": "Blue", "kind": "note"}),
]


@pytest.fixture
def saved(tmp_path):
    """A directory with the three units."""
    BM25Searcher.from_documents(DOCUMENTS, k1=1.2, b=0.5).save(tmp_path / "index")
    return tmp_path / "index"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("written_by", BACKENDS)
def test_files_of_either_backend_open_with_either(tmp_path, written_by, backend):
    """What one backend saved, the other opens, with the same constants and the same answers."""
    searcher = BM25Searcher.from_documents(DOCUMENTS, backend=written_by, k1=1.2, b=0.5)
    searcher.save(tmp_path)
    opened = BM25Searcher.open(tmp_path, backend=backend)
    assert (opened.settings.k1, opened.settings.b, opened.settings.backend) == (1.2, 0.5, backend)
    assert opened.search("red pump valve", 5) == searcher.search("red pump valve", 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(LEXICAL_FILES)
    opened.close()


def test_an_opened_index_is_mapped_not_read(saved):
    """The large arrays are views of the files."""
    opened = BM25Searcher.open(saved)
    assert isinstance(opened._index.scorer.postings.data.base, np.memmap)
    assert isinstance(opened._index.corpus.flat.base, np.memmap)
    opened.close()


def test_an_opened_index_is_edited_and_saved_over_itself(saved):
    """Edits of an opened index are kept in memory, then written to the directory that it was opened from."""
    opened = BM25Searcher.open(saved)
    opened.add([Document(id="u4", page_content="zebra pump"), Document(id="u1", page_content="red motor")])
    opened.remove(["u2"])
    expected = opened.search("red pump motor zebra", 5)
    opened.save(saved)
    assert opened.search("red pump motor zebra", 5) == expected
    again = BM25Searcher.open(saved)
    assert again.ids() == ["u1", "u3", "u4"]
    assert again.search("red pump motor zebra", 5) == expected
    opened.close()
    again.close()


@pytest.mark.parametrize("name", LEXICAL_FILES)
def test_a_missing_file_is_named(saved, name):
    """Each file is needed; without it the index is reported as damaged."""
    (saved / name).unlink()
    with pytest.raises(StoreCorruptError, match=name):
        BM25Searcher.open(saved)


@pytest.mark.parametrize("name", LEXICAL_FILES)
@pytest.mark.parametrize("keep", [0, 0.5, -1])
def test_a_truncated_file_is_named(saved, name, keep):
    """A file cut to nothing, to half or by one byte is reported as damaged."""
    content = (saved / name).read_bytes()
    (saved / name).write_bytes(content[: int(len(content) * keep) if keep >= 0 else -1])
    with pytest.raises(StoreCorruptError, match=name):
        BM25Searcher.open(saved)


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize(
    "change",
    [
        lambda values: values[:-1],
        lambda values: np.append(values, values[-1:]),
        lambda values: values.astype(np.float32),
        lambda values: values.reshape(1, -1),
    ],
    ids=["shorter", "longer", "type", "shape"],
)
def test_an_array_of_another_shape_is_found(saved, name, change):
    """Well-formed arrays that do not fit the others are reported, with a file of the index named."""
    np.save(saved / name, change(np.load(saved / name)))
    with pytest.raises(StoreCorruptError, match=r"\.npy"):
        BM25Searcher.open(saved)


@pytest.mark.parametrize("name", ["offsets.npy", "indptr.npy"])
def test_spans_that_run_backwards_are_found(saved, name):
    """Offsets that are not ascending are reported."""
    values = np.load(saved / name)
    values[1] = values[-1] + 1
    np.save(saved / name, values)
    with pytest.raises(StoreCorruptError, match=name):
        BM25Searcher.open(saved)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lexical.json", "[]"),
        ("lexical.json", "{}"),
        (
            "lexical.json",
            '{"format":1,"tokenizer":"unicode-1, english stems, titles twice","k1":1.2,"b":0.5,"units":2}',
        ),
        (
            "lexical.json",
            '{"format":1,"tokenizer":"unicode-1, english stems, titles twice","k1":1.2,"b":0.5,"units":-1}',
        ),
        (
            "lexical.json",
            '{"format":1,"tokenizer":"unicode-1, english stems, titles twice","k1":1.2,"b":0.5,"units":3,"more":1}',
        ),
        ("lexical.json", "[" * 100_000),
        ("vocabulary.json", '{"red":0}'),
        ("vocabulary.json", "[1,2,3,4,5,6,7]"),
        ("vocabulary.json", '["red","red","pump","valve","fan","blue","motor"]'),
    ],
)
def test_other_json_is_found(saved, name, text):
    """JSON that is not what the file should hold is reported as damage."""
    (saved / name).write_text(text)
    with pytest.raises(StoreCorruptError):
        BM25Searcher.open(saved)


def test_pickled_arrays_are_never_loaded(saved):
    """An array file that holds a pickled object is refused unread."""
    np.save(saved / "scores.npy", np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(StoreCorruptError, match=r"scores\.npy"):
        BM25Searcher.open(saved)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("tokenizer", "words-0", "'words-0'; this version has 'unicode-1, english stems, titles twice'"),
        ("tokenizer", "unicode-1", "'unicode-1'; this version has 'unicode-1, english stems, titles twice'"),
        ("format", 2, "format 2; this version reads 1"),
    ],
)
def test_another_version_is_told_apart_from_damage(saved, field, value, message):
    """Another format or tokenizer is named beside this version's."""
    header = json.loads((saved / "lexical.json").read_text())
    (saved / "lexical.json").write_text(json.dumps({**header, field: value}))
    with pytest.raises(StoreVersionError, match=message):
        BM25Searcher.open(saved)


def test_an_index_that_is_not_there_is_named(tmp_path):
    """A missing or empty directory holds no index."""
    for directory in (tmp_path, tmp_path / "none"):
        with pytest.raises(StoreMissingError, match="no lexical index"):
            BM25Searcher.open(directory)


def test_a_save_cut_short_does_not_open(saved, monkeypatch):
    """The header goes first and comes last, so that files of two states never open as one index."""
    searcher = BM25Searcher.open(saved)
    searcher.add([Document(id="u9", page_content="zebra")])
    monkeypatch.setattr(np, "save", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        searcher.save(saved)
    with pytest.raises(StoreCorruptError, match=r"lexical\.json"):
        BM25Searcher.open(saved)
    searcher.close()
