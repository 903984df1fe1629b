"""What a command reads: the model that a user names, and texts from arguments, files or stdin."""

import sys
from pathlib import Path

from ..checkpoints import Opened, find_model
from ..checkpoints.download import find_default
from ..checkpoints.json_files import without_mark
from ..errors import ArgumentError, SpecialTokenError, check_file_name, short_repr
from ..generation import check_prompt_ids
from ..gpt2.config import Config
from ..gpt2.model import GPT2
from ..gpt2.tokenizer import Tokenizer
from .output import note, quoted_token

STDIN = "-"


def open_model(source: str | None, weights: bool = True) -> Opened:
    """The model that a user names; None is the default model. Its weights are not read yet.

    weights: False if configuration and vocabulary are enough.
    """
    if source is None:
        name, path = find_default(note, weights)
    else:
        name, path = find_model(source, note, weights)
    return Opened(path, name)


def load(opened: Opened, head: str | None, copy_is: str = "both heads are one") -> GPT2:
    """The model with this head. A note says if its W_U is a copy of wte.T.

    copy_is: what the note says of the copy.
    """
    model = opened.model(head)
    if head == "untied" and not opened.has_head:
        note(f"no W_U in the model: a copy of wte.T is used; {copy_is}")
    return model


def load_heads(opened: Opened, head: str | None) -> list[GPT2]:
    """The model with the head that --head names; for "both", the tied model and the untied one.

    The weights are read once.
    """
    if head == "both":
        untied = load(opened, "untied")
        return [untied.tie(), untied]
    return [load(opened, head)]


def read_text(file: str | None) -> str:
    """The text of a file, with its line ends as they are; that of stdin if `file` is "-" or None.

    A byte order mark at its beginning is dropped, with a warning.

    Raises ArgumentError for a file that does not exist, for a name that no file can have, for a
    text that is not UTF-8, and if `file` is None and stdin is a terminal. Raises OSError for a file
    that cannot be read.
    """
    if file is None and sys.stdin.isatty():
        raise ArgumentError("there is no text: give one, or pipe one in")
    if file == "":  # Path("") is the working directory
        raise ArgumentError("'' is not the name of a file")

    if file is None or file == STDIN:
        data = sys.stdin.buffer.read()
    else:
        check_file_name(file)  # refuses NUL, and half of a surrogate pair
        try:
            data = Path(file).read_bytes()
        except FileNotFoundError as error:
            raise ArgumentError(f"{file}: no such file; expected a text in UTF-8") from error
    data = without_mark(data, source_name(file))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"{source_name(file)} is not UTF-8 text at byte {error.start}"
        ) from error


def read_prompt(prompt: str | None) -> str:
    """The prompt; the text of stdin less one final line end if `prompt` is "-" or None."""
    if prompt is None or prompt == STDIN:
        return read_text(prompt).removesuffix("\n").removesuffix("\r")
    return prompt


def encode_text(
    tokenizer: Tokenizer, text: str, allow_special: bool, source: str = "the text"
) -> list[int]:
    """The ids of a text of any length.

    Raises ArgumentError, which names `source`, for a special token in the text, unless
    `allow_special` is True. Raises TokenizerError for a text that cannot be encoded.
    """
    try:
        return tokenizer.encode(text, special="token" if allow_special else "error")
    except SpecialTokenError as error:
        raise ArgumentError(
            f"{source} holds {error.token}; to read it as that token, add --allow-special"
        ) from error


def encode_prompt(
    tokenizer: Tokenizer, config: Config, text: str, allow_special: bool
) -> list[int]:
    """The ids of a prompt.

    Raises what encode_text raises, and ArgumentError if a model of this configuration cannot
    continue them: if there are none, or more than its context.
    """
    return check_prompt_ids(encode_text(tokenizer, text, allow_special), config)


def source_name(file: str | None) -> str:
    """What messages call the source of a text."""
    if file is None or file == STDIN:
        return "stdin"
    return file


def single_token(tokenizer: Tokenizer, vocab_size: int, text: str, allow_special: bool) -> int:
    """The id of a text that is one token of the model. Raises ArgumentError for any other text.

    A note says if the text with a space before it is a token too: inside of a text, that is the
    word, and this is a piece of one.
    """
    ids = encode_text(tokenizer, text, allow_special)
    with_space = f" {text}"
    is_word_with_space = len(encode_text(tokenizer, with_space, allow_special)) == 1
    if len(ids) == 1 and ids[0] < vocab_size:
        if is_word_with_space and text[0].isalpha():
            note(
                f"{short_repr(text)} is a piece of a word, or begins a line; inside of a line the "
                f"word has its space: {short_repr(with_space)}"
            )
        return ids[0]
    if len(ids) == 1:
        raise ArgumentError(
            f"{short_repr(text)} has id {ids[0]}, and the model has tokens 0 to {vocab_size - 1}"
        )

    description = "empty"
    if ids:
        tokens = " ".join(quoted_token(tokenizer, token) for token in ids[:8])
        dots = " ..." if len(ids) > 8 else ""
        description = f"{len(ids)} tokens, {tokens}{dots}"
    # A word in the middle of a text is one token together with the space before it.
    hint = ""
    if is_word_with_space:
        hint = f", as {short_repr(with_space)} is"
    raise ArgumentError(f"{short_repr(text)} is {description}; expected one token{hint}")
