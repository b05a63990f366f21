"""What a paper claims, put so that numbers can answer: each claim becomes a verdict with its reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedsaddle.config import validated
from fedsaddle.config.validation import nearest
from fedsaddle.contracts import SettingError, setting
from fedsaddle.studies import curves as of
from fedsaddle.studies.curves import Curve, Spread, spread

HOLDS, FAILS, UNDECIDED, UNKNOWN = "holds", "does not hold", "within spread", "not measured"
KINDS = ("above", "not below", "reaches", "never reaches", "sooner", "usable")


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper."""

    text: str = setting("", "the claim in words")
    kind: str = setting("above", "above: methods beat others; not below: by no more than margin; reaches, never "
                        "reaches: a value within so many rounds; sooner: in fewer rounds than others; usable: the "
                        "most steps of `methods` that lose no more than margin are factor times those of `than`",
                        choices=KINDS)
    methods: tuple[str, ...] = setting((), "labels that it is about")
    than: tuple[str, ...] = setting((), "labels that they are compared with")
    at: str = setting("end", "which value of a curve: end, best, or where all have sent equally many floats",
                      choices=("end", "best", "equal floats"))
    value: float = setting(0.0, "the value to reach")
    within: float = setting(math.inf, "rounds in which it is to be reached")
    margin: float = setting(0.0, "how much less still counts as equal", at_least=0)
    factor: float = setting(1.0, "of `usable`", above=0)
    measure: str = setting("", "another measure than the paper's own")


class Verdict(NamedTuple):
    text: str
    verdict: str
    detail: str


class Evidence(NamedTuple):
    """What was measured for a claim."""

    curves: Mapping[str, Sequence[Curve]]  # of every method that was run
    higher: bool
    steps: Mapping[str, int]  # local steps of every method


def claim_from(table: Mapping[str, Any], where: str, labels: set[str]) -> Claim:
    claim = Claim(**validated(Claim, table, where))
    for label in (*claim.methods, *claim.than):
        if label not in labels:
            raise SettingError(f"{where}: {label!r} is no method of this file{nearest(label, labels)}")
    compares = claim.kind in ("above", "not below", "sooner", "usable")
    if not claim.methods or not claim.text or compares != bool(claim.than):
        raise SettingError(f"{where}: needs a text, methods, and `than` where methods are compared")
    return claim


def judge(claim: Claim, evidence: Evidence) -> Verdict:
    missing = [label for label in (*claim.methods, *claim.than) if not evidence.curves.get(label)]
    if missing:
        return Verdict(claim.text, UNKNOWN, f"not run: {', '.join(missing)}")
    if not any(curve.looks for label in (*claim.methods, *claim.than) for curve in evidence.curves[label]):
        return Verdict(claim.text, UNKNOWN, "the records hold no evaluation of the measure, or fewer than count as one")
    verdict, detail = JUDGES[claim.kind](claim, evidence)
    unfinished = [label for label in (*claim.methods, *claim.than)
                  if any(curve.unfinished for curve in evidence.curves[label])]
    return Verdict(claim.text, verdict, detail + (f"; unfinished: {', '.join(unfinished)}" if unfinished else ""))


def _compared(claim: Claim, evidence: Evidence) -> tuple[str, str]:
    """Every method against every other one; the least favourable pair decides."""
    values = _values(claim, evidence)
    sign = 1 if evidence.higher else -1
    verdicts = []
    for one in claim.methods:
        for other in claim.than:
            gap = sign * (values[one].mean - values[other].mean) + claim.margin
            noise = math.hypot(values[one].deviation, values[other].deviation)
            verdicts.append(_decided(gap, noise, claim.margin > 0))
    words = [f"{label} {values[label]}" for label in dict.fromkeys((*claim.methods, *claim.than))]

    def as_claimed(of_a_seed: Mapping[str, float]) -> bool:
        return all(sign * (of_a_seed[one] - of_a_seed[other]) + claim.margin > 0
                   for one in claim.methods for other in claim.than)

    return _worst(verdicts), "; ".join(words) + _seed_by_seed(claim, evidence, as_claimed)


def _seed_by_seed(claim: Claim, evidence: Evidence, as_claimed: Callable[[Mapping[str, float]], bool]) -> str:
    """On how many seeds it is as claimed. Methods share a seed's first weights and, where they ask alike, its draws,
    so an order can be there on every seed and yet be less than the spread over them."""
    found = {label: dict(values) for label, values in _by_seed(claim, evidence).items()}
    seeds = set.intersection(*(set(values) for values in found.values()))
    count = sum(as_claimed({label: values[seed] for label, values in found.items()}) for seed in seeds)
    return f"; as claimed on {count} of {len(seeds)} seeds" if len(seeds) > 1 else ""


def _decided(gap: float, noise: float, tolerant: bool) -> str:
    if math.isnan(gap):
        return UNKNOWN
    if gap > (0 if tolerant else noise):
        return HOLDS
    return UNDECIDED if gap >= -noise and noise > 0 else FAILS


def _reaches(claim: Claim, evidence: Evidence) -> tuple[str, str]:
    """In all seeds, in some, in none."""
    never = claim.kind == "never reaches"
    verdicts, words = [], []
    for label in claim.methods:
        taken = [of.rounds_to(curve, claim.value, evidence.higher, claim.within) for curve in evidence.curves[label]]
        hits = sum(math.isfinite(rounds) for rounds in taken)
        wanted = 0 if never else len(taken)
        short = [curve for curve, rounds in zip(evidence.curves[label], taken, strict=True)
                 if math.isinf(rounds) and _may_still(claim, curve)]
        some = 0 < hits < len(taken)
        verdicts.append(UNKNOWN if short else HOLDS if hits == wanted else UNDECIDED if some else FAILS)
        rounds = ", ".join(f"{value:.0f}" for value in taken if math.isfinite(value))
        best = spread(of.at_best(curve, evidence.higher) for curve in evidence.curves[label])
        words.append(f"{label}: {hits} of {len(taken)} seeds" + (f" (rounds {rounds})" if rounds else "")
                     + f", best {best}" + (f", but only {short[0].looks[-1].round} rounds were run" if short else ""))
    return _worst(verdicts), "; ".join(words)


def _may_still(claim: Claim, curve: Curve) -> bool:
    """Whether a run that has not reached the value might have, had it been longer, and in time."""
    longer = curve.unfinished or math.isfinite(claim.within)
    return bool(curve.looks and longer and curve.looks[-1].round < claim.within)


def _sooner(claim: Claim, evidence: Evidence) -> tuple[str, str]:
    """Rounds to the value. Of a run that may still reach it, it is known that it takes longer than it has gone."""
    taken, at_least = {}, {}
    for label in (*claim.methods, *claim.than):
        curves = evidence.curves[label]
        rounds = [of.rounds_to(curve, claim.value, evidence.higher, claim.within) for curve in curves]
        taken[label] = spread(rounds)
        at_least[label] = spread(
            float(curve.looks[-1].round) if math.isinf(value) and _may_still(claim, curve) else value
            for value, curve in zip(rounds, curves, strict=True))
    verdicts = []
    for one in claim.methods:
        for other in claim.than:
            pairs = {(taken[one], at_least[other]), (at_least[one], taken[other])}  # the worst and the best case
            cases = {_fewer(*pair) for pair in pairs}
            verdicts.append(cases.pop() if len(cases) == 1 else UNKNOWN)
    return _worst(verdicts), "; ".join(f"{label} {_rounds(taken[label])}" for label in taken)


def _fewer(one: Spread, other: Spread) -> str:
    if math.isinf(one.mean):
        return FAILS
    return _decided(other.mean - one.mean, math.hypot(one.deviation, other.deviation), False)


def _usable(claim: Claim, evidence: Evidence) -> tuple[str, str]:
    """The largest number of local steps, in a family of labels, at which no more than the margin is lost."""
    spreads, steps, sign = _values(claim, evidence), evidence.steps, 1 if evidence.higher else -1
    means = {label: value.mean for label, value in spreads.items() if value.values}
    words = "; ".join(f"{label} {spreads[label]}" for label in (*claim.methods, *claim.than))

    def largest(labels: Sequence[str], values: Mapping[str, float]) -> str | None:
        """None where all runs of all of them ended early."""
        found = {label: sign * values[label] for label in labels if label in values}
        return max((label for label in found if found[label] >= max(found.values()) - claim.margin),
                   key=lambda label: steps[label], default=None)

    def as_claimed(of_a_seed: Mapping[str, float]) -> bool:
        one, other = largest(claim.methods, of_a_seed), largest(claim.than, of_a_seed)
        return one is not None and other is not None and steps[one] >= claim.factor * steps[other]

    one, other = largest(claim.methods, means), largest(claim.than, means)
    if one is None or other is None:
        return UNKNOWN, words
    ratio = steps[one] / steps[other]
    measured = f"{one} against {other}, {ratio:g} times the steps ({words})"
    if ratio < claim.factor and steps[one] == max(steps[label] for label in claim.methods):
        return UNKNOWN, f"{one} has the most steps that were tried, and loses nothing: {measured}"
    return (HOLDS if ratio >= claim.factor else FAILS), measured + _seed_by_seed(claim, evidence, as_claimed)


def _values(claim: Claim, evidence: Evidence) -> dict[str, Spread]:
    """Of every method, at the place that the claim names."""
    return {label: spread(value for _, value in found) for label, found in _by_seed(claim, evidence).items()}


def _by_seed(claim: Claim, evidence: Evidence) -> dict[str, list[tuple[int, float]]]:
    """The same for every seed that has a value there."""
    labels = (*claim.methods, *claim.than)
    budget = of.common_floats(curve for label in labels for curve in evidence.curves[label])
    read: dict[str, Callable[[Curve], float]] = {
        "end": of.at_end, "best": lambda curve: of.at_best(curve, evidence.higher),
        "equal floats": lambda curve: of.at_floats(curve, budget),
    }
    return {label: [(curve.seed, value) for curve in evidence.curves[label]
                    if not math.isnan(value := read[claim.at](curve))] for label in labels}


def _worst(verdicts: Sequence[str]) -> str:
    return next(kind for kind in (UNKNOWN, FAILS, UNDECIDED, HOLDS) if kind in verdicts)


def _rounds(value: Spread) -> str:
    if math.isinf(value.mean):
        reached = [v for v in value.values if math.isfinite(v)]
        return f"in {len(reached)} of {len(value.values)} seeds" if reached else "never"
    return f"{value.mean:.0f} ± {value.deviation:.0f} rounds"


JUDGES = {"above": _compared, "not below": _compared, "reaches": _reaches, "never reaches": _reaches,
          "sooner": _sooner, "usable": _usable}
