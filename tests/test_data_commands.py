"""`fedsaddle data`: list, fetch, check and show, as a user meets them."""

import io

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from fedsaddle import cli_data, recipes
from fedsaddle.cli import app
from fedsaddle.contracts import SettingError
from fedsaddle.data.sources import SOURCES
from fedsaddle.report.dealing import Deal, heat, picture, summary

COUNTS = torch.tensor([[60, 0, 0, 0], [5, 5, 25, 0], [0, 61, 20, 19]])


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSADDLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDSADDLE_DATA", raising=False)


def command(*words):
    result = CliRunner().invoke(app, ["data", *map(str, words)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def write_adult(folder):
    row = "39, Private, 7, Bachelors, 13, Divorced, Sales, Wife, White, {sex}, 0, 0, {hours}, Cuba, {pay}\n"
    rows = [row.format(sex=("Male", "Female")[i % 2], hours=i, pay="<=50K" if i % 5 else ">50K") for i in range(20)]
    (folder / "adult.data").write_text("".join(rows))
    (folder / "adult.test").write_text("".join(rows[:4]))


def test_list_says_where_every_data_set_is(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSADDLE_DATA", str(tmp_path))
    monkeypatch.setattr(cli_data, "out", Console(width=400))  # a long path stays on one line
    write_adult(tmp_path)
    text = command("list")
    for name in SOURCES:
        assert name in text
    assert "comes with the package" in text
    assert "to be fetched" in text
    assert "to be put there by hand" in text
    assert str(tmp_path) in text


def test_check_reads_the_files_and_counts(tmp_path):
    write_adult(tmp_path)
    text = command("check", "adult", "--folder", tmp_path)
    assert "20 rows for training, 4 for the test, of 14 numbers, 2 classes" in text
    assert "adult.data: no digest is recorded" in text
    assert "attribute gender: 2 values" in text
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  adult.data\n")
    with pytest.raises(SettingError, match="does not have the digest"):
        command("check", "adult", "--folder", tmp_path)
    assert "1,347 rows" in command("check", "digits")
    assert "nothing to check" in command("check", "quadratic")


@pytest.mark.parametrize(("words", "text"), [
    (("check", "cifar100"), "'cifar100': is not at hand; put cifar-100-binary.tar.gz"),
    (("fetch", "celeba"), "'celeba': cannot be fetched by a program; put"),
    (("fetch", "digits"), "'digits': has no files to fetch"),
    (("check", "minst"), "'minst': is not known; did you mean 'mnist'"),
    (("show", "quadratic"), "'quadratic': makes its own clients"),
    (("show", "digits", "--set", "run.rounds=3"), "only the settings of data"),
    (("show", "digits", "--partition", "irichlet"), "did you mean 'dirichlet'"),
])
def test_what_cannot_be_done_is_said(words, text):
    with pytest.raises(SettingError) as raised:
        command(*words)
    assert text in str(raised.value)


def test_show_draws_the_deal(tmp_path):
    text = command("show", "digits", "--partition", "label-sorted", "--clients", 10, "--set", "data.positive=3")
    assert "10 clients, 1,347 rows: 134 to 135 a client" in text
    assert "digits, label-sorted, seed 0" in text
    write_adult(tmp_path)
    text = command("show", "adult", "--partition", "by-attribute", "--set", f"data.folder={tmp_path}", "--set",
                   "data.partition.attribute=gender")
    assert "0 Female" in text
    assert "1 Male" in text
    assert "positives 4 (20.00%), clients without: 0" in text


def test_show_takes_a_recipe():
    assert "100 clients, 1,347 rows" in command("show", "digits-auc")
    assert "7 clients" in command("show", "digits-auc", "--clients", 7)
    assert set(recipes.names()) >= {"cdma/auc-mnist", "cdma/auc-cifar10", "codasca/cifar10-ih", "cyclic-auc/cifar10"}


def lines(deal):
    console = Console(width=140, file=io.StringIO())
    console.print(heat(deal))
    return console.file.getvalue().splitlines()


def test_shades_are_shares_of_a_clients_rows():
    drawn = [line for line in lines(Deal("title", COUNTS, ())) if "│" in line]
    shades = [line.rsplit("│", 1)[1][1:17] for line in drawn]
    assert shades == ["████            ", "▒▒▒▒▒▒▒▒████    ", "    ████▒▒▒▒▒▒▒▒"]
    assert [line.split("│")[1].strip() for line in drawn] == ["60", "35", "100"]


def test_many_clients_and_classes_are_shown_in_groups():
    counts = torch.ones(1000, 500, dtype=torch.int64)
    drawn = [line for line in lines(Deal("title", counts, ())) if "│" in line]
    assert len(drawn) == 40
    assert drawn[0].split("│")[0].strip() == "0-24"
    assert drawn[0].split("│")[1].strip() == "12,500"
    assert drawn[0].rstrip().endswith("░" * 100)


def test_the_summary_counts():
    text = summary(Deal("title", COUNTS, (), torch.tensor([0, 5, 0])))
    assert text == ("3 clients, 195 rows: 35 to 100 a client, median 60; 1 to 3 of 4 classes a client; positives 5 "
                    "(2.56%), clients without: 2")


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_pictures_are_files(tmp_path, ending, start):
    pytest.importorskip("matplotlib")
    path = tmp_path / "deep" / f"deal.{ending}"
    picture(Deal("title", COUNTS, ("a", "b", "c", "d")), path)
    assert path.read_bytes().startswith(start)


def test_a_picture_shows_every_count(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.axes import Axes

    shown = []
    monkeypatch.setattr(Axes, "imshow", lambda self, values, real=Axes.imshow, **how: (
        shown.append(values), real(self, values, **how))[1])
    picture(Deal("title", COUNTS, ()), tmp_path / "deal.png")
    np.testing.assert_array_equal(shown[0], COUNTS.numpy())


def test_a_picture_needs_an_ending_that_is_known(tmp_path):
    with pytest.raises(SettingError, match=r"must end in \.png, \.svg or \.pdf"):
        picture(Deal("title", COUNTS, ()), tmp_path / "deal.jpg")


OWN = """
from dataclasses import dataclass
import torch
from fedsaddle.contracts import setting
from fedsaddle.data.sources import DataSet, split


@dataclass(frozen=True)
class Wards:
    rows: int = setting(40, "how many", at_least=4)

    def load(self, seed: int) -> DataSet:
        return split(torch.zeros(self.rows, 3), torch.arange(self.rows) % 2, 0.25, seed)
"""


def test_a_data_set_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "hospital_wards.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    assert "30 rows for training, 10 for the test, of 3 numbers" in command("check", "hospital_wards:Wards")
    text = command("show", "hospital_wards:Wards", "--clients", 5, "--partition", "iid", "--set", "data.rows=80")
    assert "5 clients, 60 rows: 12 to 12 a client" in text
