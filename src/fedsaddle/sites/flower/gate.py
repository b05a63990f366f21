"""A SuperLink whose port lets other machines do only what a node does.

Flower serves three interfaces at one port: for nodes, for its own executors, and for whoever starts runs and registers
keys. Only the first asks for a key. In Flower 1.41 anybody who reaches the port could register a key of their own, or
submit an app and so run code at every site. Behind this gate the other two answer to this machine alone.

    python -m fedsaddle.sites.flower.gate OPTIONS-OF-flower-superlink
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from flwr.superlink.cli import flower_superlink

from fedsaddle.sites.flower.running import MARK

FOR_NODES = "/v1/fleet/"
Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Callable[[], Awaitable[Scope]], Callable[[Scope], Awaitable[None]]], Awaitable[None]]


def gate(application: Application) -> Application:
    """The same web application (ASGI), seen through the gate."""

    async def guarded(scope: Scope, receive: Callable[[], Awaitable[Scope]],
                      send: Callable[[Scope], Awaitable[None]]) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and may_pass(scope)):
            await application(scope, receive, send)
        elif scope["type"] == "http":
            status = 204 if scope["path"] == MARK else 403
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    return guarded


def may_pass(scope: Scope) -> bool:
    path = scope["path"]
    return path != MARK and (path.startswith(FOR_NODES) or is_local(scope.get("client")))


def is_local(client: Any) -> bool:
    try:
        address = ipaddress.ip_address(client[0])
    except (TypeError, ValueError, IndexError):
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def main() -> None:
    serve = uvicorn.run

    def guarded(app: Any, **options: Any) -> None:
        # proxy_headers: else a header could say that a request is from this machine.
        serve(gate(app), **(options | {"proxy_headers": False}))

    uvicorn.run = guarded
    flower_superlink()


if __name__ == "__main__":
    main()
