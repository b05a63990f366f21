"""Run folders as series: found at any depth, read, and put together where they differ in nothing but their seed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedsaddle.config import COMPUTED
from fedsaddle.config.files import read
from fedsaddle.contracts import SettingError
from fedsaddle.report.folder import RunFolder

SEED = re.compile(r"seed-?\d+$")
COMPLETE, UNFINISHED, DIVERGED = "complete", "unfinished", "diverged"


class Run(NamedTuple):
    """One run folder, read."""

    folder: Path  # as it was given
    tables: dict[str, Any]  # of run.toml
    records: list[dict[str, Any]]
    ended: dict[str, Any]  # how it ended early: how, round, why; empty where it did not
    complete: bool

    @property
    def seed(self) -> int:
        return int(self.tables.get("run", {}).get("seed", 0))

    @property
    def state(self) -> str:
        """How it stands: complete, unfinished, or how it ended early, such as diverged."""
        return str(self.ended.get("how", DIVERGED)) if self.ended else COMPLETE if self.complete else UNFINISHED

    @property
    def alarm(self) -> str:
        """What was wrong with its solution at the last evaluation, such as scores that are all the same."""
        last: list[str] = next((record["alarms"] for record in reversed(self.records) if "alarms" in record), [])
        return last[0] if last else ""

    @property
    def died(self) -> bool:
        """Whether it diverged, or came to its end with a solution that is worth nothing."""
        return self.state == DIVERGED or (self.state == COMPLETE and bool(self.alarm))

    @property
    def home(self) -> tuple[str, ...]:
        """The parts of its path without those that name a seed."""
        return tuple(part for part in self.folder.resolve().parts if not SEED.match(part))

    def extra(self, name: str) -> dict[str, Any]:
        """A further file of the folder, such as final.json; empty where there is none."""
        return read_json(self.folder / name)


class Series(NamedTuple):
    """Runs that differ in nothing but their seed."""

    label: str
    runs: tuple[Run, ...]

    @property
    def tables(self) -> dict[str, Any]:
        return self.runs[0].tables

    @property
    def evaluated(self) -> tuple[Run, ...]:
        """Those whose numbers count: complete ones; where there is none, those cut short. Never diverged ones."""
        complete = tuple(run for run in self.runs if run.state == COMPLETE)
        return complete or tuple(run for run in self.runs if run.state != DIVERGED)


def gather(folders: Sequence[Path]) -> list[Series]:
    """The series of all run folders in and below these folders, in order of discovery."""
    runs: dict[Path, Run] = {}
    for folder in folders:
        found = find(folder)
        if not found:
            raise SettingError(f"{str(folder)!r}: holds no run; give a folder that `fedsaddle run` wrote, or one above "
                               "such folders")
        for path in found:
            runs.setdefault(path.resolve(), read_run(path))
    if not any(run.records for run in runs.values()):
        raise SettingError(f"{', '.join(repr(str(folder)) for folder in folders)}: no round has been recorded yet; "
                           "wait for the run, or give other folders")
    return grouped(runs.values())


def find(folder: Path) -> list[Path]:
    """Run folders in and below a folder: methods in the order of their file or study, numbers in their own order."""
    if not folder.is_dir():
        raise SettingError(f"{str(folder)!r}: is not a folder; give a run folder, or one above run folders")
    own = read(folder / "run.toml") if (folder / "run.toml").exists() else {}
    if (folder / "records.jsonl").exists():
        if not (folder / "run.toml").exists():
            raise SettingError(f"{str(folder)!r}: holds records.jsonl but no run.toml; a run folder needs both, leave "
                               "this one out")
        return [folder]
    if "algorithm" in own:
        return [folder]  # begun, with nothing recorded yet
    methods = list(own.get("algorithms", {})) or study_of([folder]).get("methods", [])
    try:
        inside = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError as error:
        raise SettingError(f"{str(folder)!r}: cannot be read ({error.strerror}); give a folder you may read") from error
    inside.sort(key=lambda path: (methods.index(path.name) if path.name in methods else len(methods),
                                  [(int(part), "") if part.isdigit() else (-1, part)
                                   for part in re.split(r"(\d+)", path.name)]))
    return [found for path in inside for found in find(path)]


def read_run(folder: Path) -> Run:
    tables = read(folder / "run.toml")
    try:
        records = RunFolder(folder).records()
        for record in records:
            record["round"], record["total"]["floats_up"], record["asks"]  # what every record has
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingError(f"{str(folder)!r}: records.jsonl is damaged ({type(error).__name__}: {error}); leave this "
                           "folder out, or mend the file") from error
    ended = read_json(folder / "ended.json")
    if not ended and records and records[-1].get("diverged"):
        ended = {"how": DIVERGED, "round": records[-1]["round"], "why": "the variables are no longer finite"}
    return Run(folder, tables, records, ended, RunFolder(folder).complete)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingError(f"{str(path)!r}: cannot be read ({error}); mend or remove it") from error
    if not isinstance(found, dict):
        raise SettingError(f"{str(path)!r}: is not a JSON object; mend or remove it")
    return found


def study_of(folders: Iterable[Path]) -> dict[str, Any]:
    """What `fedsaddle reproduce` noted in the first of these folders that has it: measure, claims, how it was made."""
    return next(filter(None, (read_json(folder / "study.json") for folder in folders)), {})


def grouped(runs: Iterable[Run]) -> list[Series]:
    """Runs of equal settings together. A seed stands once in a series: the same seed again opens another one."""
    found: list[tuple[str, list[Run]]] = []
    for run in runs:
        own = sameness(run)
        fitting = [members for key, members in found
                   if key == own and run.seed not in {member.seed for member in members}]
        at_home = [members for members in fitting if members[0].home == run.home]
        if fitting:
            (at_home or fitting)[0].append(run)
        else:
            found.append((own, [run]))
    series = [tuple(sorted(members, key=lambda run: run.seed)) for _, members in found]
    return [Series(label, members) for label, members in zip(labels(series), series, strict=True)]


def sameness(run: Run) -> str:
    """Equal for seeds of one series."""
    how = {name: value for name, value in run.tables.get("run", {}).items() if name not in (*COMPUTED, "seed")}
    # Settings of a run from Python do not name its method: there the folder's name tells methods apart.
    told = "" if "algorithm" in run.tables or "algorithms" in run.tables else run.home[-1]
    return json.dumps([told, {**run.tables, "run": how}], sort_keys=True, default=str)


def labels(series: Sequence[Sequence[Run]]) -> list[str]:
    """The folder's name without its seed; where several share it, with as many folders above as tell them apart."""
    homes = [runs[0].home for runs in series]
    full = [runs[0].folder.resolve().parts for runs in series]
    result = [home[-1] for home in homes]
    for name in {name for name in result if result.count(name) > 1}:
        same = [at for at, each in enumerate(result) if each == name]
        parts = homes if len({homes[at] for at in same}) == len(same) else full
        depth = next(depth for depth in range(2, 1000) if len({parts[at][-depth:] for at in same}) == len(same))
        for at in same:
            result[at] = "/".join(parts[at][-depth:])
    return result


def flat(tables: Any, name: str = "") -> dict[str, Any]:
    """Settings under dotted names."""
    if isinstance(tables, list) and any(isinstance(each, dict) for each in tables):
        tables = {str(at): each for at, each in enumerate(tables)}
    if not isinstance(tables, dict):
        return {name: tables}
    return {key: value for each, inner in tables.items()
            for key, value in flat(inner, f"{name}.{each}" if name else str(each)).items()}


def settings(series: Sequence[Series]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """What all series share, and what differs: under every name one value per series, None where it has none."""
    each = [flat(one.tables) for one in series]
    for values in each:
        values.pop("run.seed", None)
    names = list(dict.fromkeys(name for values in each for name in values))
    common, different = {}, {}
    for name in names:
        held = [values.get(name) for values in each]
        if all(value == held[0] for value in held):
            common[name] = held[0]
        else:
            different[name] = held
    return common, different
