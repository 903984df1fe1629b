"""One run: train a small model and measure it.

A path is a way through a model from one token to logits for the next (tiedgpt/study/paths.py):

    raw      the direct path A = W_E W_U: the token embedding times the output matrix
    normed   the same with ln_f between the two
    mlp0     the same with the first MLP and ln_f between the two, if there is a layer
    model    the whole model

A path is compared with the bigrams of the text that the model was trained on: by "kl", the KL
divergence of its probabilities from the shares of the tokens that follow, and by "top1", how often
the most common successor is the likeliest by the path. The unigram predicts the token counts after
every token. "PATH+unigram" is a calibrated path: its logits times a factor, plus the logarithm of
the token counts times a weight; the factor and the weight are fitted (calibrated.py).

A swapped head is the matrix W_E^T, used in an untied model in place of its own W_U.

A run's result is a Line: numbers by name, as in runs.jsonl.
"""

import math
import warnings
from pathlib import Path

import numpy as np

from tiedgpt import GPT2
from tiedgpt.evaluation import measure_tokens, token_losses
from tiedgpt.gpt2.ops import cross_entropy
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
FITTED_TOKENS = 4097  # of the text to train on, to fit the scale for a swapped head
SCORES = (  # "PATH.MEASURE"
    "unigram.kl",
    "normed+unigram.kl",
    "normed+unigram.top1",
    "mlp0+unigram.kl",
    "model+unigram.kl",
)


def loss_of(model: GPT2, ids: np.ndarray) -> float:
    """The loss in nats per token. Every token but the first is predicted once."""
    return float(token_losses(model, ids, stride_of(model)).mean())


def stride_of(model: GPT2) -> int:
    """How far apart the windows begin in which a text is scored.

    A window of n_ctx tokens predicts all of them but its first one. The window before it predicts
    that one.
    """
    return model.config.n_ctx - 1


def trained(run: Run, data: Data) -> tuple[GPT2, Line]:
    """The model of a run, and its loss after a tenth of the steps.

    The gradient of a tied wte is a sum of two parts, because wte is used as input and as output. If
    the run has a factor on the input's part, the result also sums up the ratios of the two parts.
    Raises FloatingPointError if a loss or a gradient is not finite.
    """
    model, early_model, ratios = train(run, data.tokens)
    scored = data.held_out[:EARLY_TOKENS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # overflow, if the rate is much too high
        result: Line = {"early loss": loss_of(early_model, scored)}
        # The last step may have spoilt the parameters. The loss of that step was computed before it
        # changed them, so it does not show this.
        if not math.isfinite(loss_of(model, scored)):
            raise FloatingPointError
    if ratios:  # only a run with a factor has ratios
        result |= summary_of(ratios)
    return model, result


def summary_of(ratios: list[float]) -> Line:
    """A few numbers that sum up the ratios, one for each step, of the two parts of wte's gradient.

    They are the mean of each tenth of the steps, the highest ratio, and the mean of all steps after
    the first tenth.
    """
    tenth = len(ratios) // 10
    summary: Line = {}
    for number in range(1, 11):
        end = number * tenth
        summary[f"ratio, tenth {number}"] = float(np.mean(ratios[end - tenth : end]))
    summary["ratio, peak"] = max(ratios)
    summary["ratio, after a tenth"] = float(np.mean(ratios[tenth:]))
    return summary


def do_run(run: Run, out: Path, text: str, with_paths: bool = True) -> Line:
    """Train a model and measure it. With `with_paths`, its paths are compared with the bigrams.

    `text` is the name of the text, whose tokens are in the directory `out`.
    """
    data = data_of(run, out, text)
    model, result = trained(run, data)
    result["loss"] = loss_of(model, data.held_out)
    result["training loss"] = loss_of(model, data.tokens[:TRAIN_TOKENS])
    result["negative gains"] = float((model.parameters["ln_f.weight"] < 0).mean())
    if run.is_chain:
        result["excess"] = result["loss"] - data.best_loss
    # The bigrams are those of the whole text, so only models that are trained on the whole text are
    # compared with them. The runs of a pilot are not studied: they only choose a rate.
    if with_paths and run.text == "whole" and run.seed not in PILOT_SEEDS:
        _, corpus = read_data(data_path(out, text, run.vocab_size))
        result |= study(model, data, corpus)
    return result


def study(model: GPT2, data: Data, corpus: Corpus) -> Line:
    """The measures of the paths and, for an untied model, the losses with a swapped head.

    If the text has few frequent tokens, the paths are not measured.
    """
    result: Line = {}
    if corpus.frequent().size >= MIN_TOKENS:
        result |= path_scores(model, corpus)
        result |= self_predictions(model, corpus)
    if not model.config.tied:
        result |= swapped_losses(model, data, corpus)
    return result


def path_scores(model: GPT2, corpus: Corpus) -> Line:
    """The numbers in SCORES, such as "normed+unigram.kl", the KL of a calibrated path.

    The corpus must have enough frequent tokens. A model without layers has no path "mlp0".
    """
    # {path: {"kl": ..., "top1": ...}} for the unigram, the paths and the calibrated paths
    numbers_by_path = bigrams(model, corpus, others=calibrated_paths(model, corpus))
    assert numbers_by_path is not None  # it is None only for few frequent tokens
    result: Line = {}
    for score in SCORES:
        path, measure = score.rsplit(".", 1)
        if path in numbers_by_path:
            result[score] = numbers_by_path[path][measure]
    return result


def self_predictions(model: GPT2, corpus: Corpus) -> Line:
    """The share of frequent tokens that have the highest logit after themselves.

    It is measured for the paths that claim 2 of the page asks about: "raw", and "mlp0" if the model
    has a layer.
    """
    frequent = corpus.frequent()
    paths = paths_of(model)
    result: Line = {}
    for name in ("raw", "mlp0"):
        if name in paths:
            logits = paths[name](model, frequent)
            is_itself = logits.argmax(axis=1) == frequent
            result[f"{name}.self"] = float(is_itself.mean())
    return result


def swapped_losses(model: GPT2, data: Data, corpus: Corpus) -> Line:
    """The held-out losses of an untied model with a swapped head.

    "swapped" is the loss of the logits as they are, "swapped, scaled" that of the logits times a
    scale. For the third loss, the logarithm of the tokens' shares, times a weight, is added too.
    The scale and the weight are fitted to the text that the model was trained on.
    """
    swapped_model = model.tie()
    counts = corpus.counts + 1  # so that no count is 0, which has no logarithm
    log_u = np.log(counts / counts.sum()).astype(np.float32)

    def held_out_loss(scale: float, weight: float) -> float:
        """The mean loss of scale * logits + weight * log_u."""

        def losses(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
            mixed = np.float32(scale) * logits + np.float32(weight) * log_u
            return cross_entropy(mixed, targets)

        stride = stride_of(swapped_model)
        parts = measure_tokens(swapped_model, data.held_out, stride, losses)
        return float(np.concatenate(parts, dtype=np.float64).mean())

    # The logits and the one-hot next tokens are [n - 1, V] for n tokens: the last one has no next.
    fitted_tokens = data.tokens[:FITTED_TOKENS]
    fitted_logits = logits_of(swapped_model, fitted_tokens)
    one_hot = np.eye(model.config.vocab_size, dtype=np.float32)
    next_tokens = one_hot[fitted_tokens[1:]]

    # Fit the scale alone, and then the scale and the weight together.
    scale_alone = best_factor(fitted_logits, next_tokens)
    scale, weight = fit(fitted_logits, log_u, next_tokens)
    return {
        "swapped": held_out_loss(scale=1, weight=0),
        "swapped, scaled": held_out_loss(scale_alone, weight=0),
        "swapped, scaled, with counts": held_out_loss(scale, weight),
    }


def logits_of(model: GPT2, ids: np.ndarray) -> np.ndarray:  # [N] -> [N - 1, V]
    """The logits from which each token of a text but the first is predicted."""

    def keep_logits(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return logits

    return np.concatenate(measure_tokens(model, ids, stride_of(model), keep_logits))
