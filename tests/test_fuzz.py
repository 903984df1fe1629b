"""A file that is edited at random is read as what it says now, or refused in a line that names it.

A case is a kind of file. `case.write` writes such a file, and `case.edit` returns its content after
one random edit. `case.check` reads the file and fails if it was read wrongly: it compares with a
short second reader, which refuses nothing. TensorFlow's files have checksums, so an edited one is
refused or makes no difference. `case.message_fault` says what is wrong with a message, or "".
"""

import random
import time
import tracemalloc

import pytest
from support.damaged_files import CASES, OPENAIS

from tiedgpt import TiedGPTError
from tiedgpt.checkpoints import tensorflow

EDITS = 50  # of each file
# Some edited files are read with a warning.
pytestmark = pytest.mark.filterwarnings("ignore::tiedgpt.errors.TiedGPTWarning")


@pytest.fixture(autouse=True)
def narrow_heads(monkeypatch):
    """Let the heads of OpenAI's files be as narrow as those of the small model, and not 64."""
    monkeypatch.setattr(tensorflow, "HEAD_WIDTH", OPENAIS.head_width)


def refusal(case, directory) -> str | None:
    """The message with which the file is refused; None if it is read as what it says."""
    try:
        case.check(directory)
    except TiedGPTError as error:
        return str(error)
    return None


@pytest.fixture(params=CASES, ids=lambda case: case.file)
def case(request, tmp_path):
    """A case whose file is written to tmp_path. Before any edit it is read rightly."""
    case = request.param
    case.write(tmp_path)
    case.check(tmp_path)
    return case


@pytest.fixture
def edits(case, tmp_path):
    """EDITS contents of the case's file, each after one edit. They are the same in each run."""
    original = (tmp_path / case.file).read_bytes()
    edits = []
    for seed in range(EDITS):
        rng = random.Random(f"{case.file} {seed}")
        edits.append(case.edit(rng, original))
    return edits


def test_an_edited_file_is_read_as_what_it_says_or_refused(tmp_path, case, edits):
    """`refusal` calls `case.check`, which fails if an edited file is read wrongly."""
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
    assert n_refused > 0.3 * EDITS, "fewer refusals would test little"


def test_an_edited_file_takes_little_memory(tmp_path, case, edits):
    """Every tenth edit is tried, because tracing memory takes ten times as long."""
    for number in range(0, EDITS, 10):
        (tmp_path / case.file).write_bytes(edits[number])
        tracemalloc.start()
        try:
            refusal(case, tmp_path)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        for_python_objects = 50 * len(edits[number])
        assert peak < 10_000_000 + for_python_objects, number
