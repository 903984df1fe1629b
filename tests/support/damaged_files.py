"""Files that are edited at random, each with a second, short reading that checks nothing.

CASES has a row for each kind of file: what writes it, what edits it, and what fails if it was read
wrongly. test_fuzz.py tries some edits, scripts/attack.py many more.
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
ENTRIES, _ = bundle(random_model(OPENAIS))  # of OpenAI's index: keys and values
DROPOUT = 0.1  # resid_pdrop in the config.json that write_model makes; TINY has none
IDS = np.arange(40) % TINY.vocab_size  # a text to train on
VALIDATION_IDS = IDS[:9]
ALPHABET = byte_alphabet()
Rng = random.Random


@dataclass(frozen=True)
class Case:
    """A file that is edited in a directory that `write` makes."""

    file: str
    write: Callable[[Path], object]
    edit: Callable[[Rng, bytes], bytes]
    check: Callable[[Path], object]  # fails if the file is read wrongly
    named: str = "file"  # what a refusal names: "file", "directory" (a file in it) or "" (neither)

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
    """The text of a JSON file, one time in four, or else its values and names."""
    if rng.randrange(4) == 0:
        return edit_text(rng, content)
    return edit_json(rng, content.decode()).encode()


def edit_arrays(rng: Rng, content: bytes) -> bytes:
    """The archive, one time in three, or else a file in it behind a checksum that is right."""
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
    """OpenAI's index with one part edited behind checksums that are right, or the whole file.

    The index is written again from ENTRIES, which are also the entries of `content`.
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

    # `table` calls this for the two blocks that it makes itself.
    def edit(part: str, contents: bytes) -> bytes:
        if part == edited_part:
            return edit_data(rng, contents)
        return contents

    edited = table(blocks, edit=edit)
    return edit("file", edited)


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
    """Mostly the header behind a length that is right; else the length, the data or the end."""
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
    """A wrong length of the header of a file with this content."""
    longest = len(content) - 8  # the header would be all that comes after the length
    near_zero = (0, 1)
    near_the_right_one = (len(header) - 1, len(header) + 1)
    near_the_end_of_the_file = (longest, longest + 1)
    near_the_limit_of_other_readers = (10**8, 10**8 + 1)
    near_the_limits_of_integers = (2**31, 2**62, 2**63, 2**64 - 1)
    return rng.choice(
        near_zero
        + near_the_right_one
        + near_the_end_of_the_file
        + near_the_limit_of_other_readers
        + near_the_limits_of_integers
    )


def swap_entries(rng: Rng, header: bytes) -> bytes:
    """The header in which one tensor has a field of another, or another dtype."""
    entries = json.loads(header)
    names = [name for name in entries if name != "__metadata__"]
    one, other = rng.sample(names, 2)
    field = rng.choice(("dtype", "shape", "data_offsets"))
    if field == "dtype":  # all tensors have the same
        entries[one][field] = "F16"
    else:
        entries[one][field] = entries[other][field]
    return json.dumps(entries).encode()


def split_safetensors(content: bytes) -> tuple[bytes, bytes]:
    """The header and the data of a file, which begins with 8 bytes for the header's length."""
    data_start = 8 + int.from_bytes(content[:8], "little")
    return content[8:data_start], content[data_start:]


# Files that are edited


def write_model(directory: Path) -> None:
    """The model TINY; its config.json has a dropout rate and an object in an object, too."""
    tiedgpt.save_model(random_model(TINY), None, directory)
    config = json.loads((directory / "config.json").read_text())
    config["resid_pdrop"] = DROPOUT
    config["task_specific_params"] = {"text-generation": {"max_length": 50}}
    (directory / "config.json").write_text(json.dumps(config))


def write_generation_config(directory: Path) -> None:
    """The same model with a file that gives two ends of a text, 6 and 5; config.json gives 6."""
    write_model(directory)
    file = {"bos_token_id": 6, "eos_token_id": [6, 5], "transformers_version": "4.57.0"}
    (directory / "generation_config.json").write_text(json.dumps(file))


def write_several_files(directory: Path) -> None:
    write_shards(directory, random_model(TINY))


def write_training(directory: Path) -> None:
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
    """Every parameter is the bytes that the header gives it, and the rest is mask buffers."""
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
        if parameter is None:
            assert ".attn." in name  # a mask, such as h.0.attn.bias, is not a parameter
        else:
            assert entries[name]["dtype"] == "F32"
            assert entries[name]["shape"] == list(parameter.shape)
            assert parameter.tobytes() == data[begin:end]
    assert previous_end == len(data)
    assert parameters == {}  # each one was in the file


def check_parameters(directory: Path) -> GPT2:
    """The parameters are the same as ever."""
    model = tiedgpt.load_model(directory)
    for name, array in random_model(TINY).parameters.items():
        np.testing.assert_array_equal(model.parameters[name], array)
    return model


def check_config(directory: Path) -> None:
    """Every field is what config.json says, or GPT-2's own value if it is not there."""
    model = check_parameters(directory)
    file = json.loads((directory / "config.json").read_text())
    expected = Config().to_json() | file  # Config() is GPT-2's own
    if file.get("n_inner") is None:
        expected["n_inner"] = 4 * model.config.n_embd
    if isinstance(expected["eos_token_id"], list):
        expected["eos_token_id"] = tuple(expected["eos_token_id"])
    read = model.config.to_json()
    fields = Config().to_json().keys() - {"architectures"}  # which names a class of transformers
    for field in fields:
        assert read[field] == expected[field]


def check_generation_config(directory: Path) -> None:
    """The end of a text is that of generation_config.json, or of config.json if it has none.

    The rest of the configuration is that of config.json, as `write_model` makes it.
    """
    model = check_parameters(directory)
    file = json.loads((directory / "generation_config.json").read_text())
    eos = file.get("eos_token_id")
    if eos is None:
        eos = TINY.eos_token_id
    if isinstance(eos, list):
        eos = tuple(eos)
    config_of_write_model = replace(TINY, resid_pdrop=DROPOUT)
    assert model.config == replace(config_of_write_model, eos_token_id=eos)


def check_openai(directory: Path) -> None:
    """It is this model or none: the files have checksums, and only one n_head is possible."""
    assert_same(tiedgpt.load_model(directory), random_model(OPENAIS))


def check_state(directory: Path) -> None:
    """A resumed trainer has the step, settings and vectors that are in the file."""
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
    """The two tokens of a merge in tokenizer.json, which is "a b" or ["a", "b"]."""
    if isinstance(merge, str):
        return merge.split(" ")
    return merge


def read_merges_and_ids(directory: Path) -> tuple[list[list[str]], dict[str, int]]:
    """The merges, and the id of each token, of the vocabulary files that are there.

    tokenizer.json comes first. Without it there is merges.txt. Without a vocab.json beside that,
    the ids are counted: the bytes, the merged tokens, EOT.
    """
    files = {path.name: path.read_bytes().decode() for path in directory.iterdir()}
    if "tokenizer.json" in files:
        file = json.loads(files["tokenizer.json"])
        merges = [pair_of(merge) for merge in file["model"]["merges"]]
        added = {token["content"]: token["id"] for token in file.get("added_tokens") or []}
        return merges, file["model"]["vocab"] | added

    lines = files["merges.txt"].replace("\r\n", "\n").rstrip("\n").split("\n")
    merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    if "vocab.json" in files:
        added = json.loads(files.get("added_tokens.json", "{}"))
        return merges, json.loads(files["vocab.json"]) | added
    merged = ["".join(merge) for merge in merges]
    tokens = [*ALPHABET.values(), *merged, EOT]
    return merges, {token: token_id for token_id, token in enumerate(tokens)}


def check_tokenizer(directory: Path) -> None:
    """The tokens, and the ids of some texts, are those of the files that are there."""
    tokenizer = tiedgpt.load_tokenizer(directory)
    merges, ids = read_merges_and_ids(directory)
    assert tokenizer.vocab_size == len(ids)

    # An ordinary token is spelled with a character for each byte, a special token with its text.
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

    # The texts have words that are merged, bytes that are not, and a special token as plain text.
    merge_ids = {}
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
    """The arrays can be compared with a model's, and the result printed, whatever they are."""
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
