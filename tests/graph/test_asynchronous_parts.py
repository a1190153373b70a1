"""Parts that are called synchronously must not be asynchronous in any disguise: their answer would always be true."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
from inventory import HITS, QUERY, lexical

from bounded_retrieval import create_bounded_retrieval, create_recursive_retrieval
from bounded_retrieval.errors import ConfigurationError


async def asynchronous(*_: Any) -> bool:
    """Never cancels."""
    return False


async def generating(*_: Any) -> AsyncIterator[bool]:
    """Never cancels."""
    yield False


class Asynchronous:
    async def __call__(self, *_: Any) -> bool:
        """Never cancels."""
        return False


class Inheriting(Asynchronous):
    pass


class Generating:
    async def __call__(self, *_: Any) -> AsyncIterator[bool]:
        """Never cancels."""
        yield False


class Plain:
    def __call__(self, *_: Any) -> bool:
        """Never cancels."""
        return False

    async def method(self, *_: Any) -> bool:
        """Never cancels."""
        return False


DISGUISES = {
    "function": asynchronous,
    "partial": partial(asynchronous, 1),
    "object": Asynchronous(),
    "subclass": Inheriting(),
    "method": Plain().method,
    "partial of an object": partial(Asynchronous(), 1),
    "partial of a partial": partial(partial(asynchronous, 1), 2),
    "generator": generating,
    "generating object": Generating(),
}
BUILDERS = {
    "controller": lambda **parts: create_bounded_retrieval(lexical(HITS), **parts),
    "chain": lambda **parts: create_recursive_retrieval(lambda _: HITS, lambda *_: None, **parts),
}


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize("part", ["cancelled", "diagnostics", "clock"])
@pytest.mark.parametrize("disguise", DISGUISES)
def test_an_asynchronous_part_is_refused(disguise: str, part: str, builder: str) -> None:
    """A function, an object or a partial whose call has to be awaited is refused when the graph is built."""
    message = f"^{part}: is called synchronously; give a plain function \\(got an async one\\)$"
    with pytest.raises(ConfigurationError, match=message):
        BUILDERS[builder](**{part: DISGUISES[disguise]})


@pytest.mark.parametrize(
    "cancelled", [Plain(), partial(Plain(), 1), lambda _: False], ids=["object", "partial", "lambda"]
)
def test_a_plain_part_is_called(cancelled: Callable[..., bool]) -> None:
    """A callable that answers at once decides as it says."""
    graph = create_bounded_retrieval(lexical(HITS), cancelled=cancelled).compile()
    assert graph.invoke({"query": QUERY})["stop_reason"] != "cancelled"
