"""Makes docs/results/tabular.md: `fedsaddle fit` against models of the same form that were trained centrally.

    FEDSADDLE_DATA=FOLDER .venv/bin/python benchmarks/tabular.py

Five imbalanced tables, each written as a CSV file with a client column of 40 unequal clients of unequal labels; three
seeds, each with its own clients, held-out rows and first weights. FOLDER holds mammography.npz, campaign.npz,
adult.data.gz and adult.test.gz. Everything that `fit` is not told it chooses itself: nothing is tuned here. Finished
runs are kept in runs/tabular.json, so that the command can be stopped and started again.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import nn

from fedsaddle import fitting
from fedsaddle.assemble import algorithm_of, assemble, deal, job_from_settings, participation, pose
from fedsaddle.config import Settings
from fedsaddle.data.clients import clients_from_arrays
from fedsaddle.models import MLP, build
from fedsaddle.runs import carry_out

PAGE = Path(__file__).parent.parent / "docs" / "results" / "tabular.md"
KEPT = Path("runs/tabular.json")
SEEDS, CLIENTS, CONCENTRATION = (0, 1, 2), 40, 0.5
EPOCHS, RATE, ROWS = 15, 1e-3, 128  # of the central MLP
COLUMNS = {"fit, linear": "linear", "central, linear": "logistic", "fit, mlp": "mlp", "central, mlp": "adam",
           "one client, mlp": "one"}
Lines = list[list[Any]]
ADULT = ("age", "workclass", "fnlwgt", "education", "education_num", "marital", "occupation", "relationship", "race",
         "sex", "gain", "loss", "hours", "country")


def folder() -> Path:
    return Path(os.environ["FEDSADDLE_DATA"])


def npz(name: str) -> tuple[list[str], Lines, list[int]]:
    with np.load(folder() / f"{name}.npz", allow_pickle=False) as file:
        return [f"x{i}" for i in range(file["X"].shape[1])], file["X"].tolist(), file["y"].astype(int).tolist()


def adult() -> tuple[list[str], Lines, list[int]]:
    lines = []
    for name in ("adult.data.gz", "adult.test.gz"):
        with gzip.open(folder() / name, "rt", encoding="utf-8") as file:
            cells = ([cell.strip() for cell in line.rstrip().rstrip(".").split(",")] for line in file)
            lines += [line for line in cells if len(line) == len(ADULT) + 1]
    return list(ADULT), [line[:-1] for line in lines], [int(line[-1] == ">50K") for line in lines]


def breast() -> tuple[list[str], Lines, list[int]]:
    found = load_breast_cancer()
    return [str(n) for n in found.feature_names], found.data.tolist(), (1 - found.target).tolist()


def synthetic() -> tuple[list[str], Lines, list[int]]:
    """20,000 rows, 29 numbers, some missing, and a text; 2 % positive, by linear and by curved effects."""
    random = np.random.Generator(np.random.Philox(0))
    x, region = random.normal(size=(20_000, 29)), random.integers(0, 5, 20_000)
    score = x @ random.normal(size=29) / 4 + np.array([0, 0.5, 1, -0.5, -1])[region]
    score += 0.8 * x[:, 0] * x[:, 1] + 0.5 * (x[:, 2] ** 2 - 1) + random.logistic(size=20_000)
    positive = score > np.quantile(score, 0.98)
    x[random.random(x.shape) < 0.02] = np.nan
    lines = [["" if np.isnan(v) else v for v in row] + [f"region {r}"] for row, r in zip(x, region, strict=True)]
    return [*(f"v{i}" for i in range(29)), "region"], lines, positive.astype(int).tolist()


SETS: dict[str, Callable[[], tuple[list[str], Lines, list[int]]]] = {
    "breast cancer": breast, "mammography": lambda: npz("mammography"), "synthetic": synthetic,
    "campaign": lambda: npz("campaign"), "adult": adult,
}


def owners(labels: list[int], seed: int) -> list[str]:
    """A client for each row: every class is dealt out in shares of its own, so that sizes and labels differ."""
    random = np.random.Generator(np.random.Philox(seed))
    owner = np.empty(len(labels), dtype=int)
    for label in (0, 1):
        rows = random.permutation(np.flatnonzero(np.array(labels) == label))
        ends = np.round(random.dirichlet(np.full(CLIENTS, CONCENTRATION)).cumsum() * len(rows))
        owner[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right").clip(max=CLIENTS - 1)
    return [f"client {i}" for i in owner]


def write(path: Path, name: str, seed: int) -> None:
    names, lines, labels = SETS[name]()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "label", "client"])
        writer.writerows([*line, label, client] for line, label, client in
                         zip(lines, labels, owners(labels, seed), strict=True))


def fitted(settings: Settings, one_client: bool = False) -> float:
    """The test AUC of a run; `one_client`: of the same run where one client holds all rows."""
    if one_client:
        dealt = deal(settings)
        alone = clients_from_arrays(dealt.clients.inputs, dealt.clients.targets, np.zeros(len(dealt.clients.targets)))
        share = float(alone.targets.double().mean())
        run = dataclasses.replace(settings.run, batch_size=fitting.batch_size(share, 1))
        job = assemble(algorithm_of(settings.algorithms[""]), pose(settings, dealt), alone, dealt.test,
                       participation(settings), run)
    else:
        job = job_from_settings(settings, "")
    return carry_out(job, settings.run).measures["test"]["auc"]


def central_mlp(train: Any, test: Any, seed: int) -> float:
    """PyTorch, Adam, cross-entropy with the positives weighted up to half."""
    net = build(MLP(fitting.HIDDEN), tuple(train.inputs.shape[1:]), 1, seed)
    targets = train.targets.float()
    weight = (1 - targets).sum() / targets.sum()
    optimiser = torch.optim.Adam(net.parameters(), RATE)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(targets), generator=generator).split(ROWS):
            optimiser.zero_grad()
            output = net(train.inputs[rows])[:, 0]
            nn.functional.binary_cross_entropy_with_logits(output, targets[rows], pos_weight=weight).backward()
            optimiser.step()
    with torch.no_grad():
        return float(roc_auc_score(test.targets, net(test.inputs)[:, 0]))


def results(name: str, seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "table.csv"
        write(path, name, seed)
        data = {"file": str(path), "label": "label", "client": "client"}
        settings = {model: fitting.settings_for(data, fitting.ALGORITHM, model, fitting.ROUNDS, seed)
                    for model in ("linear", "mlp")}
        prepared = settings["mlp"][1].data
        train, test = prepared.train, prepared.test
        logistic = LogisticRegression(max_iter=2000).fit(train.inputs, train.targets)
        return {
            "rows": len(train.targets) + len(test.targets), "features": train.inputs.shape[1],
            "positive": float(train.targets.double().mean()),
            "linear": fitted(settings["linear"][0]), "mlp": fitted(settings["mlp"][0]),
            "one": fitted(settings["mlp"][0], one_client=True),
            "logistic": float(roc_auc_score(test.targets, logistic.decision_function(test.inputs))),
            "adam": central_mlp(train, test, seed),
        }


def page(found: dict[str, dict[str, float]]) -> str:
    lines = ["| data | rows | features | positive | " + " | ".join(COLUMNS) + " |",
             "|---|---:|---:|---:|" + "---:|" * len(COLUMNS)]
    behind = []
    for name in SETS:
        runs = [found[f"{name} {seed}"] for seed in SEEDS]
        mean = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
        cells = [f"{mean[key]:.4f} ± {np.std([run[key] for run in runs]):.4f}" for key in COLUMNS.values()]
        lines.append(f"| {name} | {mean['rows']:,.0f} | {mean['features']:.0f} | {mean['positive']:.1%} | "
                     + " | ".join(cells) + " |")
        behind.append(f"| {name} | {mean['linear'] - mean['logistic']:+.4f} | {mean['mlp'] - mean['adam']:+.4f} |")
    text = Path(__file__).with_name("tabular_text.md").read_text(encoding="utf-8")
    differences = "\n".join(["| data | linear | mlp |", "|---|---:|---:|", *behind])
    return text.replace("TABLE", "\n".join(lines)).replace("DIFFERENCES", differences)


def main() -> None:
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    wanted = [(name, seed) for name in SETS for seed in SEEDS if f"{name} {seed}" not in found]
    KEPT.parent.mkdir(exist_ok=True)
    for name, seed in track(wanted, "tables"):
        found[f"{name} {seed}"] = results(name, seed)
        print(name, seed, found[f"{name} {seed}"], flush=True)
        KEPT.write_text(json.dumps(found, indent=1))
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
