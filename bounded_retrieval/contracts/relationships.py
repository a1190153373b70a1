"""Declared relationships between entities, the names that entities go by, and who gives them.

Nothing here is extracted from text: somebody declared it and named the unit that says so.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Awaitable, Sequence
from typing import Annotated, Any, Protocol, runtime_checkable

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from bounded_retrieval.contracts.normalise import DASHES, clean_text

MAX_NAME_CHARS = 500
"""Most characters of an id, a name or a relation."""

_RELATION_GAPS = re.compile(r"[\s_-]+")


def fold_name(name: str) -> str:
    """What two spellings of a name share: NFKC, case folded, joining dashes as ``-``, white space as one space."""
    folded = name.casefold()
    if not name.isascii():
        # Folding case can undo the normal form, so it is made once more.
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
        folded = DASHES.sub("-", folded)
    return " ".join(folded.split())


def fold_relation(relation: str) -> str:
    """`fold_name`, with ``_`` and ``-`` as whitespace: ``maintained by`` is ``Maintained_By``."""
    return _RELATION_GAPS.sub(" ", fold_name(relation)).strip()


def _clean(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if not value.strip():
        raise ValueError("must not be empty or blank")
    return clean_text(value)


Name = Annotated[str, BeforeValidator(_clean), Field(min_length=1, max_length=MAX_NAME_CHARS)]
"""An id, a name or a relation: cleaned, 1 to 500 characters, not all of them whitespace."""


class EntityName(BaseModel):
    """A name that an entity goes by.

    Attributes:
        entity_id: the entity.
        name: the name.
        source_unit: id of the unit that says so.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    entity_id: Name
    name: Name
    source_unit: Name


class Relationship(BaseModel):
    """The unit ``source_unit`` says that ``subject`` stands in ``relation`` to ``object``.

    Attributes:
        subject, object: entity ids.
        relation: name of the relation.
        source_unit: id of the unit that says so.
        source_fingerprint: `fingerprint` of the source unit's text when this was declared. Where it is given and the
            current text has another one, the relationship is stale.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    subject: Name
    relation: Name
    object: Name
    source_unit: Name
    source_fingerprint: Name | None = None


@runtime_checkable
class RelationshipSource(Protocol):
    """Gives declared names and relationships, and never any other. Any method may be ``async def`` instead.

    Every answer comes in one order (by ids) and without repeats.
    """

    def entities_named(self, name: str) -> Sequence[EntityName] | Awaitable[Sequence[EntityName]]:
        """Return each declared name that equals ``name`` after `fold_name`.

        An entity also goes by its own id: then there is one entry for each source unit that mentions the id, in a
        name or as subject or object of a relationship.
        """
        ...

    def relationships_of(
        self, subject: str, relation: str
    ) -> Sequence[Relationship] | Awaitable[Sequence[Relationship]]:
        """Return the relationships of exactly this subject whose relation equals ``relation`` after `fold_relation`."""
        ...
