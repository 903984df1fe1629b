"""Files that were edited at random are read as they are now, or refused in one line that names
them.

What was read is compared with a short second reading of the same file that checks nothing.
TensorFlow's files have checksums: an edited one is refused or makes no difference.
scripts/attack.py runs many more of the same cases.
"""

import io
import json
import random
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.edits import edit_bytes, edit_json
from support.models import SMALL_MERGES, random_model
from test_checkpoints import assert_same, shard
from test_tensorflow import bundle, heads_of_width_2, in_blocks, table, varint, write_bundle  # noqa: F401
from test_tokenizer import obvious_bpe
from test_vocabulary import tokenizer_json

import tiedgpt
from tiedgpt import Config, TiedGPTError, Tokenizer
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
OPENAIS = replace(TINY, n_inner=16)  # OpenAI's format has no n_inner: it is 4 n_embd
ENTRIES, _ = bundle(random_model(OPENAIS))
INTERESTING = (b"\0", b"\1", b"\x7f", b"\x80", b"\xff", b"\xff" * 9 + b"\1", varint(2**62))
IDS = np.arange(40) % TINY.vocab_size  # a text to train on
ALPHABET = byte_alphabet()


def edit_text(rng: random.Random, raw: bytes) -> bytes:
    syntax = [b" ", b"\n", b"\r\n", b'"', b"[", b"{", b"}", b",", b":", b"9" * 30, b"-", b"e", b"#"]
    hostile = [
        b"\0",
        b"\xff",
        b"\\ud800",
        b"\x1b[31m",
        b"\xc2\x9b",
        "\u202e".encode(),
        b"\xef\xbb\xbf",
    ]
    return edit_bytes(rng, raw, [*syntax, *hostile, "Ġ".encode()])


def edit_json_file(rng: random.Random, raw: bytes) -> bytes:
    return edit_json(rng, raw.decode()).encode() if rng.randrange(4) else edit_text(rng, raw)


edit_data = partial(edit_bytes, interesting=INTERESTING)


def edit_arrays(rng: random.Random, raw: bytes) -> bytes:
    """The archive, or the beginning of a file in it behind a checksum that is right."""
    if rng.randrange(3) == 0:
        return edit_data(rng, raw)
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(["ids.npy", "targets.npy", *members])
    header, data = members[name][:128], members[name][128:]
    syntax = [
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
    members[name] = edit_bytes(rng, header, syntax) + (
        data if rng.randrange(4) else edit_data(rng, data)
    )
    with zipfile.ZipFile(edited := io.BytesIO(), "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return edited.getvalue()


def edit_table(rng: random.Random, raw: bytes) -> bytes:
    """One of the parts behind checksums that are right, or the whole file."""
    what = rng.choice(("value", "key", "block", "index block", "metaindex block", "file"))

    def edit(part: str, content: bytes) -> bytes:
        return edit_data(rng, content) if part == what else content

    entries = [*ENTRIES]
    at = rng.randrange(len(entries))
    entries[at] = edit("key", entries[at][0]), edit("value", entries[at][1])
    blocks = in_blocks(entries)
    last_key = rng.choice([*blocks])
    blocks[last_key] = edit("block", blocks[last_key])
    return edit("file", table(blocks, edit=edit))


def edit_safetensors(rng: random.Random, raw: bytes) -> bytes:
    """Mostly the header, behind a length that is right; else the length, the data, or how much
    there is."""
    header, data = split_safetensors(raw)
    length = None
    match rng.randrange(8):
        case 0:
            header = edit_text(rng, header)
        case 1:
            near = (0, 1, len(header) - 1, len(header) + 1, len(raw) - 8, len(raw) - 7)
            length = rng.choice((*near, 10**8, 10**8 + 1, 2**31, 2**62, 2**63, 2**64 - 1))
        case 2:
            data = edit_text(rng, data)
        case 3:
            return raw[: rng.randrange(len(raw))]
        case 4:  # what one tensor says of itself is true of another
            entries = json.loads(header)
            one, other = rng.sample([name for name in entries if name != "__metadata__"], 2)
            field = rng.choice(("dtype", "shape", "data_offsets"))
            entries[one][field] = "F16" if field == "dtype" else entries[other][field]
            header = json.dumps(entries).encode()
        case _:
            header = edit_json(rng, header.decode()).encode()
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


def split_safetensors(raw: bytes) -> tuple[bytes, bytes]:
    end = 8 + int.from_bytes(raw[:8], "little")
    return raw[8:end], raw[end:]


def check_weights(directory: Path) -> None:
    """Every parameter is the bytes that the header gives it, and the rest of the data is mask
    buffers."""
    parameters = tiedgpt.load_model(directory).parameters
    header, data = split_safetensors((directory / "model.safetensors").read_bytes())
    entries = json.loads(header)
    entries.pop("__metadata__", None)
    covered = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        assert begin == covered
        covered = end
        array = parameters.pop(name.removeprefix("transformer."), None)
        if array is None:
            assert ".attn." in name
        else:
            assert (entry["dtype"], entry["shape"]) == ("F32", list(array.shape))
            assert array.tobytes() == data[begin:end]
    assert covered == len(data)
    assert parameters == {}


def check_parameters(directory: Path) -> tiedgpt.GPT2:
    """The parameters are the same as ever."""
    model = tiedgpt.load_model(directory)
    for name, array in random_model(TINY).parameters.items():
        np.testing.assert_array_equal(model.parameters[name], array)
    return model


def check_config(directory: Path) -> None:
    """Every field is what config.json says, or GPT-2's own value; the parameters are the same as
    ever."""
    model = check_parameters(directory)
    said = json.loads((directory / "config.json").read_text())
    said |= {"n_inner": 4 * model.config.n_embd} if said.get("n_inner") is None else {}
    eos = said.get("eos_token_id")
    said |= {"eos_token_id": tuple(eos)} if isinstance(eos, list) else {}
    read = model.config.to_json()
    for name, own in Config().to_json().items():
        assert name == "architectures" or said.get(name, own) == read[name]


def check_generation_config(directory: Path) -> None:
    """The file says what ends a text, if it says anything of it."""
    model = check_parameters(directory)
    eos = json.loads((directory / "generation_config.json").read_text()).get("eos_token_id")
    eos = TINY.eos_token_id if eos is None else tuple(eos) if isinstance(eos, list) else eos
    assert model.config == replace(TINY, resid_pdrop=0.1, eos_token_id=eos)


def check_openais(directory: Path) -> None:
    """The files have checksums, and hparams.json has one possible n_head: it is this model or
    none."""
    assert_same(tiedgpt.load_model(directory), random_model(OPENAIS))


def check_state(directory: Path) -> None:
    """The trainer is as the file says. With another text, it would be refused."""
    trainer = Trainer.resume(directory, IDS, IDS[:9])
    header, data = split_safetensors((directory / STATE).read_bytes())
    entries = json.loads(header)
    said = json.loads(entries["__metadata__"]["training"])
    assert (trainer.step, list(trainer.best), trainer.only) == (
        said["step"],
        said["best"],
        said["only"],
    )
    assert vars(Settings(**said["settings"])) == vars(trainer.settings)
    vectors = {"parameters": trainer.flat, "m": trainer.optimizer.m, "v": trainer.optimizer.v}
    for name, vector in vectors.items():
        begin, end = entries[name]["data_offsets"]
        assert vector.tobytes() == data[begin:end]


def check_tokenizer(directory: Path) -> None:
    """Ids, merges and texts are those of the file or files that are there."""
    tokenizer = tiedgpt.load_tokenizer(directory)
    files = {path.name: path.read_bytes().decode() for path in directory.iterdir()}
    text = files.pop("merges.txt", None)
    if text is not None:
        lines = text.replace("\r\n", "\n").rstrip("\n").split("\n")
        merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
        vocab = [*ALPHABET.values(), *map("".join, merges), EOT]
        ids = {} if files else {token: token_id for token_id, token in enumerate(vocab)}
        for name in sorted(files, reverse=True):  # added_tokens.json after vocab.json
            ids |= json.loads(files[name])
    else:
        file = json.loads(files["tokenizer.json"])
        merges = [
            merge.split(" ") if isinstance(merge, str) else merge
            for merge in file["model"]["merges"]
        ]
        added = {token["content"]: token["id"] for token in file.get("added_tokens") or []}
        ids = file["model"]["vocab"] | added

    assert tokenizer.vocab_size == len(ids)
    byte_of = {character: byte for byte, character in ALPHABET.items()}
    ordinary = {*ALPHABET.values(), *map("".join, merges)}
    for token, token_id in ids.items():
        spelled = (
            bytes(byte_of[character] for character in token)
            if token in ordinary
            else token.encode()
        )
        assert tokenizer.token_bytes(token_id) == spelled
        if token not in ordinary:
            assert tokenizer.encode(token, special="token") == [token_id]
    merge_ids = {(ids[left], ids[right]): ids[left + right] for left, right in merges}
    for text in ("lower, low é", "a\n\n  \x00lo lowlow", EOT):
        words = [[ids[ALPHABET[byte]] for byte in word.encode()] for word in WORDS.findall(text)]
        encoded = tokenizer.encode(text, special="text")
        assert encoded == [token_id for word in words for token_id in obvious_bpe(word, merge_ids)]
        assert tokenizer.decode(encoded) == text


def check_arrays(directory: Path) -> None:
    """The arrays can be compared with a model's, whatever they are."""
    arrays = read_arrays(directory / "mine.npz")
    ids, targets = arrays.pop("ids", IDS[:5]), arrays.pop("targets", None)
    str(compare(tiedgpt.load_model(directory), arrays, ids, targets))


def write_model(directory: Path) -> None:
    tiedgpt.save_model(random_model(TINY), None, directory)
    config = json.loads((directory / "config.json").read_text())
    config |= {"resid_pdrop": 0.1, "task_specific_params": {"text-generation": {"max_length": 50}}}
    (directory / "config.json").write_text(json.dumps(config))


def write_generation_config(directory: Path) -> None:
    write_model(directory)
    text = json.dumps({"bos_token_id": 6, "eos_token_id": [6, 5], "transformers_version": "4.57.0"})
    (directory / "generation_config.json").write_text(text)


def write_training(directory: Path) -> None:
    trainer = Trainer(
        random_model(TINY), IDS, IDS[:9], Settings(steps=2, batch=2, context=4, threads=1)
    )
    for _ in trainer.run():
        trainer.save(directory)


def texts(files: dict[str, str]) -> Callable[[Path], None]:
    """A function that writes these files to a directory."""
    return lambda directory: [
        (directory / name).write_bytes(text.encode()) for name, text in files.items()
    ]


PLAIN = vocabulary_files(Tokenizer(SMALL_MERGES))
SPECIAL = vocabulary_files(Tokenizer(SMALL_MERGES, {EOT: 0, "<pad>": 262}, first_id=1))
write_shards = partial(shard, model=random_model(TINY))
write_openais = partial(write_bundle, model=random_model(OPENAIS))
write_merges = texts({"merges.txt": PLAIN["merges.txt"]})
write_vocabulary = texts({name: SPECIAL[name] for name in ("merges.txt", "vocab.json")})
write_added_tokens = texts(
    PLAIN | {"added_tokens.json": json.dumps({"<pad>": 262, "<b>": 263, "low": 257})}
)
write_tokenizer_json = texts({"tokenizer.json": json.dumps(tokenizer_json())})


def write_arrays(directory: Path) -> None:
    write_model(directory)
    model, tape = tiedgpt.load_model(directory), {}
    model(IDS[:5], tape=tape)
    np.savez(directory / "mine.npz", ids=IDS[:5], targets=IDS[1:6], **tape)


@dataclass(frozen=True)
class Case:
    """A file that is edited in a directory that `write` makes. `check` fails if it is read
    wrongly."""

    file: str
    write: Callable[[Path], None]
    edit: Callable[[random.Random, bytes], bytes]
    check: Callable[[Path], None]
    named: str = (
        "file"  # what a refusal names: "file", "directory" (a file in it) or "" (an array, perhaps)
    )

    def message_fault(self, directory: Path, message: str) -> str:
        """What is wrong with the message of a refusal; "" if nothing is."""
        if self.named and not message.startswith(str(directory)):
            return "does not begin with the directory"
        if self.named == "file" and self.file not in message:
            return "does not name the file"
        if not message.isprintable():
            return "holds a line break or a control character"
        return "is too long" if len(message) >= 400 + 2 * len(str(directory)) else ""


CASES = [
    Case("model.safetensors", write_model, edit_safetensors, check_weights),
    Case(
        "model.safetensors.index.json", write_shards, edit_json_file, check_parameters, "directory"
    ),
    Case("config.json", write_model, edit_json_file, check_config),
    Case(
        "generation_config.json", write_generation_config, edit_json_file, check_generation_config
    ),
    Case(STATE, write_training, edit_safetensors, check_state, "directory"),
    Case("hparams.json", write_openais, edit_json_file, check_openais, "directory"),
    Case(tensorflow.INDEX, write_openais, edit_table, check_openais, "directory"),
    Case(tensorflow.DATA, write_openais, edit_data, check_openais, "directory"),
    Case("merges.txt", write_merges, edit_text, check_tokenizer),
    Case("merges.txt", write_vocabulary, edit_text, check_tokenizer),
    Case("vocab.json", write_vocabulary, edit_json_file, check_tokenizer),
    Case("added_tokens.json", write_added_tokens, edit_json_file, check_tokenizer),
    Case("tokenizer.json", write_tokenizer_json, edit_json_file, check_tokenizer),
    Case("mine.npz", write_arrays, edit_arrays, check_arrays, ""),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)
def test_an_edited_file_is_read_as_what_it_says_or_refused(tmp_path, case):
    case.write(tmp_path)
    case.check(tmp_path)
    original = (tmp_path / case.file).read_bytes()
    refused = 0
    for seed in range(50):
        edited = case.edit(random.Random(f"{case.file} {seed}"), original)
        (tmp_path / case.file).write_bytes(edited)
        if seed % 10 == 0:  # tracing takes ten times as long
            tracemalloc.start()
        start = time.process_time()
        try:
            case.check(tmp_path)
        except TiedGPTError as error:
            refused += 1
            if fault := case.message_fault(tmp_path, str(error)):
                pytest.fail(f"{seed}: the message {fault}: {error}")
        assert time.process_time() - start < 5, seed
        peak = tracemalloc.get_traced_memory()[1]  # 0 if it is not traced
        tracemalloc.stop()
        assert peak < 10_000_000 + 50 * len(edited), seed
    assert refused > 0.3 * 50
