# mypy: disable-error-code="import-untyped,import-not-found"
"""Start-up kits for NVFlare from a small TOML file: certificates by NVFlare's own builders, settings by ours.

What ours change: no log of a site is streamed to the server; no code that comes with a job runs anywhere (byoc is
denied, and of classes only our couriers are allowed); an admin can submit and end jobs, but neither read files nor logs
of a site; the admin's port is open to the server's own machine alone; nothing is stored in the temporary folder.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsaddle.config.validation import validated
from fedsaddle.contracts import SettingError, setting
from fedsaddle.sites.nvflare.kit import ABOUT, ADMIN, SERVER, SITE, STORE

HERE = "fedsaddle.sites.nvflare"
SERVER_COURIER, SITE_COURIER = f"{HERE}.courier_server.ServerCourier", f"{HERE}.courier_site.SiteCourier"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
HOST = re.compile(r"([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?")
MAIL = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}")
ORG, ROLE = "fedsaddle", "lead"
AUTHORITY = "authority"
TAKEN = (SERVER, ADMIN, AUTHORITY)  # names of folders
NOISY = ("private.fed.server.server_runner", "private.fed.server.server_commands", "private.fed.client.client_runner",
         "private.fed.client.communicator", "private.fed.client.fed_client", "apis.impl.wf_comm_server")
ANSWER = 5.0  # seconds for a site to take a job; one that is dead, but not yet forgotten, costs so much
DEAD = 20  # seconds without a sign of life after which the server forgets a site; a site gives one every 2 s


@dataclass(frozen=True)
class Project:
    """The file of `fedsaddle provision`."""

    name: str = setting("fedsaddle", "name of the project, in every certificate")
    server: str = setting("", "host name at which sites reach the server; localhost to try it on one machine")
    port: int = setting(8002, "port of the server, to which sites connect", at_least=1, at_most=65535)
    admin_port: int = setting(8003, "port for submitting, on the server's own machine alone", at_least=1, at_most=65535)
    sites: tuple[str, ...] = setting((), "names of the sites")
    admin: str = setting("admin@example.org", "who submits: a name of the form of a mail address")
    days: int = setting(360, "life of the certificates", at_least=1, at_most=36500)


def read_project(path: Path) -> Project:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"{path}: cannot be read ({error.strerror}); check the name") from None
    except ValueError as error:
        raise SettingError(f"{path}: is no TOML ({error}); mend it") from None
    project = Project(**validated(Project, tables, "project"))
    for field, value, form in (("name", project.name, NAME), ("server", project.server, HOST),
                               ("admin", project.admin, MAIL), *(("sites", site, NAME) for site in project.sites)):
        if not form.fullmatch(value):
            raise SettingError(f"{field} = {value!r}: is no such name; use letters, digits and -"
                               + (", with dots between" if form is not NAME else " or _"))
    if not project.sites:
        raise SettingError("sites: is empty; name every site")
    twice = [site for site in project.sites if project.sites.count(site) > 1 or site.lower() in TAKEN]
    if twice:
        raise SettingError(f"sites = {twice[0]!r}: is there twice, or a name that is needed; give every site its own")
    if project.port == project.admin_port:
        raise SettingError(f"admin_port = {project.admin_port}: is the port of the sites; choose another")
    return project


def provision(project: Project, out: Path) -> list[Path]:
    """The kits in a folder: server, admin, and one for every site. Kits that are there stay; new sites are added."""
    kits = [(SERVER, SERVER, project.server), (ADMIN, ADMIN, project.admin),
            *((site, SITE, site) for site in project.sites)]
    for folder, kind, name in kits:
        _same_address(out / folder, _about(kind, name, project))
    out.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = _build(project, out / AUTHORITY)
    for folder, kind, name in kits:
        target = out / folder
        if target.exists():
            _describe(target, kind, name, project)  # a server's kit hears of new sites
            continue
        shutil.move(made / name, target)
        _describe(target, kind, name, project)
        _settle(target, kind)
    shutil.rmtree(made)
    for path in [out / AUTHORITY, *(out / AUTHORITY).rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    return [out / folder for folder, _, _ in kits]


def _build(project: Project, folder: Path) -> Path:
    """NVFlare's own provisioning; the authority's key stays in the folder."""
    try:
        from nvflare.lighter import entity  # noqa: PLC0415
        from nvflare.lighter.impl.cert import CertBuilder  # noqa: PLC0415
        from nvflare.lighter.impl.static_file import StaticFileBuilder  # noqa: PLC0415
        from nvflare.lighter.impl.workspace import WorkspaceBuilder  # noqa: PLC0415
        from nvflare.lighter.provisioner import Provisioner  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise SettingError(f"provision: needs the package {error.name}; install fedsaddle[nvflare]") from None
    described = entity.Project(project.name, "FedSaddle")
    hosts = {"host_names": ["localhost"]} if project.server != "localhost" else {}
    described.set_server(project.server, ORG, {"fed_learn_port": project.port, "admin_port": project.admin_port,
                                               **hosts})
    for site in project.sites:
        described.add_client(site, ORG, {})
    described.add_admin(project.admin, ORG, {"role": ROLE, "connect_to": "localhost"})
    folder.mkdir(exist_ok=True, mode=0o700)
    builders = [WorkspaceBuilder(["master_template.yml"]), StaticFileBuilder(config_folder="config", scheme="grpc"),
                CertBuilder(root_valid_days=project.days)]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        context = Provisioner(str(folder), builders).provision(described)
    if context.get("build_error") or not context.get("current_prod_dir"):
        raise SettingError(f"provision: NVFlare did not make the kits ({said.getvalue().strip()[-300:]}); if the "
                           "authority is another one's, begin in a new folder")
    return Path(context["current_prod_dir"])


def _about(kind: str, name: str, project: Project) -> dict[str, Any]:
    return {"kind": kind, "name": name, "org": ORG, "host": project.server, "port": project.port,
            "admin_port": project.admin_port, "sites": list(project.sites) if kind == SERVER else []}


def _same_address(target: Path, about: dict[str, Any]) -> None:
    """What NVFlare reads in a kit, and its certificate, stay as they were made: another address needs other kits."""
    try:
        before = json.loads((target / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    for field, key in (("server", "host"), ("port", "port"), ("admin_port", "admin_port"), ("admin", "name")):
        if before.get(key) != about[key]:
            raise SettingError(f"{field} = {about[key]!r}: the kit {target} was made for {before.get(key)!r}, and kits "
                               "keep it; give another --out, and hand those kits out")


def _describe(target: Path, kind: str, name: str, project: Project) -> None:
    (target / ABOUT).write_text(json.dumps(_about(kind, name, project), indent=1) + "\n", encoding="utf-8")


def _settle(target: Path, kind: str) -> None:
    """What NVFlare wrote, made ours: fewer scripts, fewer rights, nothing that streams."""
    for left in [*target.rglob("*.sh"), *target.rglob("*.ipynb"), *target.rglob("readme.txt"),
                 *target.glob("local/*.sample")]:
        left.unlink()
    shutil.rmtree(target / "transfer", ignore_errors=True)
    local = target / "local"
    if kind != ADMIN:
        resources = json.loads((local / "resources.json.default").read_text())
        _write(local / "resources.json", (_server if kind == SERVER else _site)(resources))
        _write(local / "authorization.json", _rights(kind))
        _write(local / "log_config.json", _quiet(json.loads((local / "log_config.json.default").read_text())))
        for left in local.glob("*.default"):
            left.unlink()
    if kind == SERVER:
        start = json.loads((target / "startup" / "fed_server.json").read_text())
        start["servers"][0]["admin_host"] = "127.0.0.1"
        _write(target / "startup" / "fed_server.json", start)
    for path in [target, *target.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)


def _server(resources: dict[str, Any]) -> dict[str, Any]:
    resources["class_allow_list"] = [SERVER_COURIER]
    resources["servers"][0] |= {"heart_beat_timeout": DEAD, "max_num_clients": 1000, "admin_timeout": ANSWER}
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = f"{STORE}/snapshots"
    resources["components"] = [part for part in resources["components"] if part["id"] != "log_receiver"]
    for part in resources["components"]:
        if part["id"] == "job_manager":
            part["args"]["uri_root"] = f"{STORE}/jobs"
    return resources


def _site(resources: dict[str, Any]) -> dict[str, Any]:
    resources["class_allow_list"] = [SITE_COURIER]
    resources["allow_log_streaming"] = False
    resources["components"] = [part for part in resources["components"] if part["id"] != "site_log_streamer"]
    return resources


def _rights(kind: str) -> dict[str, Any]:
    """Of whoever submits. At a site: to begin and to end a job. Every other right, and every other role, has none."""
    rights = {"submit_job": "any", "manage_job": "any", "byoc": "none", "shell_commands": "none", "operate": "none",
              "clone_job": "none", "download_job": "none", "view": "any" if kind == SERVER else "none"}
    return {"format_version": "1.0", "permissions": {ROLE: rights}}


def _quiet(logs: dict[str, Any]) -> dict[str, Any]:
    """One file, and the output that we keep ourselves: by default every message is written down a dozen times."""
    root = logs["loggers"]["root"]
    root["handlers"] = ["consoleHandler", "errorFileHandler"]
    logs["handlers"] = {name: logs["handlers"][name] for name in root["handlers"]}
    logs["handlers"]["consoleHandler"]["formatter"] = "baseFormatter"
    logs["loggers"] |= {f"nvflare.{name}": {"level": "WARNING"} for name in NOISY}
    return logs


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
