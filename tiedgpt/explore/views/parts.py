"""The parts of a logit, and predictions without some of them."""

from typing import Any

import numpy as np

from ...gpt2.model import unembed
from ...gpt2.tokenizer import Tokenizer
from ...study import attribution, paths, predictions
from .display import displayed_prediction, displayed_tokens
from .query import Query
from .registry import Answer, Turn, view

LISTED = 14  # likeliest tokens to choose from
COMPARED = 8  # likeliest tokens of each model, with all parts and without some


@view("parts")
def parts(query: Query, turn: Turn) -> Answer:
    """What each head, MLP and bias adds to a token's logit; predictions without some parts."""
    tokenizer = query.shown.tokenizer
    model = query.model
    ids = query.prompt_ids
    edit = attribution.ablation(model.config, query.removed_parts)  # {} if none is removed

    logits = query.shown.logits(model, ids, turn.pause)
    likeliest = paths.top_k(logits, LISTED)
    token = query.token
    if token is None:
        token = likeliest[0]
    tape = query.shown.tape(model, ids, turn.pause)
    answer = {
        "parts": attribution.attribute(model, ids, token, tape=tape),  # refuses a wrong token
        "before": prediction_of(tokenizer, logits, token),
        "likeliest": displayed_tokens(tokenizer, likeliest),
    }
    if edit:
        turn.pause()
        final = model.final(ids, edit=edit)[-1]  # [D]
        logits_without = unembed(final, model.W_U)
        answer["after"] = prediction_of(tokenizer, logits_without, token)
        answer["change"] = compared_predictions(tokenizer, logits, logits_without)
    return answer


def prediction_of(tokenizer: Tokenizer, logits: np.ndarray, token: int) -> dict[str, Any]:
    """How logits [V] predict one token."""
    (prediction,) = predictions.predict(logits, [token])
    return displayed_prediction(tokenizer, prediction)


def compared_predictions(
    tokenizer: Tokenizer, logits: np.ndarray, logits_without: np.ndarray
) -> list[dict[str, Any]]:
    """How both logits [V] predict the tokens that are likeliest by either of them.

    Each row has a token's prediction by `logits`, and its probability `without` the removed parts.
    """
    likeliest_without = paths.top_k(logits_without, COMPARED)
    likeliest = paths.top_k(logits, COMPARED)
    tokens = list(dict.fromkeys([*likeliest_without, *likeliest]))  # each once
    before = predictions.predict(logits, tokens)
    after = predictions.predict(logits_without, tokens)

    rows = []
    for prediction, prediction_without in zip(before, after, strict=True):
        row = displayed_prediction(tokenizer, prediction)
        row["without"] = prediction_without.probability
        rows.append(row)
    return rows
