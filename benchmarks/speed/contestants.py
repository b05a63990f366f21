"""Who takes part: their scripts, what they need installed, what they can do. And their environments."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ENVIRONMENTS = HERE.parent / ".envs"
TORCH = "torch>=2.11"  # the version is in constraints.txt
NONE: Mapping[str, Any] = MappingProxyType({})
ALL = ("fedavg", "cdma-one", "codasca", "drfa")


class Contestant(NamedTuple):
    label: str
    script: str
    environment: str  # its folder under ENVIRONMENTS
    methods: tuple[str, ...] = ("fedavg",)
    settings: Mapping[str, Any] = NONE  # fields of the work that are its own
    environ: Mapping[str, str] = NONE
    rate: str = "flops"  # what bounds its arithmetic: the measured rate of float32, or of tensor cores' TF32


ONE_THREAD = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}
CONTESTANTS = {
    "fedsaddle": Contestant("FedSaddle", "ours.py", "fedsaddle", ALL),
    "fedsaddle-tf32": Contestant("FedSaddle, matmul = high (TF32)", "ours.py", "fedsaddle", ALL,
                                 {"run": {"matmul": "high"}}, rate="tf32"),
    "plain": Contestant("plain PyTorch loop", "plain.py", "plain", ALL),
    "plain-lean": Contestant("plain PyTorch loop, no gradient at z_(t-1)", "plain.py", "plain", ("cdma-one",),
                             {"previous": False}),
    "vmap": Contestant("eager vmap", "eager_vmap.py", "plain", ALL),
    "pfl": Contestant("pfl-research", "with_pfl.py", "pfl"),
    "flower": Contestant("Flower, 2 Ray actors", "with_flower.py", "flower"),
    "jax": Contestant("JAX", "with_jax.py", "jax", ("fedavg", "cdma-one"), NONE, ONE_THREAD, "tf32"),
    "jax-highest": Contestant("JAX, matmul precision highest", "with_jax.py", "jax", ("fedavg", "cdma-one"),
                              {"matmul": "highest"}, ONE_THREAD),
}
REQUIREMENTS: dict[str, list[str]] = {
    "fedsaddle": ["--editable", str(ROOT)],
    "plain": [TORCH, "numpy"],
    "pfl": [TORCH, "numpy", "pfl>=0.6"],
    "flower": [TORCH, "numpy", "flwr[simulation]>=1.39,<1.42"],
    "jax": ["jax", "numpy"],
}


class Missing(Exception):
    """An environment could not be made; the text says why."""


def python_of(name: str) -> str:
    """The Python of an environment, installed where that has not been done."""
    folder = ENVIRONMENTS / name
    stamp, python = folder / "installed", folder / "bin" / "python"
    wanted = hashlib.sha256(repr([REQUIREMENTS[name], (ROOT / "constraints.txt").read_text()]).encode()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(folder, with_pip=True, symlinks=os.name != "nt", clear=True)
        done = subprocess.run([python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt",
                               *REQUIREMENTS[name]], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Missing(f"could not be installed: {last_line(done.stderr)}")
        stamp.write_text(wanted)
    return str(python)


def command(name: str, here: bool) -> tuple[list[str], dict[str, str]]:
    """The command of a contestant without its work, and its environment variables.

    here: with this Python, FedSaddle out of src, nothing installed.
    """
    contestant = CONTESTANTS[name]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
                 **contestant.environ}
    if here:
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    python = sys.executable if here else python_of(contestant.environment)
    return [python, str(HERE / "contenders" / contestant.script)], variables


def last_line(text: str) -> str:
    """The last line that says something; of files only the names, which mean something on another machine too."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return re.sub(r"(/[\w.@+-]+)+/", "", lines[-1])[:160] if lines else "no message"
