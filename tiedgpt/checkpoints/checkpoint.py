"""For callers of before, until they are converted: `Checkpoint`, `Opened`, `open_model`."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..gpt2.config import Config
from ..gpt2.model import GPT2
from ..gpt2.tokenizer import Tokenizer
from . import files, vocabulary


@dataclass
class Checkpoint:
    path: Path

    @cached_property
    def config(self) -> Config:
        files.has_unembedding(self.path)  # raises for damaged weights
        return files.read_config(self.path)

    @property
    def has_own_unembedding(self) -> bool:
        return files.has_unembedding(self.path)

    def load(self, head=None, progress=None, copy=False) -> GPT2:  # type: ignore
        return files.load(self.path, head, copy, progress)


@dataclass
class Opened:
    name: str
    checkpoint: Checkpoint

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return vocabulary.read_tokenizer(self.checkpoint.path)

    @property
    def vocabulary(self) -> object:
        tokenizer = self.tokenizer
        return tokenizer.merges, tokenizer.special_tokens, self.checkpoint.config.vocab_size
