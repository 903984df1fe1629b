"""What the models are trained on: a text as tokens, or a walk through a Markov chain.

A chain is a table [V, V] of the probabilities of each next token after each token. There are two
kinds of chains (chains.py): one with a chosen asymmetry, its JSD, and one whose tokens have
classes. Each seed has a chain of its own.
"""

import math
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from tiedgpt import TiedGPTError
from tiedgpt.checkpoints.publishing import StagedFiles
from tiedgpt.checkpoints.reading import open_to_read
from tiedgpt.study.corpus import Corpus
from tiedgpt.training.merges import learn_tokenizer

from .chains import class_chain, markov_chain, sample
from .settings import Run

CHAIN_TOKENS = 200_000  # to train on; a tenth as many are held out
# What is drawn at random has a stream of its own, so that a draw does not change the others.
CHAIN_STREAM = 2
WALK_STREAM = 3
CLASSES_STREAM = 6


@dataclass(frozen=True)
class Data:
    """Tokens to train on and tokens held out."""

    tokens: np.ndarray
    held_out: np.ndarray
    # The loss of a chain's own probabilities on the held-out tokens, in nats per token.
    best_loss: float = math.nan


def text_name(text: str) -> str:
    """The name of a text: the first twelve digits of its SHA-256."""
    return sha256(text.encode()).hexdigest()[:12]


def prepare(text: str, vocab_size: int, out: Path) -> None:
    """Write the tokens of a text to its file, unless the file exists.

    The last tenth of the text is held out. The tokenizer learns its merges from the rest.
    """
    path = data_path(out, text_name(text), vocab_size)
    if path.exists():
        return
    cut = len(text) * 9 // 10
    tokenizer = learn_tokenizer(text[:cut], vocab_size)
    if tokenizer.vocab_size < vocab_size:
        raise TiedGPTError(
            f"the text has merges for {tokenizer.vocab_size} tokens only; "
            f"expected {vocab_size}: give a longer text"
        )
    tokens = np.array(tokenizer.encode(text[:cut]), np.int64)
    held_out = np.array(tokenizer.encode(text[cut:]), np.int64)
    with StagedFiles(path.parent) as files:
        np.savez(files.open(path.name), tokens=tokens, held_out=held_out)


def data_path(out: Path, text: str, vocab_size: int) -> Path:
    """The file with the tokens of a text. `text` is the name of the text."""
    return out / "texts" / f"{text}-{vocab_size}.npz"


@cache
def read_data(path: Path) -> tuple[Data, Corpus]:
    """The tokens of a text, and the counts of the tokens to train on."""
    try:
        with open_to_read(path) as opened, np.load(opened) as file:
            data = Data(file["tokens"], file["held_out"])
    except (OSError, EOFError, ValueError, LookupError, BadZipFile) as error:
        raise TiedGPTError(f"{path} is damaged: remove it to make it again") from error
    _, _, vocab_size = path.stem.rpartition("-")  # data_path puts it at the end of the name
    return data, Corpus.of(data.tokens, int(vocab_size))


def data_of(run: Run, out: Path, text: str) -> Data:
    """What a run is trained on. `text` is the name of a text that was prepared."""
    if run.text == "chain":
        return chain_data(run.vocab_size, run.jsd, run.seed)
    if run.text == "classes":
        return class_data(run.shared, run.noise, run.seed)
    data, _ = read_data(data_path(out, text, run.vocab_size))
    if run.text == "tenth":
        return replace(data, tokens=data.tokens[: len(data.tokens) // 10])
    return data


# The runs of one seed follow each other, so the last chain of each kind is kept.
@lru_cache(maxsize=1)
def chain_data(vocab_size: int, jsd: float, seed: int) -> Data:
    """A walk through a chain with the asymmetry `jsd`."""
    rng = np.random.default_rng([seed, CHAIN_STREAM])
    return walk(markov_chain(vocab_size, jsd, rng), seed)


@lru_cache(maxsize=1)
def class_data(shared: float, noise: float, seed: int) -> Data:
    """A walk through a chain of classes."""
    rng = np.random.default_rng([seed, CLASSES_STREAM])
    return walk(class_chain(shared, noise, rng), seed)


def walk(chain: np.ndarray, seed: int) -> Data:  # [V, V]
    """A walk through a chain to train on, and another one that is held out."""
    rng = np.random.default_rng([seed, WALK_STREAM])
    tokens = sample(chain, CHAIN_TOKENS, rng)
    held_out = sample(chain, CHAIN_TOKENS // 10, rng)
    probabilities = chain[held_out[:-1], held_out[1:]]  # of each held-out token but the first
    best_losses = -np.log(probabilities)
    return Data(tokens, held_out, best_loss=float(best_losses.mean()))
