"""Several processes for one run: who computes whom, what they exchange, and `torchrun` as a user starts it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from datetime import timedelta

import pytest
import safetensors.torch
import torch
import torch.distributed as dist

from fedsaddle.assemble import job_from_settings
from fedsaddle.config import read, settle
from fedsaddle.contracts import Point
from fedsaddle.engine import crew
from fedsaddle.engine.ranks import Ranks
from fedsaddle.engine.training import TIMES
from fedsaddle.report.folder import RunFolder
from fedsaddle.runs import carry_out

torch.set_num_threads(1)
SETTINGS = """
[run]
rounds = 12
batch_size = 5
evaluate_every = 6
checkpoint_every = 4
dtype = "float64"
workers = 1
execution = "eager"
chunk = 2
[algorithms.a]
name = "codasca"
asked = 5
steps = 3
eta = 0.1
[algorithms.b]
name = "drfa"
asked = 5
steps = 3
[problem]
name = "auc"
[model]
name = "linear"
[data]
name = "digits"
positive = [9]
clients = 20
[participation]
respond = [{name = "drop-outs", rate = 0.2}]
"""


# Shares.


def ids_of(seed, count, population=1000):
    return torch.randperm(population, generator=torch.Generator().manual_seed(seed))[:count]


@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_shares_hold_every_position_once(size, sized, owned):
    for count in (1, 2, 5, 64, 101):
        ids = ids_of(count, count)
        shares = Ranks(0, size).shares(ids, ids % 50 if sized else None, owned)
        assert len(shares) == size
        assert sorted(torch.cat(shares).tolist()) == list(range(count))
        for rank in range(size):  # the same list in every process
            assert all(map(torch.equal, Ranks(rank, size).shares(ids, ids % 50 if sized else None, owned), shares))
        if not owned:
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_an_owned_client_always_goes_to_the_same_process():
    owner = {}
    for seed in range(30):
        ids = ids_of(seed, 40, 100)
        for sizes in (None, torch.arange(40)):
            for rank, share in enumerate(Ranks(1, 3).shares(ids, sizes, owned=True)):
                for client in ids[share].tolist():
                    assert owner.setdefault(client, rank) == rank
    assert len(owner) == 100 and set(owner.values()) == {0, 1, 2}


def test_large_and_small_clients_are_dealt_out_evenly():
    sizes = torch.tensor([100, 1, 1, 100, 1, 1, 100, 1, 1, 100])
    rows = [int(sizes[share].sum()) for share in Ranks(0, 2).shares(torch.arange(10), sizes, owned=False)]
    assert rows == [203, 203]


# Exchanges.


def test_alone_every_exchange_is_nothing():
    alone, tree = Ranks(), (Point(torch.ones(2), torch.zeros(0)), ())
    rows = torch.arange(6).reshape(3, 2)
    assert alone.total(tree) is tree and alone.gathered(rows, [3]) is rows and alone.largest(2.5) == 2.5


def exchanges(ranks):
    """What a process hears from the others, with rows that say where they come from."""
    counts = [0, 2, 1]
    mine = torch.full((counts[ranks.rank], 2), ranks.rank)
    tree = (Point(torch.full((2, 3), 10.0**ranks.rank), torch.zeros(0)), torch.tensor(1.0 + ranks.rank))
    return ranks.total(tree), ranks.gathered(mine, counts), ranks.largest(-1.0 - ranks.rank)


@pytest.mark.skipif(not crew.possible(), reason="workers are forked on Linux alone")
def test_three_processes_exchange_sums_rows_and_decisions(monkeypatch):
    monkeypatch.setattr(crew, "PATIENCE", timedelta(seconds=60))
    hired = crew.Crew(3)
    try:
        (point, number), rows, largest = exchanges(hired.hire(3, exchanges))
    finally:
        hired.dismiss()
    assert torch.equal(point.x, torch.full((2, 3), 111.0)) and point.y.shape == (0,) and float(number) == 6
    assert rows.tolist() == [[1, 1], [1, 1], [2, 2]] and rows.dtype == torch.int64
    assert largest == -1.0
    assert not dist.is_initialized()


A_GROUP_AND_ITS_END = """
import os, threading, torch, torch.distributed
from fedsaddle.engine.crew import Crew

def threads():
    return {open(f"/proc/self/task/{each}/comm").read().strip() for each in os.listdir("/proc/self/task")}

before, hired = threads(), Crew(2)
ranks = hired.hire(2, lambda ranks: ranks.largest(ranks.rank))
import torch.distributed.nn.functional  # as tracing a work does
assert ranks.largest(ranks.rank) == 1
during = threads()
hired.dismiss()
print(sorted(during - before), sorted(threads() - before))
"""


@pytest.mark.skipif(not crew.possible(), reason="workers are forked on Linux alone")
def test_a_group_takes_its_threads_along():
    """What is left of them when the interpreter ends may abort the process, after all its work is done."""
    ended = subprocess.run([sys.executable, "-c", A_GROUP_AND_ITS_END], env={**os.environ, "OMP_NUM_THREADS": "1"},
                           text=True, capture_output=True, timeout=90, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "gloo" in ended.stdout and ended.stdout.rstrip().endswith(" []"), ended.stdout


# torchrun.


def torchrun(*arguments):
    """Two processes on this machine; whatever happens, they end."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "fedsaddle",
         *map(str, arguments)], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True)
    try:
        output, _ = process.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output = "two processes waited for each other in vain\n" + process.communicate()[0]
    return process.returncode, output


def listening():
    try:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
    except OSError:
        return False
    return dist.is_available() and dist.is_gloo_available()


TORCHRUN = pytest.mark.skipif(not listening(), reason="torch.distributed or the loopback interface is missing")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A folder with two methods, run by two processes."""
    path = tmp_path_factory.mktemp("ranks")
    (path / "run.toml").write_text(SETTINGS)
    code, output = torchrun("run", path / "run.toml", "--out", path / "both")
    assert code == 0, output
    return path, output


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same by this process."""
    path = tmp_path_factory.mktemp("alone")
    (path / "run.toml").write_text(SETTINGS)
    settings = settle(read(path / "run.toml"))
    for label in "ab":
        folder = RunFolder(path / label)
        folder.create({})
        carry_out(job_from_settings(settings, label), settings.run, folder)
    return path


def alike(got, expected, tolerance):
    """Models, states of a checkpoint and records of a method."""
    for file in ("model.safetensors", "checkpoints/00000012/state.safetensors"):
        one, other = (safetensors.torch.load_file(folder / file) for folder in (got, expected))
        assert one.keys() == other.keys()
        orders = [torch.argsort(each["clients.ids"]) if "clients.ids" in each else None for each in (one, other)]
        for name in one:
            ours, theirs = (each[name][order] if name.startswith("clients.") else each[name]
                            for each, order in zip((one, other), orders, strict=True))
            torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance, msg=lambda text, name=name: name + text)
    ours, theirs = (RunFolder(folder).records() for folder in (got, expected))
    for one, other in zip(ours, theirs, strict=True):
        assert {**one, "measures": 0, **dict.fromkeys(TIMES, 0)} == {**other, "measures": 0, **dict.fromkeys(TIMES, 0)}


@TORCHRUN
def test_two_ranks_give_the_models_of_one_process_and_one_folder(ran, alone):
    path, output = ran
    assert sorted(each.name for each in path.iterdir()) == ["both", "run.toml"]
    assert sorted(each.name for each in (path / "both").iterdir()) == ["a", "b", "run.toml"]
    assert output.count("run folder:") == 1  # only one of them speaks
    for label in "ab":
        alike(path / "both" / label, alone / label, 1e-12)
        assert RunFolder(path / "both" / label).calibration()["processes"] == 2


@TORCHRUN
@pytest.mark.parametrize("execution", ["eager", "auto"])
def test_a_run_of_ranks_is_resumed_by_ranks(execution, ran, alone, tmp_path):
    """One method from its second checkpoint, the other from its start; the result is that of a run without a stop."""
    shutil.copytree(ran[0] / "both", folder := tmp_path / "both")
    text = (folder / "run.toml").read_text()
    (folder / "run.toml").write_text(text.replace('execution = "eager"', f'execution = "{execution}"'))
    for label, kept in (("a", "00000008"), ("b", "")):
        (folder / label / "summary.json").unlink()
        (folder / label / "model.safetensors").unlink()
        for checkpoint in (folder / label / "checkpoints").iterdir():
            if checkpoint.name != kept:
                shutil.rmtree(checkpoint)
    code, output = torchrun("resume", folder)
    assert code == 0, output
    for label in "ab":
        alike(folder / label, alone / label, 1e-12)
        if execution == "eager":
            alike(folder / label, ran[0] / "both" / label, 0.0)
