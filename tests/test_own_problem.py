"""The page docs/your-own-problem.md, run as it stands, and what its code promises."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fedsaddle
from fedsaddle.cli import app
from fedsaddle.config import settle
from fedsaddle.contracts import SettingError
from fedsaddle.report.folder import RunFolder
from fedsaddle.testing import check_problem

PAGE = (Path(__file__).parent.parent / "docs" / "your-own-problem.md").read_text(encoding="utf-8")


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder of a reader of the page, its files written."""
    for text in blocks("python") + blocks("toml"):
        name = re.match(r"# (\w+\.\w+)\n", text)
        if name:
            (tmp_path / name[1]).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name in ("fair", "mine"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield tmp_path
    for name in ("fair", "mine"):
        sys.modules.pop(name, None)


def read_page(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    names: dict = {}
    for text in blocks("python"):
        if not text.startswith("# mine.py"):
            exec(compile(text, "docs/your-own-problem.md", "exec"), names)
            if "result" in names:
                names.setdefault("results", [])
                if all(names["result"] is not r for r in names["results"]):
                    names["results"].append(names["result"])
    return names


def test_the_page(folder, monkeypatch, capsys):
    names = read_page(folder, monkeypatch)
    fair, robust = names["results"]
    inputs, targets = (np.concatenate(parts) for parts in zip(*names["clients"], strict=True))
    group, features = inputs[:, 0], inputs[:, 1:]

    def gap(x):
        error = features @ x - targets
        return abs(error[group > 0].mean() - error[group < 0].mean())

    # the exact solution of min_x mean error^2 + 10 (mean of group * error)^2, a least squares problem with one more row
    n = len(targets)
    rows = np.vstack([features / n**0.5, np.sqrt(10) * (group[:, None] * features).mean(0)])
    best = np.linalg.lstsq(rows, np.append(targets / n**0.5, np.sqrt(10) * (group * targets).mean()), rcond=None)[0]
    plain = np.linalg.lstsq(features, targets, rcond=None)[0]
    x = fair.point.x.double().numpy()
    assert x == pytest.approx(best, abs=0.05)
    assert gap(x) < 0.5 * gap(plain)
    error = features @ x - targets
    phi = (error**2).mean() + 10 * (group * error).mean() ** 2
    last = fair.measures["train"]
    assert last["primal"] == pytest.approx(phi, rel=1e-3)
    first = next(r["measures"]["train"] for r in fair.records if "measures" in r)
    assert last["primal_gradient"] < first["primal_gradient"]
    assert "primal" in capsys.readouterr().out

    seen = [r["measures"]["train"]["loss"] for r in robust.records if "measures" in r]
    assert seen[-1] < seen[0]
    assert robust.named()["y"].shape == (4,) and float(robust.named()["y"].abs().max()) <= 1
    weights = torch.cat([p.detach().flatten() for p in names["net"].parameters()])
    assert torch.equal(weights, robust.point.x)


def test_a_problem_is_at_most_fifteen_lines(folder):
    for name in ("fair.py", "mine.py"):
        code = [line for line in (folder / name).read_text().splitlines() if line.strip() and line[0] != "#"]
        assert len(code) <= 15


def test_the_settings_file_of_the_page_runs_and_resumes(folder):
    done = CliRunner().invoke(app, ["run", "mine.toml", "--set", "run.rounds=10"])
    assert done.exit_code == 0, done.output
    records = RunFolder(folder / "runs" / "mine").records()
    losses = [r["measures"]["test"]["loss"] for r in records if "measures" in r]
    assert len(losses) == 2 and losses[-1] < losses[0]
    again = settle(fedsaddle.cli.read(folder / "runs" / "mine" / "run.toml"))
    assert again.problem == ("mine:shifted", {"strength": 5.0})
    assert str(folder) not in sys.path


def run_with(**problem):
    return settle({"algorithm": "cdma-nc", "problem": problem, "model": "linear"})


def test_wrong_names_of_ones_own_are_told(folder):
    for name, words in (("nowhere.at.all:X", "cannot be imported"), ("mine:missing", "no class or function 'missing'"),
                        ("mine:", "no class or function"), ("mine", "is not known.*package.module:Name")):
        with pytest.raises(SettingError, match=f"problem.name = '{name}'.*{words}"):
            run_with(name=name)
    with pytest.raises(SettingError, match=r"problem.strenght = 1: no such setting; did you mean 'strength'"):
        run_with(name="mine:shifted", strenght=1)


def test_declared_settings_of_ones_own_are_checked(folder):
    (folder / "mine.py").write_text(
        "from dataclasses import dataclass\nimport fedsaddle\n\n\n"
        "@dataclass(frozen=True)\nclass Declared:\n    net: object\n"
        "    strength: float = fedsaddle.setting(1.0, 'how strong', above=0)\n    free: list = None\n")
    assert run_with(name="mine:Declared", strength=2.0, free=[1]).problem.settings == {"strength": 2.0, "free": [1]}
    assert run_with(name="mine:Declared").problem.settings == {"strength": 1.0}
    with pytest.raises(SettingError, match=r"problem\.strength = -1\.0: must be float and above 0"):
        run_with(name="mine:Declared", strength=-1.0)


def test_an_algorithm_of_ones_own_by_its_path(folder):
    """One mechanism for all registries: here a class of ours under its path."""
    parts = [(np.ones((4, 2)) * i, np.arange(4) % 2) for i in range(3)]
    net = nn.Linear(2, 1)
    ours = fedsaddle.train("parallel-sgda", fedsaddle.AUC(net), parts, rounds=2)
    path = fedsaddle.train("fedsaddle.algorithms.parallel_sgda:ParallelSGDA", fedsaddle.AUC(net), parts, rounds=2)
    assert torch.equal(ours.point.x, path.point.x)


def test_losses_must_be_one_a_row():
    problem = fedsaddle.from_module(nn.Linear(2, 1), lambda net, y, batch: net(batch.inputs).mean())
    with pytest.raises(SettingError, match="one number for each row"):
        fedsaddle.train("cdma-nc", problem, [(np.ones((4, 2)), np.zeros(4))], rounds=1)


CLIENTS = [(np.random.default_rng(i).normal(size=(n, 2)), np.arange(n) % 2.0) for i, n in enumerate((3, 9, 5, 2))]


class Forgetful:
    """Takes a plain mean over rows, padding included."""

    def first(self):
        return fedsaddle.Point(torch.zeros(2), torch.zeros(1))

    def loss(self, x, y, batch):
        return ((batch.inputs @ x - batch.targets - y[0]) ** 2).mean() - y[0] ** 2


class Impure(Forgetful):
    """Branches on a value."""

    def loss(self, x, y, batch):
        error = (batch.weight * (batch.inputs @ x - batch.targets) ** 2).sum()
        return error if error > 1 else 2 * error - y[0] ** 2


def test_the_check_finds_what_it_promises():
    with pytest.raises(AssertionError, match="differs"):
        check_problem(Forgetful(), CLIENTS)
    with pytest.raises(RuntimeError, match="data-dependent"):
        check_problem(Impure(), CLIENTS)
