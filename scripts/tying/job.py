"""One run: train a small model and measure it."""

import math
import warnings
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

import tiedgpt
from tiedgpt.checkpoints.publishing import StagedFiles
from tiedgpt.checkpoints.reading import open_to_read
from tiedgpt.gpt2.ops import cross_entropy
from tiedgpt.inference.evaluation import measure_tokens, token_losses
from tiedgpt.study.bigrams import bigrams
from tiedgpt.study.corpus import MIN_TOKENS, Corpus
from tiedgpt.study.paths import paths_of
from tiedgpt.study.solved import best_factor
from tiedgpt.training.merges import learn_tokenizer

from .calibrated import calibrated_paths, fit
from .chains import class_chain, markov_chain, sample
from .engine import Line
from .settings import PILOT_SEEDS, Run
from .training import train

EARLY_TOKENS = 4097  # of the held-out text, for the loss after a tenth of the steps
TRAIN_TOKENS = 16_385  # of the text to train on, for the training loss
FITTED_TOKENS = 4097  # of the text to train on, to fit the scale of a swapped head
CHAIN_TOKENS = 200_000  # to train on; a tenth as many are held out
SCORES = (
    "unigram.kl",
    "normed+unigram.kl",
    "normed+unigram.top1",
    "mlp0+unigram.kl",
    "model+unigram.kl",
)


@dataclass(frozen=True)
class Data:
    """Tokens to train on and tokens held out."""

    tokens: np.ndarray
    held_out: np.ndarray
    best_loss: float = (
        math.nan
    )  # of a chain's own probabilities on the held-out tokens, in nats per token


def text_name(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:12]


def prepare(text: str, vocab_size: int, out: Path) -> None:
    """Write a text as tokens, unless that was done. Its last tenth is held out, and gives no
    merges."""
    path = data_path(out, text_name(text), vocab_size)
    if path.exists():
        return
    cut = len(text) * 9 // 10
    tokenizer = learn_tokenizer(text[:cut], vocab_size)
    if tokenizer.vocab_size < vocab_size:
        found = f"the text has merges for {tokenizer.vocab_size} tokens only"
        raise tiedgpt.TiedGPTError(f"{found}; expected {vocab_size}: give a longer text")
    tokens, held_out = (
        np.array(tokenizer.encode(part), np.int64) for part in (text[:cut], text[cut:])
    )
    with StagedFiles(path.parent) as files:
        np.savez(files.open(path.name), tokens=tokens, held_out=held_out)


def data_path(out: Path, text: str, vocab_size: int) -> Path:
    return out / "texts" / f"{text}-{vocab_size}.npz"


@cache
def read_data(path: Path) -> tuple[Data, Corpus]:
    try:
        with open_to_read(path) as opened, np.load(opened) as file:
            data = Data(file["tokens"], file["held_out"])
    except (OSError, EOFError, ValueError, LookupError, BadZipFile) as error:
        raise tiedgpt.TiedGPTError(f"{path} is damaged: remove it to make it again") from error
    return data, Corpus.of(data.tokens, int(path.stem.rpartition("-")[2]))


def data_of(run: Run, out: Path, text: str) -> Data:
    if run.text == "chain":
        return chain_data(run.vocab_size, run.jsd, run.seed)
    if run.text == "classes":
        return class_data(run.shared, run.noise, run.seed)
    data = read_data(data_path(out, text, run.vocab_size))[0]
    return replace(
        data, tokens=data.tokens[: len(data.tokens) // (10 if run.text == "tenth" else 1)]
    )


@lru_cache(maxsize=1)
def chain_data(vocab_size: int, jsd: float, seed: int) -> Data:
    return walk(markov_chain(vocab_size, jsd, np.random.default_rng([seed, 2])), seed)


@lru_cache(maxsize=1)
def class_data(shared: float, noise: float, seed: int) -> Data:
    return walk(class_chain(shared, noise, np.random.default_rng([seed, 6])), seed)


def walk(chain: np.ndarray, seed: int) -> Data:
    """Tokens of a walk through a chain."""
    rng = np.random.default_rng([seed, 3])
    tokens, held_out = (sample(chain, n, rng) for n in (CHAIN_TOKENS, CHAIN_TOKENS // 10))
    return Data(tokens, held_out, float(-np.log(chain[held_out[:-1], held_out[1:]]).mean()))


def loss_of(model: tiedgpt.GPT2, ids: np.ndarray) -> float:
    """Nats per token; every token but the first is predicted once."""
    return float(token_losses(model, ids, model.config.n_ctx - 1).mean())


def trained(run: Run, data: Data) -> tuple[tiedgpt.GPT2, Line]:
    """The model of a run, its loss after a tenth of the steps, and the ratios of its gradients.

    Raises FloatingPointError if a loss or a gradient is not finite.
    """
    model, early_model, ratios = train(run, data.tokens)
    early = data.held_out[:EARLY_TOKENS]
    result = Line()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        result["early loss"] = loss_of(early_model, early)
        if not math.isfinite(loss_of(model, early)):
            raise FloatingPointError
    if ratios:
        tenth = run.steps // 10
        for part in range(10):
            result[f"ratio, tenth {part + 1}"] = float(np.mean(ratios[part * tenth :][:tenth]))
        result["ratio, peak"] = max(ratios)
        result["ratio, after a tenth"] = float(np.mean(ratios[tenth:]))
    return model, result


def do_run(run: Run, out: Path, text: str, with_paths: bool = True) -> Line:
    """Train and measure one model, and compare its paths with the bigrams if it is for the page."""
    data = data_of(run, out, text)
    model, result = trained(run, data)
    result["loss"] = loss_of(model, data.held_out)
    result["training loss"] = loss_of(model, data.tokens[:TRAIN_TOKENS])
    result["negative gains"] = float((model.parameters["ln_f.weight"] < 0).mean())
    if run.text in ("chain", "classes"):
        result["excess"] = result["loss"] - data.best_loss
    if with_paths and run.text == "whole" and run.seed not in PILOT_SEEDS:
        result |= study(model, data, read_data(data_path(out, text, run.vocab_size))[1])
    return result


def study(model: tiedgpt.GPT2, data: Data, corpus: Corpus) -> Line:
    """How each path compares with the bigrams, and how often it predicts the token itself."""
    frequent, result = corpus.frequent(), Line()
    if frequent.size >= MIN_TOKENS:
        paths = bigrams(model, corpus, others=calibrated_paths(model, corpus)) or {}
        scores = {
            f"{path}.{name}": score for path, of in paths.items() for name, score in of.items()
        }
        result |= {name: scores[name] for name in SCORES if name in scores}
        for name, path in paths_of(model).items():
            if name in ("raw", "mlp0"):
                result[f"{name}.self"] = float(
                    (path(model, frequent).argmax(axis=1) == frequent).mean()
                )
    return result if model.config.tied else {**result, **swapped(model, data, corpus)}


def swapped(model: tiedgpt.GPT2, data: Data, corpus: Corpus) -> dict[str, float]:
    """The held-out loss with `x @ wte.T` as the head: as it is, with a fitted scale, and with the
    counts.

    The scale, and the weight of the token counts, are fitted to the text that the model was trained
    on.
    """
    tied, stride = model.tie(), model.config.n_ctx - 1
    some = data.tokens[:FITTED_TOKENS]
    x = np.concatenate(measure_tokens(tied, some, stride, lambda logits, _: logits))
    Q = np.eye(model.config.vocab_size, dtype=np.float32)[some[1:]]
    log_u = np.log((corpus.counts + 1) / (corpus.counts + 1).sum()).astype(np.float32)

    def loss(scale: float, weight: float) -> float:
        def losses(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
            return cross_entropy(np.float32(scale) * logits + np.float32(weight) * log_u, targets)

        parts = measure_tokens(tied, data.held_out, stride, losses)
        return float(np.concatenate(parts, dtype=np.float64).mean())

    found = {"swapped": loss(1, 0), "swapped, scaled": loss(best_factor(x, Q), 0)}
    return {**found, "swapped, scaled, with counts": loss(*fit(x, log_u, Q))}
