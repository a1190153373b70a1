"""What the builder, the runtime context and the request settle on for one run, and the runtime context's own model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.candidate import Channel
from bounded_retrieval.contracts.request import FirstHopRows, PathRequest, PolicyName, Threshold
from bounded_retrieval.errors import RequestError


class BoundedContext(BaseModel):
    """Runtime context of the graph: how a run should be decided. Fields left out fall to the builder's.

    Raises:
        RequestError: names the field that is unknown or out of bounds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: Annotated[
        PolicyName | None,
        Field(
            description=(
                "Who decides after the first search: adaptive (coverage against the threshold), always_continue "
                "(both searches), fixed_lexical or fixed_dense (one search)."
            )
        ),
    ] = None
    threshold: Annotated[
        Threshold | None,
        Field(description="What the assessor's figure must reach for the adaptive policy to stop, 0 to 1."),
    ] = None
    budget: Annotated[Budget | None, Field(description="Limits of the run; they may only lower the builder's.")] = None
    first_hop_rows: Annotated[
        FirstHopRows | None, Field(description="Rows the lexical call asks for; the dense call asks for the rest.")
    ] = None

    if not TYPE_CHECKING:  # type checkers go by the fields

        def __init__(self, /, **data: Any) -> None:
            # LangGraph makes the context of a run by this call, so nobody else could turn the error into one line.
            try:
                super().__init__(**data)
            except ValidationError as error:
                raise RequestError.from_validation(error, "context") from None

        # Without it ``model_validate`` would go through this ``__init__`` too, and name the context in its errors.
        __init__.__pydantic_base_init__ = True


class RunSettings(BaseModel):
    """The settings of one run, resolved once and kept in state, so that a resumed run uses the same.

    Attributes:
        query, query_id: the request's text, and its identity.
        policy: who decides after the first search.
        threshold: 0 to 1; what the assessor's figure is compared with.
        terms, identifiers: what of the query is looked for.
        channels: those that the graph has.
        limits: of this run.
        first_hop_rows: rows that the lexical call asks for.
        assessor, fusion, tokenizer: names of the parts.
        path: a path to follow instead of searching, where there is one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    query: str
    query_id: str
    policy: PolicyName
    threshold: Threshold
    terms: tuple[str, ...]
    identifiers: tuple[str, ...]
    channels: tuple[Channel, ...]
    limits: Budget
    first_hop_rows: int
    assessor: str
    fusion: str
    tokenizer: str
    path: PathRequest | None = None
