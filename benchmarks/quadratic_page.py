"""Makes docs/theory/quadratic.md: every minimax method on quadratic saddles with a known solution.

    .venv/bin/pip install -c constraints.txt -e ".[plots]"
    .venv/bin/python benchmarks/quadratic_page.py

Distance to the saddle against rounds and against floats received, for K local steps and three levels of
heterogeneity, with all clients and exact local gradients: what is left is drift alone. Then the effect of the
number of clients asked. Three seeds of the data; every number of the page comes from the runs of this script.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

PAGE = Path(__file__).parent.parent / "docs" / "theory"
CLIENTS, DIMENSION, ROUNDS = 20, 5, 100
ETA = {1: 0.05, 5: 0.05, 20: 0.02}  # by K: with 0.05 and 20 local steps CODASCA and Local SGDA+ diverge
STEPS, LEVELS, SEEDS = (1, 5, 20), (0.0, 0.5, 2.0), (0, 1, 2)
COHORTS = (1, 2, 5, 10, 20)

# What the papers' theorems say about drift with all clients and exact gradients, and the settings of the run.
METHODS: dict[str, dict[str, Any]] = {
    "cdma-nc": {"drift": "floor"},
    "local-sgda": {"drift": "floor"},
    "local-sgda+": {"drift": "floor"},
    "extra-step-local-sgd": {"drift": "floor"},
    "momentum-local-sgda": {"drift": "floor", "momentum": 0.9},
    "coda+": {"drift": "floor"},
    "coda": {"drift": "floor", "stage_rounds": 50},
    "rs-minimax": {"drift": "floor"},
    "cycp-minimax": {"drift": "floor"},
    "parallel-sgda": {"drift": "none"},
    "npa": {"drift": "none"},
    "cdma-one": {"drift": "none"},
    "cdma-ada": {"drift": "none", "rho": 0.1},
    "catalyst-scaffold-s": {"drift": "none"},
    "codasca": {"drift": "none"},
    "fedgda-gt": {"drift": "none"},
}


def run(name: str, settings: dict[str, Any], heterogeneity: float, seed: int, rounds: int) -> dict[str, list[float]]:
    import torch  # noqa: PLC0415  # in the worker process only

    from fedsaddle import Cyclic, Quadratic, make, train  # noqa: PLC0415
    from fedsaddle.algorithms import ALGORITHMS  # noqa: PLC0415
    from fedsaddle.data.synthetic import quadratic_clients  # noqa: PLC0415
    from fedsaddle.problems.quadratic import coefficients  # noqa: PLC0415

    fields = {f for f in ALGORITHMS[name].algorithm.__dataclass_fields__} - set(ALGORITHMS[name].fixed)
    method = make(name, **{key: value for key, value in settings.items() if key in fields})
    clients = quadratic_clients(CLIENTS, 1, DIMENSION, DIMENSION, heterogeneity, 0.0, 1.0, seed)
    problem = Quadratic(DIMENSION, DIMENSION,
                        mean=coefficients(clients, torch.ones(CLIENTS), DIMENSION, DIMENSION))
    groups = (Cyclic(4),) if name.startswith("cycp") else ()
    try:
        result = train(method, problem, clients, participation=groups, rounds=rounds, seed=seed, batch_size=1,
                       dtype="float64", evaluate_every=5)
        records = [r for r in result.records if "measures" in r]
    except RuntimeError:  # diverged
        return {"rounds": [], "floats": [], "distance": []}
    return {"rounds": [r["round"] for r in records], "floats": [r["total"]["floats_up"] for r in records],
            "distance": [r["measures"]["train"]["distance"] for r in records]}


def jobs() -> dict[str, tuple[Any, ...]]:
    """One run each: methods x K x heterogeneity x seeds, then CDMA with cohorts of several sizes."""
    everything: dict[str, tuple[Any, ...]] = {}
    for (name, more), K, level, seed in itertools.product(METHODS.items(), STEPS, LEVELS, SEEDS):
        settings = {"eta": ETA[K], "gamma": ETA[K], "steps": K, **{k: v for k, v in more.items() if k != "drift"}}
        everything[f"{name}|{K}|{level}|{seed}"] = (name, settings, level, seed, ROUNDS)
    for name, S, seed in itertools.product(("cdma-nc", "cdma-one", "cdma-ada"), COHORTS, SEEDS):
        settings = {"eta": ETA[5], "gamma": ETA[5], "steps": 5, "asked": S}
        if name == "cdma-ada":
            settings |= {"rho": 1 / 3, "c_alpha": 1.0, "eta": 4 * ETA[5], "gamma": 4 * ETA[5]}
        everything[f"cohort {name}|{S}|{seed}"] = (name, settings, 0.5, seed, 300)
    return everything


def measure() -> dict[str, dict[str, list[float]]]:
    """All runs, two at a time; what an interrupted call has done is not done again."""
    os.environ["OMP_NUM_THREADS"] = "1"
    PAGE.mkdir(parents=True, exist_ok=True)
    store = PAGE / "quadratic.json"
    done: dict[str, Any] = json.loads(store.read_text()) if store.exists() else {}
    todo = {key: job for key, job in jobs().items() if key not in done}
    with ProcessPoolExecutor(2) as pool, Progress() as bars:
        bar = bars.add_task("runs", total=len(todo))
        futures = {pool.submit(run, *job): key for key, job in todo.items()}
        for number, future in enumerate(as_completed(futures)):
            curve = future.result()
            done[futures[future]] = {k: [float(f"{v:.4g}") for v in values] if k == "distance" else values
                                     for k, values in curve.items()}
            bars.advance(bar)
            if number % 50 == 49:
                store.write_text(json.dumps(done))
    store.write_text(json.dumps(done))
    return done


def curves(done: dict[str, Any], name: str, K: int, level: float) -> tuple[list[float], list[float], np.ndarray]:
    """Rounds, floats and the distances of all seeds."""
    runs = [done[f"{name}|{K}|{level}|{seed}"] for seed in SEEDS]
    if not all(r["distance"] for r in runs):
        return [], [], np.zeros((len(SEEDS), 0))
    return runs[0]["rounds"], runs[0]["floats"], np.array([r["distance"] for r in runs])


def draw(done: dict[str, Any]) -> None:
    import matplotlib  # noqa: PLC0415

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    colours = plt.get_cmap("tab20").colors
    for axis in ("rounds", "floats"):
        figure, grid = plt.subplots(len(LEVELS), len(STEPS), figsize=(13, 10), sharey=True, layout="constrained")
        for (i, level), (j, K) in itertools.product(enumerate(LEVELS), enumerate(STEPS)):
            panel = grid[i, j]
            for number, name in enumerate(METHODS):
                rounds, floats, distances = curves(done, name, K, level)
                if not rounds:
                    continue
                x, mean = (rounds if axis == "rounds" else floats), np.exp(np.log(distances + 1e-16).mean(0))
                style = "-" if METHODS[name]["drift"] == "none" else "--"
                panel.plot(x, mean, style, color=colours[number], label=name, linewidth=1.4)
                panel.fill_between(x, distances.min(0), distances.max(0), color=colours[number], alpha=0.12)
            panel.set(yscale="log", ylim=(1e-9, 3), title=f"K = {K}, heterogeneity {level:g}")
            panel.grid(alpha=0.3)
        for panel in grid[:, 0]:
            panel.set_ylabel("distance to the saddle")
        for panel in grid[-1]:
            panel.set_xlabel("rounds" if axis == "rounds" else "floats received by the server")
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=9)
        figure.savefig(PAGE / f"quadratic-{axis}.svg")
        plt.close(figure)
    figure, panel = plt.subplots(figsize=(6, 4), layout="constrained")
    for name in ("cdma-nc", "cdma-one", "cdma-ada"):
        ends = np.array([cohort_ends(done, name, S) for S in COHORTS])
        panel.errorbar(COHORTS, ends.mean(1), ends.std(1), marker="o", capsize=3, label=name)
    panel.set(xscale="log", yscale="log", xlabel="clients asked, S", ylabel="distance at the end",
              xticks=COHORTS, xticklabels=[str(S) for S in COHORTS])
    panel.minorticks_off()
    panel.grid(alpha=0.3)
    panel.legend()
    figure.savefig(PAGE / "quadratic-cohort.svg")
    plt.close(figure)


def cohort_ends(done: dict[str, Any], name: str, S: int) -> list[float]:
    """The distance at the end, one a seed: the mean of the last ten evaluations."""
    return [float(np.mean(done[f"cohort {name}|{S}|{seed}"]["distance"][-10:])) for seed in SEEDS]


def end(done: dict[str, Any], name: str, K: int, level: float) -> str:
    distances = curves(done, name, K, level)[2]
    if not distances.size:
        return "diverged"
    last = distances[:, -1]
    return f"{last.mean():.1e} ± {last.std():.0e}" if last.mean() > 1e-12 else "< 1e-12"


def verdict(done: dict[str, Any], name: str) -> str:
    """Whether a floor was seen: at K = 20 and the largest heterogeneity the last third of the rounds gains nothing."""
    distances = curves(done, name, STEPS[-1], LEVELS[-1])[2]
    if not distances.size:
        return "diverged"
    mean = np.exp(np.log(distances + 1e-16).mean(0))
    if mean[-1] > 1:
        return "diverged"
    stuck = mean[-1] > 0.8 * mean[len(mean) * 2 // 3] and mean[-1] > 1e-6
    return "floor" if stuck else "none"


def write(done: dict[str, Any]) -> None:
    lines = [(Path(__file__).parent / "quadratic_page_text.md").read_text(encoding="utf-8")]
    for level in LEVELS:
        lines += [f"### Heterogeneity {level:g}: after {ROUNDS} rounds, mean ± deviation of {len(SEEDS)} seeds",
                  "", "| method | " + " | ".join(f"K = {K}" for K in STEPS) + " |", "|---" * (len(STEPS) + 1) + "|"]
        lines += [f"| {name} | " + " | ".join(end(done, name, K, level) for K in STEPS) + " |" for name in METHODS]
        lines.append("")
    lines += ["### Drift: what the theorems say and what was seen", "",
              f"Seen: at K = {STEPS[-1]} and heterogeneity {LEVELS[-1]:g}, a floor is a distance above 1e-6 that the "
              "last third of the rounds lowers by less than a fifth.", "",
              "| method | predicted | seen |", "|---|---|---|"]
    lines += [f"| {name} | {METHODS[name]['drift']} | {verdict(done, name)} |" for name in METHODS]
    lines += ["", "### Clients asked", "", "![distance against the number of clients asked](quadratic-cohort.svg)", "",
              "| method | " + " | ".join(f"S = {S}" for S in COHORTS) + " |", "|---" * (len(COHORTS) + 1) + "|"]
    for name in ("cdma-nc", "cdma-one", "cdma-ada"):
        cells = []
        for S in COHORTS:
            ends = cohort_ends(done, name, S)
            cells.append(f"{np.mean(ends):.1e} ± {np.std(ends):.0e}" if all(map(math.isfinite, ends)) else "diverged")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    (PAGE / "quadratic.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    results = measure()
    draw(results)
    write(results)
