"""Write lecture.ipynb from lecture.md: run its code, and put what it prints below each block.

    pip install -e '.[notebook]'
    python scripts/make_notebook.py                    # writes scripts/lecture.ipynb
    python scripts/make_notebook.py --to other.ipynb

In lecture.md, the lines of a block that begin with # show what the block prints. In the notebook
these lines are the output of the block. The notebook has one more cell, the first, which installs
tiedgpt where it runs without a clone of the repository.
"""

import argparse
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

SCRIPTS = Path(__file__).resolve().parent
INSTALL = """\
# Elsewhere than in a clone of the repository, as on Colab, put its address here first.
REPOSITORY = "https://ADDRESS/tiedgpt"
import importlib.util
from pathlib import Path

if importlib.util.find_spec("tiedgpt") is None:
    if not Path("lecture.md").exists():
        !git clone --depth 1 {REPOSITORY} tiedgpt
        %cd tiedgpt/scripts
    %pip install --quiet .."""


def without_shown_output(code: str) -> str:
    """The code of a block without its last lines that begin with #, which show what it prints."""
    lines = code.split("\n")
    while lines and lines[-1].startswith("#"):
        lines.pop()
    return "\n".join(lines).rstrip()


def notebook_of(markdown: str) -> Any:
    """The notebook of a page, run in scripts/, where its links and imports lead."""
    notebook = jupytext.reads(markdown, fmt="md")
    notebook.cells.insert(1, nbformat.v4.new_code_cell(INSTALL))  # below the title
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # a random one would change with each run
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.source = without_shown_output(cell.source)
    client = NotebookClient(notebook, kernel_name="python3", record_timing=False)
    client.execute(cwd=str(SCRIPTS))  # puts the output into the cells of `notebook`
    # Running it has added what depends on the machine, which is left out.
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}
    }
    return notebook


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", type=Path, default=SCRIPTS / "lecture.ipynb", metavar="FILE")
    args = parser.parse_args()
    notebook = notebook_of((SCRIPTS / "lecture.md").read_text(encoding="utf-8"))
    nbformat.write(notebook, args.to)


if __name__ == "__main__":
    main()
