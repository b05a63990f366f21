"""The search over settings: the right best, what dies is never it, resumable, and its best file runs.

Runs are carried out in this process: that workers are processes is the business of test_errands.
"""

import json
import math
import os
import statistics
import sys
import tomllib

import pytest
import tomli_w
import typer
from typer.testing import CliRunner

from fedsaddle import cli_sweep
from fedsaddle.cli import app as fedsaddle
from fedsaddle.config import method, settle
from fedsaddle.contracts import SettingError
from fedsaddle.report.folder import RunFolder
from fedsaddle.studies import errands, points, study, sweep, trials, worker
from fedsaddle.studies.errands import News

app = typer.Typer(pretty_exceptions_enable=False)
app.callback()(lambda: None)
cli_sweep.add_to(app)

SIZES = {"name": "quadratic", "dimension_x": 3, "dimension_y": 2}
RUN = {"rounds": 24, "evaluate_every": 4, "checkpoint_every": 4, "batch_size": 2, "execution": "eager"}
ONE = {"run": RUN, "data": {**SIZES, "clients": 6}, "problem": SIZES,
       "algorithm": {"name": "parallel-sgda", "asked": 3, "eta": 0.01, "gamma": 0.1}}
TWO = {**{name: table for name, table in ONE.items() if name != "algorithm"},
       "algorithms": {"SGDA": ONE["algorithm"], "EG": {"name": "extra-step-local-sgd", "eta": 0.01}}}


@pytest.fixture
def begun(monkeypatch):
    """Folders of the runs that were begun or gone on with, in order."""
    folders = []

    def serve(waiting, heard, interrupted):
        shared = worker.Shared()
        while not (waiting.empty() or interrupted()):
            errand, _ = waiting.get_nowait()
            folders.append(errand.folder)
            worker._say = lambda folder=errand.folder, **news: heard.put(News(folder, **news))
            heard.put(News(errand.folder, **worker.carried(
                {"folder": str(errand.folder), "pruning": errand.pruning}, shared, interrupted)))
        heard.put(None)

    monkeypatch.setattr(worker, "_say", worker._say)
    monkeypatch.setattr(errands, "_serve", serve)
    return folders


@pytest.fixture
def called(begun, tmp_path, monkeypatch):
    """Calls the command on tables, gives its result and sweep.json."""
    monkeypatch.chdir(tmp_path)

    def call(tables, *words, code=0):
        (tmp_path / "file.toml").write_text(tomli_w.dumps(tables))
        result = CliRunner().invoke(app, ["sweep", "file.toml", "--jobs", "1", "--out", "out", *words],
                                    env={"COLUMNS": "150"})
        if isinstance(result.exception, SettingError):
            raise result.exception
        assert result.exit_code == code, result.output
        return result, json.loads((tmp_path / "out" / "sweep.json").read_text())

    return call


def test_a_grid_finds_the_better_step_and_what_diverges_is_never_best(called, begun, tmp_path):
    result, got = called(ONE, "--grid", "algorithm.eta=1e30,0.001,0.1", "--seeds", "2", "--no-prune")
    best, worse, dead = got["methods"]["parallel-sgda"]["trials"]
    assert [one["values"]["algorithm.eta"] for one in (best, worse, dead)] == [0.1, 0.001, 1e30]
    assert (got["measure"], got["higher"]) == ("train.distance", False)
    folder = tmp_path / "out" / best["folder"]
    ends = [RunFolder(folder / f"seed-{seed}").records()[-1]["measures"]["train"]["distance"] for seed in (0, 1)]
    assert best["by_seed"] == {"0": ends[0], "1": ends[1]} and ends[0] != ends[1]
    assert best["mean"] == pytest.approx(sum(ends) / 2)
    assert best["mean"] < 0.5 < worse["mean"]
    assert (dead["state"], dead["died"], dead["mean"]) == ("died", 1.0, None)
    assert "no longer finite" in dead["why"]["0"]
    assert got["methods"]["parallel-sgda"]["best"] == best["number"] == 2
    assert "2 of 2" in result.output and "3 trials, 0 pruned" in result.output
    assert len(begun) == 6


def test_a_sweep_goes_on_where_it_was_and_ends_the_same(called, begun, tmp_path):
    words = ("--grid", "algorithm.eta=0.02,0.1", "--seeds", "2", "--no-prune")
    _, whole = called(ONE, *words)
    lost = begun[1]  # as if killed before its last checkpoint was written
    os.unlink(lost / "summary.json")
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("records.jsonl")
             if path.parent != lost.resolve()}
    begun.clear()
    _, again = called(ONE, *words)
    assert again == whole
    assert begun == [lost]
    assert times == {path: path.stat().st_mtime_ns for path in times}
    begun.clear()
    _, wider = called(ONE, "--grid", "algorithm.eta=0.05,0.02,0.1", "--seeds", "2", "--no-prune")
    assert {folder.parent.name for folder in begun} == {"002-eta=0.05"}
    assert len(wider["methods"]["parallel-sgda"]["trials"]) == 3
    with pytest.raises(SettingError, match="other settings"):
        called(ONE, *words, "--set", "run.batch_size=3")


def test_a_hopeless_trial_is_given_up_and_its_other_seeds_are_not_run(called, begun):
    result, got = called(ONE, "--grid", "algorithm.eta=0.1,0.12,0.09,0.08,0.0001,0.11", "--seeds", "2")
    states = {one["values"]["algorithm.eta"]: one for one in got["methods"]["parallel-sgda"]["trials"]}
    assert (states[0.0001]["state"], states[0.0001]["pruned_at"]) == ("pruned", 8)  # a quarter is 6, evaluated every 4
    alive = [one for one in states.values() if one["state"] == "finished"]
    assert min(alive, key=lambda one: one["mean"])["number"] == got["methods"]["parallel-sgda"]["best"]
    assert not any("eta=0.0001" in str(folder) for folder in begun if folder.name == "seed-1")
    assert sum(folder.name == "seed-1" for folder in begun) == len(alive)
    assert f"{6 - len(alive)} pruned" in result.output


def test_several_methods_are_searched_each_on_its_own_and_the_best_file_runs(called, tmp_path):
    called(TWO, "--grid", "algorithm.gamma=0.01,0.1", "--grid", "algorithms.EG.eta=0.02,0.1", "--grid",
           "run.batch_size=1,3", "--seeds", "1", "--value", "best", "--lower", "--set", "run.rounds=8")
    got = json.loads((tmp_path / "out" / "sweep.json").read_text())["methods"]
    assert {name: len(found["trials"]) for name, found in got.items()} == {"SGDA": 4, "EG": 4}
    text = (tmp_path / "out" / "best.toml").read_text()
    for label, found in got.items():
        first = found["trials"][0]
        assert f"{label}: train.distance {first['mean']:.4f}" in text
        (folder,) = (tmp_path / "out" / first["folder"]).glob("seed-0")
        ran, best = settle(RunFolder(folder).tables()), method(settle(tomllib.loads(text)), label)
        assert best.algorithms == ran.algorithms
        assert best.run.batch_size == ran.run.batch_size == first["values"]["run.batch_size"]
    done = CliRunner().invoke(fedsaddle, ["run", "out/best.toml", "--out", "best", "--set", "run.workers=1"])
    assert done.exit_code == 0, done.output
    first = got["SGDA"]["trials"][0]
    ends = [RunFolder(path).records()[-1]["measures"] for path in
            (tmp_path / "best" / "SGDA", tmp_path / "out" / first["folder"] / "seed-0")]
    assert ends[0] == ends[1]
    with pytest.raises(SettingError, match="was not written by a sweep"):
        called(TWO, "--grid", "algorithm.gamma=0.01", "--best", "file.toml")


def test_a_dead_score_counts_as_died(called, begun, tmp_path):
    words = ("--grid", "algorithm.eta=0.02,0.1", "--seeds", "1")
    best = called(ONE, *words)[1]["methods"]["parallel-sgda"]["trials"][0]
    file = tmp_path / "out" / best["folder"] / "seed-0" / "records.jsonl"
    *lines, last = file.read_text().splitlines()
    last = json.dumps({**json.loads(last), "alarms": ["train: the score is saturated"]})
    file.write_text("\n".join([*lines, last, ""]))
    begun.clear()
    got = called(ONE, *words)[1]["methods"]["parallel-sgda"]
    assert not begun
    assert got["best"] != best["number"]
    assert (got["trials"][-1]["number"], got["trials"][-1]["state"], got["trials"][-1]["died"]) == (
        best["number"], "died", 1.0)


def test_a_range_is_searched_and_a_killed_search_ends_with_the_same_trials(called, begun, tmp_path):
    pytest.importorskip("optuna")
    words = ("--search", "algorithm.eta=1e-4:0.2:log", "--grid", "algorithm.gamma=0.01,0.1", "--trials", "11",
             "--seeds", "1", "--no-prune", "--set", "run.rounds=8")
    _, whole = called(ONE, *words)
    found = sorted(whole["methods"]["parallel-sgda"]["trials"], key=lambda one: one["number"])
    means = [one["mean"] for one in found]
    assert len(found) == 11 and min(means) < means[0]
    assert {one["values"]["algorithm.gamma"] for one in found} == {0.01, 0.1}
    for one in found[6:]:  # killed in the middle of its second wave
        for path in sorted((tmp_path / "out" / one["folder"]).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (tmp_path / "out" / one["folder"]).rmdir()
    begun.clear()
    assert called(ONE, *words)[1] == whole
    assert len(begun) == 5
    with pytest.raises(SettingError, match="another search"):
        called(ONE, "--search", "algorithm.eta=1e-3:0.2:log", "--grid", "algorithm.gamma=0.01,0.1", *words[4:])


def test_points_are_asked_for_where_others_did_well():
    pytest.importorskip("optuna")
    axes = {**points.ranges(["a.b=1e-4:1:log"]), **points.choices(["c.d=x,y"])}
    drawn = points.asked(axes, [], 30, True, 10, 0)
    size = [-math.log10(one["a.b"]) for one in drawn]  # 0 to 4

    def near(scores, higher):
        told = [points.Told(one, score) for one, score in zip(drawn, scores, strict=True)]
        return [-math.log10(one["a.b"]) for one in points.asked(axes, told, 12, higher, 10, 1)]

    assert all(axes[key].holds(value) for one in drawn for key, value in one.items())
    assert 1.2 < statistics.fmean(size) < 2.8
    assert statistics.fmean(near(size, True)) > 3 and statistics.fmean(near(size, False)) < 1
    died = [None if one < 2 else 1.0 - abs(one - 3) for one in size]  # large steps die, however well they would do
    assert sum(one > 2 for one in near(died, True)) >= 10


def test_without_optuna_the_extra_is_named(called, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SettingError, match=r"fedsaddle\[sweep\]"):
        called(ONE, "--search", "algorithm.eta=1e-4:0.2:log")


@pytest.mark.parametrize(("words", "said"), [
    (("--grid", "algorithm.etta=0.1"), r"algorithm\.etta: is no setting of parallel-sgda; did you mean 'eta'"),
    (("--grid", "run.batch=1,2"), r"run\.batch = 1: no such setting; did you mean 'batch_size'"),
    (("--grid", "algorithm.eta="), "lacks a value"),
    (("--grid", "algorithm.eta=0.1,-1"), "above 0"),
    (("--search", "algorithm.eta=1:0.1"), "1 is not below 0.1"),
    (("--search", "algorithm.eta=0:0.1:log"), "starts above 0"),
    (("--search", "algorithm.eta=a:b"), "low:high"),
    (("--grid", "algorithm.eta=0.1", "--measure", "train.gapp"), r"did you mean 'train\.gap'\?; .*, train\.primal,"),
    (("--grid", "algorithm.eta=0.1", "--trials", "3"), "a grid is tried as a whole"),
    (("--grid", "algorithms.SGDA.eta=0.1"), "no method of that name"),
    (("--paper-grid",), r"has no \[grid\]"),
    ((), "nothing to search"),
])
def test_what_cannot_be_is_refused_before_anything_runs(called, begun, tmp_path, words, said):
    with pytest.raises(SettingError, match=said):
        called(ONE, *words)
    assert not begun and not (tmp_path / "out").exists()


def test_a_recipe_without_a_paper_is_compared_by_its_headline(tmp_path):
    loaded = study.load("digits-auc")
    plan = sweep.planned(loaded, (), sweep.Asked(points.choices(["algorithm.eta=0.1,1"]), only=("CDMA-NC",)), tmp_path)
    assert plan.goal == ("test.auc", True, "end", 1)
    assert list(plan.axes) == ["CDMA-NC"]


def test_values_are_read_as_in_an_assignment():
    assert points.choices(["a.b=0.1,1e-3", "c.d=[32],[64,32]", "e.f=word,2,'3,4'"]) == {
        "a.b": points.Choice((0.1, 1e-3)), "c.d": points.Choice(([32], [64, 32])),
        "e.f": points.Choice(("word", 2, "'3", "4'"))}


def test_the_grid_of_a_paper_goes_to_the_methods_that_have_the_setting(tmp_path):
    (tmp_path / "file.toml").write_text(tomli_w.dumps(
        {**TWO, "grid": {"algorithm.eta": [0.1, 0.2], "algorithm.gamma": [1.0], "algorithms.EG.eta": [0.3],
                         "overrides.EG.run.batch_size": [4]}}))
    loaded = study.load(str(tmp_path / "file.toml"))
    asked = sweep.Asked(points.from_table(loaded.grid))
    plan = sweep.planned(loaded, (), asked, tmp_path / "out")
    assert {label: points.product(axes) for label, axes in plan.axes.items()} == {
        "SGDA": [{"algorithm.eta": 0.1, "algorithm.gamma": 1.0}, {"algorithm.eta": 0.2, "algorithm.gamma": 1.0}],
        "EG": [{"algorithm.eta": 0.3, "run.batch_size": 4}]}
    assert trials.settings_of(plan, "EG", {"algorithm.eta": 0.3, "run.batch_size": 4}, 7).run.batch_size == 4
