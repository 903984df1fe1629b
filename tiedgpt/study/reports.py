"""The answer to each question about a model, as one dict.

A command prints it as JSON or as a table, and the page draws it; neither computes anything again.
A TypedDict says which fields each report has, so that a type checker finds a misspelt one. A report
is of one model and has its "head", which is "tied" or "untied".

    next_report        the likeliest next tokens
    paths_report       the likeliest next tokens by each path from one token
    lens_report        the next token by each layer
    logit_report       the parts of a logit, and the same without some of them
    score_report       how well a text is predicted
    parameters_report  the parameters with either head
    study_report       all measurements of what tying does to a model
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, TypedDict

import numpy as np

from ..errors import TiedGPTError
from ..evaluation import Score, predicted_places, score, score_of, token_losses
from ..gpt2.config import Config
from ..gpt2.model import GPT2
from ..gpt2.parameters import (
    CountsByHead,
    TieSaves,
    count_parameters,
    parameter_count,
    tie_saves,
)
from ..gpt2.run import OnProgress, Tape
from ..gpt2.tokenizer import Tokenizer
from .bigrams import MLPNumbers, Scores, bigrams, gains, mlp_numbers
from .corpus import MIN_TOKENS, Corpus
from .embeddings import Tables, embeddings, knowledge
from .gradients import gradients
from .paths import Path, direct_path, jsd_floor, paths_of, top_k, whole_model
from .predictions import (
    Prediction,
    ablation,
    attribute,
    last_logits,
    lens,
    next_tokens,
    predict,
    surprisal,
    token_predictions,
)
from .solved import STEPS, missing, solved_paths

# Called with what is done, the total and the unit, it gives a context whose `add` is an OnProgress.
OpenProgress = Callable[[str, int, str], Any]
MAX_GRADIENT_TOKENS = 256
MAX_LOSS_TOKENS = 16_384

# Tokens


class TokenReport(TypedDict):
    id: int
    token: str | None  # its text; None if the id only pads the vocabulary


class LikelyToken(TokenReport):
    probability: float


class PredictionReport(LikelyToken):
    """A token that may come next."""

    logit: float
    rank: int  # 1 for the likeliest token


class Likelihood(TokenReport, total=False):
    """A token with its "logprob" or with its "bits"."""

    logprob: float  # the natural logarithm of its probability
    bits: float  # its surprisal


class SurpriseReport(Likelihood):
    """A token that came next."""

    rank: int
    alternatives: list[Likelihood]  # the likeliest others


def token_report(tokenizer: Tokenizer, token: int) -> TokenReport:
    """A token of a model."""
    text = None
    if token in tokenizer.tokens:
        text = tokenizer.token_text(int(token))
    return {"id": int(token), "token": text}


def prediction_report(tokenizer: Tokenizer, prediction: Prediction) -> PredictionReport:
    """How a token is predicted."""
    return {
        **token_report(tokenizer, prediction.token),
        "probability": prediction.probability,
        "logit": prediction.logit,
        "rank": prediction.rank,
    }


def predictions_report(
    tokenizer: Tokenizer,
    logits: np.ndarray,  # [V]
    tokens: Iterable[int],
) -> list[PredictionReport]:
    """How the logits predict each of these tokens."""
    predictions = predict(logits, tokens)
    return [prediction_report(tokenizer, prediction) for prediction in predictions]


def surprise_report(tokenizer: Tokenizer, prediction: Prediction, unit: str) -> SurpriseReport:
    """How a token that came next was predicted. unit: "logprob" or "bits", the field of tokens."""

    def likelihood(token: int, log_probability: float) -> Likelihood:
        if unit == "bits":
            return {**token_report(tokenizer, token), "bits": surprisal(log_probability)}
        return {**token_report(tokenizer, token), "logprob": log_probability}

    return {
        **likelihood(prediction.token, prediction.log_probability),
        "rank": prediction.rank,
        "alternatives": [
            likelihood(token, log_probability) for token, log_probability in prediction.alternatives
        ],
    }


# What comes next


class NextReport(TypedDict):
    head: str
    next: list[PredictionReport]


class PathsReport(TypedDict):
    head: str
    paths: dict[str, list[PredictionReport]]  # by the name of the path, the likeliest first


class LayerReport(TypedDict):
    name: str
    positions: list[list[LikelyToken]]  # for each token of the prompt, the likeliest next ones


class LensReport(TypedDict):
    head: str
    layers: list[LayerReport]


def next_report(models: Sequence[GPT2], tokenizer: Tokenizer, ids: Any, k: int) -> list[NextReport]:
    """For each model, how it predicts the k likeliest tokens after a prompt `ids` [T].

    All lists have the same tokens, those among the k likeliest of any of the models, in the same
    order.
    """
    reports: list[NextReport] = []
    for model, predictions in zip(models, next_tokens(models, ids, k), strict=True):
        listed = [prediction_report(tokenizer, prediction) for prediction in predictions]
        reports.append({"head": model.config.head, "next": listed})
    return reports


def paths_report(model: GPT2, tokenizer: Tokenizer, token: int, k: int) -> PathsReport:
    """For each path, the k likeliest tokens after one token."""
    by_path = {}
    for name, path in paths_of(model).items():
        logits = path(model, np.array([token]))[0]  # [V]
        by_path[name] = predictions_report(tokenizer, logits, top_k(logits, k))
    return {"head": model.config.head, "paths": by_path}


def lens_report(
    model: GPT2,
    tokenizer: Tokenizer,
    ids: Any,
    k: int = 5,
    last: int | None = None,
    tape: Tape | None = None,
) -> LensReport:
    """What each layer predicts: the k likeliest next tokens after each token of a prompt [T].

    last: only after these last tokens. tape: the activations, if the model has read `ids` already.
    """
    layers: list[LayerReport] = []
    for layer in lens(model, ids, k, last, tape):
        positions = []
        for tokens, probabilities in zip(layer.tokens, layer.probabilities, strict=True):
            likeliest: list[LikelyToken] = []
            for token, probability in zip(tokens, probabilities, strict=True):
                likeliest.append(
                    {**token_report(tokenizer, token), "probability": float(probability)}
                )
            positions.append(likeliest)
        layers.append({"name": layer.name, "positions": positions})
    return {"head": model.config.head, "layers": layers}


# The parts of a logit


class LogitOf(TypedDict):
    """The logit of a token, or the difference of two."""

    tokens: list[PredictionReport]  # one or two
    total: float  # the logit, or the difference


class Ablated(LogitOf):
    """The same logits of the model without some of its parts."""

    parts: list[str]  # the names of the parts that are set to 0


class LogitWithParts(LogitOf):
    head: str
    parts: dict[str, float]  # what each part of the model adds to `total`


class LogitReport(LogitWithParts, total=False):
    ablated: Ablated  # if parts are removed


def logit_report(
    model: GPT2,
    tokenizer: Tokenizer,
    ids: Any,
    token: int | None = None,
    against: int | None = None,
    removed: Sequence[str] = (),
    logits: np.ndarray | None = None,  # [V]
    tape: Tape | None = None,
) -> LogitReport:
    """The logit of `token` (the likeliest if None), or its difference from that of `against`.

    removed: the names of parts that are set to 0 in "ablated".
    logits, tape: what the model has computed already after the prompt `ids` [T].
    """
    edit = ablation(model.config, removed)
    if logits is None:
        logits = last_logits(model, ids)
    if token is None:
        token = int(logits.argmax())
    tokens = [token]
    if against is not None:
        tokens.append(against)
    parts = attribute(model, ids, token, against, tape)  # it refuses a wrong token

    report: LogitReport = {
        "head": model.config.head,
        **logit_of(tokenizer, logits, tokens),
        "parts": parts,
    }
    if edit:
        changed = last_logits(model, ids, edit)
        report["ablated"] = {"parts": list(removed), **logit_of(tokenizer, changed, tokens)}
    return report


def logit_of(tokenizer: Tokenizer, logits: np.ndarray, tokens: Sequence[int]) -> LogitOf:
    """The predictions of one or two tokens from logits [V], and the logit or the difference."""
    listed = predictions_report(tokenizer, logits, tokens)
    total = listed[0]["logit"]
    if len(listed) > 1:
        total -= listed[1]["logit"]
    return {"tokens": listed, "total": total}


# Score


class ScoredToken(SurpriseReport):
    place: int  # in the text, from 0


class ScoreOfText(TypedDict):
    """The numbers of evaluation.Score, and how they were measured."""

    head: str
    context: int  # the most tokens that the model reads at a time
    stride: int  # tokens from window to window
    tokens: int  # predicted ones
    bytes: int  # of the predicted tokens
    nll: float  # nats per token
    perplexity: float
    bits_per_byte: float


class ScoreReport(ScoreOfText, total=False):
    predictions: list[ScoredToken]  # if alternatives are asked for


def score_report(
    model: GPT2,
    tokenizer: Tokenizer,
    ids: np.ndarray,  # [N]
    stride: int,
    alternatives: int | None = None,
    progress: OnProgress = None,
) -> ScoreReport:
    """The loss per token, perplexity and bits per byte of a text.

    alternatives: None, or how many of the likeliest other tokens each of "predictions" has.
    """
    if alternatives is None:
        whole = score(model, tokenizer, ids, stride, progress)
        return {**score_of_text(model, stride, whole)}

    places = predicted_places(ids.size, model.config.n_ctx, stride)
    predictions = token_predictions(model, ids, stride, alternatives, progress)
    losses = -np.array([prediction.log_probability for prediction in predictions])  # nats
    listed: list[ScoredToken] = []
    for place, prediction in zip(places.tolist(), predictions, strict=True):
        listed.append({"place": place, **surprise_report(tokenizer, prediction, "bits")})
    whole = score_of(losses, tokenizer, ids[places])
    return {**score_of_text(model, stride, whole), "predictions": listed}


def score_of_text(model: GPT2, stride: int, whole: Score) -> ScoreOfText:
    """The score of a whole text, with how it was measured."""
    return {
        "context": model.config.n_ctx,
        "stride": stride,
        "head": model.config.head,
        "tokens": whole.tokens,
        "bytes": whole.bytes,
        "nll": whole.nll,
        "perplexity": whole.perplexity,
        "bits_per_byte": whole.bits_per_byte,
    }


# Parameters


class ParametersReport(CountsByHead, TieSaves):
    config: dict[str, Any]  # the fields of Config, but for those of other programs


def parameters_report(config: Config) -> ParametersReport:
    """The parameters of a model with either head."""
    fields = asdict(config)
    del fields["others"]  # the fields of other programs
    counts = count_parameters(config)
    saves = tie_saves(tied=counts["tied"]["total"], untied=counts["untied"]["total"])
    return {"config": fields, **counts, **saves}


# All measurements of what tying does


class CorpusNumbers(TypedDict):
    """What the report says of the text itself."""

    tokens: int  # of the text
    frequent: int  # how many different tokens are frequent
    jsd_floor: float | None  # paths.jsd_floor; None for a text with too few frequent tokens
    self_prediction: float | None  # the share of frequent tokens that most often follow themselves


class Losses(TypedDict):
    """Losses of a text in nats per token."""

    own: float  # of the model
    swapped: float | None  # of an untied model with the tied head; None for a tied model
    uniform: float  # of a uniform guess
    tokens: int  # predicted ones


class StudyReport(TypedDict):
    """A number is None if it is undefined, or needs a corpus or a tied model that is not given."""

    model: str
    head: str
    parameters: int
    bytes: int  # of the parameters in float32
    direct_path: dict[str, float | None]  # paths.direct_path
    embeddings: dict[str, float | int | None]  # embeddings.embeddings
    corpus: CorpusNumbers | None
    bigrams: dict[str, Scores] | None  # bigrams.bigrams, by path
    gains: dict[str, dict[str, float]] | None  # bigrams.gains, by path
    missing: dict[str, float] | None  # solved.missing
    tables: Tables | None  # embeddings.knowledge
    mlps: MLPNumbers | None  # bigrams.mlp_numbers
    loss: Losses | None
    gradients: dict[str, float] | None  # Gradients.lengths_and_cosine


def study_report(
    name: str,
    model: GPT2,
    corpus: Corpus | None,
    tied_W_E: np.ndarray | None,
    progress: OpenProgress,
    note: Callable[[str], Any],
    start: int | None = None,
) -> StudyReport:
    """All numbers of a model, with its name as "model".

    tied_W_E [V, D']: the matrix of a tied model, to compare with. `start` is the token that begins
    a document; with it, there is a path "started". `note` is called with what is left out. It and
    `progress` get texts that begin with `name`.
    """
    config = model.config
    count = parameter_count(config)
    with progress(f"{name}: direct path", config.vocab_size, "token") as bar:
        path_numbers = direct_path(model, corpus, bar.add)
    report: StudyReport = {
        "model": name,
        "head": config.head,
        "parameters": count.total,
        "bytes": count.bytes,
        "direct_path": path_numbers,
        "embeddings": embeddings(model, corpus, tied_W_E),
        # measure_on_corpus replaces these.
        "corpus": None,
        "bigrams": None,
        "gains": None,
        "missing": None,
        "tables": None,
        "mlps": None,
        "loss": None,
        "gradients": None,
    }
    if corpus is not None:
        measure_on_corpus(report, model, corpus, progress, note, start)
    return report


def measure_on_corpus(
    report: StudyReport,
    model: GPT2,
    corpus: Corpus,
    progress: OpenProgress,
    note: Callable[[str], Any],
    start: int | None,
) -> None:
    """Add to a report the numbers that need a corpus.

    note: is called with what is left out. start: the token that begins a document, if there is one.
    """
    config = model.config
    has_frequent_tokens = corpus.frequent().size >= MIN_TOKENS  # else a mean over them says nothing
    report["corpus"] = {
        "tokens": corpus.ids.size,
        "frequent": corpus.frequent().size,
        "jsd_floor": jsd_floor(corpus) if has_frequent_tokens else None,
        "self_prediction": corpus.self_prediction(),
    }
    if has_frequent_tokens:
        measure_pairs(report, model, corpus, progress, note, start)
    text = end_of_text(corpus.ids, config.n_ctx)
    heads = 1 if config.tied else 2  # an untied model is also scored with the tied head
    with progress(f"{report['model']}: loss", heads * text.size, "token") as bar:
        report["loss"] = losses(model, text, bar.add)
    if report["loss"] is not None:  # without a loss there is nothing to differentiate
        predicted = min(MAX_GRADIENT_TOKENS, config.n_ctx)
        last_ids = corpus.ids[-predicted - 1 :]  # one more, because the first is not predicted
        report["gradients"] = gradients(model, last_ids).lengths_and_cosine()


def measure_pairs(
    report: StudyReport,
    model: GPT2,
    corpus: Corpus,
    progress: OpenProgress,
    note: Callable[[str], Any],
    start: int | None,
) -> None:
    """Add to a report what compares the model with the pairs of neighbours in the corpus.

    The corpus must have frequent tokens. note: is called with what is left out. start: the token
    that begins a document, for a path "started".
    """
    name = report["model"]
    frequent = corpus.frequent().size
    with progress(f"{name}: the best W_U", STEPS, "step") as bar:
        solved = solved_paths(model, corpus, bar.add)
    if not solved:
        note(f"{name}: the corpus has too many different tokens to solve for the best W_U")

    after_start: dict[str, Path] = {}  # the path "started": the whole model reads `start` first
    # The model must have this token, and a context for two.
    if start is not None and start < model.config.vocab_size and model.config.n_ctx >= 2:
        after_start["started"] = partial(whole_model, start=start)
    others = {**after_start, **solved}
    paths = {**paths_of(model), **after_start}
    scored = 1 + len(paths) + len(solved)  # 1 for "unigram"
    with progress(f"{name}: bigrams", scored * frequent, "token") as bar:
        scores = bigrams(model, corpus, bar.add, others)
    assert scores is not None  # it is None only for a corpus without frequent tokens
    report["bigrams"] = scores
    with progress(f"{name}: gains", len(paths) * frequent, "token") as bar:
        report["gains"] = gains(model, corpus, paths, bar.add)
    report["missing"] = missing(scores)  # the parts of the KL of "normed"
    report["tables"] = knowledge(model, corpus)
    # Each MLP alone, the model without each MLP, no MLP, and the whole model
    mlp_paths = 2 * model.config.n_layer + 2
    with progress(f"{name}: MLPs", mlp_paths, "path") as bar:
        report["mlps"] = mlp_numbers(model, corpus, bar.add)


def end_of_text(ids: np.ndarray, n_ctx: int) -> np.ndarray:  # [N] -> [n]
    """The tokens of a text's end on which the loss is measured: the last MAX_LOSS_TOKENS.

    If the last tenth of the text has more, they are windows of n_ctx tokens, spread evenly over it.
    """
    last_tenth = ids.size // 10
    end = ids[-max(MAX_LOSS_TOKENS, last_tenth) :]
    if end.size <= MAX_LOSS_TOKENS:
        return end
    windows = max(1, MAX_LOSS_TOKENS // n_ctx)  # one if the context is longer than the sample
    starts = np.linspace(0, end.size - n_ctx, windows).astype(np.int64)
    places = starts[:, None] + np.arange(n_ctx)  # [windows, n_ctx]
    return end[places].ravel()


def losses(model: GPT2, ids: np.ndarray, progress: OnProgress = None) -> Losses | None:
    """Three losses of a text `ids` [N].

    None if the text or the context has fewer than two tokens, so that none is predicted. The
    windows are as long as the context and do not overlap. `progress` is called with the number of
    tokens read, for each head. Raises TiedGPTError for a loss that is not a finite number.
    """
    n_ctx = model.config.n_ctx
    if min(ids.size, n_ctx) < 2:
        return None
    own = token_losses(model, ids, stride=n_ctx, progress=progress)
    if not np.isfinite(own).all():
        raise TiedGPTError("the loss is not a finite number: the model's checkpoint is damaged")
    swapped = None
    if not model.config.tied:
        swapped_losses = token_losses(model.tie(), ids, stride=n_ctx, progress=progress)
        swapped = float(swapped_losses.mean())
    return {
        "own": float(own.mean()),
        "swapped": swapped,
        "uniform": math.log(model.config.vocab_size),
        "tokens": own.size,
    }
