"""The answer to each question about a model, as one dict.

A command prints it as JSON or as a table, and the page draws it; neither computes anything again.
Each report is of one model and has its "head". A token in it is {"id", "token"}, with the token's
text, or None for an id that only pads the vocabulary.

    next_report        the likeliest next tokens
    paths_report       the likeliest next tokens by each path from one token
    lens_report        the next token by each layer
    logit_report       the parts of a logit, and the same without some of them
    score_report       how well a text is predicted
    parameters_report  the parameters with either head
    study_report       all measurements of what tying does to a model (in report.py)
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ..evaluation import predicted_places, score, score_of
from ..gpt2.config import Config
from ..gpt2.model import GPT2
from ..gpt2.parameters import count_parameters
from ..gpt2.run import OnProgress, Tape
from ..gpt2.tokenizer import Tokenizer
from .attribution import ablation, attribute
from .paths import paths_of, top_k
from .predictions import (
    Prediction,
    last_logits,
    lens,
    next_tokens,
    predict,
    surprisal,
    token_predictions,
)

Report = dict[str, Any]

# Tokens


def token_report(tokenizer: Tokenizer, token: int) -> Report:
    """A token of a model; its text is None if it only pads the vocabulary."""
    text = None
    if token < tokenizer.vocab_size:
        text = tokenizer.token_text(int(token))
    return {"id": int(token), "token": text}


def prediction_report(tokenizer: Tokenizer, prediction: Prediction) -> Report:
    """A token that may come next: "probability", "logit" and "rank" (1 for the likeliest)."""
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
) -> list[Report]:
    """How the logits predict each of these tokens."""
    predictions = predict(logits, tokens)
    return [prediction_report(tokenizer, prediction) for prediction in predictions]


def surprise_report(tokenizer: Tokenizer, prediction: Prediction, unit: str) -> Report:
    """A token that came next, with the likeliest others under "alternatives".

    unit: "logprob" for natural logarithms of probabilities, "bits" for surprisals.
    """

    def likelihood(token: int, log_probability: float) -> Report:
        value = surprisal(log_probability) if unit == "bits" else log_probability
        return {**token_report(tokenizer, token), unit: value}

    return {
        **likelihood(prediction.token, prediction.log_probability),
        "rank": prediction.rank,
        "alternatives": [likelihood(*other) for other in prediction.alternatives],
    }


# What comes next


def next_report(models: Sequence[GPT2], tokenizer: Tokenizer, ids: Any, k: int) -> list[Report]:
    """For each model, "next": how it predicts the k likeliest tokens after a prompt `ids` [T].

    All lists have the same tokens, those among the k likeliest of any of the models, in the same
    order.
    """
    reports = []
    for model, predictions in zip(models, next_tokens(models, ids, k), strict=True):
        listed = [prediction_report(tokenizer, prediction) for prediction in predictions]
        reports.append({"head": model.config.head, "next": listed})
    return reports


def paths_report(model: GPT2, tokenizer: Tokenizer, token: int, k: int) -> Report:
    """ "paths": for each path, the k likeliest tokens after one token."""
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
) -> Report:
    """ "layers": for each layer its name and, for each token of the prompt, the k likeliest next.

    `last` and `tape` are those of predictions.lens.
    """
    layers = []
    for layer in lens(model, ids, k, last, tape):
        positions = []
        for tokens, probabilities in zip(layer.tokens, layer.probabilities, strict=True):
            likeliest = []
            for token, probability in zip(tokens, probabilities, strict=True):
                likeliest.append(
                    {**token_report(tokenizer, token), "probability": float(probability)}
                )
            positions.append(likeliest)
        layers.append({"name": layer.name, "positions": positions})
    return {"head": model.config.head, "layers": layers}


# The parts of a logit


def logit_report(
    model: GPT2,
    tokenizer: Tokenizer,
    ids: Any,
    token: int | None = None,
    against: int | None = None,
    removed: Sequence[str] = (),
    logits: np.ndarray | None = None,  # [V]
    tape: Tape | None = None,
) -> Report:
    """The logit of `token` (the likeliest if None), or its difference from that of `against`.

    "tokens" has the prediction of each of them, "total" the logit or the difference, and "parts"
    what each part of the model adds to it. With `removed`, "ablated" has "parts", the names that
    are set to 0, and "tokens" and "total" without them.

    `logits` and `tape` are what the model has computed already after the prompt `ids` [T].
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

    report = {
        "head": model.config.head,
        **logit_of(tokenizer, logits, tokens),
        "parts": parts,
    }
    if edit:
        changed = last_logits(model, ids, edit)
        report["ablated"] = {"parts": list(removed), **logit_of(tokenizer, changed, tokens)}
    return report


def logit_of(tokenizer: Tokenizer, logits: np.ndarray, tokens: Sequence[int]) -> Report:
    """The predictions of one or two tokens from logits [V], and the logit or the difference."""
    listed = predictions_report(tokenizer, logits, tokens)
    total = listed[0]["logit"]
    if len(listed) > 1:
        total -= listed[1]["logit"]
    return {"tokens": listed, "total": total}


# Score


def score_report(
    model: GPT2,
    tokenizer: Tokenizer,
    ids: np.ndarray,  # [N]
    stride: int,
    alternatives: int | None = None,
    progress: OnProgress = None,
) -> Report:
    """The loss per token, perplexity and bits per byte of a text, as evaluation.Score has them.

    With a number of alternatives, "predictions" has each predicted token with its place in the
    text, its surprisal in bits, and so many of the likeliest others.
    """
    context = {"context": model.config.n_ctx, "stride": stride, "head": model.config.head}
    if alternatives is None:
        return {**context, **asdict(score(model, tokenizer, ids, stride, progress))}

    places = predicted_places(ids.size, model.config.n_ctx, stride)
    predictions = token_predictions(model, ids, stride, alternatives, progress)
    losses = -np.array([prediction.log_probability for prediction in predictions])
    listed = []
    for place, prediction in zip(places.tolist(), predictions, strict=True):
        listed.append({"place": place, **surprise_report(tokenizer, prediction, "bits")})
    whole = asdict(score_of(losses, tokenizer, ids[places]))
    return {**context, **whole, "predictions": listed}


# Parameters


def parameters_report(config: Config) -> Report:
    """ "config", the counts "tied" and "untied" (parameters.count_parameters), the "difference"."""
    fields = asdict(config)
    del fields["others"]  # the fields of other programs
    counts = count_parameters(config)
    difference = counts["untied"]["total"] - counts["tied"]["total"]
    return {"config": fields, **counts, "difference": difference}
