"""Start-up kits: what `fedsaddle provision` writes for every machine, and the folder in which NVFlare runs from one.

A kit is only read. NVFlare writes into its workspace, so that is a folder of its own: `startup` points to the
kit's keys, `local` is copied, and everything that is stored lies beside them, never in the system's temporary folder.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from fedsaddle.contracts import SettingError

ABOUT = "kit.json"
SERVER, SITE, ADMIN = "server", "site", "admin"
OWN = "fedsaddle.json"  # in `local` of a site's workspace: where its worker listens
STORE = "{store}"  # in files of a kit, the folder that is chosen at the start


class Kit(NamedTuple):
    """What a kit says about itself."""

    folder: Path
    kind: str
    name: str  # as in its certificate
    org: str
    host: str  # of the server
    port: int
    admin_port: int
    sites: tuple[str, ...] = ()  # of the whole project; a server's kit names them


def read_kit(folder: Path, kind: str) -> Kit:
    path = folder / ABOUT
    try:
        about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        kit = Kit(folder.resolve(), about["kind"], about["name"], about["org"], about["host"], about["port"],
                  about["admin_port"], tuple(about["sites"]))
    except FileNotFoundError:
        raise SettingError(f"--kit {str(folder)!r}: holds no {ABOUT}; give a folder that `fedsaddle provision` wrote, "
                           f"such as {kind if kind != SITE else 'that of the site'}") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise SettingError(f"--kit {str(folder)!r}: its {ABOUT} cannot be read; copy the kit there again") from None
    if kit.kind != kind:
        raise SettingError(f"--kit {str(folder)!r}: is the kit of {kit.kind} {kit.name!r}; give that of a {kind}")
    return kit


def workspace(kit: Kit, folder: Path, own: dict[str, Any] | None = None) -> Path:
    """The folder in which NVFlare runs from the kit; made anew at every start, but what was stored stays."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    keys, local = folder / "startup", folder / "local"
    for made in (keys, local):
        if made.exists():
            shutil.rmtree(made)
        made.mkdir(mode=0o700)
    for path in (kit.folder / "startup").iterdir():
        if path.suffix == ".key":
            (keys / path.name).symlink_to(path)  # a private key lies in one place
        else:  # NVFlare follows no link to its settings
            shutil.copyfile(path, keys / path.name)
    (folder / "transfer").mkdir(exist_ok=True)
    for path in (kit.folder / "local").iterdir():
        text = path.read_text(encoding="utf-8")
        (local / path.name).write_text(text.replace(STORE, str(folder.resolve())), encoding="utf-8")
    if own is not None:
        (local / OWN).write_text(json.dumps(own), encoding="utf-8")
    return folder
