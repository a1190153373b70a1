"""Arguments of another type are refused when the controller is built, in one line."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest
from inventory import HITS, QUERY, lexical

from bounded_retrieval import BoundedContext, create_bounded_retrieval
from bounded_retrieval.errors import ConfigurationError

REFUSED = [
    ({"id_key": 5}, r"id_key: expected the name of a metadata field \(got 5\)"),
    ({"id_key": ["sku"]}, r"id_key: expected the name of a metadata field \(got \['sku'\]\)"),
    ({"output_keys": 5}, r"output_keys: expected a list of keys \(got 5\)"),
    ({"output_keys": [["packet"]]}, r"output_keys: expected a list of keys \(got \[\['packet'\]\]\)"),
    ({"context_schema": 5}, r"context_schema: expected a class \(got 5\)"),
    ({"context_schema": BoundedContext()}, r"context_schema: expected a class \(got BoundedContext\(.+\)"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_an_argument_of_another_type_is_refused(options: dict[str, Any], message: str) -> None:
    """The parameter and the value are named, whether or not anything adapted needs them."""
    with pytest.raises(ConfigurationError, match=f"^{message}$"):
        create_bounded_retrieval(lexical(HITS), **options)


class Given(TypedDict, total=False):
    """A context as a typed mapping."""

    policy: str


@pytest.mark.parametrize("schema", [None, dict, dict[str, Any], Given, BoundedContext])
def test_every_kind_of_schema_is_taken(schema: Any) -> None:
    """Classes, typed mappings and aliases of them are schemas."""
    graph = create_bounded_retrieval(lexical(HITS), id_key="sku", context_schema=schema).compile()
    assert graph.invoke({"query": QUERY})["documents"]
