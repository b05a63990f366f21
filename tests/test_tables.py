"""A user's own file: reading, preparing, cutting, `fit` and `score`, and what is said about bad files."""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
import runpy
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from typer.testing import CliRunner

from fedsaddle import fitting
from fedsaddle.cli import app
from fedsaddle.config import read as read_settings
from fedsaddle.config import settle
from fedsaddle.contracts import SettingError
from fedsaddle.data import delimited, table
from fedsaddle.data.preparation import Preparation, counted, from_sums, learn, spread
from fedsaddle.data.table_source import TableFile, held_out

torch.set_num_threads(1)
ROOT = Path(__file__).parent.parent
REGIONS = ("north", "south", "east", "west")


@pytest.fixture
def write(tmp_path):
    def write(text, name="t.csv", encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(text.encode(encoding))
        return path

    return write


def numbers(column):
    return column.values.tolist()


def words(column):
    return [column.words[code] if code >= 0 else None for code in column.codes]


def fedsaddle(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def complaint(*arguments):
    result = fedsaddle(*arguments)
    assert isinstance(result.exception, SettingError), result.output
    return str(result.exception)


def fit(path, *more, label="died", client="hospital"):
    return ("fit", path, "--label", label, "--client", client, "--rounds", 1, *more)


# Reading.


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_and_quotes(write, separator):
    text = 'a,b,note\n1,x,"one, two; ""three"""\n2,y,"line\nbreak"\n'.replace(",", "\0")
    inside = '"one\0 two'
    text = text.replace(inside, '"one, two').replace("\0", separator)
    read = table.read(write(text))
    assert read.rows == 2 and list(read.columns) == ["a", "b", "note"]
    assert numbers(read.columns["a"]) == [1, 2]
    assert words(read.columns["b"]) == ["x", "y"]
    assert words(read.columns["note"]) == ['one, two; "three"', "line\nbreak"]


def test_numbers_missing_values_and_words(write):
    read = table.read(write("n,m,w,t,inf,id\n1, 2.5,a,TRUE,1,1_0\n,NA, b ,false,inf,2_0\n-3e2,?,?,true,-1,3_0\n"))
    np.testing.assert_array_equal(numbers(read.columns["n"]), [1, math.nan, -300])
    np.testing.assert_array_equal(numbers(read.columns["m"]), [2.5, math.nan, math.nan])
    assert words(read.columns["w"]) == ["a", "b", None]
    assert numbers(read.columns["t"]) == [1, 0, 1]
    np.testing.assert_array_equal(numbers(read.columns["inf"]), [1, math.nan, -1])
    assert words(read.columns["id"]) == ["1_0", "2_0", "3_0"]  # Python would read these as numbers


def test_decimal_commas_where_the_comma_does_not_separate(write):
    assert numbers(table.read(write("a;b\n1,5;x\n-0,25;y\n")).columns["a"]) == [1.5, -0.25]
    assert words(table.read(write('a,b\n"1,5",x\n')).columns["a"]) == ["1,5"]


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.TXT", "t.csv.gz"])
def test_endings_marks_blank_lines_and_line_ends(write, name):
    path = write("a\tb\r\n1\tx\r\n\r\n2\ty\r\n", name, "utf-8-sig")
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    read = table.read(path)
    assert list(read.columns) == ["a", "b"] and numbers(read.columns["a"]) == [1, 2]


def test_a_late_word_makes_the_whole_column_words_with_their_own_text(write, monkeypatch):
    monkeypatch.setattr(delimited, "CHUNK", 2)
    read = table.read(write("code,n\n007,1\n08,2\n9,3\nK1,4\n"))
    assert words(read.columns["code"]) == ["007", "08", "9", "K1"]
    assert numbers(read.columns["n"]) == [1, 2, 3, 4]


def test_chunks_do_not_show(write, monkeypatch):
    text = "a,b\n" + "".join(f"{i},{'xyz'[i % 3]}\n" for i in range(11))
    whole = table.read(write(text))
    monkeypatch.setattr(delimited, "CHUNK", 3)
    parts = table.read(write(text))
    assert numbers(whole.columns["a"]) == numbers(parts.columns["a"]) == list(range(11))
    assert words(whole.columns["b"]) == words(parts.columns["b"])


def test_asked_for_words_stay_words_and_unnamed_columns_are_left_out(write):
    read = table.read(write(",client,a\n0,01,5\n1,1,6\n"), words=["client"])
    assert words(read.columns["client"]) == ["01", "1"]
    assert list(read.columns) == ["client", "a"] and read.unnamed == 1


def test_npz(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, X=np.array([[1.0, 2], [3, np.inf], [5, 6]]), y=np.array([0, 1, 1]), client=np.array(["a", "b", "a"]))
    read = table.read(path, words=["y"])
    assert list(read.columns) == ["x0", "x1", "y", "client"]
    np.testing.assert_array_equal(numbers(read.columns["x1"]), [2, math.nan, 6])
    assert words(read.columns["y"]) == ["0", "1", "1"] and words(read.columns["client"]) == ["a", "b", "a"]
    np.savez(path, X=np.zeros((2, 2)), features=np.array(["age", "dose"]), y=np.array([0.0, 1.0]))
    assert list(table.read(path).columns) == ["age", "dose", "y"]


def test_npz_with_objects_is_not_unpickled(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, X=np.array([{"a": 1}], dtype=object), y=np.zeros(1))
    with pytest.raises(SettingError, match="not of objects"):
        table.read(path)


@pytest.mark.parametrize(("arrays", "said"), [
    ({"X": np.zeros((3, 2)), "y": np.zeros(2)}, "differ in length"),
    ({"X": np.zeros(3), "y": np.zeros(3)}, r"X has shape \(3,\)"),
    ({"X": np.zeros((3, 2)), "features": np.array(["a"])}, "1 names of columns"),
    ({"Z": np.zeros((3, 2)), "y": np.zeros(3)}, "name the matrix of features X"),
])
def test_npz_of_another_form(tmp_path, arrays, said):
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(SettingError, match=said):
        table.read(tmp_path / "t.npz")


def test_parquet_reads_as_the_same_csv_does(write, tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs the extra `parquet`")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"a": [1.5, None, 3.0], "n": [1, 2, None], "w": ["x", None, " y "], "t": [True, False, True],
               "c": pyarrow.array(["p", "q", "p"]).dictionary_encode()}
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    one = table.read(path, words=["n"])
    other = table.read(write("a,n,w,t,c\n1.5,1,x,true,p\n,2,,false,q\n3.0,, y ,true,p\n"), words=["n"])
    for name in columns:
        ours, theirs = one.columns[name], other.columns[name]
        assert type(ours) is type(theirs)
        if isinstance(ours, delimited.Numbers):
            np.testing.assert_array_equal(ours.values, theirs.values)
        else:
            assert words(ours) == words(theirs)
    assert [list(row) for row in table.originals(path)][:2] == [["a", "n", "w", "t", "c"],
                                                               ["1.5", "1", "x", "true", "p"]]


def test_parquet_with_lists_and_a_damaged_one(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs the extra `parquet`")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"a": [[1], [2, 3]]}), tmp_path / "t.parquet")
    with pytest.raises(SettingError, match="column 'a' holds list"):
        table.read(tmp_path / "t.parquet")
    (tmp_path / "u.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(SettingError, match="no valid Parquet"):
        table.read(tmp_path / "u.parquet")


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(SettingError, match=r"pip install 'fedsaddle\[parquet\]'"):
        table.read(tmp_path / "t.parquet")


# Preparing.


def mark(holds, share):
    return 2 * (holds - share)


def test_preparation_by_hand(write):
    lines = "n,w,same,name\n" + "1,a,7,u0\n3,a,7,u1\n,b,7,u2\n" + "".join(f"5,{'ab'[i % 2]},7,v{i}\n" for i in range(8))
    read = table.read(write(lines + "100,c,8,late\n"))
    learnt = learn(read.columns, np.arange(11), most=20)  # the last row is no training row
    assert learnt.features == ("n", "n missing", "w=a", "w=b")
    assert learnt.dropped == {"same": "always the same", "name": "no word is in 5 training rows, as in names or free "
                                                                 "text"}
    n = np.array([1, 3, *[5] * 8])
    a, none, gone = mark(1, 6 / 11), mark(0, 6 / 11), mark(0, 1 / 11)
    inputs = learnt.apply(read)
    np.testing.assert_allclose(inputs[0], [(1 - n.mean()) / n.std(), gone, a, mark(0, 5 / 11)], rtol=1e-5)
    np.testing.assert_allclose(inputs[2], [0, mark(1, 1 / 11), none, mark(1, 5 / 11)], rtol=1e-5)  # the mean
    np.testing.assert_allclose(inputs[11], [10, gone, none, mark(0, 5 / 11)], rtol=1e-5)  # 10 deviations at most
    np.testing.assert_allclose(inputs[:11].mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(np.delete(inputs[:11, 0], 2).std(), 1, rtol=1e-6)


def test_the_most_frequent_words_get_features_and_the_rest_share_one(write):
    counts = {"a": 9, "b": 8, "c": 7, "d": 6, "e": 1}
    read = table.read(write("w,n\n" + "".join(f"{word},{i}\n" for word, k in counts.items() for i in range(k))))
    learnt = learn(read.columns, np.arange(read.rows), most=3)
    assert learnt.features == ("n", "w=a", "w=b", "w=c", "w other")
    new = learnt.apply(table.read(write("n,w,more\n1,d,0\n1,zzz,0\n1,a,0\n1,,0\n")))[:, 1:]
    np.testing.assert_array_equal(new > 0, [[0, 0, 0, 1], [0, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_allclose(new[0, 3], mark(1, 7 / 31), rtol=1e-6)


def test_sums_of_clients_add_up_to_the_preparation_of_all(write):
    random = np.random.Generator(np.random.Philox(0))
    rows = [(f"{1e9 + v:.3f}" if v > -1 else "", "abcd"[i % 4] if i % 7 else "") for i, v in
            enumerate(random.normal(size=300))]
    read = table.read(write("n,w\n" + "".join(f"{n},{w}\n" for n, w in rows)))
    clients = np.array_split(random.permutation(300), 7)
    counts = [counted(read.columns, own) for own in clients]
    total = counts[0]
    for each in counts[1:]:
        total = total + each
    squares = [spread(read.columns, own, total.mean) for own in clients]
    summed = from_sums(total, {"n": sum(s["n"] for s in squares)}, most=20)
    pooled = learn(read.columns, np.arange(300), most=20)
    known = np.array([float(n) for n, _ in rows if n])
    assert summed.columns[1] == pooled.columns[1]
    assert summed.columns[0].mean == pytest.approx(known.mean(), rel=1e-12)
    assert summed.columns[0].deviation == pytest.approx(known.std(), rel=1e-6)  # a mean of 1e9 costs no digits


def test_preparation_comes_back_from_json_as_it_was(write):
    read = table.read(write("n,w\n" + "".join(f"{i / 7},{'äb'[i % 2]}\n" for i in range(20)) + ",\n"))
    learnt = learn(read.columns, np.arange(21), 20, "y", "1")
    again = Preparation.from_json(learnt.to_json(), "here")
    assert again == learnt
    np.testing.assert_array_equal(again.apply(read), learnt.apply(read))
    for text, said in (("{", "damaged"), ('{"format": 9}', "format 9"), ('{"format": 1}', "damaged")):
        with pytest.raises(SettingError, match=said):
            Preparation.from_json(text, "here")


def test_another_file_with_other_columns(write):
    learnt = learn(table.read(write("age,w\n" + "".join(f"{i},{'ab'[i % 2]}\n" for i in range(20)))).columns,
                   np.arange(20), 20)
    with pytest.raises(SettingError, match=r"no column 'age'; did you mean 'Age'\?"):
        learnt.apply(table.read(write("Age,w\n1,a\n")))
    with pytest.raises(SettingError, match="column 'age': holds 'old'"):
        learnt.apply(table.read(write("age,w\n7,a\nold,a\n")))
    np.testing.assert_array_equal(learnt.apply(table.read(write("w,age\n1,9.5\n"))), [[0, -1, -1]])  # a new word


# The split.


def test_held_out_rows_are_shares_of_every_client_and_class():
    random = np.random.Generator(np.random.Philox(3))
    sizes = [1, 1, 2, 5, 40, 200, 400]
    owner = np.repeat(np.arange(7), sizes)
    targets = (random.random(len(owner)) < 0.2).astype(np.int64)
    test = held_out(targets, torch.from_numpy(owner), 0.25, seed=0)
    assert not test[:2].any()  # a client with one row keeps it
    for client, size in enumerate(sizes):
        assert (~test[owner == client]).any()
        for label in (0, 1):
            rows = (owner == client) & (targets == label)
            assert size == 1 or abs(test[rows].sum() - 0.25 * rows.sum()) <= 1
    many = owner >= 2
    for label in (0, 1):
        rows = many & (targets == label)
        assert abs(test[rows].sum() - 0.25 * rows.sum()) <= 1
    assert (test == held_out(targets, torch.from_numpy(owner), 0.25, seed=0)).all()
    assert (test != held_out(targets, torch.from_numpy(owner), 0.25, seed=1)).any()


def test_one_positive_each_is_held_out_at_a_share_of_the_clients():
    owner = np.repeat(np.arange(100), 10)
    targets = (np.arange(1000) % 10 == 0).astype(np.int64)
    test = held_out(targets, torch.from_numpy(owner), 0.25, seed=0)
    assert test[targets == 1].sum() == 25 and test[targets == 0].sum() == 225


def source(path, **more):
    return TableFile(str(path), "y", client="c", **more)


def rows_of(labels, clients, **columns):
    names = ["y", "c", *columns]
    lines = [",".join(map(str, line)) for line in zip(labels, clients, *columns.values(), strict=True)]
    return "\n".join([",".join(names), *lines]) + "\n"


def test_clients_and_classes_of_the_data_set(write):
    labels, clients = ["no", "yes"] * 20, ["b"] * 30 + ["a"] * 9 + ["solo"]
    prepared = source(write(rows_of(labels, clients, n=range(40)))).prepared(0)
    data, attribute = prepared.data, prepared.data.attributes["client"]
    assert attribute.names == ("a", "b", "solo") and data.names == ("others", "yes")
    assert sorted([*attribute.train.tolist(), *attribute.test.tolist()]) == [0] * 9 + [1] * 30 + [2]
    assert 2 not in attribute.test.tolist()
    assert data.test.targets.tolist() == [row % 2 for row in prepared.test_rows]
    train = np.delete(np.arange(40), prepared.test_rows)
    np.testing.assert_allclose(data.test.inputs[:, 0], (prepared.test_rows - train.mean()) / train.std(), rtol=1e-5)


def test_a_split_column_decides(write):
    split = ["Train", "test", "train", "test", "train", "train"]
    prepared = source(write(rows_of([0, 0, 1, 1, 0, 1], "aabbcc", n=range(6), s=split)), split="s").prepared(0)
    assert prepared.test_rows.tolist() == [1, 3] and prepared.preparation.features == ("n",)


@pytest.mark.parametrize(("labels", "positive", "expected"), [
    (["0", "1.0"], None, [0, 1]), (["-1", "1"], None, [0, 1]), (["True", "False"], None, [1, 0]),
    (["Y", "n"], None, [1, 0]), (["benign", "malignant"], "malignant", [0, 1]), (["1", "2"], 2, [0, 1]),
    (["1", "2"], "1", [1, 0]), (["a", "b", "c"], "b", [0, 1, 0]),
])
def test_labels(write, labels, positive, expected):
    path = write(rows_of(labels * 12, ["u", "v"] * (6 * len(labels)), n=range(12 * len(labels))))
    prepared = source(path, positive_label=positive).prepared(0)
    assert prepared.data.test.targets.tolist() == [expected[row % len(labels)] for row in prepared.test_rows]


def test_clients_come_from_the_column_unless_a_partition_is_named(write):
    path = write(rows_of([0, 1] * 30, list("abcde") * 12, n=range(60)))
    tables = {"data": {"name": "table", "file": str(path), "label": "y", "client": "c"}, "model": "linear",
              "algorithm": "cdma-nc"}
    from fedsaddle.assemble import deal

    dealt = deal(settle(tables))
    assert dealt.clients.count == 5 and dealt.classes == 2 and json.loads(dealt.files["preparation.json"])
    assert deal(settle(tables, ["data.partition=iid", "data.clients=3"])).clients.count == 3


# From a file to a model, and to scores.


def own_file(path, rows, seed=0, split=False):
    """A table as users have them: 30 columns, 2 % positive, 40 unequal clients, missing values, a text column."""
    random = np.random.Generator(np.random.Philox(seed))
    weights = np.random.Generator(np.random.Philox(7)).normal(size=29)
    values, region = random.normal(size=(rows, 29)), random.integers(0, 4, rows)
    score = values @ weights + np.array([0, 2, 4, -2])[region] + random.logistic(size=rows)
    died = score > np.quantile(score, 0.98)
    client = random.choice(40, rows, p=np.arange(1, 41) / 820)
    client[died & (client % 3 == 0)] += 1  # every third client has no positives
    client[client == 40] = 39
    values[random.random(values.shape) < 0.02] = np.nan
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"v{i}" for i in range(29)), "region", "hospital", "died", *(["part"] if split else [])])
        for i in range(rows):
            cells = ["" if np.isnan(v) else f"{v:.4f}" for v in values[i]]
            part = [["train", "test"][i % 4 == 0]] if split else []
            writer.writerow([*cells, REGIONS[region[i]], f"h{client[i]:02d}", "ny"[int(died[i])], *part])
    return path


def lines_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_fit_and_score(tmp_path):
    path, run = own_file(tmp_path / "own.csv", 4000), tmp_path / "run"
    result = fedsaddle("fit", path, "--label", "died", "--client", "hospital", "--rounds", 15, "--out", run)
    assert result.exit_code == 0, result.output
    report = json.loads((run / "report.json").read_text())
    assert report["auc"] > 0.9 and f"{report['auc']:.4f}" in result.output
    assert report["clients"] <= 40 and 0 < report["measured"] < report["clients"]

    # What the report says, from the scores that were kept, by scikit-learn.
    kept = lines_of(run / "test_scores.csv")
    labels, scores = [int(r["label"]) for r in kept], [float(r["score"]) for r in kept]
    assert report["auc"] == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert report["average_precision"] == pytest.approx(average_precision_score(labels, scores), abs=1e-9)
    own = {}
    for r in kept:
        own.setdefault(r["client"], []).append((int(r["label"]), float(r["score"])))
    aucs = {c: roc_auc_score(*zip(*pairs, strict=True)) for c, pairs in own.items() if len({y for y, _ in pairs}) == 2}
    assert report["measured"] == len(aucs) and report["worst_auc"] == pytest.approx(min(aucs.values()), abs=1e-12)
    assert aucs[report["worst"]] == min(aucs.values())
    seen = json.loads((run / "summary.json").read_text())["measures"]["test"]["auc"]
    assert report["auc"] == pytest.approx(seen, abs=1e-4)  # single precision may swap neighbours

    # The same file scored: all its columns, and the same scores for the rows that were held out.
    assert fedsaddle("score", run, path, "--out", tmp_path / "scores.csv").exit_code == 0
    scored, original = lines_of(tmp_path / "scores.csv"), lines_of(path)
    assert [{k: v for k, v in r.items() if k != "score"} for r in scored] == original
    assert [scored[int(r["row"]) - 1]["score"] for r in kept] == [r["score"] for r in kept]
    assert [original[int(r["row"]) - 1]["hospital"] for r in kept] == [r["client"] for r in kept]


def test_scores_of_a_new_file_without_labels_and_with_a_split_column(tmp_path):
    path, run = own_file(tmp_path / "own.csv", 3000, split=True), tmp_path / "run"
    arguments = fit(path, "--split", "part", "--out", run, "--model", "linear", "--algorithm", "cdma-one")
    assert fedsaddle(*arguments, "--rounds", 8).exit_code == 0
    report = json.loads((run / "report.json").read_text())
    assert fedsaddle("score", run, path, "--out", tmp_path / "s.csv").exit_code == 0
    test = [r for r in lines_of(tmp_path / "s.csv") if r["part"] == "test"]
    value = roc_auc_score([r["died"] == "y" for r in test], [float(r["score"]) for r in test])
    assert report["auc"] == pytest.approx(value, abs=1e-12) and report["rows"] == len(test) == 750

    new = own_file(tmp_path / "new.csv", 300, seed=1)
    rows = lines_of(new)
    with new.open("w", newline="") as file:  # no label, no client, another order, one more column
        names = ["score", *reversed([n for n in rows[0] if n not in ("died", "hospital")])]
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**r, "score": "mine"} for r in rows)
    result = fedsaddle("score", run, new, "--out", tmp_path / "n.csv")
    assert result.exit_code == 0 and "AUC" not in result.output
    scored = lines_of(tmp_path / "n.csv")
    assert list(scored[0]) == [*names, "score_2"] and scored[0]["score"] == "mine"
    assert roc_auc_score([r["died"] == "y" for r in rows], [float(r["score_2"]) for r in scored]) > 0.8


def test_a_stopped_fit_is_resumed_on_the_same_file_only(tmp_path):
    path = own_file(tmp_path / "own.csv", 600)
    for name in ("whole", "stopped"):
        assert fedsaddle(*fit(path, "--out", tmp_path / name, "--set", "run.checkpoint_every=2", "--rounds", 6)
                         ).exit_code == 0
    model = (tmp_path / "whole" / "model.safetensors").read_bytes()
    for name in ("summary.json", "model.safetensors", "report.json", "test_scores.csv", "checkpoints/00000006"):
        gone = tmp_path / "stopped" / name
        [file.unlink() for file in gone.iterdir()] if gone.is_dir() else gone.unlink()
    assert "resume" in complaint("score", tmp_path / "stopped", path, "--out", tmp_path / "s.csv")
    resumed = fedsaddle("resume", tmp_path / "stopped")
    assert resumed.exit_code == 0 and "AUC over all clients" in resumed.output
    for name in ("report.json", "test_scores.csv"):
        assert (tmp_path / "stopped" / name).read_text() == (tmp_path / "whole" / name).read_text()
    assert (tmp_path / "stopped" / "model.safetensors").read_bytes() == model
    (tmp_path / "stopped" / "summary.json").unlink()
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n")
    assert "has changed since the run began" in complaint("resume", tmp_path / "stopped")


def test_a_fit_that_is_made_longer_is_as_one_that_always_was(tmp_path):
    path = own_file(tmp_path / "own.csv", 600)
    for name, rounds in (("long", 8), ("short", 4)):
        assert fedsaddle(*fit(path, "--out", tmp_path / name, "--rounds", rounds, "--set", "algorithm.stage_rounds=3")
                         ).exit_code == 0
    before = (tmp_path / "short" / "report.json").read_text()
    longer = fedsaddle("resume", tmp_path / "short", "--rounds", 8)
    assert longer.exit_code == 0 and "AUC over all clients" in longer.output
    for name in ("report.json", "test_scores.csv", "model.safetensors"):
        assert (tmp_path / "short" / name).read_bytes() == (tmp_path / "long" / name).read_bytes()
    assert (tmp_path / "short" / "report.json").read_text() != before


def test_step_sizes_follow_the_share_of_positives(tmp_path):
    path = own_file(tmp_path / "own.csv", 2000)
    data = {"file": str(path), "label": "died", "client": "hospital"}
    settings, prepared = fitting.settings_for(data, "codasca", "mlp", 10, 0)
    method, p = settings.algorithms[""].settings, float(prepared.data.train.targets.double().mean())
    moved = method["steps"] * method["eta"] * method["eta_global"]
    assert moved == pytest.approx(1 / (2 * p * (1 - p))) and settings.run.weights == "size"
    assert fitting.batch_size(p, 4) == 10 * fitting.batch_size(p, 40) and fitting.batch_size(p, 10**6) == 8
    assert fitting.batch_size(1e-4, 40) > fitting.batch_size(1e-2, 40)
    ours, _ = fitting.settings_for(data, "codasca", "mlp", 10, 0, ["algorithm.eta=0.2", "model.hidden=[5]"])
    assert ours.algorithms[""].settings["eta"] == 0.2 and ours.model.settings["hidden"] == (5,)
    assert fitting.settings_for(data, "rs-pairwise", "linear", 10, 0)[0].problem.name == "pairwise"
    with pytest.raises(SettingError, match="does not maximise the AUC"):
        fitting.settings_for(data, "drfa", "linear", 10, 0)


def test_the_run_folder_says_everything(tmp_path):
    path = own_file(tmp_path / "own.csv", 600)
    assert fedsaddle(*fit(path, "--out", tmp_path / "run", "--ignore", "v3", "--positive", "y")).exit_code == 0
    settings = settle(read_settings(tmp_path / "run" / "run.toml"))
    assert settings.data.settings["ignore"] == ("v3",) and settings.data.settings["positive_label"] == "y"
    learnt = json.loads((tmp_path / "run" / "preparation.json").read_text())
    names = [column["name"] for column in learnt["columns"]]
    assert "v3" not in names and "region" in names and "hospital" not in names and "died" not in names


# Bad files: one clear text each, and nothing is left behind.

GOOD = [("1.5", "a", "h1", "0"), ("2.5", "b", "h1", "1"), ("0.5", "a", "h2", "0"), ("3.5", "b", "h2", "1")] * 5
HEAD = "v,w,hospital,died\n"


def text_of(rows, head=HEAD):
    return head + "".join(",".join(row) + "\n" for row in rows)


def changed(row, column, value):
    rows = [list(r) for r in GOOD]
    rows[row][column] = value
    return text_of(rows)


@pytest.mark.parametrize(("text", "said"), [
    (text_of(GOOD, "v,w,hospital,dyed\n"), ["data.label = 'died'", "did you mean 'dyed'?", "it has v, w, hospital"]),
    (text_of(GOOD, "v,w,clinic,died\n"), ["data.client = 'hospital'", "no such column", "clinic"]),
    (changed(3, 3, "2"), ["has 3 values", "'0' (10 rows)", "'1' (9 rows)", "'2' (1 rows)", "--positive"]),
    (text_of([(*r[:3], "ab"[int(r[3])]) for r in GOOD]), ["which of its two values", "'a' (10 rows)", "--positive"]),
    (changed(6, 3, "NaN"), ["data.label = 'died'", "missing in 1 of 20 rows", "row 7"]),
    (changed(4, 2, ""), ["data.client = 'hospital'", "missing in 1 of 20 rows", "row 5"]),
    (text_of([(*r[:3], "0") for r in GOOD]), ["every row has the label '0' (20 rows)", "rows of both classes"]),
    (text_of(GOOD[:1] + [(*r[:3], "0") for r in GOOD[:5]] + GOOD[1:2]), ["no positive row is among the"]),
    (text_of(GOOD) + "1,2,3\n", ["line 22 has 3 cells", "has 4"]),
    (text_of(GOOD) + '1,"2,3,4\n', ["line 22 is not valid CSV", "quotes"]),
    (HEAD, ["holds no rows"]),
    ("", ["is empty (0 bytes)"]),
    ("\n\n", ["nothing but blank lines"]),
    (text_of(GOOD, "v,v,hospital,died\n"), ["two columns are called 'v'"]),
    (text_of(GOOD, ""), ["no such column", "first line must hold the names"]),
    (text_of([("1", "", *r[2:]) for r in GOOD]), ["no column is left as a feature", "always the same"]),
])
def test_bad_files(write, tmp_path, text, said):
    path = write(text, "own.csv")
    message = complaint(*fit(path, "--out", tmp_path / "run"))
    assert all(part in message for part in said), message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_another_encoding(write, tmp_path, encoding):
    path = write(changed(2, 1, "Zürich"), "own.csv", encoding)
    message = complaint(*fit(path, "--out", tmp_path / "run"))
    assert "is not UTF-8 text" in message and "iconv" in message and not (tmp_path / "run").exists()
    assert ("byte 0xfc in line 4;" in message.replace(")", "")) == (encoding == "latin-1")


def test_other_files(write, tmp_path):
    out = tmp_path / "run"
    assert "ending '.xlsx' is not known" in complaint(*fit(write("a", "own.xlsx"), "--out", out))
    assert "ending '' is not known" in complaint(*fit(write("a", "own"), "--out", out))
    assert "cannot be read" in complaint(*fit(tmp_path / "none.csv", "--out", out))
    (tmp_path / "folder.csv").mkdir()
    assert "is a folder" in complaint(*fit(tmp_path / "folder.csv", "--out", out))
    torn = write("", "own.csv.gz")
    torn.write_bytes(gzip.compress(text_of(GOOD).encode())[:-12])
    assert "cannot be read" in complaint(*fit(torn, "--out", out))
    assert "numpy.savez" in complaint(*fit(write("no zip", "own.npz"), "--out", out))
    assert not out.exists()


def test_other_wrong_options(write, tmp_path):
    good = write(text_of(GOOD), "own.csv")
    assert "'7'" in complaint(*fit(good, "--positive", "7"))
    assert "'b'; every row must say train or test" in complaint(*fit(write(changed(0, 1, "train")), "--split", "w"))
    assert "data.ignore = 'died'" in complaint(*fit(good, "--ignore", "died"))
    assert "did you mean 'codasca'?" in complaint(*fit(good, "--algorithm", "codaska"))
    assert "data.client = ''" in complaint(*fit(good, client=""))
    assert "data.seed" in complaint(*fit(good, "--set", "data.seed=soon"))
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "file").write_text("")
    assert "is not empty" in complaint(*fit(good, "--out", taken)) and len(list(taken.iterdir())) == 1


def test_bad_files_to_score(write, tmp_path):
    good, run, out = write(text_of(GOOD), "own.csv"), tmp_path / "run", tmp_path / "s.csv"
    assert fedsaddle(*fit(good, "--out", run)).exit_code == 0
    assert "no column 'v'" in complaint("score", run, write("w\na\n"), "--out", out)
    assert "line 3 has 1 cells" in complaint("score", run, write("v,w\n1,a\n2\n"), "--out", out)
    assert "holds no run.toml" in complaint("score", tmp_path / "nowhere", good, "--out", out)
    out.write_text("mine")
    assert "is there already" in complaint("score", run, good, "--out", out)
    assert out.read_text() == "mine" and not list(tmp_path.glob(".*"))
    (run / "preparation.json").write_text("{")
    assert "is damaged" in complaint("score", run, good, "--out", tmp_path / "new.csv")


# What the page says.


def test_the_commands_and_the_settings_of_the_page(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "your-own-data.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(\w*)\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    write_table = runpy.run_path(str(ROOT / "examples" / "own_table.py"))["write"]
    write_table(tmp_path / "patients.csv", 900, labelled=True)
    write_table(tmp_path / "new_patients.csv", 30, labelled=False)
    commands = [line.split()[1:] for kind, block in blocks for line in block.splitlines()
                if not kind and line.startswith("fedsaddle ") and "npz" not in line]
    assert [command[0] for command in commands] == ["fit", "score"]
    for command in commands:
        result = fedsaddle(*command, *(["--rounds", "1"] if command[0] == "fit" else []))
        assert result.exit_code == 0, result.output
    assert len(lines_of(tmp_path / "scores.csv")) == 30
    toml = [block for kind, block in blocks if kind == "toml"]
    assert len(toml) == 1
    settings = settle(tomllib.loads(toml[0]))
    from fedsaddle.assemble import deal, job_from_settings

    for label in settings.algorithms:
        assert job_from_settings(settings, label, dealt=deal(settings)).federation.num_clients == 40
