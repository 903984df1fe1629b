"""Read and write vocabulary files: merges.txt with vocab.json, as OpenAI published them, or
tokenizer.json.

The ids of ordinary tokens follow from the merges, so vocab.json adds only the special tokens. It is
checked against the merges nevertheless, because two files that disagree do not describe one
vocabulary. The post_processor, truncation and padding of a tokenizer.json, which add or remove
tokens, are ignored.
"""

import json
from collections.abc import Container
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, TokenizerError, short_repr
from ..gpt2.tokenizer import EOT, Tokenizer, spelled_ids
from .files import directory_of, read_json, read_text

# The files' names: Hugging Face's, OpenAI's.
ADDED = "added_tokens.json"
MERGES_AND_VOCAB = (("merges.txt", "vocab.json"), ("vocab.bpe", "encoder.json"))

# The fields of a tokenizer.json that change ids, and the values they may have. None: the field may
# be absent.
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "normalizer": (None,),
    "model.type": ("BPE", None),  # absent in GPT-2's own file
    "model.dropout": (None, 0),
    "model.continuing_subword_prefix": ("", None),
    "model.end_of_word_suffix": ("", None),
    "model.ignore_merges": (False, None),
    "pre_tokenizer.type": ("ByteLevel",),
    "pre_tokenizer.add_prefix_space": (False,),
    "pre_tokenizer.use_regex": (True, None),
}


def read_tokenizer(model: Path) -> Tokenizer:
    """The tokenizer of a model: the directory itself, or the one of its file.

    Raises CheckpointError for files that are missing or malformed, TokenizerError for a vocabulary
    that contradicts itself or would give other ids than Tokenizer does. So do the functions below.
    """
    directory = directory_of(model)
    settings = directory / "tokenizer_config.json"
    if settings.is_file() and read_json(settings).get("add_prefix_space"):
        raise TokenizerError(f"{settings}: add_prefix_space is true, expected false, as in GPT-2")
    for merges, vocab in MERGES_AND_VOCAB:
        if (directory / merges).is_file():
            others = (
                path if path.is_file() else None for path in (directory / vocab, directory / ADDED)
            )
            return read_merges(directory / merges, *others)
    if (directory / "tokenizer.json").is_file():
        return read_tokenizer_json(directory / "tokenizer.json")
    expected = "expected merges.txt and vocab.json, or tokenizer.json"
    raise CheckpointError(f"{directory} has no tokenizer: {expected}")


def read_merges(
    path: Path, vocab_path: Path | None = None, added_path: Path | None = None
) -> Tokenizer:
    """From merges.txt (OpenAI: vocab.bpe), vocab.json (encoder.json) and added_tokens.json.

    added_tokens.json has the ids of special tokens that are not in vocab.json or are also ordinary
    tokens.
    """
    lines = read_text(path).replace("\r\n", "\n").rstrip("\n").split("\n")
    start = 1 if lines[0].startswith("#version") or lines == [""] else 0
    merges = _pairs(lines[start:], f"{path}, line", 1 + start)
    if vocab_path is None:
        return _from_vocabulary(merges, None, f"{path}")
    vocab, added, name = read_json(vocab_path), {}, f"{path} with {vocab_path.name}"
    if added_path is not None:
        added, name = read_json(added_path), f"{name} and {added_path.name}"
    return _from_vocabulary(merges, vocab | added, name, added)


def read_tokenizer_json(path: Path) -> Tokenizer:
    file = read_json(path)
    model, added = file.get("model"), file.get("added_tokens") or []
    pre_tokenizer = file.get("pre_tokenizer")
    match pre_tokenizer:
        case {"type": "Sequence", "pretokenizers": [only]}:
            pre_tokenizer = only
    for name, accepted in NEUTRAL_VALUES.items():
        section, _, key = name.rpartition(".")
        place = {"": file, "model": model, "pre_tokenizer": pre_tokenizer}[section]
        value = place.get(key) if isinstance(place, dict) else place
        if value not in accepted:
            found = short_repr(value)
            raise TokenizerError(
                f"{path}: {name} is {found}, expected {accepted[0]!r}, as in GPT-2"
            )
    match [model, added]:
        case [{"vocab": dict(vocab), "merges": list(spelled)}, list()]:
            merges = _pairs(spelled, f"{path}, merge", 1)
        case _:
            raise TokenizerError(
                f"{path}: expected model.vocab, model.merges and a list of added_tokens"
            )
    for token in added:
        match token:
            case {"content": str(text), "id": int(token_id)}:
                is_plain = not any(token.get(flag) for flag in ("lstrip", "rstrip", "single_word"))
                if is_plain and vocab.setdefault(text, token_id) == token_id:
                    continue
        expected = (
            "expected content, the id that vocab has for it, and not lstrip, rstrip or single_word"
        )
        raise TokenizerError(
            f"{path}: added token {short_repr(token)}: {expected}, which change ids"
        )
    return _from_vocabulary(merges, vocab, f"{path}", {token["content"] for token in added})


def vocabulary_files(tokenizer: Tokenizer) -> dict[str, str]:
    """The contents of merges.txt and vocab.json, by name. For GPT-2 they are OpenAI's files, byte
    for byte.

    Other special tokens are also written to added_tokens.json, or transformers would read them as
    text.
    """
    lines = ["#version: 0.2", *map(" ".join, tokenizer.merges)]
    ids = spelled_ids(tokenizer.merges, tokenizer.first_id) | tokenizer.special_tokens
    vocab = dict(sorted(ids.items(), key=lambda item: item[1]))
    files = {"merges.txt": "".join(f"{line}\n" for line in lines), "vocab.json": json.dumps(vocab)}
    added = {token: n for token, n in tokenizer.special_tokens.items() if token != EOT}
    return files | ({ADDED: json.dumps(added)} if added else {})


def _from_vocabulary(
    merges: list[tuple[str, str]],
    vocab: dict[str, Any] | None,
    name: str,
    added: Container[str] = (),
) -> Tokenizer:
    """The tokenizer of these merges, if its ids are those of `vocab`. `name` is for errors.

    Tokens that no merge makes are special, and so are those in `added`.
    """
    try:
        if vocab is None:
            return Tokenizer(merges)
        if wrong := [item for item in vocab.items() if type(item[1]) is not int]:
            token, found = map(short_repr, wrong[0])
            raise TokenizerError(f"token {token} has id {found}, expected an integer")
        ids = spelled_ids(merges, vocab.get("!", 0))
        if not ids.items() <= vocab.items():
            Tokenizer(
                merges
            )  # raises if the merges contradict themselves, which is the error to report
            token, expected = next(item for item in ids.items() if item not in vocab.items())
            found = f"id {short_repr(vocab[token])}" if token in vocab else "no id"
            raise TokenizerError(f"token {short_repr(token)} has {found}, expected {expected}")
        special_tokens = {
            token: n for token, n in vocab.items() if token not in ids or token in added
        }
        for token in vocab:
            # Only an ordinary token is written with "Ġ": in a special token, a space is a space.
            if "Ġ" in token and token not in ids:
                raise TokenizerError(
                    f"no merge makes token {short_repr(token)}: merges are missing"
                )
        return Tokenizer(merges, special_tokens, ids["!"])
    except TokenizerError as error:
        raise TokenizerError(f"{name}: {error}") from None


def _pairs(spelled: list[Any], name: str, first: int) -> list[tuple[str, str]]:
    """Merges from "a b" or ["a", "b"]. Errors number the merges from `first`, after `name`."""
    merges = []
    for number, merge in enumerate(spelled, first):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        are_two = isinstance(pair, list) and len(pair) == 2 and "" not in pair
        if not are_two or not isinstance(pair[0], str) or not isinstance(pair[1], str):
            raise TokenizerError(f"{name} {number}: expected two tokens, got {short_repr(merge)}")
        merges.append((pair[0], pair[1]))
    return merges
