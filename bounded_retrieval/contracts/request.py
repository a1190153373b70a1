"""What a caller asks: the query, and optionally policy, threshold and limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.normalise import clean_text, fingerprint

PolicyName = Literal["adaptive", "always_continue", "fixed_lexical", "fixed_dense"]

MAX_QUERY_CHARS = 20_000
"""Longest accepted query, in characters."""

JUDGEMENT_FIELDS = frozenset(
    {
        "answer",
        "answerable",
        "answers",
        "gold",
        "gold_ids",
        "ground_truth",
        "judgements",
        "judgments",
        "label",
        "labels",
        "qrels",
        "reference_answer",
        "relevance",
        "relevant",
        "relevant_ids",
        "supporting_facts",
        "target",
        "targets",
    }
)
"""Field names that carry judgements; they are refused by name wherever a request is read."""

Threshold = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, strict=True)]
FirstHopRows = Annotated[int, Field(ge=1, le=200, strict=True)]


class PathRequest(BaseModel):
    """A chain of declared relations to follow from a start entity."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: Annotated[str, Field(min_length=1)]
    relations: Annotated[tuple[str, ...], Field(min_length=1)]


class RetrievalRequest(BaseModel):
    """One retrieval request. Fields left out fall to the runtime context and then to the builder.

    Attributes:
        query: 1 to 20,000 characters, not blank. NUL and lone surrogates become U+FFFD.
        query_id: identity of the query; by default a stable hash of its text.
        policy: who decides after the first search.
        threshold: 0 to 1; none takes the assessor's own default.
        budget: limits that may only lower the builder's; fields left out are inherited.
        first_hop_rows: rows the lexical call asks for.
        path: a structured path; needs ``relationships`` on the builder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    query: Annotated[str, Field(strict=True)]
    query_id: Annotated[str, Field(min_length=1, max_length=200)] = ""
    policy: PolicyName | None = None
    threshold: Threshold | None = None
    budget: Budget | None = None
    first_hop_rows: FirstHopRows | None = None
    path: PathRequest | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_labels(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            named = sorted(JUDGEMENT_FIELDS.intersection(map(str, data)))
            if named:
                raise ValueError(f"{', '.join(named)} refused: labels never reach the decision")
        return data

    @field_validator("query_id", mode="before")
    @classmethod
    def _clean_identity(cls, query_id: Any) -> Any:
        return clean_text(query_id) if isinstance(query_id, str) else query_id

    @field_validator("query")
    @classmethod
    def _check_query(cls, query: str) -> str:
        if len(query) > MAX_QUERY_CHARS:
            raise ValueError(f"at most {MAX_QUERY_CHARS} characters (got {len(query)})")
        query = clean_text(query)
        if not query.strip():
            raise ValueError("must hold at least one character that is not blank (got a blank query)")
        return query

    @model_validator(mode="before")
    @classmethod
    def _default_identity(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("query_id") is None and isinstance(data.get("query"), str):
            return {**data, "query_id": query_identity(data["query"])}
        return data


def query_identity(query: str) -> str:
    """Stable id of a query text: ``q-`` and 16 hexadecimal digits of its SHA-256."""
    return f"q-{fingerprint(query)[:16]}"
