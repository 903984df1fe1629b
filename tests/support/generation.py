"""The tokens that sample_steps chooses for several prompts."""

from tiedgpt.generation import sample_steps

PROMPT = [3, 1, 4, 1, 5]


def sampled_rows(model, prompts, sampling, *, tokens, streams, draft=None) -> list[list[int]]:
    """The new tokens of each prompt. `tokens` is the largest number of new tokens for a prompt."""
    steps = sample_steps(
        model, prompts, max_new_tokens=tokens, sampling=sampling, streams=streams, draft=draft
    )
    rows: list[list[int]] = [[] for _ in prompts]
    for new_tokens in steps:  # a list of tokens for each prompt
        for row, new_tokens_of_row in zip(rows, new_tokens, strict=True):
            row += new_tokens_of_row
    return rows
