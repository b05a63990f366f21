# mypy: disable-error-code="import-untyped,import-not-found"
"""The desk at which a job is submitted, in the name of the admin's kit: NVFlare's own API, in this process."""

from __future__ import annotations

import contextlib
import io
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fedsaddle.sites.nvflare.kit import Kit
from fedsaddle.sites.nvflare.running import NVFlareFailed

PATIENCE = 20.0  # seconds to be let in
FRESH = 8.0  # seconds since its last sign of life for which a site is taken for connected
T = TypeVar("T")


class Desk:
    """Used by one thread at a time. Whatever goes wrong is NVFlareFailed; `close`, and make another one."""

    def __init__(self, kit: Kit, space: Path) -> None:
        from nvflare.fuel.flare_api.flare_api import new_secure_session  # noqa: PLC0415  # an extra

        logging.getLogger("nvflare").setLevel(logging.CRITICAL)  # it tells on our terminal what it tries
        with contextlib.redirect_stdout(io.StringIO()):
            self.session: Any = self._tried(lambda: new_secure_session(kit.name, str(space), timeout=PATIENCE),
                                            "the server does not let the admin's kit in")

    def sites(self) -> list[str]:
        """Who is connected."""
        info = self._tried(self.session.get_system_info, "the server does not say who is connected")
        now = time.time()
        return sorted(client.name for client in info.client_info if now - float(client.last_connect_time) < FRESH)

    def submit(self, job: Path) -> str:
        return str(self._tried(lambda: self.session.submit_job(str(job)), "the job was not taken"))

    def abort(self, job: str) -> None:
        with contextlib.suppress(NVFlareFailed):  # it may have ended already
            self._tried(lambda: self.session.abort_job(job), "the job was not ended")

    def close(self) -> None:
        with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
            self.session.close()

    def _tried(self, what: Callable[[], T], why: str) -> T:
        try:
            return what()
        except Exception as error:  # its classes have nothing in common
            raise NVFlareFailed(f"{why} ({type(error).__name__}: {str(error)[:200]})") from error
