"""What a round must do at least, and what the machine was measured to do: the roofline.

    python floor.py DEVICE '[WORK, ...]'

prints one JSON line: rates of a large matrix product and a large copy, and of each work's model the operations of
one row, forward and with its gradient. Of the bytes two counts are kept. `least`: the rows that are drawn, and every
client's model once in and once out, as if caches held all between. `streamed`: the model in and out in every step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "contenders"))
import work as shared

TRIES, GEMM, COPY = 7, {"cpu": 2048, "cuda": 8192}, {"cpu": 128 << 20, "cuda": 4 << 30}


def counts(work: SimpleNamespace, row: dict[str, float]) -> dict[str, float]:
    """Gradients (in rows), operations and bytes of a round. `row`: operations of one row."""
    steps, full, passes, copies = work.steps * work.batch, 0, 1, 2
    if work.method == "cdma-one":
        full, passes = work.rows * (2 if work.previous else 1), 2
    if work.method == "codasca":
        copies = 4  # its control too
    gradients = work.cohort * (passes * steps + full)
    asked = work.cohort * work.batch if work.method == "drfa" else 0  # rows whose loss is asked for
    drawn = work.cohort * (min(steps, work.rows) + (work.rows if full else 0)) + asked
    model, rows = 4 * shared.parameters(work), 4 * drawn * prod(shared.SHAPES[work.model])
    return {
        "gradient_rows": gradients, "flops": gradients * row["gradient"] + asked * row["forward"],
        "least": rows + work.cohort * copies * model, "streamed": rows + work.cohort * copies * work.steps * model,
    }


def seconds(count: dict[str, float], rates: dict[str, float], rate: str = "flops", moved: str = "least") -> float:
    """The floor: arithmetic or memory, whichever takes longer."""
    return max(count["flops"] / rates.get(rate, rates["flops"]), count[moved] / rates["bytes"])


def operations(work: SimpleNamespace) -> dict[str, float]:
    """Floating-point operations of one row: forward, and forward with the gradient of the weights."""
    import nets  # noqa: PLC0415
    import torch  # noqa: PLC0415
    from torch.nn import functional  # noqa: PLC0415
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415

    net, rows = nets.build(work), torch.zeros(10, *shared.SHAPES[work.model])
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        net(rows)
    with FlopCounterMode(display=False) as both:
        functional.cross_entropy(net(rows), torch.zeros(10, dtype=torch.int64)).backward()
    return {"forward": forward.get_total_flops() / 10, "gradient": both.get_total_flops() / 10}


def rates(device: str) -> dict[str, float]:
    """Operations and bytes a second that this machine reaches, all its cores together."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(os.cpu_count() or 1)
    size = GEMM[device]
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    source = torch.zeros(COPY[device] // 4, device=device)
    target = torch.empty_like(source)

    def best(action: Callable[[], Any]) -> float:
        taken = []
        for _ in range(TRIES):
            began = time.perf_counter()
            action()
            if device == "cuda":
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - began)
        return min(taken)

    found = {"flops": 2 * size**3 / best(lambda: a @ b), "bytes": 2 * COPY[device] / best(lambda: target.copy_(source))}
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        found["tf32"] = 2 * size**3 / best(lambda: a @ b)
    return found


def main() -> None:
    device, works = sys.argv[1], json.loads(sys.argv[2])
    print(json.dumps({"rates": rates(device), "rows": [operations(shared.spec(json.dumps(work))) for work in works]}))


if __name__ == "__main__":
    main()
