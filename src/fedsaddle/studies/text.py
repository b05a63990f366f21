"""The results of a study as a Markdown page: what was run, the table, a line per claim, the pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fedsaddle.studies.judge import FILE, PASSES
from fedsaddle.studies.reproduce import Plan, Results, table

FACTS = (("device", "device"), ("platform", "system"), ("python", "Python"), ("torch", "torch"),
         ("fedsaddle", "fedsaddle"), ("date", "date"))


def markdown(plan: Plan, got: Results, out: Path) -> str:
    study, paper = plan.study, plan.study.paper
    parts = [f"# {study.about}"]
    if plan.quick:
        judged = f" Its images are judged by the net `{plan.study.quick.judge}`, trained for {PASSES} passes." \
            if plan.study.quick and (out / FILE).exists() else ""
        parts.append(f"**A miniature (`--quick`)**: too short and too small to be held against the paper.{judged}")
    if plan.changed:
        parts.append(f"**Not as in the recipe**: {', '.join(f'`{text}`' for text in plan.changed)}.")
    parts += [f"```\n{plan.command}\n```", _facts(plan, out), f"Measure: `{paper.measure}`, "
              f"{'higher' if paper.higher else 'lower'} is better; mean ± standard deviation over seeds"
              + (f"; each value the mean of {paper.smooth} evaluations" if paper.smooth > 1 else "")
              + (f". Published: {paper.table}." if paper.table else "."), _table(table(plan, got))]
    died = [f"- {line.label}, {death}" for line in got.lines for death in line.died]
    if died:
        parts.append("Died:\n\n" + "\n".join(died))
    unfinished = [f"- {line.label}, {how_far}" for line in got.lines for how_far in line.unfinished]
    if unfinished:
        parts.append("**Unfinished**, and counted as far as they were:\n\n" + "\n".join(unfinished))
    if got.verdicts:
        parts.append("## Claims\n\n" + _table([["claim", "verdict", "measured"],
                                              *(list(verdict) for verdict in got.verdicts)]))
    shown = dict.fromkeys(measure for measure in (paper.measure, *(claim.measure for claim in paper.claims)) if measure)
    pictures = [path.relative_to(out) for measure in shown for path in sorted(out.glob(f"plots/curve-{measure}-*.svg"))]
    if pictures:
        parts.append("## Pictures\n\n" + "\n\n".join(f"![{path.stem}]({path.as_posix()})" for path in pictures))
    made = {line.label: path for line in got.lines for path in sorted((out / line.label).glob("seed-*/images.png"))[:1]}
    if made:
        parts.append("## Generated images\n\nAt the end of each method's first seed.\n\n" + _table([list(made), [
            f"![{label}]({path.relative_to(out).as_posix()})" for label, path in made.items()]]))
    if study.departures:
        parts.append(f"## Setting\n\n{study.departures}")
    return "\n\n".join(parts) + "\n"


def _facts(plan: Plan, out: Path) -> str:
    """The machine of the first run, and when it was."""
    found = sorted(out.glob("*/seed-*/environment.json"))
    facts = json.loads(found[0].read_text(encoding="utf-8")) if found else {}
    words = [f"{name} {facts[key]}" if name not in ("device", "system") else str(facts[key])
             for key, name in FACTS if facts.get(key)]
    return f"{plan.seeds} seeds" + (f"; {'; '.join(words)}." if words else ".")


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body))
