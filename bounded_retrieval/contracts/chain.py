"""The bounded recursive chain: its limits, what each hop left behind, and how it may end.

A chain that ran out is another type than one that resolved, so that the one cannot be taken for the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from langchain_core.documents import Document
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator

from bounded_retrieval.contracts.normalise import clean_text
from bounded_retrieval.contracts.packet import has_fields, named_keys, read_output
from bounded_retrieval.contracts.request import JUDGEMENT_FIELDS
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.errors import RequestError, quoted

MAX_HOPS = 8
"""Most hops of any chain. No parameter raises it."""

MAX_HOP_QUERY_CHARS = 2_000
"""Longest query that a planner may give, in characters; a longer one cannot be used."""

MAX_SUB_ANSWER_CHARS = 500
"""Longest sub-answer, in characters; a longer one is cut."""

MAX_OPEN_PARTS = 32
"""Most open parts that a planner may name; each is cut to 500 characters."""

CHARS_PER_TOKEN = 4
"""Characters counted as one token where a model states no usage: the declared estimate."""

CHAIN_KEYS = ("stop_reason", "resolved", "unresolved", "trail", "documents", "chain")
"""The keys of a chain graph's output."""

OnStop = Literal["partial", "clarify", "fail"]

RESOLVING = frozenset({StopReason.SUFFICIENT, StopReason.NO_NEXT_QUERY})
"""Stop reasons after which a chain may count as resolved, if nothing stayed open."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", revalidate_instances="always")


Count = Annotated[int, Field(ge=0, le=10**12)]
"""Tokens of one call, as a part states them."""

Total = Annotated[int, Field(ge=0, le=10**15)]
"""What many calls spent: more than the calls of a chain can add up to, however much each of them states."""


class ChainLimits(BaseModel):
    """Limits of one chain. Every limit is hard and checked before a hop starts.

    A builder's limits are a ceiling: a request may lower them, never raise them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, revalidate_instances="always")

    max_hops: Annotated[int, Field(ge=1, le=MAX_HOPS, description="hops, each one search")] = 3
    max_calls: Annotated[int, Field(ge=0, le=2 * MAX_HOPS, description="retrieval calls of all hops together")] = 16
    max_units: Annotated[int, Field(ge=0, le=50, description="distinct units in the documents")] = 8
    max_chars: Annotated[int, Field(ge=0, le=200_000, description="characters of the documents")] = 8_000
    max_tokens: Annotated[
        int | None, Field(ge=0, description="tokens of planner, reader and sufficiency test, as stated or estimated")
    ] = None
    deadline_ms: Annotated[int | None, Field(ge=0, le=600_000, description="running time in milliseconds")] = None


class ChainRequest(_Frozen):
    """What a caller may settle for one chain besides its query.

    Attributes:
        query_id: identity of the question; by default a stable hash of its text.
        limits: may only lower the builder's; fields left out are inherited.
    """

    query_id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    limits: ChainLimits | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_labels(cls, data: Any) -> Any:
        named = sorted(JUDGEMENT_FIELDS.intersection(map(str, data))) if isinstance(data, Mapping) else []
        if named:
            raise ValueError(f"{', '.join(named)} refused: labels never reach the decision")
        return data


class SubAnswer(_Frozen):
    """What a reader took from a hop's documents.

    Attributes:
        text: the answer; cut to 500 characters.
        unit_ids: the units that it came from, where the reader knows; none means any of the hop's.
        tokens: tokens of the model that read, 0 where none did.
    """

    text: Annotated[str, Field(min_length=1)]
    unit_ids: tuple[str, ...] = ()
    tokens: Count = 0

    @field_validator("text", mode="before")
    @classmethod
    def _clean(cls, text: Any) -> Any:
        return clean_text(text)[:MAX_SUB_ANSWER_CHARS] if isinstance(text, str) else text


class NextQuery(_Frozen):
    """What a planner wants looked up next.

    Attributes:
        query: the next query; none says that there is nothing more to look up.
        unresolved: parts of the question that stay open although there is no next query.
        tokens: tokens of the model that planned, 0 where none did.
    """

    query: str | None
    unresolved: tuple[str, ...] = ()
    tokens: Count = 0

    @field_validator("query")
    @classmethod
    def _clean_query(cls, query: str | None) -> str | None:
        return None if query is None else clean_text(query).strip()

    @field_validator("unresolved")
    @classmethod
    def _clean_parts(cls, parts: tuple[str, ...]) -> tuple[str, ...]:
        cleaned = (clean_text(part).strip()[:MAX_SUB_ANSWER_CHARS] for part in parts[:MAX_OPEN_PARTS])
        return tuple(part for part in cleaned if part)


class Sufficiency(_Frozen):
    """What a sufficiency test said of the trail so far.

    Attributes:
        sufficient: whether the declared test passed.
        tokens: tokens of the model that was asked, 0 where none was.
    """

    sufficient: bool
    tokens: Count = 0


class ChainUsage(_Frozen):
    """What hops have spent.

    Attributes:
        calls, dense_calls: retrieval calls, and those of them that went to the dense channel.
        rows, reads: candidate rows returned, and distinct units read.
        tokens: tokens of the models, as stated or estimated.
    """

    calls: Total = 0
    dense_calls: Total = 0
    rows: Total = 0
    reads: Total = 0
    tokens: Total = 0

    def plus(self, other: ChainUsage) -> ChainUsage:
        """The sum of both."""
        mine, theirs = self.model_dump(), other.model_dump()
        return ChainUsage(**{name: mine[name] + theirs[name] for name in mine})


class Check(_Frozen):
    """One rule that was checked after a hop.

    Attributes:
        rule: the stop reason that it gives.
        fired: whether it ended the chain.
        found: what it found, in words and counts.
    """

    rule: StopReason
    fired: bool
    found: str


class Hop(_Frozen):
    """One hop of the trail.

    Attributes:
        number: from 1.
        query: what was searched for.
        outcome: whether the search answered.
        sub_answer: what the reader took from the documents, or none.
        answer_unit_ids: the units that the sub-answer came from, where the reader says so.
        unit_ids: units found, best first; those that the last recheck dropped are left out.
        new_units: how many of the units found no earlier hop had found.
        search_stop_reason: why the hop's own search ended, where that was a bounded one.
        missing_terms: words of the query that no unit found holds, where the search says so.
        usage: what this hop spent.
        checks: the rules checked, in order.
    """

    number: Annotated[int, Field(ge=1, le=MAX_HOPS)]
    query: str
    outcome: Literal["answered", "failed"] = "answered"
    sub_answer: str | None = None
    answer_unit_ids: tuple[str, ...] = ()
    unit_ids: tuple[str, ...] = ()
    new_units: int = 0
    search_stop_reason: StopReason | None = None
    missing_terms: tuple[str, ...] = ()
    usage: ChainUsage = ChainUsage()
    checks: tuple[Check, ...] = ()


class ChainResult(_Frozen):
    """How a chain ended. `from_result` gives one of the two types below.

    Attributes:
        query, query_id: the question, and its identity.
        stop_reason: the rule that ended the chain, never more than that.
        resolved: whether the chain ended by itself and nothing stayed open. Nobody has said that the answer is right.
        unresolved: the parts of the question that stayed open, in the words of the queries.
        clarification: a question to the caller, under ``on_stop="clarify"``.
        trail: the hops in order.
        documents: the units found, by turns from each hop, within the limits.
        limits, usage: what the chain was allowed, and what all hops spent.
        notes: stable snake_case words on what else a reader should know.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    query: str
    query_id: str
    stop_reason: StopReason
    resolved: bool
    unresolved: tuple[str, ...]
    clarification: str | None = None
    trail: tuple[Hop, ...]
    documents: tuple[Document, ...]
    limits: ChainLimits
    usage: ChainUsage
    notes: tuple[str, ...] = ()

    @classmethod
    def from_result(cls, result: Mapping[str, Any] | ChainResult) -> ResolvedChain | UnresolvedChain:
        """Read the result out of a chain graph's output, or from the fields of the result itself.

        Raises:
            KeyError: the output lacks a field (for example because ``output_keys`` left it out).
            RequestError: it is neither, or what it holds is not valid.
        """
        if isinstance(result, (ResolvedChain, UnresolvedChain)):
            return result
        output = read_output(result)
        if "chain" not in output and has_fields(output, cls):
            return _read_result(dict(output))
        for key in CHAIN_KEYS:
            if key not in output:
                raise KeyError(f"{key}: not in the graph's output, which has {named_keys(output)}")
        facts = output["chain"]
        if not isinstance(facts, Mapping):
            raise RequestError(f"chain: expected a mapping (got {quoted(facts)})")
        return _read_result({**facts, **{key: output[key] for key in CHAIN_KEYS if key != "chain"}})

    def _repr_html_(self) -> str:
        from bounded_retrieval.contracts.html import chain_to_html

        return chain_to_html(self)


class ResolvedChain(ChainResult):
    """A chain that ended because nothing was left to look up, or because the sufficiency test said so."""

    resolved: Literal[True]
    unresolved: Annotated[tuple[str, ...], Field(max_length=0)] = ()

    @model_validator(mode="after")
    def _ended_by_itself(self) -> Self:
        if self.stop_reason not in RESOLVING:
            raise ValueError(f"a chain that ended by {self.stop_reason.value} is not resolved")
        return self


class UnresolvedChain(ChainResult):
    """A chain that a limit, a rule or a failure ended, or that left part of the question open."""

    resolved: Literal[False]
    unresolved: Annotated[tuple[str, ...], Field(min_length=1)]


_RESULT: TypeAdapter[ResolvedChain | UnresolvedChain] = TypeAdapter(
    Annotated[ResolvedChain | UnresolvedChain, Field(discriminator="resolved")]
)


def _read_result(fields: Mapping[str, Any]) -> ResolvedChain | UnresolvedChain:
    try:
        return _RESULT.validate_python(fields)
    except ValidationError as error:
        raise RequestError.from_validation(error, "chain") from None
