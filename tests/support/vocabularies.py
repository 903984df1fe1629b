"""A tokenizer.json, as Hugging Face writes it."""

from support.models import SMALL_MERGES
from tiedgpt.gpt2.tokenizer import EOT, spelled_ids

BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}


def added_token(content: str, token_id: int, **changes: object) -> dict:
    """An entry of added_tokens."""
    token = {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    return token | changes


def tokenizer_json(**changes: object) -> dict:
    """What Hugging Face writes for SMALL_MERGES and <|endoftext|>, with some fields changed.

    The ids are those of 256 bytes, five merged tokens and <|endoftext|>, which has 261.
    """
    file = {
        "version": "1.0",
        "added_tokens": [added_token(EOT, 261)],
        "normalizer": None,
        "pre_tokenizer": dict(BYTE_LEVEL),
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False},
        "model": bpe_model(),
    }
    return file | changes


def bpe_model(**changes: object) -> dict:
    """The field "model" of tokenizer_json(), with some of its own fields changed."""
    model = {
        "type": "BPE",
        "dropout": None,
        "vocab": spelled_ids(SMALL_MERGES, first_id=0) | {EOT: 261},
        "merges": [f"{left} {right}" for left, right in SMALL_MERGES],
    }
    return model | changes


def without(fields: dict, name: str) -> dict:
    """The fields but one."""
    return {key: value for key, value in fields.items() if key != name}
