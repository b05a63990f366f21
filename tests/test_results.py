"""The results that are kept: their overview is what their pages say, their commands are of this version."""

import json
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from fedsaddle.studies import reproduce, study

ROOT = Path(__file__).parent.parent
KEPT = sorted((ROOT / "docs" / "results").glob("*/*/study.json"))


def test_the_overview_is_what_the_pages_say():
    done = subprocess.run([sys.executable, ROOT / "benchmarks" / "overview.py", "--check"], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.parent.relative_to(ROOT / "docs" / "results").as_posix())
def test_the_command_of_a_page_can_be_given_again(path):
    """Its recipe, methods and settings exist, and the page shows these methods and their claims."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    words = shlex.split(kept["command"])
    given = {flag: [value for name, value in pairwise(words) if name == flag]
             for flag in ("--only", "--set", "--seeds")}
    plan = reproduce.planned(study.load(words[2]), int(given["--seeds"][0]), False, given["--only"], given["--set"])
    labels = {errand.folder.parent.name for errand in reproduce.errands(plan, path.parent, alone=False)}
    results = json.loads((path.parent / "results.json").read_text(encoding="utf-8"))["methods"]
    assert set(results) == labels
