"""Files that were edited at random are read as they are now, or refused in one line that names them.

Nothing else may happen, and little memory may be used. The result is compared with that of a short reader
that checks nothing. (test_tensorflow.py edits the index of OpenAI's files.)
"""

import json
import random
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL_MERGES, random_model
from edits import edit_bytes, edit_json
from test_checkpoints import shard
from test_tokenizer import obvious_bpe
from test_vocabulary import tokenizer_json

import tiedgpt
from tiedgpt import Config, TiedGPTError, Tokenizer
from tiedgpt.checkpoints.vocabulary import vocabulary_files
from tiedgpt.tokenizer import EOT, WORDS, byte_alphabet

SEEDS = range(200)
TINY = Config(vocab_size=7, n_ctx=5, n_embd=4, n_layer=1, n_head=2, n_inner=3, bos_token_id=6, eos_token_id=6)
ALPHABET = byte_alphabet()


# Edits


def edit_text(rng: random.Random, raw: bytes) -> bytes:
    syntax = [b" ", b"\n", b"\r\n", b'"', b"[", b"{", b"}", b",", b":", b"9" * 30, b"-", b"e", b"#"]
    return edit_bytes(rng, raw, [*syntax, b"\0", b"\xff", b"\\ud800", "Ġ".encode(), b"\xef\xbb\xbf"])


def edit_json_file(rng: random.Random, raw: bytes) -> bytes:
    return edit_json(rng, raw.decode()).encode() if rng.randrange(4) else edit_text(rng, raw)


def edit_safetensors(rng: random.Random, raw: bytes) -> bytes:
    """Mostly the header, behind a length that is right; else the length, the data, or how much there is."""
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


# Checks of what was read


def check_weights(directory: Path) -> None:
    """Every parameter is the bytes that the header gives it, and the rest of the data is mask buffers."""
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
            assert entry["dtype"] == "F32"
            assert entry["shape"] == list(array.shape)
            assert array.tobytes() == data[begin:end]
    assert covered == len(data)
    assert parameters == {}


def check_config(directory: Path) -> None:
    """Every field is what config.json says, or GPT-2's own value; the parameters are the same as ever."""
    model = tiedgpt.load_model(directory)
    assert_parameters(model)
    said = json.loads((directory / "config.json").read_text())
    said |= {"n_inner": 4 * model.config.n_embd} if said.get("n_inner") is None else {}
    eos = said.get("eos_token_id")
    said |= {"eos_token_id": tuple(eos)} if isinstance(eos, list) else {}
    read = model.config.to_json()
    own = Config().to_json()
    assert {name: said.get(name, own[name]) for name in own if name != "architectures"} == {
        name: read[name] for name in own if name != "architectures"
    }


def check_index(directory: Path) -> None:
    assert_parameters(tiedgpt.load_model(directory))


def assert_parameters(model: tiedgpt.GPT2) -> None:
    for name, array in random_model(TINY).parameters.items():
        np.testing.assert_array_equal(model.parameters[name], array)


def check_tokenizer(directory: Path) -> None:
    """Ids, merges and texts are those of the file or files that are there."""
    tokenizer = tiedgpt.load_tokenizer(directory)
    if (directory / "merges.txt").exists():
        lines = (
            (directory / "merges.txt").read_bytes().decode().replace("\r\n", "\n").rstrip("\n").split("\n")
        )
        merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
        vocab = [*ALPHABET.values(), *map("".join, merges), EOT]
        ids = {token: token_id for token_id, token in enumerate(vocab)}
        if (directory / "vocab.json").exists():
            ids = json.loads((directory / "vocab.json").read_text())
    else:
        file = json.loads((directory / "tokenizer.json").read_text())
        merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in file["model"]["merges"]]
        added = {token["content"]: token["id"] for token in file.get("added_tokens") or []}
        ids = file["model"]["vocab"] | added

    assert tokenizer.vocab_size == len(ids)
    byte_of = {character: byte for byte, character in ALPHABET.items()}
    ordinary = {*ALPHABET.values(), *map("".join, merges)}
    for token, token_id in ids.items():
        spelled = bytes(byte_of[character] for character in token) if token in ordinary else token.encode()
        assert tokenizer.token_bytes(token_id) == spelled
        if token not in ordinary:
            assert tokenizer.encode(token, special="token") == [token_id]
    merge_ids = {(ids[left], ids[right]): ids[left + right] for left, right in merges}
    for text in ("lower, low é", "a\n\n  \x00lo lowlow", EOT):
        words = [[ids[ALPHABET[byte]] for byte in word.encode()] for word in WORDS.findall(text)]
        encoded = tokenizer.encode(text, special="text")
        assert encoded == [token_id for word in words for token_id in obvious_bpe(word, merge_ids)]
        assert tokenizer.decode(encoded) == text


# The test


def write_model(directory: Path) -> None:
    tiedgpt.save_model(random_model(TINY), None, directory)
    config = json.loads((directory / "config.json").read_text())
    config |= {"resid_pdrop": 0.1, "task_specific_params": {"text-generation": {"max_length": 50}}}
    (directory / "config.json").write_text(json.dumps(config))


def write_shards(directory: Path) -> None:
    shard(directory, random_model(TINY))
    (directory / "config.json").write_text(json.dumps(TINY.to_json()))


def write_merges(directory: Path) -> None:
    files = vocabulary_files(Tokenizer(SMALL_MERGES))
    (directory / "merges.txt").write_bytes(files["merges.txt"].encode())


def write_vocabulary(directory: Path) -> None:
    for name, text in vocabulary_files(Tokenizer(SMALL_MERGES, {EOT: 0, "<pad>": 262}, first_id=1)).items():
        (directory / name).write_bytes(text.encode())
    (directory / "added_tokens.json").unlink()


def write_tokenizer_json(directory: Path) -> None:
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer_json()))


@pytest.mark.parametrize(
    ("file", "write", "edit", "check"),
    [
        ("model.safetensors", write_model, edit_safetensors, check_weights),
        ("model.safetensors.index.json", write_shards, edit_json_file, check_index),
        ("config.json", write_model, edit_json_file, check_config),
        ("merges.txt", write_merges, edit_text, check_tokenizer),
        ("merges.txt", write_vocabulary, edit_text, check_tokenizer),
        ("vocab.json", write_vocabulary, edit_json_file, check_tokenizer),
        ("tokenizer.json", write_tokenizer_json, edit_json_file, check_tokenizer),
    ],
)
def test_an_edited_file_is_read_as_what_it_says_or_refused(tmp_path, file, write, edit, check):
    write(tmp_path)
    check(tmp_path)
    original = (tmp_path / file).read_bytes()
    refused = 0
    for seed in SEEDS:
        (tmp_path / file).write_bytes(edit(random.Random(f"{file} {seed}"), original))
        tracemalloc.start()
        start = time.process_time()
        try:
            check(tmp_path)
        except TiedGPTError as error:
            refused += 1
            message = str(error)
            assert message.startswith(str(tmp_path)), seed
            assert file in message or check is check_index, seed  # an index speaks of its shards
            assert len(message.splitlines()) == 1, seed
            assert len(message) < 400 + 2 * len(str(tmp_path)), seed
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 10_000_000, seed
        assert time.process_time() - start < 5, seed
    assert 0.5 * len(SEEDS) < refused < len(SEEDS)
