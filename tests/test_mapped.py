"""The parameters are views of the mapped file: it is never written to, and may be replaced."""

import mmap
import os
import subprocess
import sys

import numpy as np
import pytest
from support.checks import refuses
from support.models import CONFIG, random_model

import tiedgpt
from tiedgpt.checkpoints import checkpoint, huggingface, safetensors
from tiedgpt.checkpoints.formats import open_checkpoint
from tiedgpt.training.loop import Settings, Trainer

IDS = list(range(50))


def buffer(array: np.ndarray) -> object:
    """What the array is a view of in the end."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array


@pytest.fixture(params=["tied", "untied"])
def saved(request, tmp_path):
    """A model and the file that it was saved to."""
    model = random_model(CONFIG.with_head(request.param))
    tiedgpt.save_model(model, None, tmp_path / "model")
    return model, tmp_path / "model" / "model.safetensors"


def move_data(file, spaces: int) -> None:
    """Let the data start so many bytes later."""
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = (size + spaces).to_bytes(8, "little") + content[8 : 8 + size] + b" " * spaces
    file.write_bytes(header + content[8 + size :])


@pytest.mark.parametrize(
    ("how", "mapped"),
    [
        ("", True),
        ("later", True),
        ("unaligned", False),
        ("copy", False),
        ("Windows", False),
        ("old", True),
    ],
)
def test_mapped_where_it_can_be(saved, how, mapped, monkeypatch):
    model, file = saved
    if how in ("later", "unaligned"):
        move_data(file, 4 if how == "later" else 3)
    if how == "Windows":
        monkeypatch.setattr(checkpoint.os, "name", "nt")
    if how == "old":  # as on systems without these kinds of advice
        monkeypatch.setattr(safetensors, "MADV_POPULATE_READ", 12345)
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    loaded = open_checkpoint(file).load(**({"copy": True} if how == "copy" else {}))
    monkeypatch.undo()
    assert loaded.config == model.config
    for name, array in loaded.parameters.items():
        np.testing.assert_array_equal(array, model.parameters[name])
        assert isinstance(buffer(array), mmap.mmap) == mapped, name
        assert array.flags.carray, name  # writeable, aligned, in row order
    np.testing.assert_allclose(loaded(IDS), model(IDS), atol=1e-4)
    other = loaded.untie() if loaded.config.tied else loaded.tie()
    assert np.shares_memory(other.W_U, other.W_E) == other.config.tied


def test_what_is_written_to_parameters_stays_in_the_model(saved):
    _, file = saved
    before, first, second = file.read_bytes(), tiedgpt.load_model(file), tiedgpt.load_model(file)
    for array in first.parameters.values():
        array[...] = 7
    logits = second(IDS, edit={"mlp.0.out": np.zeros_like})
    if not second.config.tied:
        trainer = Trainer(
            second, np.arange(200), np.arange(50), Settings(steps=1, batch=2, context=9), "head"
        )
        list(trainer.run())
        assert buffer(trainer.model.W_U) is not buffer(second.W_U)
    np.testing.assert_array_equal(
        tiedgpt.load_model(file)(IDS, edit={"mlp.0.out": np.zeros_like}), logits
    )
    assert file.read_bytes() == before


def test_a_file_may_be_replaced_while_it_is_mapped(saved):
    """By save_model, even over the model's own file, and by one of the same size and time."""
    model, file = saved
    times = os.stat(file).st_atime_ns, os.stat(file).st_mtime_ns
    old = tiedgpt.load_model(file)
    new = random_model(model.config, seed=1)
    tiedgpt.save_model(new, None, file.parent)
    os.utime(file, ns=times)
    np.testing.assert_array_equal(old.W_E, model.W_E)
    np.testing.assert_array_equal(tiedgpt.load_model(file).W_E, new.W_E)
    tiedgpt.save_model(old, None, file.parent)
    np.testing.assert_array_equal(tiedgpt.load_model(file).W_E, model.W_E)


UNTIED = random_model(CONFIG.with_head("untied"), seed=1)
CHANGE = {
    "emptied": lambda file: file.write_bytes(b""),
    "moved": lambda file: move_data(file, 64),
    "replaced": lambda file: tiedgpt.save_model(UNTIED, None, file.parent),
}
CHANGES = [(kind, False, copy) for kind in CHANGE for copy in (False, True)]
# Only "replaced" while it is mapped: a mapped file that is changed in place ends the process.
CHANGES += [*((kind, True, True) for kind in CHANGE), ("replaced", True, False)]


def test_a_file_that_is_replaced_while_it_is_opened_is_an_error(saved, monkeypatch):
    """The header is read before the state of the file is noted."""
    _, file = saved
    check = huggingface.check_tensor_shapes
    monkeypatch.setattr(
        huggingface, "check_tensor_shapes", lambda *rest: check(*rest) or move_data(file, 64)
    )
    refuses(r"model\.safetensors: was replaced while", open_checkpoint, file)


@pytest.mark.parametrize(("kind", "meanwhile", "copy"), CHANGES)
def test_a_file_that_is_replaced_before_it_is_loaded_or_meanwhile_is_an_error(
    saved, kind, meanwhile, copy
):
    """Otherwise the model could be a mixture of two, and nobody would notice."""
    _, file = saved
    checkpoint = open_checkpoint(file)
    changes = [lambda: CHANGE[kind](file)]
    if not meanwhile:
        changes.pop()()
    message = r"model\.safetensors: (was replaced while|cannot be read: it is too)"
    refuses(
        message, lambda: checkpoint.load(progress=lambda _: changes and changes.pop()(), copy=copy)
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_processes_share_the_pages(tmp_path):
    """Pages that it reads but shares do not count as its own."""
    config = tiedgpt.Config(vocab_size=20_000, n_embd=512, n_layer=2, n_head=8)  # 68 MB
    tiedgpt.save_model(tiedgpt.GPT2.random(config), None, tmp_path / "model")
    code = (
        "import sys, tiedgpt; model = tiedgpt.load_model(sys.argv[1], copy=sys.argv[2] == 'copied'); "
        "model([1] * 20); lines = open('/proc/self/smaps_rollup').read().splitlines(); "
        "print(sum(int(line.split()[1]) for line in lines if line.startswith('Private')) // 1024)"
    )

    def private(how: str) -> int:  # MB
        arguments = [sys.executable, "-c", code, str(tmp_path / "model"), how]
        return int(subprocess.run(arguments, capture_output=True, check=True).stdout)

    model = tiedgpt.load_model(tmp_path / "model")
    assert all(np.isfinite(array).all() for array in model.parameters.values())
    assert private("copied") - private("mapped") > 60


@pytest.mark.parametrize(("before", "after"), [(None, "22"), ("26", "26")])
def test_only_tune_changes_the_environment(monkeypatch, before, after):
    """OpenBLAS reads the variable when NumPy is imported, which neither of them does."""
    name = "OPENBLAS_THREAD_TIMEOUT"
    monkeypatch.delenv(name, raising=False)
    if before:
        monkeypatch.setenv(name, before)
    code = (
        "import os, sys; old = dict(os.environ); import tiedgpt.fast; assert os.environ == old; "
        f"tiedgpt.fast.tune(); print(os.environ['{name}'], 'numpy' in sys.modules)"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert output.split() == [after, "False"]
