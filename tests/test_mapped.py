"""load_model(mapped=True): the same weights and bits, read-only, from one file that all processes share."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import CONFIG, random_model

import tiedgpt
from tiedgpt.checkpoints import huggingface
from tiedgpt.errors import CheckpointError

IDS = list(range(50))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tiedgpt" / ".mapped"


@pytest.mark.parametrize("head", [None, "tied", "untied"])
@pytest.mark.parametrize("own", ["tied", "untied"])
def test_a_mapped_model_is_the_model(tmp_path, own, head):
    tiedgpt.save_model(random_model(CONFIG.with_head(own)), None, tmp_path / "model")
    model = tiedgpt.load_model(tmp_path / "model", head)
    for mapped in (tiedgpt.load_model(tmp_path / "model", head, mapped=True) for _ in range(2)):
        assert mapped.config == model.config
        np.testing.assert_array_equal(mapped(IDS), model(IDS))
        for name, array in mapped.parameters.items():
            np.testing.assert_array_equal(array, model.parameters[name])
            assert array.strides == model.parameters[name].strides, name
            assert array.__array_interface__["data"][0] % 4096 == 0
            assert not array.flags.writeable
        trained = mapped.untie() if mapped.config.tied else mapped.tie()
        assert trained.config.head != mapped.config.head


def test_the_file_is_written_once_and_again_for_another_checkpoint(checkpoint, cache, tmp_path, monkeypatch):
    loads, load = [], huggingface.Checkpoint.load
    monkeypatch.setattr(huggingface.Checkpoint, "load", lambda *rest: loads.append(rest) or load(*rest))
    for _ in range(3):
        tiedgpt.load_model(checkpoint, mapped=True)
    assert len(loads) == 1
    tiedgpt.load_model(checkpoint, "untied", mapped=True)
    assert len(loads) == 2
    for seed in (1, 2):  # the same path
        model = random_model(CONFIG, seed=seed)
        tiedgpt.save_model(model, None, tmp_path / "model")
        mapped = tiedgpt.load_model(tmp_path / "model", mapped=True)
        np.testing.assert_array_equal(mapped.W_E, model.W_E)
    assert len(loads) == 4
    assert sorted(os.listdir(next(cache.iterdir()))) == ["weights"]
    assert len(os.listdir(cache)) == 4


def test_a_file_of_another_size_is_an_error(checkpoint, cache):
    tiedgpt.load_model(checkpoint, mapped=True)
    [path] = cache.glob("*/weights")
    with open(path, "ab") as file:
        file.write(b"x")
    with pytest.raises(CheckpointError, match="remove this folder"):
        tiedgpt.load_model(checkpoint, mapped=True)


def test_processes_that_start_at_once_share_one_file(checkpoint, cache):
    code = "import sys, tiedgpt; print(float(tiedgpt.load_model(sys.argv[1], mapped=True)([1, 2]).sum()))"
    processes = [
        subprocess.Popen([sys.executable, "-c", code, checkpoint], stdout=subprocess.PIPE) for _ in range(4)
    ]
    outputs = {process.communicate(timeout=60)[0] for process in processes}
    assert len(outputs) == 1
    assert float(outputs.pop()) == pytest.approx(float(tiedgpt.load_model(checkpoint)([1, 2]).sum()))
    assert len(list(cache.iterdir())) == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_second_process_adds_little_memory(cache, tmp_path):
    """Pages that it reads but shares do not count as its own."""
    config = tiedgpt.Config(vocab_size=20_000, n_embd=512, n_layer=2, n_head=8)  # 68 MB
    tiedgpt.save_model(tiedgpt.GPT2.random(config), None, tmp_path / "model")
    code = (
        "import sys, tiedgpt; model = tiedgpt.load_model(sys.argv[1], mapped=sys.argv[2] == 'mapped'); "
        "model([1] * 20); lines = open('/proc/self/smaps_rollup').read().splitlines(); "
        "print(sum(int(line.split()[1]) for line in lines if line.startswith('Private')) // 1024)"
    )

    def private(how: str) -> int:  # MB
        arguments = [sys.executable, "-c", code, str(tmp_path / "model"), how]
        return int(subprocess.run(arguments, capture_output=True, check=True).stdout)

    tiedgpt.load_model(tmp_path / "model", mapped=True)
    # This process maps the pages too, so they are shared.
    model = tiedgpt.load_model(tmp_path / "model", mapped=True)
    assert all(np.isfinite(array).all() for array in model.parameters.values())
    assert private("copied") - private("mapped") > 60
