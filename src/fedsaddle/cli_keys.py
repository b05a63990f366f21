"""Commands for running across real sites: `keys` makes certificates and keys, `doctor` finds what would go wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsaddle.contracts import SettingError
from fedsaddle.sites import certificates
from fedsaddle.sites import doctor as checks
from fedsaddle.sites.doctor import Finding
from fedsaddle.sites.engines import Options, engine_of
from fedsaddle.sites.nvflare import checks as kits

out, err = Console(), Console(stderr=True)
AUTHORITY_LIVES = 3  # times as long as the server's certificate, or renewing that would be of no use
COLOURS = {checks.OK: "green", checks.WARNING: "yellow", checks.WRONG: "red"}
ADVICE = """\
This authority is for tests and closed groups: whoever has ca.key can pass for the server. Move ca.key off line once \
server.pem is made; adding nodes does not need it.
Keys that never travel: a site makes its own with `fedsaddle keys DIR --own NAME` and sends key.pub alone; put it into \
nodes/NAME/ here, and send ca.crt back. Keys that were made here: send each node its folder over a channel that you \
trust, and delete nodes/NAME/key here once it has arrived.
Your own certificates instead: put ca.crt, server.pem (the server's certificate, then those between it and ca.crt) and \
server.key (without a password) into the folder; --node then adds keys of nodes and leaves them alone.
At every start, `fedsaddle server FILE --keys DIR` lets in the nodes whose key.pub lies in nodes/NAME/ of DIR, and \
nobody else."""
OWN_ADVICE = """\
key never leaves this machine. Send key.pub to whoever runs the server, who puts it into nodes/{name}/ of its folder \
and starts the server again; see to it that nobody changes it on the way.
Put the ca.crt that comes back beside key, likewise; then `fedsaddle doctor --keys {folder} --server HOST:PORT`, and \
`fedsaddle node --keys {folder} --name {name}` with --server and --data."""


class Piece(NamedTuple):
    """One file, and the machine that needs it."""

    path: Path
    what: str
    goes_to: str
    expires: datetime | None


def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="folder for the files")],
    server: Annotated[list[str] | None, typer.Option(help="host name or IP address at which nodes reach the server; "
                                                          "may be repeated")] = None,
    node: Annotated[list[str] | None, typer.Option(help="name of a node; may be repeated")] = None,
    days: Annotated[int, typer.Option(help="life of the server's certificate; the authority's is three times as "
                                           "long")] = 365,
    renew: Annotated[bool, typer.Option("--renew-server", help="a new server certificate from the same "
                                                               "authority")] = False,
    own: Annotated[str | None, typer.Option(metavar="NAME", help="at a site: make only the site's own key pair, of "
                                                                 "which key.pub goes to the server")] = None,
) -> None:
    """Make a test authority, a server certificate and a key for every node, or one's own; what is there stays."""
    try:
        from fedsaddle.sites import keys as making  # noqa: PLC0415  # an extra
    except ModuleNotFoundError as error:
        raise SettingError(f"keys {str(folder)!r}: needs the package {error.name}, which is not installed; "
                           f"{checks.INSTALL}") from None
    if own is not None:
        for option, value in (("--server", server), ("--node", node), ("--renew-server", renew)):
            if value:
                raise SettingError(f"{option}: was given with --own, which makes the key of one site and nothing else; "
                                   "leave one of them out")
        making.own_key(folder, own)
    else:
        making.check(folder, server or (), node or (), days)
        making.make_authority(folder, min(days * AUTHORITY_LIVES, making.LONGEST))
        making.server_certificate(folder, server or (), days, renew)
        for name in node or ():
            making.node_key(folder, name)
    _show(folder, own)


def _show(folder: Path, own: str | None) -> None:
    table = _columns("file", "what it is", "which machine needs it", "expires")
    for piece in _pieces(folder, own):
        table.add_row(*map(Text, (str(piece.path.relative_to(folder)), piece.what, piece.goes_to,
                                  f"{piece.expires:%Y-%m-%d}" if piece.expires else "")))
    out.print(table)
    advice = ADVICE if own is None else OWN_ADVICE.format(folder=folder, name=own)
    out.print(f"folder: {folder}", advice, sep="\n", soft_wrap=True, markup=False, highlight=False)


def doctor(
    server: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="server to reach; nothing else is "
                                                                         "connected to")] = None,
    folder: Annotated[Path | None, typer.Option("--keys", help="folder of `fedsaddle keys`, or that of one "
                                                               "node")] = None,
    engine: Annotated[str, typer.Option(help="transport: flower or nvflare")] = "flower",
    kit: Annotated[Path | None, typer.Option(help="folder of `fedsaddle provision`, for --engine nvflare; the server "
                                                  "that a site's kit names is connected to")] = None,
    name: Annotated[str | None, typer.Option(help="the site's name, which a kit must have")] = None,
    data: Annotated[Path | None, typer.Option(help="the site's table")] = None,
    label: Annotated[str | None, typer.Option(help="column of the label in the table")] = None,
    policy: Annotated[Path | None, typer.Option(help="the site's policy")] = None,
    port: Annotated[list[int] | None, typer.Option(help="port to listen on; may be repeated")] = None,
    state: Annotated[Path | None, typer.Option(help="folder for the site's state; for a server's kit, its run "
                                                    "folder")] = None,
) -> None:
    """Check this machine before it takes part; changes nothing. Exit code 1 if anything is wrong."""
    engine_of(engine, Options(keys=folder, kit=kit, server=server, port=port[0] if port else None))
    found = [checks.check_python()]
    found += _of_nvflare(kit, name, state) if engine == "nvflare" else _of_flower(server, folder, name, port or ())
    found += [checks.check_data(data, label)] if data else []
    found += [checks.check_policy(policy)] if policy else []
    found += checks.check_state(state) if state else []
    out.print(_table(found))
    if any(finding.level == checks.WRONG for finding in found):
        raise typer.Exit(1)


def _of_flower(server: str | None, folder: Path | None, name: str | None, ports: Sequence[int]) -> list[Finding]:
    if name is not None:
        raise SettingError("--name: belongs to --engine nvflare, not to flower; leave it out")
    host, number = _address(server) if server else (None, 0)
    found = [*map(checks.check_version, checks.VERSIONS), *checks.check_quiet(os.environ)]
    found += certificates.check_keys(folder, host) if folder else []
    found += checks.check_server(host, number, folder / "ca.crt" if folder else None) if host else []
    return found + [checks.check_port(one) for one in ports]


def _of_nvflare(kit: Path | None, name: str | None, state: Path | None) -> list[Finding]:
    if kit is None:
        return [*kits.check_versions(), Finding(checks.WARNING, "kit", "was not looked at: --kit is not given",
                                                "give the folder that `fedsaddle provision` wrote")]
    return [*kits.check_versions(), *kits.check_kit(kit, name, state)]


def add_to(app: typer.Typer) -> None:
    app.command()(keys)
    app.command()(doctor)


def _table(found: Sequence[Finding]) -> Table:
    table = _columns("", "what", "found", "what to do")
    for finding in found:
        table.add_row(Text(finding.level, COLOURS[finding.level]), *map(Text, finding[1:]))
    return table


def _columns(*titles: str) -> Table:
    table = Table()
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def _pieces(folder: Path, own: str | None = None) -> Iterator[Piece]:
    """The files of a folder, each with the machine that it is for."""
    from fedsaddle.sites.keys import NAME, expiry  # noqa: PLC0415  # an extra
    known = {"ca.crt": ("certificate of the authority", "the server and every node; no secret"),
             "ca.key": ("key of the authority", "none: keep it off line"),
             "server.pem": ("certificate of the server", "the server"),
             "server.key": ("key of the server", "the server alone")}
    if own is not None:
        known |= {"key": (f"key of {own}", "this one alone"),
                  "key.pub": (f"public key of {own}", f"the server, as nodes/{own}/key.pub; no secret")}
    for node in sorted(path.name for path in (folder / "nodes").glob("*") if NAME.fullmatch(path.name)):
        known |= {f"nodes/{node}/key": (f"key of {node}", f"{node} alone"),
                  f"nodes/{node}/key.pub": (f"public key of {node}", f"the server, to let {node} in; no secret"),
                  f"nodes/{node}/ca.crt": ("copy of ca.crt", node)}
    for name, (what, goes_to) in known.items():
        if (folder / name).exists():
            yield Piece(folder / name, what, goes_to,
                        expiry(folder / name) if name.endswith((".crt", ".pem")) else None)


def _address(server: str) -> tuple[str, int]:
    """HOST and PORT; an IPv6 address is in brackets."""
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})", server)
    if not match or not 1 <= int(match[2]) <= 65535:
        raise SettingError(f"--server {server!r}: is no HOST:PORT; write it like server.example.org:8000")
    return match[1].strip("[]"), int(match[2])
