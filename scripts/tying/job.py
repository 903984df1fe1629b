"""One run: train a small model and measure it."""

import math
import warnings
from pathlib import Path

import numpy as np

from tiedgpt import GPT2
from tiedgpt.gpt2.ops import cross_entropy
from tiedgpt.inference.evaluation import measure_tokens, token_losses
from tiedgpt.study.bigrams import bigrams
from tiedgpt.study.corpus import MIN_TOKENS, Corpus
from tiedgpt.study.paths import paths_of
from tiedgpt.study.solved import best_factor

from .calibrated import calibrated_paths, fit
from .data import Data, data_of, data_path, read_data
from .engine import Line
from .settings import PILOT_SEEDS, Run
from .training import train

EARLY_TOKENS = 4097  # of the held-out text, for the loss after a tenth of the steps
TRAIN_TOKENS = 16_385  # of the text to train on, for the training loss
FITTED_TOKENS = 4097  # of the text to train on, to fit the scale of a swapped head
SCORES = (
    "unigram.kl",
    "normed+unigram.kl",
    "normed+unigram.top1",
    "mlp0+unigram.kl",
    "model+unigram.kl",
)


def loss_of(model: GPT2, ids: np.ndarray) -> float:
    """Nats per token; every token but the first is predicted once."""
    return float(token_losses(model, ids, model.config.n_ctx - 1).mean())


def trained(run: Run, data: Data) -> tuple[GPT2, Line]:
    """The model of a run, its loss after a tenth of the steps, and the ratios of its gradients.

    Raises FloatingPointError if a loss or a gradient is not finite.
    """
    model, early_model, ratios = train(run, data.tokens)
    early = data.held_out[:EARLY_TOKENS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        result: Line = {"early loss": loss_of(early_model, early)}
        if not math.isfinite(loss_of(model, early)):
            raise FloatingPointError
    if ratios:
        result |= summary_of(ratios)
    return model, result


def summary_of(ratios: list[float]) -> Line:
    """The mean ratio of the two gradients in each tenth of the steps, and the highest."""
    tenth = len(ratios) // 10
    summary: Line = {}
    for part in range(10):
        start = part * tenth
        summary[f"ratio, tenth {part + 1}"] = float(np.mean(ratios[start : start + tenth]))
    summary["ratio, peak"] = max(ratios)
    summary["ratio, after a tenth"] = float(np.mean(ratios[tenth:]))
    return summary


def do_run(run: Run, out: Path, text: str, with_paths: bool = True) -> Line:
    """Train and measure one model. Its paths are compared with the bigrams, if that is wanted."""
    data = data_of(run, out, text)
    model, result = trained(run, data)
    result["loss"] = loss_of(model, data.held_out)
    result["training loss"] = loss_of(model, data.tokens[:TRAIN_TOKENS])
    result["negative gains"] = float((model.parameters["ln_f.weight"] < 0).mean())
    if run.is_chain:
        result["excess"] = result["loss"] - data.best_loss
    if with_paths and run.text == "whole" and run.seed not in PILOT_SEEDS:
        _, corpus = read_data(data_path(out, text, run.vocab_size))
        result |= study(model, data, corpus)
    return result


def study(model: GPT2, data: Data, corpus: Corpus) -> Line:
    """How each path compares with the bigrams, and how often it predicts the token itself."""
    result: Line = {}
    if corpus.frequent().size >= MIN_TOKENS:
        result |= path_scores(model, corpus)
        result |= self_predictions(model, corpus)
    if not model.config.tied:
        result |= swapped(model, data, corpus)
    return result


def path_scores(model: GPT2, corpus: Corpus) -> Line:
    """The scores of SCORES that the model's paths have."""
    paths = bigrams(model, corpus, others=calibrated_paths(model, corpus)) or {}
    result: Line = {}
    for score in SCORES:
        path, measure = score.rsplit(".", 1)
        if measure in paths.get(path, {}):
            result[score] = paths[path][measure]
    return result


def self_predictions(model: GPT2, corpus: Corpus) -> Line:
    """The share of frequent tokens to which a path gives the highest logit for themselves."""
    frequent = corpus.frequent()
    result: Line = {}
    for name, path in paths_of(model).items():
        if name in ("raw", "mlp0"):
            is_itself = path(model, frequent).argmax(axis=1) == frequent
            result[f"{name}.self"] = float(is_itself.mean())
    return result


def swapped(model: GPT2, data: Data, corpus: Corpus) -> Line:
    """The held-out loss with `x @ wte.T` as the head: plain, with a scale, and with the counts.

    The scale, and the weight of the token counts, are fitted to the text that the model was trained
    on.
    """
    tied = model.tie()
    stride = model.config.n_ctx - 1
    fitted = data.tokens[:FITTED_TOKENS]
    x = np.concatenate(measure_tokens(tied, fitted, stride, lambda logits, _: logits))
    Q = np.eye(model.config.vocab_size, dtype=np.float32)[fitted[1:]]
    counts = corpus.counts + 1
    log_u = np.log(counts / counts.sum()).astype(np.float32)

    def loss(scale: float, weight: float) -> float:
        def losses(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
            return cross_entropy(np.float32(scale) * logits + np.float32(weight) * log_u, targets)

        parts = measure_tokens(tied, data.held_out, stride, losses)
        return float(np.concatenate(parts, dtype=np.float64).mean())

    scale, weight = fit(x, log_u, Q)
    return {
        "swapped": loss(scale=1, weight=0),
        "swapped, scaled": loss(scale=best_factor(x, Q), weight=0),
        "swapped, scaled, with counts": loss(scale, weight),
    }
