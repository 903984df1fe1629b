"""What README.md and scripts/lecture.md quote is right: code, commands and output. Links work."""

import code
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import check_gpt2
import numpy as np
import pytest

import tiedgpt
from tiedgpt import cli, count_parameters
from tiedgpt.checkpoints.model_names import known_config

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# The blocks of Python, each with the end of its output if a block of that follows
PYTHON = re.findall(r"```python\n(.*?)```(?:\n\n```text\n\.\.\.\n(.*?)```)?", README, re.S)
QUOTED = [block for block, _ in PYTHON if block.startswith("def ")]
PUBLISHED = json.loads((ROOT / "tests" / "goldens" / "gpt2-124M.json").read_text(encoding="utf-8"))
NUMBER = re.compile(r"-?\d+\.\d*")
PAGES = ["README.md", "scripts/README.md", "scripts/lecture.md", "scripts/exercises.md"]
PAGES += [f"scripts/tying_results/{name}.md" for name in ("README", "claims", "floor")]
PAGES += [".github/CONTRIBUTING.md", "scripts/ports.md", "scripts/head.md", "scripts/ties.md"]
# The commands after a prompt, without a `cat FILE |` before them and a comment after them
COMMANDS = re.findall(r"^\$ (?:cat \S+ \| )?(tiedgpt .*?)(?: +#.*)?$", README, re.M)


def test_the_quoted_forward_pass_is_that_of_tied_py():
    source = (ROOT / "scripts" / "tied.py").read_text(encoding="utf-8")
    two_empty_lines = "\n\n\n"  # they separate two functions
    functions = source.split(two_empty_lines)
    (quotation,) = QUOTED
    for function in quotation.strip().split(two_empty_lines):
        assert function in functions


@pytest.mark.slow
def test_bigram_py_prints_the_table_shown(tmp_path):
    (shown,) = re.findall(r"\$ python scripts/bigram.py\n(.*?)```", README, re.S)
    arguments = [sys.executable, str(ROOT / "scripts" / "bigram.py")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr == ""
    assert done.stdout.startswith(shown)


EXAMPLES = []
for example, shown in PYTHON:
    if example not in QUOTED:
        is_slow = "compare_tokens" in example
        EXAMPLES.append(pytest.param(example, shown, marks=[pytest.mark.slow] if is_slow else []))


@pytest.mark.parametrize(("example", "shown"), EXAMPLES)
def test_the_python_examples_print_what_is_shown(example, shown, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    exec(example, {})
    assert shown in capsys.readouterr().out
    if any(tmp_path.iterdir()):  # a reader runs it again, beside the files that it has written
        exec(example, {})
        assert shown in capsys.readouterr().out


def test_the_first_command_prints_the_text_shown(monkeypatch, capsys):
    # The command is the last of a block of commands. The next block is its output.
    command_and_output = r"&& (tiedgpt generate .*?)\n```\n\n```text\n(.*?)```"
    command, shown = re.search(command_and_output, README, re.S).groups()
    # With these variables, the command finds the shipped models alone.
    monkeypatch.setenv("HOME", os.devnull)
    monkeypatch.setenv("TIEDGPT_WEIGHTS", str(ROOT / "weights"))
    assert cli.main(shlex.split(command)[1:]) == 0
    assert shown.endswith("\n...\n")  # the text goes on
    assert capsys.readouterr().out.lstrip().startswith(shown.removesuffix("...\n"))


@pytest.mark.parametrize(("name", "name_in_text"), [("gpt2", "GPT-2,"), ("gpt2-xl", "gpt2-xl")])
def test_the_percentage_that_tying_saves_is_right(name, name_in_text):
    counts = count_parameters(known_config(name))
    tied = counts["tied"]["total"]
    untied = counts["untied"]["total"]
    percent = f"{100 * (untied - tied) / untied:.1f}"
    assert re.findall(rf"([\d.]+) % of an untied {name_in_text}", README) == [percent]


def test_the_readme_has_the_table_of_the_idea(capsys):
    """Each command of the block, and the lines after it, which are the first of its output."""
    (block,) = re.findall(r"```console\n(\$ tiedgpt next --paths .*?)```", README, re.S)
    commands = re.findall(r"\$ tiedgpt (.*)\n((?:[^$].*\n)+)", block)
    assert len(commands) == 2
    for command, shown in commands:
        assert cli.main(shlex.split(command)) == 0
        assert capsys.readouterr().out.startswith(shown)


def test_the_conflict_that_check_shows(tmp_path, monkeypatch, capsys):
    model = tiedgpt.load_model("shakespeare-tied")
    tiedgpt.save_model(model.untie("zeros"), None, tmp_path / "my-checkpoint")
    config_file = tmp_path / "my-checkpoint" / "config.json"
    config = json.loads(config_file.read_text(encoding="utf-8"))
    config_file.write_text(json.dumps({**config, "tie_word_embeddings": True}), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    command, shown = re.search(
        r"\$ tiedgpt (check my-checkpoint)\n(.*?)\.\.\.\n```", README, re.S
    ).groups()
    assert cli.main(shlex.split(command)) == 1
    assert capsys.readouterr().out.startswith(shown)


GREEDY = re.search(r"\$ tiedgpt (generate --greedy .*)\n(.*)\n", README)


def test_the_greedy_text_is_the_published_one(gpt2):
    """tests/gpt2/test_real_gpt2.py compares the ids with those of the real GPT-2, if it is here."""
    *_, prompt = shlex.split(GREEDY[1])
    (case,) = [case for case in PUBLISHED["greedy"] if case.get("prompt") == prompt]
    new_ids = case["output_ids"][len(case["ids"]) :]
    assert gpt2.decode(new_ids).startswith(GREEDY[2])


def anchors_of(page: Path) -> set[str]:
    """The names that GitHub gives to the titles of a page, for links."""
    anchors = set()
    for title in re.findall(r"^##? (.*)", page.read_text(encoding="utf-8"), re.M):
        letters = re.sub(r"[^\w\- ]", "", title.lower())
        anchors.add(letters.replace(" ", "-"))
    return anchors


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_to_a_file_and_a_title(name):
    page = ROOT / name
    links = re.findall(r"\]\((?!http)(.*?)\)", page.read_text(encoding="utf-8"))
    assert links
    for link in links:
        path, _, anchor = link.partition("#")
        target = page
        if path:
            target = page.parent / path
        assert target.exists(), link
        if anchor:
            assert anchor in anchors_of(target), link


def test_the_files_to_read_have_as_many_lines_as_is_said():
    files_and_lines = re.findall(r"\]\(([\w./]+)\)[^]\[]*?\((\d+)\s+lines\)", README)
    assert len(files_and_lines) == 3
    for file, lines in files_and_lines:
        assert len((ROOT / file).read_text(encoding="utf-8").splitlines()) == int(lines), file


def test_the_rows_of_check_gpt2_are_those_that_it_prints():
    for fact in check_gpt2.facts(PUBLISHED):
        assert f"{fact.tolerance:.9g}".replace("4e-05", "0.00004") in README
        name = fact.name.split(",")[0]
        assert name in README


def test_the_citation_names_the_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, re.M) == [tiedgpt.__version__]


def test_the_code_prints_what_the_lecture_shows(capsys):
    """Each block is entered at a Python prompt, line by line. Its comments show the output.

    An empty line after a loop ends it at a prompt.
    """
    text = (ROOT / "scripts" / "lecture.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    assert len(blocks) == 15, "the lecture has 15 blocks"
    prompt = code.InteractiveConsole()
    with np.printoptions():  # restores the options, which the lecture changes
        for block in blocks:
            shown = []
            for line in block.splitlines():
                prompt.push(line)
                if line.startswith("#"):
                    shown.append(line[1:].removeprefix(" "))

            output = capsys.readouterr()
            assert output.err == ""
            assert_same_but_for_rounding(output.out.splitlines(), shown)


def assert_same_but_for_rounding(printed: list[str], shown: list[str]) -> None:
    """The lines are the same, but numbers may differ by one in the last digit shown."""
    printed = [line.rstrip() for line in printed]
    without_numbers = [NUMBER.sub("0", line) for line in printed]
    assert without_numbers == [NUMBER.sub("0", line) for line in shown]
    numbers_printed = NUMBER.findall("\n".join(printed))
    numbers_shown = NUMBER.findall("\n".join(shown))
    for number, number_shown in zip(numbers_printed, numbers_shown, strict=True):
        _, _, decimals = number_shown.partition(".")
        one_in_the_last_digit = 10.0 ** -len(decimals)
        difference = abs(float(number) - float(number_shown))
        # The factor allows for the rounding of the difference itself.
        assert difference < 1.01 * one_in_the_last_digit, number_shown


@pytest.mark.parametrize("command", COMMANDS)
def test_tiedgpt_accepts_every_command_shown(command):
    _tiedgpt, *arguments = shlex.split(command)
    cli.parse(arguments)
