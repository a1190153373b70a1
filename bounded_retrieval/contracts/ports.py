"""Ports: what the controller asks of searchers, unit sources and assessors.

Any method may be ``async def`` instead; under ``invoke`` an object that is async only gives an `AsyncOnlyError` (where
a run can do without the call, as with ``score`` and ``weigh``, it does without).
Adapters hold no per-request state. Optional methods are separate protocols, looked for by name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from langchain_core.documents import Document

from bounded_retrieval.contracts.assessment import AssessmentInput, CoverageAssessment, QueryWeights
from bounded_retrieval.contracts.candidate import Candidate
from bounded_retrieval.contracts.filters import Filter


@runtime_checkable
class Searcher(Protocol):
    """Finds units for a query.

    Optional besides: ``asearch`` (same arguments, awaited); ``pushes_down(filter) -> bool``, which says whether the
    backend itself applies all of a filter. A searcher that has it is relied on to honour filters, that is, to return
    the best ``k`` of the units that pass, whatever its backend can do; any other one is asked for more rows, so that
    those of units that the caller may not see can be taken out.
    """

    def search(
        self, query: str, k: int, filter: Filter | None = None
    ) -> Sequence[Candidate] | Awaitable[Sequence[Candidate]]:
        """Return at most ``k`` candidates, best first, of units whose metadata passes ``filter``."""
        ...


LexicalSearcher = Searcher
"""A searcher by words.

Optional besides: ``tokenizer``, the one its index was built with; ``stem``, how it folds a term's forms;
``weigh(query, words, filter=None) -> QueryWeights``, which says how rare the query's words are (see
`WeighingSearcher`).
"""

DenseSearcher = Searcher
"""A searcher by vectors; its scores are similarities of at most 1 where the default fusion adds them up."""


@runtime_checkable
class UnitSource(Protocol):
    """Gives the current text of units; where the recheck reads. A searcher may be one itself.

    Optional besides, on a searcher: ``vouches_for(unit_id)``, false for a unit that it returned but cannot fetch.
    """

    def fetch(self, unit_ids: Sequence[str]) -> Mapping[str, Document] | Awaitable[Mapping[str, Document]]:
        """Return the units that exist now, by id; an id that does not exist is left out."""
        ...


@runtime_checkable
class ScoringSearcher(Protocol):
    """A searcher that can score units already observed; it returns no rows."""

    def score(
        self, query: str, unit_ids: Sequence[str], filter: Filter | None = None
    ) -> Mapping[str, float] | Awaitable[Mapping[str, float]]:
        """Return the channel's score of each given unit that it holds: what a search under ``filter`` gives it.

        ``filter`` is passed only where the caller's view has one.
        """
        ...


@runtime_checkable
class ExcludingSearcher(Protocol):
    """A searcher that can leave units out that an earlier search returned, so that its rows bring new ones."""

    def search_excluding(
        self, query: str, k: int, unit_ids: Sequence[str], filter: Filter | None = None
    ) -> Sequence[Candidate] | Awaitable[Sequence[Candidate]]:
        """Return at most ``k`` candidates that are none of these units, best first, of those that pass ``filter``."""
        ...


@runtime_checkable
class WeighingSearcher(Protocol):
    """A lexical searcher that can say how rare the words of a query are; it returns no rows."""

    def weigh(
        self, query: str, words: Sequence[str], filter: Filter | None = None
    ) -> QueryWeights | Awaitable[QueryWeights]:
        """Weigh these words of the query among the units that pass ``filter``."""
        ...


@runtime_checkable
class Assessor(Protocol):
    """Infers from facts about the returned units whether the run may stop. It never sees a judgement.

    Optional besides: ``is_pure = True``, which declares that ``assess`` does no I/O and may run on the event loop;
    ``needs_weights = True``, which asks for ``given.weights``.
    """

    @property
    def name(self) -> str:
        """Stands in the trace."""
        ...

    @property
    def default_threshold(self) -> float:
        """What coverage is compared with unless a builder, context or request says otherwise; 0 to 1."""
        ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """Everything the assessor was set to; stands in the trace."""
        ...

    def assess(self, given: AssessmentInput) -> CoverageAssessment | Awaitable[CoverageAssessment]:
        """Compare the observations with ``given.threshold``."""
        ...


Tokenizer = Callable[[str], list[str]]
"""Turns text into terms; the lexical index and the coverage assessment use the same one."""

Stem = Callable[[list[str]], list[str]]
"""Gives each term the form under which a lexical index holds it, so that ``pumps`` is found by ``pump``."""

DiagnosticSink = Callable[[dict[str, Any]], None]
"""Receives protected records (raw errors, ids dropped at the recheck) from nowhere but the controller."""
