"""The recipes of the package: each settles, says what it is, and is what it says once written out."""

import os

import pytest

from fedsaddle import recipes
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.assemble import job_from_settings
from fedsaddle.config import method, read, settle, tables_of
from fedsaddle.contracts import SettingError
from fedsaddle.runs import carry_out

REAL = os.environ.get("FEDSADDLE_DATA")


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_settles_and_survives_being_written(name):
    settings = settle(read(recipes.path(name)))
    assert settle(tables_of(settings)) == settings
    assert len(recipes.about(name)) > 20


def test_one_assignment_for_all_methods_whose_labels_fit():
    tables = read(recipes.path("codasca/cifar10-ih"))
    plain = settle(tables)
    changed = settle(tables, ["algorithms.CODASCA-*.eta=0.05", "overrides.*-512.run.rounds=8"])
    for label, before in plain.algorithms.items():
        after = changed.algorithms[label].settings
        assert after == {**before.settings, "eta": 0.05 if label.startswith("CODASCA-") else 0.1}
        assert method(changed, label).run.rounds == (8 if label.endswith("-512") else method(plain, label).run.rounds)
    assert settle(tables, ["algorithms.CODASCA-?.eta=0.05"]).algorithms["CODASCA-32"].settings["eta"] == 0.1
    with pytest.raises(SettingError, match=r"coda-\*.*no method is called so; there are CODASCA-1, CODASCA-8"):
        settle(tables, ["algorithms.coda-*.eta=0.05"])


@pytest.mark.parametrize("name", [name for name in recipes.names() if name.startswith("cdma/")])
def test_methods_of_the_cdma_paper_are_compared_at_equal_floats(name):
    """S_hat times the copies of z that a client uploads is the same for all."""
    settings = settle(read(recipes.path(name)))
    chosen = settings.algorithms.values()
    assert {one.settings["asked"] * ALGORITHMS[one.name].copies for one in chosen} == {16}


@pytest.mark.skipif(not REAL, reason="FEDSADDLE_DATA names no folder with the real data")
def test_auc_on_mnist_improves():
    settings = settle(read(recipes.path("cdma/auc-mnist")), ["run.rounds=20", 'run.evaluate_on=["test"]'])
    job = job_from_settings(settings, "CDMA-ONE")
    assert job.federation.num_clients == 500
    start = job.evaluate(job.algorithm.solution(job.progress.server))[0]["test"]["auc"]
    measures = [r["measures"]["test"]["auc"] for r in carry_out(job, settings.run).records if "measures" in r]
    assert max(measures) > max(start, 0.85)
