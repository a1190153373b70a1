"""Running code of others apart from the callbacks and tracers of the run around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.runnables.config import RunnableConfig, var_child_runnable_config
from langchain_core.tracers import context as tracing


@contextmanager
def untraced() -> Iterator[None]:
    """Run without the surrounding callbacks, LangSmith tracing, run collectors and tracers.

    Handlers in context variables that were registered with LangChain are left out too; those that an environment
    variable switches on are not.
    """
    from langsmith import tracing_context

    # Also in the surrounding config: a retriever may call another one without handing its callbacks on.
    config: RunnableConfig = {**(var_child_runnable_config.get() or {}), "callbacks": []}
    registered = [hook[0] for hook in getattr(tracing, "_configure_hooks", ())]
    with ExitStack() as changed:
        _set(changed, var_child_runnable_config, config)
        for variable in (tracing.tracing_v2_callback_var, *registered):
            _set(changed, variable, None)
        changed.enter_context(tracing_context(enabled=False, parent=False))
        yield


def _set(changed: ExitStack, variable: ContextVar[Any], value: Any) -> None:
    changed.callback(variable.reset, variable.set(value))
