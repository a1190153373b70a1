from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from bounded_retrieval.contracts.budget import Usage
from bounded_retrieval.contracts.candidate import Candidate, Unit, row_from_state, row_in_state
from bounded_retrieval.contracts.trace import Reference, SearchAttempted
from bounded_retrieval.contracts.unchecked import replaced, unchecked

ROW = Candidate(unit_id="u", channel="dense", rank=2, score=0.5)
UNIT = Unit(unit_id="u", fingerprint="f", title="t", text="x", metadata={"a": [1]}, metadata_converted=True)
EVENT = SearchAttempted(
    channel="dense",
    requested=3,
    outcome="answered",
    usage=Usage(calls=1),
    returned=(Reference(unit_id="u", rank=1, score=None),),
)


@pytest.mark.parametrize("made", [ROW, UNIT, EVENT, Usage(rows=3)], ids=lambda made: type(made).__name__)
def test_an_unchecked_model_is_the_one_that_validation_makes(made: BaseModel) -> None:
    """Equal, of the same JSON, hashed or not as ever, and as frozen."""
    again = unchecked(type(made), **dict(made))
    assert again == made
    assert again.model_dump_json() == made.model_dump_json()
    assert again.model_fields_set == set(type(made).model_fields)
    assert type(made).model_validate(again.model_dump()) == made
    with pytest.raises(ValidationError, match="frozen"):
        setattr(again, next(iter(type(made).model_fields)), None)


def test_a_replaced_field_changes_a_copy() -> None:
    """As `model_copy` does; the instance that was copied stays as it was."""
    assert replaced(ROW, rank=5) == ROW.model_copy(update={"rank": 5})
    assert list(replaced(EVENT, cut=1).model_dump()) == list(EVENT.model_dump())
    assert ROW.rank == 2


def test_rows_and_units_come_out_of_state_as_they_went_in() -> None:
    """What state holds are the models' own dumps."""
    assert row_in_state(ROW) == ROW.model_dump(exclude={"unit"})
    assert UNIT.to_state() == UNIT.model_dump()
    assert row_from_state(row_in_state(ROW)) == ROW
    assert Unit.recalled(UNIT.to_state()) == UNIT
