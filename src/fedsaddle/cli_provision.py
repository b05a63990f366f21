"""The command `provision`: start-up kits for sites on NVFlare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

out = Console()
ADVICE = """\
{server} and {admin} go to the server's machine, side by side; every other folder to its site, over a channel that you \
trust: it holds the site's private key. {authority} holds every key: keep it off line; it is needed to add sites \
(put them into the file, and run this again)."""


def provision(
    project: Annotated[Path, typer.Argument(metavar="FILE", help="TOML file: name, server, port, sites, ...")],
    folder: Annotated[Path, typer.Option("--out", help="folder for the kits")],
) -> None:
    """Make the start-up kits for `--engine nvflare`: server, admin and every site; what is there stays."""
    from fedsaddle.sites.nvflare.provision import provision as make  # noqa: PLC0415  # an extra
    from fedsaddle.sites.nvflare.provision import read_project  # noqa: PLC0415

    for kit in make(read_project(project), folder):
        out.print(f"kit: {kit}", soft_wrap=True, highlight=False)
    out.print(ADVICE.format(server=folder / "server", admin=folder / "admin", authority=folder / "authority"),
              soft_wrap=True, highlight=False)


def add_to(app: typer.Typer) -> None:
    app.command()(provision)
