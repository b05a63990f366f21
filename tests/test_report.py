"""The report: series out of run folders, the table of results against the records, the page, the plots."""

import csv
import json
import math
import re
import statistics
import struct
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest
import tomli_w
import typer
from rich.console import Console
from typer.testing import CliRunner

from fedsaddle import cli_report
from fedsaddle.contracts import SettingError
from fedsaddle.report import page, plots
from fedsaddle.report.asks import LETTERS, raster
from fedsaddle.report.content import content
from fedsaddle.report.page import embedded, rounded
from fedsaddle.report.page.markup import prose
from fedsaddle.report.results import curve, results
from fedsaddle.report.series import gather, read_run

TABLES = {
    "run": {"rounds": 30, "seed": 0, "batch_size": 10, "device": "cpu", "execution": "auto", "headline": ""},
    "problem": {"name": "auc", "score": "sigmoid"}, "data": {"name": "digits", "clients": 40},
    "model": {"name": "mlp", "hidden": [32]}, "participation": {"respond": [{"name": "first-responders", "low": 0.5}]},
}


def settings(method, seed, **run):
    return {**TABLES, "run": {**TABLES["run"], "seed": seed, **run},
            "algorithm": {"name": method.lower(), "eta": 0.1 + len(method) / 100}}


def records(rng, rounds, clients=40, asked=8, every=1, level=0.9, ids=True, sets=("test", "train")):
    """As an engine writes them: two asks a round, an ask before the first one, an evaluation now and then."""
    totals = {"asked": clients, "answered": clients, "late": 0, "floats_down": 0, "floats_up": 200, "floats_late": 0,
              "bytes_down": 0, "bytes_up": 800, "bytes_late": 0, "virtual_seconds": 0.0}
    found = []
    for round in range(1, rounds + 1):
        asks = []
        for work, size in (("collect_gradient", 200), ("local_steps", 400)):
            who = rng.choice(clients, asked, replace=False).tolist()
            answered, late = sorted(who[: asked // 2 + int(rng.integers(0, 2))]), sorted(who[-2:])
            floats = {"floats_down": asked * size, "floats_up": len(answered) * size, "floats_late": len(late) * size}
            ask = {"work": work, "asked": asked, "answered": len(answered), "late": len(late), **floats,
                   **{name.replace("floats", "bytes"): 4 * value for name, value in floats.items()},
                   "virtual_seconds": 1 + float(rng.random())}
            named = {"asked_clients": sorted(who), "clients": answered, "late_clients": late} if ids else {}
            asks.append({**ask, **named})
        sums = {name: sum(ask[name] for ask in asks) for name in totals}
        totals = {name: totals[name] + sums[name] for name in totals}
        record = {"round": round, "updates": round, "skipped": False, **sums, "total": totals, "asks": asks,
                  "seconds": 0.1 + float(rng.random()) / 100, "evaluation_seconds": 0.01}
        if round % every == 0 or round == rounds:
            auc = level - 0.4 * math.exp(-4 * round / rounds) + float(rng.normal()) / 100
            record["measures"] = {name: {"auc": auc ** (1 + at), "objective": -auc / 10 + float(rng.normal()) / 500,
                                         "primal": 0.2 - auc / 10, "score_min": None if round % 7 == 0 else 0.01,
                                         "score_max": 0.99} for at, name in enumerate(sets)}
            record["measures"]["clients"] = {"accuracy_worst": auc - 0.3, "accuracy_spread": 0.1}
            record |= {"alarms": [], "diverged": False}
        found.append(record)
    return found


def write_run(folder, method="CDMA", seed=0, rounds=30, complete=True, tables=None, **more):
    folder.mkdir(parents=True)
    rng = np.random.default_rng([seed, len(method), rounds])
    (folder / "run.toml").write_text(tomli_w.dumps(tables or settings(method, seed)))
    lines = records(rng, rounds, **more)
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if complete:
        (folder / "summary.json").write_text("{}")
    return lines


def write_final(folder, clients=40, seed=0):
    """What a finished run leaves: clients, scores, images, where it was computed."""
    rng = np.random.default_rng(seed)
    accuracy = np.clip(rng.normal(0.8, 0.1, clients), 0, 1)
    rate = np.linspace(0, 1, 2000)
    bins = np.linspace(0.05, 0.95, 10)
    (folder / "final.json").write_text(json.dumps({
        "clients": {"accuracy": accuracy.tolist(), "loss": (1 - accuracy).tolist()},
        "rows": [10 + client for client in range(clients)],
        "scores": {"test": {"fpr": rate.tolist(), "tpr": np.sqrt(rate).tolist(), "auc": 0.96844993, "calibration": {
            "score": bins.tolist(), "share": [None, *(bins[1:] ** 1.3).tolist()],
            "count": [0, *range(100, 1000, 100)]}}}}))
    (folder / "environment.json").write_text(json.dumps({"python": "3.11.2", "torch": "2.11", "date": "2026-01-02"}))
    (folder / "images.png").write_bytes(png(rng.integers(0, 255, (56, 56), dtype=np.uint8)))


def png(grey):
    """A picture, written without a library."""
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    height, width = grey.shape
    body = zlib.compress(b"".join(b"\0" + row.tobytes() for row in grey))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
            + chunk(b"IDAT", body) + chunk(b"IEND", b""))


STUDY = {
    "command": "fedsaddle reproduce digits --quick", "recipe": "A study of digits", "about": "Two methods, in small.",
    "quick": True, "published": {"CDMA": 0.987, "SGDA-x": 0.95}, "published_measure": "test AUC, Table 2",
    "departures": "Digits instead of MNIST.",
    "claims": [{"text": "CDMA beats SGDA", "verdict": "holds", "detail": "0.90 against 0.85"},
               {"text": "CDMA is quicker", "verdict": "does not hold", "detail": "1.1 s against 1.0 s"},
               {"text": "CDMA needs fewer floats", "verdict": "within spread", "detail": "-"},
               {"text": "CDMA saves energy", "verdict": "not measured", "detail": ""}],
}


def write_study(folder, methods=("CDMA", "SGDA-x"), seeds=3, rounds=30, clients=40, **more):
    """Methods x seeds, complete, with everything a report can show."""
    found = {}
    for at, method in enumerate(methods):
        for seed in range(seeds):
            own = folder / method / f"seed-{seed}"
            found[method, seed] = write_run(own, method, seed, rounds, level=0.9 - 0.04 * at, clients=clients, **more)
            write_final(own, clients, seed)
    (folder / "study.json").write_text(json.dumps(STUDY))
    return found


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    return folder, write_study(folder)


def command(*words):
    app = typer.Typer()
    cli_report.add_to(app)
    result = CliRunner().invoke(app, [*map(str, words)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


class Page(HTMLParser):
    """Tables by id, the embedded data, and everything that could reach for the network."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.reaches, self.data, self.sections, self.words = {}, [], "", [], ""
        self.table = self.script = self.silent = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.reaches += [(tag, name, value) for name, value in attrs.items()
                         if name in ("src", "href", "srcset", "action") and not value.startswith(("#", "data:"))]
        if tag == "section":
            self.sections.append(attrs["id"])
        if tag == "table" and "id" in attrs:
            self.table = self.tables.setdefault(attrs["id"], [])
        if tag == "tr" and self.table is not None:
            self.table.append([])
        if tag in ("td", "th") and self.table is not None:
            self.table[-1].append("")
        self.script = attrs.get("id", "code") if tag == "script" else self.script
        self.silent = tag in ("script", "style")

    def handle_endtag(self, tag):
        self.table = None if tag == "table" else self.table
        self.script = None if tag == "script" else self.script
        self.silent = False

    def handle_data(self, text):
        if self.script == "data":
            self.data += text
        elif not self.silent:
            self.words += text
        if self.table and self.table[-1] and self.script is None:
            self.table[-1][-1] += text


def written(tmp_path, *folders, monkeypatch=None, **more):
    if monkeypatch:
        monkeypatch.setattr(plots, "available", lambda: False)
    return Page(page.write(folders, tmp_path / "page.html", plots=tmp_path / "plots", **more).read_text())


# Which runs stand together.


def labels_and_seeds(*folders):
    return [(one.label, [run.seed for run in one.runs]) for one in gather(folders)]


def test_seeds_of_a_method_are_one_series_however_they_were_computed(tmp_path):
    for seed in (10, 2, 0):
        write_run(tmp_path / "CDMA" / f"seed-{seed}", seed=seed, rounds=2, tables=settings(
            "CDMA", seed, device="cuda" if seed else "cpu", chunk=seed + 1, checkpoint_every=5 + seed))
    write_run(tmp_path / "Other", "Other", rounds=2)
    assert labels_and_seeds(tmp_path) == [("CDMA", [0, 2, 10]), ("Other", [0])]


def test_a_setting_that_moves_results_parts_series(tmp_path):
    write_run(tmp_path / "a" / "seed-0", rounds=2)
    write_run(tmp_path / "a" / "seed-1", rounds=2, tables=settings("CDMA", 1, batch_size=20))
    assert labels_and_seeds(tmp_path) == [("a/seed-0", [0]), ("a/seed-1", [1])]


def test_the_same_seed_twice_is_never_two_seeds_of_one_series(tmp_path):
    for device in ("cpu", "cuda"):
        for seed in (0, 1):
            write_run(tmp_path / device / "CDMA" / f"seed-{seed}", seed=seed, rounds=2,
                      tables=settings("CDMA", seed, device=device))
    assert labels_and_seeds(tmp_path) == [("cpu/CDMA", [0, 1]), ("cuda/CDMA", [0, 1])]
    assert labels_and_seeds(tmp_path / "cpu", tmp_path / "cpu" / "CDMA") == [("CDMA", [0, 1])]  # given twice


def test_seeds_in_different_folders_are_one_series(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"r{seed}" / "CDMA", seed=seed, rounds=2)
    assert labels_and_seeds(tmp_path / "r0", tmp_path / "r1") == [("CDMA", [0, 1])]


def test_methods_keep_the_order_of_their_settings_file(tmp_path):
    (tmp_path / "run.toml").write_text(tomli_w.dumps({"algorithms": {"Z": {}, "B": {}, "A": {}}}))
    for method in ("A", "B", "Z"):
        write_run(tmp_path / method, method * 3, rounds=2, tables={**settings("x", 0), "algorithm": {"name": method}})
    assert [label for label, _ in labels_and_seeds(tmp_path)] == ["Z", "B", "A"]


def test_methods_of_a_study_keep_its_order(tmp_path):
    write_study(tmp_path, methods=("B", "A", "C"), seeds=1)
    (tmp_path / "study.json").write_text(json.dumps({**STUDY, "methods": ["C", "A"]}))
    assert [one.label for one in gather([tmp_path])] == ["C", "A", "B"]


def test_runs_from_python_are_told_apart_by_their_folder(tmp_path):
    for name in ("one", "other"):
        write_run(tmp_path / name, name, rounds=2, tables={"run": {"rounds": 2}})
    assert [label for label, _ in labels_and_seeds(tmp_path)] == ["one", "other"]


def empty(folder):
    folder.mkdir()


def missing(folder):
    pass


def no_settings(folder):
    write_run(folder, rounds=2)
    (folder / "run.toml").unlink()


def bad_settings(folder):
    write_run(folder, rounds=2)
    (folder / "run.toml").write_text("[run")


def bad_records(folder):
    write_run(folder, rounds=2)
    (folder / "records.jsonl").write_text('{"round": 1}\n')


def no_json(folder):
    write_run(folder, rounds=2)
    (folder / "records.jsonl").write_text("{{\n")


def bad_ended(folder):
    write_run(folder, rounds=2)
    (folder / "ended.json").write_text("[]")


def no_records(folder):
    write_run(folder, rounds=2)
    (folder / "records.jsonl").unlink()


@pytest.mark.parametrize("spoil", [
    empty, missing, no_settings, bad_settings, bad_records, no_json, bad_ended, no_records])
def test_a_folder_that_cannot_be_reported_is_named(tmp_path, spoil):
    folder = tmp_path / "the-one"
    spoil(folder)
    with pytest.raises(SettingError, match="the-one"):
        gather([folder])


# Numbers.


def mean_and_deviation(values):
    return f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}"


def test_the_final_table_equals_the_records(study, tmp_path, monkeypatch):
    folder, runs = study
    shown = written(tmp_path, folder, monkeypatch=monkeypatch)
    heads, *rows = shown.tables["results"]
    least = min(lines[-1]["total"]["floats_up"] for lines in runs.values())
    assert [row[0] for row in rows] == ["CDMA", "SGDA-x"]
    for row in rows:
        own = [runs[row[0], seed] for seed in range(3)]
        auc = [[line["measures"]["test"]["auc"] for line in lines] for lines in own]
        equal = [next(line["measures"]["test"]["auc"] for line in reversed(lines)
                      if line["total"]["floats_up"] <= least) for lines in own]
        cells = dict(zip(heads, row, strict=True))
        assert cells["test.auc at the end"] == mean_and_deviation([values[-1] for values in auc])
        assert cells["best"] == mean_and_deviation([max(values) for values in auc])
        assert cells["at equal floats"] == mean_and_deviation(equal)
        assert cells["floats received"] == f"{statistics.mean(x[-1]['total']['floats_up'] for x in own):,.0f}"
        sent = [x[-1]["total"]["bytes_up"] + x[-1]["total"]["bytes_down"] for x in own]
        assert cells["bytes sent"] == f"{statistics.mean(sent) / 1e3:.1f} kB"
        assert cells["seconds"] == f"{statistics.mean(sum(r['seconds'] for r in x) for x in own):,.1f}"
        assert cells["published"] == str({"CDMA": "0.9870", "SGDA-x": "0.9500"}[row[0]])
        assert (cells["seeds"], cells["rounds"], cells["ended"]) == ("0, 1, 2", "30", "complete")
    objective = [runs["CDMA", seed][-1]["measures"]["train"]["objective"] for seed in range(3)]
    assert {row[0]: row[1] for row in shown.tables["measures"]}["train.objective"] == mean_and_deviation(objective)


def test_the_best_is_the_lowest_where_lower_is_better(study):
    series = gather([study[0]])
    lines = results(series, "test.objective")
    for line in lines:
        own = [[r["measures"]["test"]["objective"] for r in study[1][line.label, seed]] for seed in range(3)]
        assert line.best.mean == pytest.approx(statistics.mean(map(min, own)))


def test_a_diverged_run_is_counted_and_not_averaged(tmp_path, monkeypatch):
    whole = write_run(tmp_path / "in" / "CDMA" / "seed-0")
    write_run(tmp_path / "in" / "CDMA" / "seed-1", seed=1, rounds=4, complete=False, level=5.0)
    (tmp_path / "in" / "CDMA" / "seed-1" / "ended.json").write_text(
        json.dumps({"how": "diverged", "round": 4, "why": "x is not finite <b>"}))
    write_run(tmp_path / "in" / "SGDA-x", "SGDA-x", rounds=7, complete=False)
    shown = written(tmp_path, tmp_path / "in", monkeypatch=monkeypatch)
    heads, cdma, sgda = shown.tables["results"]
    assert dict(zip(heads, cdma, strict=True)) | {"seconds": "", "best": ""} == {
        "method": "CDMA", "seeds": "0, 1", "rounds": "4-30", "best": "", "seconds": "", "ended": "1 of 2 diverged",
        "test.auc at the end": f"{whole[-1]['measures']['test']['auc']:.4f}",
        "at equal floats": f"{whole[-1]['measures']['test']['auc']:.4f}",
        "floats received": f"{whole[-1]['total']['floats_up']:,}",
        "bytes sent": f"{(whole[-1]['total']['bytes_up'] + whole[-1]['total']['bytes_down']) / 1e3:.1f} kB"}
    assert (sgda[3], sgda[6]) == ("unfinished", "-")  # it has not come to equal floats
    assert "CDMA, seed 1: diverged in round 4: x is not finite <b>" in shown.words


def test_a_record_that_says_diverged_is_enough(tmp_path):
    lines = write_run(tmp_path / "a", complete=False, rounds=3)
    lines[-1] |= {"diverged": True, "measures": {"test": {"auc": None}}}
    (tmp_path / "a" / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_run(tmp_path / "a").state == "diverged"


def test_curves_meet_at_rounds_and_on_a_grid_of_floats():
    runs = [{"x": {"rounds": [1, 2, 3], "floats": [0, 10, 20]}, "y": {"m": [1.0, None, 3.0]}},
            {"x": {"rounds": [1, 2, 3], "floats": [0, 20, 40]}, "y": {"m": [3.0, 4.0, 5.0]}}]
    found = curve(runs, "rounds", "m")
    assert found.x.tolist() == [1, 2, 3] and found.mean.tolist() == [2, 4, 4]
    assert found.deviation[[0, 2]] == pytest.approx([2**0.5, 2**0.5]) and math.isnan(found.deviation[1])
    found = curve(runs, "floats", "m")
    assert found.x.tolist() == [0, 10, 20]
    assert found.mean == pytest.approx([(1 + 3) / 2, (2 + 3.5) / 2, (3 + 4) / 2])


def test_a_raster_counts_every_client_of_every_ask(tmp_path):
    lines = write_run(tmp_path / "a", rounds=450, clients=410, tables={**settings("CDMA", 0), "data": {"clients": 410}})
    found = raster(read_run(tmp_path / "a"), step=3)
    counts = np.zeros((found["lines"], found["columns"], 3), dtype=int)
    for at in range(found["lines"] * found["columns"]):
        word = found["cells"][at * found["width"] : (at + 1) * found["width"]]
        entry = sum(LETTERS.index(letter) * 64**place for place, letter in enumerate(reversed(word)))
        counts[divmod(at, found["columns"])] = found["palette"][entry]
    assert counts.shape == (137, 150, 3) and found["group"] == 3
    client = 300
    for kind, name in enumerate(("clients", "late_clients")):
        assert counts[client // 3, :, kind].sum() == sum(ask[name].count(each) for line in lines for ask in line["asks"]
                                                         for each in range(client, client + 3))
        assert counts[:, :, kind].sum() == sum(len(ask[name]) for line in lines for ask in line["asks"])
    assert counts.sum() == sum(len({*ask["asked_clients"]}) for line in lines for ask in line["asks"])


def test_phases_add_up_to_what_was_sent(study):
    folder, runs = study
    found = content([folder])["traffic"][0]
    assert set(found["phases"]) == {"before round 1", "collect_gradient", "local_steps"}
    for name in ("floats_up", "bytes_down", "bytes_late"):
        total = statistics.mean(runs["CDMA", seed][-1]["total"][name] for seed in range(3))
        assert sum(sent[name] for sent in found["phases"].values()) == pytest.approx(total)
        assert sum(found["each"][name]) == sum(line[name] for line in runs["CDMA", 0])


@pytest.mark.parametrize("clients", [40, 1000])
def test_worst_client_and_worst_tenth(tmp_path, clients):
    write_run(tmp_path / "a", rounds=2)
    write_final(tmp_path / "a", clients)
    values = json.loads((tmp_path / "a" / "final.json").read_text())["clients"]["accuracy"]
    found = content([tmp_path / "a"])["clients"][0][0]["measures"]["accuracy"]
    assert (found["worst"], found["worst_client"]) == (min(values), values.index(min(values)))
    assert found["tenth"] == pytest.approx(statistics.mean(sorted(values)[: clients // 10]))
    assert ("values" in found) == (clients <= 200) and ("counts" in found) == (clients > 200)
    assert sum(found.get("counts", [clients])) == clients


# The page.


def test_the_page_stands_alone_and_shows_every_section(study, tmp_path, monkeypatch):
    shown = written(tmp_path, study[0], monkeypatch=monkeypatch, title="<i>Digits</i> & more")
    text = (tmp_path / "page.html").read_text()
    assert shown.reaches == []
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|https?://(?!www\.w3\.org/2000/svg)", text)
    assert "<i>Digits" not in text and "<i>Digits</i> & more" in shown.words
    assert shown.sections == ["run", "claims", "curves", "fairness", "participation", "communication", "scores",
                              "images", "settings"]
    assert [row[1] for row in shown.tables["verdicts"][1:]] == [
        "✓ holds", "✗ does not hold", "≈ within spread", "? not measured"]
    assert "miniature (--quick)" in shown.words and "fedsaddle reproduce digits --quick" in shown.words
    assert "data:image/png;base64," in text


def test_sections_without_data_are_left_out(tmp_path, monkeypatch):
    write_run(tmp_path / "a", rounds=3)
    assert written(tmp_path, tmp_path / "a", monkeypatch=monkeypatch).sections == [
        "run", "curves", "participation", "communication", "settings"]


def test_embedded_curves_equal_the_records_to_six_digits(study, tmp_path, monkeypatch):
    data = json.loads(written(tmp_path, study[0], monkeypatch=monkeypatch).data)
    for one in data["series"]:
        for run in one["runs"]:
            lines = study[1][one["label"], run["seed"]]
            assert run["x"]["rounds"] == [line["round"] for line in lines]
            assert run["x"]["floats"] == [line["total"]["floats_up"] for line in lines]
            assert run["x"]["bytes"] == [line["total"]["bytes_up"] + line["total"]["bytes_down"] for line in lines]
            assert run["y"]["train.auc"] == pytest.approx([x["measures"]["train"]["auc"] for x in lines], rel=5e-6)
            assert [at for at, value in enumerate(run["y"]["test.score_min"]) if value is None] == [6, 13, 20, 27]


def test_where_records_of_rounds_are_missing_the_page_says_so(tmp_path, monkeypatch):
    write_study(tmp_path, methods=("CDMA",), seeds=2, every=5)
    words = "only some rounds of 1 of the 2 runs are here"
    assert words not in written(tmp_path, tmp_path, monkeypatch=monkeypatch).words
    kept = tmp_path / "CDMA" / "seed-0" / "records.jsonl"
    kept.write_text("".join(line for line in kept.read_text().splitlines(keepends=True) if '"measures"' in line))
    assert words in written(tmp_path, tmp_path, monkeypatch=monkeypatch).words


def test_nothing_in_the_data_can_end_the_script():
    text = embedded({"a": "</script><!--", "b": [float("nan"), float("inf"), 1234567.0, 0.12345678, 1e-9, None, True]})
    assert "<" not in text
    assert json.loads(text) == {"a": "</script><!--", "b": [None, None, 1234567, 0.123457, 1e-9, None, True]}
    assert rounded(123456.789) == 123457


def test_labels_are_words_not_markup(tmp_path, monkeypatch):
    write_run(tmp_path / "in" / "<img src=x onerror=alert(1)>" / "seed-0", rounds=2)
    shown = written(tmp_path, tmp_path / "in", monkeypatch=monkeypatch)
    assert shown.reaches == [] and shown.tables["results"][1][0] == "<img src=x onerror=alert(1)>"


def test_a_large_study_stays_light(tmp_path, monkeypatch):
    write_study(tmp_path / "in", [f"Method-{'x' * at}" for at in range(6)], 3, 400, 300)
    written(tmp_path, tmp_path / "in", monkeypatch=monkeypatch)
    assert (tmp_path / "page.html").stat().st_size < 3e6


def test_values_that_are_not_there_break_nothing(tmp_path):
    lines = write_run(tmp_path / "in" / "a", rounds=5)
    for line in lines:
        line["measures"] = {"test": {"auc": None, "loss": float("nan")}}
    (tmp_path / "in" / "a" / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "in" / "a" / "final.json").write_text(json.dumps({"clients": {"loss": [None, float("nan")]}, "scores": {
        "test": {"fpr": [], "tpr": [], "auc": None}}}))
    write_run(tmp_path / "in" / "b", "Other", rounds=2)
    (tmp_path / "in" / "b" / "records.jsonl").write_text("")  # begun, nothing recorded
    shown = written(tmp_path, tmp_path / "in")
    assert [row[4] for row in shown.tables["results"][1:]] == ["-", "-"]


# Commands and plots.


def test_compare_shows_what_was_measured_and_what_differs(study, monkeypatch):
    monkeypatch.setattr(cli_report, "out", Console(width=200))
    text = command("compare", study[0], "--measure", "train.auc")
    for method in ("CDMA", "SGDA-x"):
        last = [study[1][method, seed][-1]["measures"]["train"]["auc"] for seed in range(3)]
        assert f"{statistics.mean(last):.4f}" in text and f"± {statistics.stdev(last):.4f}" in text
    assert re.search(r"algorithm.eta .*0\.14 .*0\.16", text)
    assert "batch_size" not in text
    with pytest.raises(SettingError, match=r"test\.auk.*test\.auc"):
        command("compare", study[0], "--measure", "test.auk")


def test_report_writes_the_page_and_every_plot(tmp_path):
    write_study(tmp_path / "in", seeds=2, rounds=6, sets=("test",))
    text = command("report", tmp_path / "in", "--title", "Mine")
    assert str(tmp_path / "in" / "report.html") in text.replace("\n", "")
    found = {path.name for path in (tmp_path / "in" / "plots").iterdir()}
    for name in ("curve-test.auc-rounds", "curve-test.auc-floats", "curve-test.auc-bytes", "curve-test.auc-time",
                 "curve-test.objective-rounds", "clients-accuracy", "participation-CDMA", "communication-floats",
                 "roc-test"):
        assert {f"{name}.png", f"{name}.svg"} <= found
    assert {"results.csv", "curve-test.primal.csv", "clients.csv", "participation.csv", "participation-clients.csv",
            "communication.csv", "roc.csv", "calibration.csv"} <= found
    assert "Mine" in (tmp_path / "in" / "report.html").read_text()
    with pytest.raises(SettingError, match="--out"):
        command("report", tmp_path / "in", "--out", tmp_path / "x.pdf")


def test_without_matplotlib_there_are_csv_files_and_one_line(study, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "available", lambda: False)
    monkeypatch.setattr(cli_report, "err", Console(width=200))
    assert "fedsaddle[plots]" in command("report", study[0], "--out", tmp_path / "r.html", "--plots", tmp_path / "p")
    assert {path.suffix for path in (tmp_path / "p").iterdir()} == {".csv"}
    rows = list(csv.DictReader((tmp_path / "p" / "curve-test.auc.csv").open()))
    lines = study[1]["SGDA-x", 2]
    own = [row for row in rows if (row["series"], row["seed"]) == ("SGDA-x", "2")]
    assert [float(row["test.auc"]) for row in own] == [line["measures"]["test"]["auc"] for line in lines]
    assert [int(row["floats"]) for row in own] == [line["total"]["floats_up"] for line in lines]


def write_dead(folder):
    """The scores of this run are all the same at its end."""
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    lines[-1]["alarms"] = ["the score is saturated"]
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_where_a_seed_died_every_seed_is_drawn_and_no_mean(tmp_path):
    pytest.importorskip("matplotlib")
    write_study(tmp_path, rounds=10)
    write_dead(tmp_path / "CDMA" / "seed-1")
    figure = plots.curves(content([tmp_path]), "test.auc", "rounds")
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) > 1]
    assert len(lines) == 3 + 1 and len(figure.axes[0].collections) == 1  # one band
    assert figure.axes[0].get_legend_handles_labels()[1] == ["CDMA (1 of 3 died)", "SGDA-x"]
    values = np.array([line.get_ydata() for line in lines[:3]])
    assert np.allclose(values, [[record["measures"]["test"]["auc"] for record in read_run(path).records]
                                for path in sorted((tmp_path / "CDMA").glob("seed-*"))])


@pytest.mark.parametrize("rounds, wanted", [(300, "log"), (40, "linear")])
def test_methods_of_unlike_length_are_drawn_against_a_logarithm(tmp_path, rounds, wanted):
    for name, length in (("long", rounds), ("short", 20)):
        write_run(tmp_path / name, name, rounds=length)
    found = content([tmp_path])
    assert {plots.curves(found, "test.auc", axis).axes[0].get_xscale() for axis in ("rounds", "floats")} == {wanted}


def test_no_two_of_many_series_look_alike():
    assert len({tuple(plots.style(at).values()) for at in range(32)}) == 32


def test_a_run_that_was_pruned_did_not_die(tmp_path):
    write_run(tmp_path / "a", rounds=3, complete=False)
    (tmp_path / "a" / "ended.json").write_text(json.dumps({"how": "pruned", "round": 3, "why": "behind the others"}))
    line = results(gather([tmp_path / "a"]), "test.auc")[0]
    assert (line.died, line.unfinished, line.state_text) == (0, 1, "pruned") and line.final.mean is not None


def test_a_study_says_which_measure_it_is_about(tmp_path):
    write_run(tmp_path / "a", rounds=3)
    (tmp_path / "study.json").write_text(json.dumps({"measure": "train.auc"}))
    assert content([tmp_path])["headline"] == "train.auc"
    assert content([tmp_path / "a"])["headline"] == "test.auc"


def test_the_table_of_a_study_smooths_as_the_study_does(tmp_path, monkeypatch):
    """The same numbers as in the study's own table; every other measure stays as it was evaluated last."""
    runs = write_study(tmp_path / "in", seeds=2)
    (tmp_path / "in" / "study.json").write_text(json.dumps({**STUDY, "measure": "test.auc", "smooth": 3}))
    shown = written(tmp_path, tmp_path / "in", monkeypatch=monkeypatch)
    heads, row, _ = shown.tables["results"]
    auc = [[line["measures"]["test"]["auc"] for line in runs["CDMA", seed]] for seed in range(2)]
    means = [[statistics.mean(values[at - 3 : at]) for at in range(3, len(values) + 1)] for values in auc]
    cells = dict(zip(heads, row, strict=True))
    assert cells["test.auc at the end"] == mean_and_deviation([values[-1] for values in means])
    assert cells["best"] == mean_and_deviation([max(values) for values in means])
    assert "Each value is the mean of 3 evaluations" in shown.words
    assert {row[0]: row[1] for row in shown.tables["measures"]}["test.auc"] == mean_and_deviation([v[-1] for v in auc])
    assert "each value the mean of 3 evaluations" in " ".join(command("compare", tmp_path / "in").split())
    assert "each value" not in command("compare", tmp_path / "in", "--measure", "train.auc")


def test_many_seeds_and_many_commands_are_told_in_short(tmp_path, monkeypatch):
    for seed in range(10):
        write_run(tmp_path / "in" / "CDMA" / f"seed-{seed}", seed=seed, rounds=2)
    write_run(tmp_path / "in" / "Other" / "seed-1", "Other", seed=1, rounds=2)
    write_run(tmp_path / "in" / "Other" / "seed-3", "Other", seed=3, rounds=2)
    shown = written(tmp_path, tmp_path / "in", monkeypatch=monkeypatch)
    assert [row[1] for row in shown.tables["results"]] == ["seeds", "0 to 9", "1, 3"]
    assert "12 commands" in shown.words and "CDMA/seed-9/run.toml" in shown.words


def test_departures_are_paragraphs_and_lists():
    text = "Of `x` it is told\nin two lines.\n\nAnother.\nDepartures:\n- one, <b>\n  going on\n- two\nAfter it."
    assert prose(text) == ("<p>Of <code>x</code> it is told in two lines.</p><p>Another.</p><p>Departures:</p>"
                           "<ul><li>one, &lt;b&gt; going on</li><li>two</li></ul><p>After it.</p>")


def test_compare_fits_into_a_narrow_terminal_and_names_what_is_not_whole(tmp_path, monkeypatch):
    for seed in (0, 1):
        write_run(tmp_path / "Parallel-SGDA" / f"seed-{seed}", seed=seed)
    write_run(tmp_path / "CDMA-ADA", "CDMA-ADA", rounds=7, complete=False)
    monkeypatch.setattr(cli_report, "out", Console(width=80))
    text = command("compare", tmp_path)
    assert "…" not in text and "CDMA-ADA, seed 0: unfinished in round 7" in text
    assert re.search(r"Parallel-SGDA +2 +30 ", text)
