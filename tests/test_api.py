"""From Python, and what the command line shows."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fedsaddle
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.cli import app
from fedsaddle.runs import threads


def data(seed=0, clients=12):
    random = np.random.Generator(np.random.Philox(seed))
    parts = []
    for i in range(clients):
        targets = np.full(15, i % 2) if i < 8 else random.integers(0, 2, 15)  # most clients hold one class only
        parts.append((random.normal(size=(15, 5)) + 1.5 * targets[:, None], targets))
    return parts


def net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(5, 1)


def test_from_arrays_to_a_model():
    parts, (test_inputs, test_targets) = data(), map(np.concatenate, zip(*data(1), strict=True))
    before = torch.get_num_threads()
    result = fedsaddle.train("cdma-one", fedsaddle.AUC(net()), parts, test=(test_inputs, test_targets),
                             participation=fedsaddle.FirstResponders(), rounds=40, seed=1)
    assert result.measures["test"]["auc"] > 0.95
    assert torch.get_num_threads() == before
    assert len(result.records) == 40 and result.complete
    module = nn.Linear(5, 1)
    module.load_state_dict({k.removeprefix("net."): v for k, v in result.named().items() if k.startswith("net.")})
    scores = torch.sigmoid(module(torch.tensor(test_inputs, dtype=torch.float32))).squeeze(1)
    mine = np.mean([(a > b) + (a == b) / 2 for a in scores[test_targets > 0] for b in scores[test_targets == 0]])
    assert float(mine) == pytest.approx(result.measures["test"]["auc"], abs=1e-6)


def test_arrays_with_a_client_column_are_the_same_as_a_list():
    parts = data()
    inputs, targets = (np.concatenate(column) for column in zip(*parts, strict=True))
    client = np.repeat(np.arange(len(parts)), 15)
    one = fedsaddle.train("cdma-nc", fedsaddle.AUC(net()), parts, rounds=3)
    two = fedsaddle.train("cdma-nc", fedsaddle.AUC(net()), (inputs, targets, client), rounds=3)
    assert torch.equal(one.point.x, two.point.x)


def test_the_ledger_is_exact():
    parts = data()
    d = 5 + 1 + 2 + 1  # weights, bias, a, b, alpha
    result = fedsaddle.train(fedsaddle.make("cdma-one", asked=6, steps=2), fedsaddle.AUC(net()), parts, rounds=5)
    assert result.traffic.asked == 12 + 5 * 12  # p of everyone once, then two phases of 6
    assert result.traffic.floats_up == 2 * 12 + 5 * 12 * d  # p: the shares of positives and of negatives
    down = 5 * 6 * ((2 * d + 1) + (2 * d + 2))  # z, z_before, alpha; z, w, eta, gamma
    assert result.traffic.floats_down == 2 * 12 + down
    assert result.traffic.bytes_up == 4 * result.traffic.floats_up


def test_out_and_resume_from_python(tmp_path):
    whole = fedsaddle.train("codasca", fedsaddle.AUC(net()), data(), rounds=8, out=tmp_path / "whole")
    fedsaddle.train("codasca", fedsaddle.AUC(net()), data(), rounds=5, out=tmp_path / "run")
    with pytest.raises(fedsaddle.SettingError, match="not empty"):
        fedsaddle.train("codasca", fedsaddle.AUC(net()), data(), rounds=8, out=tmp_path / "run")
    again = fedsaddle.train("codasca", fedsaddle.AUC(net()), data(), rounds=8, out=tmp_path / "run", resume=True)
    assert torch.equal(again.point.x, whole.point.x)
    assert len(again.records) == 8


def test_a_problem_of_ones_own():
    """Any class with a first point and a loss; here a regression against a shared shift of the targets."""

    class Shifted:
        def first(self):
            return fedsaddle.Point(torch.zeros(5), torch.zeros(1))

        def loss(self, x, y, batch):
            error = batch.inputs @ x - batch.targets - y[0]
            return (batch.weight * error**2).sum() - 2 * (y**2).sum()

    result = fedsaddle.train(fedsaddle.make("cdma-one", eta=0.01, gamma=0.01), Shifted(), data(), rounds=60)
    assert result.measures["train"]["loss"] < result.records[9]["measures"]["train"]["loss"]


def test_threads_are_given_back():
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError), threads(2):
        assert torch.get_num_threads() == 2
        raise RuntimeError
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("what", ["algorithms", "problems", "participation", "recipes", "models", "data", "partitions",
                                  "theorems"])
def test_lists(what):
    shown = CliRunner().invoke(app, ["list", what])
    assert shown.exit_code == 0
    entries = json.loads(CliRunner().invoke(app, ["list", what, "--json"]).stdout)
    assert entries and all(entry["name"] and entry["about"] for entry in entries)
    for entry in entries:
        assert all(s["meaning"] for s in entry["settings"])


def test_the_list_of_recipes_has_names_to_copy_and_says_where_their_data_are(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSADDLE_DATA", str(tmp_path))
    monkeypatch.setenv("FEDSADDLE_CACHE", str(tmp_path))
    entries = json.loads(CliRunner().invoke(app, ["list", "recipes", "--json"]).stdout)
    shown = CliRunner().invoke(app, ["list", "recipes"]).stdout
    assert all(entry["name"] in shown for entry in entries)  # in a window of 80 characters
    found = {entry["name"]: entry for entry in entries}
    race = found["drfa/adult-race"]
    assert race["methods"][:2] == ["DRFA", "DRFA-all"] and race["data"] == "adult"
    assert found["cdma/gan-celeba"]["data_where"].startswith("to be put there by hand: from https://")
    assert found["codasca/cifar100-ih"]["data_where"] == "to be fetched"
    assert found["digits-auc"]["data_where"] == "comes with the package"


def test_the_list_of_algorithms_tells_what_a_user_needs():
    entries = {e["name"]: e for e in json.loads(CliRunner().invoke(app, ["list", "algorithms", "--json"]).stdout)}
    assert entries.keys() == ALGORITHMS.keys()
    ada = entries["cdma-ada"]
    assert ada["uploads"] == {"copies_of_z": 2, "scalars": 0}
    assert "beta" not in {s["name"] for s in ada["settings"]} and ada["fixed"] == {"beta": 1}
    assert "loss" in entries["drfa"]["learns"] and "c_i" in entries["codasca"]["client_state"]


def test_a_saturated_score_is_reported():
    net_ = net()
    with torch.no_grad():
        net_.weight.zero_()
        net_.bias.fill_(60.0)
    result = fedsaddle.train("cdma-nc", fedsaddle.AUC(net_), data(), rounds=10)
    assert any("saturated" in alarm for alarm in result.records[-1]["alarms"])
