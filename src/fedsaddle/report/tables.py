"""Tables for the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table


def last_measures(records: list[dict[str, Any]], floats: float = float("inf")) -> dict[str, dict[str, float]]:
    """Of the last evaluation for which the server had received at most so many floats."""
    within = [r for r in records if "measures" in r and r["total"]["floats_up"] <= floats]
    return within[-1]["measures"] if within else {}


def comparison(runs: dict[str, list[dict[str, Any]]], headline: str) -> Table:
    """One line a method: where it ended, and where all stood when they had sent equally many floats."""
    budget = min(records[-1]["total"]["floats_up"] for records in runs.values())
    moments = {"equal floats": float(budget)} if len(runs) > 1 else {}
    moments["at the end"] = float("inf")
    shown = [(name, headline in values) for records in runs.values() for name, values in last_measures(records).items()]
    sets = list(dict.fromkeys(name for name, has in shown if has or not any(found for _, found in shown)))
    table = Table(title=f"equal floats: {budget:,} received by the server" if len(runs) > 1 else None)
    table.add_column("method", no_wrap=True)
    for name in ("rounds", "skipped", "floats\nreceived"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in sets:
        for moment in moments:
            table.add_column(f"{name} {headline}\n{moment}", justify="right", no_wrap=True)
    for label, records in runs.items():
        total, skipped = records[-1]["total"], sum(r["skipped"] for r in records)
        row = [label, str(records[-1]["round"]), str(skipped), f"{total['floats_up']:,}"]
        row += [number(last_measures(records, floats).get(name, {}).get(headline))
                for name in sets for floats in moments.values()]
        table.add_row(*row)
    return table


def calibrated(report: dict[str, Any]) -> list[str]:
    """How the clients were computed, in words: where more than one way was tried, or one did not work."""
    lines = []
    for work, found in report.get("works", {}).items():
        failed = [text for text in (found.get("why", ""), *map(str, found.get("seconds", {}).values()))
                  if "does not work" in text]
        if len(found.get("seconds", {})) > 1 or failed:
            processes = report.get("processes", 1)
            lines.append(f"{work}: {found['kind']}, up to {found['chunk']} clients at once, {processes} "
                         f"process{'es' if processes > 1 else ''}" + "".join(f"; {text}" for text in failed))
    return lines


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if abs(value) < 1e-3 or abs(value) >= 1e4 else f"{value:.4f}"


def listing(kind: str, rows: list[dict[str, Any]]) -> Table:
    """A registry: name, what it is, and its settings with defaults and meanings, or what an experiment takes."""
    table = Table(title=kind, show_lines=True)
    experiments = any("methods" in row for row in rows)
    table.add_column("name", overflow="fold", no_wrap=experiments)  # to be copied into a command
    for name in ("what it is", *(("data",) if experiments else ("settings (default): meaning",))):
        table.add_column(name, overflow="fold")
    for row in rows:
        settings = "\n".join(f"[bold]{s['name']}[/bold] ({s['default']}): {s['meaning']}" for s in row["settings"])
        takes = (f"{row['about']}; {len(row['methods'])} methods, {row['rounds']} rounds",
                 f"[bold]{row['data']}[/bold]: {row['data_where']}") if experiments else (row["about"], settings or "-")
        table.add_row(row["name"], *takes)
    return table
