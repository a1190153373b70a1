"""The parts of one chain, behind the layer that shows the case's faults and logs every call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from faults_cases import Fault
from faults_chain_cases import ChainCase
from faults_chain_kinds import (
    answer_shape,
    documents_shape,
    plan_shape,
    shape_answer,
    shape_documents,
    shape_plan,
    shape_sufficiency,
)
from faults_inventory import turned
from faults_kinds import Shape
from faults_world import World
from langchain_core.documents import Document

from bounded_retrieval.contracts.chain import Hop, Sufficiency
from bounded_retrieval.graph.chain import create_recursive_retrieval

HOP_ROWS = 3
"""Documents that an honest function returns."""


@dataclass
class ChainWorld(World):
    """A chain's case built, for one run only."""

    case: ChainCase

    def chain(self) -> Any:
        """The chain over this world, not compiled."""
        case = self.case
        is_bounded = case.over == "bounded"
        shelf = None if is_bounded or not case.apart else self.source("fetch", self._from_shelf)
        return create_recursive_retrieval(
            self.graph() if is_bounded else self._function(),
            self._part("plan", self._plan, _shape_plan),
            self._part("read", self._read, _shape_read),
            sufficiency=None if case.passes_at is None else self._part("sufficient", self._sufficient, _shape_test),
            limits=case.limits,
            rules=case.rules,
            on_stop=case.on_stop,
            units=shelf,
            diagnostics=self.reported.append,
            cancelled=self._cancelled,
            clock=self.clock,
        )

    def _part(self, port: str, honest: Callable[..., Shape], shape: Callable[..., Shape]) -> Callable[..., Any]:
        def shaped(asked: Any, fault: Fault, _answer: Any) -> Shape:
            return shape(self.case, asked, fault)

        return self.method(port, honest, shaped)

    def _plan(self, _question: str, trail: Sequence[Hop]) -> Shape:
        number = len(trail)
        query = self.case.queries[number] if number < len(self.case.queries) else None
        return plan_shape(query, self.case.tokens)

    def _read(self, _query: str, documents: Sequence[Document]) -> Shape:
        return answer_shape(documents[0].id or "", self.case.tokens, self.case.answers[self.counts["read"] % 8])

    def _sufficient(self, _question: str, _trail: Sequence[Hop]) -> Shape:
        passes = self.counts["sufficient"] == self.case.passes_at
        said = Sufficiency(sufficient=passes, tokens=self.case.tokens)
        return Shape(said if self.case.tokens else passes, (passes, self.case.tokens))

    def _function(self) -> Callable[..., Any]:
        def honest(query: str) -> Shape:
            if self.backends is not None:
                return documents_shape([row.unit for row in self.backends.lexical.search(query, HOP_ROWS)])
            units = turned([unit for unit, _ in self.case.orders[0]], query)
            return documents_shape([self.shelf[unit] for unit in units[:HOP_ROWS]])

        def shape(_asked: Any, fault: Fault, documents: Any) -> Shape:
            return shape_documents(fault.cell.kind, fault.variant, documents)

        return self.method("hop", honest, shape)


def _shape_plan(case: ChainCase, _asked: Any, fault: Fault) -> Shape:
    return shape_plan(fault.cell.kind, fault.variant, case.queries[0])


def _shape_read(_case: ChainCase, asked: Any, fault: Fault) -> Shape:
    return shape_answer(fault.cell.kind, fault.variant, asked[1])


def _shape_test(_case: ChainCase, _asked: Any, fault: Fault) -> Shape:
    return shape_sufficiency(fault.cell.kind, fault.variant)
