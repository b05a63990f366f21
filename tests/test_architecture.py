"""The rooms of the package and the one way in which their imports point; what may not be in the source at all."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "fedsaddle"

GROUND = ("contracts", "maths")
ROOMS = (*GROUND, "metrics", "models", "data", "participation", "privacy", "problems", "algorithms")
MIDDLE = (*ROOMS, "engine", "report", "sites", "config", "recipes", "version")
ANYTHING = ("",)
MAY_SEE = {  # room: what it may import besides itself
    "contracts": (),
    "version": (),
    "recipes": (),
    "maths": ("contracts",),
    "metrics": GROUND,
    "models": GROUND,
    "data": GROUND,
    "participation": GROUND,
    "privacy": GROUND,
    "algorithms": GROUND,
    "problems": (*GROUND, "metrics", "models", "data.clients"),
    "engine": ROOMS,
    "report": MIDDLE,
    "sites": MIDDLE,
    "config": MIDDLE,
    "catalogue": MIDDLE,
    "assemble": MIDDLE,
    "runs": (*MIDDLE, "assemble", "catalogue"),
    "testing": (*MIDDLE, "assemble", "catalogue", "runs"),
    "cli": ANYTHING,
    "cli_data": (*MIDDLE, "assemble"),
    "cli_keys": MIDDLE,
    "studies": (*MIDDLE, "assemble", "runs"),
    "cli_report": MIDDLE,
    "cli_studies": (*MIDDLE, "studies"),
    "cli_sites": ANYTHING,
    "cli_provision": MIDDLE,
    "serving": (*MIDDLE, "assemble", "runs"),
    "cli_images": ANYTHING,
    "cli_sweep": (*MIDDLE, "studies"),
    "cli_table": (*MIDDLE, "assemble", "runs", "fitting"),
    "fitting": (*MIDDLE, "assemble"),
    "__main__": ANYTHING,
    "__init__": ANYTHING,
}
UNSAFE_MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
UNSAFE_CALLS = {"eval", "exec", "__import__"}


def files(root):
    return sorted(root.rglob("*.py"))


def where(file, root):
    return file.relative_to(root).as_posix()


def room(file, root):
    return file.relative_to(root).with_suffix("").parts[0]


def imported(file, root):
    """(line, dotted name) of every import of a file, relative ones written out; `from a import b` is a.b."""
    package = ["fedsaddle", *file.relative_to(root).parts[:-1]]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def inside(name, allowed):
    return any(name == one or name.startswith(f"{one}.") or not one for one in allowed)


def back_arrows(root):
    """Imports between rooms that point back, and rooms that nobody has given a place."""
    found = []
    for file in files(root):
        own = room(file, root)
        if own not in MAY_SEE:
            found.append(f"{where(file, root)}: room {own!r} has no place in MAY_SEE; say what it may import")
            continue
        for line, name in imported(file, root):
            top, _, target = name.partition(".")
            if top == "fedsaddle" and not inside(target, (own, *MAY_SEE[own])):
                found.append(f"{where(file, root)}:{line} imports {name}")
    return found


def strangers(root):
    """Imports of flwr and nvflare outside their adapters, sites/flower and sites/nvflare."""
    adapters = {"flwr": "sites/flower/", "nvflare": "sites/nvflare/"}
    return [f"{where(file, root)}:{line} imports {name}" for file in files(root) for line, name in imported(file, root)
            if name.split(".")[0] in adapters and not where(file, root).startswith(adapters[name.split(".")[0]])]


def unsafe(root):
    """What could run code that came in a file or a message."""
    found = []
    for file in files(root):
        found += [f"{where(file, root)}:{line} imports {name}" for line, name in imported(file, root)
                  if name.split(".")[0] in UNSAFE_MODULES or name == "torch.load"]
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and (_is_unsafe(ast.unparse(node.func)) or _unpickles(node)):
                found.append(f"{where(file, root)}:{node.lineno} calls {ast.unparse(node)}")
    return found


def _is_unsafe(function):
    return function in UNSAFE_CALLS or function == "torch.load" or function.endswith("read_pickle")


def _unpickles(call):
    return any(k.arg == "allow_pickle" and ast.unparse(k.value) != "False" for k in call.keywords)


def lines(file):
    return len(file.read_text(encoding="utf-8").splitlines())


def test_imports_point_one_way():
    assert back_arrows(SRC) == []


def test_only_sites_know_flower_and_nvflare():
    assert strangers(SRC) == []


def test_nothing_unpickles_or_evaluates():
    assert unsafe(SRC) == []


def test_files_stay_small():
    assert {where(f, SRC): lines(f) for f in files(SRC) if lines(f) > 300} == {}
    algorithms = [f for f in files(SRC / "algorithms") if f.stem != "__init__"]
    assert algorithms and {f.name: lines(f) for f in algorithms if lines(f) > 110} == {}


# The walker itself.


def plant(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n", encoding="utf-8")


@pytest.mark.parametrize(("path", "text"), [
    ("algorithms/new.py", "from fedsaddle.engine.federation import EngineFederation"),
    ("algorithms/new.py", "from fedsaddle.problems import AUC"),
    ("algorithms/new.py", "def later():\n    import fedsaddle.data.clients"),
    ("algorithms/new.py", "from ..engine import states"),
    ("algorithms/new.py", "from .. import assemble"),
    ("algorithms/new.py", "from fedsaddle import train"),
    ("algorithms/new.py", "import fedsaddle"),
    ("contracts.py", "from fedsaddle.maths import keys"),
    ("contracts.py", "from .maths import keys"),
    ("maths/deep/er.py", "from ...metrics import auc"),
    ("problems/new.py", "from fedsaddle.data import sources"),
    ("participation/new.py", "if TYPE_CHECKING:\n    from fedsaddle.data.clients import Clients"),
    ("engine/new.py", "from fedsaddle.report import folder"),
    ("config/new.py", "from fedsaddle.assemble import assemble"),
    ("report/new.py", "from fedsaddle.cli import main"),
    ("assemble.py", "from fedsaddle import cli"),
    ("helpers/new.py", "x = 1"),
])
def test_a_planted_arrow_back_is_caught(tmp_path, path, text):
    plant(tmp_path, path, text)
    assert len(back_arrows(tmp_path)) == 1 and path in back_arrows(tmp_path)[0]


@pytest.mark.parametrize(("path", "text"), [
    ("algorithms/new.py", "from fedsaddle.contracts import Point\nfrom fedsaddle.maths import keys\nimport torch"),
    ("algorithms/new.py", "from . import cdma\nfrom .cdma import CDMA\nfrom ..maths.trees import leaves"),
    ("problems/new.py", "from fedsaddle.data.clients import Clients\nfrom fedsaddle.data import clients"),
    ("engine/new.py", "from fedsaddle.algorithms import ALGORITHMS"),
    ("cli.py", "import fedsaddle\nfrom fedsaddle import assemble"),
])
def test_arrows_that_point_down_are_let_through(tmp_path, path, text):
    plant(tmp_path, path, text)
    assert back_arrows(tmp_path) == []


@pytest.mark.parametrize("text", [
    "import pickle", "from pickle import loads", "import joblib", "from torch import load", "torch.load('x')",
    "eval('1')", "exec(text)", "__import__('os')", "numpy.load('x', allow_pickle=True)", "pandas.read_pickle('x')",
])
def test_planted_unsafe_code_is_caught(tmp_path, text):
    plant(tmp_path, "data/new.py", text)
    assert len(unsafe(tmp_path)) == 1


def test_safe_code_is_let_through(tmp_path):
    plant(tmp_path, "data/new.py", "module.eval()\nnumpy.load('x', allow_pickle=False)\nsafetensors.torch.load_file(f)")
    assert unsafe(tmp_path) == []


def test_planted_strangers_are_caught(tmp_path):
    plant(tmp_path, "sites/flower/wire.py", "import flwr")
    plant(tmp_path, "sites/nvflare/wire.py", "from nvflare.client import init")
    assert strangers(tmp_path) == []
    plant(tmp_path, "engine/new.py", "from flwr.server import Grid")
    assert len(strangers(tmp_path)) == 1
    plant(tmp_path, "sites/coordinator.py", "import flwr\nimport nvflare")
    assert len(strangers(tmp_path)) == 3
