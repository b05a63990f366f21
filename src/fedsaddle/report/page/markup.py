"""The parts of the page that are words and tables: there without scripts, on paper, and as numbers to check."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from fedsaddle.report.results import Line, Spread, higher, in_short, winners
from fedsaddle.report.sites import bytes_told
from fedsaddle.report.tables import number

VERDICTS = {"holds": ("good", "✓"), "does not hold": ("bad", "✗"), "within spread": ("middle", "≈"),
            "not measured": ("neutral", "?")}
MANY = 6  # commands
Found = dict[str, Any]


def lead(found: Found) -> str:
    """The line below the title."""
    lines: list[Line] = found["results"]
    runs = sum(len(line.seeds) for line in lines)
    told = f"{counted(len(lines), 'method')}, {counted(runs, 'run')}"
    quick = ' <span class="badge middle">miniature (--quick)</span>' if found["study"].get("quick") else ""
    return escape(told) + quick


def counted(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def sections(found: Found) -> str:
    """Every section for which there is something to show, in order."""
    return "\n".join(
        f'<section id="{name}"><h2>{escape(title)}</h2>\n{body}\n</section>'
        for name, title, write in SECTIONS if (body := write(found)))


def ran(found: Found) -> str:
    study = found["study"]
    parts = [f"<p>{escape(str(study['about']))}</p>"] if study.get("about") else []
    if study.get("quick"):
        parts.append('<p class="middle"><strong>Miniature (--quick):</strong> fewer rounds or less data than the paper'
                     ", to see that everything works. Its numbers do not say which method is better.</p>")
    parts.append('<dl class="about">' + "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in found["about"]) + "</dl>")
    return "\n".join([*parts, results(found), every_measure(found)])


def results(found: Found) -> str:
    """The table of results, and how to read it."""
    measure, lines = found["headline"], found["results"]
    up, published = higher(measure), found["study"].get("published") or {}
    heads = ["method", "seeds", "rounds", "ended", f"{measure} at the end", "best"]
    columns = ["final", "best", "equal"] if found["budget"] is not None else ["final", "best"]
    heads += ["at equal floats"] if "equal" in columns else []
    heads += ["published"] if published else []
    heads += ["floats received", "bytes sent", "seconds"]
    best = {column: winners(lines, column, up) for column in columns}
    rows = []
    for at, line in enumerate(lines):
        cells = [f'<th scope="row" data-swatch="{at}">{escape(line.label)}</th>',
                 cell(in_short(line.seeds), len(line.seeds)), cell(line.rounds_text, line.rounds[1]),
                 f'<td class="state {state_class(line)}">{escape(line.state_text)}</td>']
        cells += [spread_cell(getattr(line, column), at in best[column]) for column in columns]
        cells += [cell(shown(published.get(line.label)), published.get(line.label))] if published else []
        cells += [whole_cell(line.floats_up),
                  cell("-" if line.bytes.mean is None else bytes_told(round(line.bytes.mean)), line.bytes.mean),
                  cell("-" if line.seconds.mean is None else f"{line.seconds.mean:,.1f}", line.seconds.mean)]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    head = "".join(f'<th scope="col"{number_class(name)}>{escape(name)}</th>' for name in heads)
    return (f'<div class="wide"><table class="sortable" id="results"><thead><tr>{head}</tr></thead>'
            f"<tbody>{''.join(rows)}</tbody></table></div>\n{explained(found, up)}")


def state_class(line: Line) -> str:
    return "bad" if line.died else "middle" if line.unfinished else ""


def number_class(name: str) -> str:
    return "" if name in ("method", "ended") else ' class="number"'


def explained(found: Found, up: bool) -> str:
    """What the columns mean, and what happened to runs that are not whole."""
    told = ["Mean ± standard deviation (n - 1) over complete runs; diverged ones are counted, not averaged.",
            f"Best: the {'highest' if up else 'lowest'} evaluation of each run. ★ marks the best mean."]
    if found["smooth"] > 1:
        told.insert(1, f"Each value is the mean of {found['smooth']} evaluations, as in the table of the study.")
    if found["budget"] is not None:
        told.append(f"At equal floats: at the last evaluation before the server had received more than "
                    f"{found['budget']:,} floats, which every complete run reached.")
    if found["study"].get("published"):
        told.append("Published: " + str(found["study"].get("published_measure") or "the paper's number") + ".")
    notes = "".join(f'<p class="bad">{escape(ended_text(one))}</p>' for one in found["ended"])
    return f'<p class="note">{escape(" ".join(told))}</p>{notes}'


def ended_text(one: dict[str, Any]) -> str:
    why = f": {one['why']}" if one.get("why") else ""
    return f"{one['label']}, seed {one['seed']}: {one.get('how', 'ended')} in round {one.get('round', '?')}{why}"


def every_measure(found: Found) -> str:
    if len(found["measures"]) < 2:
        return ""
    rows = []
    for name in found["measures"]:
        cells = "".join(spread_cell(spread, False) for spread in found["final"][name])
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    head = "".join(f'<th class="number" scope="col">{escape(line.label)}</th>' for line in found["results"])
    table = (f'<table id="measures"><thead><tr><th>measure</th>{head}</tr></thead>'
             f"<tbody>{''.join(rows)}</tbody></table>")
    return folded("Every measure at the last evaluation", f'<div class="wide">{table}</div>', "printed")


def folded(title: str, body: str, kind: str = "") -> str:
    """What is opened by a click; `printed` on paper as well."""
    return f'<details class="{kind}"><summary>{escape(title)}</summary>{body}</details>'


def cell(text: str, value: Any = None) -> str:
    return f'<td class="number" data-value="{"" if value is None else value!r}">{escape(text)}</td>'


def spread_cell(spread: Spread, best: bool) -> str:
    value = "" if spread.mean is None else repr(spread.mean)
    return f'<td class="number{" best" if best else ""}" data-value="{value}">{escape(spread.text)}</td>'


def whole_cell(spread: Spread) -> str:
    return cell("-" if spread.mean is None else f"{spread.mean:,.0f}", spread.mean)


def shown(value: Any) -> str:
    """A number or a word; a dash for nothing."""
    return number(value) if isinstance(value, float) else "-" if value is None else str(value)


def claims(found: Found) -> str:
    study = found["study"]
    rows = []
    for claim in study.get("claims") or []:
        kind, sign = VERDICTS.get(claim.get("verdict", ""), ("neutral", "?"))
        rows.append(f"<tr><td>{escape(str(claim.get('text', '')))}</td>"
                    f'<td><span class="badge {kind}">{sign} {escape(str(claim.get("verdict", "")))}</span></td>'
                    f"<td>{escape(str(claim.get('detail', '')))}</td></tr>")
    parts = ['<div class="wide"><table id="verdicts"><thead><tr><th>claim</th><th>here</th><th>detail</th></tr></thead>'
             f"<tbody>{''.join(rows)}</tbody></table></div>"] if rows else []
    if study.get("departures"):
        parts.append(f'<h3>Where this departs from the paper</h3>{prose(listed(study["departures"]))}')
    return "\n".join(parts)


def prose(text: str) -> str:
    """The comment of a file as paragraphs and lists: its lines were cut for an editor."""
    blocks = [("p", "")]
    for line in text.splitlines():
        (kind, before), told = blocks[-1], line.strip()
        heading = told.endswith(":") and " " not in told
        if told.startswith("- "):
            blocks.append(("li", told[2:]))
        elif not told or not before or before.endswith(":") or heading or (kind == "li" and not line.startswith(" ")):
            blocks.append(("p", told))
        else:
            blocks[-1] = (kind, f"{before} {told}")
    written = "".join(f"<{tag}>{code(escape(told))}</{tag}>" for tag, told in blocks if told)
    return re.sub("((?:<li>.*?</li>)+)", r"<ul>\1</ul>", written)


def code(text: str) -> str:
    """Words between backticks."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", text)


def drawings(intro: str, present: Callable[[Found], bool]) -> Callable[[Found], str]:
    """A section whose drawings the scripts make."""
    def write(found: Found) -> str:
        return f'<p class="note">{escape(intro)}</p><div class="drawings"></div>' if present(found) else ""
    return write


def images(found: Found) -> str:
    figures = []
    for one in filter(None, found["images"]):
        told = "".join(f", {escape(name)} {number(value)}" for name, value in one["measures"].items())
        when = f", round {one['round']}" if one["round"] is not None else ""
        label = escape(one["label"])
        figures.append(f'<figure><figcaption><strong>{label}</strong>, seed {one["seed"]}{when}{told}</figcaption>'
                       f'<img alt="images generated by {label}" src="{one["source"]}"></figure>')
    return f'<div class="charts">{"".join(figures)}</div>' if figures else ""


def settings(found: Found) -> str:
    labels = [line.label for line in found["results"]]
    parts = []
    if found["different"]:
        parts += ["<h3>What differs</h3>", listing(["setting", *labels], [
            [name, *map(listed, values)] for name, values in found["different"].items()])]
    common = listing(["setting", "value"], [[name, listed(value)] for name, value in found["common"].items()])
    title = "What all share" if len(labels) > 1 else "Settings"
    parts.append(folded(f"{title} ({len(found['common'])} settings)", common, "printed"))
    if found["environments"]:
        parts += ["<h3>Where it was computed</h3>", listing(["", ""], [*map(list, found["environments"].items())])]
    again = f"<pre>{escape(chr(10).join(found['commands']))}</pre>"
    many = len(found["commands"]) > MANY
    parts += ["<h3>How to do it again</h3>",
              folded(counted(len(found["commands"]), "command"), again, "printed") if many else again]
    parts += [folded(f"run.toml of {label}", f"<pre>{escape(text)}</pre>") for label, text in found["files"].items()]
    return "\n".join(parts)


def listing(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads) if any(heads) else ""
    body = "".join(f'<tr><th scope="row">{escape(row[0])}</th>'
                   + "".join(f"<td>{escape(each)}</td>" for each in row[1:]) + "</tr>" for row in rows)
    return ('<div class="wide"><table class="settings">'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>")


def listed(value: Any) -> str:
    """A setting's value as a reader writes it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.10g}" if value % 1 else str(value)
    return ", ".join(map(listed, value)) if isinstance(value, list) else str(value)


SECTIONS: tuple[tuple[str, str, Callable[[Found], str]], ...] = (
    ("run", "What was run", ran),
    ("claims", "The paper's claims", claims),
    ("curves", "Curves", drawings(
        "Lines are means over the seeds of complete runs, where a method has some. Thin lines are single runs: all of "
        "a method that lost one to an alarm or diverged (a cross at its end); dotted: one in no mean, not finished or "
        "diverged. Against floats, bytes and time seeds are interpolated. Draw a rectangle to look closer; a double "
        "click shows all of it again.",
        lambda found: bool(found["measures"]))),
    ("fairness", "Client fairness", drawings("The last solution, client by client.",
                                             lambda found: any(found["clients"]))),
    ("participation", "Participation", drawings("Who was asked, and what became of it.",
                                                lambda found: any(found["participation"]))),
    ("communication", "Communication", drawings("What went over the wire, by what it was for.",
                                                lambda found: any(found["traffic"]))),
    ("scores", "ROC and calibration", drawings("Scores of the last solution.", lambda found: any(found["scores"]))),
    ("images", "Generated images", images),
    ("settings", "Settings", settings),
)
