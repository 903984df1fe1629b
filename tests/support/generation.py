"""The tokens that sample_steps chooses for several prompts."""

from tiedgpt.inference.generation import sample_steps

PROMPT = [3, 1, 4, 1, 5]


def steps(model, prompts, n, sampling, streams, draft=None) -> list[list[int]]:
    """The tokens of each row of sample_steps."""
    rows: list[list[int]] = [[] for _ in prompts]
    for chosen in sample_steps(model, prompts, n, sampling, streams, draft):
        for row, tokens in zip(rows, chosen, strict=True):
            row += tokens
    return rows
