"""The README's Python runs as it stands, and its shell lines name commands that exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from fedsaddle import recipes
from fedsaddle.cli import HELP, app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_python_example_runs_in_ten_lines():
    (code,) = blocks("python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[0]) > 0.95


def test_the_shell_example_is_short_and_its_commands_exist(tmp_path, monkeypatch):
    shell = next(block for block in blocks("") if "fedsaddle run" in block)
    lines = shell.strip().splitlines()
    assert len(lines) <= 8
    monkeypatch.chdir(tmp_path)
    for line in lines:
        words = shlex.split(line, comments=True)
        if "fedsaddle" in words[0]:
            more = ["--set", "run.rounds=2"] if words[1] == "run" else ["--rounds", "4"] if "--rounds" in words else []
            result = CliRunner().invoke(app, words[1:] + more)
            assert result.exit_code == 0, result.output


def test_help_has_every_command_below_a_heading():
    shown = CliRunner().invoke(app, ["--help"]).output
    headings = re.findall(r"╭─ (.*?) ─", shown)
    assert headings == ["Options", *HELP, "Data"]  # those without a heading would stand below "Commands"


def test_as_many_recipes_of_papers_as_it_says():
    assert f"{sum('/' in name for name in recipes.names())} recipes of five papers" in README


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name} links to {link}"
