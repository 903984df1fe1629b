"""From the text of a prompt to token ids that a model can continue."""

from ..errors import ArgumentError
from ..gpt2.checks import check_prompt_ids
from ..gpt2.config import Config
from ..gpt2.tokenizer import Tokenizer


def encode_text(
    tokenizer: Tokenizer, text: str, allow_special: bool, source: str = "the text"
) -> list[int]:
    """The ids of a text of any length.

    Raises ArgumentError, which names `source`, for a special token in the text, unless
    `allow_special` is True. Raises TokenizerError for a text that cannot be encoded.
    """
    if not allow_special:
        special = tokenizer.find_special(text)
        if special is not None:
            raise ArgumentError(
                f"{source} holds {special}; to read it as that token, add --allow-special"
            )
    return tokenizer.encode(text, special="token")


def encode_prompt(
    tokenizer: Tokenizer, config: Config, text: str, allow_special: bool
) -> list[int]:
    """The ids of a prompt.

    Raises what encode_text raises, and ArgumentError if a model of this configuration cannot
    continue them: if there are none, or more than its context.
    """
    return check_prompt_ids(encode_text(tokenizer, text, allow_special), config)


def kept_tokens(n_ctx: int, max_new_tokens: int) -> int:
    """How many tokens at the end of a long prompt are kept, if its beginning may be dropped.

    The new tokens then fit into the context, unless they are more than half of it. At least half
    the context is kept, and at least one token.
    """
    return max(n_ctx - max_new_tokens, n_ctx // 2, 1)
