"""scripts/lecture.ipynb has the text and the code of scripts/lecture.md, and the code's output."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
NOTEBOOK = json.loads((SCRIPTS / "lecture.ipynb").read_text(encoding="utf-8"))
# The first installs tiedgpt. The others are the blocks of the lecture.
INSTALL, *CODE_CELLS = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def printed_by(cell):
    """The output that the notebook shows below a code cell. It may be stored in several parts."""
    return "".join("".join(output["text"]) for output in cell["outputs"])


def test_the_notebook_has_the_code_and_the_output_of_the_lecture():
    """A block of the lecture has code, and after the code its output, as comments.

    tests/test_readme.py checks that the code prints this output.
    """
    lecture = (SCRIPTS / "lecture.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)\n```", lecture, flags=re.S)
    for block, cell in zip(blocks, CODE_CELLS, strict=True):
        shown = re.findall(r"^# ?(.*)", block, flags=re.M)
        code = block[: block.find("\n#")]  # what comes before the first comment
        assert "".join(cell["source"]) == code.rstrip()
        printed = printed_by(cell).splitlines()
        assert [line.rstrip() for line in printed] == shown


def test_the_first_cell_installs_nothing_where_tiedgpt_is_installed():
    assert 'find_spec("tiedgpt") is None' in "".join(INSTALL["source"])
    assert INSTALL["outputs"] == []


def test_the_notebook_has_the_text_of_the_lecture():
    lecture = (SCRIPTS / "lecture.md").read_text(encoding="utf-8")
    without_code = re.sub(r"```python\n.*?```", "", lecture, flags=re.S)
    text = ""
    for cell in NOTEBOOK["cells"]:
        if cell["cell_type"] == "markdown":
            text += "".join(cell["source"]) + "\n"
    assert text.split() == without_code.split()


@pytest.mark.slow
def test_the_notebook_is_what_its_program_writes(tmp_path):
    pytest.importorskip("jupytext", reason="needs pip install -e .[notebook]")
    again = tmp_path / "again.ipynb"
    command = [sys.executable, str(SCRIPTS / "make_notebook.py"), "--to", str(again)]
    subprocess.run(command, check=True, capture_output=True)
    written = json.loads(again.read_text(encoding="utf-8"))
    for cell, cell_again in zip(NOTEBOOK["cells"], written["cells"], strict=True):
        assert cell["source"] == cell_again["source"]
        if cell["cell_type"] == "code":
            assert printed_by(cell) == printed_by(cell_again)
