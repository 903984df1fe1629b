"""Read files, texts and JSON. An error is a CheckpointError that names the file."""

import codecs
import json
import mmap
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, TiedGPTWarning, short_repr

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
READ_MORE = "see weights/README.md, Checkpoints of other programs"  # where errors send a reader
MAX_TEXT = 1 << 25  # bytes; GPT-2's largest text file, tokenizer.json, has about 3 million

# STAND_INS: how a file begins that is not what its name says -> what it is, and what to do. No
# safetensors file begins so: its first 8 bytes would be a length of more than 16 MB.
WEB_PAGE = (
    "is a web page, not the file: on the hub, the address of a file has /resolve/, and that of its "
    "page /blob/"
)
MESSAGE = "is a server's message, not the file: download it again"
STAND_INS = {
    rb"version https://git-lfs": "is a pointer of Git LFS, not the file: `git lfs pull` fetches it",
    rb"(?i)\s*<(!doctype|html|\?xml)": WEB_PAGE,
    rb'\s*{\s*"(error|message)"\s*:\s*"': MESSAGE,
    rb"(Entry|Repository) not found|404: Not Found|Access to model|Invalid username": MESSAGE,
}
# A safetensors file may begin so, too, if five bytes of 0 follow: its length is below 16 MB then.
PICKLE = re.compile(rb"PK\x03\x04|(\x80[\x02\x03][}\](c\x8a]|\x80[\x04\x05]\x95)(?!\0{5})")
PICKLE_NAMES = (".bin", ".pt", ".pth", ".ckpt")
RENAME_PICKLE = "is a pickle or zip file, as PyTorch writes: name it pytorch_model.bin if it is one"


@contextmanager
def open_to_read(path: Path, limit: int | None = None) -> Iterator[BufferedReader]:
    """A file, open for reading. Raises CheckpointError, also for an OSError in the block.

    A file is refused, too, that is not what its name says, such as a pointer of Git LFS.
    limit: the most bytes that the file may have, where all of it is read into memory.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # opening a FIFO would wait for a writer
        raise CheckpointError(f"{path}: is not a regular file")
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if limit is not None and size > limit:
                raise CheckpointError(f"{path}: {size} bytes; expected at most {limit}")
            beginning = file.peek(64)
            for pattern, sentence in STAND_INS.items():
                if re.match(pattern, beginning):
                    raise CheckpointError(f"{path} {sentence}")
            if PICKLE.match(beginning) and not path.name.endswith(PICKLE_NAMES):
                raise CheckpointError(f"{path} {RENAME_PICKLE}")
            yield file
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error


def map_file(path: Path) -> mmap.mmap:
    """A file, mapped. Raises CheckpointError for one that is empty or cannot be read."""
    with open_to_read(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise CheckpointError(f"{path}: the file is empty")
        # ACCESS_COPY: a number that is written to an array changes in this process alone.
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def without_mark(data: bytes, source: str) -> bytes:
    """The bytes of a text file without the byte order mark that it may begin with.

    Some editors write the mark, U+FEFF, before a text in UTF-8. It is no part of the text. Warns
    that it is dropped. source: what the warning calls the file.
    """
    text = data.removeprefix(codecs.BOM_UTF8)
    if len(text) < len(data):
        warnings.warn(
            f"{source} begins with a byte order mark, which is dropped",
            TiedGPTWarning,
            stacklevel=2,
        )
    return text


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The dict of the names and values of a JSON object. Raises ValueError for a name twice."""
    result = dict(pairs)
    if len(result) != len(pairs):
        names = Counter(name for name, _ in pairs)
        twice, _ = names.most_common(1)[0]
        raise ValueError(f"{short_repr(twice)} is given twice")
    return result


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


# STRICT_JSON.decode raises ValueError, or RecursionError for a text that is nested too deeply.
# Python's own reader accepts NaN, and of a name that is given twice it takes the last value.
STRICT_JSON = json.JSONDecoder(
    object_pairs_hook=without_duplicates, parse_constant=_refuse_constant
)
# It accepts Infinity and NaN: transformers 4 writes Infinity into the config.json of Mamba2.
JSON_OF_PYTHON = json.JSONDecoder(object_pairs_hook=without_duplicates)


def read_json(
    path: Path, decoder: json.JSONDecoder = STRICT_JSON, content: bytes | None = None
) -> dict[str, Any]:
    """The object that a JSON file holds. Raises CheckpointError.

    content: what the file holds, if that is read already.
    """
    if content is None:
        with open_to_read(path, limit=MAX_TEXT) as file:
            content = file.read()
    try:
        value = decoder.decode(content.decode())
    except (ValueError, RecursionError) as error:  # ValueError: not UTF-8, or not JSON
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {short_repr(value)}")
    return value


@dataclass
class Folder:
    """The small files beside a model's weights, such as config.json. Each is read once."""

    path: Path
    contents: dict[str, bytes] = field(default_factory=dict)  # by name, what is read so far
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return (self.path / name).is_file()

    def read(self, name: str) -> bytes:
        """The content of a file. Raises CheckpointError for one that is missing or too large."""
        if name not in self.contents:
            with open_to_read(self.path / name, limit=MAX_TEXT) as file:
                self.contents[name] = file.read()
        return self.contents[name]

    def json(self, name: str) -> dict[str, Any]:
        """The object of a JSON file; {} without the file. It is not to be changed.

        Raises CheckpointError.
        """
        if name not in self.objects:
            path = self.path / name
            is_there = path.is_file()
            self.objects[name] = read_json(path, content=self.read(name)) if is_there else {}
        return self.objects[name]
