"""The deployment page says what is so, and the demonstration's findings see what they should in made-up records."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from fedsaddle.cli import app
from fedsaddle.config import read, settle
from fedsaddle.sites.admission import Admission
from fedsaddle.sites.policy import Policy, read_policy
from fedsaddle.sites.roster import Patience

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
NAMES = ("north", "east", "south", "west")
COMMANDS = typer.main.get_command(app).commands


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture(scope="module")
def findings():
    path = ROOT / "examples" / "sites" / "findings.py"
    spec = importlib.util.spec_from_file_location("demo_findings", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo_findings"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["demo_findings"]


# The page.


def test_the_settings_and_the_policy_of_the_page_are_accepted(tmp_path):
    policy, study = blocks("toml")
    (tmp_path / "policy.toml").write_text(policy)
    assert read_policy(tmp_path / "policy.toml").max_rounds == 500
    settings = settle(tomllib.loads(study))
    assert settings.data.name == "sites" and settings.sites.nodes == ("rivers", "hills")
    assert len(settings.sites.nodes) == settings.dealing.clients
    demo = settle(read(ROOT / "examples" / "sites" / "demo.toml"))
    assert demo.sites.nodes == NAMES and demo.dealing.clients == len(NAMES)


@pytest.mark.parametrize("section", [Patience, Admission])
def test_every_setting_of_a_section_is_in_its_table_with_its_default(section):
    told = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", PAGE, flags=re.MULTILINE))
    for field in dataclasses.fields(section):
        default = getattr(section(), field.name)
        said = told[field.name]
        same = said == "none" if default == () else said == str(default).lower() if isinstance(default, bool) \
            else float(said) == default
        assert same, f"{field.name}: the page says {said}, it is {default}"


def test_the_example_of_a_policy_names_every_rule():
    assert set(tomllib.loads(blocks("toml")[0])) == {field.name for field in dataclasses.fields(Policy)}


def options_of(command):
    return {option for parameter in COMMANDS[command].params for option in parameter.opts}


def test_every_command_line_of_the_page_has_options_that_exist():
    text = PAGE.replace("\\\n", " ")
    lines = re.findall(r"fedsaddle (server|node|keys|doctor|deal|replay)\b([^`\n]*)", text)
    assert {command for command, _ in lines} == {"server", "node", "keys", "doctor", "deal", "replay"}
    for command, rest in lines:
        unknown = set(re.findall(r"--[a-z-]+", rest)) - options_of(command)
        assert not unknown, f"fedsaddle {command} has no {unknown}"


def test_every_option_that_the_page_speaks_of_exists_somewhere():
    ours = set().union(*(options_of(command) for command in ("server", "node", "keys", "doctor", "deal")))
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    spoken = {option for span in re.findall(r"`([^`]+)`", prose) if not span.startswith(("useradd", "ch"))
              for option in re.findall(r"(?<!\S)--[a-z-]+", span)}
    assert "--own" in spoken and spoken <= ours, spoken - ours


# The findings.


def record(number, asked, used, seconds=4.0, late=(), refused=()):
    ask = {"asked_clients": list(asked), "clients": list(used), "virtual_seconds": seconds,
           "late_clients": list(late), "refused": [{"node": NAMES[client], "reason": reason}
                                                   for client, reason in refused]}
    return {"round": number, "asks": [ask]}


RECORDS = [
    record(1, [0, 1, 2, 3], [0, 1, 2], 5.0),                      # west (3) sleeps
    record(2, [0, 1, 2], [0, 2], refused=[(1, "the site's worker is not there")]),
    record(3, [0, 1, 2], [0, 1], late=[3]),                       # south (2) is killed while it is asked
    record(4, [0, 1, 3], [0, 1], 6.0),
    record(5, [0, 1, 2], [0, 2], late=[2]),
]
REPLAY = "│ codasca │ auc 0.976256 │ auc 0.976256 │ 6.0e-08             │"


def seen(findings, **other):
    usual = {"slow": 3, "sleep": 20.0, "killed": 2, "killed_after": 2, "control": 0.7, "start": (1, 0, 9),
             "end": (4, 0, 9), "unworked": 1, "unworked_after": 1}
    return findings.Seen(**(usual | other))


def test_the_table_counts_what_befell_every_node(findings):
    lines = {line.name: line for line in findings.table_of(RECORDS, NAMES)}
    assert lines["north"][1:] == (5, 5, 0, 0) and lines["north"].passed_over == 0
    assert lines["east"][1:] == (5, 3, 0, 1) and lines["east"].passed_over == 1
    assert lines["south"][1:] == (4, 3, 1, 0) and lines["south"].passed_over == 1
    assert lines["west"][1:] == (2, 0, 1, 0) and lines["west"].passed_over == 2


def test_asks_that_went_on_without_somebody(findings):
    assert [tuple(ask) for ask in findings.closed_without(RECORDS, 3, "west")] == [(1, 5.0, 3, 4), (4, 6.0, 2, 3)]
    assert [ask.round for ask in findings.closed_without(RECORDS, 1, "east")] == [5]  # in round 2 it said something


def test_who_was_away_from_when_to_when(findings):
    assert tuple(findings.absence(RECORDS, 2, 2)) == (2, 5)
    assert findings.absence(RECORDS[:4], 2, 2) is None  # not back yet
    assert findings.absence(RECORDS, 3, 2) is None  # never there
    assert [findings.owes(RECORDS[:n], 3) for n in range(1, 6)] == [True, True, False, True, True]


def test_a_good_run_has_no_complaints(findings):
    assert findings.complaints(RECORDS, NAMES, seen(findings), REPLAY) == []


@pytest.mark.parametrize(("change", "word"), [
    ({"sleep": 5.0}, "waited for"),
    ({"slow": 0}, "no ask ended without north"),
    ({"killed_after": 4}, "never again"),
    ({"killed": 0}, "missed no round"),
    ({"control": 0.0}, "no state on its disk"),
    ({"start": (-1, -1, -1)}, "no state on its disk"),
    ({"end": (1, 0, 9)}, "did not go on"),
    ({"unworked_after": 3}, "after its worker was killed"),
])
def test_what_is_not_so_is_complained_about(findings, change, word):
    found = findings.complaints(RECORDS, NAMES, seen(findings, **change), REPLAY)
    assert any(word in text for text in found), found


def test_a_site_that_lost_its_state_is_complained_about(findings):
    lost = [*RECORDS, record(6, [2], [], refused=[(2, "the site has lost the state that the ask starts from")])]
    assert any("lost its state" in text for text in findings.complaints(lost, NAMES, seen(findings), REPLAY))


@pytest.mark.parametrize(("text", "word"), [
    (REPLAY.replace("0.976256 │ 6", "0.976257 │ 6"), "0.976257"),
    (REPLAY.replace("6.0e-08", "6.0e-04"), "differ by"),
    ("error: something", "no result"),
])
def test_a_replay_that_differs_is_complained_about(findings, text, word):
    (complaint,) = findings.complaints(RECORDS, NAMES, seen(findings), text)
    assert word in complaint


def test_a_round_is_told_in_a_line(findings):
    line = findings.told(RECORDS[1], NAMES)
    assert "round  2: asked north east south; used north south; 4.0 s" in line and "worker is not there" in line
    assert "until round 2, and again from round 5 on" in findings.answers_around(RECORDS, 2, 2)
