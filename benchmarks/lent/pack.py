"""What a machine without network needs besides this tree, as files of a few MB that can be sent there one by one.

    python benchmarks/lent/pack.py --python 3.12 --data DATA_FOLDER [--classifiers]

.gpu-wheels/   what FedSaddle imports and such a machine often lacks, unpacked: add it and src/ to PYTHONPATH
.gpu-data/     the data files (FEDSADDLE_DATA) and, with --classifiers, the nets of the Inception Score
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("pydantic", "tomli-w")
CLASSIFIED = {"mnist": "classifier-mnist.safetensors", "fashion-mnist": "classifier-fashion.safetensors"}


def wheels(python: str, target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--dest", folder,
                        "--python-version", python, "--constraint", ROOT / "constraints.txt", *PACKAGES], check=True)
        for wheel in Path(folder).glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(target)


def classifiers(target: Path) -> None:
    for name, file in CLASSIFIED.items():
        if not (target / file).exists():
            subprocess.run([sys.executable, "-m", "fedsaddle", "classifier", name, "--model", "lenet5",
                            "--epochs", "10", "--out", target / file],
                           check=True, env={**os.environ, "FEDSADDLE_DATA": str(target)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True, help="the version of Python there, such as 3.12")
    parser.add_argument("--data", type=Path, required=True, help="the folder that FEDSADDLE_DATA names here")
    parser.add_argument("--classifiers", action="store_true", help="train them, a minute each")
    given = parser.parse_args()
    wheels(given.python, ROOT / ".gpu-wheels")
    (ROOT / ".gpu-data").mkdir(exist_ok=True)
    for file in given.data.iterdir():
        if file.is_file():
            shutil.copyfile(file, ROOT / ".gpu-data" / file.name)
    if given.classifiers:
        classifiers(ROOT / ".gpu-data")
    for folder in (".gpu-wheels", ".gpu-data"):
        size = sum(file.stat().st_size for file in (ROOT / folder).rglob("*") if file.is_file())
        print(f"{folder}: {size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
