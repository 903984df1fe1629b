"""The likeliest next tokens, and text that the model writes."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...generation import sample_tokens
from ...study import paths, predictions
from ..shown import blas_threads_for
from .display import displayed_prediction, displayed_tokens
from .query import Query
from .registry import Answer, Turn, view

LISTED = 14  # tokens


@view("next")
def next_tokens(query: Query, turn: Turn) -> Answer:
    """The likeliest next tokens, and what sampling makes of them."""
    tokenizer = query.shown.tokenizer
    text_ids = query.text_ids
    prompt_ids = query.prompt_ids
    sampling = query.sampling

    logits = query.shown.logits(query.model, prompt_ids, turn.pause)
    probabilities = np.exp(paths.log_probabilities(logits))  # [V], by the model alone
    drawn_probabilities = sampling.probabilities(logits, prompt_ids)  # [V], 0 for a dropped token

    rows = []
    for prediction in predictions.predict(logits, paths.top_k(logits, LISTED)):
        row = displayed_prediction(tokenizer, prediction)
        row["drawn"] = drawn_probabilities[prediction.token]
        rows.append(row)

    # A model may have more rows in its matrix than the tokenizer has tokens. The ids of these rows
    # have no text.
    ids_with_text = [token for token in text_ids if token < tokenizer.vocab_size]
    return {
        "text": tokenizer.decode(ids_with_text),
        "tokens": displayed_tokens(tokenizer, text_ids),
        "place": len(prompt_ids) - 1,
        "rows": rows,
        "kept": np.count_nonzero(drawn_probabilities),
        "kept_probability": probabilities[drawn_probabilities > 0].sum(),
    }


@view("generate")
def generate(query: Query, turn: Turn) -> Iterator[Answer]:
    """Each token with how likely it was, and at last the reason why there are no more.

    The last answer also has the mean surprisal of the tokens. An end-of-text token counts in it,
    but has no answer of its own.
    """
    tokenizer = query.shown.tokenizer
    tokens: list[dict[str, Any]] = []  # all that were drawn

    # `sample_tokens` calls this for each token that is drawn, and then yields it.
    def record(sample_number: int, logits: np.ndarray, token: int) -> None:
        (prediction,) = predictions.predict(logits, [token])
        displayed = displayed_prediction(tokenizer, prediction)
        displayed["bits"] = predictions.surprisal(prediction.log_probability)
        tokens.append(displayed)

    steps = sample_tokens(
        query.model,
        query.prompt_ids,
        max_new_tokens=query.new_tokens,
        sampling=query.sampling,
        seed=query.seed,
        progress=turn.pause,
        record=record,
    )
    reason = "length"
    with blas_threads_for(query.prompt_ids):
        for (token,) in steps:
            if token in query.model.config.eos_token_ids:
                reason = "end of text"
                break
            yield tokens[-1]
            turn.pause()
    yield {"end": reason, "bits_per_token": np.mean([token["bits"] for token in tokens])}
