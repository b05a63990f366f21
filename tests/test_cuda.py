"""On a GPU: the same draws, the same results as the reference on the CPU, the same twice, and resumed."""

from __future__ import annotations

import pytest
import torch

from fedsaddle import testing
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.maths import keys, streams
from fedsaddle.participation import Participation

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")


def test_draws_are_the_same_on_every_device():
    ids, rows = torch.arange(500), torch.arange(500) * 3 + 1
    key = keys.address(1, 2, 3)
    for device in ("cpu", "cuda"):
        stream = streams.fold(key, ids.to(device))
        drawn = streams.slots(stream, rows.to(device), 40).cpu()
        uniform = streams.uniform(stream[:, None], torch.arange(9, device=device)).cpu()
        if device == "cpu":
            expected = drawn, uniform
    assert torch.equal(drawn, expected[0]) and torch.equal(uniform, expected[1])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_cuda_equals_the_reference_on_the_cpu(name):
    for case in ALGORITHMS[name].cases:
        expected = testing.final_state(testing.trial(name), testing.CASES[case](), engine="reference")
        for chunk in (3, None):
            got = testing.final_state(testing.trial(name), testing.CASES[case](), chunk=chunk, device="cuda")
            testing.compare(got, expected, f"{case}, chunk {chunk}, on the GPU", 1e-9)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_twice_on_cuda(name):
    case = ALGORITHMS[name].cases[0]
    runs = [testing.final_state(testing.trial(name), testing.CASES[case](), device="cuda") for _ in range(2)]
    testing.compare(*runs, "two equal runs on the GPU", 0.0)


@pytest.mark.parametrize("name", ["codasca", "cdma-ada"])
def test_a_checkpoint_moves_between_devices(name, tmp_path):
    from fedsaddle.config import Run
    from fedsaddle.report.folder import RunFolder
    from fedsaddle.runs import carry_out

    case = testing.auc_case()
    expected = testing.final_state(testing.trial(name), case, Participation())
    folder, seen = RunFolder(tmp_path / "run"), []
    folder.create({})
    run = Run(rounds=testing.ROUNDS, evaluate_every=1)
    start = testing.job(testing.trial(name), case, Participation(), device="cuda")
    carry_out(start, run, folder, seen.append, stop=lambda: len(seen) >= 5)
    resumed = testing.job(testing.trial(name), case, Participation(), checkpoints=folder.checkpoints)
    assert resumed.progress.round == 5
    testing.compare(testing.finished(resumed), expected, "begun on the GPU, ended on the CPU", 1e-9)
