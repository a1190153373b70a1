"""Running code of others apart from the callbacks and tracers of the run around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langchain_core.runnables.config import RunnableConfig, var_child_runnable_config


@contextmanager
def untraced() -> Iterator[None]:
    """Run without the surrounding callbacks, LangSmith tracing, run collectors and tracers."""
    from langchain_core.tracers.context import run_collector_var, tracing_v2_callback_var
    from langsmith import tracing_context

    # Also in the surrounding config: a retriever may call another one without handing its callbacks on.
    config: RunnableConfig = {**(var_child_runnable_config.get() or {}), "callbacks": []}
    surrounding = var_child_runnable_config.set(config)
    tracer, collector = tracing_v2_callback_var.set(None), run_collector_var.set(None)
    try:
        with tracing_context(enabled=False, parent=False):
            yield
    finally:
        run_collector_var.reset(collector)
        tracing_v2_callback_var.reset(tracer)
        var_child_runnable_config.reset(surrounding)
