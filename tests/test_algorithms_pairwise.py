"""CyCP-Pairwise and RS-Pairwise against a NumPy transcription of cyclic-auc, Algorithms 3 and 4; their identities."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from fedsaddle import testing
from fedsaddle.algorithms import make
from fedsaddle.assemble import assemble
from fedsaddle.config import Run
from fedsaddle.contracts import SettingError
from fedsaddle.data.clients import clients_from_list
from fedsaddle.engine.training import rounds
from fedsaddle.participation import Participation, as_participation
from fedsaddle.participation.responses import DropOuts, FirstResponders
from fedsaddle.participation.selection import Cyclic, Weighted
from fedsaddle.problems import Pairwise
from fedsaddle.testing import auc_case, metric_case, pairwise_case
from transcribe import play

GROUPS = as_participation(Cyclic(3), DropOuts(0.5))
ANYONE = as_participation(DropOuts(0.35), FirstResponders())


class LinearSigmoid:
    """h(w; x) = a'x + b, psi(a, b) = 1 / (1 + exp(s (a - b)))."""

    def __init__(self, problem, clients):
        self.s = problem.scale
        sizes = clients.run.size.numpy()
        owner = np.repeat(np.arange(len(sizes)), sizes)
        positive = clients.targets.numpy() > 0
        w = sizes / sizes.sum()
        self.has = [sum(w[i] for i in range(len(w)) if (positive[owner == i] == side).any()) for side in (True, False)]
        assert all(0.5 < share < 1 for share in self.has)  # some clients have one class only

    def score(self, w, batch):
        return batch.inputs @ w[:-1] + w[-1]

    def slope(self, t):
        p = 1 / (1 + np.exp(self.s * t))
        return -self.s * p * (1 - p)

    def gradient(self, w, pair, r1, r2):
        """G_1 + G_2 of (11) and (12), the second with the derivative in the second argument."""
        total = np.zeros_like(w)
        for row in range(len(r1.value)):
            if pair.positives.weight[row] > 0:
                active = self.slope(self.score(w, pair.positives)[row] - r2.value[row])
                dh = np.append(pair.positives.inputs[row], 1.0)
                total += self.has[1] * r2.weight[row] * active * dh / len(r1.value)
            if pair.negatives.weight[row] > 0:
                active = -self.slope(r1.value[row] - self.score(w, pair.negatives)[row])
                dh = np.append(pair.negatives.inputs[row], 1.0)
                total += self.has[0] * r1.weight[row] * active * dh / len(r1.value)
        return total


class LinearContrastive:
    """e = Ax + b and the loss of eq. (14); a score is the embedding and the class."""

    def __init__(self, problem, clients):
        self.m, self.d = problem.margin, problem.dimension

    def score(self, w, batch):
        A, b = w[: -self.d].reshape(self.d, -1), w[-self.d :]
        return np.column_stack([batch.inputs @ A.T + b, batch.targets])

    def gradient(self, w, pair, r1, r2):
        total = np.zeros_like(w)
        for batch, old in ((pair.positives, r2), (pair.negatives, r1)):
            for own, x, other, weight in zip(self.score(w, batch), batch.inputs, old.value, old.weight, strict=True):
                gap = own[:-1] - other[:-1]
                length = np.sqrt(gap @ gap)
                if own[-1] == other[-1]:
                    g = gap
                else:
                    g = -max(0.0, self.m - length) * gap / length if length > 0 else 0 * gap
                total += weight * np.append(np.outer(g, x).ravel(), g) / len(old.value)
        return total


CASES = {"pairwise": (pairwise_case, LinearSigmoid), "metric": (metric_case, LinearContrastive)}


@pytest.mark.parametrize("name, case, participation, cycle, output", [
    ("cycp-pairwise", "pairwise", GROUPS, 3, "mean"), ("rs-pairwise", "pairwise", ANYONE, 1, "last"),
    ("cycp-pairwise", "metric", GROUPS, 3, "mean"),
])
def test_pairwise_is_its_pseudo_code(name, case, participation, cycle, output):
    """Stages of OSFP with drop-outs and unequal weights: the pools, every client's steps, the stage's output."""
    eta, I, E, decay, growth, lengthening = 0.4, 2, 2, 0.5, 1.5, 1.5
    make_case, arithmetic = CASES[case]
    problem, clients = make_case()
    it = arithmetic(problem, clients)
    method = make(name, eta=eta, steps=I, asked=4, stage_epochs=E, decay=decay, growth=growth,
                  lengthening=lengthening, output=output)
    game = play(method, (problem, clients), 24 if cycle > 1 else 14, participation)
    w = game.first.z.x
    epoch, old, new, began = 0, None, [], None
    stage, stage_epochs, returned, averages, updates = 0, E, w, 0, 0
    for number, played in enumerate(game.rounds):
        if played.skipped:
            continue
        if number // cycle != epoch:  # H^{e+1} becomes H^e
            old, epoch, new = weighed(new, old), number // cycle, []
            if old and began is None:
                began = epoch
        (ask,) = played.asks
        while began is not None and epoch - began >= stage_epochs:  # Algorithm 4
            w, began, stage = returned, began + stage_epochs, stage + 1
            stage_epochs, averages = round(E * lengthening**stage), 0
        steps = round(I * growth**stage)
        average = np.zeros_like(w)
        for i, share in enumerate(ask.weight):
            assert len(ask.data[i].minibatches) == steps
            draws = old and [part(ask.message.positives, i), part(ask.message.negatives, i)]
            wm, scores = local_update(it, w, ask.data[i].minibatches, eta * decay**stage, draws, old)
            new += [(share, *one) for one in scores]
            average += share * wm
        if began is not None:
            w, averages, updates = average, averages + 1, updates + 1
            returned = w if output == "last" else returned + (w - returned) / averages
        np.testing.assert_allclose(played.server.z.x, w, atol=1e-9)
        np.testing.assert_allclose(method.solution(played.server).x, returned, atol=1e-9)
        assert played.server.round == updates
    assert stage >= 2 and updates >= 8
    assert any(played.skipped for played in game.rounds) or participation is ANYONE


def local_update(it, w, minibatches, eta, draws, pools):
    """The client's model and its scores (pair, positives, negatives) of every step. Without pools it only scores."""
    scores = []
    for draw, pool in zip(draws or (), pools or (), strict=True):
        check_draw(draw, pool)
    for t, pair in enumerate(minibatches):
        scores.append((pair, it.score(w, pair.positives), it.score(w, pair.negatives)))
        if draws:
            w = w - eta * it.gradient(w, pair, part(draws[0], t), part(draws[1], t))
    return w, scores


def part(scores, i):
    return type(scores)(scores.value[i], scores.weight[i])


def weighed(new, old):
    """(value, weight) of both pools: a score counts as its client did in the mean of its round, 1 on average."""
    pools = []
    for side in (0, 1):
        scores = [(value, share) for share, pair, *both in new
                  for value, there in zip(both[side], pair[side].weight, strict=True) if there > 0]
        mean = np.mean([share for _, share in scores]) if scores else 0
        pools.append([(value, share / mean) for value, share in scores] or (old[side] if old else []))
    return pools if all(pools) else None


def check_draw(draw, pool):
    """A client's R holds scores of the pool, each as often as any other: one time more at most."""
    def tally(values, weights):
        return Counter(tuple(np.round(np.append(v, w), 7)) for v, w in zip(values, weights, strict=True))

    values = draw.value.reshape(-1, *draw.value.shape[2:])
    got, there = tally(values, draw.weight.ravel()), tally(*zip(*pool, strict=True))
    assert got.keys() <= there.keys()
    low, high = len(values) // len(pool), -(-len(values) // len(pool))
    for key, times in there.items():
        assert low * times <= got[key] <= high * times


def test_clients_draw_for_themselves():
    """Each client has its own draws, R1 and R2 are independent, and another round draws anew."""
    game = play(make("rs-pairwise", steps=3), metric_case(), 4)
    drawn = []
    for played in game.rounds[2:]:
        (ask,), old = played.asks, played.server.old
        assert len(old.positives.weight) == len(old.negatives.weight)
        for draw, pool in zip((ask.message.positives, ask.message.negatives), old, strict=True):
            for values in draw.value:
                where = (values.reshape(-1, 1, 3) == pool.value).all(-1)
                assert where.any(1).all()
                drawn.append(tuple(where.argmax(1)))
    assert len(set(drawn)) == len(drawn) == 2 * 2 * 10


def balanced(clients=3, rows=2, width=3, seed=0):
    """Clients of one size, each with as many positives as negatives."""
    random = np.random.Generator(np.random.Philox(seed))
    targets = np.array([1] * rows + [0] * rows)
    return [(random.normal(size=(2 * rows, width)) + targets[:, None], targets) for _ in range(clients)]


def run(method, problem, parts, number, participation=None, batch_size=1, **settings):
    """The server's states, and the measures of the last round."""
    start = assemble(method, problem, clients_from_list(parts), None, participation or Participation(),
                     Run(rounds=number, batch_size=batch_size, dtype="float64", evaluate_every=number, **settings))
    states, records = zip(*rounds(start.algorithm, start.federation, start.progress, start.plan, start.evaluate),
                          strict=True)
    return [state.server for state in states], records[-1]


def linear(width, bias=True):
    torch.manual_seed(1)
    return nn.Linear(width, 1, bias=bias).double()


def test_one_client_with_one_pair_descends_the_pairwise_loss():
    """Pools of the same model: the first step is that of plain gradient descent on psi(h(A), h(C))."""
    parts = balanced(clients=1, rows=1)
    problem = Pairwise(linear(3), surrogate="logistic", score="linear")
    w = torch.cat([p.detach().reshape(-1) for p in problem.net.parameters()]).requires_grad_()
    (inputs, _), = parts
    a, c = (torch.as_tensor(inputs) @ w[:-1] + w[-1])
    torch.nn.functional.softplus(c - a).backward()
    scored, stepped = run(make("rs-pairwise", eta=0.3, steps=1, stage_epochs=None, output="last"), problem, parts, 2)[0]
    assert torch.equal(scored.z.x, w.detach())
    torch.testing.assert_close(stepped.z.x, w.detach() - 0.3 * w.grad, atol=1e-12, rtol=0)


@pytest.mark.parametrize("groups", [1, 3])
def test_passive_scores_do_not_matter_to_a_linear_psi(groups):
    """psi(a, b) = b - a has no use for the passive side: what is left is plain descent on the difference of means."""
    parts = balanced()
    problem = Pairwise(linear(3), score="linear", psi=lambda a, b: b - a)
    method = make("cycp-pairwise", eta=0.1, steps=2, stage_epochs=None, output="last")
    states = run(method, problem, parts, 9, as_participation(Cyclic(groups)), batch_size=2)[0]
    w = torch.cat([p.detach().reshape(-1) for p in problem.net.parameters()]).numpy()
    for number, server in enumerate(states):
        if number >= groups:
            members = parts if groups == 1 else parts[number % 3 : number % 3 + 1]
            for _ in range(2):
                difference = np.mean([x[t > 0].mean(0) - x[t <= 0].mean(0) for x, t in members], axis=0)
                w = w + 0.1 * np.append(difference, 0.0)  # the bias has no effect on a - b
        np.testing.assert_allclose(server.z.x.numpy(), w, atol=1e-12)


def test_one_group_is_random_sampling():
    """CyCP-Pairwise with one group is RS-Pairwise."""
    ends = [run(make(name, eta=0.1, steps=2, asked=2, stage_epochs=2), Pairwise(linear(3)), balanced(5), 7, how)[0][-1]
            for name, how in (("cycp-pairwise", as_participation(Cyclic(1))), ("rs-pairwise", None))]
    testing.compare(*ends, "one group against uniform draws", 0.0)


def test_skipped_rounds_do_not_move_the_epochs():
    """An epoch whose last round nobody answered hands its pool on all the same, and the next starts an empty one."""
    game = play(make("cycp-pairwise", steps=1), pairwise_case(), 30, as_participation(Cyclic(2), DropOuts(0.6)))
    seen = []
    for number, played in enumerate(game.rounds):
        if not played.skipped:
            seen.append((number, len(played.server.new.negatives.weight), len(played.asks[0].clients)))
            assert played.server.epoch == number // 2
    after_skip = [(number, size, answered) for (before, _, _), (number, size, answered)
                  in itertools.pairwise(seen) if before % 2 == 0 and before + 1 != number]
    assert after_skip
    for _, size, answered in after_skip:
        assert size <= 4 * answered  # this round's scores alone: 1 step of 4 rows


def test_a_class_that_nobody_sent_keeps_its_older_scores():
    """One client a round, few with positives: the pool of positives is kept until one comes again."""
    x, (negatives, none) = np.random.Generator(np.random.Philox(3)).normal(size=(4, 2)), (np.zeros(4), np.ones(4))
    none[1:] = 0
    parts = [(x, negatives)] * 5 + [(x, none)]
    states, _ = run(make("rs-pairwise", steps=1, asked=1), Pairwise(linear(2)), parts, 40, seed=2)
    begun = next(i for i, s in enumerate(states) if s.begun >= 0)
    assert begun > 1 and states[begun - 1].round == 0  # it scores until both classes have been seen
    kept = [b for b, s in zip(states[begun:-1], states[begun + 1 :], strict=True)
            if len(b.new.positives.weight) == 0 and torch.equal(b.old.positives.value, s.old.positives.value)]
    assert len(kept) > 5
    assert all(len(s.old.positives.weight) == 1 for s in states[begun:])
    assert any(len(s.new.positives.weight) for s in states[begun:])


@pytest.mark.parametrize("target, word", [(0, "positives"), (1, "negatives")])
def test_no_pairs_at_all_is_an_error_that_says_what_to_do(target, word):
    parts = [(np.ones((3, 2)), np.full(3, target))] * 2
    with pytest.raises(SettingError, match=rf"no client has any {word}.*check how the targets are coded"):
        run(make("rs-pairwise"), Pairwise(linear(2)), parts, 1)


def test_a_problem_without_pairs_is_refused():
    problem, clients = auc_case()
    with pytest.raises(SettingError, match=r"AUC: has no pairs.*choose the problem pairwise or metric"):
        testing.final_state(make("rs-pairwise"), (problem, clients), Participation(), rounds=1)


@pytest.mark.parametrize("name, case, participation", [
    ("cycp-pairwise", "pairwise", as_participation(Cyclic(3), DropOuts(0.45))),
    ("rs-pairwise", "metric", as_participation(Weighted(replace=True), DropOuts(0.2))),
])
def test_pools_survive_a_restart(monkeypatch, name, case, participation):
    """Their shapes change from round to round, and a resumed run has them all the same."""
    monkeypatch.setattr(testing, "FLAKY", participation)
    testing.check_resumes(testing.trial(name), testing.CASES[case]())


@pytest.mark.parametrize("name, case", [("codasca", "pairwise"), ("parallel-sgda", "metric")])
def test_methods_without_pairs_run_on_pairwise_problems(name, case):
    """They rank the pairs within each client; a client of one class adds nothing."""
    for check in (testing.check_engines_agree, testing.check_participations):
        check(testing.trial(name), testing.CASES[case]())


def few_positives():
    """12 clients far from the origin, 3 of them with positives, and a score blind to what tells the classes apart."""
    random = np.random.Generator(np.random.Philox(7))
    parts = []
    for i in range(12):
        targets = (np.arange(20) < 4) & (i % 4 == 0)
        x = random.normal(size=(20, 3)) + 3.0
        x[:, 0] += 2 * targets
        x[:, 1] -= 2 * targets
        parts.append((x, targets.astype(int)))
    net = nn.Linear(3, 1).double()
    net.weight.data[:] = torch.tensor([[0.0, 0.0, 1.0]])
    return net, parts


def auc_after(name, participation, problem, parts, eta):
    method = make(name, eta=eta, steps=4, stage_epochs=None, output="last")
    return run(method, problem, parts, 30, participation, batch_size=4)[1]["measures"]["train"]["auc"]


@pytest.mark.parametrize("name, participation, surrogate, eta", [
    ("cycp-pairwise", as_participation(Cyclic(3)), "logistic", 0.2),
    ("rs-pairwise", Participation(), "squared-hinge", 0.05),
])
def test_auc_rises_where_few_clients_have_positives(name, participation, surrogate, eta):
    net, parts = few_positives()
    problem = Pairwise(net, surrogate=surrogate, score="linear")
    start = problem.measure(problem.first(), clients_from_list(parts).rows)["auc"]
    assert start < 0.6 and auc_after(name, participation, problem, parts, eta) > 0.93


def test_without_the_clients_shares_the_commoner_class_pushes_harder():
    """The departure from the letter of the pseudo-code, which has no clients of one class, and why it is made."""
    net, parts = few_positives()
    aucs = [auc_after("rs-pairwise", None, Pairwise(net, score="linear", shares=shares), parts, 0.2)
            for shares in (None, (1.0, 1.0))]
    assert aucs[0] > 0.93 and aucs[1] < 0.8
