"""The parameters of a loaded model are views of its file, which is mapped into memory.

The file is never written to. It may be replaced while a model uses it. A file that is not mapped is
read: the parameters are then arrays with memory of their own. With copy=True every file is read.
"""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.checks import refuses
from support.models import CONFIG, random_model

import tiedgpt
from tiedgpt.checkpoints import checkpoint, huggingface, safetensors
from tiedgpt.checkpoints.formats import open_checkpoint
from tiedgpt.training.loop import Settings, Trainer

IDS = list(range(50))
OTHER_MODEL = random_model(CONFIG.with_head("untied"), seed=1)


@pytest.fixture(params=["tied", "untied"])
def model(request) -> tiedgpt.GPT2:
    return random_model(CONFIG.with_head(request.param))


@pytest.fixture
def file(model, tmp_path) -> Path:
    """The file to which the model was saved."""
    tiedgpt.save_model(model, None, tmp_path / "model")
    return tmp_path / "model" / "model.safetensors"


def move_data(file: Path, spaces: int) -> None:
    """Move the data of the file by so many bytes: add spaces to the end of the header.

    The first eight bytes of the file are the length of the header. The data follows the header.
    """
    content = file.read_bytes()
    data_start = 8 + int.from_bytes(content[:8], "little")
    header = content[8:data_start] + b" " * spaces
    data = content[data_start:]
    file.write_bytes(len(header).to_bytes(8, "little") + header + data)


def memory_of(array: np.ndarray) -> object:
    """The object that owns the memory of the array: a mapped file, or an array."""
    memory: object = array
    while isinstance(memory, np.ndarray) and memory.base is not None:
        memory = memory.base
    return memory


def assert_same_parameters(loaded: tiedgpt.GPT2, model: tiedgpt.GPT2, is_mapped: bool) -> None:
    """`loaded` has the parameters of `model`, as views of a mapped file or as arrays of its own."""
    assert loaded.config == model.config
    for name, array in loaded.parameters.items():
        np.testing.assert_array_equal(array, model.parameters[name])
        is_in_file = isinstance(memory_of(array), mmap.mmap)
        assert is_in_file == is_mapped, name
        assert array.flags.carray, name  # writeable, aligned, in row order
    np.testing.assert_allclose(loaded(IDS), model(IDS), atol=1e-4)


# When a file is mapped


def test_a_file_is_mapped(file, model):
    assert_same_parameters(open_checkpoint(file).load(), model, is_mapped=True)


def test_a_file_whose_data_starts_four_bytes_later_is_mapped(file, model):
    """A float32 may start at any multiple of four bytes."""
    move_data(file, 4)
    assert_same_parameters(open_checkpoint(file).load(), model, is_mapped=True)


def test_floats_that_are_not_aligned_are_read(file, model):
    move_data(file, 3)
    assert_same_parameters(open_checkpoint(file).load(), model, is_mapped=False)


def test_a_copy_is_read(file, model):
    assert_same_parameters(open_checkpoint(file).load(copy=True), model, is_mapped=False)


def test_on_windows_a_file_is_read(file, model, monkeypatch):
    with monkeypatch.context() as windows:  # only for the load: pytest needs the real name
        windows.setattr(checkpoint.os, "name", "nt")
        loaded = open_checkpoint(file).load()
    assert_same_parameters(loaded, model, is_mapped=False)


def test_a_file_is_mapped_although_madvise_fails(file, model, monkeypatch):
    """The system does not know MADV_POPULATE_READ if its number is 12345, nor MADV_HUGEPAGE."""
    monkeypatch.setattr(safetensors, "MADV_POPULATE_READ", 12345)
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert_same_parameters(open_checkpoint(file).load(), model, is_mapped=True)


def test_a_mapped_model_can_be_tied_or_untied(file, model):
    loaded = tiedgpt.load_model(file)
    if loaded.config.tied:
        other = loaded.untie()
        assert not np.shares_memory(other.W_U, other.W_E)
    else:
        other = loaded.tie()
        assert np.shares_memory(other.W_U, other.W_E)


# Who sees a change


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
    tiedgpt.save_model(OTHER_MODEL, None, tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    model = tiedgpt.load_model(tmp_path)
    settings = Settings(steps=1, batch=2, context=9)
    trainer = Trainer(model, np.arange(200), np.arange(50), settings, only="head")
    list(trainer.run())
    assert memory_of(trainer.model.W_U) is not memory_of(model.W_U)
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_a_file_may_be_replaced_while_it_is_mapped(file, model):
    """The new file has the size and the time of the old one.

    The model that was loaded from the old file stays as it was. The next load reads the new file.
    """
    times = (os.stat(file).st_atime_ns, os.stat(file).st_mtime_ns)
    old = tiedgpt.load_model(file)
    new = random_model(model.config, seed=1)
    tiedgpt.save_model(new, None, file.parent)
    os.utime(file, ns=times)
    np.testing.assert_array_equal(old.W_E, model.W_E)
    np.testing.assert_array_equal(tiedgpt.load_model(file).W_E, new.W_E)


def test_a_mapped_model_can_be_saved_over_its_own_file(file, model):
    tiedgpt.save_model(tiedgpt.load_model(file), None, file.parent)
    np.testing.assert_array_equal(tiedgpt.load_model(file).W_E, model.W_E)


# A file that is changed while it is opened or loaded. Without an error, the loaded model could be a
# mixture of two models.


def test_a_file_that_is_replaced_while_it_is_opened_is_refused(file, monkeypatch):
    """It is replaced after its header is read, and before its size and time are noted."""
    check = huggingface.check_tensor_shapes

    def check_and_replace(*arguments):
        check(*arguments)
        move_data(file, 64)  # the same tensors are 64 bytes further

    monkeypatch.setattr(huggingface, "check_tensor_shapes", check_and_replace)
    refuses(r"model\.safetensors: was replaced while", open_checkpoint, file)


def empty(file: Path) -> None:
    """Remove the content of the file, in place."""
    file.write_bytes(b"")


def move(file: Path) -> None:
    """Move the data of the file by one cache line, in place."""
    move_data(file, 64)


def replace(file: Path) -> None:
    """Put the file of a different model in its place."""
    tiedgpt.save_model(OTHER_MODEL, None, file.parent)


REPLACED = r"model\.safetensors: (was replaced while|cannot be read: it is too)"


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("change", [empty, move, replace])
def test_a_file_that_is_changed_before_it_is_loaded_is_refused(file, change, copy):
    opened = open_checkpoint(file)
    change(file)
    refuses(REPLACED, lambda: opened.load(copy=copy))


@pytest.mark.parametrize(
    ("change", "copy"),
    [
        pytest.param(empty, True, id="empty"),
        pytest.param(move, True, id="move"),
        pytest.param(replace, True, id="replace"),
        # If `empty` or `move` changes a mapped file in place, the system ends the process.
        pytest.param(replace, False, id="replace-mapped"),
    ],
)
def test_a_file_that_is_changed_while_it_is_loaded_is_refused(file, change, copy):
    """The load calls `progress` again and again. The first call changes the file."""
    opened = open_checkpoint(file)
    calls = []

    def change_once(n):
        calls.append(n)
        if len(calls) == 1:
            change(file)

    refuses(REPLACED, lambda: opened.load(progress=change_once, copy=copy))
    assert calls != [], "the file was changed"


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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_processes_that_map_a_file_share_its_memory(tmp_path):
    """A process that maps a model of 68 MB has 60 MB less of its own than one that copies it.

    This process maps the file, too, and reads all of it. So there are two processes to share it.
    """
    config = tiedgpt.Config(vocab_size=20_000, n_embd=512, n_layer=2, n_head=8)
    tiedgpt.save_model(tiedgpt.GPT2.random(config), None, tmp_path)
    model = tiedgpt.load_model(tmp_path)
    for array in model.parameters.values():
        assert np.isfinite(array).all()  # reads them
    difference = private_memory(tmp_path, "copied") - private_memory(tmp_path, "mapped")
    assert difference > 60


# A program that calls tune, and prints a variable of OpenBLAS and whether NumPy was imported.
TUNE = """
import os, sys
before = dict(os.environ)
import tiedgpt.fast
assert os.environ == before
tiedgpt.fast.tune()
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
