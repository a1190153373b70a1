"""Charge a call durably, so that a run resumed after a kill knows of an attempt that was cut off.

State cannot tell: a node that is run again after a kill sees the state it saw the first time. A LangGraph task can: its
result is saved while the node still runs, and given back when the node is run again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Generator
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
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
    returns, except under ``durability="exit"``, which saves nothing while a run is under way.
    """
    if runtime.execution_info is None or runtime.execution_info.thread_id is None:
        return False
    token = secrets.token_hex(16)
    charged = yield Call(name="charge_call", run=lambda: charge_call(token).result(), arun=lambda: charge_call(token))
    if charged != token:
        return True
    saver, place = _saver(runtime)
    if saver is not None:
        yield Call(
            name="saved charge",
            run=lambda: _wait_saved(saver, place, token),
            arun=lambda: _await_saved(saver, place, token),
        )
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


def _wait_saved(saver: BaseCheckpointSaver[Any], place: RunnableConfig, token: str) -> None:
    for pause in SAVE_WAITS_S:
        time.sleep(pause)
        if _holds(saver.get_tuple(place), token):
            return


async def _await_saved(saver: BaseCheckpointSaver[Any], place: RunnableConfig, token: str) -> None:
    for pause in SAVE_WAITS_S:
        await asyncio.sleep(pause)
        if _holds(await saver.aget_tuple(place), token):
            return


def _holds(saved: CheckpointTuple | None, token: str) -> bool:
    return saved is not None and any(value == token for _, _, value in saved.pending_writes or ())
