"""The site's own rules: a file that stays at the site, and that no server can override."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.config.validation import validated
from fedsaddle.contracts import SettingError, setting
from fedsaddle.models import MODELS
from fedsaddle.problems import PROBLEMS


@dataclass(frozen=True)
class Policy:
    """What a server may ask of a site. Empty lists: everything that comes with the package, nothing else."""

    algorithms: tuple[str, ...] = setting((), "algorithms that may be run, by the names of `fedsaddle list`; "
                                              "one's own (package.module:Name) only if they are named here")
    problems: tuple[str, ...] = setting((), "problems that may be solved, likewise")
    models: tuple[str, ...] = setting((), "models that may be trained, likewise")
    max_rounds: int | None = setting(None, "rounds of a run after which the site no longer answers", at_least=1)
    raw_scores: bool = setting(False, "whether scores of single rows may leave the site, which pairwise methods need")
    client_losses: bool = setting(True, "whether the site's own loss may leave, which DRFA, AFL and q-FedAvg need")
    min_per_class: int = setting(0, "rows of each class that the site must have to take part", at_least=0)
    min_noise: float = setting(0.0, "least noise (standard deviation over clipping norm) that a run must add to what "
                                    "leaves the site", at_least=0)


class Refused(Exception):
    """The policy says no. The text is fit to be sent: it holds no data."""


def read_policy(path: Path | None) -> Policy:
    """The rules in a file; without one, the defaults."""
    if path is None:
        return Policy()
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(f"policy {str(path)!r}: cannot be read ({error}); give a TOML file with the site's rules") \
            from error
    return Policy(**validated(Policy, table, "policy"))


def permit(policy: Policy, algorithm: str, problem: str, model: str | None, round: int) -> None:
    """Refuse what the site does not want, before any code is looked up by these names. model: None: there is none."""
    for kind, name, allowed, known in (("algorithm", algorithm, policy.algorithms, ALGORITHMS),
                                       ("problem", problem, policy.problems, PROBLEMS),
                                       ("model", model, policy.models, MODELS)):
        if name is not None and name not in (allowed or known):
            raise Refused(f"the site's policy does not allow {kind} {name[:60]!r}")
    if policy.max_rounds is not None and round >= policy.max_rounds:
        raise Refused(over(policy))
    entry = ALGORITHMS.get(algorithm)
    if entry and entry.scores and not policy.raw_scores:
        raise Refused(f"the site's policy keeps scores of single rows at the site, which {algorithm} needs")
    if entry and entry.scalars and not policy.client_losses:
        raise Refused(f"the site's policy keeps its losses at the site, which {algorithm} needs")
    if policy.min_noise > 0:  # what a server says of its noise proves nothing, and no method adds any at the site yet
        raise Refused(f"the site's policy wants noise of at least {policy.min_noise:g}, and the run adds none")


def over(policy: Policy) -> str:
    return f"the site's policy ends a run after {policy.max_rounds} rounds"


def enough_rows(policy: Policy, targets: Tensor) -> None:
    """Refuse where a class is too small to hide in."""
    if policy.min_per_class and not targets.is_floating_point():
        smallest = int(torch.unique(targets, return_counts=True)[1].min())
        if smallest < policy.min_per_class or len(torch.unique(targets)) < 2:
            raise Refused(f"the site has fewer than {policy.min_per_class} rows of a class, the least its policy wants")
