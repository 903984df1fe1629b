"""Kinds of files that tests edit at random, and checks that tiedgpt reads them rightly.

CASES has a row for each kind of file: a function that writes it, a function that edits it, and a
check. tiedgpt may refuse an edited file. If it reads the file, the check reads the file a second
time, in a few lines that look for no errors, and fails if tiedgpt has read something else.
test_fuzz.py tries some edits of each.
"""

import io
import json
import random
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import tiedgpt
from support.checkpoint_files import assert_same, write_shards
from support.edits import edit_bytes, edit_json
from support.models import SMALL_MERGES, random_model
from support.openai_files import bundle, in_blocks, table, varint, write_openai_model
from support.texts import obvious_bpe
from support.vocabularies import tokenizer_json
from tiedgpt import GPT2, Config, Tokenizer
from tiedgpt.checkpoints import tensorflow
from tiedgpt.checkpoints.vocabulary import vocabulary_files
from tiedgpt.cli.compare import read_arrays
from tiedgpt.comparison.compare import compare
from tiedgpt.gpt2.tokenizer import EOT, WORDS, byte_alphabet
from tiedgpt.training.loop import Trainer
from tiedgpt.training.settings import Settings
from tiedgpt.training.state import STATE

TINY = Config(
    vocab_size=7, n_ctx=5, n_embd=4, n_layer=1, n_head=2, n_inner=3, bos_token_id=6, eos_token_id=6
)
OPENAIS = replace(TINY, n_inner=4 * TINY.n_embd)  # OpenAI's format has no other n_inner
ENTRIES, _ = bundle(random_model(OPENAIS))  # the keys and values in OpenAI's index of this model
DROPOUT = 0.1  # resid_pdrop in the config.json that write_model makes; TINY has none
IDS = np.arange(40) % TINY.vocab_size  # a text to train on
VALIDATION_IDS = IDS[:9]
ALPHABET = byte_alphabet()
Rng = random.Random


@dataclass(frozen=True)
class Case:
    """A kind of file that is edited.

    named: what the message of a refusal must name: "file" for its path; "directory" for the path of
    any file in the directory; "" for neither.
    """

    file: str
    write: Callable[[Path], object]  # makes a directory with the file
    edit: Callable[[Rng, bytes], bytes]  # gets the content of the file
    check: Callable[[Path], object]  # fails if the file is read wrongly
    named: str = "file"

    def message_fault(self, directory: Path, message: str) -> str:
        """What is wrong with the message of a refusal; "" if nothing is."""
        if self.named and not message.startswith(str(directory)):
            return "does not begin with the directory"
        if self.named == "file" and self.file not in message:
            return "does not name the file"
        if not message.isprintable():
            return "holds a line break or a control character"
        # The directory may be named twice, beside at most 400 characters of the message's own.
        if len(message) >= 400 + 2 * len(str(directory)):
            return "is too long"
        return ""


# Edits

SYNTAX = [b" ", b"\n", b"\r\n", b'"', b"[", b"{", b"}", b",", b":", b"9" * 30, b"-", b"e", b"#"]
HOSTILE = [
    b"\0",
    b"\xff",
    b"\\ud800",
    b"\x1b[31m",
    b"\xc2\x9b",
    "\u202e".encode(),
    b"\xef\xbb\xbf",
]
SYNTAX_OF_ARRAYS = [  # in the header of a .npy file
    b"(",
    b")",
    b",",
    b"-1",
    b"9" * 30,
    b"'|O'",
    b"'<i8'",
    b"'<f4'",
    b"True",
    b"{",
    b"\0",
    b"\xff",
]
LONGEST_VARINT = b"\xff" * 9 + b"\1"  # ten bytes for 64 bits
# Bytes that are special in numbers: of one byte, or of several bytes with 7 bits each.
INTERESTING = [b"\0", b"\1", b"\x7f", b"\x80", b"\xff", LONGEST_VARINT, varint(2**62)]


def edit_text(rng: Rng, content: bytes) -> bytes:
    return edit_bytes(rng, content, [*SYNTAX, *HOSTILE, "Ġ".encode()])


def edit_data(rng: Rng, content: bytes) -> bytes:
    return edit_bytes(rng, content, INTERESTING)


def edit_json_file(rng: Rng, content: bytes) -> bytes:
    """Edit the text of a JSON file one time in four; otherwise edit its values and names."""
    if rng.randrange(4) == 0:
        return edit_text(rng, content)
    return edit_json(rng, content.decode()).encode()


def edit_arrays(rng: Rng, content: bytes) -> bytes:
    """Edit the bytes of a .npz archive one time in three; otherwise edit one file in it.

    An edited file in the archive gets its right checksum, so that its content is read.
    """
    if rng.randrange(3) == 0:
        return edit_data(rng, content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    # ids and targets come twice in this list, so each is chosen more often than an activation.
    name = rng.choice(["ids.npy", "targets.npy", *members])
    header_size = 128  # bytes: np.save pads the short header of these arrays to this size
    header = edit_bytes(rng, members[name][:header_size], SYNTAX_OF_ARRAYS)
    data = members[name][header_size:]
    if rng.randrange(4) == 0:
        data = edit_data(rng, data)
    members[name] = header + data
    edited = io.BytesIO()
    with zipfile.ZipFile(edited, "w") as archive:
        for member, member_content in members.items():
            archive.writestr(member, member_content)
    return edited.getvalue()


def edit_table(rng: Rng, content: bytes) -> bytes:
    """Edit one part of OpenAI's index, which then gets its right checksum, or edit the whole file.

    The index is written again from ENTRIES, because `content` has the same entries.
    """
    edited_part = rng.choice(("value", "key", "block", "index block", "metaindex block", "file"))
    entries = list(ENTRIES)
    number = rng.randrange(len(entries))
    key, value = entries[number]
    if edited_part == "key":
        entries[number] = (edit_data(rng, key), value)
    if edited_part == "value":
        entries[number] = (key, edit_data(rng, value))

    blocks = in_blocks(entries)
    if edited_part == "block":
        last_key = rng.choice(list(blocks))
        blocks[last_key] = edit_data(rng, blocks[last_key])

    def edit_if_chosen(part: str, contents: bytes) -> bytes:
        if part == edited_part:
            return edit_data(rng, contents)
        return contents

    # `table` makes the index block and the metaindex block, and calls edit_if_chosen for them.
    file = table(blocks, edit=edit_if_chosen)
    return edit_if_chosen("file", file)


EDITS_OF_SAFETENSORS = (
    "text of the header",
    "length of the header",
    "data",
    "end of the file",
    "entries",
    "JSON of the header",  # three times, so that it is chosen more often
    "JSON of the header",
    "JSON of the header",
)


def edit_safetensors(rng: Rng, content: bytes) -> bytes:
    """Edit the header of a safetensors file, its length, the data, or cut the file off.

    An edited header gets its right length, so that the header is read.
    """
    header, data = split_safetensors(content)
    header_length = None
    edit = rng.choice(EDITS_OF_SAFETENSORS)
    if edit == "end of the file":
        return content[: rng.randrange(len(content))]
    if edit == "text of the header":
        header = edit_text(rng, header)
    elif edit == "length of the header":
        header_length = wrong_length(rng, header, content)
    elif edit == "data":
        data = edit_text(rng, data)
    elif edit == "entries":
        header = swap_entries(rng, header)
    else:
        header = edit_json(rng, header.decode()).encode()
    if header_length is None:
        header_length = len(header)
    return header_length.to_bytes(8, "little") + header + data


def wrong_length(rng: Rng, header: bytes, content: bytes) -> int:
    """A wrong length of the header, for the first 8 bytes of a file with this content."""
    longest = len(content) - 8  # with this length, the header would be the rest of the file
    near_zero = (0, 1)
    near_the_right_length = (len(header) - 1, len(header) + 1)
    near_the_end_of_the_file = (longest, longest + 1)
    near_the_limit_of_other_readers = (10**8, 10**8 + 1)
    near_the_limits_of_integers = (2**31, 2**62, 2**63, 2**64 - 1)
    return rng.choice(
        near_zero
        + near_the_right_length
        + near_the_end_of_the_file
        + near_the_limit_of_other_readers
        + near_the_limits_of_integers
    )


def swap_entries(rng: Rng, header: bytes) -> bytes:
    """Replace a field of one tensor: the shape or offsets by another tensor's, the dtype by F16."""
    entries = json.loads(header)
    names = [name for name in entries if name != "__metadata__"]
    name, other_name = rng.sample(names, 2)
    field = rng.choice(("dtype", "shape", "data_offsets"))
    if field == "dtype":  # F32 in all tensors, so another tensor's would change nothing
        entries[name][field] = "F16"
    else:
        entries[name][field] = entries[other_name][field]
    return json.dumps(entries).encode()


def split_safetensors(content: bytes) -> tuple[bytes, bytes]:
    """(the header, the data) of a file. Its first 8 bytes are the length of the header."""
    data_start = 8 + int.from_bytes(content[:8], "little")
    return content[8:data_start], content[data_start:]


# Files that are edited


def write_model(directory: Path) -> None:
    """A model of the configuration TINY, whose config.json also has a dropout rate and objects."""
    tiedgpt.save_model(random_model(TINY), None, directory)
    config = json.loads((directory / "config.json").read_text())
    config["resid_pdrop"] = DROPOUT
    config["task_specific_params"] = {"text-generation": {"max_length": 50}}
    (directory / "config.json").write_text(json.dumps(config))


def write_generation_config(directory: Path) -> None:
    """A model with a generation_config.json, in which two tokens end a text: 6 and 5.

    In config.json, token 6 alone ends a text.
    """
    write_model(directory)
    fields = {"bos_token_id": 6, "eos_token_id": [6, 5], "transformers_version": "4.57.0"}
    (directory / "generation_config.json").write_text(json.dumps(fields))


def write_several_files(directory: Path) -> None:
    write_shards(directory, random_model(TINY))


def write_training(directory: Path) -> None:
    """The files of a training: the model, and the state from which the training resumes."""
    settings = Settings(steps=2, batch=2, context=4, threads=1)
    trainer = Trainer(random_model(TINY), IDS, VALIDATION_IDS, settings)
    for _ in trainer.run():
        trainer.save(directory)


def write_openai(directory: Path) -> None:
    write_openai_model(directory, random_model(OPENAIS))


def write_texts(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (directory / name).write_bytes(text.encode())


def write_merges(directory: Path) -> None:
    files = vocabulary_files(Tokenizer(SMALL_MERGES))
    write_texts(directory, {"merges.txt": files["merges.txt"]})


def write_vocabulary(directory: Path) -> None:
    files = vocabulary_files(Tokenizer(SMALL_MERGES, {EOT: 0, "<pad>": 262}, first_id=1))
    write_texts(directory, {name: files[name] for name in ("merges.txt", "vocab.json")})


def write_added_tokens(directory: Path) -> None:
    files = vocabulary_files(Tokenizer(SMALL_MERGES))
    added = {"<pad>": 262, "<b>": 263, "low": 257}
    write_texts(directory, {**files, "added_tokens.json": json.dumps(added)})


def write_tokenizer_json(directory: Path) -> None:
    write_texts(directory, {"tokenizer.json": json.dumps(tokenizer_json())})


def write_arrays(directory: Path) -> None:
    """A model, and a file of its activations for a text, with the text and its targets."""
    write_model(directory)
    ids = IDS[: TINY.n_ctx]
    targets = IDS[1 : TINY.n_ctx + 1]  # the token that comes after each
    tape = {}
    tiedgpt.load_model(directory)(ids, tape=tape)
    np.savez(directory / "mine.npz", ids=ids, targets=targets, **tape)


# What was read


def check_weights(directory: Path) -> None:
    """Each parameter has the bytes at its offsets. The other tensors of the file are masks."""
    parameters = tiedgpt.load_model(directory).parameters
    header, data = split_safetensors((directory / "model.safetensors").read_bytes())
    entries = json.loads(header)
    entries.pop("__metadata__", None)
    names = sorted(entries, key=lambda name: entries[name]["data_offsets"])
    previous_end = 0
    for name in names:
        begin, end = entries[name]["data_offsets"]
        assert begin == previous_end
        previous_end = end
        parameter = parameters.pop(name.removeprefix("transformer."), None)
        if parameter is None:  # the tensor is a mask, such as h.0.attn.bias, and is not read
            assert ".attn." in name
        else:
            assert entries[name]["dtype"] == "F32"
            assert entries[name]["shape"] == list(parameter.shape)
            assert parameter.tobytes() == data[begin:end]
    assert previous_end == len(data)
    assert parameters == {}, "all parameters are in the file"


def check_parameters(directory: Path) -> GPT2:
    """The parameters are those that were written: the edit can have changed nothing in them."""
    model = tiedgpt.load_model(directory)
    for name, array in random_model(TINY).parameters.items():
        np.testing.assert_array_equal(model.parameters[name], array)
    return model


def check_config(directory: Path) -> None:
    """Each field has the value in config.json, or GPT-2's own value if config.json lacks it."""
    model = check_parameters(directory)
    in_file = json.loads((directory / "config.json").read_text())
    of_gpt2 = Config().to_json()
    expected = of_gpt2 | in_file
    if in_file.get("n_inner") is None:
        expected["n_inner"] = 4 * model.config.n_embd
    if isinstance(expected["eos_token_id"], list):
        expected["eos_token_id"] = tuple(expected["eos_token_id"])
    read = model.config.to_json()
    # architectures is not read: it names a class of transformers.
    for field in of_gpt2.keys() - {"architectures"}:
        assert read[field] == expected[field]


def check_generation_config(directory: Path) -> None:
    """eos_token_id has the value in generation_config.json, or else that in config.json.

    The other fields have the values in config.json, as `write_model` has written it.
    """
    model = check_parameters(directory)
    in_file = json.loads((directory / "generation_config.json").read_text())
    eos = in_file.get("eos_token_id")
    if eos is None:
        eos = TINY.eos_token_id  # as in config.json
    if isinstance(eos, list):
        eos = tuple(eos)
    config_of_write_model = replace(TINY, resid_pdrop=DROPOUT)
    assert model.config == replace(config_of_write_model, eos_token_id=eos)


def check_openai(directory: Path) -> None:
    """The model is the one that was written, because checksums would show any change.

    hparams.json has no checksum. But with other sizes, the tensors would not fit. And the reader
    accepts one width of a head alone, so one n_head.
    """
    assert_same(tiedgpt.load_model(directory), random_model(OPENAIS))


def check_state(directory: Path) -> None:
    """A resumed trainer has the numbers, the settings and the vectors that are in the file."""
    trainer = Trainer.resume(directory, IDS, VALIDATION_IDS)
    header, data = split_safetensors((directory / STATE).read_bytes())
    entries = json.loads(header)
    state = json.loads(entries["__metadata__"]["training"])
    assert trainer.step == state["step"]
    assert list(trainer.best) == state["best"]
    assert trainer.only == state["only"]
    assert vars(Settings(**state["settings"])) == vars(trainer.settings)
    vectors = {"parameters": trainer.flat, "m": trainer.optimizer.m, "v": trainer.optimizer.v}
    for name, vector in vectors.items():
        begin, end = entries[name]["data_offsets"]
        assert vector.tobytes() == data[begin:end]


def pair_of(merge: str | list[str]) -> list[str]:
    """The two tokens of a merge in tokenizer.json, where it is written "a b" or ["a", "b"]."""
    if isinstance(merge, str):
        return merge.split(" ")
    return merge


def read_merges_and_ids(directory: Path) -> tuple[list[list[str]], dict[str, int]]:
    """(the merges, {token: id}) of the vocabulary files in a directory.

    They are in tokenizer.json if there is one, and otherwise in merges.txt and vocab.json. Without
    vocab.json, the ids count from 0: first the bytes, then the merged tokens, then EOT.
    """
    files = {path.name: path.read_bytes().decode() for path in directory.iterdir()}
    if "tokenizer.json" in files:
        fields = json.loads(files["tokenizer.json"])
        merges = [pair_of(merge) for merge in fields["model"]["merges"]]
        added = {token["content"]: token["id"] for token in fields.get("added_tokens") or []}
        return merges, fields["model"]["vocab"] | added

    lines = files["merges.txt"].replace("\r\n", "\n").rstrip("\n").split("\n")
    merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    if "vocab.json" in files:
        added = json.loads(files.get("added_tokens.json", "{}"))
        return merges, json.loads(files["vocab.json"]) | added
    merged = ["".join(merge) for merge in merges]
    tokens = [*ALPHABET.values(), *merged, EOT]
    return merges, {token: token_id for token_id, token in enumerate(tokens)}


def check_tokenizer(directory: Path) -> None:
    """The tokens, and the ids of some texts, are those that the vocabulary files say."""
    tokenizer = tiedgpt.load_tokenizer(directory)
    merges, ids = read_merges_and_ids(directory)
    assert tokenizer.vocab_size == len(ids)

    # In the files, an ordinary token has a character of ALPHABET for each of its bytes. A special
    # token is written as its text.
    byte_of = {character: byte for byte, character in ALPHABET.items()}
    merged = ["".join(merge) for merge in merges]
    ordinary = {*ALPHABET.values(), *merged}
    for token, token_id in ids.items():
        if token in ordinary:
            token_bytes = bytes(byte_of[character] for character in token)
            assert tokenizer.token_bytes(token_id) == token_bytes
        else:
            assert tokenizer.token_bytes(token_id) == token.encode()
            assert tokenizer.encode(token, special="token") == [token_id]

    # Some words of these texts are merged and some bytes are not. EOT is read as ordinary text.
    merge_ids = {}  # the ids of a merge's two tokens -> the id of the merged token
    for left, right in merges:
        merge_ids[ids[left], ids[right]] = ids[left + right]
    for text in ("lower, low é", "a\n\n  \x00lo lowlow", EOT):
        expected = []
        for word in WORDS.findall(text):
            byte_ids = [ids[ALPHABET[byte]] for byte in word.encode()]
            expected += obvious_bpe(byte_ids, merge_ids)
        assert tokenizer.encode(text, special="text") == expected
        assert tokenizer.decode(expected) == text


def check_arrays(directory: Path) -> None:
    """The arrays can be compared with the model's activations, and the result can be printed.

    It does not matter what the comparison finds.
    """
    arrays = read_arrays(directory / "mine.npz")
    ids = arrays.pop("ids", IDS[: TINY.n_ctx])
    targets = arrays.pop("targets", None)
    comparison = compare(tiedgpt.load_model(directory), arrays, ids, targets)
    str(comparison)


CASES = [
    Case("model.safetensors", write_model, edit_safetensors, check_weights),
    Case(
        "model.safetensors.index.json",
        write_several_files,
        edit_json_file,
        check_parameters,
        named="directory",
    ),
    Case("config.json", write_model, edit_json_file, check_config),
    Case(
        "generation_config.json", write_generation_config, edit_json_file, check_generation_config
    ),
    Case(STATE, write_training, edit_safetensors, check_state, named="directory"),
    Case("hparams.json", write_openai, edit_json_file, check_openai, named="directory"),
    Case(tensorflow.INDEX, write_openai, edit_table, check_openai, named="directory"),
    Case(tensorflow.DATA, write_openai, edit_data, check_openai, named="directory"),
    Case("merges.txt", write_merges, edit_text, check_tokenizer),
    Case("merges.txt", write_vocabulary, edit_text, check_tokenizer),
    Case("vocab.json", write_vocabulary, edit_json_file, check_tokenizer),
    Case("added_tokens.json", write_added_tokens, edit_json_file, check_tokenizer),
    Case("tokenizer.json", write_tokenizer_json, edit_json_file, check_tokenizer),
    Case("mine.npz", write_arrays, edit_arrays, check_arrays, named=""),
]
