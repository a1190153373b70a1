"""Charge a call durably, so that a run resumed after a kill knows of an attempt that was cut off.

State cannot tell: a node that is run again after a kill sees the state it saw the first time. A LangGraph task can: its
result is saved while the node still runs, and given back when the node is run again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Generator
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.config import get_config
from langgraph.func import task
from langgraph.runtime import Runtime

from bounded_retrieval.nodes.running import Call

SAVE_WAITS_S = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Pauses between looks at whether a charge is saved; about two seconds in all, then the call is made anyway."""


@task
def charge_call(token: str) -> str:
    """Give back the token of the execution that charged the call first."""
    return token


def was_cut_off(runtime: Runtime[Any]) -> Generator[Call, Any, bool]:
    """Charge the call that is about to be made; say whether an earlier execution of this node already had.

    Without a checkpointer there is nothing to resume and nothing is done. Otherwise the charge is saved before this
    returns, except under ``durability="exit"``, which saves nothing while a run is under way. An execution that ended
    in an ``interrupt()`` of the searcher was not cut off: it asked to be run again.
    """
    if runtime.execution_info is None or runtime.execution_info.thread_id is None:
        return False
    token = secrets.token_hex(16)
    charged = yield Call(name="charge_call", run=lambda: charge_call(token).result(), arun=lambda: charge_call(token))
    saver, place = _saver(runtime)
    if charged != token:
        paused = saver is not None and (yield _saved(saver, place, _is_paused))
        return not paused
    if saver is not None:
        yield _saved(saver, place, lambda saved: _holds(saved, token), wait=True)
    return False


def _saver(runtime: Runtime[Any]) -> tuple[BaseCheckpointSaver[Any] | None, RunnableConfig]:
    # LangGraph hands its checkpointer to nodes only under these keys, which subgraphs inherit it by.
    configurable = get_config().get("configurable", {})
    saver = configurable.get("__pregel_checkpointer")
    info = runtime.execution_info
    is_saving = isinstance(saver, BaseCheckpointSaver) and configurable.get("__pregel_durability") != "exit"
    if info is None or not is_saving:
        return None, {}
    place = {
        "thread_id": info.thread_id,
        "checkpoint_ns": info.checkpoint_ns.rpartition("|")[0],
        "checkpoint_id": info.checkpoint_id,
    }
    return saver, {"configurable": place}


def _saved(
    saver: BaseCheckpointSaver[Any],
    place: RunnableConfig,
    wanted: Callable[[CheckpointTuple | None], bool],
    *,
    wait: bool = False,
) -> Call:
    pauses = SAVE_WAITS_S if wait else SAVE_WAITS_S[:1]

    def look() -> bool:
        for pause in pauses:
            time.sleep(pause)
            if wanted(saver.get_tuple(place)):
                return True
        return False

    async def alook() -> bool:
        for pause in pauses:
            await asyncio.sleep(pause)
            if wanted(await saver.aget_tuple(place)):
                return True
        return False

    return Call(name="checkpoint", run=look, arun=alook)


def _holds(saved: CheckpointTuple | None, token: str) -> bool:
    return saved is not None and any(value == token for _, _, value in saved.pending_writes or ())


def _is_paused(saved: CheckpointTuple | None) -> bool:
    return saved is not None and any(channel == INTERRUPT for _, channel, _ in saved.pending_writes or ())
