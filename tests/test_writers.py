"""What writers.py does to every writer of the project."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.loopback_hub import LoopbackHub, running
from support.models import SMALL, random_model

import tiedgpt
from tiedgpt import Tokenizer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and needs Linux's limits")


@pytest.mark.parametrize("points", [3, pytest.param(0, marks=pytest.mark.slow)])
def test_what_is_written_is_whole_or_absent_and_can_be_written_again(tmp_path, points):
    model = random_model(replace(SMALL, vocab_size=257))
    tiedgpt.save_model(model, Tokenizer([]), tmp_path / "tied")
    tiedgpt.save_model(model.untie("zeros"), Tokenizer([("a", "b")], {}), tmp_path / "untied")
    (tmp_path / "text").write_text("".join(f"{n} is {n * n}.\n" for n in range(200)))
    rows = (json.dumps({"text": "abc" * (n % 5 + 1), "n": n}) for n in range(30))
    (tmp_path / "in.jsonl").write_text("\n".join(rows))
    server = LoopbackHub()
    server.files = {
        f"tiny/gpt2/{path.name}": path.read_bytes() for path in (tmp_path / "tied").iterdir()
    }
    with running(server):
        environment = {
            "HF_ENDPOINT": f"http://{server.host}",
            "NO_PROXY": "*",
            "OPENBLAS_NUM_THREADS": "1",
        }
        command = [sys.executable, Path(__file__).with_name("writers.py"), tmp_path, str(points)]
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
