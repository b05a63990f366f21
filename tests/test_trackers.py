"""Trackers: what TensorBoard and MLflow read back is what records.jsonl holds, resumed or not; nothing else leaves."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

from fedsaddle import train
from fedsaddle.assemble import job_from_settings
from fedsaddle.config import settle, tables_of
from fedsaddle.contracts import SettingError
from fedsaddle.engine.training import Diverged
from fedsaddle.problems import AUC
from fedsaddle.report import trackers
from fedsaddle.report.folder import RunFolder
from fedsaddle.runs import carry_out

TOTALS = ("floats_up", "bytes_up", "bytes_down", "virtual_seconds")


def settings_of(*names, **run):
    return settle({
        "run": {"rounds": 12, "evaluate_every": 2, "checkpoint_every": 4, "trackers": list(names), **run},
        "problem": "auc", "model": "linear", "data": {"name": "digits", "clients": 10, "positive": 3},
        "algorithm": {"name": "cdma-one", "asked": 4, "steps": 2},
    })


def run_until(path, settings, rounds=None):
    """A run in this folder, new or resumed, that is stopped without warning after so many rounds."""
    folder = RunFolder(path)
    new = not path.exists()
    job = job_from_settings(settings, "", None if new else folder.checkpoints)
    if new:
        folder.create(tables_of(settings))

    def watch(record):
        if record["round"] == rounds:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        carry_out(job, settings.run, folder, watch)
    return folder


def expected(folder):
    """Every point, from the records alone: name -> [(round, value)]."""
    found, seconds = {}, 0.0
    for record in folder.records():
        seconds += record["seconds"]
        if "measures" in record:
            values = {f"test/{name}": value for name, value in record["measures"]["test"].items()}
            values |= {f"traffic/{name}": record["total"][name] for name in TOTALS} | {"seconds": seconds}
            for name, value in values.items():
                found.setdefault(name, []).append((record["round"], value))
    return found


def agree(got, folder, exact_seconds=True):
    wanted = expected(folder)
    assert set(got) == set(wanted) and "test/auc" in got
    for name, points in wanted.items():
        assert [step for step, _ in got[name]] == [step for step, _ in points], name
        if exact_seconds or name != "seconds":
            assert [value for _, value in got[name]] == pytest.approx([value for _, value in points], rel=1e-6), name


# TensorBoard.


def events(folder):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reading.EventAccumulator(str(folder.path / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {tag: [(point.step, point.value) for point in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_tensorboard_reads_back_what_was_recorded(tmp_path):
    folder = run_until(tmp_path / "run", settings_of("tensorboard"))
    assert folder.complete and len(expected(folder)["test/auc"]) == 6
    agree(events(folder), folder)
    (file,) = (folder.path / "tensorboard").iterdir()
    assert socket.gethostname() not in file.name


@pytest.mark.parametrize("stop", [3, 7])
def test_a_resumed_run_has_no_point_twice_in_tensorboard(tmp_path, stop):
    settings = settings_of("tensorboard")
    folder = run_until(tmp_path / "run", settings, stop)
    before = events(folder)
    assert before.get("test/auc", [])[-1][0] == stop - 1  # on the disk though never closed, beyond the last checkpoint
    run_until(tmp_path / "run", settings)
    agree(events(folder), folder)


def test_a_tensorboard_that_watches_forgets_what_is_done_again(tmp_path):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    settings = settings_of("tensorboard")
    folder = run_until(tmp_path / "run", settings, 7)
    for file in (folder.path / "tensorboard").iterdir():  # of a start a minute ago: the next file has a later name
        file.rename(file.with_name(f"events.out.tfevents.{int(time.time()) - 60:010d}.fedsaddle"))
    watching = reading.EventAccumulator(str(folder.path / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    assert [point.step for point in watching.Scalars("test/auc")] == [2, 4, 6]
    run_until(tmp_path / "run", settings)
    assert [point.step for point in watching.Reload().Scalars("test/auc")] == [2, 4, 6, 8, 10, 12]


def test_it_is_imported_only_where_it_is_used():
    code = "import sys, fedsaddle.cli; print([m for m in ('tensorboard', 'mlflow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


# MLflow.


@pytest.fixture
def mlflow(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        monkeypatch.setenv(name, "true")  # as the tracker sets it; undone after the test
    pytest.importorskip("sqlalchemy")
    return pytest.importorskip("mlflow")


def only_run(mlflow, uri):
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("fedsaddle")
    (run,) = client.search_runs([experiment.experiment_id])
    points = {name: sorted((p.step, p.value) for p in client.get_metric_history(run.info.run_id, name))
              for name in run.data.metrics}
    return run, points


def test_mlflow_reads_back_what_was_recorded(tmp_path, mlflow, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = run_until(tmp_path / "run", settings_of("mlflow"))
    run, points = only_run(mlflow, f"sqlite:///{tmp_path / 'run' / 'mlflow.db'}")
    agree(points, folder)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert run.data.params["algorithm.steps"] == "2" and run.data.params["data.partition.name"] == "label-sorted"
    assert run.info.user_id == "unknown" and set(run.data.tags) == {"mlflow.runName"}
    assert os.listdir(tmp_path) == ["run"]  # nothing beside the run folder


def test_a_resumed_run_goes_on_in_the_same_mlflow_run(tmp_path, mlflow, monkeypatch):
    store = f"sqlite:///{tmp_path / 'shared.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    settings = settings_of("mlflow")
    folder = run_until(tmp_path / "run", settings, 7)
    first, _ = only_run(mlflow, store)
    assert first.info.status == "RUNNING" and not (folder.path / "mlflow.db").exists()
    run_until(tmp_path / "run", settings)
    second, points = only_run(mlflow, store)
    assert second.info.run_id == first.info.run_id and second.info.status == "FINISHED"
    agree(points, folder, exact_seconds=False)  # of rounds done again, the seconds of the first time stay


def test_how_a_run_ended_is_told_to_mlflow(tmp_path, mlflow, monkeypatch):
    settings = settings_of("mlflow")
    folder = RunFolder(tmp_path / "run")
    folder.create(tables_of(settings))
    carry_out(job_from_settings(settings, ""), settings.run, folder, stop=lambda: True)
    store = f"sqlite:///{tmp_path / 'run' / 'mlflow.db'}"
    assert only_run(mlflow, store)[0].info.status == "KILLED"
    job = job_from_settings(settings, "", folder.checkpoints)
    wild = job._replace(evaluate=lambda z: (z.x.fill_(float("nan")), job.evaluate(z))[1])
    with pytest.raises(Diverged):
        carry_out(wild, settings.run, folder)
    assert only_run(mlflow, store)[0].info.status == "FAILED"


def test_mlflow_phones_nobody(tmp_path):
    pytest.importorskip("mlflow")
    settings = settings_of("mlflow")
    RunFolder(tmp_path / "run").create(tables_of(settings))
    code = f"""
import socket, threading
reached = []
socket.socket.connect = lambda self, address: reached.append(address)
socket.getaddrinfo = lambda *where, **more: reached.append(where) or []
from pathlib import Path
from fedsaddle.report.trackers import started
tracking = started(["mlflow"], Path({str(tmp_path / "run")!r}), {{}}, [])
tracking.finish({{}})
import mlflow.telemetry
print(mlflow.telemetry.get_telemetry_client(), reached, threading.active_count())
"""
    quiet = ("MLFLOW", "DO_NOT_TRACK", "CI", "PYTEST")  # where it would be silent by itself
    clean = {name: value for name, value in os.environ.items() if not name.startswith(quiet)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=clean,
                          check=False)
    assert done.stdout.strip() == "None [] 1", done.stderr


# Any tracker.

OWN = """
import json
class Lines:
    def __init__(self, folder):
        self.file = folder / "told.txt"
    def write(self, *parts):
        with self.file.open("a") as file:
            file.write(json.dumps(parts) + "\\n")
    def start(self, name, tables):
        self.write("start", name, tables["algorithm"]["name"])
    def log(self, record):
        self.write("log", record["round"])
    def finish(self, summary):
        self.write("finish", sorted(summary))
class Broken(Lines):
    def log(self, record):
        if record["round"] == 3:
            raise OSError("disk full")
        super().log(record)
class Shut(Lines):
    def start(self, name, tables):
        raise OSError("no such host")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "my_trackers.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield lambda: [json.loads(line) for line in (tmp_path / "run" / "told.txt").read_text().splitlines()]
    sys.modules.pop("my_trackers", None)


def test_ones_own_tracker_hears_everything_in_order(tmp_path, own):
    settings = settings_of("my_trackers:Lines", rounds=6)
    run_until(tmp_path / "run", settings, 5)
    run_until(tmp_path / "run", settings)
    starts, logs = ["start", "run", "cdma-one"], [["log", n] for n in range(1, 7)]
    assert own()[:6] == [starts, *logs[:5]]
    assert own()[6:-1] == [starts, *logs]  # from the first round on, once more
    assert own()[-1] == ["finish", sorted(RunFolder(tmp_path / "run").summary())]


def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on(tmp_path, own):
    with pytest.warns(RuntimeWarning, match="my_trackers:Broken failed .OSError: disk full.*records.jsonl") as told:
        folder = run_until(tmp_path / "run", settings_of("my_trackers:Broken", rounds=6))
    assert folder.complete and len(folder.records()) == 6 and len(told) == 1
    assert [line[1] for line in own() if line[0] == "log"] == [1, 2] and own()[-1] == ["log", 2]


@pytest.mark.parametrize(("name", "words"), [
    ("tensorbord", r"run.trackers = 'tensorbord': is not known; did you mean 'tensorboard'\?; choose from tensorboard, "
                   r"mlflow, or give your own as package.module:Name"),
    ("no_such_package:Tracker", "no_such_package cannot be imported"),
    ("my_trackers:Nothing", "has no class or function 'Nothing'"),
])
def test_a_wrong_name_is_told_before_anything_is_done(own, name, words):
    with pytest.raises(SettingError, match=words):
        job_from_settings(settings_of(name), "")
    with pytest.raises(SettingError, match=words):
        train("cdma-one", AUC(nn.Linear(3, 1)), [(torch.zeros(2, 3), torch.tensor([0, 1]))], out="new", trackers=[name])
    assert not os.path.exists("new")


def test_a_missing_package_is_told_with_its_extra(monkeypatch):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"run.trackers = 'mlflow': .* install fedsaddle\[mlflow\]"):
        job_from_settings(settings_of("mlflow"), "")


def test_a_store_that_is_not_there_is_told_at_the_start(tmp_path, own):
    with pytest.raises(SettingError, match=r"my_trackers:Shut.*OSError: no such host.*leave it out"):
        run_until(tmp_path / "run", settings_of("my_trackers:Shut"))


def test_without_a_folder_there_is_nothing_to_track():
    clients = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))]
    with pytest.raises(SettingError, match=r"run.trackers = \['tensorboard'\]: need a run folder; give one with out="):
        train("cdma-one", AUC(nn.Linear(3, 1)), clients, rounds=1, trackers=["tensorboard"])
