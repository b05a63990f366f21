"""How many rows a net should be evaluated on at a time on a CPU: processor time, as a share of that for all at once.

    python benchmarks/speed/evaluating.py [--rows 2000] [--json FILE]

One thread; the least of five, since the machine may have other work. `maths/nets.py` has the number that came of it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fedsaddle.models import MODELS, build

SIZES = (10, 25, 50, 100, 250, 1000)
NETS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "LeNet5": ("lenet5", {}, (1, 28, 28)), "CNN": ("cnn", {}, (3, 32, 32)), "ResNet20": ("resnet20", {}, (3, 32, 32)),
    "ResNet18, width 8": ("resnet18", {"width": 8}, (3, 32, 32)),
    "MLP 200-200": ("mlp", {"hidden": [200, 200]}, (1, 28, 28)),
}


def least(work: Callable[[], Any]) -> float:
    found = []
    for _ in range(5):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def measured(name: str, rows: int) -> dict[str, dict[int, float]]:
    model, settings, shape = NETS[name]
    net = build(MODELS[model](**settings), shape, 10, 0)
    inputs = torch.randn(rows, *shape, generator=torch.Generator().manual_seed(0))
    weights = list(net.parameters())

    def outputs(size: int) -> None:
        with torch.no_grad():
            for part in inputs.split(size):
                net(part)

    def gradients(size: int) -> None:
        for part in inputs.split(size):
            torch.autograd.grad(net(part).square().sum(), weights)

    return {what.__name__: {size: least(lambda what=what, size=size: what(size)) for size in (*SIZES, rows)}
            for what in (outputs, gradients)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| net | of | " + " | ".join(map(str, SIZES)) + f" | all {given.rows}, s |")
    print("|---" * (len(SIZES) + 3) + "|")
    found = {}
    for name in NETS:
        found[name] = measured(name, given.rows)
        for what, seconds in found[name].items():
            whole = seconds[given.rows]
            print(f"| {name} | {what} | " + " | ".join(f"{seconds[size] / whole:.2f}" for size in SIZES)
                  + f" | {whole:.2f} |", flush=True)
    if given.json:
        about = {"torch": torch.__version__, "rows": given.rows, "threads": 1}
        given.json.write_text(json.dumps({**about, "seconds": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
