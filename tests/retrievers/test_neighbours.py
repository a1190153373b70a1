"""Which units are most like each, and how they support a lexical score."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from bounded_retrieval import BM25Searcher, ExactSearcher, build_index, create_bounded_retrieval, open_index
from bounded_retrieval.errors import ConfigurationError, StoreCorruptError
from bounded_retrieval.retrievers._bm25_index import SUPPORTED
from bounded_retrieval.retrievers._finding_neighbours import _Found, find_neighbours
from bounded_retrieval.retrievers._neighbours import LENT, NEIGHBOURS, NOBODY, SUPPORT, Neighbours
from bounded_retrieval.retrievers._vectors import unit_length
from bounded_retrieval.testing import ScriptedSearcher

TOPICS = {
    "a": ("The pump hums loudly at night.", (1, 0, 0)),
    "b": ("A noise comes from the water machine.", (0.8, 0.6, 0)),
    "c": ("The belt slips.", (0, 1, 0)),
    "d": ("Invoices are due in May.", (0, 0, 1)),
    "e": ("The machine hall has a gate.", (-1, 0, 0.1)),
}


class Told(Embeddings):
    """Gives every text the vector it is told, and counts the queries it embeds."""

    def __init__(self) -> None:
        self.queries = 0

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector for each text."""
        known = {text: list(map(float, vector)) for text, vector in TOPICS.values()}
        return [known[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:  # noqa: ARG002 - the same for every query
        """The vector of a pump."""
        self.queries += 1
        return [1.0, 0.0, 0.0]


def documents(**metadata: str) -> list[Document]:
    """All the texts."""
    return [Document(id=name, page_content=text, metadata=metadata) for name, (text, _) in TOPICS.items()]


def both() -> tuple[BM25Searcher, BM25Searcher]:
    """The same units without and with neighbours."""
    plain, linked = BM25Searcher.from_documents(documents()), BM25Searcher.from_documents(documents())
    linked.use_neighbours(ExactSearcher.from_documents(documents(), Told()))
    return plain, linked


def scores(searcher: BM25Searcher, query: str) -> dict[str, float | None]:
    """What a search gives, best first."""
    return {row.unit_id: row.score for row in searcher.search(query, 10)}


def test_units_that_are_not_there_have_no_score() -> None:
    """With neighbours as without: none of the ids, or no id at all, gives nothing."""
    for searcher in both():
        assert searcher.score("pump", ["nobody"]) == searcher.score("pump", []) == {}
        assert searcher.score("pump", ["nobody", "a"]).keys() == {"a"}


def test_how_many_are_asked_for_changes_nothing_in_which_come_first() -> None:
    """Of 300 units that hold the query's words in other amounts, the best k are the first k of the best of all."""
    draw = np.random.default_rng(5)
    texts = [" ".join(draw.choice(["pump", "valve", "belt", "gate"], size=draw.integers(3, 30))) for _ in range(300)]
    units = [Document(id=f"u{n:03}", page_content=f"{text} {n}") for n, text in enumerate(texts)]
    searcher = BM25Searcher.from_documents(units)
    vectors = random_vectors(300)
    searcher._index = searcher._index.beside(find_neighbours(vectors))
    for query in ("pump", "pump valve", "belt gate 17"):
        everything = searcher.search(query, 300)
        assert len(everything) > 2 * SUPPORTED
        assert [row.score for row in everything] == sorted((row.score or 0 for row in everything), reverse=True)
        for k in (1, 6, SUPPORTED - 1, SUPPORTED, SUPPORTED + 1, 150):
            assert searcher.search(query, k) == everything[:k]


def random_vectors(units: int, seed: int = 3) -> np.ndarray:
    """Vectors at length 1 around a few centres."""
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(max(1, units // 30), 16))
    return unit_length((centres[draw.integers(len(centres), size=units)] + draw.normal(size=(units, 16))).astype("f4"))


def brute_force(vectors: np.ndarray) -> list[list[int]]:
    """The same by double precision and a full sort."""
    cosines = np.round(vectors.astype(np.float64) @ vectors.astype(np.float64).T, 6)
    np.fill_diagonal(cosines, -2)
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :NEIGHBOURS]
    return [[int(row) for row in best if cosines[unit, row] > 0] for unit, best in enumerate(order)]


def listed(rows: np.ndarray) -> list[list[int]]:
    """Without the empty places."""
    return [[int(row) for row in near if row != NOBODY] for near in rows]


@pytest.mark.parametrize("units", [1, 2, 3, 5, 513, 1_500])
def test_they_are_the_nearest_of_all(units: int) -> None:
    """As a comparison of everything with everything in double precision finds them."""
    vectors = random_vectors(units)
    found = find_neighbours(vectors)
    assert listed(found.rows) == brute_force(vectors)
    assert (found.likeness[found.rows == NOBODY] == 0).all()
    assert (np.diff(found.likeness, axis=1) <= 0).all()
    assert ((found.likeness > 0) == (found.rows != NOBODY)).all()


def test_equal_ones_stand_by_row_and_none_is_its_own() -> None:
    """Of many copies of one text each has the first others; a zero vector has none and is nobody's."""
    vectors = np.zeros((9, 4), dtype=np.float32)
    vectors[:8, 1] = 1
    rows = find_neighbours(vectors).rows
    assert listed(rows[[0, 3, 7, 8]]) == [[1, 2, 3, 4], [0, 1, 2, 4], [0, 1, 2, 3], []]


@pytest.mark.parametrize("copies", [9, 40, 700])
def test_of_many_copies_of_one_text_the_first_count(copies: int) -> None:
    """However many there are, and wherever they stand among others."""
    vectors = random_vectors(1_500)
    where = np.sort(np.random.default_rng(5).choice(1_500, size=copies, replace=False))
    vectors[where] = vectors[where[0]]
    found = listed(find_neighbours(vectors).rows)
    for unit in where:
        assert found[unit] == [row for row in where[: NEIGHBOURS + 1] if row != unit][:NEIGHBOURS]


def test_above_a_limit_those_of_the_surroundings_are_compared() -> None:
    """Most are found, none is made up, and a second run finds the same."""
    vectors = random_vectors(6_000)
    rows = find_neighbours(vectors, compare_all=0).rows
    hits = sum(len(set(found) & set(best)) for found, best in zip(listed(rows), brute_force(vectors), strict=True))
    assert hits > 0.8 * rows.size
    assert all(unit not in near and len(set(near)) == len(near) for unit, near in enumerate(listed(rows)))
    assert (rows == find_neighbours(vectors, compare_all=0).rows).all()


def grown(before: np.ndarray, stay: np.ndarray, new_rows: np.ndarray, units: int, compare_all: int) -> Neighbours:
    """What is known of vectors of which some stay, each at another row."""
    moved = np.full(len(before), NOBODY, dtype=np.int64)
    moved[stay] = new_rows
    return find_neighbours(before, compare_all=compare_all).moved(moved, units)


@pytest.mark.parametrize("copies", [0, 9, 300])
def test_after_a_change_they_are_those_found_from_nothing(copies: int) -> None:
    """With units added, changed and removed, also where many are equal."""
    draw, after = np.random.default_rng(8), random_vectors(1_400)
    after[draw.choice(1_400, size=copies, replace=False)] = after[7]
    stay = np.sort(draw.choice(1_400, size=1_300, replace=False))
    before = np.concatenate([after[stay], random_vectors(60, seed=9), after[7:8]])
    known = grown(before, np.arange(1_300), stay, 1_400, 20_000)
    assert (known.rows == NOBODY).any(axis=1).sum() > 100, "some lost one"
    expected, found = find_neighbours(after), find_neighbours(after, known=known)
    assert (found.rows == expected.rows).all()
    assert (found.likeness == expected.likeness).all()
    assert (known.rows[np.setdiff1d(np.arange(1_400), stay)] == NOBODY).all(), "what was known is left as it was"


def test_above_the_limit_a_change_is_found_as_well() -> None:
    """As many of the true ones as without anything known: of the new units, and of the others' new ones."""
    vectors = random_vectors(6_000)
    stay = np.flatnonzero(np.arange(6_000) % 100)
    known = grown(vectors[stay], np.arange(len(stay)), stay, 6_000, 0)
    best = brute_force(vectors)

    def hits(found: Neighbours) -> tuple[int, int]:
        pairs = [(unit, other) for unit, near in enumerate(listed(found.rows)) for other in set(near) & set(best[unit])]
        return sum(unit % 100 == 0 for unit, _ in pairs), sum(unit % 100 > 0 == other % 100 for unit, other in pairs)

    after, anew = (
        hits(find_neighbours(vectors, compare_all=0, known=known)),
        hits(find_neighbours(vectors, compare_all=0)),
    )
    assert min(anew) > 150
    assert all(some > 0.95 * all_ for some, all_ in zip(after, anew, strict=True)), (after, anew)


def test_a_change_costs_what_it_concerns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units that keep their neighbours are compared with new ones only."""
    compared: list[int] = []
    compare = _Found._compare

    def counted(found: _Found, some: np.ndarray, others: np.ndarray) -> None:
        compared.append(len(some) * len(others))
        compare(found, some, others)

    monkeypatch.setattr(_Found, "_compare", counted)
    vectors = random_vectors(5_000)
    known = grown(vectors[:4_950], np.arange(4_950), np.arange(4_950), 5_000, 20_000)
    compared.clear()
    find_neighbours(vectors, known=known)
    assert sum(compared) == 50 * 5_000 + 4_950 * 50


def test_copies_of_one_text_do_not_make_one_group() -> None:
    """Ten thousand of them have neighbours that are copies."""
    vectors = np.zeros((10_000, 4), dtype=np.float32)
    vectors[:, 0] = 1
    found = find_neighbours(vectors, compare_all=0)
    assert (found.rows != NOBODY).all()
    assert (found.likeness == 1).all()


def expected(plain: BM25Searcher, query: str, unit_id: str, likeness: dict[str, float]) -> float:
    """The rule over scores of single words without neighbours."""
    words = [plain.score(word, list(TOPICS)) for word in query.split()]
    held = (
        word[unit_id] or LENT * max((like * word[near] for near, like in likeness.items()), default=0) for word in words
    )
    whole = (like * sum(word[near] for word in words) for near, like in likeness.items())
    return (1 - SUPPORT) * sum(held) + SUPPORT * max(whole, default=0)


def test_a_neighbour_lends_words_and_gives_a_fifth() -> None:
    """Of each word that a unit lacks .3 of what it adds to the neighbour's score, and then a fifth of that whole score."""
    query = "pump noise machine"
    plain, linked = both()
    found = scores(linked, query)
    assert scores(plain, query).keys() == found.keys() == {"a", "b", "e"}
    # The first nearest of a is b and the other way round; c is less like b, and e like nobody.
    assert found["a"] == pytest.approx(expected(plain, query, "a", {"b": 0.8}))
    assert found["b"] == pytest.approx(expected(plain, query, "b", {"a": 0.8, "c": 0.6}))
    assert found["e"] == pytest.approx(expected(plain, query, "e", {}))


def test_the_neighbour_that_has_most_counts() -> None:
    """Of two that hold a word the one with more to lend, whoever gives more of its whole score."""
    plain, linked = both()
    query = "belt hums pump"
    found = linked.score(query, ["b"])["b"]
    assert found == pytest.approx(expected(plain, query, "b", {"a": 0.8, "c": 0.6}))
    only_a, only_c = (expected(plain, query, "b", near) for near in ({"a": 0.8}, {"c": 0.6}))
    assert found > max(only_a, only_c)


def test_a_unit_that_holds_less_can_pass_one_that_resembles_nothing() -> None:
    """Two units hold the word; the one beside the unit that says more comes first."""
    plain, linked = both()
    assert list(scores(plain, "machine loudly hums")) == ["a", "e", "b"]
    assert list(scores(linked, "machine loudly hums")) == ["a", "b", "e"]


def test_scores_of_given_units_are_those_of_the_search() -> None:
    """Also of units that hold no word of the query; none exceeds what is attainable."""
    _, linked = both()
    for query in ("pump noise machine", "belt", "hums", "nothing of it"):
        given = linked.score(query, [*TOPICS, "unknown"])
        assert given.keys() == TOPICS.keys()
        assert scores(linked, query).items() <= given.items()
        assert max(given.values()) <= linked.weigh(query, []).attainable
    assert linked.score("hums", ["b", "d"]) == {
        "b": pytest.approx(((1 - SUPPORT) * LENT + SUPPORT) * 0.8 * scores(both()[0], "hums")["a"]),
        "d": 0,
    }


@pytest.mark.parametrize("backend", ["bm25s", "rank_bm25"])
def test_both_backends_give_the_same(tmp_path: Path, backend: str) -> None:
    """Neighbours are saved and opened with the index."""
    _, linked = both()
    linked.save(tmp_path)
    opened = BM25Searcher.open(tmp_path, backend=backend)
    for query in ("pump noise machine", "belt gate"):
        assert opened.search(query, 5) == linked.search(query, 5)
        assert opened.score(query, list(TOPICS)) == linked.score(query, list(TOPICS))


def test_under_a_filter_they_play_no_part() -> None:
    """The answer then is that of an index of the units that pass, which would have other neighbours."""
    plain = BM25Searcher.from_documents(documents(tenant="one"))
    linked = BM25Searcher.from_documents(documents(tenant="one"))
    linked.use_neighbours(ExactSearcher.from_documents(documents(), Told()))
    for narrow in ({"tenant": "one"}, {"tenant": "two"}):
        assert linked.search("pump noise", 5, narrow) == plain.search("pump noise", 5, narrow)
        assert linked.score("pump noise", list(TOPICS), narrow) == plain.score("pump noise", list(TOPICS), narrow)


def test_edits_leave_the_others_their_neighbours() -> None:
    """A unit that is gone, new or has another text supports nobody and is supported by nobody."""
    plain, linked = both()
    edit = [Document(id="aa", page_content="Another pump."), Document(id="c", page_content="The machine slips.")]
    for searcher in (plain, linked):
        searcher.add(edit)
        searcher.remove(["d"])
    own, found = scores(plain, "pump noise machine"), scores(linked, "pump noise machine")
    assert found["b"] == pytest.approx(expected(plain, "pump noise machine", "b", {"a": 0.8}))
    assert [found[name] / own[name] for name in ("aa", "c", "e")] == pytest.approx([1 - SUPPORT] * 3)
    linked.remove(["a"])
    plain.remove(["a"])
    assert scores(linked, "noise")["b"] == pytest.approx((1 - SUPPORT) * scores(plain, "noise")["b"])


def test_vectors_of_other_units_are_refused() -> None:
    """The message says of how many units they should be."""
    linked = BM25Searcher.from_documents(documents())
    with pytest.raises(ConfigurationError, match=r"dense: expected the same 5 units \(got ExactSearcher\(4 units"):
        linked.use_neighbours(ExactSearcher.from_documents(documents()[1:], Told()))


def test_what_has_no_vectors_to_compare_is_refused() -> None:
    """A store that gives none, the searcher itself, and None are named; ranking stays as it was."""
    plain, lexical = both()[0], BM25Searcher.from_documents(documents())
    for wrong in (lexical, None, ScriptedSearcher(documents(), "dense")):
        with pytest.raises(
            ConfigurationError, match=rf"^dense: expected an ExactSearcher \(got {type(wrong).__name__}\)$"
        ):
            lexical.use_neighbours(wrong)
    assert lexical.search("pump noise machine", 5) == plain.search("pump noise machine", 5)


def test_a_lexical_stop_embeds_nothing_and_reads_no_vector(tmp_path: Path) -> None:
    """The index ranks with neighbours when its vectors are gone."""
    embedding = Told()
    build_index(documents(), tmp_path, embedding=embedding)
    with open_index(tmp_path, embedding=embedding) as index:
        (folder,) = tmp_path.glob("generations/*/dense")
        shutil.rmtree(folder)
        graph = create_bounded_retrieval(index.lexical, index.dense, policy="fixed_lexical").compile()
        packet = graph.invoke({"query": "machine loudly hums"})["packet"]
    assert [item["unit_id"] for item in packet["items"]] == ["a", "b", "e"]
    assert (embedding.queries, packet["usage"]["dense_calls"]) == (0, 0)


def rewritten(root: Path, name: str, values: Sequence[object]) -> None:
    """Overwrite the last values of an array of the index, whose header stays."""
    (path,) = root.glob(f"generations/*/lexical/{name}")
    held = np.load(path)
    held[-1, : len(values)] = values
    with path.open("wb") as file:
        np.save(file, held)


@pytest.mark.parametrize(
    ("name", "values"),
    [("neighbours.npy", [5]), ("neighbours.npy", [-2]), ("likeness.npy", [float("nan")]), ("likeness.npy", [1.5])],
)
def test_values_that_cannot_be_are_named_when_they_are_read(tmp_path: Path, name: str, values: list[object]) -> None:
    """A damaged file ends a search in an error that names it, and never in a wrong score."""
    build_index(documents(), tmp_path, embedding=Told())
    rewritten(tmp_path, name, values)
    with open_index(tmp_path, embedding=Told()) as index:
        for use in (lambda: index.lexical.search("machine gate", 5), lambda: index.lexical.score("gate", ["e"])):
            with pytest.raises(StoreCorruptError, match=name):
                use()
