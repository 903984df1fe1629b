"""The parameters of a loaded model are views of its file, which is mapped into memory.

The file is never written to. It may be replaced while a model uses it. test_safetensors.py has what
is mapped and what is read.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.models import CONFIG, random_model

import tiedgpt
from tiedgpt.checkpoints.tensors import Tensor
from tiedgpt.training.loop import Trainer
from tiedgpt.training.start import Settings

IDS = list(range(50))


@pytest.fixture(params=["tied", "untied"])
def model(request) -> tiedgpt.GPT2:
    return random_model(CONFIG.with_head(request.param))


@pytest.fixture
def file(model, tmp_path) -> Path:
    """The file to which the model was saved."""
    tiedgpt.save_model(model, None, tmp_path / "model")
    return tmp_path / "model" / "model.safetensors"


def test_a_mapped_model_can_be_tied_or_untied(file):
    loaded = tiedgpt.load_model(file)
    if loaded.config.tied:
        other = loaded.untie()
        assert not np.shares_memory(other.W_U, other.W_E)
    else:
        other = loaded.tie()
        assert np.shares_memory(other.W_U, other.W_E)


def test_what_is_written_to_parameters_stays_in_the_model(file):
    """The file does not change. Nor do other models that are loaded from it before or after."""
    before = file.read_bytes()
    first = tiedgpt.load_model(file)
    second = tiedgpt.load_model(file)
    logits = second(IDS)
    for array in first.parameters.values():
        array[...] = 7  # any other number
    np.testing.assert_array_equal(second(IDS), logits)
    np.testing.assert_array_equal(tiedgpt.load_model(file)(IDS), logits)
    assert file.read_bytes() == before


def test_training_the_head_leaves_the_mapped_file_as_it_is(tmp_path):
    """The head that is trained is a copy. The other parameters stay those of the file."""
    tiedgpt.save_model(random_model(CONFIG.with_head("untied"), seed=1), None, tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    model = tiedgpt.load_model(tmp_path)
    settings = Settings(steps=1, batch=2, context=9)
    trainer = Trainer(model, np.arange(200), np.arange(50), settings, only="head")
    list(trainer.run())
    assert not np.shares_memory(trainer.model.W_U, model.W_U)
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_a_file_may_be_replaced_while_it_is_mapped(file, model, tmp_path):
    """The new file has the size and the time of the old one.

    The model that was loaded from the old file stays as it was. The next load reads the new file.
    """
    times = (os.stat(file).st_atime_ns, os.stat(file).st_mtime_ns)
    old = tiedgpt.load_model(file)
    new = random_model(model.config, seed=1)
    tiedgpt.save_model(new, None, tmp_path / "new")
    os.replace(tmp_path / "new" / "model.safetensors", file)
    os.utime(file, ns=times)
    np.testing.assert_array_equal(old.W_E, model.W_E)
    np.testing.assert_array_equal(tiedgpt.load_model(file).W_E, new.W_E)


@pytest.mark.parametrize("copy", [False, True])
def test_a_file_that_is_replaced_while_it_is_loaded_is_read_as_it_was(
    file, model, tmp_path, copy, monkeypatch
):
    """The header and all values are of one file: the one that was there when the load began."""
    tiedgpt.save_model(random_model(model.config, seed=1), None, tmp_path / "new")

    values = Tensor.values

    def replace_and_read(tensor: Tensor, copy: bool) -> np.ndarray:
        new = tmp_path / "new" / "model.safetensors"
        if new.exists():
            os.replace(new, file)
        return values(tensor, copy)

    monkeypatch.setattr(Tensor, "values", replace_and_read)
    loaded = tiedgpt.load_model(file, copy=copy)
    for name, array in model.parameters.items():
        np.testing.assert_array_equal(loaded.parameters[name], array)


# Why files are mapped: processes share memory, and start sooner

# A program that loads a model, uses it, and prints how many megabytes of memory it does not share
# with other processes.
PRIVATE_MEMORY = """
import sys, tiedgpt
model = tiedgpt.load_model(sys.argv[1], copy=sys.argv[2] == "copied")
model([1] * 20)
kilobytes = 0
with open("/proc/self/smaps_rollup") as file:
    for line in file:  # such as "Private_Dirty:    1234 kB"
        if line.startswith("Private"):
            _, number, _ = line.split()
            kilobytes += int(number)
print(kilobytes // 1024)
"""


def private_memory(path: Path, how: str) -> int:
    """How many megabytes a process that uses the model of `path` does not share.

    how: "mapped", or "copied" for a file that is read.
    """
    command = [sys.executable, "-c", PRIVATE_MEMORY, path, how]
    return int(subprocess.run(command, capture_output=True, check=True).stdout)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_processes_that_map_a_file_share_its_memory(tmp_path):
    """A process that maps a model of 54 MB has 45 MB less of its own than one that copies it.

    This process maps the file, too, and reads all of it. So there are two processes to share it.
    """
    config = tiedgpt.Config(vocab_size=20_000, n_embd=512, n_layer=1, n_head=8)
    tiedgpt.save_model(tiedgpt.GPT2.random(config), None, tmp_path)
    model = tiedgpt.load_model(tmp_path)
    for array in model.parameters.values():
        assert np.isfinite(array).all()  # reads them
    difference = private_memory(tmp_path, "copied") - private_memory(tmp_path, "mapped")
    assert difference > 45


# A program that calls tune, and prints a variable of OpenBLAS and whether NumPy was imported.
TUNE = """
import os, sys
before = dict(os.environ)
import tiedgpt.__main__
assert os.environ == before
tiedgpt.__main__.tune()
print("timeout:", os.environ["OPENBLAS_THREAD_TIMEOUT"])
print("NumPy was imported:", "numpy" in sys.modules)
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [pytest.param(None, "14", id="not-set"), pytest.param("26", "26", id="set-by-the-user")],
)
def test_tune_changes_the_environment_and_its_module_does_not(monkeypatch, before, after):
    """tune sets OPENBLAS_THREAD_TIMEOUT to 14, or leaves the user's own value.

    OpenBLAS reads the variable when NumPy is imported. So neither tune nor its module imports it.
    """
    monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT", raising=False)
    if before:
        monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", before)
    command = [sys.executable, "-c", TUNE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"timeout: {after}\nNumPy was imported: False\n"
