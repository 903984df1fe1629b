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
    embed_lengths, head_lengths, _, cosines = step.by_row()  # [V] each

    # The table lists tokens of the prompt, and the absent tokens with the longest gradients. The
    # longest of all may be those of the prompt. So as many more are ranked as the prompt has.
    prompt_tokens = list(dict.fromkeys(ids))  # each once
    longest = paths.top_k(head_lengths, LISTED_ABSENT + len(prompt_tokens)).tolist()
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
        "reached": [np.count_nonzero(embed_lengths), np.count_nonzero(head_lengths)],  # rows
        "read": len(ids),
        "absent": len(listed_absent),
        **step.lengths_and_cosine(),
    }
