"""For callers of before, until they are converted."""

from collections.abc import Mapping
from pathlib import Path

from ..gpt2.model import GPT2
from ..gpt2.tokenizer import Tokenizer
from .files import copied_files as copied_files
from .files import write_checkpoint
from .publishing import StagedFiles
from .vocabulary import vocabulary_files


def write_model(files: StagedFiles, model: GPT2, others: Mapping[str, bytes]) -> None:
    write_checkpoint(files.new, model, others)


def tokenizer_files(tokenizer: Tokenizer, directory: Path) -> dict[str, bytes]:
    return {name: text.encode() for name, text in vocabulary_files(tokenizer).items()}
