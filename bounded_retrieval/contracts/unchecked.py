"""Make a model of values that are valid already, without validating them once more.

Only for values that this package made or checked itself a moment before; what comes from anyone else is validated.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel

Model = TypeVar("Model", bound=BaseModel)

# A frozen model's own attributes cannot be set otherwise. Looked up once: a run makes some dozens of instances.
_new, _put = object.__new__, object.__setattr__


def unchecked(model: type[Model], /, **values: Any) -> Model:
    """An instance that holds exactly these values: every field of the model, in the order in which it declares them."""
    made = _new(model)
    _put(made, "__dict__", values)
    _put(made, "__pydantic_fields_set__", set(values))
    _put(made, "__pydantic_extra__", None)
    _put(made, "__pydantic_private__", None)
    return made


def replaced(instance: Model, **changes: Any) -> Model:
    """A copy of an instance with some fields' values replaced, as `BaseModel.model_copy` with ``update`` makes it."""
    return unchecked(type(instance), **{**instance.__dict__, **changes})
