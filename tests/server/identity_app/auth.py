"""Who a bearer token belongs to, and, for those who are set apart, whose threads they may touch."""

from __future__ import annotations

from typing import Any

from langgraph_sdk import Auth

USERS: dict[str, dict[str, Any]] = {
    "token-nora": {"identity": "nora", "tenant": "north", "groups": ["night"]},
    "token-nils": {"identity": "nils", "tenant": "north", "groups": []},
    "token-saul": {"identity": "saul", "tenant": "south", "groups": ["night"]},
    "token-nora-apart": {"identity": "nora", "tenant": "north", "groups": ["night"], "apart": True},
    "token-saul-apart": {"identity": "saul", "tenant": "south", "groups": ["night"], "apart": True},
    "token-temp": {"identity": "temp"},
}

auth = Auth()


@auth.authenticate
async def authenticate(authorization: str | None) -> dict[str, Any]:
    """Look the token up; without a known one nobody gets in."""
    user = USERS.get((authorization or "").removeprefix("Bearer "))
    if user is None:
        raise Auth.exceptions.HTTPException(status_code=401, detail="unknown token")
    return user


@auth.on.threads
async def own_threads(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> dict[str, str] | None:
    """Keep the threads of those set apart to themselves, and everybody else's open to all: the worst case."""
    if not ctx.user.get("apart"):
        return None
    owner = {"owner": ctx.user.identity}
    value.setdefault("metadata", {}).update(owner)
    return owner
