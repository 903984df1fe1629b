"""Files that were edited at random are read as they are now, or refused in one line that names
them.

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

EDITS = 50
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
    request.param.write(tmp_path)
    request.param.check(tmp_path)
    return request.param


@pytest.fixture
def edits(case, tmp_path):
    """Edited contents of the file, the same in each run."""
    original = (tmp_path / case.file).read_bytes()
    return [case.edit(random.Random(f"{case.file} {seed}"), original) for seed in range(EDITS)]


def test_an_edited_file_is_read_as_what_it_says_or_refused(tmp_path, case, edits):
    refused = 0
    for number, edited in enumerate(edits):
        (tmp_path / case.file).write_bytes(edited)
        start = time.process_time()
        message = refusal(case, tmp_path)
        assert time.process_time() - start < 5, number
        if message is not None:
            refused += 1
            fault = case.message_fault(tmp_path, message)
            assert fault == "", f"{number}: the message {fault}: {message}"
    assert refused > 0.3 * EDITS


def test_an_edited_file_takes_little_memory(tmp_path, case, edits):
    """Of every tenth edit, because tracing takes ten times as long."""
    for number in range(0, EDITS, 10):
        (tmp_path / case.file).write_bytes(edits[number])
        tracemalloc.start()
        try:
            refusal(case, tmp_path)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 10_000_000 + 50 * len(edits[number]), number
