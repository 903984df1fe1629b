"""A checkpoint is opened once: a command opens each file of a model once."""

import errno
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.checkpoint_files import safetensors_content, write_config, write_shards, write_tensors
from support.checks import refuses
from support.layouts import in_layout
from support.models import random_model
from support.openai_files import (
    bundle,
    entry_proto,
    in_blocks,
    table,
    write_openai_files,
    write_openai_model,
)
from support.torch_files import torch_file

import tiedgpt
from tiedgpt import Config
from tiedgpt.checkpoints.files import adapter_tensors
from tiedgpt.checkpoints.names import LAYOUTS
from tiedgpt.checkpoints.opened import Opened
from tiedgpt.errors import TiedGPTWarning

SUPPORT = Path(__file__).parents[1] / "support"
SHIPPED = Path(tiedgpt.__file__).parents[1] / "weights" / "shakespeare-tied"
CONFIG = Config(
    vocab_size=1024, n_ctx=32, n_embd=64, n_layer=1, n_head=1, bos_token_id=1023, eos_token_id=1023
)
SIZES = {"n_layer": 1, "n_head": 1, "n_embd": 64, "block_size": 32, "vocab_size": 1024}
KINDS = ["tied", "untied", "shards", "torch", "nano", "openai"]  # folders that main writes
# With each kind as MODEL. What is in the folder `out` is written by the command.
COMMANDS = [
    "generate -m MODEL -n 2 -s 1 ROMEO:",
    "generate -m MODEL -n 2 -s 1 --head both ROMEO:",
    "next -m MODEL ROMEO:",
    "lens -m MODEL --head untied ROMEO:",
    "attribute -m MODEL ROMEO:",
    "score -m MODEL text",
    "tokenize -m MODEL ROMEO:",
    "params MODEL",
    "check MODEL",
    "study MODEL",
    "study MODEL --corpus text",
    "compare -m MODEL same.npz",
    "explore MODEL --no-browser --port 0",
    "resize MODEL out --vocab-size 1030",
    "train text --out out --from MODEL --steps 1 --batch 1 --context 8",
]
# A model of which the head is changed
COPIES = ["untie tied out", "untie shards out --init zeros", "tie untied out", "untie nano out"]
# Its workers are other processes, which open the model again.
DOCUMENTS = ["documents lines.jsonl --out out -m nano", "documents lines.jsonl --out out -m tied"]
VOCABULARY = ("merges.txt", "vocab.json", "vocab.bpe", "encoder.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a model of each of KINDS, a text, and arrays to compare."""
    root = tmp_path_factory.mktemp("models")
    model = random_model(CONFIG)
    write_tensors(root / "tied", model.parameters, CONFIG)
    write_tensors(root / "untied", model.untie("random").parameters, CONFIG.with_head("untied"))
    write_shards(root / "shards", model)
    write_config(root / "torch", CONFIG)
    (root / "torch" / "pytorch_model.bin").write_bytes(torch_file(model.parameters))
    (root / "nano").mkdir()
    nano_gpt = next(layout for layout in LAYOUTS if layout.program.startswith("nanoGPT"))
    saved = {"model": in_layout(model, nano_gpt), "model_args": {**SIZES, "bias": True}}
    (root / "nano" / "ckpt.pt").write_bytes(torch_file(saved))
    (root / "openai").mkdir()
    write_openai_model(root / "openai", model)
    for kind in KINDS:
        names = ("vocab.bpe", "encoder.json") if kind == "openai" else ("merges.txt", "vocab.json")
        shutil.copyfile(SHIPPED / "merges.txt", root / kind / names[0])
        shutil.copyfile(SHIPPED / "vocab.json", root / kind / names[1])
    (root / "text").write_text("What light through yonder window breaks? " * 40, encoding="utf-8")
    (root / "lines.jsonl").write_text('{"text": "What light"}\n', encoding="utf-8")
    ids = np.arange(9)
    np.savez(root / "same.npz", ids=ids, logits=model(ids))
    return root


@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_each_command_opens_each_file_of_a_model_once(folder, is_whole):
    """Every command with every kind, or each command but `documents` with one of the six kinds."""
    lines = list(COPIES)
    if is_whole and importlib.util.find_spec("distributed"):
        lines += DOCUMENTS
    for k, kind in enumerate(KINDS):
        for c, line in enumerate(COMMANDS):
            if is_whole or (k + c) % 6 == 0:
                lines.append(line.replace("MODEL", kind))
    lines = [line.replace(" out", f" out-{is_whole}-{number}") for number, line in enumerate(lines)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [sys.executable, SUPPORT / "count_opens.py"],
        input=json.dumps(lines),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    more = {}
    for line, (code, err, opened) in zip(lines, json.loads(result.stdout), strict=True):
        assert code in (0, 1), f"{line}: {err}"
        of_models = {file: n for file, n in opened.items() if file.split("/")[0] in KINDS}
        assert of_models, f"{line} opens nothing"
        for file, n in of_models.items():
            if n > 1:
                more[f"{line}: {file}"] = n
    assert more == {}


def test_the_files_of_a_tokenizer_are_copied_as_they_are(tmp_path):
    """The vocabulary is merges.txt alone, so that a vocab.json is added beside it."""
    model = write_tensors(tmp_path / "model", random_model(CONFIG).parameters, CONFIG)
    merges = (SHIPPED / "merges.txt").read_bytes().replace(b"#version: 0.2", b"#version: 0.1")
    settings = b'{"model_max_length": 32}'
    (model / "merges.txt").write_bytes(merges)
    (model / "vocab.bpe").write_bytes(b"of OpenAI, which counts where there is no merges.txt")
    (model / "tokenizer_config.json").write_bytes(settings)
    copied = Opened(model).copied_files()
    assert copied["merges.txt"] == merges
    assert copied["tokenizer_config.json"] == settings
    assert "vocab.json" in copied


def test_a_damaged_file_is_an_error_each_time_that_it_is_asked_for(tmp_path):
    """The tokenizer, which needs no such file, is read first, as commands do."""
    folder = tmp_path / "model"
    shutil.copytree(SHIPPED, folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": 5')
    opened = Opened(folder)
    assert opened.tokenizer.vocab_size == 1024
    for _ in range(2):
        refuses(r"generation_config\.json: not JSON", opened.model)


def test_a_directory_whose_files_may_not_be_read_is_refused(tmp_path, monkeypatch):
    """os.access stands for the system, which refuses nothing to root."""
    folder = write_tensors(tmp_path, random_model(CONFIG).parameters, CONFIG)
    denied = {folder: os.X_OK}
    monkeypatch.setattr(os, "access", lambda path, mode: denied.get(path) != mode)
    for path in (folder, folder / "model.safetensors"):
        for function in (tiedgpt.load_model, tiedgpt.load_tokenizer):
            message = f"{folder}: its files cannot be read: no permission"
            refuses(f"^{re.escape(message)}$", function, path)
    denied.clear()
    tiedgpt.load_model(folder)


def test_a_path_in_a_directory_that_may_not_be_read_is_not_said_to_be_missing(monkeypatch):
    def stat(path: str, **options: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "stat", stat)
    message = refuses("no permission to look for such a file", tiedgpt.load_model, "/other/model")
    assert "no such file" not in message


def adapter_beside(folder: Path, tensors: dict | None) -> Opened:
    """A model with the settings and perhaps the tensors of an adapter beside it."""
    write_tensors(folder, random_model(CONFIG).parameters, CONFIG)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    if tensors is not None:
        (folder / "adapter_model.safetensors").write_bytes(safetensors_content(tensors))
    return Opened(folder)


@pytest.mark.parametrize(
    "kind", ["PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "CPT"]
)
def test_an_adapter_that_adds_to_the_prompt_cannot_be_merged(tmp_path, kind):
    adapter_beside(tmp_path, None)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": kind}))
    assert "it adds to the prompt, so it cannot be merged" in Opened(tmp_path).adapter
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    assert "it adds to the prompt" not in Opened(tmp_path).adapter


def test_the_weights_of_an_adapter_may_be_a_file_of_torch(tmp_path):
    opened = adapter_beside(tmp_path, None)
    name = "base_model.model.lm_head.lora_A.weight"
    content = torch_file({name: np.ones((2, 2), np.float32)})
    (tmp_path / "adapter_model.bin").write_bytes(content)
    assert opened.adapter.endswith(f"; it changes the head: adapter_model.bin has '{name}'")
    assert list(adapter_tensors(tmp_path)) == [name]


def test_of_two_files_of_an_adapter_the_one_of_safetensors_counts(tmp_path):
    name = "base_model.model.transformer.wte.weight"
    opened = adapter_beside(tmp_path, {name: np.ones((2, 2), np.float32)})
    (tmp_path / "adapter_model.bin").write_bytes(torch_file({"other": np.ones((2, 2))}))
    assert opened.adapter.endswith(f"; it changes the head: adapter_model.safetensors has '{name}'")
    assert list(adapter_tensors(tmp_path)) == [name]
    (tmp_path / "adapter_config.json").unlink()  # without it, they may be of anything
    assert adapter_tensors(tmp_path) == {}


def test_what_is_said_of_an_adapter(tmp_path):
    kind = "adapter_config.json is of an adapter, 'LORA', which lies beside the model"
    ones = np.ones((2, 2), np.float32)
    of_layer = {"base_model.model.transformer.h.0.attn.c_attn.lora_A.weight": ones}
    of_head = {"base_model.model.lm_head.lora_A.weight": ones}

    bare = adapter_beside(tmp_path / "bare", None).adapter
    assert bare.endswith("its weights are not here")
    assert "compare its logits before and after" in bare
    plain = adapter_beside(tmp_path / "layer", of_layer).adapter
    assert plain.startswith(kind)
    assert "head" not in plain
    changed = adapter_beside(tmp_path / "head", of_head).adapter
    assert changed.endswith(
        "adapter_model.safetensors has 'base_model.model.lm_head.lora_A.weight'"
    )
    assert "; it changes the head: " in changed
    assert "do not merge it into a tied model" in changed

    replaced = {"base_model.model.lm_head.weight": ones}
    saved = adapter_beside(tmp_path / "saved", of_layer | replaced).adapter
    assert "compare its logits before and after" in saved

    of_another = {
        "base_model.model.transformer.h.0.new_wte.lora_A.weight": ones,
        "base_model.model.transformer.h.0.wte_new.lora_A.weight": ones,
    }
    assert "head" not in adapter_beside(tmp_path / "another", of_another).adapter

    of_wte = {"base_model.model.transformer.wte.lora_embedding_A": ones}
    changed = adapter_beside(tmp_path / "wte", of_wte).adapter
    assert "; it changes the head: " in changed
    assert "do not merge it into a tied model" in changed

    opened = adapter_beside(tmp_path / "damaged", of_head)
    file = tmp_path / "damaged" / "adapter_model.safetensors"
    file.write_bytes(b"1234567")
    assert opened.adapter.endswith(
        f"; whether it changes the head is not known: {file}: damaged: truncated, or not a "
        f"safetensors file: 7 bytes, a header of {int.from_bytes(b'1234567', 'little')}; expected "
        "at most 4194304"
    )
    (tmp_path / "damaged" / "adapter_config.json").write_text("{")
    opened = Opened(tmp_path / "damaged")
    assert opened.adapter.startswith("an adapter lies beside the model, and is not used nor known")
    assert Opened(SHIPPED).adapter == ""


def test_a_config_alone_has_no_weights(tmp_path):
    write_config(tmp_path, CONFIG)
    file = tmp_path / "config.json"
    opened = Opened(file)
    assert not opened.has_weights
    assert opened.saved.tensors == {}
    refuses(f"^{re.escape(str(file))} has no weights: give its directory$", lambda: opened.tensors)


def test_rows_of_two_matrices_of_a_model(tmp_path):
    model = random_model(CONFIG).untie("random")
    write_tensors(tmp_path, model.parameters, CONFIG.with_head("untied"))
    opened = Opened(tmp_path)
    one, other = (tensor for tensor in opened.stored.values() if tensor.shape == (1024, 64))
    assert opened.equal_rows(one, other) == (0, 1024)
    assert opened.equal_rows(one, one) == (1024, 1024)
    near = np.full((3, 5), 1 + 2**-9, np.float32)  # 1 in bfloat16
    write_tensors(tmp_path, {"one": np.ones_like(near), "near": near})
    opened = Opened(tmp_path)
    one, near = opened.stored.values()
    assert opened.equal_rows(one, near) == (0, 3)
    assert opened.equal_rows(one, near, rounded=True) == (3, 3)


def test_openais_tensors_have_the_names_of_transformers(tmp_path):
    """One that no GPT-2 has keeps its name. That of an optimizer is left out with a note."""
    model = random_model(CONFIG)
    entries, data = bundle(model)
    for name in (b"model/more", b"beta1_power"):
        entries.append((name, entry_proto((), offset=len(data))))
        data += bytes(4)
    write_openai_files(tmp_path, table(in_blocks(sorted(entries))), data, CONFIG)
    opened = Opened(tmp_path)
    names = {f"transformer.{name}" for name in model.parameters}
    assert set(opened.stored) == {*names, "model/more"}
    assert all(tensor.name == name for name, tensor in opened.stored.items())
    index = tmp_path / "model.ckpt.index"
    assert opened.notes == [f"{index}: 1 tensors of an optimizer are not used"]
    assert opened.config_json == {"model_type": "gpt2", "vocab_size": 1024, "n_embd": 64}


def test_a_ckpt_pt_with_no_sizes_is_refused(tmp_path):
    """They are asked for in this file, and not in a config.json that is missing."""
    path = tmp_path / "ckpt.pt"
    path.write_bytes(torch_file({"model": random_model(CONFIG).parameters, "model_args": {}}))
    message = refuses("model_args", lambda: Opened(path).config)
    assert str(path) in message
    assert "config.json" not in message


def test_a_model_is_called_by_its_path_if_it_has_no_name(tmp_path):
    write_tensors(tmp_path, random_model(CONFIG).parameters, CONFIG)
    assert Opened(tmp_path).name == str(tmp_path)
    assert Opened(tmp_path, "gpt2").name == "gpt2"


def test_a_model_that_is_loaded_twice_has_the_same_warnings(tmp_path):
    write_tensors(tmp_path, random_model(CONFIG).untie("random").parameters, CONFIG)
    opened = Opened(tmp_path)
    for _ in range(2):
        with pytest.warns(TiedGPTWarning, match="config.json says tied") as caught:
            opened.model()
        assert len(caught) == 1
