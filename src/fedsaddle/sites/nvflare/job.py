"""The job that NVFlare carries to the sites: three files, which name two classes of this package and hold no code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from fedsaddle.sites.nvflare.kit import Kit
from fedsaddle.sites.nvflare.letters import TASK
from fedsaddle.sites.nvflare.provision import SERVER_COURIER, SITE_COURIER

POLL = 0.05  # seconds after which a site asks again for a task; NVFlare's 2 s would be waited for in every phase
INLINE = {"tensor_download_chunk_size": 0, "np_download_chunk_size": 0}  # contents travel in the message itself
FILTERS: dict[str, list[str]] = {"task_data_filters": [], "task_result_filters": [], "components": []}


def write_job(folder: Path, kit: Kit, socket: Path) -> Path:
    """The folder to submit. The server's part, with the path of the wire's socket, does not go to the sites."""
    job = folder / "job"
    if job.exists():
        shutil.rmtree(job)
    _write(job / "meta.json", {"name": "fedsaddle", "resource_spec": {}, "min_clients": 1,
                               "deploy_map": {"server": ["server"], "site": list(kit.sites)}})
    _write(job / "server" / "config" / "config_fed_server.json", {
        "format_version": 2, "server": {"heart_beat_timeout": 600, "task_request_interval": POLL}, **INLINE, **FILTERS,
        "workflows": [{"id": "courier", "path": SERVER_COURIER, "args": {"socket_path": str(socket)}}]})
    _write(job / "site" / "config" / "config_fed_client.json", {
        "format_version": 2, "default_task_fetch_interval": POLL, "task_check_interval": 0.5, **INLINE, **FILTERS,
        "executors": [{"tasks": [TASK], "executor": {"path": SITE_COURIER, "args": {}}}]})
    return job


def _write(path: Path, content: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
