"""Many runs by a few processes: one that dies is replaced, Ctrl-C leaves checkpoints, what is done is done."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from fedsaddle.config import settle
from fedsaddle.contracts import SettingError
from fedsaddle.engine.training import TIMES
from fedsaddle.report.folder import RunFolder
from fedsaddle.studies import errands, worker
from fedsaddle.studies.errands import COMPLETE, DIVERGED, FAILED, STOPPED, Errand

ROUNDS = 120


def settings(eta=0.05, rounds=ROUNDS, **more):
    sizes = {"name": "quadratic", "dimension_x": 3, "dimension_y": 2}
    return settle({
        "run": {"rounds": rounds, "evaluate_every": 20, "checkpoint_every": 10, "batch_size": 2, "workers": 1,
                "execution": "eager"},
        "data": {**sizes, "clients": 6}, "problem": sizes,
        "algorithm": {"name": "parallel-sgda", "asked": 3, "eta": eta, "gamma": 0.05}, **more})


def timeless(records):
    return [{name: value for name, value in record.items() if name not in TIMES} for record in records]


def undisturbed(folder, wanted, monkeypatch):
    """The records of the same run, carried out in this process."""
    monkeypatch.setattr(worker, "_say", lambda **news: None)
    errands.prepare(Errand(folder, wanted))
    assert worker.carried({"folder": str(folder), "pruning": None}, worker.Shared(), lambda: False)["state"] == COMPLETE
    return timeless(RunFolder(folder).records())


@pytest.mark.xdist_group("processes")
def test_a_killed_worker_is_replaced_and_nothing_is_lost(tmp_path, monkeypatch):
    begun, start = [], errands._started
    monkeypatch.setattr(errands, "_started", lambda: begun.append(start()) or begun[-1])
    at = tmp_path / "runs"
    missing = settings(data={"name": "table", "file": str(tmp_path / "no.csv"), "label": "y", "client": "c"},
                       problem={"name": "auc"}, model={"name": "linear"})
    todo = [Errand(at / "killed", settings()), Errand(at / "diverges", settings(eta=1e30)),
            Errand(at / "missing", missing)]

    def kill(news):
        if news.folder == at / "killed" and news.round >= 30 and len(begun) == 1:
            os.kill(begun[0].pid, signal.SIGKILL)

    found = errands.carry_out(todo, 1, kill)
    assert {folder.name: news.state for folder, news in found.items()} == {
        "killed": COMPLETE, "diverges": DIVERGED, "missing": FAILED}
    assert [process.returncode for process in begun] == [-signal.SIGKILL, 0]
    assert "no.csv" in found[at / "missing"].why
    assert "no longer finite" in json.loads((at / "diverges" / "ended.json").read_text())["why"]
    records = timeless(RunFolder(at / "killed").records())
    assert len(records) == ROUNDS
    assert records == undisturbed(tmp_path / "again", settings(), monkeypatch)


def test_a_folder_with_other_settings_is_refused_even_when_it_is_done(tmp_path, monkeypatch):
    undisturbed(tmp_path / "one", settings(rounds=2), monkeypatch)
    monkeypatch.setattr(errands, "_started", lambda: pytest.fail("a worker was started for a run that is done"))
    found = errands.carry_out([Errand(tmp_path / "one", settings(rounds=2))], 1, lambda news: None)
    assert found[tmp_path / "one"].state == COMPLETE
    with pytest.raises(SettingError, match="holds a run with other settings"):
        errands.carry_out([Errand(tmp_path / "one", settings(rounds=2, eta=0.01))], 1, lambda news: None)


def test_more_rounds_make_a_run_longer_and_fewer_are_refused(tmp_path, monkeypatch):
    whole = undisturbed(tmp_path / "whole", settings(rounds=80), monkeypatch)
    undisturbed(tmp_path / "one", settings(rounds=40), monkeypatch)
    assert undisturbed(tmp_path / "one", settings(rounds=80), monkeypatch) == whole
    for other in (settings(rounds=60), settings(rounds=100, eta=0.01)):
        with pytest.raises(SettingError, match="holds a run with other settings"):
            errands.prepare(Errand(tmp_path / "one", other))
    with pytest.raises(SettingError, match="holds a run with other settings"):  # only looking changes nothing
        errands.see_to([Errand(tmp_path / "one", settings(rounds=100))])
    with pytest.raises(SettingError, match="holds a run with other settings"):  # a search compares equal rounds
        errands.prepare(Errand(tmp_path / "one", settings(rounds=100), pruning={}))
    assert errands.ended(tmp_path / "one") == COMPLETE


MANY = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from fedsaddle.studies import errands
from test_errands import Errand, settings
at = Path(sys.argv[2])
found = errands.carry_out([Errand(at / str(i), settings(rounds=300)) for i in range(4)], 1, lambda news: None)
print(*(f"{folder.name}:{news.state}" for folder, news in found.items()))
"""


@pytest.mark.xdist_group("processes")
def test_ctrl_c_leaves_a_checkpoint_and_the_next_call_goes_on(tmp_path, monkeypatch):
    at = tmp_path / "runs"
    process = subprocess.Popen([sys.executable, "-c", MANY, os.path.dirname(__file__), str(at)], start_new_session=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    give_up = time.monotonic() + 60
    while len(RunFolder(at / "0").records()) < 15 and time.monotonic() < give_up:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    said, complaints = process.communicate(timeout=60)
    assert (said.split()[-1].partition(":")[2], process.returncode) == (STOPPED, 0), complaints
    assert "Traceback" not in complaints
    begun = [folder for folder in sorted(at.iterdir()) if RunFolder(folder).records()]
    last = RunFolder(begun[-1]).records()[-1]["round"]
    assert not RunFolder(begun[-1]).complete and last < 300
    assert max(int(path.name) for path in (begun[-1] / "checkpoints").iterdir()) == last  # nothing is computed twice
    whole = undisturbed(tmp_path / "again", settings(rounds=300), monkeypatch)
    assert undisturbed(begun[-1], settings(rounds=300), monkeypatch) == whole
