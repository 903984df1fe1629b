"""What it costs that the article's weights are whole numbers, each row with a scale."""

import numpy as np

import tiedgpt
from tiedgpt import GPT2
from tiedgpt.checkpoints.model_names import SHIPPED
from tiedgpt.evaluation import score

from .article import rounded


def rounding_costs(text: str) -> dict[str, str]:
    """Nats per token that each shipped model loses on the last tenth of its text.

    {"rounding.tied": "0.00062", ...}. The models did not learn from that tenth.
    """
    held_out = text[len(text) * 9 // 10 :]
    costs = {}
    for name in SHIPPED:
        model = tiedgpt.load_model(name)
        tokenizer = tiedgpt.load_tokenizer(name)
        ids = np.array(tokenizer.encode(held_out))
        exact = score(model, tokenizer, ids).nll
        cost = score(as_in_the_page(model), tokenizer, ids).nll - exact
        costs[f"rounding.{model.config.head}"] = f"{cost:.5f}"
    return costs


def as_in_the_page(model: GPT2) -> GPT2:
    """The model with the parameters that the page computes with."""
    arrays = rounded(model.parameters)
    parameters = {}
    for name in model.parameters:
        parameters[name] = arrays[name]
        if f"{name}.scale" in arrays:
            scale = arrays[f"{name}.scale"].astype(np.float32)
            parameters[name] = arrays[name] * scale[:, None]
    return GPT2(model.config, parameters)
