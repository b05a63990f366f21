"""A SuperLink whose port lets other machines do only what a node does.

Flower serves three interfaces at one port: for nodes, for its own executors, and for whoever starts runs and registers
keys. Only the first asks for a key. In Flower 1.41 anybody who reaches the port could register a key of their own, or
submit an app and so run code at every site. Behind this gate the other two answer to this machine alone.

    python -m fedsaddle.sites.flower.gate OPTIONS-OF-flower-superlink
"""

from __future__ import annotations

import ipaddress
import ssl
from asyncio import sslproto
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from flwr.superlink.cli import flower_superlink

from fedsaddle.sites.flower.running import MARK
from fedsaddle.sites.flower.running import REFUSED_BY_GATE as REFUSED

FOR_NODES = "/v1/fleet/"
REFUSALS = {401: "it has no key, or its signature is wrong", 403: "its key may not do that",
            412: "its key is not registered here, or another node with it is online"}
HANDSHAKES = {
    "HTTP_REQUEST": "it speaks without TLS",
    "WRONG_VERSION_NUMBER": "it speaks without TLS",
    "CERTIFICATE_EXPIRED": "it found this server's certificate expired",
    "UNKNOWN_CA": "it does not know the authority of this server's certificate",
    "BAD_CERTIFICATE": "it did not believe this server's certificate",
    "CERTIFICATE_UNKNOWN": "it did not believe this server's certificate",
}
Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Callable[[], Awaitable[Scope]], Callable[[Scope], Awaitable[None]]], Awaitable[None]]


def gate(application: Application) -> Application:
    """The same web application (ASGI), seen through the gate."""

    async def guarded(scope: Scope, receive: Callable[[], Awaitable[Scope]],
                      send: Callable[[Scope], Awaitable[None]]) -> None:
        async def told(message: Scope) -> None:
            if message["type"] == "http.response.start" and message["status"] in REFUSALS:
                tell(scope.get("client"), REFUSALS[message["status"]])
            await send(message)

        if scope["type"] == "lifespan" or (scope["type"] == "http" and may_pass(scope)):
            await application(scope, receive, told if scope["type"] == "http" else send)
        elif scope["type"] == "http":
            status = 204 if scope["path"] == MARK else 403
            if status == 403:
                tell(scope.get("client"), "it asked for what only this machine may do")
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


def tell(client: Any, why: str) -> None:
    """A line in the log, from which the server's command line takes it."""
    print(f"{REFUSED} {client[0] if client else 'somebody'}: {why}", flush=True)


def tell_broken_handshakes() -> None:
    """A connection that ends before there is a request is silent otherwise: no TLS, or a certificate not believed."""
    protocol: Any = sslproto.SSLProtocol
    fatal = protocol._fatal_error

    def told(self: Any, error: BaseException, message: str = "") -> None:
        if isinstance(error, ssl.SSLError):
            why = next((text for part, text in HANDSHAKES.items() if part in str(error)), "the TLS handshake failed")
            tell(self._extra.get("peername"), why)
        fatal(self, error, message)

    protocol._fatal_error = told


def main() -> None:
    tell_broken_handshakes()
    serve = uvicorn.run

    def guarded(app: Any, **options: Any) -> None:
        # proxy_headers: else a header could say that a request is from this machine.
        # loop: the one of the standard library, whose broken handshakes are told.
        serve(gate(app), **(options | {"proxy_headers": False, "loop": "asyncio"}))

    uvicorn.run = guarded
    flower_superlink()


if __name__ == "__main__":
    main()
