"""The logit lens."""

from ...study import predictions
from .display import displayed_tokens
from .query import Query
from .registry import Answer, Turn, view

LENS_TOKENS = 8  # of the prompt, the last ones
LIKELIEST = 3  # tokens in a cell


@view("lens")
def lens(query: Query, turn: Turn) -> Answer:
    """What each layer predicts after each of the last tokens."""
    tokenizer = query.shown.tokenizer
    ids = query.prompt_ids
    tape = query.shown.tape(query.model, ids, turn.pause)
    layers = predictions.lens(query.model, ids, k=LIKELIEST, last=LENS_TOKENS, tape=tape)

    rows = []
    for layer in layers:
        row = []
        for likeliest, probabilities in zip(layer.tokens, layer.probabilities, strict=True):
            row.append(displayed_tokens(tokenizer, likeliest, probability=probabilities))
        rows.append(row)
    return {"tokens": displayed_tokens(tokenizer, ids[-LENS_TOKENS:]), "layers": rows}
