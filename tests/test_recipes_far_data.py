"""Recipes whose data cannot come with the tests run on small files of the same formats, from the file to a measure."""

import io
import tarfile

import numpy as np
import pytest

from fedsaddle.assemble import job_from_settings
from fedsaddle.config import method, settle
from fedsaddle.runs import carry_out
from fedsaddle.studies import study

STATES = ("CA", "TX", "NY", "FL", "WA")
CLAIMS = "Rndrng_NPI,Rndrng_Prvdr_State_Abrvtn,Tot_Benes,Tot_Mdcr_Pymt_Amt,Bene_Avg_Age"
random = np.random.default_rng(7)


def write_cifar100(folder):
    with tarfile.open(folder / "cifar-100-binary.tar.gz", "w:gz") as archive:
        for part, each in (("train", 8), ("test", 2)):
            fine = np.tile(np.arange(100, dtype=np.uint8), each)
            pixels = random.integers(0, 256, (len(fine), 3072), dtype=np.uint8)
            content = np.concatenate([(fine // 5)[:, None], fine[:, None], pixels], 1).tobytes()
            entry = tarfile.TarInfo(f"cifar-100-binary/{part}.bin")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def write_chestmnist(folder):
    parts = {}
    for part, count in (("train", 400), ("val", 40), ("test", 60)):
        parts[f"{part}_images"] = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        parts[f"{part}_labels"] = random.integers(0, 2, (count, 14))
    np.savez(folder / "chestmnist.npz", **parts)


def write_medicare(folder):
    """Five providers in each state, of whom one in three was excluded for fraud later on."""
    numbers = [1_000_000_000 + i for i in range(5 * len(STATES))]
    for year in (17, 18, 19, 20, 22):
        rows = [f"{number},{STATES[i % 5]},{random.integers(99)},{random.integers(9999)},{random.integers(90)}"
                for i, number in enumerate(numbers)]
        (folder / f"MUP_PHY_R24_P05_V10_D{year}_Prov.csv").write_text("\n".join([CLAIMS, *rows]) + "\n")
    excluded = "\n".join(f"A,{number},1128a1,20240520,00000000" for number in numbers[::3])
    (folder / "UPDATED.csv").write_text(f"LASTNAME,NPI,EXCLTYPE,EXCLDATE,REINDATE\n{excluded}\n")


def picture(image, kind):
    stream = io.BytesIO()
    image.fromarray(random.integers(0, 256, (24, 20, 3), dtype=np.uint8)).save(stream, kind)
    return stream.getvalue()


def write_celeba(folder):
    image = pytest.importorskip("PIL.Image")
    names = [f"{i:06d}.jpg" for i in range(60)]
    (folder / "img_align_celeba").mkdir()
    for name in names:
        (folder / "img_align_celeba" / name).write_bytes(picture(image, "JPEG"))
    rows = [f"{name} {1 if i % 2 else -1}" for i, name in enumerate(names)]
    (folder / "list_attr_celeba.txt").write_text("\n".join([str(len(names)), "Male", *rows]) + "\n")
    parts = [f"{name} {0 if i < 48 else 2}" for i, name in enumerate(names)]
    (folder / "list_eval_partition.txt").write_text("\n".join(parts) + "\n")


def write_imagenet(folder):
    image = pytest.importorskip("PIL.Image")
    for part in ("train", "val"):
        for number in range(1000):
            place = folder / part / f"n{number:08d}"
            place.mkdir(parents=True)
            (place / "1.png").write_bytes(picture(image, "PNG"))


WRITERS = {"cifar100": write_cifar100, "chestmnist": write_chestmnist, "medicare": write_medicare,
           "celeba": write_celeba, "image-folder": write_imagenet}
CYCLIC = ("CyCP-Minimax", "data.clients=5", "participation.select.groups=5", "algorithms.*.asked=1",
          "model.name=linear")
SMALL = {
    "cyclic-auc/cifar100": CYCLIC, "cyclic-auc/cifar100-flipped": CYCLIC,
    "cyclic-auc/chestmnist": CYCLIC, "cyclic-auc/chestmnist-flipped": CYCLIC,
    "cyclic-auc/medicare": CYCLIC, "cyclic-auc/medicare-flipped": CYCLIC,
    "codasca/cifar100-ih": ("CODASCA-8", "data.partition.imratio=0.3", "model.name=linear"),
    "codasca/imagenet-ih": ("CODASCA-8", "data.partition.imratio=0.3", "model.name=linear"),
    "cdma/gan-celeba": ("CDMA-ONE", "data.clients=6", "algorithms.*.asked=2", "algorithms.CDMA-ONE.steps=1",
                        "run.image_samples=0"),
}


@pytest.mark.parametrize("name", SMALL)
def test_it_runs_as_soon_as_the_data_are_there(name, tmp_path, monkeypatch):
    label, *sets = SMALL[name]
    tables = study.load(name).tables
    WRITERS[tables["data"]["name"]](tmp_path)
    monkeypatch.setenv("FEDSADDLE_CACHE", str(tmp_path / "cache"))
    small = ["run.batch_size=2", "run.execution=eager", f"data.folder={tmp_path}"]
    for section in ("run", f"overrides.{label}.run"):  # a method may have rounds of its own
        small += [f"{section}.rounds=2", f"{section}.evaluate_every=1"]
    settings = settle(tables, [*small, *sets])
    records = carry_out(job_from_settings(settings, label), method(settings, label).run).records
    assert len(records) == 2
    assert all(record["measures"]["test"] for record in records)
    assert records[-1]["total"]["floats_up"] > 0
