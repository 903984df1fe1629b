"""scripts/attack.py finds nothing in one round, and finds what is planted for it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="needs POSIX's signals"),
]


def attack(script: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, timeout=600
    )


def read_table(printed: str) -> tuple[dict[str, int], list[list[int]]]:
    """The table that attack.py prints: how many tries of each kind, and each kind's problems.

    A kind's row is its name, the number of its tries and those of five problems.
    """
    tries = {}
    problems = []
    _, *lines = printed.splitlines()
    for line in lines:
        kind, *numbers = line.rsplit(maxsplit=6)
        counts = [int(number.replace(",", "")) for number in numbers]
        tries[kind] = counts[0]
        problems.append(counts[1:])
    return tries, problems


def test_an_attack_of_one_round():
    done = attack(ROOT / "scripts" / "attack.py", "--minutes", "0", "--seed", "0")
    assert done.stderr == "", done.stdout
    assert done.returncode == 0, done.stdout
    tries, _ = read_table(done.stdout)
    assert list(tries) == ["files", "signals", "two at once", "command lines"]
    assert min(tries.values()) > 0, done.stdout


PLANTED = [  # in a copy of the repository: file, text, its replacement
    (
        "tiedgpt/checkpoints/safetensors.py",
        "if 8 + length > file_size:\n            raise CheckpointError(",
        "if 8 + length > file_size:\n            raise KeyError(",
    ),
    (
        "tiedgpt/checkpoints/reading.py",
        '        raise CheckpointError(f"{path}: not JSON',
        '        while path.name in ("generation_config.json", "added_tokens.json"):\n'
        "            pass\n"
        '        raise CheckpointError(f"{path}: not JSON',
    ),
    ("tiedgpt/checkpoints/tensorflow_index.py", "if masked_crc != self.masked_crc:", "if False:"),
    ("tiedgpt/checkpoints/publishing.py", 'directory.glob(".save.*.tmp")', "()"),
    ("tiedgpt/checkpoints/publishing.py", "undo.callback(shutil.rmtree,", "(lambda *a, **b: 0)("),
    ("tiedgpt/errors.py", 'character.encode("unicode_escape").decode()', "character"),
    ("scripts/attack.py", "TRY_SECONDS = 20", "TRY_SECONDS = 1"),
]


def test_an_attack_finds_a_fault_of_every_kind(tmp_path):
    not_needed = shutil.ignore_patterns("goldens", "__pycache__")
    for folder in ("tiedgpt", "tests", "scripts"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=not_needed)
    for file, text, replacement in PLANTED:
        content = (tmp_path / file).read_text()
        assert content.count(text) >= 1, text
        (tmp_path / file).write_text(content.replace(text, replacement))
    done = attack(tmp_path / "scripts" / "attack.py", "--minutes", "0", "--seed", "2")
    assert done.returncode == 1, done.stderr
    _, problems = read_table(done.stdout)
    assert np.sum(problems, axis=0).all(), done.stdout  # some of each of the five
