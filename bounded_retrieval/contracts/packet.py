"""The evidence packet: what a run found, why it ended and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from langchain_core.documents import Document
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bounded_retrieval.contracts.budget import Budget, Usage
from bounded_retrieval.contracts.candidate import Channel
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.errors import RequestError, quoted

SEPARATOR = "\n\n"
"""Stands between the items of ``EvidencePacket.text``; its characters count."""

METADATA_KEY = "bounded_retrieval"
"""The one metadata key under which packet facts travel with a LangChain document."""

Resolution = Literal["provisional", "unresolved"]

Model = TypeVar("Model", bound=BaseModel)


def read_output(result: object) -> Mapping[Any, Any]:
    """The mapping that a graph returned, with or without what ``invoke(version="v2")`` puts around it.

    Raises:
        RequestError: it is none.
    """
    output = result if isinstance(result, Mapping) else getattr(result, "value", result)
    if not isinstance(output, Mapping):
        raise RequestError(f"result: expected what a graph returned (got {quoted(result)})")
    return output


def has_fields(output: Mapping[Any, Any], model: type[BaseModel]) -> bool:
    """Whether it has every field that a model must be given."""
    return all(name in output for name, field in model.model_fields.items() if field.is_required())


def named_keys(output: Mapping[Any, Any]) -> str:
    """Its keys, as an error lists them."""
    return quoted(sorted(map(str, output)), limit=200)


def read_part(result: object, key: str, model: type[Model]) -> Model:
    """Read a model out of a graph's output, where it stands under a key, or from the model's own fields.

    Raises:
        KeyError: a mapping that has neither the key nor the fields.
        RequestError: no mapping, or what it holds is not valid.
    """
    output = read_output(result)
    if key not in output and not has_fields(output, model):
        raise KeyError(f"{key}: not in the graph's output, which has {named_keys(output)}")
    held = output.get(key, output)
    try:
        return held if isinstance(held, model) else model.model_validate(held)
    except ValidationError as error:
        raise RequestError.from_validation(error, key) from None


class ChannelResult(BaseModel):
    """Where one channel placed a unit.

    Attributes:
        rank: from 1, duplicates removed.
        score: raw, where the channel has one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: Annotated[int, Field(ge=1)]
    score: float | None


class EvidenceItem(BaseModel):
    """One whole unit that has passed the recheck.

    Attributes:
        unit_id: the unit's stable id.
        fingerprint: identity of the text: the first 32 hexadecimal digits of its SHA-256.
        title: empty where the unit has none.
        text: the whole text.
        metadata: the rest of the public metadata.
        channels: per channel that returned it, its rank and raw score there; none for the source of a path's hop.
        fused_score: what the items are ordered by; 0 for the units of a path, which stand in the path's order.
        contributions: what each channel added to it, whether or not it returned the unit itself.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    unit_id: str
    fingerprint: str
    title: str
    text: str
    metadata: dict[str, Any]
    channels: dict[Channel, ChannelResult]
    fused_score: float
    contributions: dict[Channel, float] = Field(default_factory=dict)


class PathStep(BaseModel):
    """One followed relationship.

    Attributes:
        subject, relation, object: entity ids, and the relation between them.
        source_unit: id of the unit that says so.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    subject: str
    relation: str
    object: str
    source_unit: str


class EvidencePacket(BaseModel):
    """What one run hands over. An empty packet is a valid packet.

    Attributes:
        query_id: identity of the request's query.
        items: at most ``limits.max_units`` whole units, best first.
        stop_reason: why the run ended, never more than that.
        resolution: ``provisional`` when a declared test passed, or a declared path was followed, on units that all
            survived the recheck, else ``unresolved``.
        path: the followed path; only for ``path_followed``.
        missing_terms: query terms and identifiers that no packed unit holds; on the structured route, the relations
            from the first one that was not followed.
        limits, usage: what the run was allowed and what it spent.
        notes: stable snake_case words on what else a reader should know.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    query_id: str
    items: tuple[EvidenceItem, ...]
    stop_reason: StopReason
    resolution: Resolution
    path: tuple[PathStep, ...] = ()
    missing_terms: tuple[str, ...]
    limits: Budget
    usage: Usage
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The items' texts joined by the declared separator; at most ``limits.max_chars`` characters."""
        return SEPARATOR.join(item.text for item in self.items)

    def to_documents(self) -> list[Document]:
        """The items as LangChain documents; packet facts stand under ``metadata["bounded_retrieval"]``."""
        return [self._to_document(position, item) for position, item in enumerate(self.items, 1)]

    @classmethod
    def from_result(cls, result: Mapping[str, Any] | EvidencePacket) -> EvidencePacket:
        """Read the packet out of a graph's output, or from its own fields (a tool's artifact, for example).

        Raises:
            KeyError: the output has no ``packet`` (for example because ``output_keys`` left it out).
            RequestError: it is neither, or the packet is not valid.
        """
        return result if isinstance(result, cls) else read_part(result, "packet", cls)

    def _repr_html_(self) -> str:
        from bounded_retrieval.contracts.html import packet_to_html

        return packet_to_html(self)

    def _to_document(self, position: int, item: EvidenceItem) -> Document:
        facts = {
            "query_id": self.query_id,
            "position": position,
            "fingerprint": item.fingerprint,
            "channels": {name: {"rank": result.rank, "score": result.score} for name, result in item.channels.items()},
            "fused_score": item.fused_score,
            "contributions": dict(item.contributions),
            "stop_reason": self.stop_reason.value,
            "resolution": self.resolution,
            "missing_terms": list(self.missing_terms),
            "notes": list(self.notes),
        }
        title = {"title": item.title} if item.title else {}
        return Document(
            id=item.unit_id, page_content=item.text, metadata={**title, **item.metadata, METADATA_KEY: facts}
        )
