"""What a caller asks: the query, and optionally policy, threshold and limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.normalise import clean_text, fingerprint
from bounded_retrieval.contracts.relationships import Name
from bounded_retrieval.errors import RequestError

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

IDENTITY_FIELDS = frozenset(
    {
        "allowed",
        "allowed_ids",
        "eligibility",
        "filter",
        "groups",
        "search_filter",
        "tenant",
        "user",
        "user_id",
        "view",
        "view_id",
        "view_version",
    }
)
"""Field names that say who asks or what may be seen; they are refused by name wherever a request is read."""

_REFUSED = {
    JUDGEMENT_FIELDS: "labels never reach the decision",
    IDENTITY_FIELDS: "who may see what is settled by the application's resolver, never by a request",
}

MAX_PATH_HOPS = 200
"""Most relations in a path: the hard ceiling of ``max_reads``, since each hop reads its source unit."""

Threshold = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, strict=True)]
FirstHopRows = Annotated[int, Field(ge=1, le=200, strict=True)]


PATH_SEPARATOR = ">"
"""Stands between the start and the relations of a path written as text."""

MAX_SHOWN_CHARS = 80
"""Most characters of a faulty path that its error repeats."""


class PathRequest(BaseModel):
    """A chain of declared relations to follow from a start entity.

    Attributes:
        start: name or id of the entity to start from, 1 to 500 characters.
        relations: names of the relations to follow, in order, 1 to 200 of 1 to 500 characters.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: Name
    relations: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MAX_PATH_HOPS)]

    @classmethod
    def parse(cls, text: str) -> PathRequest:
        """Read ``START > relation > relation``.

        Raises:
            RequestError: the text is not such a path; names what is wrong with it.
        """
        start, *relations = (part.strip() for part in text.split(PATH_SEPARATOR))
        if not start or not relations or not all(relations) or "->" in text:
            shown = text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."
            raise RequestError(f"path: expected START > relation, and more relations after further > (got {shown!r})")
        try:
            return cls(start=start, relations=tuple(relations))
        except ValidationError as error:
            raise RequestError.from_validation(error, "path") from None

    def __str__(self) -> str:
        return f" {PATH_SEPARATOR} ".join((self.start, *self.relations))


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
    def _refuse_by_name(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            for fields, reason in _REFUSED.items():
                named = sorted(fields.intersection(map(str, data)))
                if named:
                    raise ValueError(f"{', '.join(named)} refused: {reason}")
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
