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
from .reading import directory_of, read_json, read_text

ADDED = "added_tokens.json"
TOKENIZER_JSON = "tokenizer.json"
MERGES_AND_VOCAB = (
    ("merges.txt", "vocab.json"),  # Hugging Face's names
    ("vocab.bpe", "encoder.json"),  # OpenAI's
)

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
            return read_merges(
                directory / merges,
                vocab_path=_if_there(directory / vocab),
                added_path=_if_there(directory / ADDED),
            )
    if (directory / TOKENIZER_JSON).is_file():
        return read_tokenizer_json(directory / TOKENIZER_JSON)
    raise CheckpointError(
        f"{directory} has no tokenizer: expected merges.txt and vocab.json, or tokenizer.json"
    )


def _if_there(path: Path) -> Path | None:
    return path if path.is_file() else None


def read_merges(
    path: Path, vocab_path: Path | None = None, added_path: Path | None = None
) -> Tokenizer:
    """From merges.txt (OpenAI: vocab.bpe), vocab.json (encoder.json) and added_tokens.json.

    added_tokens.json has the ids of special tokens that are not in vocab.json or are also ordinary
    tokens.
    """
    lines = read_text(path).replace("\r\n", "\n").rstrip("\n").split("\n")
    first_line = 1  # the number of the line of the first merge
    if lines[0].startswith("#version") or lines == [""]:
        first_line = 2
    merges = _parse_merges(lines[first_line - 1 :], f"{path}, line", first_line)
    if vocab_path is None:
        return _from_vocabulary(merges, None, name=f"{path}")

    vocab = read_json(vocab_path)
    name = f"{path} with {vocab_path.name}"
    if added_path is None:
        return _from_vocabulary(merges, vocab, name)
    added = read_json(added_path)
    return _from_vocabulary(merges, vocab | added, f"{name} and {added_path.name}", added)


def read_tokenizer_json(path: Path) -> Tokenizer:
    """From the file of Hugging Face's library `tokenizers`."""
    file = read_json(path)
    _check_neutral(file, path)
    model = file["model"] if isinstance(file.get("model"), dict) else {}
    vocab = model.get("vocab")
    merges = model.get("merges")
    added = file.get("added_tokens") or []
    if not isinstance(vocab, dict) or not isinstance(merges, list) or not isinstance(added, list):
        raise TokenizerError(
            f"{path}: expected model.vocab, model.merges and a list of added_tokens"
        )
    pairs = _parse_merges(merges, f"{path}, merge", 1)
    for token in added:
        is_plain = _is_plain_token(token)
        if not is_plain or vocab.setdefault(token["content"], token["id"]) != token["id"]:
            raise TokenizerError(
                f"{path}: added token {short_repr(token)}: expected content, the id that vocab has "
                "for it, and not lstrip, rstrip or single_word, which change ids"
            )
    added_texts = {token["content"] for token in added}
    return _from_vocabulary(pairs, vocab, f"{path}", added_texts)


def _check_neutral(file: dict[str, Any], path: Path) -> None:
    """Raise TokenizerError for a setting of tokenizer.json that would give other ids."""
    pre_tokenizer = file.get("pre_tokenizer")
    match pre_tokenizer:
        case {"type": "Sequence", "pretokenizers": [only]}:
            pre_tokenizer = only
    sections = {"": file, "model": file.get("model"), "pre_tokenizer": pre_tokenizer}
    for name, accepted in NEUTRAL_VALUES.items():
        section_name, _, key = name.rpartition(".")
        value = sections[section_name]
        if isinstance(value, dict):
            value = value.get(key)
        if value not in accepted:
            raise TokenizerError(
                f"{path}: {name} is {short_repr(value)}, expected {accepted[0]!r}, as in GPT-2"
            )


def _is_plain_token(token: Any) -> bool:
    """Whether an entry of added_tokens has a text and an id, and takes no text around it away."""
    if not isinstance(token, dict):
        return False
    if not isinstance(token.get("content"), str) or not isinstance(token.get("id"), int):
        return False
    return not (token.get("lstrip") or token.get("rstrip") or token.get("single_word"))


def vocabulary_files(tokenizer: Tokenizer) -> dict[str, str]:
    """The contents of merges.txt and vocab.json, by name. For GPT-2 they are OpenAI's files.

    Other special tokens are also written to added_tokens.json, or transformers would read them as
    text.
    """
    lines = ["#version: 0.2"] + [f"{left} {right}" for left, right in tokenizer.merges]
    ids = spelled_ids(tokenizer.merges, tokenizer.first_id) | tokenizer.special_tokens
    vocab = dict(sorted(ids.items(), key=lambda item: item[1]))
    files = {
        "merges.txt": "".join(f"{line}\n" for line in lines),
        "vocab.json": json.dumps(vocab),
    }
    added = {token: n for token, n in tokenizer.special_tokens.items() if token != EOT}
    if added:
        files[ADDED] = json.dumps(added)
    return files


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
        ids = _check_ids(merges, vocab)
        special_tokens = {}
        for token, token_id in vocab.items():
            if token not in ids or token in added:
                special_tokens[token] = token_id
        return Tokenizer(merges, special_tokens, ids["!"])
    except TokenizerError as error:
        raise TokenizerError(f"{name}: {error}") from None


def _check_ids(merges: list[tuple[str, str]], vocab: dict[str, Any]) -> dict[str, int]:
    """The ids of the ordinary tokens, if `vocab` has the same. Raises TokenizerError."""
    for token, token_id in vocab.items():
        if type(token_id) is not int:
            raise TokenizerError(
                f"token {short_repr(token)} has id {short_repr(token_id)}, expected an integer"
            )
    ids = spelled_ids(merges, vocab.get("!", 0))
    for token, token_id in ids.items():
        if vocab.get(token) != token_id:
            Tokenizer(merges)  # raises if the merges contradict themselves: the error to report
            id_in_vocab = f"id {short_repr(vocab[token])}" if token in vocab else "no id"
            raise TokenizerError(
                f"token {short_repr(token)} has {id_in_vocab}, expected {token_id}"
            )
    for token in vocab:
        # Only an ordinary token is written with "Ġ": in a special token, a space is a space.
        if "Ġ" in token and token not in ids:
            raise TokenizerError(f"no merge makes token {short_repr(token)}: merges are missing")
    return ids


def _parse_merges(spelled: list[Any], name: str, first: int) -> list[tuple[str, str]]:
    """Merges from "a b" or ["a", "b"]. Errors number the merges from `first`, after `name`."""
    merges = []
    for number, merge in enumerate(spelled, first):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not _is_pair(pair):
            raise TokenizerError(f"{name} {number}: expected two tokens, got {short_repr(merge)}")
        left, right = pair
        merges.append((left, right))
    return merges


def _is_pair(pair: Any) -> bool:
    """Whether a value is a list of two texts that are not empty."""
    if not isinstance(pair, list) or len(pair) != 2:
        return False
    left, right = pair
    return isinstance(left, str) and isinstance(right, str) and left != "" and right != ""
