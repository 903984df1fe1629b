"""Run support/writers.py, which runs `download` and `train`, with faults.

For example, it kills a command, or fills the disk. After each fault, every file must be whole or
absent, and the same command must succeed when it runs again.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.checks import contents
from support.loopback_hub import LoopbackHub, running
from support.models import SMALL, random_model

import tiedgpt
from tiedgpt import Tokenizer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and needs Linux's limits")

SCRIPT = Path(__file__).parent / "support" / "writers.py"


@pytest.fixture
def place(tmp_path) -> Path:
    """A directory with two models and a text to train on.

    The tokenizers of the two models differ, so that mixing up their files is noticed.
    """
    bytes_and_eot = Tokenizer([])
    bytes_and_ab = Tokenizer([("a", "b")], special_tokens={})
    model = random_model(replace(SMALL, vocab_size=257))
    tiedgpt.save_model(model, bytes_and_eot, tmp_path / "tied")
    tiedgpt.save_model(model.untie("zeros"), bytes_and_ab, tmp_path / "untied")
    (tmp_path / "text").write_text("".join(f"{n} is {n * n}.\n" for n in range(200)))
    return tmp_path


@pytest.fixture
def hub_environment(place):
    """The environment variables with which the script asks a local hub, which has the tied model.

    NO_PROXY makes it ask without a proxy. BLAS has one thread, because the script forks.
    """
    server = LoopbackHub()
    server.put("tiny/gpt2", contents(place / "tied"))
    with running(server):
        yield {"HF_ENDPOINT": server.url, "NO_PROXY": "*", "OPENBLAS_NUM_THREADS": "1"}


@pytest.mark.slow
def test_what_is_written_is_whole_or_absent_and_can_be_written_again(place, hub_environment):
    """Each writer is killed at all moments: 0 stands for all."""
    command = [sys.executable, SCRIPT, place, "0"]
    environment = os.environ | hub_environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]  # the end of a long traceback
