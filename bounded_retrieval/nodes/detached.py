"""Running code of others apart from the callbacks and tracers of the run around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from typing import Any

from langchain_core.runnables.config import RunnableConfig, var_child_runnable_config
from langchain_core.tracers import context as tracing
from langsmith.run_helpers import get_tracing_context, tracing_context
from langsmith.utils import tracing_is_enabled


@contextmanager
def untraced() -> Iterator[None]:
    """Run without the surrounding callbacks, LangSmith tracing, run collectors and tracers.

    Handlers in context variables that were registered with LangChain are left out too; those that an environment
    variable switches on are not.
    """
    # Also in the surrounding config: a retriever may call another one without handing its callbacks on.
    config: RunnableConfig = {**(var_child_runnable_config.get() or {}), "callbacks": []}
    changed: list[tuple[ContextVar[Any], Token[Any]]] = [
        (var_child_runnable_config, var_child_runnable_config.set(config))
    ]
    registered = [hook[0] for hook in getattr(tracing, "_configure_hooks", ())]
    heard = (each for each in (tracing.tracing_v2_callback_var, *registered) if each.get(None) is not None)
    changed.extend((variable, variable.set(None)) for variable in heard)
    try:
        with _without_langsmith():
            yield
    finally:
        for variable, token in reversed(changed):
            variable.reset(token)


def _without_langsmith() -> AbstractContextManager[None]:
    context = get_tracing_context()
    # Entering its context is most of what a detached call costs; mostly there is nothing to be left out.
    if context["parent"] is None and not tracing_is_enabled(context):
        return nullcontext()
    return tracing_context(enabled=False, parent=False)
