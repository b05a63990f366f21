"""The report in a browser: opens in silence, switches, shows the numbers of the records. Needs chromium."""

import base64
import json
import math
import re
import shutil
import statistics
import subprocess
from contextlib import ExitStack
from itertools import pairwise

import pytest

from fedsaddle.report import page, plots
from test_report import write_dead, write_run, write_study

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
client = pytest.importorskip("websockets.sync.client", reason="websockets is not installed")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="there is no chromium here")


class Tab:
    """One page in a browser without a screen, over the DevTools protocol."""

    def __init__(self, profile):
        self.process = subprocess.Popen(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run",
             "--disable-background-networking", f"--user-data-dir={profile}", "about:blank"],
            stderr=subprocess.PIPE, text=True)
        address = next(found[0] for line in self.process.stderr if (found := re.findall(r"ws://\S+", line)))
        self.open_socket = ExitStack()
        self.socket = self.open_socket.enter_context(client.connect(address, max_size=None))
        self.count, self.events, self.session = 0, [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.size(1200, 900)

    def call(self, method, **params):
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        self.socket.send(json.dumps(message | ({"sessionId": self.session} if self.session else {})))
        while True:
            answer = json.loads(self.socket.recv(timeout=60))
            if answer.get("id") == self.count:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, path):
        self.events = []
        self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(json.loads(self.socket.recv(timeout=60)))

    def ask(self, code):
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def choose(self, name, value):
        self.ask(f"(() => {{ const it = document.getElementById('{name}'); it.value = {json.dumps(value)};"
                 "it.dispatchEvent(new Event('change')); it.dispatchEvent(new Event('input')); })()")

    def point_at(self, share):
        """Move the pointer over the curves, to a share of the width of the axes; what the page says there."""
        x, y = self.ask(
            "(() => { const chart = document.querySelector('#curves .chart svg');"
            "chart.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const line = chart.querySelector('.grid').getBoundingClientRect();"
            f"return [line.left + {share} * line.width, chart.getBoundingClientRect().top + 100]; }})()")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        head, rows = self.ask(
            "(() => { const tip = document.querySelector('#curves .tip'); return [tip.querySelector('b').textContent, "
            "[...tip.querySelectorAll('tr')].map((row) => [...row.cells].map((cell) => cell.textContent))]; })()")
        return head, {label: (value, deviation) for _, label, value, deviation in rows}

    def drag(self, one, other):
        """The mouse with its button down, between two places given as shares of the width and height of the axes."""
        left, top, width, height = self.ask(
            "(() => { const chart = document.querySelector('#curves .chart svg');"
            "chart.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const outer = chart.getBoundingClientRect(), unit = outer.width / chart.viewBox.baseVal.width;"
            "const [x, y, w, h] = ['x', 'y', 'width', 'height'].map((name) => unit * chart.querySelector('.lines')"
            ".getAttribute(name)); return [outer.left + x + 5, outer.top + y + 5, w - 10, h - 10]; })()")
        (x0, y0), (x1, y1) = ((left + share[0] * width, top + share[1] * height) for share in (one, other))
        middle = (x0 + x1) / 2, (y0 + y1) / 2
        for kind, x, y in (("mouseMoved", x0, y0), ("mousePressed", x0, y0), ("mouseMoved", *middle),
                           ("mouseMoved", x1, y1), ("mouseReleased", x1, y1)):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **(
                {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}))

    def ticks(self):
        """The numbers at the axes: upright, across."""
        told = self.ask("['end', 'middle'].map((where) => [...document.querySelectorAll("
                        "`#curves .chart svg > text[text-anchor=${where}]`)].map((text) => text.textContent))")
        units = {"k": 1e3, "M": 1e6, "G": 1e9}
        return [[float(text.rstrip("kMG")) * units.get(text[-1], 1) for text in axis if text[:1].isdigit()]
                for axis in told]

    def curves(self):
        return self.ask("[...document.querySelectorAll('#curves .line')].map((line) => line.getAttribute('d'))")

    def shot(self, path):
        whole = self.call("Page.getLayoutMetrics")["cssContentSize"]
        self.size(1200, math.ceil(whole["height"]))
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.open_socket.close()
        self.process.terminate()
        self.process.wait(timeout=20)
        self.process.stderr.close()


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A page opened in a browser, and the records it is about."""
    folder = tmp_path_factory.mktemp("shown")
    runs = write_study(folder / "in", rounds=20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "available", lambda: False)
        path = page.write([folder / "in"], folder / "report.html")
    tab = Tab(folder / "profile")
    tab.folder = folder
    tab.open(path)
    yield tab, runs
    tab.close()


def auc(runs, method, at, of="test"):
    return [runs[method, seed][at]["measures"][of]["auc"] for seed in range(3)]


def test_it_opens_without_a_word_and_asks_for_nothing(shown):
    tab, _ = shown
    asked = [event["params"]["request"]["url"] for event in tab.events
             if event["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(("data:", "file:"))] == []
    assert sum(url.startswith("file:") for url in asked) == 1
    said = [event for event in tab.events if event["method"] in (
        "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")]
    assert said == []
    assert tab.ask("document.querySelectorAll('section .drawings > *').length") > 10
    assert "NaN" not in tab.ask("document.querySelector('main').innerHTML")


def test_the_network_is_closed_even_to_scripts(shown):
    tab, _ = shown
    assert tab.ask("fetch('http://127.0.0.1:9/').then(() => 'open', (error) => 'closed')") == "closed"
    assert any("Content Security Policy" in json.dumps(event) for event in tab.events)


def test_the_table_shows_the_records(shown):
    tab, runs = shown
    rows = tab.ask("[...document.querySelectorAll('#results tbody tr')].map((row) => [...row.cells].map("
                   "(cell) => cell.textContent))")
    for row in rows:
        values = auc(runs, row[0], -1)
        assert row[4] == f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}"
    column = "[...document.querySelectorAll('#results tbody tr')].map((row) => Number(row.cells[4].dataset.value))"
    for order in (True, False):
        tab.ask("document.querySelectorAll('#results thead button')[4].click()")
        assert tab.ask(column) == sorted(tab.ask(column), reverse=order)


def test_the_pointer_shows_the_records(shown):
    tab, runs = shown
    for share, at in ((0, 0), (10 / 19, 10), (1, 19)):
        head, values = tab.point_at(share)
        assert head == f"round {at + 1}"
        for method in ("CDMA", "SGDA-x"):
            own = auc(runs, method, at)
            assert float(values[method][0]) == pytest.approx(statistics.mean(own), abs=6e-5)
            assert float(values[method][1].strip("± ")) == pytest.approx(statistics.stdev(own), abs=6e-5)


def test_axis_measure_band_scale_and_smoothing_change_the_curves(shown):
    tab, runs = shown
    before = seen = tab.curves()
    for name, value in (("axis", "floats"), ("axis", "bytes"), ("axis", "time"), ("axis", "rounds"),
                        ("measure", "train.auc"), ("smooth", "4")):
        tab.choose(name, value)
        now = tab.curves()
        assert now != seen and len(now) == 2
        seen = now
    _, values = tab.point_at(1)
    last = [statistics.mean(auc(runs, "CDMA", at, "train")) for at in (-4, -3, -2, -1)]
    assert float(values["CDMA"][0]) == pytest.approx(statistics.mean(last), abs=6e-5)
    tab.ask("document.getElementById('logy').click()")
    assert tab.curves() != seen
    tab.ask("document.getElementById('logy').click()")
    tab.choose("band", "seeds")
    assert tab.ask("document.querySelectorAll('#curves .thin').length") == 6
    for name, value in (("band", "deviation"), ("smooth", "1"), ("measure", "test.auc")):
        tab.choose(name, value)
    assert tab.curves() == before


def test_a_rectangle_looks_closer_and_a_double_click_shows_all_again(shown):
    tab, runs = shown
    before, (upright, across) = tab.curves(), tab.ticks()
    tab.drag((0.5, 0.4), (0.9, 0.42))  # flat: from round 10.5 to 18.1, upright what is there
    closer, (own, rounds) = tab.curves(), tab.ticks()
    assert closer != before and 10.5 <= min(rounds) < max(rounds) <= 18.1
    assert max(own) - min(own) < (max(upright) - min(upright)) / 2
    head, values = tab.point_at(0)
    assert head in {"round 10", "round 11"}
    at = int(head.split()[1]) - 1
    assert float(values["CDMA"][0]) == pytest.approx(statistics.mean(auc(runs, "CDMA", at)), abs=6e-5)
    tab.choose("band", "none")
    assert tab.ticks()[1] == rounds  # it stays where it is
    tab.choose("band", "deviation")
    assert tab.ask("document.getElementById('whole').hidden") is False
    tab.ask("document.querySelector('#curves .chart svg').dispatchEvent(new MouseEvent('dblclick'))")
    assert tab.curves() == before and tab.ask("document.getElementById('whole').hidden") is True

    tab.drag((0.5, 0.5), (0.502, 0.503))  # a click
    assert tab.curves() == before
    tab.drag((0.5, 0.1), (0.502, 0.5))
    assert tab.ticks()[1] == across and min(tab.ticks()[0]) > min(upright)
    tab.drag((0.2, 0.2), (0.6, 0.6))
    assert tab.ticks()[1] != across
    tab.ask("document.getElementById('whole').click()")
    assert tab.curves() == before


def test_against_floats_seeds_are_interpolated(shown):
    tab, runs = shown
    tab.choose("axis", "floats")
    head, values = tab.point_at(0.5)
    tab.choose("axis", "rounds")
    x = int(head.removeprefix("floats received ").replace(",", ""))
    for method in ("CDMA", "SGDA-x"):
        own = []
        for seed in range(3):
            lines = runs[method, seed]
            after = next(at for at, line in enumerate(lines) if line["total"]["floats_up"] > x)
            (x0, y0), (x1, y1) = ((line["total"]["floats_up"], line["measures"]["test"]["auc"])
                                  for line in lines[after - 1 : after + 1])
            own.append(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
        assert float(values[method][0]) == pytest.approx(statistics.mean(own), abs=6e-3)  # a grid between evaluations


def test_words_about_clients_and_scores_equal_the_files(shown):
    tab, _ = shown
    final = json.loads((tab.folder / "in" / "CDMA" / "seed-0" / "final.json").read_text())
    values = final["clients"]["accuracy"]
    row = tab.ask("[...document.querySelectorAll('#fairness tbody tr')[0].cells].map((cell) => cell.textContent)")
    tenth = statistics.mean(sorted(values)[: math.ceil(len(values) / 10)])
    assert row == ["CDMA", "0", "40", f"{min(values):.4f}", f"client {values.index(min(values))}", f"{tenth:.4f}",
                   f"{statistics.mean(values):.4f}"]
    assert f"CDMA, seed 0: AUC {final['scores']['test']['auc']:.4f}" in tab.ask(
        "document.querySelector('#scores').textContent")


def test_the_legend_hides_a_series(shown):
    tab, _ = shown
    tab.ask("document.querySelector('#curves .legend button').click()")
    assert len(tab.curves()) == 1 and list(tab.point_at(1)[1]) == ["SGDA-x"]
    tab.ask("document.querySelector('#curves .legend button').click()")
    assert len(tab.curves()) == 2


def contrast(one, other):
    """Of two colours rgb(...), as WCAG defines it."""
    def light(colour):
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


COLOURS = """(() => { const of = (selector, name) => getComputedStyle(document.querySelector(selector))[name];
return {paper: of('body', 'backgroundColor'), words: [of('body', 'color'), of('.note', 'color'), of('nav a', 'color'),
of('.good', 'color'), of('.bad', 'color'), of('.middle', 'color'), of('#curves svg text', 'fill')],
lines: [...document.querySelectorAll('#curves .line')].map((line) => getComputedStyle(line).stroke)}; })()"""


@pytest.mark.parametrize("how", ["light", "dark", "switched"])
def test_every_theme_can_be_read(shown, how):
    tab, _ = shown
    tab.call("Emulation.setEmulatedMedia", features=[
        {"name": "prefers-color-scheme", "value": "light" if how == "switched" else how}])
    presses = 2 if how == "switched" else 0  # automatic, light, dark
    for _ in range(presses):
        tab.ask("document.getElementById('theme').click()")
    found = tab.ask(COLOURS)
    for _ in range(3 - presses if presses else 0):
        tab.ask("document.getElementById('theme').click()")
    dark = sum(map(int, re.findall(r"\d+", found["paper"])[:3])) < 200
    assert dark == (how != "light")
    assert [colour for colour in found["words"] if contrast(colour, found["paper"]) < 4.5] == []
    assert [colour for colour in found["lines"] if contrast(colour, found["paper"]) < 3] == []


def test_paper_is_light_and_without_controls(shown):
    tab, _ = shown
    tab.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "light"}])
    assert tab.ask("getComputedStyle(document.querySelector('.controls')).display") == "none"
    tab.call("Emulation.setEmulatedMedia", media="", features=[])
    assert base64.b64decode(tab.call("Page.printToPDF")["data"]).startswith(b"%PDF")


def test_of_many_methods_no_two_look_alike_and_a_dead_seed_is_not_averaged(shown, tmp_path, monkeypatch):
    tab, _ = shown
    monkeypatch.setattr(plots, "available", lambda: False)
    methods = [f"M{at:02}{'x' * at}" for at in range(13)]
    write_study(tmp_path / "in", methods=methods, rounds=6)
    write_dead(tmp_path / "in" / methods[4] / "seed-2")
    tab.open(page.write([tmp_path / "in"], tmp_path / "report.html"))
    looks = tab.ask("[...document.querySelectorAll('#curves .legend line')].map((line) => "
                    "getComputedStyle(line).stroke + line.getAttribute('stroke-dasharray'))")
    assert len(looks) == len(set(looks)) == 13
    assert tab.ask("[...document.querySelectorAll('#curves g[data-series]')].map((group) => "
                   "group.querySelectorAll('.thin').length)") == [3 if at == 4 else 0 for at in range(13)]
    assert len(tab.curves()) == 12
    assert tab.ask("document.querySelectorAll('#curves .mark').length") == 1
    assert "every seed where one died" in tab.ask("document.getElementById('band').textContent")
    tab.choose("band", "range")
    assert len(tab.curves()) == 13


def test_where_methods_send_unlike_amounts_the_axis_is_logarithmic(shown, tmp_path, monkeypatch):
    tab, _ = shown
    monkeypatch.setattr(plots, "available", lambda: False)
    lines = {}
    for name, rounds in (("long", 400), ("short", 20)):
        lines[name] = write_run(tmp_path / "in" / name, name, rounds=rounds, every=rounds // 20)
    tab.open(page.write([tmp_path / "in"], tmp_path / "report.html"))
    assert tab.ask("document.getElementById('logx').checked") is True
    head, values = tab.point_at(math.log(2) / math.log(400))  # from 1 to 400 rounds
    assert head == "round 2"
    assert float(values["short"][0]) == pytest.approx(lines["short"][1]["measures"]["test"]["auc"], abs=6e-5)
    tab.choose("axis", "floats")
    assert tab.ask("document.getElementById('logx').checked") is True and max(tab.ticks()[1]) > 50 * min(tab.ticks()[1])
    tab.ask("document.getElementById('logx').click()")
    steps = [after - before for before, after in pairwise(tab.ticks()[1])]
    assert len(steps) > 2 and steps == pytest.approx(steps[:1] * len(steps))
