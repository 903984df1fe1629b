"""A tokenizer.json of a small vocabulary, as Hugging Face's tokenizers library writes it.

The vocabulary has 256 bytes, the merged tokens of the five SMALL_MERGES, and <|endoftext|> (EOT).
"""

from support.models import SMALL_MERGES
from tiedgpt.gpt2.tokenizer import EOT, spelled_ids

BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}


def added_token(content: str, token_id: int, **changes: object) -> dict:
    """An entry of the field added_tokens, with some of its fields changed."""
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
    """The document, with some fields changed. EOT has the id 256 + 5 = 261."""
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
    """The field "model" of the document, with some of its own fields changed."""
    model = {
        "type": "BPE",
        "dropout": None,
        "vocab": spelled_ids(SMALL_MERGES, first_id=0) | {EOT: 261},
        "merges": [f"{left} {right}" for left, right in SMALL_MERGES],
    }
    return model | changes


def without(fields: dict, name: str) -> dict:
    """The fields without the one of this name."""
    return {key: value for key, value in fields.items() if key != name}
