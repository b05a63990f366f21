"""From a table of one's own to a trained model, and from the model to scores of other tables.

What `fedsaddle fit` and `fedsaddle score` do. The settings that nobody gave follow from the training rows; the
benchmark `benchmarks/tabular.py` measures how well they do against models trained centrally.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsaddle.algorithms import ALGORITHMS, CYCLIC, PAIRS, SADDLE
from fedsaddle.assemble import Dealt, pose
from fedsaddle.config import Settings, declared, read, settle
from fedsaddle.config.files import with_assignments
from fedsaddle.contracts import Batch, Point, SettingError
from fedsaddle.data import table
from fedsaddle.data.clients import clients_from_arrays
from fedsaddle.data.preparation import Preparation
from fedsaddle.data.table_source import CLIENT, PREPARATION, Prepared, TableFile, checksum, targets_of
from fedsaddle.metrics import auc, average_precision, problem_score

RANKING = {SADDLE: "auc", CYCLIC: "auc", PAIRS: "pairwise"}  # what an algorithm solves: the problem for it
ALGORITHM, MODEL, ROUNDS = "codasca", "mlp", 150
STEPS, ROWS = 16, (8, 1024)  # local steps in a round; rows in each, at least and at most
SEEN, SEEN_POSITIVE = 1280, 5  # rows and positives that all clients together see in a step
ETA, ETA_SHARE = (0.1, 0.5), 2.5  # a step's size, at least and at most, and per p(1-p)
LAST = 0.3  # share of the rounds with a third of the step size
ALL_ASKED, ASKED = 200, 100  # up to so many clients everyone is asked in every round, else so many
HIDDEN = (64,)
SLICE = 8192  # rows scored at once


class Report(NamedTuple):
    """How well scores rank rows: over all rows pooled, and at the client where they do worst."""

    auc: float
    average_precision: float
    rows: int
    positives: int
    clients: int
    measured: int  # clients with rows of both classes, which have an AUC of their own
    worst: str  # of these, by its name
    worst_auc: float
    worst_rows: int
    worst_positives: int


def settings_for(data: Mapping[str, Any], algorithm: str, model: str, rounds: int, seed: int,
                 assignments: Iterable[str] = ()) -> tuple[Settings, Prepared]:
    """The settings of a run on a table, and its rows. `data`: settings of the data source `table`."""
    given = with_assignments({
        "run": {"rounds": rounds, "seed": seed}, "data": {"name": "table", "seed": seed, **data},
        "algorithm": {"name": algorithm}, "model": {"name": model},
    }, assignments)
    checked = settle(given)  # before the file is read
    if checked.data.name != "table" or not checked.data.settings["client"]:
        raise SettingError("data.client = '': is missing; name the column that says whose row it is")
    source, method = TableFile(**checked.data.settings), checked.algorithms[""].name
    problem, path = _problem(method), Path(source.file).resolve()
    prepared = source.prepared(checked.dealing.seed)
    share, clients = _counts(prepared)
    chosen: dict[str, dict[str, Any]] = {
        "run": {"batch_size": batch_size(share, clients), "weights": "size", "evaluate_every": max(1, rounds // 10)},
        "problem": {"name": problem},
        "data": {"file": str(path), "checksum": checksum(path)},
        "algorithm": _steps(method, share, clients, rounds),
        "model": {"hidden": list(HIDDEN)} if checked.model and checked.model.name == "mlp" else {},
    }
    tables = {name: {**chosen.get(name, {}), **given.get(name, {})} for name in {**chosen, **given}}
    tables["data"] |= chosen["data"]  # the path where it can be found again
    return settle(tables), prepared


def rows_of(settings: Settings) -> Prepared | None:
    """The rows of a run that `fit` began; None if it was begun otherwise."""
    table = settings.data.name == "table" and bool(settings.data.settings["client"])
    if not table or not settings.single or settings.problem.name not in RANKING.values():
        return None
    return TableFile(**settings.data.settings).prepared(settings.dealing.seed)


def _counts(prepared: Prepared) -> tuple[float, int]:
    """The share of positives among the training rows, and the number of clients that hold them."""
    owner = prepared.data.attributes[CLIENT].train
    return float(prepared.data.train.targets.double().mean()), len(owner.unique())


def _problem(algorithm: str) -> str:
    """The problem with an AUC that this method solves."""
    if algorithm not in ALGORITHMS:
        return "auc"  # a method of one's own is tried
    if ALGORITHMS[algorithm].solves not in RANKING:
        ranking = [name for name, entry in ALGORITHMS.items() if entry.solves in RANKING]
        raise SettingError(f"algorithm = {algorithm!r}: does not maximise the AUC; choose one of {', '.join(ranking)}")
    return RANKING[ALGORITHMS[algorithm].solves]


def batch_size(share: float, clients: int) -> int:
    """Rows in a minibatch: a round's mean over all clients must hold enough positives to go by."""
    wanted = max(SEEN, SEEN_POSITIVE / share) / min(clients, ALL_ASKED)
    return round(min(max(wanted, ROWS[0]), ROWS[1]))


def _steps(algorithm: str, share: float, clients: int, rounds: int) -> dict[str, Any]:
    """Step sizes that suit the share p of positives.

    The curvatures of the minimax AUC over all rows are multiples of p(1-p): in a, b and alpha they are 2p(1-p), so that
    a round moves these to their best values where steps * eta * eta_global = 1 / (2p(1-p)). Rare positives so ask for
    long steps, and local ones cannot be: at a client of one class only the curvature in that class's mean score is 2,
    whatever p. The server's step eta_global makes up for it, where the method has one.
    """
    entry = ALGORITHMS.get(algorithm)
    if entry is None:
        return {}
    fields = {f.name for f in declared(entry.algorithm)} - set(entry.fixed)
    spread = share * (1 - share)
    eta = min(max(ETA_SHARE * spread, ETA[0]), ETA[1]) if "eta_global" in fields else ETA[1]
    wanted = {
        "eta": eta, "gamma": eta, "steps": STEPS, "eta_global": max(1.0, 1 / (2 * spread * STEPS * eta)),
        "asked": ASKED if clients > ALL_ASKED else None,
        "stage_rounds": max(1, round((1 - LAST) * rounds)), "decay": 1 / 3, "keep_controls": True,
    }
    return {name: value for name, value in wanted.items() if name in fields and value is not None}


def report(scores: Tensor, targets: Tensor, owner: Tensor, names: Sequence[str]) -> Report:
    """The measures of these rows. Every number is of pooled scores: a mean of clients' AUCs would say nothing about how
    rows of two clients compare."""
    positive = targets > 0
    present, sizes = owner.unique(return_counts=True)
    by_client = dict(zip(present.tolist(), torch.argsort(owner, stable=True).split(sizes.tolist()), strict=True))
    own = {i: auc(scores[rows], positive[rows]) for i, rows in by_client.items()}
    own = {i: value for i, value in own.items() if not isnan(value)}  # nan: one class only
    worst = min(own, key=lambda i: own[i]) if own else -1
    rows = by_client.get(worst, present[:0])
    return Report(auc(scores, positive), average_precision(scores, positive), len(scores), int(positive.sum()),
                  len(by_client), len(own), names[worst] if own else "", own.get(worst, float("nan")),
                  len(rows), int(positive[rows].sum()))


class Scorer(NamedTuple):
    """A trained model with the preparation that it was trained on."""

    problem: Any
    point: Point
    preparation: Preparation

    @torch.no_grad()
    def score(self, inputs: Tensor) -> Tensor:
        """One score a row; higher means more likely a positive.

        Computed in double precision and rounded, so that a row's score does not depend on the rows beside it.
        """
        none, point = torch.zeros(0), Point(self.point.x.double(), self.point.y.double())
        parts = [problem_score(self.problem, point, Batch(part.double(), none, none)) for part in inputs.split(SLICE)]
        return torch.cat(parts).float()


def load(folder: Path) -> Scorer:
    """The model of a run folder."""
    for name in ("run.toml", "model.safetensors", PREPARATION):
        if not (folder / name).exists():
            remedy = "finish the run with `fedsaddle resume`" if (folder / "run.toml").exists() else \
                "give a folder that `fedsaddle fit` wrote"
            raise SettingError(f"folder {str(folder)!r}: holds no {name}; {remedy}")
    preparation = Preparation.from_json((folder / PREPARATION).read_text(encoding="utf-8"), str(folder / PREPARATION))
    one_row = clients_from_arrays(torch.zeros(1, len(preparation.features)), [0], [0])  # only its width matters
    saved = safetensors.torch.load_file(folder / "model.safetensors")
    problem = pose(settle(read(folder / "run.toml")), Dealt(one_row, None, 2))
    return Scorer(problem, Point(saved["x"], saved["y"]), preparation)


class Scored(NamedTuple):
    """The scores of a table, and its labels where it has any: 1, 0, or -1 for a missing one."""

    scores: Tensor
    targets: NDArray[np.int64] | None


def score_table(scorer: Scorer, path: Path) -> Scored:
    """Score every row of a file that has the columns of the training file; labels are not needed."""
    preparation = scorer.preparation
    file = table.read(path, words=(*preparation.words, preparation.label))
    scores = scorer.score(torch.from_numpy(preparation.apply(file)))
    if preparation.label not in file.columns:
        return Scored(scores, None)
    return Scored(scores, targets_of(file.words(preparation.label, "data.label"), preparation.positive))


def with_scores(path: Path, scores: Tensor) -> Iterator[list[str]]:
    """The lines of a file with one more column, nine digits of each score: they give the same float back."""
    lines = table.originals(path)
    names = list(next(lines))
    free = (name for name in ("score", *(f"score_{n}" for n in range(2, len(names) + 3))) if name not in names)
    yield [*names, next(free)]
    for cells, score in zip(lines, scores.tolist(), strict=True):
        yield [*cells, f"{score:.9g}"]


def test_scores(prepared: Prepared, scores: Tensor) -> str:
    """The rows that were held out, as CSV: number in the file (from 1), client, label, score."""
    attribute, targets = prepared.data.attributes[CLIENT], prepared.data.test.targets
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "client", "label", "score"])
    for row, client, target, score in zip(prepared.test_rows, attribute.test.tolist(), targets.tolist(),
                                          scores.tolist(), strict=True):
        writer.writerow([int(row) + 1, attribute.names[client], target, f"{score:.9g}"])
    return text.getvalue()
