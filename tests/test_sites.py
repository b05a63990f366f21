"""Across sites, over a wire in memory: the same numbers as in simulation, bad replies kept out, states that stand."""

from __future__ import annotations

import pytest

from fedsaddle import testing
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.engine.training import rounds
from fedsaddle.participation import Participation
from fedsaddle.sites.policy import Policy
from sites import across


def finished(job):
    return list(rounds(job.algorithm, job.federation, job.progress, job.plan, job.evaluate))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_sites_give_what_the_simulation_gives(name, tmp_path):
    for case in ALGORITHMS[name].cases:
        expected = testing.final_state(testing.trial(name), testing.CASES[case](), Participation())
        job = across(testing.trial(name), testing.CASES[case](), tmp_path / case, name=name,
                     policy=Policy(raw_scores=True))
        got = finished(job)
        assert not [one["refused"] for _, record in got for one in record["asks"] if one["refused"]]
        testing.compare((got[-1][0].server, got[-1][0].traffic._replace(virtual_seconds=0.0)),
                        (expected.server, expected.traffic), f"{case} across sites", 1e-9)
