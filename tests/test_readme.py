"""What the README shows is what there is: its code, its tables, its commands' output."""

import re
import shlex
from pathlib import Path

import pytest

from tiedgpt import cli, count_parameters
from tiedgpt.checkpoints.names import known_config

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.mark.parametrize(("number", "file"), [(0, "model.py"), (2, "training/backward.py")])
def test_code_is_quoted_from_its_file_in_its_order(number, file):
    """Each line, comments aside, is a line of the file; within each part, in the same order."""
    source = [line.strip() for line in (ROOT / "tiedgpt" / file).read_text(encoding="utf-8").splitlines()]
    for part in PYTHON[number].split("\n\n"):
        rest = iter(source)
        for line in filter(None, map(str.strip, part.splitlines())):
            assert line.startswith("# ") or line in rest, f"{file} has no such line there: {line}"


def test_the_python_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(PYTHON[1], {})
    assert capsys.readouterr().out
    assert (tmp_path / "my-untied-model" / "model.safetensors").is_file()


def test_the_table_of_parameters():
    rows = re.findall(r"^\| (\S+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d.]+ %) \|$", README, re.M)
    assert len(rows) == 5
    for name, *figures in rows:
        counts = count_parameters(known_config(name))
        tied, untied = counts["tied"]["total"], counts["untied"]["total"]
        wte = counts["tied"]["groups"]["token embedding"]
        assert figures == [f"{tied:,}", f"{wte:,}", f"{untied:,}", f"{100 * (untied - tied) / untied:.1f} %"]


def test_the_calculators_output(capsys):
    command, output = re.search(r"`(tiedgpt params --vocab.*?)`:\n\n```text\n(.*?)```", README, re.S).groups()
    assert cli.main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out == output


def test_every_link_leads_to_a_file():
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


@pytest.mark.parametrize("command", re.findall(r"^\$ (?:cat \S+ \| )?(tiedgpt .*?)(?: +#.*)?$", README, re.M))
def test_every_command_shown_is_one(command):
    argv = shlex.split(command)[1:]
    cli.build_parser(argv).parse_args(argv)
