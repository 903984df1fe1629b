"""A file that is edited at random is read as what it says now, or refused in a line that names it.

A case is a kind of file: how a directory with it is written, how it is read, and a check that what
was read is what the file says, by a second reader of a few lines that refuses nothing.
"""

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoint_files import write_config, write_shards, write_tensors
from support.layouts import in_layout
from support.models import random_model
from support.openai_files import write_openai_model
from support.torch_files import SecondReader, torch_file

import tiedgpt
from tiedgpt import GPT2, Config, TiedGPTError
from tiedgpt.checkpoints import tensorflow
from tiedgpt.checkpoints.model_names import PYTORCH
from tiedgpt.checkpoints.names import LAYOUTS, Layout, plain_name
from tiedgpt.comparison.compare import compare
from tiedgpt.comparison.recording import read_arrays
from tiedgpt.training.loop import Trainer
from tiedgpt.training.start import Settings

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies
given = hypothesis.given

TINY = Config(
    vocab_size=7, n_ctx=5, n_embd=4, n_layer=1, n_head=2, n_inner=3, bos_token_id=6, eos_token_id=6
)
OPENAIS = replace(TINY, n_inner=4 * TINY.n_embd)  # OpenAI's format has no other n_inner
IDS = np.arange(40) % TINY.vocab_size  # a text
STATE = "training.safetensors"
# Some edited files are read with a warning. Python, by default, does not show that of pickletools.
pytestmark = [
    pytest.mark.filterwarnings("ignore::tiedgpt.errors.TiedGPTWarning"),
    pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning"),
]

# Edits

HOSTILE = [None, True, -1, 0, 0.5, 2**31, 2**64, 1e300, "", "gpt2", "\x1b[31m\n", [], {}, [[]]]
BYTES = [b"\0", b"\xff", b"\x80", b'"', b"{", b"9" * 30, b"\\ud800", b"\xff" * 9 + b"\1"]


@st.composite
def edited_bytes(draw: Any, content: bytes) -> bytes:
    """Some bytes are changed, left out, repeated, or put in."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 20)))
        new = draw(st.sampled_from([*BYTES, content[start:end] * 2, b""]) | st.binary(max_size=3))
        content = content[:start] + new + content[end:]
    return content


def places(document: Any) -> list[tuple[Any, Any]]:
    """(container, key or index) of each value in a JSON document."""
    found = []
    if isinstance(document, dict | list):
        keys = document.keys() if isinstance(document, dict) else range(len(document))
        for key in list(keys):
            found.append((document, key))
            found += places(document[key])
    return found


@st.composite
def edited_json(draw: Any, content: bytes) -> bytes:
    """Some values are replaced by others of the document or by hostile ones, left out, or doubled.

    One time in four, the text itself is edited.
    """
    if draw(st.integers(0, 3)) == 0:
        return draw(edited_bytes(content))
    document = json.loads(content)
    for _ in range(draw(st.integers(1, 2))):
        all_places = places(document)
        if not all_places:
            break
        container, key = draw(st.sampled_from(all_places))
        other, other_key = draw(st.sampled_from(all_places))
        edit = draw(st.sampled_from(["hostile", "other", "leave out", "double"]))
        if edit == "hostile":
            container[key] = deepcopy(draw(st.sampled_from(HOSTILE)))
        elif edit == "other":
            container[key] = deepcopy(other[other_key])
        elif edit == "leave out":
            del container[key]
        elif isinstance(container, dict):
            container[f"{key}TWICE"] = deepcopy(container[key])
        if not isinstance(document, dict | list):
            break
    return json.dumps(document).replace("TWICE", "").encode()


def split_safetensors(content: bytes) -> tuple[bytes, bytes]:
    """(the header, the data) of a file. Its first 8 bytes are the length of the header."""
    data_start = 8 + int.from_bytes(content[:8], "little")
    return content[8:data_start], content[data_start:]


@st.composite
def edited_safetensors(draw: Any, content: bytes) -> bytes:
    """The header is edited and has its right length; or the bytes of the file are edited."""
    if draw(st.integers(0, 3)) == 0:
        return draw(edited_bytes(content))
    header, data = split_safetensors(content)
    header = draw(edited_json(header))
    return len(header).to_bytes(8, "little") + header + data


@st.composite
def edited_archive(draw: Any, content: bytes) -> bytes:
    """One file in a .npz archive is edited, and has its right checksum."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = draw(st.sampled_from(["ids.npy", "targets.npy", *members]))
    members[name] = draw(edited_bytes(members[name][:128])) + members[name][128:]
    edited = io.BytesIO()
    with zipfile.ZipFile(edited, "w") as archive:
        for member, member_content in members.items():
            archive.writestr(member, member_content)
    return edited.getvalue()


@st.composite
def edited_pickle(draw: Any, content: bytes) -> bytes:
    """The pickle in an archive of torch.save is edited, or the bytes of the archive.

    An edit of the pickle may exchange two storages or two tensors, so that other values are right.
    """
    if draw(st.integers(0, 3)) == 0:
        return draw(edited_bytes(content))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["model/data.pkl"] = draw(edited_bytes(members["model/data.pkl"]))
    edited = io.BytesIO()
    with zipfile.ZipFile(edited, "w") as archive:
        for member, member_content in members.items():
            archive.writestr(member, member_content)
    return edited.getvalue()


# Files


def write_model(directory: Path) -> None:
    """A model whose config.json has objects and generation_config.json other ends of a text."""
    tiedgpt.save_model(random_model(TINY), None, directory)
    config = json.loads((directory / "config.json").read_text())
    config["task_specific_params"] = {"text-generation": {"max_length": 50}}
    (directory / "config.json").write_text(json.dumps(config))
    fields = {"bos_token_id": 6, "eos_token_id": [6, 5], "transformers_version": "4.57.0"}
    (directory / "generation_config.json").write_text(json.dumps(fields))


def write_pickle(directory: Path) -> None:
    """A model in a file of torch.save, with its head, which is one storage with wte."""
    write_config(directory, TINY)
    model = random_model(TINY)
    content = torch_file(model.parameters | {"lm_head.weight": model.W_E})
    (directory / PYTORCH).write_bytes(content)


def write_training(directory: Path) -> None:
    """The files of a training: the model, and the state from which the training resumes."""
    settings = Settings(steps=2, batch=2, context=4, threads=1)
    trainer = Trainer(random_model(TINY), IDS, IDS[:9], settings)
    for _ in trainer.run_and_save(directory):
        pass


def write_arrays(directory: Path) -> None:
    """A model, and a file of its activations for a text, with the text and its targets."""
    write_model(directory)
    ids = IDS[: TINY.n_ctx]
    tape = {}
    tiedgpt.load_model(directory)(ids, tape=tape)
    np.savez(directory / "mine.npz", ids=ids, targets=IDS[1 : TINY.n_ctx + 1], **tape)


# What was read


def check_weights(directory: Path) -> None:
    """Each parameter has the values at its offsets. The other tensors of the file are masks."""
    parameters = tiedgpt.load_model(directory).parameters
    header, data = split_safetensors((directory / "model.safetensors").read_bytes())
    entries = json.loads(header)
    entries.pop("__metadata__", None)
    end = 0
    for name in sorted(entries, key=lambda name: entries[name]["data_offsets"]):
        begin, stop = entries[name]["data_offsets"]
        assert begin == end
        end = stop
        parameter = parameters.pop(name.removeprefix("transformer."), None)
        if parameter is None:  # the tensor is a mask, such as h.0.attn.bias, and is not read
            assert ".attn." in name
        else:
            assert entries[name]["dtype"] == "F32"
            assert entries[name]["shape"] == list(parameter.shape)
            assert parameter.tobytes() == data[begin:stop]
    assert end == len(data)
    assert parameters == {}, "all parameters are in the file"


def write_layout(layout: Layout, directory: Path) -> None:
    head = "untied" if "lm_head" in layout.modules else "tied"
    model = random_model(TINY.with_head(head))
    write_tensors(directory, in_layout(model, layout), model.config)


def check_layout(layout: Layout, directory: Path) -> None:
    """Written in this layout again, each tensor has the values at its offsets."""
    model = tiedgpt.load_model(directory)
    header, data = split_safetensors((directory / "model.safetensors").read_bytes())
    entries = {plain_name(name): entry for name, entry in json.loads(header).items()}
    for name, array in in_layout(model, layout).items():
        if name in entries:
            begin, end = entries[name]["data_offsets"]
            assert array.tobytes() == data[begin:end], name
        else:  # a bias of a model without biases; or a head, which is a copy of wte
            assert not array.any() or layout.parts[name].ours == "lm_head.weight"


def check_parameters(directory: Path) -> GPT2:
    """The parameters are those that were written: the edit can have changed nothing in them."""
    model = tiedgpt.load_model(directory)
    for name, array in random_model(TINY).parameters.items():
        np.testing.assert_array_equal(model.parameters[name], array)
    return model


def check_pickle(directory: Path) -> None:
    """The parameters are those that Python's own unpickler finds in the file."""
    parameters = tiedgpt.load_model(directory).parameters
    with zipfile.ZipFile(directory / PYTORCH) as archive:
        has_right_checksums = archive.testzip() is None
    if not has_right_checksums:  # torch does not test them either
        return
    expected = SecondReader((directory / PYTORCH).read_bytes()).load()
    for name, array in parameters.items():
        theirs = expected.get(name, expected.get(f"transformer.{name}"))
        np.testing.assert_array_equal(array, theirs, name)


def check_config(directory: Path) -> None:
    """Each field has the value in the files, or GPT-2's own value if they lack it."""
    config = check_parameters(directory).config
    in_file = json.loads((directory / "config.json").read_text())
    expected = Config().to_json() | in_file
    if in_file.get("n_inner") is None:
        expected["n_inner"] = 4 * config.n_embd
    eos = json.loads((directory / "generation_config.json").read_text()).get("eos_token_id")
    if eos is not None:  # it is preferred to that in config.json
        expected["eos_token_id"] = eos
    for name in ("bos_token_id", "eos_token_id"):
        if expected[name] == -1:  # in files: none
            expected[name] = None
    read = json.loads(json.dumps(config.to_json()))
    # architectures is not read: it names a class of transformers. Nor is n_ctx, which transformers
    # does not read either: n_positions is the context.
    for field in Config().to_json().keys() - {"architectures", "n_ctx"}:
        assert read[field] == expected[field], field


def check_openai(directory: Path) -> None:
    """The model is the one that was written: other names, shapes and places would not fit."""
    model = tiedgpt.load_model(directory)
    expected = random_model(OPENAIS)
    assert model.config == OPENAIS
    for name, array in expected.parameters.items():
        np.testing.assert_array_equal(model.parameters[name], array)


def check_state(directory: Path) -> None:
    """A resumed trainer has the step and the vectors that are in the file."""
    trainer = Trainer.resume(directory, IDS, IDS[:9])
    header, data = split_safetensors((directory / STATE).read_bytes())
    entries = json.loads(header)
    state = json.loads(entries["__metadata__"]["training"])
    assert trainer.step == state["step"]
    vectors = {"parameters": trainer.flat, "m": trainer.optimizer.m, "v": trainer.optimizer.v}
    for name, vector in vectors.items():
        begin, end = entries[name]["data_offsets"]
        assert vector.tobytes() == data[begin:end]


def check_arrays(directory: Path) -> None:
    """The arrays can be compared with the model's activations, whatever the comparison finds."""
    arrays = read_arrays(directory / "mine.npz")
    ids = arrays.pop("ids", IDS[: TINY.n_ctx])
    targets = arrays.pop("targets", None)
    str(compare(tiedgpt.load_model(directory), arrays, ids, targets))


@dataclass(frozen=True)
class Case:
    file: str
    write: Callable[[Path], object]  # makes the files in a directory
    edit: Callable[[bytes], Any]  # a strategy
    check: Callable[[Path], object]  # reads the files, and fails if they are read wrongly


CASES = [
    Case("model.safetensors", write_model, edited_safetensors, check_weights),
    Case(
        "model.safetensors.index.json",
        lambda directory: write_shards(directory, random_model(TINY)),
        edited_json,
        check_parameters,
    ),
    *(
        pytest.param(
            Case(
                "model.safetensors",
                partial(write_layout, layout),
                edited_safetensors,
                partial(check_layout, layout),
            ),
            marks=() if layout.program in ("llm.c", "TransformerLens") else pytest.mark.slow,
        )
        for layout in LAYOUTS
    ),
    Case(PYTORCH, write_pickle, edited_pickle, check_pickle),
    Case("config.json", write_model, edited_json, check_config),
    Case("generation_config.json", write_model, edited_json, check_config),
    Case(
        "hparams.json",
        lambda directory: write_openai_model(directory, random_model(OPENAIS)),
        edited_json,
        check_openai,
    ),
    Case(
        tensorflow.INDEX,
        lambda directory: write_openai_model(directory, random_model(OPENAIS)),
        edited_bytes,
        check_openai,
    ),
    Case(STATE, write_training, edited_safetensors, check_state),
    Case("mine.npz", write_arrays, edited_archive, check_arrays),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.file)
def case(request) -> Iterator[Case]:
    """A case. The heads of OpenAI's files may be as narrow as those of its small model, not 64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensorflow, "HEAD_WIDTH", OPENAIS.head_width)
        yield request.param


@pytest.fixture(scope="module")
def path(case, tmp_path_factory) -> Path:
    """The case's file. Before any edit, it is read rightly."""
    directory = tmp_path_factory.mktemp("case") / "files"
    case.write(directory)
    case.check(directory)
    return directory / case.file


@pytest.fixture(scope="module")
def content(path) -> bytes:
    return path.read_bytes()


def settings(examples: int) -> Callable[..., Any]:
    return hypothesis.settings(
        max_examples=examples, deadline=None, derandomize=True, database=None
    )


@settings(examples=8)
@given(data=st.data())
def test_an_edited_file_is_read_as_what_it_says_or_refused(case, path, content, data):
    path.write_bytes(data.draw(case.edit(content)))
    assert_right_or_refused(case, path)


@pytest.mark.slow
@settings(examples=400)
@given(data=st.data())
def test_many_edited_files_are_read_as_what_they_say_or_refused(case, path, content, data):
    path.write_bytes(data.draw(case.edit(content)))
    assert_right_or_refused(case, path)


def assert_right_or_refused(case: Case, path: Path) -> None:
    directory = path.parent
    try:
        with np.errstate(all="ignore"):
            case.check(directory)
    except TiedGPTError as error:
        message = str(error)
        assert message.isprintable()
        assert len(message) < 400 + 2 * len(str(directory))
        if case.file != "mine.npz":
            assert str(directory) in message
