"""The two gradients of a training step."""

import numpy as np

from ...fast.blas import one_blas_thread
from ...study import gradients, paths
from .display import displayed_tokens
from .query import Query
from .registry import Answer, Turn, view

GRADIENT_TOKENS = 64  # of the prompt, the last ones
LISTED = 10  # tokens of the prompt
LISTED_ABSENT = 4  # tokens that are not in the prompt


@view("gradient")
def gradient(query: Query, turn: Turn) -> Answer:
    """The two gradients of one training step on the prompt, by row of wte."""
    ids = query.prompt_ids[-GRADIENT_TOKENS:]
    with one_blas_thread():
        step = gradients.gradients(query.model, ids)
    rows = step.by_row()  # [4, V]
    embed_lengths, head_lengths, _, cosines = rows

    # The absent tokens with the longest gradients are among so many tokens, even if all tokens of
    # the prompt have longer ones.
    prompt_tokens = list(dict.fromkeys(ids))  # each once
    longest = paths.top_k(head_lengths, len(prompt_tokens) + LISTED_ABSENT).tolist()
    absent_tokens = [token for token in longest if token not in prompt_tokens]
    listed_absent = absent_tokens[:LISTED_ABSENT]
    listed = prompt_tokens[-LISTED:] + listed_absent

    table = displayed_tokens(
        query.shown.tokenizer,
        listed,
        embed=embed_lengths[listed],
        head=head_lengths[listed],
        cosine=cosines[listed],
    )
    return {
        "loss": step.loss,
        "rows": table,
        "reached": np.count_nonzero(rows[:2], axis=1),  # by each of the two gradients
        "read": len(ids),
        "absent": len(listed_absent),
        **step.whole(),
    }
