"""What a run leaves behind for its report: who was asked, the last look, where it ran, why it ended early."""

from __future__ import annotations

import dataclasses
import io
import json
import socket
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from sklearn.metrics import auc as area
from sklearn.metrics import roc_auc_score, roc_curve
from torch import nn

from fedsaddle import train
from fedsaddle.algorithms import make
from fedsaddle.assemble import assemble, job_from_settings
from fedsaddle.config import Run, settle, tables_of
from fedsaddle.contracts import Point, SettingError
from fedsaddle.engine.looks import calibration, grid, ranked, roc, thinned
from fedsaddle.engine.training import Diverged
from fedsaddle.participation import RESPONSES, Participation
from fedsaddle.problems import AUC, GAN, Robust
from fedsaddle.report.folder import RunFolder
from fedsaddle.report.png import png
from fedsaddle.runs import as_clients, carry_out
from fedsaddle.sites.admission import Admission

FLAKY = (RESPONSES["drop-outs"](rate=0.3), RESPONSES["latencies"](), RESPONSES["first-responders"](0.4, 0.7))


def settings_of(**run):
    return settle({
        "run": {"rounds": 6, "seed": 1, "evaluate_every": 3, **run}, "problem": "auc",
        "model": {"name": "mlp", "hidden": [8]}, "data": {"name": "digits", "clients": 30, "positive": 3},
        "algorithm": {"name": "cdma-one", "asked": 10, "steps": 2},
        "participation": {"respond": [{"name": "drop-outs", "rate": 0.3}, {"name": "latencies"},
                                      {"name": "first-responders", "low": 0.4, "high": 0.7}]},
    })


def started(path, settings):
    folder = RunFolder(path)
    folder.create(tables_of(settings))
    return folder


def done(path, settings):
    folder = started(path, settings)
    carry_out(job_from_settings(settings, ""), settings.run, folder)
    return folder


def small_clients(count=5, classes=2, seed=0):
    made = torch.Generator().manual_seed(seed)
    return [(torch.randn(6 + i, 3, generator=made), torch.arange(6 + i) % classes) for i in range(count)]


def net(outputs=1):
    torch.manual_seed(0)
    return nn.Linear(3, outputs)


def extra(folder, name):
    return json.loads((Path(folder) / name).read_text())


# Who was asked.


class Listener:
    """An algorithm that keeps whom it drew, and whose replies it was given, beside what it does."""

    def __init__(self):
        self.inner, self.heard = make("cdma-one", asked=12, steps=1), []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def round(self, server, federation):
        def listening(work, message, cohort, *rest, **more):
            got = type(federation).average(federation, work, message, cohort, *rest, **more)
            self.heard.append((cohort.ids.tolist(), got.ids.tolist()))
            return got

        federation.average = listening
        return self.inner.round(server, federation)


@pytest.mark.parametrize("participation", [(), FLAKY], ids=["everyone", "flaky"])
def test_a_simulation_records_whom_it_asked(participation):
    method = Listener()
    result = train(method, AUC(net()), small_clients(20), participation=participation, rounds=8, evaluate_every=8)
    asks = [ask for record in result.records for ask in record["asks"]]
    assert [(ask["asked_clients"], ask["clients"]) for ask in asks if ask["answered"]] == method.heard
    for ask in asks:
        late = set(ask["late_clients"])
        assert len(late) == ask["late"] and late <= set(ask["asked_clients"]) - set(ask["clients"])
        assert len(ask["clients"]) == ask["answered"] and len(ask["asked_clients"]) == ask["asked"] == 12
    assert any(ask["late"] for ask in asks) == bool(participation)


@pytest.mark.parametrize(("limit", "there"), [(9, False), (10, True), (0, False)])
def test_large_asks_are_counted_only(tmp_path, limit, there):
    records = done(tmp_path / "run", settings_of(record_clients=limit)).records()
    assert {"clients" in ask for record in records for ask in record["asks"]} == {there}


def test_the_gate_records_them_too():
    settings = settings_of()
    plain = carry_out(job_from_settings(settings, ""), settings.run).records
    gated = dataclasses.replace(settings, admission=dataclasses.replace(settings.admission, simulated=True))
    for mine, theirs in zip(carry_out(job_from_settings(gated, ""), settings.run).records, plain, strict=True):
        for ask, other in zip(mine["asks"], theirs["asks"], strict=True):
            assert {**ask, "refused": 0} == {**other, "refused": 0}


def test_whom_the_gate_refuses_is_asked_and_not_used():
    clients, run = as_clients(small_clients()), Run(rounds=1, batch_size=4)
    clients.inputs[13:21] = float("inf")  # the rows of client 2
    job = assemble(make("cdma-one", asked=5, steps=1), AUC(net(), p=0.5), clients, None, Participation(), run,
                   admission=Admission(simulated=True))
    ask = carry_out(job, run).records[0]["asks"][0]
    assert ask["asked_clients"] == [0, 1, 2, 3, 4] and ask["clients"] == [0, 1, 3, 4] and ask["late_clients"] == []
    assert [one["node"] for one in ask["refused"]] == ["client 2"]


# The last look.


def test_the_curves_of_a_run_are_those_of_its_model(tmp_path):
    settings = settings_of(evaluate_on=["test", "train"])
    folder, job = done(tmp_path / "run", settings), job_from_settings(settings, "")
    final, saved = extra(folder.path, "final.json"), safetensors.torch.load_file(folder.path / "model.safetensors")
    assert set(final) == {"scores"} and set(final["scores"]) == {"test", "train"}
    assert not (folder.path / "images.png").exists()
    rows = job.federation.engine.clients.rows
    scores = job.problem._score(saved["x"], rows.inputs).detach().double().numpy()
    hits, told = (rows.targets > 0).numpy(), final["scores"]["train"]
    assert told["auc"] == pytest.approx(roc_auc_score(hits, scores), abs=1e-12)
    assert told["auc"] == folder.summary()["measures"]["train"]["auc"]
    fpr, tpr, _ = roc_curve(hits, scores)
    assert len(told["fpr"]) <= 200 and apart(np.stack([fpr, tpr], 1), told) < 1e-3 + 1e-9
    bins = told["calibration"]
    assert sum(bins["count"]) == len(scores) and len(bins["score"]) == 10
    assert max(bins["count"]) - min(bins["count"]) <= 1
    assert np.average(bins["share"], weights=bins["count"]) == pytest.approx(hits.mean())
    assert np.average(bins["score"], weights=bins["count"]) == pytest.approx(scores.mean())
    best = np.argsort(-scores, kind="stable")[: bins["count"][-1]]
    assert bins["share"][-1] == pytest.approx(hits[best].mean())


def apart(corners, told):
    """How far a corner lies at most from the polyline, by brute force over its segments."""
    line = np.stack([told["fpr"], told["tpr"]], 1)
    start, along = line[:-1][None], np.diff(line, axis=0)[None]
    at = ((corners[:, None] - start) * along).sum(-1) / (along**2).sum(-1)
    nearest = start + np.clip(at, 0, 1)[..., None] * along
    return np.linalg.norm(corners[:, None] - nearest, axis=-1).min(1).max()


@pytest.mark.parametrize(("rows", "share", "allowed"), [
    (100, 0.3, 1e-12), (20_000, 0.5, 1e-3), (20_000, 0.02, 2e-3), (5_000, 0.2, 2e-3),
])
def test_a_thin_roc_curve_is_the_curve(rows, share, allowed):
    rng = np.random.default_rng(0)
    hits = rng.random(rows) < share
    scores = rng.normal(size=rows) + hits
    fpr, tpr, _ = roc_curve(hits, scores)
    told = dict(zip(("fpr", "tpr"), roc(scores, hits), strict=True))
    assert len(told["fpr"]) <= 200
    assert (told["fpr"][0], told["tpr"][0], told["fpr"][-1], told["tpr"][-1]) == (0, 0, 1, 1)
    assert apart(np.stack([fpr, tpr], 1), told) <= allowed + 1e-12
    assert {pair for pair in zip(told["fpr"], told["tpr"], strict=True)} <= set(zip(fpr, tpr, strict=True))
    assert area(told["fpr"], told["tpr"]) == pytest.approx(roc_auc_score(hits, scores), abs=1e-3)


def test_few_points_go_where_the_curve_bends():
    bent = np.stack([np.linspace(0, 1, 501), np.minimum(1, 4 * np.linspace(0, 1, 501))], 1)
    assert thinned(bent) == [0, 125, 500]


def test_equal_scores_are_never_torn_apart():
    scores, hits = np.array([0.2] * 50 + [0.8] * 50), np.array([True] * 10 + [False] * 40 + [True] * 50)
    assert roc(scores, hits) == ([0.0, 0.0, 1.0], [0.0, 50 / 60, 1.0])
    assert calibration(scores, hits) == {"score": pytest.approx([0.2, 0.8]), "share": [0.2, 1.0], "count": [50, 50]}
    assert calibration(scores[:3], hits[:3])["count"] == [3]


def test_what_has_no_curve_says_so():
    one = ranked(torch.tensor([0.1, 0.9]), torch.tensor([True, True]))
    assert one["fpr"] == [] and np.isnan(one["auc"]) and one["calibration"]["share"] == [1.0, 1.0]
    broken = ranked(torch.tensor([0.1, float("nan")]), torch.tensor([True, False]))
    assert broken["fpr"] == [] and np.isnan(broken["auc"]) and broken["calibration"]["count"] == []


def test_every_client_is_shown_where_it_is_asked_for(tmp_path):
    clients = small_clients(5, 2)
    result = train("cdma-one", Robust(net(2), (3,)), clients, rounds=2, out=tmp_path / "run", per_client=True)
    final = extra(tmp_path / "run", "final.json")
    assert final["rows"] == [6, 7, 8, 9, 10] and set(final) == {"clients", "rows"}
    weight, bias = result.point.x[:6].reshape(2, 3), result.point.x[6:]
    right = [((x @ weight.T + bias).argmax(1) == y).double().mean().item() for x, y in clients]
    assert final["clients"]["accuracy"] == pytest.approx(right)
    assert np.mean(final["clients"]["loss"]) == pytest.approx(result.measures["clients"]["loss_mean"])
    train("cdma-one", Robust(net(2), (3,)), clients, rounds=1, out=tmp_path / "plain")
    assert extra(tmp_path / "plain", "final.json") == {}


def test_clients_are_measured_on_rows_that_were_held_out(tmp_path):
    clients, held = small_clients(5, 2), small_clients(5, 2, seed=1)
    runs = {name: train("cdma-one", Robust(net(2), (3,)), clients, held_out=rows, rounds=2, out=tmp_path / name,
                        per_client=True) for name, rows in (("plain", None), ("held", held))}
    assert torch.equal(runs["plain"].point.x, runs["held"].point.x), "nothing else changes"
    weight, bias = runs["held"].point.x[:6].reshape(2, 3), runs["held"].point.x[6:]
    right = [((x @ weight.T + bias).argmax(1) == y).double().mean().item() for x, y in held]
    assert extra(tmp_path / "held", "final.json")["clients"]["accuracy"] == pytest.approx(right)
    assert runs["held"].measures["clients"]["accuracy_worst"] == pytest.approx(min(right))
    assert runs["plain"].measures["clients"] != runs["held"].measures["clients"]
    for wrong in ({"held_out": held[:4], "per_client": True}, {"held_out": held}):
        with pytest.raises(SettingError, match=r"held_out: has rows of . clients, of 5.*per_client"):
            train("cdma-one", Robust(net(2), (3,)), clients, rounds=1, **wrong)


# Images.


def decoded(content):
    return np.asarray(Image.open(io.BytesIO(content)))


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (3, 4, 1), (6, 5, 3), (64, 300, 3)])
def test_a_png_reads_back_as_it_was(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    found = Image.open(io.BytesIO(png(pixels)))
    found.verify()  # checksums
    assert found.mode == ("RGB" if shape[2:] == (3,) else "L")
    assert np.array_equal(decoded(png(pixels)), pixels.squeeze(2) if shape[2:] == (1,) else pixels)


@pytest.mark.parametrize("bad", [np.zeros((2, 2, 4), np.uint8), np.zeros((2, 2)), np.zeros(4, np.uint8),
                                 np.zeros((0, 3), np.uint8)])
def test_what_is_no_image_is_refused(bad):
    with pytest.raises(ValueError, match="an image is"):
        png(bad)


@pytest.mark.parametrize(("ranges", "black", "white"), [({}, -1.0, 1.0), ({"samples": (0.0, 1.0)}, 0.0, 1.0)])
def test_images_stand_in_order_from_black_to_white(ranges, black, white):
    shades = torch.linspace(black, white, 64)
    made = shades[:, None, None, None].expand(64, 3, 2, 5).clone()
    made[:, 1:] = black - 5  # beyond black
    made[9, 0, 1, 4] = float("nan")
    pixels = decoded(png(grid(SimpleNamespace(samples=lambda z, count: made[:count], ranges=ranges), None)))
    assert pixels.shape == (16, 40, 3) and pixels[..., 1:].max() == 0
    assert pixels[3, 9, 0] == 0
    first = pixels[::2, ::5, 0].reshape(-1)
    assert np.array_equal(first, np.round(255 * np.linspace(0, 1, 64)).astype(np.uint8))


def tiny_gan(*, broken=False):
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Unflatten(1, (1, 4, 4)))
    problem = GAN(generator, nn.Sequential(nn.Flatten(), nn.Linear(16, 1)), noise=2)
    if broken:
        def samples(z, count, seed=0):
            if count == 64:
                raise MemoryError("not today")
            return GAN.samples(problem, z, count, seed)

        object.__setattr__(problem, "samples", samples)
    return problem


def images():
    return [(torch.rand(5, 1, 4, 4) * 2 - 1, torch.zeros(5, dtype=torch.int64)) for _ in range(3)]


def test_a_generator_leaves_its_images(tmp_path):
    result = train("cdma-one", tiny_gan(), images(), rounds=2, out=tmp_path / "run")
    pixels = decoded((tmp_path / "run" / "images.png").read_bytes())
    made = result.problem.samples(result.point, 64)[:, 0]
    expected = torch.cat([torch.cat(list(line), 1) for line in made.split(8)])
    assert pixels.shape == (32, 32)
    assert np.abs(pixels - 127.5 * (expected.numpy() + 1)).max() <= 0.5 + 1e-4


def test_points_are_no_images():
    assert grid(SimpleNamespace(samples=lambda z, count: torch.zeros(count, 2)), None) is None


def test_a_look_that_fails_is_seen_and_loses_nothing(tmp_path):
    with pytest.warns(RuntimeWarning, match="complete, but the last look.* failed .MemoryError: not today"):
        result = train("cdma-one", tiny_gan(broken=True), images(), rounds=2, out=tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert result.complete and folder.complete and len(folder.records()) == 2
    saved = safetensors.torch.load_file(tmp_path / "run" / "model.safetensors")
    assert torch.equal(saved["x"], result.point.x)
    assert extra(folder.path, "final.json") == {"failed": "MemoryError: not today"}
    assert not (folder.path / "images.png").exists()


# Where it ran, and why it ended.


def test_the_environment_names_no_machine(tmp_path):
    before = datetime.now(UTC).replace(microsecond=0)
    folder = done(tmp_path / "run", settings_of())
    found = extra(folder.path, "environment.json")
    assert set(found) == {"python", "torch", "numpy", "fedsaddle", "platform", "device", "cores", "date"}
    assert found["torch"] == torch.__version__.split("+")[0] or found["torch"] == torch.__version__
    assert found["device"] and found["cores"] >= 1 and found["fedsaddle"]
    assert before <= datetime.fromisoformat(found["date"]) <= datetime.now(UTC)
    text = (folder.path / "environment.json").read_text()
    assert socket.gethostname() not in text and str(Path.home()) not in text


def test_a_diverged_run_says_why_until_it_goes_on(tmp_path):
    class Wild(Listener):
        def solution(self, server):
            z = self.inner.solution(server)
            return Point(z.x / (0.0 if server.round == 3 else 1.0), z.y)

    with pytest.raises(Diverged):
        train(Wild(), AUC(net()), small_clients(20), rounds=9, evaluate_every=1, out=tmp_path / "run")
    ended = extra(tmp_path / "run", "ended.json")
    assert (ended["how"], ended["round"]) == ("diverged", 3) and "step sizes" in ended["why"]
    assert len(RunFolder(tmp_path / "run").records()) == 3
    (tmp_path / "run" / "environment.json").unlink()
    calm = Listener()
    assert train(calm, AUC(net()), small_clients(20), rounds=9, out=tmp_path / "run", resume=True).complete
    assert not (tmp_path / "run" / "ended.json").exists()
    assert (tmp_path / "run" / "environment.json").exists()


def test_the_number_of_listed_clients_is_checked():
    with pytest.raises(SettingError, match=r"run.record_clients = -1: must be int and at least 0"):
        settings_of(record_clients=-1)
