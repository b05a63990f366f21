"""Studies: what a paper claims against what was measured, settings of single methods, a recipe over seeds."""

import csv
import json
import math
import re
import shutil
import statistics

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from fedsaddle import cli_studies, recipes
from fedsaddle.assemble import job_from_settings
from fedsaddle.cli import app
from fedsaddle.config import method, read, settle, tables_of
from fedsaddle.contracts import SettingError
from fedsaddle.engine import classifier
from fedsaddle.studies import curves, errands, reproduce, study, text
from fedsaddle.studies.claims import FAILS, HOLDS, UNDECIDED, UNKNOWN, Claim, Evidence, claim_from, judge
from fedsaddle.studies.curves import Curve, Look
from fedsaddle.studies.judge import with_judge

SMALL = """# two methods on digits
# - a departure
[run]
rounds = 6
evaluate_every = 2
batch_size = 5
execution = "eager"
[data]
name = "digits"
clients = 10
positive = 0
[model]
name = "linear"
[problem]
name = "auc"
[algorithms.NC]
name = "cdma-nc"
asked = 4
[algorithms.Averaged]
name = "fedavg"
asked = 4
[overrides.Averaged]
problem = "agnostic"
[overrides.Averaged.run]
rounds = 4
[overrides.Averaged.participation]
select = { name = "cyclic", groups = 2 }
[paper]
measure = "test.auc"
[paper.published]
NC = 0.9
[[paper.claims]]
text = "both are measured"
kind = "reaches"
methods = ["NC", "Averaged"]
value = 0.0
[quick]
set = ["run.rounds=2"]
seeds = 1
only = ["NC"]
"""


def curve(*values, seed=0, every=10, floats=100, died=""):
    return Curve(seed, tuple(Look(every * (i + 1), floats * (i + 1), v) for i, v in enumerate(values)), died)


def verdict(curves_, higher=True, steps=None, **claim):
    return judge(Claim(text="t", **claim), Evidence(curves_, higher, steps or {}))


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL, encoding="utf-8")
    return path


# --- claims ----------------------------------------------------------------------------------------------------------


def test_a_gap_beyond_the_spread_holds_one_within_it_is_undecided_a_wrong_order_fails():
    far = {"A": [curve(0.9), curve(0.92)], "B": [curve(0.5), curve(0.52)]}
    near = {"A": [curve(0.90), curve(0.80)], "B": [curve(0.84), curve(0.78)]}  # gap 0.04, spread 0.082
    assert verdict(far, kind="above", methods=("A",), than=("B",)).verdict == HOLDS
    assert verdict(far, kind="above", methods=("B",), than=("A",)).verdict == FAILS
    assert verdict(near, kind="above", methods=("A",), than=("B",)).verdict == UNDECIDED


def test_an_order_that_is_there_on_every_seed_is_told_where_seeds_differ_more():
    runs = {"A": [curve(0.90, seed=0), curve(0.50, seed=1), curve(0.70, seed=2)],
            "B": [curve(0.49, seed=1), curve(0.88, seed=0), curve(0.71, seed=2)],
            "C": [curve(0.10, seed=1), curve(0.20, seed=0), curve(0.99, seed=2, died="diverged")._replace(cut=True)]}
    told = {other: verdict(runs, kind="above", methods=("A",), than=(other,)) for other in "BC"}
    assert told["B"].verdict == UNDECIDED and told["B"].detail.endswith("as claimed on 2 of 3 seeds")
    assert told["C"].verdict == HOLDS and told["C"].detail.endswith("as claimed on 2 of 2 seeds")
    losses = verdict(runs, higher=False, kind="not below", methods=("A",), than=("B",), margin=0.015)
    assert losses.detail.endswith("as claimed on 2 of 3 seeds")  # 0.50 against 0.49, and 0.70 against 0.71
    assert "as claimed on" not in verdict({"A": [curve(0.9)], "B": [curve(0.5)]}, methods=("A",), than=("B",)).detail


def test_where_less_is_better_the_lower_curve_is_above():
    losses = {"A": [curve(0.1)], "B": [curve(0.7)]}
    assert verdict(losses, higher=False, kind="above", methods=("A",), than=("B",)).verdict == HOLDS
    assert verdict(losses, higher=False, kind="above", methods=("B",), than=("A",)).verdict == FAILS


def test_the_least_favourable_pair_decides():
    three = {"A": [curve(0.9)], "B": [curve(0.5)], "C": [curve(0.95)]}
    assert verdict(three, kind="above", methods=("A",), than=("B", "C")).verdict == FAILS


def test_at_equal_floats_a_method_is_read_where_all_have_sent_as_much():
    runs = {"A": [curve(0.6, 0.7, 0.9, floats=100)], "B": [curve(0.65, 0.8, floats=100)]}  # B ends at 200 floats
    ahead = verdict(runs, kind="above", methods=("A",), than=("B",), at="end")
    behind = verdict(runs, kind="above", methods=("A",), than=("B",), at="equal floats")
    assert (ahead.verdict, behind.verdict) == (HOLDS, FAILS)
    assert "A 0.7000" in behind.detail
    assert "B 0.8000" in behind.detail


def test_reaching_a_value_is_counted_seed_by_seed_and_only_within_the_rounds():
    runs = {"A": [curve(0.1, 0.6), curve(0.1, 0.4)]}
    half = verdict(runs, kind="reaches", methods=("A",), value=0.5)
    assert half.verdict == UNDECIDED
    assert "1 of 2 seeds (rounds 20)" in half.detail
    assert verdict(runs, kind="reaches", methods=("A",), value=0.5, within=10.0).verdict == FAILS
    assert verdict(runs, kind="never reaches", methods=("A",), value=0.5, within=10.0).verdict == HOLDS
    assert verdict(runs, kind="reaches", methods=("A",), value=0.35).verdict == HOLDS


def test_a_run_that_is_shorter_than_the_claim_does_not_refute_it():
    runs = {"A": [curve(0.1, 0.2)]}  # 20 rounds
    short = verdict(runs, kind="reaches", methods=("A",), value=0.5, within=240.0)
    assert (short.verdict, "only 20 rounds were run" in short.detail) == (UNKNOWN, True)
    assert verdict(runs, kind="never reaches", methods=("A",), value=0.5, within=240.0).verdict == UNKNOWN
    assert verdict(runs, kind="reaches", methods=("A",), value=0.2, within=240.0).verdict == HOLDS


def test_sooner_compares_rounds_and_never_counts_as_infinitely_many():
    runs = {"A": [curve(0.1, 0.6, 0.6)], "B": [curve(0.1, 0.1, 0.6)], "C": [curve(0.1, 0.1, 0.1)]}
    assert verdict(runs, kind="sooner", methods=("A",), than=("B", "C"), value=0.5).verdict == HOLDS
    assert verdict(runs, kind="sooner", methods=("B",), than=("A",), value=0.5).verdict == FAILS
    assert verdict(runs, kind="sooner", methods=("C",), than=("C",), value=0.5).verdict == FAILS


def test_runs_under_way_decide_nothing_that_they_may_still_change():
    slow = curve(0.1, 0.2)._replace(unfinished="20 of 40 rounds")
    reaches = verdict({"a": [slow]}, kind="reaches", methods=("a",), value=0.5)
    assert reaches.verdict == UNKNOWN
    assert "unfinished: a" in reaches.detail
    assert verdict({"a": [slow]}, kind="never reaches", methods=("a",), value=0.5).verdict == UNKNOWN
    assert verdict({"a": [slow]}, kind="reaches", methods=("a",), value=0.5, within=20).verdict == FAILS


def test_a_run_that_may_still_reach_a_value_takes_longer_than_it_has_gone():
    """Whether unfinished or shorter than the claim: it can be later than others already, and never yet sooner."""
    slow, over, late = curve(0.1, 0.2)._replace(unfinished="20 of 40 rounds"), curve(0.1, 0.6), curve(0.1, 0.1, 0.6)
    sooner = {"kind": "sooner", "methods": ("a",), "than": ("b",), "value": 0.5}
    assert verdict({"a": [slow], "b": [late]}, **sooner).verdict == UNKNOWN
    assert verdict({"a": [slow], "b": [over]}, **sooner).verdict == FAILS
    assert verdict({"a": [slow], "b": [over]}, **sooner | {"value": 0.15}).verdict == FAILS
    assert verdict({"a": [curve(0.6)], "b": [slow]}, **sooner).verdict == HOLDS
    short, early, within = curve(0.1, 0.2), curve(0.6, 0.6), {"within": 300.0}
    assert verdict({"a": [short], "b": [short]}, **sooner).verdict == FAILS  # all rounds that there are
    assert verdict({"a": [short], "b": [short]}, **sooner, **within).verdict == UNKNOWN
    assert verdict({"a": [short], "b": [early]}, **sooner, **within).verdict == FAILS
    assert verdict({"a": [early], "b": [short]}, **sooner, **within).verdict == HOLDS
    assert verdict({"a": [early, late], "b": [short, late]}, **sooner, **within).verdict == UNKNOWN


def test_usable_steps_are_the_most_that_lose_no_more_than_the_margin():
    runs = {"S1": [curve(0.9)], "S8": [curve(0.895)], "S32": [curve(0.85)], "P1": [curve(0.9)], "P8": [curve(0.8)]}
    steps = {"S1": 1, "S8": 8, "S32": 32, "P1": 1, "P8": 8}
    claim = {"kind": "usable", "methods": ("S1", "S8", "S32"), "than": ("P1", "P8"), "margin": 0.01}
    assert verdict(runs, steps=steps, factor=8.0, **claim).verdict == HOLDS
    assert verdict(runs, steps=steps, factor=9.0, **claim).verdict == FAILS
    uncut = verdict(runs | {"S32": [curve(0.9)], "P8": [curve(0.9)]}, steps=steps, factor=8.0, **claim)
    assert uncut.verdict == UNKNOWN  # S64 could do it
    assert "S32 has the most steps that were tried" in uncut.detail

    seeds = {"S1": [curve(0.9), curve(0.9, seed=1)], "S8": [curve(0.895), curve(0.88, seed=1)],
             "P1": [curve(0.9, seed=1), curve(0.9)], "P8": [curve(0.8), curve(0.8, seed=1)]}
    told = verdict(seeds, steps=steps, factor=8.0, **claim | {"methods": ("S1", "S8")})
    assert told.verdict == FAILS and told.detail.endswith("as claimed on 1 of 2 seeds")


def test_steps_at_which_all_runs_diverge_are_not_usable():
    dead = [curve(0.9)._replace(died="not finite", cut=True)]
    runs, steps = {"S1": [curve(0.9)], "S8": [curve(0.9)], "P1": [curve(0.9)], "P8": dead}, {"S1": 1, "S8": 8, "P8": 8}
    claim = {"kind": "usable", "methods": ("S1", "S8"), "margin": 0.01, "factor": 8.0, "steps": steps | {"P1": 1}}
    for than in (("P1", "P8"), ("P8", "P1")):
        assert verdict(runs, than=than, **claim).verdict == HOLDS
    assert verdict(runs, than=("P8",), **claim).verdict == UNKNOWN
    assert verdict(runs | {"S1": dead}, than=("P1",), **claim).verdict == HOLDS


def test_what_was_not_run_is_not_judged():
    assert verdict({"A": [curve(0.9)]}, kind="above", methods=("A",), than=("B",)).verdict == UNKNOWN


def test_a_claim_about_an_unknown_method_names_the_nearest():
    with pytest.raises(SettingError, match="'CDMA-ON' is no method of this file; did you mean 'CDMA-ONE'"):
        claim_from({"text": "t", "methods": ["CDMA-ON"], "than": ["CDMA-ONE"]}, "paper.claims.0", {"CDMA-ONE"})
    with pytest.raises(SettingError, match="needs a text, methods, and `than`"):
        claim_from({"text": "t", "methods": ["A"], "kind": "above"}, "paper.claims.0", {"A"})


def test_smoothing_is_the_mean_of_so_many_evaluations():
    records = [{"round": r, "total": {"floats_up": r}, "measures": {"test": {"auc": v}}}
               for r, v in enumerate((0.0, 0.3, 0.6, 0.9), start=1)]
    looks = curves.looks(records, "test.auc", 2)
    assert [(look.round, look.value) for look in looks] == [(2, 0.15), (3, pytest.approx(0.45)), (4, 0.75)]
    assert curves.looks(records, "train.auc", 1) == ()


# --- settings of single methods --------------------------------------------------------------------------------------


def test_overrides_are_of_one_method_alone_and_survive_being_written(small):
    settings = settle(read(small))
    assert settle(tables_of(settings)) == settings
    one, other = method(settings, "NC"), method(settings, "Averaged")
    assert (one.problem.name, one.run.rounds, one.select.name) == ("auc", 6, "uniform")
    assert (other.problem.name, other.run.rounds, other.select.name) == ("agnostic", 4, "cyclic")
    assert other.run.batch_size == one.run.batch_size == 5
    assert (other.single, other.overrides) == (True, {})
    job = job_from_settings(settings, "Averaged")
    assert (type(job.problem).__name__, job.federation.cycle, job.plan.rounds) == ("Agnostic", 2, 4)


@pytest.mark.parametrize(("change", "words"), [
    ("overrides.Avraged.run.rounds=3", "no method of that name; did you mean 'Averaged'"),
    ("overrides.NC.algorithm.eta=3", "no such section"),
    ("overrides.NC.run.rounds=0", "overrides.NC: run.rounds = 0: must be"),
])
def test_an_override_that_does_not_fit_is_refused_by_name(small, change, words):
    with pytest.raises(SettingError, match=words):
        settle(read(small), [change])


# --- recipes as studies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_is_a_study_whose_claims_are_about_its_methods(name):
    found = study.load(name)
    plan = reproduce.planned(found, None, quick=False, only=(), assignments=())
    assert plan.seeds == 3
    assert found.quick or "/" not in name, "an experiment of a paper has a miniature"
    for quick in (False, True) if found.quick else (False,):
        plan = reproduce.planned(found, None, quick=quick, only=(), assignments=())
        for errand in reproduce.errands(plan, recipes.FOLDER, alone=False):
            assert settle(tables_of(errand.settings)) == errand.settings
    assert found.paper.claims or "/" not in name


def test_an_experiment_over_seeds_ends_in_the_numbers_of_its_records(small, tmp_path):
    out, said = tmp_path / "out", []
    plan = reproduce.planned(study.load(str(small)), 2, quick=False, only=(), assignments=())
    whole = reproduce.errands(plan, out, alone=False)
    assert [errand.settings.run.seed for errand in whole] == [0, 0, 1, 1]
    found = errands.carry_out(whole, 1, said.append)
    assert {news.state for news in found.values()} == {errands.COMPLETE}
    got = reproduce.results(plan, out)
    reproduce.write(plan, out, got)

    last = {label: [json.loads((out / label / f"seed-{seed}" / "records.jsonl").read_text().splitlines()[-1])
                    ["measures"]["test"]["auc"] for seed in (0, 1)] for label in ("NC", "Averaged")}
    assert last["NC"][0] != last["NC"][1]
    numbers = json.loads((out / "results.json").read_text())["methods"]
    for label, values in last.items():
        assert numbers[label]["value"]["mean"] == pytest.approx(statistics.mean(values), abs=1e-12)
        assert numbers[label]["value"]["deviation"] == pytest.approx(statistics.stdev(values), abs=1e-12)
    about = json.loads((out / "study.json").read_text())
    assert about["claims"][0]["verdict"] == HOLDS
    assert about["published"] == {"NC": 0.9}
    assert about["command"].endswith("--seeds 2")
    assert about["departures"] == "- a departure"
    rows = list(csv.DictReader((out / "curves.csv").open()))
    assert [row["round"] for row in rows if row["method"] == "Averaged"] == ["2", "4"]
    last_mean = float([row for row in rows if row["method"] == "NC"][-1]["mean"])
    assert math.isclose(last_mean, numbers["NC"]["value"]["mean"])

    before = {path: path.stat().st_mtime_ns for path in out.rglob("records.jsonl")}
    errands.carry_out(whole, 1, said.append)  # all is done: nothing runs again
    assert {path: path.stat().st_mtime_ns for path in out.rglob("records.jsonl")} == before
    other = reproduce.planned(study.load(str(small)), 2, quick=False, only=(), assignments=["run.batch_size=7"])
    with pytest.raises(SettingError, match="holds a run with other settings"):
        errands.prepare(reproduce.errands(other, out, alone=False)[0])


def test_a_study_under_way_is_looked_at_without_running_anything(small, tmp_path, monkeypatch):
    out = tmp_path / "out"
    command = ["reproduce", str(small), "--only", "NC", "--seeds", "2", "--jobs", "1", "--out", str(out)]
    nothing = CliRunner().invoke(app, [*command, "--no-run"])
    assert nothing.exit_code != 0 and not out.exists()
    assert CliRunner().invoke(app, command).exit_code == 0
    for name in ("summary.json", "final.json"):  # as a run is that was stopped after its second round
        (out / "NC" / "seed-1" / name).unlink()
    records = out / "NC" / "seed-1" / "records.jsonl"
    rounds = len(records.read_text().splitlines())
    records.write_text("".join(records.read_text().splitlines(keepends=True)[:2]))
    for folder in (out / "NC").glob("seed-*"):
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)

    plan = reproduce.planned(study.load(str(small)), 2, quick=False, only=["NC"], assignments=())
    assert reproduce.results(plan, out).lines[0].seeds == 1  # usually it says nothing yet
    done = CliRunner().invoke(app, [*command, "--no-run"])
    assert done.exit_code == 0, done.output
    assert len(records.read_text().splitlines()) == 2
    line = json.loads((out / "results.json").read_text())["methods"]["NC"]
    assert (line["seeds"], line["unfinished"]) == (2, [f"seed 1: 2 of {rounds} rounds"])
    last = json.loads(records.read_text().splitlines()[-1])["measures"]["test"]["auc"]
    assert line["value"]["values"][1] == last
    assert f"**Unfinished**, and counted as far as they were:\n\n- NC, seed 1: 2 of {rounds} rounds" in (
        out / "README.md").read_text()
    other = CliRunner().invoke(app, [*command, "--no-run", "--set", "run.batch_size=7"])
    assert "other settings" in str(other.exception) + other.output

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # runs that came from a machine with a GPU
    on_a_gpu = [word for word in command if word not in ("--jobs", "1")] + ["--set", "run.device=cuda"]
    assert "finds no CUDA device" in str(CliRunner().invoke(app, on_a_gpu).exception)
    done = CliRunner().invoke(app, [*on_a_gpu, "--no-run"])
    assert done.exit_code == 0, done.output


def test_what_all_runs_lack_is_told_once(small, tmp_path):
    missing = 'name = "table"\nfile = "[none].csv"\nlabel = "y"'
    small.write_text(SMALL.replace('name = "digits"', missing), encoding="utf-8")
    command = ["reproduce", str(small), "--seeds", "2", "--jobs", "1", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert done.output.count("[none].csv") == 1
    assert "4 runs (NC/seed-0, Averaged/seed-0, NC/seed-1, Averaged/seed-1): failed" in done.output


def test_long_names_of_methods_stay_whole_in_a_narrow_terminal(small, tmp_path, monkeypatch):
    console = Console(width=60, record=True)
    monkeypatch.setattr(cli_studies, "out", console)
    small.write_text(SMALL.replace("NC", "CyCP-Minimax-with-64-steps"), encoding="utf-8")
    plan = reproduce.planned(study.load(str(small)), 1, quick=False, only=(), assignments=())
    cli_studies._show(plan, reproduce.results(plan, tmp_path))
    body = console.export_text().partition("──\n")[2].partition("not measured")[0]
    assert "".join(re.findall(r"^\S+", body, re.MULTILINE)) == "".join(plan.labels)


def test_a_miniature_is_smaller_and_says_so(small):
    plan = reproduce.planned(study.load(str(small)), None, quick=True, only=(), assignments=())
    assert (plan.labels, plan.seeds, plan.settings.run.rounds) == (("NC",), 1, 2)
    assert "--quick" in plan.command
    small.write_text(SMALL.partition("[quick]")[0], encoding="utf-8")
    with pytest.raises(SettingError, match="has no miniature"):
        reproduce.planned(study.load(str(small)), None, quick=True, only=(), assignments=())


def test_a_miniature_brings_a_judge_of_images_where_nobody_has_trained_one(small, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSADDLE_CACHE", str(tmp_path / "cache"))
    small.write_text(SMALL.replace("[quick]", '[quick]\njudge = "mlp"'), encoding="utf-8")

    def planned(quick=True, images=10):
        return reproduce.planned(study.load(str(small)), 1, quick, (), [f"run.image_samples={images}"])

    out = tmp_path / "out"
    brought = with_judge(planned(), out)
    judge = classifier.load(out / "judge.safetensors")
    assert brought.settings.run.classifier == str(out / "judge.safetensors") and judge.about["accuracy"] > 0.5
    page = text.markdown(brought, reproduce.results(brought, out), out)
    assert "judged by the net `mlp`, trained for 2 passes" in page
    with monkeypatch.context() as patch:
        patch.delattr("fedsaddle.studies.judge.train_classifier")  # once is enough
        assert with_judge(planned(), out) == brought
        for other in (planned(quick=False), planned(images=0)):
            assert with_judge(other, tmp_path / "none") is other
        assert with_judge(planned(), tmp_path / "none", train=False) == planned()  # --no-run runs nothing
        classifier.save(judge, classifier.usual_path("digits"))
        assert with_judge(planned(), tmp_path / "none").settings.run.classifier == ""
    small.write_text(SMALL.replace("[quick]", '[quick]\njudge = "lenet"'), encoding="utf-8")
    with pytest.raises(SettingError, match="lenet5"):
        study.load(str(small))


def test_a_page_shows_what_a_generator_made_with_the_first_seed(small, tmp_path):
    plan = reproduce.planned(study.load(str(small)), 2, quick=False, only=(), assignments=())
    for seed in (0, 1):
        (tmp_path / "NC" / f"seed-{seed}").mkdir(parents=True)
        (tmp_path / "NC" / f"seed-{seed}" / "images.png").write_bytes(b"")
    page = text.markdown(plan, reproduce.results(plan, tmp_path), tmp_path)
    assert "| NC |\n| --- |\n| ![NC](NC/seed-0/images.png) |" in page
    assert "Averaged/seed-0" not in page and "seed-1/images" not in page


def test_a_page_says_what_was_not_as_in_the_recipe_and_not_how_it_was_computed(small, tmp_path):
    changes = ["run.threads=2", "run.rounds=2", "overrides.NC.run.chunk=1", "model.name=linear"]
    for assignments, told in (([], False), (changes[:1], False), (changes, True)):
        plan = reproduce.planned(study.load(str(small)), 1, quick=False, only=(), assignments=assignments)
        page = text.markdown(plan, reproduce.results(plan, tmp_path), tmp_path)
        assert ("**Not as in the recipe**: `run.rounds=2`, `model.name=linear`." in page) == told
        assert ("Not as in the recipe" in page) == told
