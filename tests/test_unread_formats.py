"""Files in formats that are not read: the error, in one line, names the format and what to do."""

import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.checkpoint_files import write_tensors
from support.checks import refuses
from support.commands import assert_one_error_line
from support.models import CONFIG, random_model

import tiedgpt

README = Path(__file__).resolve().parents[1] / "README.md"

# The name of a file, its first bytes, and what the error says of it.
FILES_FOUND_IN_A_DIRECTORY = [
    pytest.param("ckpt.pt", b"PK\x03\x04\0\0", "is a file of PyTorch .* a pickle", id="nanogpt"),
    pytest.param(
        "pytorch_model.bin", b"\x80\x02}q\0.", "is a file of PyTorch .* a pickle", id="old-pickle"
    ),
    pytest.param(
        "model_124M.bin", (20240326).to_bytes(4, "little"), "is a checkpoint of llm.c", id="llm.c"
    ),
    pytest.param("model.gguf", b"GGUF\3\0\0\0", "is a GGUF file", id="gguf"),
    pytest.param("tf_model.h5", b"\x89HDF\r\n\x1a\n", "is an HDF5 file", id="h5"),
    pytest.param("model.onnx", b"\x08\x08\x12\x07pytorch", "is an ONNX file", id="onnx"),
    pytest.param("flax_model.msgpack", b"\x81\xa6params", "is a file of Flax", id="flax"),
]
# Not named when it is found in a directory, because an archive of NumPy may hold anything.
NPZ = pytest.param("weights.npz", b"PK\x03\x04\0\0", "is an archive of NumPy", id="npz")


@pytest.mark.parametrize(("name", "content", "message"), [*FILES_FOUND_IN_A_DIRECTORY, NPZ])
@pytest.mark.parametrize("has_config", [False, True])
def test_the_error_names_the_format_of_a_file(tmp_path, name, content, message, has_config):
    if has_config:
        write_tensors(tmp_path, random_model().parameters)
    (tmp_path / name).write_bytes(content)
    error = refuses(f"{name} {message}", tiedgpt.load_model, tmp_path / name)
    assert "README.md, Checkpoints of other programs" in error


@pytest.mark.parametrize(("name", "content", "message"), FILES_FOUND_IN_A_DIRECTORY)
def test_the_error_names_a_file_in_a_directory_without_safetensors(
    tmp_path, name, content, message
):
    """In brackets, after the files that the directory lacks."""
    write_tensors(tmp_path, random_model().parameters)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / name).write_bytes(content)
    error = refuses(
        rf"neither model\.safetensors nor .* \({name} {message}", tiedgpt.load_model, tmp_path
    )
    assert "README.md, Checkpoints of other programs" in error
    assert f"({name} is" in error


def test_the_error_names_an_onnx_file_in_the_subdirectory_onnx(tmp_path):
    write_tensors(tmp_path, random_model().parameters)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "decoder_model.onnx").write_bytes(b"\x08\x08")
    refuses(r"\(onnx/decoder_model\.onnx is an ONNX file", tiedgpt.load_model, tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.ckpt.index", "is one of OpenAI's files; give its directory$"),
        ("model.ckpt.data-00000-of-00001", "is one of OpenAI's files; give its directory$"),
        ("model.safetensors.index.json", "is the index of several files; give its directory$"),
    ],
)
def test_for_one_of_several_files_the_error_asks_for_the_directory(tmp_path, name, message):
    (tmp_path / name).write_bytes(b"")
    refuses(message, tiedgpt.load_model, tmp_path / name)


def test_a_file_of_an_unknown_format_is_not_a_checkpoint(tmp_path):
    (tmp_path / "notes.txt").write_text("none")
    message = r"notes\.txt is not a checkpoint: expected a directory or a \.safetensors file$"
    refuses(message, tiedgpt.load_model, tmp_path / "notes.txt")


def test_the_error_names_a_file_in_a_directory_without_config_json(tmp_path):
    """nanoGPT writes such a directory."""
    (tmp_path / "ckpt.pt").write_bytes(b"PK\x03\x04")
    message = r"it has no config\.json \(ckpt\.pt is a file of PyTorch"
    refuses(message, tiedgpt.load_model, tmp_path)


def test_the_error_does_not_name_files_of_a_trainer_that_hold_no_model(tmp_path):
    (tmp_path / "optimizer.pt").write_bytes(b"PK\x03\x04")
    (tmp_path / "training_args.bin").write_bytes(b"PK\x03\x04")
    refuses(r"it has no config\.json$", tiedgpt.load_model, tmp_path)


def test_the_ending_of_a_files_name_may_be_in_capitals(tmp_path):
    (tmp_path / "M.ONNX").write_bytes(b"12345678")
    refuses("is an ONNX file", tiedgpt.load_model, tmp_path / "M.ONNX")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("x.gguf", b"GGUF1234", "is a GGUF file", id="gguf"),
        pytest.param("x.onnx", b"12345678", "is an ONNX file", id="onnx"),
    ],
)
def test_compare_names_the_format_of_a_file(run, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    result = run("compare", "-m", "shakespeare-tied", str(tmp_path / name))
    assert_one_error_line(result, message)


def test_compare_names_a_file_of_pytorch(run, tmp_path):
    """It is a zip file, like an .npz file, which compare reads."""
    with zipfile.ZipFile(tmp_path / "ckpt.pt", "w") as archive:
        archive.writestr("ckpt/data.pkl", b"")
    result = run("compare", "-m", "shakespeare-tied", str(tmp_path / "ckpt.pt"))
    assert_one_error_line(result, "is a file of PyTorch")


# What the README says


def test_the_readme_has_the_section_that_errors_name():
    assert "\n## Checkpoints of other programs\n" in README.read_text()


def test_the_code_in_the_readme_converts_a_ckpt_pt_of_nanogpt(tmp_path, monkeypatch):
    """It reads ckpt.pt and writes the directory my-model. nanoGPT uses the exact gelu."""
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    model = random_model(CONFIG.with_head("untied"))
    state = {name: torch.tensor(array) for name, array in model.parameters.items()}
    torch.save({"model": state, "iter_num": 3}, "ckpt.pt")
    block = re.search(r"```text\n(state = torch\.load.*?)```", README.read_text(), re.DOTALL)
    # A ckpt.pt does not hold n_head, so the user writes it into the code.
    lines = block[1].replace("n_head=12", f"n_head={CONFIG.n_head}")
    exec(lines, {"torch": torch, "tiedgpt": tiedgpt})
    converted = tiedgpt.load_model("my-model")
    assert converted.config.activation_function == "gelu"
    np.testing.assert_array_equal(converted.W_U, model.W_U)
