"""The app that Flower carries to the sites: a folder with one file, which names two modules of this package.

What runs at a site. Flower sends the app (a FAB) to every SuperNode, whose executor unpacks it and runs its ClientApp
in a process per message, as the user of the SuperNode. Our FAB holds no code: it names `courier_site`, which the site
has installed. But a FAB may hold code, and its folder comes first on the import path; so whoever can submit a run to
the SuperLink could run code at every site. Flower 1.41 has no switch for installed modules only (`--trusted-entities`
accepts only apps that Flower's own hub has signed). Two things of ours stand before that: `resident`, an executor that
never unpacks a FAB and runs the installed courier for every message, and `gate`, which lets only the SuperLink's own
machine submit.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import tomli_w

HOME = "fedsaddle.sites.flower"


def write_app(folder: Path) -> Path:
    """The folder to `submit`. Its name is the app's, because Flower wants a plain one."""
    app = folder / "fedsaddle-sites"
    app.mkdir(parents=True, exist_ok=True)
    (app / "pyproject.toml").write_text(tomli_w.dumps({
        "project": {
            "name": app.name,
            "version": version("fedsaddle"),
            "description": "Carries bytes between a FedSaddle coordinator and its sites",
            "license": "Apache-2.0",
            "dependencies": [],
        },
        "tool": {"flwr": {"app": {
            "publisher": "fedsaddle",
            "components": {"serverapp": f"{HOME}.courier_server:server", "clientapp": f"{HOME}.courier_site:client"},
            "config": {"socket": ""},
        }}},
    }), encoding="utf-8")
    return app
