"""Many runs, carried out by a few processes: resumable, and what is done is skipped.

A run is a folder with its settings; a worker process is told folders, one after the other, as lines of JSON, and tells
how far it is in the same way. So nothing but text passes between processes, and one that dies loses nothing but the
rounds since its last checkpoint.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedsaddle.assemble import device_of
from fedsaddle.config import COMPUTED, Settings, read, settle, tables_of
from fedsaddle.contracts import SettingError
from fedsaddle.report.folder import RunFolder
from fedsaddle.runs import interruptible

COMPLETE, DIVERGED, PRUNED, STOPPED, FAILED = "complete", "diverged", "pruned", "stopped", "failed"
TRIES = 2  # of a run whose process died
ON_A_GPU = 4  # runs at once: one small model does not fill it
# Ctrl-C ends a worker that is still importing, in silence
START = ("import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "
         "from fedsaddle.studies.worker import main; main()")


class Errand(NamedTuple):
    """A run to be carried out."""

    folder: Path
    settings: Settings  # of one method
    pruning: dict[str, Any] | None = None  # when to give up, see `pruning.Pruning`


class News(NamedTuple):
    """From a worker: how far a run is, or how it ended."""

    folder: Path
    round: int = 0
    state: str = ""  # one of the words above, once it has ended
    why: str = ""
    measures: dict[str, Any] | None = None


def ended(folder: Path) -> str:
    """How the run in a folder has ended; empty: it has not."""
    if (folder / "ended.json").exists():
        return str(json.loads((folder / "ended.json").read_text(encoding="utf-8"))["how"])
    return COMPLETE if RunFolder(folder).complete else ""


def usual_jobs(settings: Settings) -> int:
    """Runs at once, where nobody says how many."""
    return ON_A_GPU if device_of(settings.run).type == "cuda" else os.cpu_count() or 1


def prepare(errand: Errand) -> None:
    """Make the folder, or see that what is in it has the same settings. A run of fewer rounds is made longer."""
    if not (errand.folder / "run.toml").exists():
        RunFolder(errand.folder).create(tables_of(errand.settings))
    elif errand.pruning is None and _there(errand).run.rounds < errand.settings.run.rounds:
        _compare(errand, rounds=errand.settings.run.rounds)
        RunFolder(errand.folder).lengthen(tables_of(errand.settings))
    else:
        _compare(errand)


def _compare(errand: Errand, **but: Any) -> None:
    """See that the run that is there has the settings of the errand, but for these of [run]."""
    there = _there(errand)
    there = replace(there, run=replace(there.run, **but))
    if _asked_for(there) != _asked_for(errand.settings):
        raise SettingError(f"--out {str(errand.folder)!r}: holds a run with other settings; give another folder, or "
                           "remove it")


def _there(errand: Errand) -> Settings:
    return settle(read(errand.folder / "run.toml"))


def see_to(errands: Sequence[Errand]) -> None:
    """See that what is there of the runs has their settings; make nothing."""
    begun = [errand for errand in errands if (errand.folder / "records.jsonl").exists()]
    if not begun:
        raise SettingError(f"--no-run: no run of {str(errands[0].folder.parent.parent)!r} has recorded a round yet; "
                           "leave it out, or give the folder of such runs with --out")
    for errand in begun:
        _compare(errand)


def _asked_for(settings: Settings) -> dict[str, Any]:
    """The settings without those that say how it is computed."""
    tables = tables_of(settings)
    return tables | {"run": {name: value for name, value in tables["run"].items() if name not in COMPUTED}}


def carry_out(errands: Sequence[Errand], jobs: int, tell: Callable[[News], None]) -> dict[Path, News]:
    """All that have not ended yet, so many at a time; how each of them ended. Ctrl-C: each stops with a checkpoint."""
    found: dict[Path, News] = {}
    waiting: queue.SimpleQueue[tuple[Errand, int]] = queue.SimpleQueue()
    for errand in errands:
        prepare(errand)  # one that has ended, too: its numbers would pass for those of other settings
        state = ended(errand.folder)
        if state:
            found[errand.folder] = News(errand.folder, errand.settings.run.rounds, state)
            tell(found[errand.folder])
        else:
            waiting.put((errand, 1))
    heard: queue.SimpleQueue[News | None] = queue.SimpleQueue()
    with interruptible() as interrupted:  # Ctrl-C reaches the workers as well, which stop with a checkpoint
        left = min(jobs, waiting.qsize())
        for _ in range(left):
            threading.Thread(target=_serve, args=(waiting, heard, interrupted), daemon=True).start()
        while left:
            news = heard.get()
            if news is None:
                left -= 1
                continue
            if news.state:
                found[news.folder] = news
            tell(news)
    return found


def _serve(
    waiting: queue.SimpleQueue[tuple[Errand, int]], heard: queue.SimpleQueue[News | None],
    interrupted: Callable[[], bool],
) -> None:
    """One worker process and its errands; a process that dies is replaced, unless the user has stopped all."""
    process = None
    try:
        while not interrupted():
            errand, attempt = waiting.get_nowait()
            process = process if process and process.poll() is None else _started()
            news = _one(process, errand, heard)
            died = news.state == FAILED and news.why == ""
            if died and interrupted():
                heard.put(news._replace(state=STOPPED))
            elif died and attempt < TRIES:
                waiting.put((errand, attempt + 1))
            else:
                heard.put(news._replace(why="its process died") if died else news)
    except queue.Empty:
        pass
    finally:
        if process and process.stdin:
            with suppress(OSError):
                process.stdin.close()
            process.wait()
        heard.put(None)


def _started() -> subprocess.Popen[str]:
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", START], stdin=subprocess.PIPE, text=True,
                            stdout=subprocess.PIPE, env=surroundings, encoding="utf-8")


def _one(process: subprocess.Popen[str], errand: Errand, heard: queue.SimpleQueue[News | None]) -> News:
    assert process.stdin
    assert process.stdout
    with suppress(BrokenPipeError):
        process.stdin.write(json.dumps({"folder": str(errand.folder), "pruning": errand.pruning}) + "\n")
        process.stdin.flush()
    for line in process.stdout:
        if not line.startswith("{"):  # what a library prints
            continue
        news = News(errand.folder, **json.loads(line))
        if news.state:
            return news
        heard.put(news)
    process.wait()
    return News(errand.folder, state=FAILED)
