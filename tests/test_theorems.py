"""CDMA's schedule, the step sizes of the papers' theorems against numbers worked by hand, and their way into a run."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsaddle.algorithms import ALGORITHMS, make
from fedsaddle.algorithms.cdma import CDMA
from fedsaddle.algorithms.theorems import THEOREMS, step_sizes
from fedsaddle.config import settle, tables_of
from fedsaddle.contracts import SettingError

positive = st.floats(1e-4, 1e4)
caps = st.one_of(st.just(math.inf), positive)
rounds = st.lists(st.integers(0, 100_000), min_size=2, max_size=6).map(sorted)


# The schedule.


@given(eta=positive, gamma=positive, rho=st.floats(0, 2), c_alpha=caps, eta_cap=caps, gamma_cap=caps, ts=rounds)
def test_a_schedule_is_positive_capped_and_never_grows(eta, gamma, rho, c_alpha, eta_cap, gamma_cap, ts):
    method = CDMA(eta=eta, gamma=gamma, rho=rho, c_alpha=c_alpha, eta_cap=eta_cap, gamma_cap=gamma_cap)
    schedule = [method.schedule(t) for t in ts]
    for alpha, eta_t, gamma_t in schedule:
        assert 0 < alpha <= 1 and 0 < eta_t <= min(eta * (1 + 1e-12), eta_cap) and 0 < gamma_t <= min(gamma, gamma_cap)
    for earlier, later in itertools.pairwise(schedule):
        assert all(b <= a for a, b in zip(earlier, later, strict=True))
    assert method.schedule(0)[0] == 1  # w_0 is a plain average


@given(eta=positive, gamma=positive, rho=st.floats(0, 2), c_alpha=positive, t=st.integers(1, 100_000))
def test_without_caps_it_is_the_schedule_of_the_experiments(eta, gamma, rho, c_alpha, t):
    got = CDMA(eta=eta, gamma=gamma, rho=rho, c_alpha=c_alpha).schedule(t)
    wanted = min(1, c_alpha / (t + 1) ** (2 * rho)), eta / (t + 1) ** rho, gamma / (t + 1) ** rho
    assert got == pytest.approx(wanted, rel=1e-12)


@given(L_f=st.floats(0.1, 10), mu=st.floats(0.01, 1), sigma=st.tuples(st.floats(0, 3), st.floats(0, 3)),
       L_0=st.floats(0.1, 100), K=st.integers(1, 50), t=st.integers(1, 10**9))
def test_ada_follows_theorem_3(L_f, mu, sigma, L_0, K, t):
    """Every round's alpha, eta and gamma by the formulas of the theorem, S as small as it allows."""
    s1, s2 = sigma
    kappa = L_f / mu
    noise = s1**2 / kappa**2 + s2**2
    S = max(1, math.ceil(noise / (L_f * L_0)))
    settings = step_sizes("cdma", 3, L_f=L_f, mu=mu, sigma_1=s1, sigma_2=s2, L_0=L_0, S=S, K=K)
    gamma = min(1 / (2 * L_f), 5.78e-4 / (L_f * K))
    if noise > 0:
        gamma = min(gamma, S ** (1 / 3) * L_0 ** (1 / 3) / (L_f ** (2 / 3) * K * (t + 1) ** (1 / 3) * noise ** (1 / 3)))
    wanted = 200_000 * L_f**2 * K**2 * gamma**2, gamma / (12 * kappa**2), gamma
    assert make("cdma-ada", **settings).schedule(t) == pytest.approx(wanted, rel=1e-9)
    assert wanted[0] < 1  # so that min(1, .) does not touch the theorem's alpha


# The theorems, by hand. kappa = 2, L_Phi = (1 + 2/2) 2 = 4, L_Phi + L_f = 6 for cdma.

NC = {"L_f": 2.0, "mu": 1.0, "sigma_1": 3.0, "sigma_2": 1.0, "G_1": 1.0, "G_2": 2.0, "L_0": 1.0, "S": 4, "K": 5}


@pytest.mark.parametrize("change, gamma, eta", [
    ({"T": 100}, 1 / 870, 1 / 870 / 84),  # the cap 1 / (87 * 2 * 5); gamma / (21 * 4)
    ({"T": 10**12}, math.sqrt(80 / 5e13), math.sqrt(80 / 5e13) / 84),  # 20 * 1 * 4 / (2 * 1e12 * 25 * 1)
    ({"T": 10**12, "S": 4 * 10**6}, (30 / 2.5e15) ** (1 / 3), (30 / 2.5e15) ** (1 / 3) / 84),  # 4 * 5 * 1e12 * 125
    ({"T": 10**12, "sigma_1": 300.0}, math.sqrt(80 / 5e13), math.sqrt(80 / 9.45e19)),  # 7 * 6 * 1e12 * 25 * 9e4
    # sigma_2 = 0 takes the first bound away: 30 / (4 * 4 * 1e12 * 125), capped; 3 / (4 * (9 + 1e14) * 1e6 * 125)
    ({"T": 10**6, "sigma_2": 0.0, "G_2": 0.0, "G_1": 1e7, "S": 10**9}, 1 / 870, 6e-23 ** (1 / 3)),
])
def test_cdma_theorem_1(change, gamma, eta):
    got = step_sizes("cdma", 1, **{**NC, **change})
    assert got == {"eta": pytest.approx(eta, rel=1e-9), "gamma": pytest.approx(gamma, rel=1e-9), "rho": 0.0, "steps": 5,
                   "asked": change.get("S", 4)}


@pytest.mark.parametrize("T, sigma_1, gamma, eta", [
    (100, 3.0, 1 / 870, 1 / 870 / 84),
    (10**12, 3.0, math.sqrt(16 / 1.5e14), math.sqrt(16 / 1.5e14) / 84),  # 4 * 1 * 4 / (3 * 2 * 1e12 * 25)
    (10**12, 300.0, math.sqrt(16 / 1.5e14), math.sqrt(160 / 2.835e20)),  # 40 * 4 / (21 * 6 * 1e12 * 25 * 9e4)
])
def test_cdma_theorem_2(T, sigma_1, gamma, eta):
    constants = {k: v for k, v in NC.items() if k not in ("G_1", "G_2")}
    got = step_sizes("cdma", 2, **{**constants, "T": T, "sigma_1": sigma_1})
    assert got == {"eta": pytest.approx(eta), "gamma": pytest.approx(gamma), "rho": 0.0, "steps": 5, "asked": 4}


def test_cdma_theorem_3():
    """kappa = 2, sigma_1^2 / 4 + sigma_2^2 = 4, c = (8 * 1)^(1/3) / (2^(2/3) 5 4^(1/3)) = 2 / (5 * 16^(1/3))."""
    c = 2 / (5 * 2.5198420997897464)
    got = step_sizes("cdma", 3, L_f=2.0, mu=1.0, sigma_1=2.0, sigma_2=math.sqrt(3), L_0=1.0, S=8, K=5)
    assert got == {"gamma": pytest.approx(c), "eta": pytest.approx(c / 48), "c_alpha": pytest.approx(2e7 * c**2),
                   "gamma_cap": pytest.approx(5.78e-5), "rho": 1 / 3, "steps": 5, "asked": 8}
    with pytest.raises(SettingError, match=r"holds only for S >= .* 2 here"):  # 4 / (2 * 1)
        step_sizes("cdma", 3, L_f=2.0, mu=1.0, sigma_1=2.0, sigma_2=math.sqrt(3), L_0=1.0, S=1, K=5)


# cd-mage: L_f = sqrt(2 max(1 + 7, 4 + 4)) = 4, L_Phi = 1 + 2 sqrt(7) / (2 * 0.5) = 1 + 2 sqrt(7), mu / L_12 = 1/4.
MODULI = {"L_1": 1.0, "L_21": math.sqrt(7), "L_2": 2.0, "L_12": 2.0, "mu": 0.5}
L_PHI = 6.291502622129181


@pytest.mark.parametrize("change, gamma, eta", [
    ({}, 1 / 1740, 1 / 1740 / 336),  # 87 * 4 * 5; 21 * 16
    ({"T": 10**12}, math.sqrt(16 / 3e14), math.sqrt(16 / 3e14) / 336),  # 4 * 4 / (3 * 4 * 1e12 * 25)
    ({"sigma_1": 3e6}, 1 / 1740, math.sqrt(160 / (21 * (L_PHI + 4) * 100 * 25 * 9e12))),
    ({"L_12": 1e-3}, 1 / 1740, 1 / 720),  # L_Phi = 1.0026: 1 / (36 * 4 * 5) is the least
    ({"L_12": 0.01, "L_2": 0.1, "L_1": 1000.0, "L_21": 0.01}, 1 / (435 * math.sqrt(2 * (1e6 + 1e-4))),
     1 / (36 * 5 * math.sqrt(2 * (1e6 + 1e-4)))),
])
def test_cd_mage_theorem_1(change, gamma, eta):
    constants = {**MODULI, "sigma_1": 3.0, "sigma_2": 1.0, "L_0": 1.0, "S": 4, "K": 5, "T": 100, **change}
    got = step_sizes("cd-mage", 1, **constants)
    assert got == {"eta": pytest.approx(eta), "gamma": pytest.approx(gamma), "rho": 0.0, "steps": 5, "asked": 4}


def test_cd_mage_theorem_2():
    got = step_sizes("cd-mage", 2, **MODULI, S=8, K=5)
    c = 2 / 20  # 8^(1/3) / (4 * 5)
    assert got == {"gamma": pytest.approx(c), "gamma_cap": pytest.approx(1 / 2000), "rho": 1 / 3, "steps": 5,
                   "asked": 8, "eta": pytest.approx(2 * c / (33 * 16)), "eta_cap": pytest.approx(1 / (2 * L_PHI)),
                   "c_alpha": pytest.approx(8192 * 16 * 25 / 8 * c**2)}
    method = make("cd-mage+", **got)
    late = 10**9  # past the cap: c / (t+1)^(1/3) = 1e-4
    assert method.schedule(late - 1) == pytest.approx((8192 * 400 / 8 * 1e-8, 2e-4 / 528, 1e-4))
    assert method.schedule(1)[2] == 1 / 2000
    weak = step_sizes("cd-mage", 2, **{**MODULI, "L_12": 1e-3}, S=8, K=5)
    assert make("cd-mage+", **weak).schedule(1)[1] == pytest.approx(1 / 8)  # 1 / (2 L_f) binds


@pytest.mark.parametrize("change, gamma, eta", [
    ({}, 1 / 1740, 1 / 1740 / 336),
    ({"T": 10**12}, math.sqrt(80 / 1e14), math.sqrt(80 / 1e14) / 336),  # 20 * 4 / (4 * 1e12 * 25)
    ({"T": 10**12, "S": 4 * 10**6}, (30 / 1e16) ** (1 / 3), (30 / 1e16) ** (1 / 3) / 336),  # 16 * 5 * 1e12 * 125
    ({"sigma_1": 3e6}, 1 / 1740, math.sqrt(80 / (7 * (L_PHI + 4) * 100 * 25 * 9e12))),
    ({"L_12": 1e-3}, 1 / 1740, 1 / 720),
    ({"G_1": 1e7, "S": 10**12}, 1 / 1740, (3 / (16 * (9 + 1e14) * 100 * 125)) ** (1 / 3)),
])
def test_cd_mage_theorem_3(change, gamma, eta):
    constants = {**MODULI, "sigma_1": 3.0, "sigma_2": 1.0, "G_1": 1.0, "G_2": 2.0, "L_0": 1.0, "S": 4, "K": 5, "T": 100}
    got = step_sizes("cd-mage", 3, **{**constants, **change})
    assert (got["eta"], got["gamma"]) == pytest.approx((eta, gamma), rel=1e-9)


# codasca: ell = 1, mu_2 = 0.5: eta <= min(1 / (3 + 6), 1/4) = 1/9. L = 8, L^ = 10, mu = 2: c = 0.2 / 5.2 = 1/26.
AUC = {"L": 8.0, "ell": 1.0, "mu": 2.0, "mu_2": 0.5}


def test_codasca_theorem_1():
    apart = step_sizes("codasca", 1, **AUC, K=4, D=1.0, eta_0=0.01)
    # I = 1 / sqrt(0.04) = 5, T = 212 / 0.005 = 42400
    assert apart == {"eta": 0.01, "steps": 5, "proximal": 2.0, "stage_rounds": 8480, "output": "mean",
                     "decay": pytest.approx(math.exp(-1 / 26)), "growth": pytest.approx(math.exp(1 / 52)),
                     "lengthening": pytest.approx(math.exp(1 / 52))}
    alike = step_sizes("codasca", 1, **AUC, K=4, D=0, eta_0=0.01)
    assert (alike["steps"], alike["stage_rounds"]) == (25, 1696)  # 1 / 0.04, 42400 / 25
    assert (alike["growth"], alike["lengthening"]) == pytest.approx((math.exp(1 / 26), 1))
    assert step_sizes("codasca", 1, **AUC, K=4, D=1.0)["eta"] == pytest.approx(1 / 9)
    with pytest.raises(SettingError, match=r"holds only for eta_0 <= .* 0\.111111 here"):
        step_sizes("codasca", 1, **AUC, K=4, D=1.0, eta_0=0.2)


def test_codasca_theorem_2():
    """eta~ <= min(1/9, 0.5 / 40) = 1/80, R = 1000 / (0.5 / 80) = 160000, eta_l = 1 / (80 * 2 * 10)."""
    c = 4 + 2480 / 53  # 4 ell + (248 / 53) * 10
    got = step_sizes("codasca", 2, **AUC, K=4, I_0=10)
    factor = math.exp(4 / (c + 4))
    assert got == {"eta": pytest.approx(1 / 1600), "eta_global": 2.0, "steps": 10, "proximal": 2.0,
                   "stage_rounds": 160_000, "decay": pytest.approx(1 / factor), "growth": pytest.approx(factor),
                   "lengthening": 1.0, "output": "random"}
    assert step_sizes("codasca", 2, **AUC, K=4, I_0=10, eta_tilde=0.01)["stage_rounds"] == 200_000
    with pytest.raises(SettingError, match=r"0\.0125 here"):
        step_sizes("codasca", 2, **AUC, K=4, I_0=10, eta_tilde=0.02)


def test_codasca_theorem_3():
    small = step_sizes("codasca", 3, **AUC, K=4, M=10, epsilon=0.01, eta_0=0.01)  # M < 1 / (4 * 2 * 0.01) = 12.5
    assert small == {"eta": 0.01, "proximal": 2.0, "stage_rounds": 42400, "decay": pytest.approx(math.exp(-1 / 26)),
                     "lengthening": pytest.approx(math.exp(1 / 26)), "output": "mean"}
    large = step_sizes("codasca", 3, **AUC, K=4, M=13, epsilon=0.01, eta_0=0.01)
    assert large == {"eta": pytest.approx(1 / 9), "proximal": 2.0, "stage_rounds": 3816, "decay": 1.0,  # 212 * 9 / 0.5
                     "lengthening": 1.0, "output": "mean"}


def test_cyclic_auc_theorem_4_5():
    """I = 1 / (5 sqrt(4 * 0.0001)) = 10, T = 212 / 0.00005 = 4240000, E = T / (5 * 10)."""
    got = step_sizes("cyclic-auc", "4.5", **AUC, K=5, M=4, eta_0=0.0001)
    assert got == {"eta": 0.0001, "steps": 10, "asked": 4, "proximal": 2.0, "stage_epochs": 84_800, "output": "mean",
                   "decay": pytest.approx(math.exp(-1 / 26)), "growth": pytest.approx(math.exp(1 / 52)),
                   "lengthening": pytest.approx(math.exp(1 / 52))}


def test_cyclic_auc_theorem_5_2():
    got = step_sizes("cyclic-auc", 5.2, K=5, M=2, epsilon=0.01)
    assert got == {"eta": pytest.approx(2e-4), "steps": 10, "asked": 2}


MEAN = {"output": "average"}


@pytest.mark.parametrize("number, constants, wanted", [
    (1, {"L": 2.0, "T": 10**8, "m": 25}, {"eta": 1 / 80_000, "gamma": 1e-5, "steps": 20, "asked": 25, **MEAN}),
    (2, {"L": 2.0, "T": 10**8, "m": 25}, {"eta": 1.25e-7, "gamma": 1e-4, "steps": 100, "asked": 25}),
    (3, {"L": 2.0, "T": 10**4, "m": 400}, {"eta": 1 / 800, "gamma": 10**-2.5, "steps": 1, "asked": 400, **MEAN}),
    (4, {"L": 1.0, "T": 10**4, "m": 3}, {"eta": 2.5e-4, "gamma": 0.01, "steps": 10, "asked": 3}),
    # alpha = 2 * 2 + 2 = 6: T >= 96 log T is 884.2 at T = 10^4; eta = 4 * 9.21034 / 10^4
    (5, {"L": 2.0, "mu": 1.0, "T": 10**4, "m": 4},
     {"eta": 3.684136e-3, "gamma": 0.5, "steps": 50, "asked": 4, "average_from": 100, **MEAN}),
    (5, {"L": 2.0, "mu": 1.0, "T": 10**4, "m": 4, "tau": 7},
     {"eta": 3.684136e-3, "gamma": 0.5, "steps": 7, "asked": 4, "average_from": 714, **MEAN}),
    (6, {"L": 2.0, "mu": 1.0, "T": 10**4, "m": 10**4},
     {"eta": 3.684136e-3, "gamma": 0.5, "steps": 1, "asked": 10**4}),
])
def test_drfa_theorems(number, constants, wanted):
    got = step_sizes("drfa", number, **constants)
    assert got.pop("output", "last") == wanted.pop("output", "last")
    assert got == pytest.approx(wanted, rel=1e-6)


def test_drfa_conditions():
    with pytest.raises(SettingError, match=r"T >= 16 .* 442\.096"):  # 96 log 100
        step_sizes("drfa", 5, L=2.0, mu=1.0, T=100, m=4)
    with pytest.raises(SettingError, match="m >= T, which is 10000 here"):
        step_sizes("drfa", 6, L=2.0, mu=1.0, T=10**4, m=4)


@pytest.mark.parametrize("key", THEOREMS)
def test_a_theorem_sets_only_what_its_algorithms_have(key):
    """And nothing that makes the method what it is."""
    theorem = THEOREMS[key]
    constants = {name: 2 if constant.whole else 1.0 for name, constant in theorem.needs.items()}
    constants |= {"T": 1000, "m": 1000, "S": 9, "mu_2": 0.4, "mu": 0.9, "epsilon": 0.1}
    needed = theorem.needs.keys() - theorem.optional
    chosen = step_sizes(*key, **{name: constants[name] for name in needed})
    for name in theorem.algorithms:
        entry = ALGORITHMS[name]
        settable = {field.name for field in dataclasses.fields(entry.algorithm)} - set(entry.fixed)
        assert set(chosen) <= settable, f"{name} has no {set(chosen) - settable}"
        make(name, **chosen)


# In a settings file.

TABLE = {"paper": "cdma", "number": 3, "L_f": 2.0, "mu": 1.0, "sigma_1": 2.0, "sigma_2": 1.0, "L_0": 1, "S": 8, "K": 5}


def file(name="cdma-ada", theorem=None, **settings):
    return {"algorithm": {"name": name, "theorem": TABLE if theorem is None else theorem, **settings}}


def test_a_settings_file_can_ask_for_the_step_sizes_of_a_theorem():
    constants = {name: value for name, value in TABLE.items() if name not in ("paper", "number")}
    wanted = step_sizes("cdma", 3, **constants)
    settings = settle(file()).algorithms[""].settings
    assert {name: settings[name] for name in wanted} == wanted and "theorem" not in settings
    assert make("cdma-ada", **settings) == make("cdma-ada", **wanted)


def test_what_a_file_sets_itself_wins():
    settings = settle(file(eta=0.3, asked=16)).algorithms[""].settings
    assert settings["eta"] == 0.3 and settings["asked"] == 16 and settings["steps"] == 5
    changed = settle(file(), ["algorithm.theorem.K=6"]).algorithms[""].settings
    assert changed["steps"] == 6 and changed["gamma_cap"] == pytest.approx(5.78e-4 / 12)


def test_settings_of_a_theorem_are_spelt_out_and_read_back():
    tables = {"algorithms": {"theory": file()["algorithm"], "practice": "cdma-one"}}
    settings = settle(tables)
    written = tables_of(settings)
    assert "theorem" not in written["algorithms"]["theory"] and written["algorithms"]["theory"]["gamma_cap"] < 1e-4
    assert settle(written) == settings


@pytest.mark.parametrize("table, words", [
    ("3", ["algorithm.theorem = '3'", "needs a paper and a number"]),
    ({"paper": "cdma"}, ["needs a paper and a number"]),
    ({"paper": "cdma", "number": 9}, ["no Theorem 9 of 'cdma'", "cdma 3"]),
    ({"paper": ["cdma"], "number": 3}, ["algorithm.theorem", "known:"]),
    ({"paper": "codasca", "number": 2}, ["is about codasca, not about 'cdma-ada'", "cdma 3, cd-mage 2"]),
    ({k: v for k, v in TABLE.items() if k != "mu"}, ["algorithm.theorem.mu: is missing", "PL constant"]),
    ({**TABLE, "sigma1": 2.0}, ["algorithm.theorem.sigma1 = 2.0", "did you mean 'sigma_1'?"]),
    ({**TABLE, "where": 2.0}, ["algorithm.theorem.where = 2.0", "no such constant"]),
    ({**TABLE, "K": 2.5}, ["algorithm.theorem.K = 2.5", "whole number above 0"]),
    ({**TABLE, "mu": 0}, ["algorithm.theorem.mu = 0", "above 0"]),
    ({**TABLE, "L_f": "two"}, ["algorithm.theorem.L_f = 'two'", "must be a number"]),
    ({**TABLE, "L_f": math.nan}, ["must be a number"]),
    ({**TABLE, "S": True}, ["whole number"]),
    ({**TABLE, "sigma_2": -1.0}, ["at least 0"]),
    ({**TABLE, "sigma_2": 9.0}, ["algorithm.theorem: Theorem 3 of cdma holds only for S >="]),
])
def test_errors_name_the_constant_and_the_remedy(table, words):
    with pytest.raises(SettingError) as caught:
        settle(file(theorem=table))
    for word in words:
        assert word in str(caught.value)


def test_a_theorem_is_for_algorithms_only():
    with pytest.raises(SettingError, match=r"problem\.theorem"):
        settle({"algorithm": "cdma-one", "problem": {"name": "auc", "theorem": TABLE}})
