"""What is measured: every preset is a list of cells, each the same work for several contestants."""

from __future__ import annotations

from typing import Any, NamedTuple

from contestants import ALL, CONTESTANTS

WARMUP = {"cpu": 40, "cuda": 10}  # rounds in which FedSaddle tries out how to run; the others need fewer
MEASURED = 20


class Cell(NamedTuple):
    series: str  # the table that it belongs to
    work: dict[str, Any]
    contestants: tuple[str, ...]
    memory: bool = False  # watch the memory of all its processes, which costs some time
    agree: float | None = None  # how far the losses may lie apart, as a share


CPU = ("fedsaddle", "plain", "pfl", "flower")
CUDA = ("fedsaddle", "fedsaddle-tf32", "plain", "vmap", "jax", "jax-highest")
BOTH = ("fedsaddle", "plain")
RESNET = {"model": "resnet20", "table": 12_000, "warmup_seconds": 90.0}
# A whole round takes minutes on two cores, and so does compiling it, in every way that could be tried.
SMALL_RESNET = {**RESNET, "cohort": 4, "steps": 4, "rows": 40, "rounds": 6, "run": {"execution": "traced"}}


def models(device: str) -> list[dict[str, Any]]:
    resnet = SMALL_RESNET if device == "cpu" else RESNET
    return [{"model": "linear"}, {"model": "mlp"}, {"model": "lenet5"}, resnet]


def check(device: str) -> list[Cell]:
    """Everyone is asked and a batch is all that a client has: no draw matters, all must end with the same model.

    In DRFA draws matter, so its losses only lie near each other.
    """
    work = {"clients": 16, "rows": 10, "cohort": 16, "table": 1000, "lr": 0.02, "exact": True}
    few = {"steps": 3, "warmup": 1, "rounds": 2}  # many steps blow rounding up: pools and ReLUs take another branch
    near = {"cpu": 5e-4, "cuda": 1e-2}[device]  # on a GPU convolutions use TF32 unless they are told not to
    rivals = (*CPU, "vmap", "jax") if device == "cpu" else CUDA
    cells = [cell("check", {**work, **few, "method": method, "model": model}, rivals)
             for method in ALL for model in ("linear", "mlp", "lenet5", "resnet20")
             if method == "fedavg" or model != "resnet20"]
    return [one._replace(agree=0.05 if one.work["method"] == "drfa" else near) for one in cells]


def quick(device: str) -> list[Cell]:
    rivals = CPU if device == "cpu" else CUDA
    few = {"rounds": 6, "warmup": 6}
    return [cell("standard", {"model": "mlp", **few}, rivals),
            cell("standard", {"model": "linear", "method": "cdma-one", **few}, rivals),
            cell("standard", {"model": "linear", **few}, BOTH)]


def standard(device: str) -> list[Cell]:
    rivals = CPU if device == "cpu" else CUDA
    return [cell("standard", {"method": method, **model}, (*rivals, "plain-lean"))
            for method in ALL for model in models(device)]


def goals(device: str) -> list[Cell]:
    """What is promised of a GPU, for a machine that is lent for minutes: the most important first."""
    resnet = {**RESNET, "run": {"execution": "compiled"}, "warmup": 3, "rounds": 6}
    cells = [("fedavg", {"model": "mlp"}, ("fedsaddle", "plain", "jax", "jax-highest", "fedsaddle-tf32")),
             ("fedavg", {"model": "lenet5"}, ("fedsaddle", "plain", "jax")),
             ("fedavg", resnet, ("fedsaddle", "plain", "jax")),
             ("fedavg", {"model": "linear"}, ("fedsaddle", "plain", "jax")),
             ("cdma-one", {"model": "mlp"}, ("fedsaddle", "jax"))]
    short = {"seconds": 5.0, "warmup_seconds": 40.0}
    return [cell("goals", {"method": method, **short, **model}, names) for method, model, names in cells]


def scaling(device: str) -> list[Cell]:
    rivals = CPU if device == "cpu" else CUDA
    light = {"seconds": 15.0, "warmup_seconds": 30.0}
    cells = []
    for clients in (500, 5_000, 50_000, 1_000_000):
        names = rivals if clients <= 5_000 else tuple(name for name in rivals if name != "flower")
        cells.append(cell("clients", {**light, "clients": clients}, names))
        cells += [cell("clients", {**light, "clients": clients, "model": "linear", "method": method}, ("fedsaddle",))
                  for method in ALL if clients in (500, 1_000_000)]
    for model in ("linear", "mlp"):
        for cohort in (16, 100, 1_000, 10_000):
            large = cohort > 1_000 and device == "cpu"
            names = BOTH if large and model == "mlp" else tuple(n for n in rivals if cohort <= 100 or n != "flower")
            few = {"rounds": 2} if large else {}
            cells.append(cell("cohort", {**light, "clients": 20_000, "cohort": cohort, "model": model, **few}, names))
    cells += [cell("steps", {**light, "steps": steps}, rivals) for steps in (1, 4, 12, 48, 192)]
    cells += [cell("size", {**light, "hidden": width}, rivals) for width in (50, 200, 800, 2_000)]
    return cells


def memory(device: str) -> list[Cell]:
    short = {"rounds": 4, "warmup": WARMUP[device]}  # as many rounds for all: CODASCA keeps a control per client seen
    cells = [Cell("memory", {**short, "clients": clients, "method": method}, BOTH, memory=True)
             for method in ("fedavg", "codasca") for clients in (500, 1_000_000)]
    wide = {**short, "rounds": 1, "warmup_seconds": 20.0, "clients": 20_000, "cohort": 10_000}
    return [*cells, Cell("memory", wide, ("fedsaddle",), memory=True)]


def full(device: str) -> list[Cell]:
    return [*check(device), *standard(device), *scaling(device), *memory(device)]


PRESETS = {"check": check, "quick": quick, "goals": goals, "standard": standard, "scaling": scaling, "memory": memory,
           "full": full}
REPETITIONS = {"check": 1, "goals": 1, "quick": 1, "memory": 1}  # three elsewhere


def cell(series: str, work: dict[str, Any], names: tuple[str, ...]) -> Cell:
    """For those that have the method."""
    method = work.get("method", "fedavg")
    return Cell(series, work, tuple(name for name in names if method in CONTESTANTS[name].methods))


def chosen(preset: str, device: str) -> list[Cell]:
    """The cells of a preset, with the rounds that nobody set."""
    usual = {"device": device, "rounds": MEASURED}
    return [one._replace(work={**usual, **one.work}) for one in PRESETS[preset](device)]


def warmup(name: str, work: dict[str, Any]) -> int:
    """Rounds before the clock counts."""
    usual = WARMUP[work["device"]] if name.startswith("fedsaddle") else 3
    return work.get("warmup", usual)
