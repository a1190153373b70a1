"""What searchers return (`Candidate`) and what the controller reads (`Unit`)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Literal

from langchain_core.documents import Document
from pydantic import BaseModel, ConfigDict, Field, field_validator

from bounded_retrieval.contracts.normalise import clean_metadata, clean_text, content_id, fingerprint
from bounded_retrieval.contracts.unchecked import replaced, unchecked

Channel = Literal["lexical", "dense"]


class Candidate(BaseModel):
    """One row that a searcher returned. It is unverified until the recheck.

    Attributes:
        unit_id: the unit's stable id.
        channel: which channel returned it.
        rank: position in that channel's answer, from 1.
        score: the channel's raw score (finite), or none where it has none; a non-finite one becomes none.
        unit: the unit itself, where the searcher already holds it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    unit_id: Annotated[str, Field(min_length=1)]
    channel: Channel
    rank: Annotated[int, Field(ge=1)]
    score: float | None = None
    unit: Document | None = None

    @field_validator("unit_id", mode="before")
    @classmethod
    def _clean_id(cls, unit_id: Any) -> Any:
        return clean_text(unit_id) if isinstance(unit_id, str) else unit_id

    @field_validator("score", mode="before")
    @classmethod
    def _finite_or_none(cls, score: Any) -> float | None:
        if score is None:
            return None
        number = float(score)
        return number if math.isfinite(number) else None


def row_in_state(row: Candidate) -> dict[str, Any]:
    """A row as state holds it: all but the unit, which state holds elsewhere."""
    return {"unit_id": row.unit_id, "channel": row.channel, "rank": row.rank, "score": row.score}


def row_from_state(held: Mapping[str, Any]) -> Candidate:
    """The row again: checked when it came in, and not once more."""
    return unchecked(
        Candidate,
        unit_id=held["unit_id"],
        channel=held["channel"],
        rank=held["rank"],
        score=held["score"],
        unit=None,
    )


def leave_out(rows: Iterable[Candidate], unit_ids: Iterable[str], most: int) -> list[Candidate]:
    """The first rows that are none of these units, at most so many, ranked among themselves."""
    left_out = frozenset(unit_ids)
    kept = [row for row in rows if row.unit_id not in left_out][:most]
    return [replaced(row, rank=rank) for rank, row in enumerate(kept, 1)]


class Unit(BaseModel):
    """A unit of text as the controller holds it: JSON-native, cleaned, with the fingerprint of its text.

    Attributes:
        unit_id: the unit's stable id.
        fingerprint: identity of the text: the first 32 hexadecimal digits of its SHA-256.
        title: the document's ``title`` metadata, empty where it has none.
        text: the whole text.
        metadata: the rest of the public metadata, without the title.
        metadata_converted: whether some value had no JSON-native form and became a string.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    unit_id: str
    fingerprint: str
    title: str
    text: str
    metadata: dict[str, Any]
    metadata_converted: bool = False

    @classmethod
    def recalled(cls, held: Mapping[str, Any]) -> Unit:
        """A unit as state holds it (see `to_state`): checked when it was read, and not once more."""
        return unchecked(
            cls,
            unit_id=held["unit_id"],
            fingerprint=held["fingerprint"],
            title=held["title"],
            text=held["text"],
            metadata=held["metadata"],
            metadata_converted=held["metadata_converted"],
        )

    def to_state(self) -> dict[str, Any]:
        """Every field; the metadata are the unit's own and not to be changed."""
        return dict(self.__dict__)

    @classmethod
    def from_document(cls, document: Document, unit_id: str | None = None, private: Collection[str] = ()) -> Unit:
        """Copy a LangChain document; without any id the unit takes a stable one from its text.

        Metadata fields named in ``private``, the title among them, are left out.
        """
        text = clean_text(document.page_content)
        public = document.metadata
        if private:
            public = {name: value for name, value in public.items() if clean_text(str(name)) not in private}
        metadata, converted = clean_metadata(public)
        title = metadata.pop("title", None)
        return unchecked(
            cls,
            unit_id=clean_text(str(unit_id or document.id or content_id(text))),
            fingerprint=fingerprint(text),
            title="" if title is None else str(title),
            text=text,
            metadata=metadata,
            metadata_converted=converted,
        )

    def without(self, fields: Collection[str]) -> Unit:
        """The unit without these metadata fields, the title among them."""
        if not fields:
            return self
        kept = {name: value for name, value in self.metadata.items() if name not in fields}
        title = "" if "title" in fields else self.title
        return replaced(self, metadata=kept, title=title)

    def to_document(self) -> Document:
        """The unit as a LangChain document, its title back in the metadata."""
        metadata = {"title": self.title, **self.metadata} if self.title else dict(self.metadata)
        return Document(id=self.unit_id, page_content=self.text, metadata=metadata)


def read_unit(document: Any, unit_id: str, private: Collection[str] = ()) -> Unit | None:
    """The unit that a foreign object holds; none where it is no document, its text is blank, or it cannot be read."""
    if not isinstance(document, Document):
        return None
    try:
        unit = Unit.from_document(document, unit_id, private)
    except Exception:  # noqa: BLE001 - a document made without checks may raise whatever its fields raise
        return None
    return unit if unit.text.strip() else None


def searchable_text(title: str, text: str) -> str:
    """What both channels index and what coverage is measured on: the title, a line break, the text."""
    return f"{title}\n{text}" if title else text
