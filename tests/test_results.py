"""The results that are kept: their overview is what their pages say, their commands are of this version."""

import importlib.util
import json
import shlex
import subprocess
import sys
import tarfile
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedsaddle.cli import app
from fedsaddle.studies import reproduce, study

ROOT = Path(__file__).parent.parent
KEPT = sorted((ROOT / "docs" / "results").glob("*/*/study.json"))


def test_the_overview_is_what_the_pages_say():
    done = subprocess.run([sys.executable, ROOT / "benchmarks" / "overview.py", "--check"], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.parent.relative_to(ROOT / "docs" / "results").as_posix())
def test_the_command_of_a_page_can_be_given_again(path):
    """Its recipe, methods and settings exist, and the page shows these methods and their claims."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    words = shlex.split(kept["command"])
    given = {flag: [value for name, value in pairwise(words) if name == flag]
             for flag in ("--only", "--set", "--seeds")}
    plan = reproduce.planned(study.load(words[2]), int(given["--seeds"][0]), False, given["--only"], given["--set"])
    labels = {errand.folder.parent.name for errand in reproduce.errands(plan, path.parent, alone=False)}
    results = json.loads((path.parent / "results.json").read_text(encoding="utf-8"))["methods"]
    assert set(results) == labels


@pytest.fixture
def script(monkeypatch):
    """A script of benchmarks/, which is no package, as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))

    def loaded(path):
        spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / "benchmarks" / path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return loaded


@pytest.fixture
def home(script):
    return script("lent/home.py")


def test_a_kept_study_comes_back_whole(script, tmp_path):
    """All that a report of it needs, for runs that have ended; the page is the same again."""
    keep, out = script("keep.py"), tmp_path / "out"
    command = ["reproduce", "drfa/adult-gender", "--quick", "--jobs", "1", "--seeds", "1", "--only", "DRFA",
               "--set", "data.name=digits", "--set", "model.name=linear", "--set", "data.partition=iid"]
    done = CliRunner().invoke(app, [*command, "--out", str(out)])
    assert done.exit_code == 0, done.output
    keep.keep(out, tmp_path / "kept")
    keep.back(tmp_path / "kept", tmp_path / "again")
    here, back = (folder / "DRFA" / "seed-0" for folder in (out, tmp_path / "again"))
    for name in ("run.toml", "records.jsonl", "final.json", "summary.json"):
        assert (back / name).read_bytes() == (here / name).read_bytes()
    assert CliRunner().invoke(app, ["report", str(tmp_path / "again")]).exit_code == 0
    page = (tmp_path / "again" / "report.html").read_text()
    assert "drfa, Figure 4" in page and "The paper&#x27;s claims" in page
    (tmp_path / "again" / "results.json").unlink()
    done = CliRunner().invoke(app, [*command, "--no-run", "--out", str(tmp_path / "again")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "again" / "results.json").read_bytes() == (tmp_path / "kept" / "results.json").read_bytes()
    with pytest.raises(SystemExit, match="is there already"):
        keep.back(tmp_path / "kept", tmp_path / "again")

    page = tmp_path / "kept" / "results.json"  # as if another method had been kept before
    page.write_text(page.read_text().replace('"methods": {', '"methods": {"AFL": {}, '))
    with pytest.raises(SystemExit, match="its page has AFL"):
        keep.keep(out, tmp_path / "kept")
    assert (tmp_path / "kept" / "runs.tar.xz").exists()


PLANS = sorted((ROOT / "benchmarks" / "lent" / "plans").glob("*.json"))


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_what_is_to_be_run_on_lent_machines_can_be_run(path, home, script):
    """An hour of a GPU is not lost to a misspelt setting; entries of one page are of one recipe, and can be kept."""
    for entry in json.loads(path.read_text(encoding="utf-8")):
        assert set(entry) <= {"recipe", "to", "page", "only", "set", "seeds"}
        plan = reproduce.planned(study.load(entry["recipe"]), 3, False, entry.get("only", ()), entry.get("set", ()))
        assert reproduce.errands(plan, path.parent, alone=False)
    for folder, entries in home.pages([path]).items():
        words = home.command(path.parent / folder, entries)
        assert words[:2] == ["reproduce", entries[0]["recipe"]]
        labels = [entry.get("only", study.load(entry["recipe"]).tables["algorithms"]) for entry in entries]
        page = ROOT / "docs" / "results" / entries[0].get("page", entries[0]["recipe"])
        assert script("keep.py").methods(page) <= {label for each in labels for label in each}


def test_what_comes_back_from_a_lent_machine_lies_beside_what_came_before(home, tmp_path):
    def run(where, rounds, ended):
        where.mkdir(parents=True)
        (where / "records.jsonl").write_text("{}\n" * rounds)
        if ended:
            (where / "ended.json").write_text('{"how": "diverged", "why": "inf"}')

    here, back = tmp_path / "results", tmp_path / "away" / "results"
    run(here / "auc" / "ONE" / "seed-0", 7, ended=True)
    run(here / "auc" / "ONE" / "seed-1", 3, ended=False)
    run(back / "auc" / "ONE" / "seed-0", 2, ended=False)  # begun anew on another machine
    run(back / "auc" / "ONE" / "seed-1", 9, ended=True)
    run(back / "auc" / "ADA" / "seed-0", 5, ended=False)
    with tarfile.open(tmp_path / "runs.tar.xz", "w:xz") as archive:
        archive.add(back, "results")
    home.unpack(tmp_path / "runs.tar.xz", here)
    rounds = {path.parent.relative_to(here).as_posix(): len(path.read_text().splitlines())
              for path in here.rglob("records.jsonl")}
    assert rounds == {"auc/ONE/seed-0": 7, "auc/ONE/seed-1": 9, "auc/ADA/seed-0": 5}

    entries = [{"recipe": "cdma/auc-mnist", "only": ["CDMA-ADA"], "set": ["run.rounds=9"], "seeds": [0]},
               {"recipe": "cdma/auc-mnist", "only": ["CDMA-ONE"], "seeds": [0, 1]}]
    for label in ("CDMA-ADA", "CDMA-ONE"):
        run(here / "mnist" / label / "seed-0", 1, ended=True)
    assert home.command(here / "mnist", entries)[2:] == [
        "--no-run", "--seeds", "2", "--out", str(here / "mnist"), "--only", "CDMA-ADA", "--only", "CDMA-ONE",
        "--set", "run.rounds=9"]
