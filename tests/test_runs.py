"""Runs as a user sees them: settings, the run folder, kill -9 and resume, damaged checkpoints, Ctrl-C, chunks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import safetensors.torch
import torch

from fedsaddle.assemble import job_from_settings
from fedsaddle.config import read, settle, tables_of
from fedsaddle.contracts import SettingError
from fedsaddle.engine.training import TIMES, Diverged
from fedsaddle.report import folder
from fedsaddle.report.folder import RunFolder
from fedsaddle.runs import carry_out

SETTINGS = """
[run]
rounds = {rounds}
seed = 3
evaluate_every = 5
checkpoint_every = 4
[algorithm]
name = "codasca"
asked = 6
steps = 3
stage_rounds = 7
output = "random"
proximal = 0.01
[problem]
name = "auc"
[model]
name = "mlp"
hidden = [8]
[data]
name = "digits"
clients = 30
positive = 3
[participation]
select = "uniform"
respond = [{{name = "drop-outs", rate = 0.6}}, "first-responders"]
"""


@pytest.fixture
def file(tmp_path):
    def write(rounds=40):
        path = tmp_path / "run.toml"
        path.write_text(SETTINGS.format(rounds=rounds))
        return path

    return write


def test_the_model_has_first_weights_of_its_own_seed(file):
    def first(*changes):
        job = job_from_settings(settle(read(file()), changes), "")
        return job.progress.server.z.x, job.federation.seed

    (same, seed), (again, other) = first("run.seed=1", "run.model_seed=7"), first("run.seed=2", "run.model_seed=7")
    assert torch.equal(same, again) and (seed, other) == (1, 2)
    assert torch.equal(first("run.seed=7")[0], same)
    assert not torch.equal(first("run.seed=1")[0], same)


def fedsaddle(*arguments, cwd, **more):
    return subprocess.Popen([sys.executable, "-m", "fedsaddle", *map(str, arguments)], cwd=cwd, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)


def finish(process):
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def timeless(folder):
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def wait_for_records(folder, count):
    for _ in range(2400):
        path = folder / "records.jsonl"
        if path.exists() and path.read_text().count("\n") >= count:
            return
        time.sleep(0.025)
    raise AssertionError("the run wrote no records")


def run_in_process(path, folder, *assignments):
    settings = settle(read(path), assignments)
    target = RunFolder(folder)
    job = job_from_settings(settings, "", target.checkpoints if folder.exists() else None)
    if not folder.exists():
        target.create(tables_of(settings))
    return job, carry_out(job, settings.run, target)


def test_kill_and_resume_equals_an_uninterrupted_run(file, tmp_path):
    path = file(rounds=60)
    run_in_process(path, tmp_path / "whole")
    killed = fedsaddle("run", path, "--out", tmp_path / "killed", cwd=tmp_path)
    wait_for_records(tmp_path / "killed", 15)
    killed.send_signal(signal.SIGKILL)
    finish(killed)
    assert not (tmp_path / "killed" / "summary.json").exists()
    done = len((tmp_path / "killed" / "records.jsonl").read_text().splitlines())
    assert done < 60, "the run was over before it was killed"
    code, out, err = finish(fedsaddle("resume", tmp_path / "killed", cwd=tmp_path))
    assert code == 0, err
    assert "auc" in out
    assert (tmp_path / "killed" / "model.safetensors").read_bytes() == \
        (tmp_path / "whole" / "model.safetensors").read_bytes()
    records = timeless(tmp_path / "killed")
    assert records == timeless(tmp_path / "whole")
    assert [r["round"] for r in records] == list(range(1, 61))
    assert any(r["skipped"] for r in records), "the test should cover skipped rounds"


def test_a_complete_run_can_be_made_longer_and_equals_one_that_always_was(file, tmp_path):
    run_in_process(file(rounds=40), tmp_path / "whole")
    run_in_process(file(rounds=20), tmp_path / "run")
    code, _, err = finish(fedsaddle("resume", tmp_path / "run", "--rounds", 40, cwd=tmp_path))
    assert code == 0, err
    for name in ("model.safetensors", "run.toml"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 40
    before = (tmp_path / "run" / "records.jsonl").read_bytes()
    for rounds in (40, 10):
        code, _, err = finish(fedsaddle("resume", tmp_path / "run", "--rounds", rounds, cwd=tmp_path))
        assert code != 0 and "the run has 40 already" in err
    assert (tmp_path / "run" / "summary.json").exists() and (tmp_path / "run" / "records.jsonl").read_bytes() == before


def test_several_methods_can_be_made_longer(file, tmp_path):
    path = tmp_path / "two.toml"
    text = file(rounds=4).read_text()
    start, end = text.index("[algorithm]"), text.index("[problem]")
    path.write_text(text[:start] + text[end:] + """[algorithms.A]
name = "parallel-sgda"
[algorithms.B]
name = "cdma-nc"
[overrides.B.run]
rounds = 6
""")
    code, _, err = finish(fedsaddle("run", path, "--out", tmp_path / "two", cwd=tmp_path))
    assert code == 0, err
    code, _, err = finish(fedsaddle("resume", tmp_path / "two", "--rounds", 8, cwd=tmp_path))
    assert code == 0, err
    assert [len(timeless(tmp_path / "two" / label)) for label in "AB"] == [8, 6]  # B has rounds of its own


@pytest.mark.parametrize("damage", ["truncated tensors", "flipped bit", "truncated numbers", "missing file"])
def test_a_damaged_checkpoint_is_passed_over(file, tmp_path, damage):
    path = file(rounds=12)
    run_in_process(path, tmp_path / "whole")
    run_in_process(path, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    target = newest / ("state.json" if "numbers" in damage else "state.safetensors")
    content = target.read_bytes()
    if damage == "flipped bit":
        target.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    elif damage == "missing file":
        target.unlink()
    else:
        target.write_bytes(content[: len(content) // 2])
    job, _ = run_in_process(path, tmp_path / "run")
    assert len(job.complaints) == 1 and newest.name in job.complaints[0] and "damaged" in job.complaints[0]
    assert job.progress.round == 8
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == \
        (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_all_checkpoints_damaged_starts_again(file, tmp_path):
    path = file(rounds=12)
    run_in_process(path, tmp_path / "run")
    model = (tmp_path / "run" / "model.safetensors").read_bytes()
    for checkpoint in (tmp_path / "run" / "checkpoints").iterdir():
        (checkpoint / "state.json").write_text("{")
    job, _ = run_in_process(path, tmp_path / "run")
    assert len(job.complaints) == 3 and job.progress.round == 0
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == model


def test_only_the_newest_checkpoints_are_kept(file, tmp_path):
    run_in_process(file(rounds=20), tmp_path / "run", "run.keep_checkpoints=2")
    assert [p.name for p in sorted((tmp_path / "run" / "checkpoints").iterdir())] == ["00000016", "00000020"]


def test_the_same_run_twice_and_other_chunks(file, tmp_path):
    path = file(rounds=10)
    for name, *more in (["one"], ["two"], ["chunk 1", "run.chunk=1"], ["chunk 7", "run.chunk=7"],
                        ["whole", "run.chunk=30"], ["reference", "run.engine=reference"]):
        run_in_process(path, tmp_path / name, *more)
    for part in ("model.safetensors",):
        assert (tmp_path / "one" / part).read_bytes() == (tmp_path / "two" / part).read_bytes()
    assert timeless(tmp_path / "one") == timeless(tmp_path / "two")
    one = safetensors.torch.load_file(tmp_path / "one" / "model.safetensors")
    for name in ("chunk 1", "chunk 7", "whole", "reference"):
        other = safetensors.torch.load_file(tmp_path / name / "model.safetensors")
        torch.testing.assert_close(other["x"], one["x"], rtol=1e-4, atol=1e-5)


def test_ctrl_c_ends_with_a_checkpoint(file, tmp_path):
    path = file(rounds=2000)
    process = fedsaddle("run", path, "--out", tmp_path / "run", cwd=tmp_path)
    wait_for_records(tmp_path / "run", 3)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130, err
    assert "fedsaddle resume" in err
    rounds = len(timeless(tmp_path / "run"))
    assert rounds < 2000
    assert (tmp_path / "run" / "checkpoints" / f"{rounds:08d}").exists()
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="locks are those of POSIX")
def test_a_folder_has_one_process_at_a_time(file, tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "PATIENCE", 0.1)
    path, target = file(rounds=6), RunFolder(tmp_path / "run")
    settings = settle(read(path))
    target.create(tables_of(settings))
    other = (f"import fcntl, os; fcntl.flock(os.open({str(target.path)!r}, os.O_RDONLY), fcntl.LOCK_EX); "
             "print('here', flush=True); input()")
    process = subprocess.Popen([sys.executable, "-c", other], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "here\n"
    with pytest.raises(SettingError, match="another process is working in it"):
        run_in_process(path, target.path)
    assert not (target.path / "records.jsonl").exists()
    process.kill()  # however it ends
    process.communicate()
    run_in_process(path, target.path)
    run_in_process(path, tmp_path / "another")
    assert timeless(target.path) == timeless(tmp_path / "another")


def test_several_methods_side_by_side(file, tmp_path):
    text = file(rounds=6).read_text()
    head, _, tail = text.partition("[algorithm]")
    body = '[algorithms.one]\nname = "cdma-one"\nasked = 4\nsteps = 2\n[algorithms.two]\nname = "parallel-sgda"\n'
    path = tmp_path / "both.toml"
    path.write_text(head + body + "[problem]" + tail.partition("[problem]")[2])
    code, out, err = finish(fedsaddle("run", path, "--out", tmp_path / "both", cwd=tmp_path))
    assert code == 0, err
    assert "one" in out and "two" in out and "equal floats" in out
    for label in ("one", "two"):
        assert (tmp_path / "both" / label / "model.safetensors").exists()
    (tmp_path / "both" / "two" / "summary.json").unlink()
    before = (tmp_path / "both" / "one" / "records.jsonl").stat().st_mtime_ns
    code, out, err = finish(fedsaddle("resume", tmp_path / "both", cwd=tmp_path))
    assert code == 0, err
    assert (tmp_path / "both" / "one" / "records.jsonl").stat().st_mtime_ns == before
    assert (tmp_path / "both" / "two" / "summary.json").exists()


def test_run_toml_spells_everything_out_and_reads_back(file, tmp_path):
    settings = settle(read(file()))
    again = settle(tables_of(settings))
    assert again == settings
    assert tables_of(settings)["run"]["batch_size"] == 10


def test_a_diverging_run_keeps_its_records(file, tmp_path):
    settings = settle(read(file(rounds=400)), ["algorithm.eta=1e30", "run.evaluate_every=1", "problem.score=linear",
                                               "algorithm.stage_rounds=1000", "algorithm.output=last"])
    folder = RunFolder(tmp_path / "run")
    folder.create(tables_of(settings))
    with pytest.raises(Diverged, match="lower the step sizes"):
        carry_out(job_from_settings(settings, ""), settings.run, folder)
    last = folder.records()[-1]
    assert last["diverged"] and last["alarms"] and not folder.complete


def test_an_existing_folder_is_never_touched(file, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(SettingError, match="not empty"):
        RunFolder(folder).create({})
    assert os.listdir(folder) == ["thesis.tex"]


def test_stop_after_floats(file, tmp_path):
    _, result = run_in_process(file(rounds=300), tmp_path / "run", "run.stop_after_floats=50000")
    totals = [r["total"]["floats_up"] for r in result.records]
    assert totals[-1] >= 50000 > totals[-2]
    assert result.complete and "measures" in result.records[-1]
