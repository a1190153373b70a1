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
from bounded_retrieval.policies.tokenize import STOP_WORDS, index_terms, stems_of, tokenize, words_and_parts
from bounded_retrieval.retrievers import _bm25_backends, _bm25_index
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


def brute_force(documents, query, k, filter, statistics):
    """The declared formula and order, term by term, over plain dictionaries."""
    passes = compile_filter(filter)
    if statistics == "filtered":
        documents = [document for document in documents if passes(document.metadata)]
    if not documents:
        return []
    titles = {d.id: d.metadata.get("title", "") for d in documents}
    # A title counts twice.
    counts = {d.id: Counter(index_terms(f"{titles[d.id]}\n{titles[d.id]}\n{d.page_content}")) for d in documents}
    average = sum(sum(count.values()) for count in counts.values()) / len(counts)
    words = dict.fromkeys(words_and_parts(query))
    telling = [word for word in words if word not in STOP_WORDS] or list(words)
    scores = {}
    for document in documents:
        count, total = counts[document.id], 0.0
        for term in dict.fromkeys(stems_of(telling)):
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

    Terms: u1 ``red pump red``, u2 ``pump valv``, u3 ``blue blue valv fan motor shaft`` and its title once more: lengths
    3, 2 and 7, mean 4. idf(red) = ln(1 + 2.5/1.5) = .980829; idf(pump) = ln(1 + 1.5/2.5) = .470004. Norms
    1.5(.25 + .75 dl/avgdl): u1 1.5(.25 + .75 * 3/4) = 1.21875, u2 1.5(.25 + .75 * 2/4) = .9375.
    u1: .980829 * 2/3.21875 + .470004 * 1/2.21875 = .609447 + .211833 = .821280. u2: .470004/1.9375 = .242583.
    """
    found = searcher.search("red pump", 10)
    assert [(c.unit_id, c.rank, c.channel) for c in found] == [("u1", 1, "lexical"), ("u2", 2, "lexical")]
    assert found[0].score == pytest.approx(0.821280, abs=1e-6)
    assert found[1].score == pytest.approx(0.242583, abs=1e-6)


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
    """A filtered search fills its rows from the units that pass; an empty filter changes nothing."""
    unfiltered = dict(pairs(searcher.search("red pump valve", 5)))
    assert [c.unit_id for c in searcher.search("red pump valve", 1, {"kind": "note"})] == ["u2"]
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


def test_a_filtered_score_is_worked_out_by_hand(searcher):
    """``valve`` among the two notes: N = n = 2, lengths 2 and 7, mean 4.5.

    idf = ln(1 + .5/2.5) = .182322; norms 1.5(.25 + .75 * 2/4.5) = .875 and 1.5(.25 + .75 * 7/4.5) = 2.125, so that
    u2 has .182322/1.875 = .097238 and u3 .182322/3.125 = .058343.
    """
    found = dict(pairs(searcher.search("valve", 5, {"kind": "note"})))
    assert found == {"u2": pytest.approx(0.097238, abs=1e-6), "u3": pytest.approx(0.058343, abs=1e-6)}


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_statistics_of_the_corpus_a_filter_changes_no_score(backend):
    """The units that pass have the scores they have without the filter."""
    searcher = BM25Searcher.from_documents(DOCUMENTS, backend=backend, statistics="corpus")
    unfiltered = dict(pairs(searcher.search("red pump valve", 5)))
    assert pairs(searcher.search("red pump valve", 1, {"kind": "note"})) == [("u2", unfiltered["u2"])]
    assert searcher.score("valve", ["u1", "u2"], {"kind": "note"}) == {"u1": 0.0, **searcher.score("valve", ["u2"])}


@pytest.mark.parametrize("backend", BACKENDS)
def test_units_that_do_not_pass_leave_no_trace_in_filtered_scores(backend):
    """However many units another tenant holds, and whatever they say, an answer stays the same to the last digit."""
    own = [Document(id=f"a{n}", page_content=f"red pump {'fan ' * n}", metadata={"tenant": "a"}) for n in range(4)]
    other = [Document(id=f"b{n}", page_content="pump pump valve", metadata={"tenant": "b"}) for n in range(9)]
    alone = BM25Searcher.from_documents(own, backend=backend).search("pump valve", 9)
    shared = BM25Searcher.from_documents([*own, *other], backend=backend)
    assert alone
    assert shared.search("pump valve", 9, {"tenant": "a"}) == alone


def test_given_units_are_scored_under_a_filter_as_a_search_under_it_scores_them(searcher):
    """Scores of given units under a filter are those of a filtered search; a unit that does not pass has 0."""
    found = dict(pairs(searcher.search("pump valve", 5, {"kind": "note"})))
    assert searcher.score("pump valve", ["u3", "u1", "none", "u2"], {"kind": "note"}) == {**found, "u1": 0.0}
    assert searcher.score("pump valve", [], {"kind": "note"}) == {}
    assert searcher.score("unknown", ["u2"], {"kind": "note"}) == {"u2": 0.0}
    with pytest.raises(RequestError):
        searcher.score("pump", ["u1"], {"$nor": []})


def test_every_filter_is_decided_by_the_searcher_itself(searcher):
    """No filter is left to be enforced on the rows."""
    for given_filter in (None, {}, {"kind": "note"}, {"$not": {"kind": {"$gt": "a"}}}, {"kind": {"$exists": False}}):
        assert searcher.pushes_down(given_filter)


def test_latest_filters_are_kept_within_a_bound_of_bytes(monkeypatch):
    """Masks of the filters used last are kept, and no more of them than the bound allows."""
    monkeypatch.setattr(_bm25_index, "CACHED_MASK_BYTES", 6_000)
    searcher = BM25Searcher.from_documents(DOCUMENTS)
    for number in range(100):
        assert searcher.search("pump", 5, {"kind": number}) == []
        assert [c.unit_id for c in searcher.search("pump", 5, {"kind": "note"})] == ["u2"]
    assert 5 <= len(searcher._index._passing) <= 11


@pytest.mark.parametrize("make", ["memory", "files"])
def test_metadata_is_read_once_for_a_field_not_for_a_filter(monkeypatch, tmp_path, make):
    """Any number of filters on fields already seen, or on fields that no unit has, read no metadata again."""
    searcher = BM25Searcher.from_documents(DOCUMENTS)
    if make == "files":
        searcher.save(tmp_path)
        searcher = BM25Searcher.open(tmp_path)
    reads = []
    masks, read = searcher._index._masks, searcher._index._masks._read
    monkeypatch.setattr(masks, "_read", lambda: (reads.append(1), read())[1])
    for number in range(20):
        searcher.search("pump", 5, {"kind": {"$gt": str(number)}, f"new {number}": 1})
    assert len(reads) == 1
    searcher.search("pump", 5, {"title": "Blue"})
    assert len(reads) == 2
    searcher.close()


WORDS = st.sampled_from(["red", "pump", "valve", "fan", "the", "HX-200", "blue"])
TEXTS = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)
HELD = st.fixed_dictionaries({}, optional={"n": st.integers(0, 2), "kind": st.sampled_from("ab"), "title": TEXTS})
CORPORA = st.lists(st.tuples(TEXTS, HELD), min_size=1, max_size=24).map(
    lambda texts: [Document(id=f"u{n * 7 % 25:02}", page_content=t, metadata=m) for n, (t, m) in enumerate(texts)]
)
SIMPLE = st.one_of(
    st.fixed_dictionaries({}, optional={"n": st.integers(0, 2), "kind": st.sampled_from("ab")}),
    st.builds(lambda op, n: {"n": {op: n}}, st.sampled_from(["$gt", "$lte", "$ne"]), st.integers(0, 2)),
    st.builds(lambda field, there: {field: {"$exists": there}}, st.sampled_from(["n", "title"]), st.booleans()),
    st.builds(lambda kinds: {"kind": {"$in": kinds}}, st.lists(st.sampled_from("abc"), min_size=1)),
)
FILTERS = st.one_of(
    st.none(), SIMPLE, st.builds(lambda f: {"$not": f}, SIMPLE), st.builds(lambda *f: {"$or": list(f)}, SIMPLE, SIMPLE)
)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("statistics", ["filtered", "corpus"])
@given(documents=CORPORA, query=TEXTS, k=st.integers(1, 8), filter=FILTERS)
def test_any_search_gives_what_the_formula_gives(backend, statistics, *, documents, query, k, filter):
    """Units, order, ties and scores are those of a term-by-term computation, for any filter and any k."""
    searcher = BM25Searcher.from_documents(documents, backend=backend, statistics=statistics)
    expected = brute_force(documents, query, k, filter, statistics)
    found = searcher.search(query, k, filter)
    assert [candidate.unit_id for candidate in found] == [unit_id for unit_id, _ in expected]
    assert [candidate.score for candidate in found] == pytest.approx([score for _, score in expected])
    assert searcher.score(query, [c.unit_id for c in found], filter) == dict(pairs(found))


CONSTANTS = st.tuples(
    st.sampled_from([0, 0.0, 1e-300, 1e-17, 1e-12, 1e-6, 0.1, 0.9, 1.5, 2, 10.0, 1e6]),
    st.sampled_from([0, 0.3, 0.75, 1]),
)
LONG_TEXTS = st.lists(WORDS, min_size=1, max_size=40).map(" ".join)


@pytest.mark.parametrize("backend", BACKENDS)
@given(data=st.data(), documents=CORPORA, query=TEXTS, k=st.integers(1, 30), filter=FILTERS, constants=CONSTANTS)
def test_a_filtered_search_is_that_of_an_index_of_the_passing_units(
    tmp_path_factory, backend, *, data, documents, query, k, filter, constants
):
    """Ids, ranks and scores under a filter are those of an index of only the units that pass, edits and files too."""
    k1, b = constants
    searcher = BM25Searcher.from_documents(documents, backend=backend, k1=k1, b=b)
    held = {document.id: document for document in documents}

    def check(searcher):
        passing = [document for document in held.values() if compile_filter(filter)(document.metadata)]
        alone = BM25Searcher.from_documents(passing, backend=backend, k1=k1, b=b)
        assert searcher.search(query, k, filter) == alone.search(query, k)
        ids = [document.id for document in passing]
        assert searcher.score(query, ids, filter) == alone.score(query, ids)

    check(searcher)
    new = Document(
        id=data.draw(st.sampled_from(["u00", "u99"])), page_content=data.draw(LONG_TEXTS), metadata=data.draw(HELD)
    )
    searcher.add([new])
    held[new.id] = new
    gone = data.draw(st.sets(st.sampled_from(sorted(held)), max_size=3))
    searcher.remove(gone)
    held = {unit_id: document for unit_id, document in held.items() if unit_id not in gone}
    check(searcher)
    folder = tmp_path_factory.mktemp("index")
    searcher.save(folder)
    opened = BM25Searcher.open(folder, backend=backend)
    check(opened)
    opened.close()


@pytest.mark.parametrize("k1", [1e-6, 0.9, 1.5, 100.0])
@pytest.mark.parametrize("b", [0.0, 0.75, 1.0])
def test_counts_are_read_back_from_scores_exactly(k1, b):
    """Term counts up to thousands, in units of very different lengths, come back from the stored scores unchanged."""
    sizes = [1, 2, 3, 7, 50, 999, 4000]
    documents = [Document(id=f"{n:02}", page_content="pump " * size + "fan " * n**3) for n, size in enumerate(sizes)]
    scorer = BM25Searcher.from_documents(documents, k1=k1, b=b)._index.scorer
    idf = math.log(1 + 0.5 / (len(sizes) + 0.5))
    assert scorer._counts(np.arange(len(sizes)), scorer.postings.data[: len(sizes)], idf).tolist() == sizes


def test_long_postings_are_computed_in_parts(monkeypatch):
    """Whatever number of postings is taken at a time, the answer is the same."""
    documents = [Document(id=f"{n:03}", page_content="pump " * (n % 7 + 1), metadata={"n": n % 3}) for n in range(100)]
    searcher = BM25Searcher.from_documents(documents)
    whole = searcher.search("pump", 100, {"n": {"$gt": 0}})
    for size in (1, 7, 99, 100):
        monkeypatch.setattr(_bm25_backends, "_PART", size)
        assert searcher.search("pump", 100, {"n": {"$gt": 0}}) == whole


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("constants", [{"k1": 0}, {"k1": 0, "b": 1}, {"b": 1}])
def test_a_norm_of_nothing_gives_no_warning_and_no_lost_unit(backend, constants):
    """With k1 = 0, or b = 1 and a unit without terms, units that lack a query's term keep what its others give."""
    documents = [*DOCUMENTS, Document(id="u0", page_content="?!", metadata={"kind": "note"})]
    searcher = BM25Searcher.from_documents(documents, backend=backend, **constants)
    assert {c.unit_id for c in searcher.search("red pump valve", 5)} == {"u1", "u2", "u3"}
    assert {c.unit_id for c in searcher.search("red pump valve", 5, {"kind": "note"})} == {"u2", "u3"}
    assert searcher.score("red fan", ["u0", "u2"]) == {"u0": 0.0, "u2": 0.0}


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


@pytest.mark.parametrize(
    "setting", [{"k1": -1.0}, {"k1": math.nan}, {"b": 1.5}, {"backend": "lucene"}, {"statistics": "all"}]
)
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
