"""Files that were edited at random are read as they are now, or refused in one line that names
them.

A case is a kind of file: what writes it, what edits it at random, and a check that fails if it was
read wrongly. `edits` are the contents of such a file after each of EDITS edits.

What was read is compared with a short second reading of the same file that checks nothing.
TensorFlow's files have checksums: an edited one is refused or makes no difference.
"""

import random
import time
import tracemalloc

import pytest
from support.damaged_files import CASES, OPENAIS

from tiedgpt import TiedGPTError
from tiedgpt.checkpoints import tensorflow

EDITS = 50  # of each file
# An edited file may be one of which the user should know something.
pytestmark = pytest.mark.filterwarnings("ignore::tiedgpt.errors.TiedGPTWarning")


@pytest.fixture(autouse=True)
def narrow_heads(monkeypatch):
    """OpenAI's own heads are 64 wide."""
    monkeypatch.setattr(tensorflow, "HEAD_WIDTH", OPENAIS.head_width)


def refusal(case, directory) -> str | None:
    """The message with which the edited file is refused; None if it is read as what it says."""
    try:
        case.check(directory)
    except TiedGPTError as error:
        return str(error)
    return None


@pytest.fixture(params=CASES, ids=lambda case: case.file)
def case(request, tmp_path):
    """A case whose file has been written to tmp_path, and is read rightly before any edit."""
    case = request.param
    case.write(tmp_path)
    case.check(tmp_path)
    return case


@pytest.fixture
def edits(case, tmp_path):
    """The contents of the case's file after each of EDITS edits, the same in each run."""
    original = (tmp_path / case.file).read_bytes()
    edits = []
    for seed in range(EDITS):
        rng = random.Random(f"{case.file} {seed}")
        edits.append(case.edit(rng, original))
    return edits


def test_an_edited_file_is_read_as_what_it_says_or_refused(tmp_path, case, edits):
    """`refusal` fails if an edited file is read as something else."""
    n_refused = 0
    for number, edited in enumerate(edits):
        (tmp_path / case.file).write_bytes(edited)
        start = time.process_time()
        message = refusal(case, tmp_path)
        seconds = time.process_time() - start
        assert seconds < 5, number
        if message is not None:
            n_refused += 1
            fault = case.message_fault(tmp_path, message)
            assert fault == "", f"{number}: the message {fault}: {message}"
    assert n_refused > 0.3 * EDITS  # otherwise the edits would test little


def test_an_edited_file_takes_little_memory(tmp_path, case, edits):
    """Every tenth edit is tried, because tracing takes ten times as long.

    A reader may take 10 MB, and 50 times the size of the file for Python's objects.
    """
    for number in range(0, EDITS, 10):
        (tmp_path / case.file).write_bytes(edits[number])
        tracemalloc.start()
        try:
            refusal(case, tmp_path)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 10_000_000 + 50 * len(edits[number]), number
