"""Data sets by name: small files in each original format, where they are looked for, fetching, and damaged files."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import tarfile
import threading
import urllib.request
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch

from fedsaddle.contracts import SettingError
from fedsaddle.data import store
from fedsaddle.data.fetching import download, fetch
from fedsaddle.data.shakespeare import CHARACTERS, speeches
from fedsaddle.data.sources import SOURCES
from fedsaddle.data.store import SUMS, File, Form, Shelf

torch.set_num_threads(1)
REAL = os.environ.get("FEDSADDLE_DATA")
needs_real = pytest.mark.skipif(not REAL, reason="FEDSADDLE_DATA names no folder with the real data")
random = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch, tmp_path):
    """An empty cache, no data folder, and no way out."""
    monkeypatch.setenv("FEDSADDLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDSADDLE_DATA", raising=False)
    real = urllib.request.urlopen

    def loopback_only(request, *rest, **more):
        assert request.full_url.startswith("http://127.0.0.1:"), request.full_url
        return real(request, *rest, **more)

    monkeypatch.setattr(urllib.request, "urlopen", loopback_only)


def load(name, folder, **settings):
    return SOURCES[name](folder=str(folder), **settings).load(0)


def pixels(*shape):
    return random.integers(0, 256, shape).astype(np.uint8)


def assert_scaled(inputs, original):
    """[-1, 1], as NumPy computes it."""
    np.testing.assert_allclose(inputs.numpy(), original / 127.5 - 1, atol=1e-6)
    assert inputs.dtype == torch.float32


# idx and npz

def idx(values):
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()


def write_idx(folder, packed=True, shape=(4, 4)):
    folder.mkdir(parents=True, exist_ok=True)
    labels = np.arange(20, dtype=np.uint8) % 10
    parts = {"train-images-idx3-ubyte": pixels(20, *shape), "train-labels-idx1-ubyte": labels,
             "t10k-images-idx3-ubyte": pixels(10, *shape), "t10k-labels-idx1-ubyte": np.arange(10, dtype=np.uint8)}
    for name, values in parts.items():
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(idx(values)) if packed else idx(values))
    return list(parts.values())


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_files(tmp_path, name, packed):
    images, labels, test_images, test_labels = write_idx(tmp_path, packed)
    data = load(name, tmp_path)
    assert_scaled(data.train.inputs[:, 0], images)
    assert_scaled(data.test.inputs[:, 0], test_images)
    assert data.train.targets.tolist() == labels.tolist()
    assert data.test.targets.tolist() == test_labels.tolist()
    assert data.classes == 10
    shaded = load(name, tmp_path, pixels="unit")
    np.testing.assert_allclose(shaded.train.inputs[:, 0].numpy(), images / 255, atol=1e-6)
    np.testing.assert_allclose(shaded.test.inputs[:, 0].numpy(), test_images / 255, atol=1e-6)


@pytest.mark.parametrize(("name", "file"), [("mnist", "mnist.npz"), ("fashion-mnist", "fashion_mnist.npz"),
                                            ("fashion-mnist", "fashion-mnist.npz")])
def test_npz_files(tmp_path, name, file):
    images, tests = pixels(12, 5, 5), pixels(4, 5, 5)
    np.savez(tmp_path / file, x_train=images, y_train=np.arange(12) % 10, x_test=tests, y_test=np.arange(4))
    data = load(name, tmp_path)
    assert_scaled(data.train.inputs[:, 0], images)
    assert data.train.inputs.shape == (12, 1, 5, 5)
    assert data.test.targets.tolist() == [0, 1, 2, 3]


# CIFAR

def cifar_rows(count, labels):
    """Label bytes, then the red, green and blue planes."""
    images = pixels(count, 3, 32, 32)
    tags = np.stack([(np.arange(count) + shift) % 10 for shift in range(labels)], 1).astype(np.uint8)
    return images, tags, np.concatenate([tags, images.reshape(count, -1)], 1).tobytes()


def write_tar(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


@pytest.mark.parametrize("archived", [True, False])
def test_cifar10_in_binary(tmp_path, archived):
    parts = {f"cifar-10-batches-bin/{name}.bin": cifar_rows(3, 1)
             for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")}
    if archived:
        write_tar(tmp_path / "cifar-10-binary.tar.gz", {name: part[2] for name, part in parts.items()})
    else:
        (tmp_path / "cifar-10-batches-bin").mkdir()
        for name, part in parts.items():
            (tmp_path / name).write_bytes(part[2])
    data = load("cifar10", tmp_path)
    *train, test = parts.values()
    assert_scaled(data.train.inputs, np.concatenate([part[0] for part in train]))
    assert_scaled(data.test.inputs, test[0])
    assert data.train.targets.tolist() == [0, 1, 2] * 5
    assert data.names[:2] == ("airplane", "automobile")


def test_cifar100_has_fine_and_coarse_labels(tmp_path):
    train, test = cifar_rows(6, 2), cifar_rows(4, 2)
    write_tar(tmp_path / "cifar-100-binary.tar.gz", {"cifar-100-binary/train.bin": train[2],
                                                     "cifar-100-binary/test.bin": test[2]})
    fine, coarse = load("cifar100", tmp_path), load("cifar100", tmp_path, labels="coarse")
    assert_scaled(fine.train.inputs, train[0])
    assert fine.train.targets.tolist() == [1, 2, 3, 4, 5, 6]
    assert coarse.train.targets.tolist() == [0, 1, 2, 3, 4, 5]
    assert (fine.classes, coarse.classes) == (100, 20)


def test_cifar10_mosaics_are_cut_in_their_order_and_kept_decoded(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    for part, mosaics in (("a", 6), ("b", 5)):
        packed = []
        for number in range(mosaics):
            shades = (np.arange(1000).reshape(25, 40) // 4 + number).astype(np.uint8)  # one for each image
            picture = np.kron(shades, np.ones((32, 32), np.uint8))[..., None] * np.array([1, 0, 1], np.uint8)
            picture[0, 1] = [9, 8, 7]  # first row, second column of the first image
            stream = io.BytesIO()
            Image.fromarray(picture).save(stream, "PNG", compress_level=1)
            packed.append(stream.getvalue())
        offsets = np.cumsum([0, *map(len, packed)])
        np.savez(tmp_path / f"cifar10_{part}.npz", mosaics=np.frombuffer(b"".join(packed), np.uint8), offsets=offsets,
                 labels=(np.arange(1000 * mosaics) % 10).astype(np.uint8))
    data = load("cifar10", tmp_path)
    assert (len(data.train.targets), len(data.test.targets)) == (1000, 10000)
    shade = ((data.train.inputs[:, 0, 5, 5] + 1) * 127.5).round().long()
    assert shade.tolist() == (torch.arange(1000) // 4).tolist()
    assert ((data.train.inputs[0, :, 0, 1] + 1) * 127.5).round().tolist() == [9, 8, 7]
    kept = list((tmp_path / "cache" / "decoded").glob("cifar10-*.npz"))
    assert len(kept) == 1
    assert torch.equal(load("cifar10", tmp_path).train.inputs, data.train.inputs)
    kept[0].write_bytes(kept[0].read_bytes()[:1000])  # cut short: decoded again
    assert torch.equal(load("cifar10", tmp_path).train.inputs, data.train.inputs)


# MedMNIST

def medmnist(path, shape, labels):
    parts = {}
    for number, (part, count) in enumerate((("train", 8), ("val", 3), ("test", 4))):
        parts[f"{part}_images"], parts[f"{part}_labels"] = pixels(count, *shape), labels(count, number)
    np.savez(path, **parts)
    return parts


def test_medmnist_files_with_gray_and_coloured_images(tmp_path):
    gray = medmnist(tmp_path / "breastmnist.npz", (28, 28), lambda n, k: (np.arange(n) + k) % 2)
    colour = medmnist(tmp_path / "pathmnist.npz", (28, 28, 3), lambda n, k: (np.arange(n)[:, None] + k) % 9)
    data = load("breastmnist", tmp_path)
    assert_scaled(data.train.inputs[:, 0], gray["train_images"])
    assert data.test.targets.tolist() == [0, 1, 0, 1]
    assert data.names[0] == "malignant"
    data = load("pathmnist", tmp_path, part="validation")
    assert_scaled(data.train.inputs, colour["train_images"].transpose(0, 3, 1, 2))
    assert_scaled(data.test.inputs, colour["val_images"].transpose(0, 3, 1, 2))
    assert data.test.targets.tolist() == [1, 2, 3]
    assert data.classes == 9


def test_chestmnist_is_one_finding_against_its_absence(tmp_path):
    parts = medmnist(tmp_path / "chestmnist.npz", (28, 28), lambda n, k: random.integers(0, 2, (n, 14)))
    for finding, column in (("mass", 4), ("hernia", 13), ("atelectasis", 0)):
        data = load("chestmnist", tmp_path, finding=finding)
        assert data.train.targets.tolist() == parts["train_labels"][:, column].tolist()
        assert data.names == ("none", finding)


# tables

def test_adult_text(tmp_path):
    person = ("39, {work}, 77516, Bachelors, 13, Never-married, Sales, Not-in-family, {race}, {sex}, 2174, 0, {hours}, "
              "?, {pay}")
    rows = [("State-gov", "White", "Male", 40, "<=50K"), ("?", "Black", "Female", 20, ">50K"),
            ("Private", "White", "Female", 60, "<=50K")]
    text = [person.format(work=w, race=r, sex=s, hours=h, pay=p) for w, r, s, h, p in rows]
    (tmp_path / "adult.data").write_text("\n".join(text) + "\n\n")
    (tmp_path / "adult.test.gz").write_bytes(gzip.compress(("|1x3 Cross validator\n" + text[1] + ".\n\n").encode()))
    data = load("adult", tmp_path)
    assert data.train.inputs.shape == (3, 14)
    assert data.train.targets.tolist() == [0, 1, 0]
    assert data.test.targets.tolist() == [1]
    gender, race = data.attributes["gender"], data.attributes["race"]
    assert [gender.names[i] for i in gender.train] == ["Male", "Female", "Female"]
    assert [race.names[i] for i in race.train] == ["White", "Black", "White"]
    assert gender.test.tolist() == gender.train[1:2].tolist()
    hours = np.array([40, 20, 60.0])
    np.testing.assert_allclose(data.train.inputs[:, 12], (hours - 40) / hours.std(), atol=1e-6)
    assert data.train.inputs[:, 0].tolist() == [0, 0, 0]  # a feature that never varies
    torch.testing.assert_close(data.test.inputs[0], data.train.inputs[1])
    hot = load("adult", tmp_path, categories="one-hot")
    assert hot.train.inputs.shape == (3, 6 + 3 + 1 + 1 + 1 + 1 + 2 + 2 + 1)


@pytest.mark.parametrize(("name", "file"), [("mammography", "mammography.npz"), ("campaign", "5_campaign.npz")])
def test_adbench_files(tmp_path, name, file):
    X, y = random.normal(3, 2, (200, 4)), np.arange(200) % 10 == 0
    np.savez(tmp_path / file, X=X, y=y.astype(np.int64))
    data = load(name, tmp_path)
    assert (len(data.train.targets), len(data.test.targets)) == (150, 50)
    assert int(data.train.targets.sum()) == 15
    torch.testing.assert_close(data.train.inputs.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(data.train.inputs.std(0, correction=0), torch.ones(4), atol=1e-5, rtol=0)


CLAIMS = "Rndrng_NPI,Rndrng_Prvdr_State_Abrvtn,Tot_Benes,Tot_Mdcr_Pymt_Amt,Med_Sprsn_Ind,Bene_Avg_Age"


def write_medicare(folder):
    lines = ["1111111111,CA,20,1000.5,,70", "2222222222,TX,,500,*,65", "3333333333,PR,5,5,,60", "4444444444,TX,1,2,,50"]
    for year in (17, 18, 19, 20, 22):
        more = ",Bene_New" if year > 18 else ""
        rows = [line + (",1" if more else "") for line in lines]
        (folder / f"MUP_PHY_R24_P05_V10_D{year}_Prov.csv").write_text("\n".join([CLAIMS + more, *rows]) + "\n")
    (folder / "UPDATED.csv").write_text(
        "LASTNAME,NPI,EXCLTYPE,EXCLDATE,REINDATE\n"
        "A,1111111111,1128a1   ,20190520,00000000\nB,0000000000,1128a1,20190520,00000000\n"
        "C,2222222222,1128b14,20220101,00000000\nD,4444444444,1128b7,20180101,0\nD,4444444444,1128b7,20230101,0\n")


def test_medicare_is_labelled_by_exclusions_and_split_in_time(tmp_path):
    write_medicare(tmp_path)
    data = load("medicare", tmp_path)
    state = data.attributes["state"]
    assert [state.names[i] for i in state.train] == ["CA", "TX", "TX"] * 4  # no territories
    assert [state.names[i] for i in state.test] == ["CA", "TX", "TX"]
    # 1: fraud up to the exclusion in 2019; 2: excluded for something else; 4: the last exclusion counts
    assert data.train.targets.reshape(4, 3).tolist() == [[1, 0, 1], [1, 0, 1], [1, 0, 1], [0, 0, 1]]
    assert data.test.targets.tolist() == [0, 0, 1]
    assert data.train.inputs.shape == (12, 3)  # numbers that every year has
    benes = np.log1p([20, 0, 1.0])  # a suppressed figure is 0
    np.testing.assert_allclose(data.train.inputs[:3, 0], (benes - benes.mean()) / benes.std(), atol=1e-5)
    assert load("medicare", tmp_path, rules=("1128b14",)).train.targets.reshape(4, 3).tolist() == [[0, 1, 0]] * 4
    with pytest.raises(SettingError, match=r"data\.test = 2019: must come after"):
        load("medicare", tmp_path, test=2019)


def test_other_files_are_no_claims(tmp_path):
    write_medicare(tmp_path)
    (tmp_path / "MUP_PHY_R24_P05_V10_D17_Prov.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SettingError, match="no column Rndrng_NPI"):
        load("medicare", tmp_path)
    write_medicare(tmp_path)
    (tmp_path / "UPDATED.csv").write_text("NPI,EXCLTYPE\n1,1128a1\n")
    with pytest.raises(SettingError, match="columns NPI, EXCLTYPE and EXCLDATE"):
        load("medicare", tmp_path)


# text

PLAY = """ROMEO:
But soft, what light?
It is the east.

JULIET:
Ay me!

ROMEO:
She speaks: O speak again.

[Exit]

This line ends so:
"""


def test_speeches_belong_to_the_names_before_them():
    assert speeches(PLAY) == {"ROMEO": "But soft, what light?\nIt is the east.\nShe speaks: O speak again.\n",
                              "JULIET": "Ay me!\n"}
    assert speeches(PLAY.replace("\n", "\r\n")) == speeches(PLAY)


def test_shakespeare_rows_are_sequences_and_the_same_moved_by_one(tmp_path):
    (tmp_path / "shakespeare.txt").write_text(PLAY)
    data = load("shakespeare", tmp_path, length=6, test_share=0.5)
    words = speeches(PLAY)["ROMEO"]
    text = ["".join(CHARACTERS[i] for i in row) for row in data.train.inputs]
    after = ["".join(CHARACTERS[i] for i in row) for row in data.train.targets]
    assert text == [words[i : i + 6] for i in range(0, 30, 6)] + ["Ay me!"]  # 10 and 1 sequences, half for training
    assert after == [words[i + 1 : i + 7] for i in range(0, 30, 6)] + ["y me!\n"]
    assert data.attributes["role"].names == ("ROMEO", "JULIET")
    assert data.attributes["role"].train.tolist() == [0] * 5 + [1]
    assert data.attributes["role"].test.tolist() == [0] * 5
    assert data.classes == len(CHARACTERS) == 86
    assert load("shakespeare", tmp_path, length=6, characters="text").classes == len(set(words + "Ay me!\n"))
    assert load("shakespeare", tmp_path, length=20).attributes["role"].names == ("ROMEO",)  # Juliet says too little
    with pytest.raises(SettingError, match=r"data\.length = 500: no speaker says that much"):
        load("shakespeare", tmp_path, length=500)
    (tmp_path / "shakespeare.txt").write_text(PLAY.replace("soft", "söft"))
    with pytest.raises(SettingError, match=r"the text has 'ö'.*set it to 'text'"):
        load("shakespeare", tmp_path, length=6)


# pictures

def picture(shade, size=(20, 16), kind="PNG"):
    Image = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    Image.new("RGB", size, (shade, 0, 255 - shade)).save(stream, kind)
    return stream.getvalue()


def write_pictures(root, classes, count=4):
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(count):
            ending = ("png", "JPG", "webp", "bmp")[i % 4]
            kind = {"JPG": "JPEG"}.get(ending, ending.upper())
            (root / name / f"{i}.{ending}").write_bytes(picture(40 * number + 10, kind=kind))
        (root / name / "notes.txt").write_text("no picture")


def test_an_image_folder_with_a_test_folder(tmp_path):
    write_pictures(tmp_path / "train", ("normal", "pneumonia"))
    write_pictures(tmp_path / "val", ("pneumonia",), 2)
    data = load("image-folder", tmp_path, size=8)
    assert data.train.inputs.shape == (8, 3, 8, 8)
    assert data.train.targets.tolist() == [0] * 4 + [1] * 4
    assert data.test.targets.tolist() == [1, 1]
    assert data.names == ("normal", "pneumonia")
    reds = (data.train.inputs[:, 0].mean((1, 2)) + 1) * 127.5
    np.testing.assert_allclose(reds, [10] * 4 + [50] * 4, atol=3)  # JPEG is not exact
    assert load("image-folder", tmp_path, size=8, gray=True).train.inputs.shape == (8, 1, 8, 8)
    assert load("image-folder", tmp_path, size=4, most=1).train.targets.tolist() == [0, 1]


def test_an_image_folder_without_one_is_split_and_follows_changed_pictures(tmp_path):
    write_pictures(tmp_path, ("a", "b", "c"))
    data = load("image-folder", tmp_path, size=4, test_share=0.25)
    assert torch.bincount(data.train.targets).tolist() == [3, 3, 3]
    assert torch.bincount(data.test.targets).tolist() == [1, 1, 1]
    for path in (tmp_path / "a").glob("*.*"):
        path.write_bytes(picture(200, (30, 30)))
    again = load("image-folder", tmp_path, size=4, test_share=0.25)
    np.testing.assert_allclose((again.train.inputs[again.train.targets == 0][:, 0] + 1) * 127.5, 200, atol=1)


def test_bad_image_folders_are_refused(tmp_path):
    with pytest.raises(SettingError, match=r"data\.folder = '': there is no such folder"):
        load("image-folder", "")
    with pytest.raises(SettingError, match="holds no pictures in subfolders"):
        load("image-folder", tmp_path)
    write_pictures(tmp_path, ("a", "b"))
    with pytest.raises(SettingError, match=r"need about .* GiB of memory.*set data\.size or data\.most lower"):
        load("image-folder", tmp_path, size=400_000)
    (tmp_path / "a" / "0.png").write_bytes(b"\x89PNG nonsense")
    with pytest.raises(SettingError, match=r"picture .*0\.png cannot be read"):
        load("image-folder", tmp_path, size=8)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("ending", ["txt", "csv"])
def test_celeba(tmp_path, zipped, ending):
    names = [f"{i:06d}.jpg" for i in range(1, 7)]
    male, smiling = [1, -1, 1, -1, 1, 1], [1, 1, -1, -1, 1, -1]
    between = "," if ending == "csv" else "  "
    head = "image_id,Male,Smiling" if ending == "csv" else "6\nMale Smiling"
    lines = [between.join((name, str(m), str(s))) for name, m, s in zip(names, male, smiling, strict=True)]
    (tmp_path / f"list_attr_celeba.{ending}").write_text("\n".join([head, *lines]) + "\n")
    parts = [between.join((name, str(part))) for name, part in zip(names, (0, 0, 0, 1, 2, 2), strict=True)]
    first = ["image_id,partition"] if ending == "csv" else []
    (tmp_path / f"list_eval_partition.{ending}").write_text("\n".join([*first, *parts]) + "\n")
    faces = {name: picture(10 * i, (17, 21), "JPEG") for i, name in enumerate(names)}
    if zipped:
        with zipfile.ZipFile(tmp_path / "img_align_celeba.zip", "w") as archive:
            for name, content in faces.items():
                archive.writestr(f"img_align_celeba/{name}", content)
    else:
        (tmp_path / "img_align_celeba").mkdir()
        for name, content in faces.items():
            (tmp_path / "img_align_celeba" / name).write_bytes(content)
    data = load("celeba", tmp_path, size=8)
    assert data.train.inputs.shape == (3, 3, 8, 8)
    np.testing.assert_allclose((data.train.inputs[:, 0].mean((1, 2)) + 1) * 127.5, [0, 10, 20], atol=3)
    assert data.train.targets.tolist() == [1, 1, 0]
    assert data.test.targets.tolist() == [1, 0]
    assert data.attributes["Male"].train.tolist() == [1, 0, 1]
    assert load("celeba", tmp_path, size=8, target="Male", part="validation").test.targets.tolist() == [0]
    assert len(load("celeba", tmp_path, size=8, most=1).train.targets) == 1
    with pytest.raises(SettingError, match="is no attribute; choose one of Male, Smiling"):
        load("celeba", tmp_path, target="Happy")


# where files are looked for

def test_the_setting_goes_before_the_variable_and_that_before_the_cache(tmp_path, monkeypatch):
    own, common, cached = tmp_path / "own", tmp_path / "common", tmp_path / "cache" / "data" / "mnist"
    for number, folder in enumerate((own, common, cached), start=1):
        folder.mkdir(parents=True)
        images = np.zeros((2, 4, 4), np.uint8)
        np.savez(folder / "mnist.npz", x_train=images, y_train=np.full(2, number), x_test=images, y_test=np.zeros(2))
    assert int(load("mnist", "").train.targets[0]) == 3
    monkeypatch.setenv("FEDSADDLE_DATA", str(common))
    assert int(load("mnist", "").train.targets[0]) == 2
    assert int(load("mnist", own).train.targets[0]) == 1
    (common / "mnist.npz").unlink()
    assert int(load("mnist", "").train.targets[0]) == 3


def test_files_with_the_same_names_are_not_mistaken_for_each_other(tmp_path, monkeypatch):
    """Fashion-MNIST's files are called like MNIST's: loose in a common folder they are MNIST's."""
    monkeypatch.setenv("FEDSADDLE_DATA", str(tmp_path))
    digits = write_idx(tmp_path)
    assert store.find(SOURCES["fashion-mnist"].shelf, "") is None
    clothes = write_idx(tmp_path / "FashionMNIST" / "raw")
    assert_scaled(load("mnist", "").train.inputs[:, 0], digits[0])
    assert_scaled(load("fashion-mnist", "").train.inputs[:, 0], clothes[0])


def test_the_cache_has_a_place_on_every_system(monkeypatch):
    monkeypatch.delenv("FEDSADDLE_CACHE")
    for platform, variables, words in (
        ("linux", {"XDG_CACHE_HOME": "/x/c"}, "/x/c/fedsaddle"), ("linux", {"XDG_CACHE_HOME": ""}, ".cache/fedsaddle"),
        ("darwin", {}, "Library/Caches/fedsaddle"), ("win32", {"LOCALAPPDATA": "/l"}, "/l/fedsaddle"),
    ):
        monkeypatch.setattr("sys.platform", platform)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert store.cache().as_posix().endswith(words)


@pytest.mark.parametrize(("name", "words"), [
    ("celeba", "img_align_celeba.*list_attr_celeba.txt.*mmlab.*FEDSADDLE_DATA.*cache/data/celeba"),
    ("medicare", r"UPDATED\.csv and \*_D17_Prov\.csv.*data\.cms\.gov.*oig\.hhs\.gov"),
])
def test_what_no_program_can_fetch_says_which_file_to_put_where(name, words):
    with pytest.raises(SettingError, match=words):
        load(name, "")


@pytest.mark.parametrize("variable", [False, True])
def test_a_folder_that_is_not_there(tmp_path, monkeypatch, variable):
    if variable:
        monkeypatch.setenv("FEDSADDLE_DATA", str(tmp_path / "none"))
    with pytest.raises(SettingError, match=("FEDSADDLE_DATA" if variable else r"data\.folder") + ".*no such folder"):
        load("mnist", "" if variable else tmp_path / "none")


# damaged files

def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(("name", "file", "spoil", "words"), [
    ("mnist", "train-images-idx3-ubyte.gz", cut, "EOFError"),
    ("mnist", "train-images-idx3-ubyte.gz", lambda p: p.write_bytes(gzip.compress(b"\0\0\x08\x03abc")), "no idx file"),
    ("mnist", "train-images-idx3-ubyte.gz", lambda p: p.write_bytes(b""), "no idx file"),
    ("mnist", "train-images-idx3-ubyte.gz", lambda p: p.write_bytes(idx(pixels(3, 4, 4))[:-1]), "its head says 48"),
    ("mnist", "train-labels-idx1-ubyte.gz", lambda p: p.write_bytes(idx(pixels(19))), "20 images but 19 labels"),
    ("mammography", "mammography.npz", cut, "BadZipFile"),
    ("mammography", "mammography.npz", lambda p: np.savez(p, X=np.zeros(3)), "no array 'y', only X"),
    ("mammography", "mammography.npz", lambda p: np.savez(p, X=np.array([object()]), y=np.zeros(1)), "allow_pickle"),
    ("cifar100", "cifar-100-binary.tar.gz", cut, "cannot be read"),
    ("cifar100", "cifar-100-binary.tar.gz", lambda p: write_tar(p, {"train.bin": b"x"}), "holds no test.bin"),
    ("cifar100", "cifar-100-binary.tar.gz", lambda p: write_tar(p, {"train.bin": b"x", "test.bin": b"x"}),
     "no whole number of images"),
    ("adult", "adult.data", lambda p: p.write_text("1, 2, 3\n"), "row 1 of adult.data has 3 columns instead of 15"),
    ("adult", "adult.data", lambda p: p.write_text("\n"), "holds no rows"),
])
def test_damaged_files_are_named(tmp_path, name, file, spoil, words):
    write_idx(tmp_path)
    np.savez(tmp_path / "mammography.npz", X=np.zeros((3, 2)), y=np.zeros(3))
    write_tar(tmp_path / "cifar-100-binary.tar.gz", {"train.bin": cifar_rows(2, 2)[2], "test.bin": cifar_rows(1, 2)[2]})
    for part in ("adult.data", "adult.test"):
        (tmp_path / part).write_text("\n")
    spoil(tmp_path / file)
    with pytest.raises(SettingError, match=re.escape(words)) as raised:
        load(name, tmp_path)
    assert file in str(raised.value)
    assert f"fedsaddle data fetch {name}" in str(raised.value)


def test_a_file_must_have_the_digest_beside_it(tmp_path):
    write_idx(tmp_path)
    names = sorted(path.name for path in tmp_path.glob("*.gz"))
    sums = {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in names}
    (tmp_path / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))
    load("mnist", tmp_path)
    (tmp_path / names[0]).write_bytes(gzip.compress(idx(pixels(10, 4, 4))))  # sound, but another
    with pytest.raises(SettingError, match=f"{names[0]}.*does not have the digest"):
        load("mnist", tmp_path)


# fetching

CONTENT = b"a public original " * 5000


class Site(BaseHTTPRequestHandler):
    asked = ()

    def do_GET(self):
        Site.asked = (*Site.asked, self.path)
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT) * (2 if self.path == "/short" else 1)))
        self.end_headers()
        self.wfile.write(CONTENT)

    def log_message(self, *args):
        pass


@pytest.fixture
def site():
    Site.asked = ()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def load_from(shelf):
    return store.load(shelf, "", lambda content: content)


def shelf_at(site, path="/file.bin", digest=""):
    form = Form((File("file.bin", site + path, digest),), lambda path: path.read_bytes())
    return Shelf("example", (form,), "")


SHA, MD5 = hashlib.sha256(CONTENT).hexdigest(), hashlib.md5(CONTENT).hexdigest()


@pytest.mark.parametrize("digest", [f"sha256:{SHA}", f"md5:{MD5}", ""])
def test_what_is_missing_is_fetched_once_and_its_digest_kept(site, tmp_path, digest):
    shelf = shelf_at(site, digest=digest)
    place = tmp_path / "cache" / "data" / "example"
    assert load_from(shelf) == CONTENT
    assert load_from(shelf) == CONTENT
    assert Site.asked == ("/file.bin",)
    assert (place / SUMS).read_text() == f"{SHA}  file.bin\n"
    assert sorted(path.name for path in place.iterdir()) == [SUMS, "file.bin"]  # nothing half done is left


def test_progress_is_told_to_the_end(site, tmp_path):
    told = []
    file = File("file.bin", f"{site}/file.bin")
    download(file, tmp_path / "file.bin", lambda done, total: told.append((done, total)))
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in told] == sorted(done for done, _ in told)


@pytest.mark.parametrize(("path", "digest", "words"), [
    ("/file.bin", f"sha256:{'0' * 64}", f"has the sha256 {SHA}, published is 000"),
    ("/file.bin", f"md5:{'0' * 32}", f"has the md5 {MD5}, published is 000"),
    ("/short", "", "file.bin"),
    ("/missing", "", "cannot be fetched.*Not Found.*put file.bin into a folder"),
])
def test_a_bad_transfer_leaves_nothing_behind(site, tmp_path, path, digest, words):
    shelf = shelf_at(site, path, digest)
    with pytest.raises(SettingError, match=words):
        load_from(shelf)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_no_network_says_which_file_to_put_where(tmp_path):
    with pytest.raises(SettingError, match=r"cannot be fetched.*put file\.bin into a folder.*FEDSADDLE_DATA"):
        load_from(shelf_at("http://127.0.0.1:9"))  # nobody listens there


def test_a_damaged_file_in_the_cache_is_refused_and_fetched_again(site, tmp_path):
    shelf = shelf_at(site)
    load_from(shelf)
    file = tmp_path / "cache" / "data" / "example" / "file.bin"
    file.write_bytes(b"changed")
    with pytest.raises(SettingError, match="does not have the digest"):
        load_from(shelf)
    told = []
    fetch(shelf, shelf.forms[0], told.append)
    fetch(shelf, shelf.forms[0], told.append)
    assert load_from(shelf) == CONTENT
    assert len(Site.asked) == 2
    assert told == [f"file.bin: sha256 {SHA}, recorded, none is published", "file.bin: is there already"]


def test_published_digests_and_addresses_are_well_formed():
    files = {file for source in SOURCES.values() if hasattr(source, "shelf")
             for form in source.shelf.forms for file in form.files if file.url}
    assert len(files) >= 20
    digests = [file.digest for file in files if file.digest]
    assert len(set(digests)) == len(digests)
    for file in files:
        assert re.fullmatch(r"https?://[^ ]+", file.url)
        assert file.name in file.url
        assert re.fullmatch(r"sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}|", file.digest), file


def test_every_source_says_what_it_is():
    for name, source in SOURCES.items():
        assert source.__doc__, name
        if hasattr(source, "shelf"):
            assert source.shelf.name == name
            assert source().folder == ""


# the real data

@needs_real
@pytest.mark.parametrize(("name", "train", "test", "shape", "positives"), [
    ("mnist", 60000, 10000, (1, 28, 28), 5923), ("fashion-mnist", 60000, 10000, (1, 28, 28), 6000),
    ("adult", 32561, 16281, (14,), 24720), ("breastmnist", 546, 156, (1, 28, 28), 147),
    ("mammography", 8387, 2796, (6,), 8192), ("campaign", 30891, 10297, (62,), 27411),
])
def test_real_data(name, train, test, shape, positives):
    data = load(name, REAL)
    assert (len(data.train.targets), len(data.test.targets)) == (train, test)
    assert data.train.inputs.shape[1:] == shape
    assert int((data.train.targets == 0).sum()) == positives


@needs_real
def test_real_plays():
    data = load("shakespeare", REAL)
    assert data.train.inputs.shape[1:] == data.train.targets.shape[1:] == (50,)
    assert torch.equal(data.train.inputs[:, 1:], data.train.targets[:, :-1])
    assert len(data.attributes["role"].names) > 200
    assert "ROMEO" in data.attributes["role"].names


@needs_real
@pytest.mark.parametrize(("name", "file"), [("adult", "adult.data"), ("adult", "adult.test"),
                                            ("shakespeare", "tinyshakespeare.txt")])
def test_published_digests_are_those_of_the_real_text(name, file):
    """The copies are packed; unpacked they are the originals."""
    original = "input.txt" if name == "shakespeare" else file
    known = next(f for form in SOURCES[name].shelf.forms for f in form.files if f.name == original)
    packed = store.find(SOURCES[name].shelf, REAL).paths
    content = next(gzip.decompress(path.read_bytes()) for path in packed if path.name == f"{file}.gz")
    assert known.digest == f"sha256:{hashlib.sha256(content).hexdigest()}"
