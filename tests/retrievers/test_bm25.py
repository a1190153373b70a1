from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document

from bounded_retrieval.contracts.filters import compile_filter
from bounded_retrieval.contracts.ports import ScoringSearcher, Searcher, UnitSource
from bounded_retrieval.errors import (
    ConfigurationError,
    RequestError,
)
from bounded_retrieval.policies.tokenize import STOP_WORDS, index_terms, tokenize
from bounded_retrieval.retrievers._bm25_index import _CACHED_FILTERS
from bounded_retrieval.retrievers.bm25 import BM25Searcher
from bounded_retrieval.retrievers.units import MemoryUnits

BACKENDS = ["bm25s", "rank_bm25"]

DOCUMENTS = [
    Document(id="u1", page_content="red pump red"),
    Document(id="u2", page_content="pump valve", metadata={"kind": "note"}),
    Document(id="u3", page_content="blue valve fan motor shaft", metadata={"title": "Blue", "kind": "note"}),
]


def pairs(candidates):
    """Ids and scores of candidates."""
    return [(candidate.unit_id, candidate.score) for candidate in candidates]


def brute_force(documents, query, k, filter=None):
    """The declared formula and order, term by term, over plain dictionaries."""
    passes = compile_filter(filter)
    counts = {d.id: Counter(index_terms(f"{d.metadata.get('title', '')}\n{d.page_content}")) for d in documents}
    average = sum(sum(count.values()) for count in counts.values()) / len(counts)
    distinct = dict.fromkeys(index_terms(query))
    scores = {}
    for document in documents:
        count, total = counts[document.id], 0.0
        for term in [term for term in distinct if term not in STOP_WORDS] or distinct:
            n = sum(term in other for other in counts.values())
            idf = math.log(1 + (len(documents) - n + 0.5) / (n + 0.5))
            norm = 1.5 * (0.25 + 0.75 * sum(count.values()) / average) if average else 1
            total += idf * count[term] / (count[term] + norm) if count[term] else 0
        if total > 0 and passes(document.metadata):
            scores[document.id] = round(total, 9)
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:k]


@pytest.fixture(params=[*BACKENDS, "opened"])
def searcher(request, tmp_path):
    """The three units, indexed by each backend and opened from files."""
    if request.param != "opened":
        yield BM25Searcher.from_documents(DOCUMENTS, backend=request.param)
        return
    BM25Searcher.from_documents(DOCUMENTS).save(tmp_path / "index")
    opened = BM25Searcher.open(tmp_path / "index")
    yield opened
    opened.close()


def test_scores_are_those_worked_out_by_hand(searcher):
    """``red pump`` over three units gives the numbers of the declared formula.

    Terms: u1 ``red pump red``, u2 ``pump valve``, u3 ``blue blue valve fan motor shaft`` (title first): lengths 3, 2
    and 6, mean 11/3. idf(red) = ln(1 + 2.5/1.5) = .980829; idf(pump) = ln(1 + 1.5/2.5) = .470004. Norms
    1.5(.25 + .75 dl/avgdl): u1 1.5(.25 + .75 * 9/11) = 1.295455, u2 1.5(.25 + .75 * 6/11) = .988636.
    u1: .980829 * 2/3.295455 + .470004 * 1/2.295455 = .595261 + .204754 = .800015. u2: .470004/1.988636 = .236345.
    """
    found = searcher.search("red pump", 10)
    assert [(c.unit_id, c.rank, c.channel) for c in found] == [("u1", 1, "lexical"), ("u2", 2, "lexical")]
    assert found[0].score == pytest.approx(0.800015, abs=1e-6)
    assert found[1].score == pytest.approx(0.236345, abs=1e-6)


def test_it_fulfils_the_three_ports(searcher):
    """A lexical searcher is a searcher, scores observed units and is a unit source."""
    assert isinstance(searcher, Searcher)
    assert isinstance(searcher, ScoringSearcher)
    assert isinstance(searcher, UnitSource)
    assert len(searcher) == 3
    assert searcher.ids() == ["u1", "u2", "u3"]
    assert searcher.fetch(["u3", "none"]) == {"u3": DOCUMENTS[2]}
    assert searcher.tokenizer("HX-200 é") == tokenize("HX-200 é") == ["hx-200", "e"]
    assert searcher.tokenizer_name == "unicode-1"


def test_candidates_bring_their_units(searcher):
    """Each candidate holds the document as it was given, title and metadata included."""
    assert searcher.search("blue", 1)[0].unit == DOCUMENTS[2]


@pytest.mark.parametrize("query", ["", "   ", "?!", "unknown words", "the unknown"])
def test_a_query_that_matches_nothing_gives_nothing(searcher, query):
    """No known term means no rows: not the first k units with a score of zero."""
    assert searcher.search(query, 5) == []


@pytest.mark.parametrize("k", [0, -1])
def test_no_rows_are_asked_for(searcher, k):
    """A k of zero or below gives an empty answer."""
    assert searcher.search("pump", k) == []


def test_more_rows_than_units_are_asked_for(searcher):
    """A large k gives every unit that matches, and none besides."""
    assert [c.unit_id for c in searcher.search("pump valve fan", 10**9)] == ["u2", "u3", "u1"]


def test_repeats_in_a_query_count_once(searcher):
    """A query says the same thing however often it says a word."""
    assert searcher.search("pump pump PUMP red", 5) == searcher.search("pump red", 5)


def test_a_very_long_query_is_answered(searcher):
    """20,000 characters of query are no error."""
    assert len(searcher.search("pump xyzzy42 valve " * 1100, 5)) == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_stop_words_are_dropped_unless_nothing_else_is_left(backend):
    """``the`` adds nothing beside another word, and is looked for when it is all there is."""
    documents = [Document(id="a", page_content="the who"), Document(id="b", page_content="the pump the")]
    searcher = BM25Searcher.from_documents(documents, backend=backend)
    assert pairs(searcher.search("the pump", 5)) == pairs(searcher.search("pump", 5))
    assert [c.unit_id for c in searcher.search("who the", 5)] == ["a", "b"]


def test_identifiers_match_whole_first_and_in_parts_after():
    """``HX-200`` finds the unit that has it exactly before one that has only a part of it."""
    documents = [Document(id="part", page_content="HX 200 pump"), Document(id="whole", page_content="pump HX\u2011200")]
    assert [c.unit_id for c in BM25Searcher.from_documents(documents).search("hx-200", 5)] == ["whole", "part"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_term_in_every_unit_still_scores(backend):
    """The idf is never zero or negative, so a word that all units hold still finds them."""
    documents = [Document(id=str(n), page_content="pump") for n in range(2)]
    assert pairs(BM25Searcher.from_documents(documents, backend=backend).search("pump", 5)) == [
        ("0", pytest.approx(math.log(1.2) / 2.5)),
        ("1", pytest.approx(math.log(1.2) / 2.5)),
    ]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("documents", [[], [Document(id="a", page_content="?!")]], ids=["empty", "no terms"])
def test_a_corpus_without_terms_is_searched_and_kept(tmp_path, backend, documents):
    """No unit, or no term in any, gives no rows in memory and from files, and can be added to."""
    searcher = BM25Searcher.from_documents(documents, backend=backend)
    searcher.save(tmp_path / "index")
    opened = BM25Searcher.open(tmp_path / "index", backend=backend)
    for each in (searcher, opened):
        assert len(each) == len(documents)
        assert each.search("pump", 5) == []
        assert each.score("pump", ["a", "b"]) == dict.fromkeys((d.id for d in documents), 0.0)
        each.add([Document(id="b", page_content="pump")])
        assert [c.unit_id for c in each.search("pump", 5)] == ["b"]
    opened.close()


def test_given_units_are_scored_as_a_search_scores_them(searcher):
    """Scores of given units equal those of a search; a unit that matches nothing has 0, an unknown one is left out."""
    found = dict(pairs(searcher.search("red pump fan", 5)))
    assert searcher.score("red pump fan", ["u3", "none", "u1"]) == {"u3": found["u3"], "u1": found["u1"]}
    assert searcher.score("red", ["u2"]) == {"u2": 0.0}
    assert searcher.score("nothing known", ["u1"]) == {"u1": 0.0}
    assert searcher.score("red", []) == {}


def test_a_filter_applies_before_ranking(searcher):
    """A filtered search fills its rows from the units that pass, with the scores they have without the filter."""
    unfiltered = dict(pairs(searcher.search("red pump valve", 5)))
    assert pairs(searcher.search("red pump valve", 1, {"kind": "note"})) == [("u2", unfiltered["u2"])]
    assert [c.unit_id for c in searcher.search("valve", 5, {"title": "Blue"})] == ["u3"]
    assert searcher.search("pump", 5, {"kind": "none"}) == []
    assert pairs(searcher.search("red pump valve", 5, {})) == list(unfiltered.items())


def test_a_filter_outside_the_language_is_refused(searcher):
    """An unknown operator is an error, also when a filter with the same text is in the cache."""
    with pytest.raises(RequestError, match=r"unknown operator '\$regex'"):
        searcher.search("pump", 5, {"kind": {"$regex": "n"}})
    searcher.search("pump", 5, {"kind": "None"})
    with pytest.raises(RequestError, match="NoneType"):
        searcher.search("pump", 5, {"kind": None})


def test_few_filters_are_kept():
    """The masks of the latest filters are kept and the cache does not grow beyond them."""
    searcher = BM25Searcher.from_documents(DOCUMENTS)
    for number in range(3 * _CACHED_FILTERS):
        assert searcher.search("pump", 5, {"kind": number}) == []
        assert [c.unit_id for c in searcher.search("pump", 5, {"kind": "note"})] == ["u2"]
    assert len(searcher._index._masks) == _CACHED_FILTERS


WORDS = st.sampled_from(["red", "pump", "valve", "fan", "the", "HX-200", "blue"])
TEXTS = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)
HELD = st.fixed_dictionaries({}, optional={"n": st.integers(0, 2), "kind": st.sampled_from("ab"), "title": TEXTS})
CORPORA = st.lists(st.tuples(TEXTS, HELD), min_size=1, max_size=24).map(
    lambda texts: [Document(id=f"u{n * 7 % 25:02}", page_content=t, metadata=m) for n, (t, m) in enumerate(texts)]
)
SIMPLE = st.one_of(
    st.fixed_dictionaries({}, optional={"n": st.integers(0, 2), "kind": st.sampled_from("ab")}),
    st.builds(lambda op, n: {"n": {op: n}}, st.sampled_from(["$gt", "$lte", "$ne"]), st.integers(0, 2)),
    st.builds(lambda kinds: {"kind": {"$in": kinds}}, st.lists(st.sampled_from("abc"), min_size=1)),
)
FILTERS = st.one_of(
    st.none(), SIMPLE, st.builds(lambda f: {"$not": f}, SIMPLE), st.builds(lambda *f: {"$or": list(f)}, SIMPLE, SIMPLE)
)


@pytest.mark.parametrize("backend", BACKENDS)
@given(documents=CORPORA, query=TEXTS, k=st.integers(1, 8), filter=FILTERS)
def test_any_search_gives_what_the_formula_gives(backend, documents, query, k, filter):
    """Units, order, ties and scores are those of a term-by-term computation, for any filter and any k."""
    searcher = BM25Searcher.from_documents(documents, backend=backend)
    expected = brute_force(documents, query, k, filter)
    found = searcher.search(query, k, filter)
    assert [candidate.unit_id for candidate in found] == [unit_id for unit_id, _ in expected]
    assert [candidate.score for candidate in found] == pytest.approx([score for _, score in expected])
    assert searcher.score(query, [c.unit_id for c in found]) == dict(pairs(found))


def test_ties_at_the_last_row_go_to_the_lowest_id():
    """Of a thousand equal units, those with the lowest ids are returned whatever the order they came in."""
    documents = [Document(id=f"{n * 7919 % 1000:03}", page_content="pump") for n in range(1000)]
    documents.append(Document(id="zz", page_content="pump pump"))
    found = BM25Searcher.from_documents(documents).search("pump", 4)
    assert [candidate.unit_id for candidate in found] == ["zz", "000", "001", "002"]


def load(folder, name):
    """Rows of a .jsonl file."""
    return [json.loads(line) for line in (folder / name).read_text("utf-8").splitlines()]


def test_both_backends_rank_a_real_collection_alike(collection_path):
    """The first six of each of 100 queries over 994 units are the same, scores included."""
    folder = collection_path("hotpotqa_train100")
    documents = [
        Document(id=row["_id"], page_content=row["text"], metadata={"title": row["title"]})
        for row in load(folder, "corpus.jsonl")
    ]
    fast, reference = (BM25Searcher.from_documents(documents, backend=backend) for backend in BACKENDS)
    queries = [row["text"] for row in load(folder, "queries.jsonl")]
    assert len(queries) == 100
    for query in queries:
        found = pairs(fast.search(query, 6))
        assert len(found) == 6
        assert found == pairs(reference.search(query, 6))


def test_scores_by_term_are_those_that_bm25s_computes():
    """The vectorised postings equal those of bm25s's own indexing of the same corpus."""
    import bm25s

    rng = np.random.default_rng(5)
    texts = [" ".join(f"w{n}" for n in rng.geometric(0.05, size=rng.integers(1, 40))) for _ in range(200)]
    searcher = BM25Searcher.from_documents(Document(id=f"{n:03}", page_content=text) for n, text in enumerate(texts))
    own = bm25s.BM25(method="lucene", dtype="float64")
    corpus = searcher._index.corpus
    expected = own.build_index_from_ids(list(corpus.vocabulary.values()), list(corpus), show_progress=False)
    postings = searcher._index.scorer.postings
    assert np.array_equal(postings.indices, expected["indices"])
    assert np.array_equal(postings.indptr, expected["indptr"])
    np.testing.assert_allclose(postings.data, expected["data"], rtol=1e-12)


@pytest.mark.parametrize("setting", [{"k1": -1.0}, {"k1": math.nan}, {"b": 1.5}, {"backend": "lucene"}])
def test_settings_out_of_range_are_refused(setting):
    """An impossible constant or an unknown backend is an error that names it."""
    with pytest.raises(ConfigurationError, match=next(iter(setting))):
        BM25Searcher.from_documents(DOCUMENTS, **setting)


QUIET = """
import logging, sys
logging.basicConfig(level=logging.DEBUG)
from langchain_core.documents import Document
from bounded_retrieval.retrievers.bm25 import BM25Searcher
heavy = {"bm25s", "rank_bm25", "chromadb"} & sys.modules.keys()
for backend in ("bm25s", "rank_bm25"):
    searcher = BM25Searcher.from_documents([Document(id="a", page_content="pump")], backend=backend)
    searcher.search("pump", 1)
print(sorted(heavy), logging.getLogger("bm25s").level)
"""


def test_nothing_is_printed_or_logged():
    """No progress bar, no log line, no log level changed, and the libraries are imported on first use."""
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == f"[] {logging.NOTSET}"
    assert done.stderr == ""


def test_it_shows_its_size_and_backend():
    """The representation helps, and the unit source can be had."""
    searcher = BM25Searcher.from_documents(DOCUMENTS)
    assert repr(searcher) == "BM25Searcher(3 units, backend='bm25s')"
    assert isinstance(searcher.units, MemoryUnits)
    searcher.close()
