"""Cut a collection's queries into slices before any result is seen.

What is chosen on one slice is tested on another, so no query may stand in both, nor nearly the same query: those are
kept together. Which query goes where depends on ids, texts and the seed, never on their order or on results.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType

from bounded_retrieval.errors import RequestError
from bounded_retrieval.policies.tokenize import tokenize

DEFAULT_FRACTIONS: Mapping[str, float] = MappingProxyType({"selection": 0.5, "certification": 0.5})
"""Share of the queries by slice."""

NEAR_DUPLICATE = 0.8
"""Jaccard similarity of two queries' sets of terms from which they count as one."""

_ROUNDING = 1e-9


def split_slices(
    queries: Sequence[tuple[str, str]],
    *,
    fractions: Mapping[str, float] = DEFAULT_FRACTIONS,
    seed: int = 0,
    near_duplicate: float = NEAR_DUPLICATE,
) -> dict[str, tuple[str, ...]]:
    """Divide queries among named slices, near-duplicates together; each slice's ids sorted.

    Groups of near-duplicates are placed first, the largest first, each into the slice that is emptiest for its share.
    The other queries, in the order of a seeded hash, then fill the slices up to their shares of the whole (largest
    remainders). Only where groups alone go beyond a share are the sizes not exact.

    Args:
        queries: id and text of each.
        fractions: share of each slice, above 0, together 1.
        seed: another seed gives other slices.
        near_duplicate: see `near_duplicate_groups`.

    Raises:
        RequestError: an id is given twice, the fractions are no shares of a whole, or a slice would be empty.
    """
    slices = divide(queries, fractions=fractions, seed=seed, near_duplicate=near_duplicate)
    for name, ids in slices.items():
        if not ids:
            raise RequestError(f"fractions.{name}: no query for it (got {fractions[name]:g} of {len(queries)} queries)")
    return slices


def divide(
    queries: Sequence[tuple[str, str]],
    *,
    fractions: Mapping[str, float],
    seed: int,
    near_duplicate: float = NEAR_DUPLICATE,
) -> dict[str, tuple[str, ...]]:
    """`split_slices`, where a slice may come out empty.

    Raises:
        RequestError: an id is given twice, or the fractions are no shares of a whole.
    """
    _check_fractions(fractions)
    groups = near_duplicate_groups(queries, near_duplicate=near_duplicate)
    slices: dict[str, list[str]] = {name: [] for name in fractions}
    for group in sorted(groups, key=lambda ids: (-len(ids), _hashed(ids[0], seed))):
        emptiest = min(fractions, key=lambda name: len(slices[name]) / fractions[name])
        slices[emptiest].extend(group)
    grouped = set(chain.from_iterable(groups))
    singles = sorted((query_id for query_id, _ in queries if query_id not in grouped), key=lambda i: _hashed(i, seed))
    waiting = iter(singles)
    for name, room in _rooms({name: len(ids) for name, ids in slices.items()}, len(singles), fractions).items():
        slices[name].extend(next(waiting) for _ in range(room))
    return {name: tuple(sorted(ids)) for name, ids in slices.items()}


def near_duplicate_groups(
    queries: Sequence[tuple[str, str]], *, near_duplicate: float = NEAR_DUPLICATE
) -> tuple[tuple[str, ...], ...]:
    """Groups of more than one query that are near-duplicates, each sorted, in the order of their first ids.

    Two queries are near-duplicates if the Jaccard similarity of their sets of terms (`policies.tokenize.tokenize`) is
    at least ``near_duplicate``, and so are, transitively, all that are linked by such pairs. Queries without any term
    are near-duplicates of each other.

    Candidate pairs come from an inverted index over the rarest terms of each query (prefix filtering: Chaudhuri,
    Ganti and Kaushik, *A Primitive Operator for Similarity Joins in Data Cleaning*, ICDE 2006), which misses no pair.

    Raises:
        RequestError: an id is given twice, or ``near_duplicate`` is not above 0 and at most 1.
    """
    if not 0 < near_duplicate <= 1:
        raise RequestError(f"near_duplicate: above 0 and at most 1 (got {near_duplicate})")
    _check_ids([query_id for query_id, _ in queries])
    ids_by_terms: dict[frozenset[str], list[str]] = defaultdict(list)
    for query_id, text in queries:
        ids_by_terms[frozenset(tokenize(text))].append(query_id)
    distinct = sorted(ids_by_terms, key=len)
    parents = list(range(len(distinct)))
    for one, other in _similar_pairs(distinct, near_duplicate, parents):
        parents[_root(parents, one)] = _root(parents, other)
    groups: dict[int, list[str]] = defaultdict(list)
    for place, terms in enumerate(distinct):
        groups[_root(parents, place)].extend(ids_by_terms[terms])
    return tuple(sorted(tuple(sorted(ids)) for ids in groups.values() if len(ids) > 1))


def slice_fingerprint(ids: Iterable[str]) -> str:
    """SHA-256 of a slice's ids, in hexadecimal, whatever their order."""
    return hashlib.sha256(json.dumps(sorted(ids)).encode()).hexdigest()


def _similar_pairs(distinct: Sequence[frozenset[str]], least: float, parents: list[int]) -> Iterator[tuple[int, int]]:
    """Pairs of places with similar sets; pairs whose groups have been joined by then are passed over.

    Sets come smallest first, and each is looked up among those before it. A set of n terms can only be similar to one
    of at least ``least * n``, with which it has as many in common, so one of its ``n - ceil(least * n) + 1`` rarest
    terms is shared. Of the smaller set even fewer need be posted: the two have ``2 * least / (1 + least)`` of the
    smaller's terms in common (Xiao and others, *Efficient Similarity Joins for Near-Duplicate Detection*, 2011).
    """
    counts = Counter(chain.from_iterable(distinct))
    sizes = [len(terms) for terms in distinct]
    postings: dict[str, list[int]] = defaultdict(list)
    for place, terms in enumerate(distinct):
        rarest = sorted(terms, key=lambda term: (counts[term], term))
        first = bisect_left(sizes, _fewest(least, len(terms)))
        for term in rarest[: len(terms) - _fewest(least, len(terms)) + 1]:
            posted = postings[term]
            for at in range(bisect_left(posted, first), len(posted)):
                other = posted[at]
                if _root(parents, other) != _root(parents, place) and _jaccard(terms, distinct[other]) >= least:
                    yield place, other
        for term in rarest[: len(terms) - _fewest(2 * least / (1 + least), len(terms)) + 1]:
            postings[term].append(place)


def _fewest(share: float, terms: int) -> int:
    return math.ceil(share * terms - _ROUNDING)


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    common = len(one & other)
    return common / (len(one) + len(other) - common)


def _root(parents: list[int], place: int) -> int:
    while parents[place] != place:
        parents[place] = parents[parents[place]]  # shortens the way for the next
        place = parents[place]
    return place


def _rooms(placed: Mapping[str, int], singles: int, fractions: Mapping[str, float]) -> dict[str, int]:
    """How many single queries each slice takes: together all of them."""
    quotas = _quotas(sum(placed.values()) + singles, fractions)
    rooms = {name: max(0, quotas[name] - placed[name]) for name in fractions}
    for _ in range(sum(rooms.values()) - singles):  # groups went beyond a share; the others give way
        fullest = max(
            (name for name in rooms if rooms[name]), key=lambda name: (placed[name] + rooms[name]) / fractions[name]
        )
        rooms[fullest] -= 1
    return rooms


def _quotas(queries: int, fractions: Mapping[str, float]) -> dict[str, int]:
    quotas = {name: math.floor(queries * share + _ROUNDING) for name, share in fractions.items()}
    by_remainder = sorted(fractions, key=lambda name: quotas[name] - queries * fractions[name])
    for name in by_remainder[: queries - sum(quotas.values())]:
        quotas[name] += 1
    return quotas


def _hashed(query_id: str, seed: int) -> tuple[bytes, str]:
    return hashlib.sha256(json.dumps([seed, query_id]).encode()).digest(), query_id


def _check_fractions(fractions: Mapping[str, float]) -> None:
    if not fractions:
        raise RequestError("fractions: at least one slice (got none)")
    for name, share in fractions.items():
        if not 0 < share <= 1:
            raise RequestError(f"fractions.{name}: above 0 and at most 1 (got {share})")
    if abs(math.fsum(fractions.values()) - 1) > _ROUNDING:
        raise RequestError(f"fractions: together 1 (got {math.fsum(fractions.values()):g})")


def _check_ids(ids: Collection[str]) -> None:
    twice = [query_id for query_id, count in Counter(ids).items() if count > 1]
    if twice:
        raise RequestError(f"queries: ids must be unique (got {min(twice)!r} twice)")
