"""scripts/attack.py tries to break tiedgpt, as with damaged files, and counts the problems.

It finds no problem in this repository, and finds problems in a copy with planted faults. It works
in rounds; a round has some tries of each kind.
"""

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

N_PROBLEMS = 5  # the kinds of problems that attack.py counts, each in a column of its table


def attack(script: Path, seed: int) -> subprocess.CompletedProcess:
    """Run the script for one round, which it completes even if it has 0 minutes."""
    command = [sys.executable, script, "--minutes", "0", "--seed", str(seed)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def read_table(printed: str) -> tuple[dict[str, int], list[list[int]]]:
    """Read the table that attack.py prints: (the number of tries by kind, the problems by row).

    The first line is a header. Each other line is about one kind of tries. It has the name of the
    kind, which may be several words, the number of tries, and the number of problems of each of the
    five kinds.
    """
    tries = {}
    problems = []
    _header, *rows = printed.splitlines()
    for row in rows:
        kind, *cells = row.rsplit(maxsplit=1 + N_PROBLEMS)
        numbers = [int(cell.replace(",", "")) for cell in cells]
        n_tries, *n_problems = numbers
        tries[kind] = n_tries
        problems.append(n_problems)
    return tries, problems


def test_one_round_finds_no_problem():
    done = attack(ROOT / "scripts" / "attack.py", seed=0)
    assert done.stderr == "", done.stdout
    assert done.returncode == 0, done.stdout  # 1 would mean that there were problems
    tries, _ = read_table(done.stdout)
    assert list(tries) == ["files", "signals", "two at once", "command lines"]
    assert min(tries.values()) > 0, done.stdout


# The faults that are planted in a copy of the repository: (a file, a text in it, its replacement)
PLANTED = [
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


def test_one_round_on_a_copy_with_planted_faults_finds_problems_of_all_five_kinds(tmp_path):
    not_needed = shutil.ignore_patterns("goldens", "__pycache__")
    for folder in ("tiedgpt", "tests", "scripts"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=not_needed)
    for file, text, replacement in PLANTED:
        content = (tmp_path / file).read_text()
        assert text in content, text
        (tmp_path / file).write_text(content.replace(text, replacement))
    # The seed is one with which a single round finds problems of all kinds.
    done = attack(tmp_path / "scripts" / "attack.py", seed=2)
    assert done.returncode == 1, done.stderr
    _, problems = read_table(done.stdout)
    total_of_each_problem = np.sum(problems, axis=0)
    assert len(total_of_each_problem) == N_PROBLEMS
    assert total_of_each_problem.all(), done.stdout
