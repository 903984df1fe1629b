"""The tokens that sample_steps chooses for several prompts."""

from tiedgpt.inference.generation import sample_steps

PROMPT = [3, 1, 4, 1, 5]


def sampled_rows(model, prompts, sampling, *, tokens, streams, draft=None) -> list[list[int]]:
    """The new tokens of each prompt, as many as `tokens` says."""
    steps = sample_steps(
        model, prompts, max_new_tokens=tokens, sampling=sampling, streams=streams, draft=draft
    )
    rows: list[list[int]] = [[] for _ in prompts]
    for chosen in steps:
        for row, new_tokens in zip(rows, chosen, strict=True):
            row += new_tokens
    return rows
