"""Bad input gets a clear error that names the setting, the value and the remedy, and nothing is half-written."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn
from typer.testing import CliRunner

import fedsaddle
from fedsaddle import AUC, SettingError, make, train
from fedsaddle.cli import app
from fedsaddle.config import settle

BASE = {
    "run": {"rounds": 2}, "algorithm": {"name": "cdma-one", "asked": 5, "steps": 2}, "problem": "auc",
    "model": "linear", "data": {"name": "digits", "clients": 20, "positive": 1},
}


@pytest.mark.parametrize("assignment, words", [
    ("algorithm.etta=0.1", ["algorithm.etta", "0.1", "did you mean 'eta'"]),
    ("algorithm.eta=-0.1", ["algorithm.eta", "-0.1", "above 0"]),
    ("algorithm.eta=fast", ["algorithm.eta", "'fast'", "float"]),
    ("algorithm.steps=2.5", ["algorithm.steps", "2.5", "int", "at least 1"]),
    ("algorithm.steps=true", ["algorithm.steps", "True", "int"]),
    ("algorithm.beta=1", ["algorithm.beta", "no such setting"]),  # fixed: it is what makes it CDMA-ONE
    ("algorithm.asked=21", ["algorithm.asked", "21", "data.clients = 20"]),
    ("algorithm.name=cdma-two", ["algorithm.name", "cdma-two", "did you mean 'cdma-one'"]),
    ("problem.name=ouc", ["problem.name", "did you mean 'auc'"]),
    ("model.name=linea", ["model.name", "did you mean 'linear'"]),
    ("data.name=digit", ["data.name", "did you mean 'digits'"]),
    ("data.positive=11", ["11", "choose one of"]),
    ("data.clients=5000", ["5000", "1347"]),
    ("data.partition=sorted", ["data.partition", "sorted", "label-sorted"]),
    ("run.rounds=0", ["run.rounds", "0", "at least 1"]),
    ("run.device=tpu", ["run.device", "'tpu'", "'cpu' or 'cuda' or 'auto'"]),
    ("run.evaluate_on=['exam']", ["run.evaluate_on", "'exam'"]),
    ("runs.rounds=3", ["runs", "did you mean 'run'"]),
    ("participation.select=cycle", ["participation.select", "did you mean 'cyclic'"]),
    ("participation.select={name='cyclic', groups=21}", ["groups = 21", "data.clients = 20"]),
    ("participation.select={name='trace', file='nowhere.csv'}", ["nowhere.csv", "cannot be read"]),
    ("participation.respond={name='drop-outs', rate=1.5}", ["rate", "1.5", "at most 1"]),
    ("participation.respond={name='first-responders', low=0.9, high=0.6}", ["low = 0.9", "high = 0.6"]),
    ("participation.answer=x", ["participation.answer", "no such setting"]),
    ("rounds=3", ["--set 'rounds=3'", "section.key=value"]),
    ("algorithms.CODASCA-*.eta=1", ["algorithms.CODASCA-*.eta=1", "no method is called so", "write algorithm"]),
])
def test_wrong_settings(assignment, words, tmp_path, monkeypatch):
    from fedsaddle.assemble import job_from_settings
    from fedsaddle.runs import carry_out

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError) as error:
        settings = settle(BASE, [assignment])
        carry_out(job_from_settings(settings, ""), settings.run)
    for word in words:
        assert word in str(error.value)


def test_missing_parts():
    with pytest.raises(SettingError, match="neither"):
        settle({key: value for key, value in BASE.items() if key != "algorithm"})
    with pytest.raises(SettingError, match="both"):
        settle({**BASE, "algorithms": {"a": "cdma-one"}})
    with pytest.raises(SettingError, match=r"model: is missing.*linear"):
        from fedsaddle.assemble import job_from_settings
        job_from_settings(settle({key: value for key, value in BASE.items() if key != "model"}), "")


@pytest.mark.parametrize("arguments, words", [
    (["run", "nowhere.toml"], ["nowhere.toml", "cannot be read"]),
    (["run", "digit-auc"], ["digit-auc", "did you mean 'digits-auc'"]),
    (["run", "broken.toml"], ["broken.toml", "not valid TOML"]),
    (["run", "binary.toml"], ["binary.toml", "not valid TOML"]),
    (["run", "digits-auc", "--set", "algorithms.CDMA-ADA.etta=1", "--out", "run"], ["etta", "eta"]),
    (["resume", "nowhere"], ["nowhere", "no run.toml"]),
    (["list", "algorithm"], ["algorithm", "did you mean 'algorithms'"]),
])
def test_the_command_line_explains_and_writes_nothing(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.toml").write_text("[run\nrounds=1")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    before = sorted(p.name for p in tmp_path.iterdir())
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, SettingError)
    for word in words:
        assert word in str(result.exception)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def rows(n, seed=0):
    random = np.random.Generator(np.random.Philox(seed))
    targets = random.integers(0, 2, n)
    return random.normal(size=(n, 3)) + targets[:, None], targets


def fit(clients, algorithm="cdma-one", **run):
    return train(algorithm, AUC(nn.Linear(3, 1)), clients, **{"rounds": 3, **run})


def test_nan_in_the_data():
    inputs, targets = rows(10)
    inputs[4, 1] = np.nan
    with pytest.raises(SettingError, match=r"NaN.*client 1.*impute or drop"):
        fit([rows(5), (inputs, targets)])


def test_an_empty_client():
    with pytest.raises(SettingError, match=r"client 1 has no rows.*leave clients without data out"):
        fit([rows(5), (np.zeros((0, 3)), np.zeros(0)), rows(4)])


def test_clients_of_one_class_and_batches_larger_than_clients_work():
    inputs, _ = rows(6)
    result = fit([(inputs, np.ones(6)), (inputs - 1, np.zeros(6)), rows(2)], batch_size=50)
    assert 0 <= result.measures["train"]["auc"] <= 1
    assert np.isfinite(result.point.x.numpy()).all()


def test_one_class_everywhere():
    inputs, _ = rows(6)
    with pytest.raises(SettingError, match="no client has any negatives"):
        fit([(inputs, np.ones(6)), (inputs, np.ones(6))])


def test_cohort_larger_than_the_federation():
    with pytest.raises(SettingError, match=r"asked = 9.*2 clients"):
        fit([rows(5), rows(6)], make("cdma-one", asked=9))


def test_python_settings_are_checked_too():
    with pytest.raises(SettingError, match=r"algorithm.eta = -1.*above 0"):
        fit([rows(5), rows(6)], make("cdma-one", eta=-1.0))
    with pytest.raises(SettingError, match=r"run.round = 3.*did you mean 'rounds'"):
        fit([rows(5), rows(6)], round=3)
    with pytest.raises(SettingError, match=r"participation.rate = 2"):
        fit([rows(5), rows(6)], participation=fedsaddle.DropOuts(2.0))
    with pytest.raises(SettingError, match=r"is not known; did you mean 'cdma-one'"):
        fit([rows(5), rows(6)], "cdma-on")


def test_rows_that_do_not_fit():
    with pytest.raises(SettingError, match="client 1 has 4 rows of inputs and 3 targets"):
        fit([rows(5), (rows(4)[0], rows(3)[1])])
    with pytest.raises(SettingError, match=r"shape \(2,\)"):
        fit([rows(5), (np.zeros((4, 2)), np.zeros(4))])
    with pytest.raises(SettingError, match="int is not known; give a list of"):
        fit(42)


def test_a_module_with_running_statistics_is_refused():
    with pytest.raises(SettingError, match="GroupNorm"):
        AUC(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
