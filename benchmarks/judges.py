"""How the Inception Score depends on the classifier that judges, and on how its images are split.

    .venv/bin/python benchmarks/judges.py [--data fashion-mnist] [--model lenet5] [--epochs 1 5 20 60] [--device cpu]
        [--out docs/results/judges.json]

Trains a classifier for so many passes over the training images, three seeds, and scores the real test images: the mean
over ten sets of a tenth each, as everywhere here, and over growing sets, as the published code of cdma computes it (its
set k begins at image k and ends where the k-th tenth does). Prints Markdown, which stands in docs/results/findings.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from fedsaddle.data.sources import SOURCES
from fedsaddle.engine.classifier import SLICE, train_classifier
from fedsaddle.metrics.images import inception_score, judged

SEEDS = (0, 1, 2)


def growing(probabilities: Tensor, splits: int = 10) -> float:
    ends = [(k + 1) * len(probabilities) // splits for k in range(splits)]
    return statistics.fmean(inception_score(probabilities[k:end], 1)[0] for k, end in enumerate(ends))


def scored(data: Any, name: str, model: str, epochs: int, seed: int, device: str) -> dict[str, float]:
    judge = train_classifier(data, name, model, {}, epochs=epochs, seed=seed, device=device)
    seen = judged(judge.judge, data.test.inputs.split(SLICE)).probabilities
    return {"accuracy": judge.about["accuracy"], "tenths": inception_score(seen)[0], "growing": growing(seen)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=["fashion-mnist"])
    parser.add_argument("--model", default="lenet5")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, nargs="+", default=[1, 5, 20, 60])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for name in given.data:
        data = SOURCES[name]().load(0)
        for epochs in given.epochs:
            runs = [scored(data, name, given.model, epochs, seed, given.device)
                    for seed in track(SEEDS, f"{name}, {epochs} passes")]
            found.append({"data": name, "model": given.model, "epochs": epochs, "runs": runs})
            if given.out:
                given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"Judged by {given.model}.\n")
    print("| real test images of | passes | accuracy | Inception Score | over growing sets |\n|---|---|---|---|---|")
    for row in found:
        cells = [f"{statistics.fmean(values):.3f} ± {statistics.stdev(values):.3f}"
                 for key in ("accuracy", "tenths", "growing") for values in [[run[key] for run in row["runs"]]]]
        print(f"| {row['data']} | {row['epochs']} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
