"""Tokens, predictions and arrays as the page gets them."""

import base64
from collections.abc import Iterable
from typing import Any

import numpy as np

from ...gpt2.tokenizer import Tokenizer
from ...study.predictions import Prediction


def displayed_token(tokenizer: Tokenizer, token: int) -> dict[str, Any]:
    """A token's id and text. An id that only pads the vocabulary has no text but [its number]."""
    text = f"[{token}]"
    if token < tokenizer.vocab_size:
        text = tokenizer.token_text(int(token))
    return {"id": token, "text": text}


def displayed_tokens(
    tokenizer: Tokenizer, ids: Iterable[int], **columns: np.ndarray
) -> list[dict[str, Any]]:
    """The tokens `ids` [n], each with its number of each of `columns` [n]."""
    tokens = []
    for place, token in enumerate(ids):
        displayed = displayed_token(tokenizer, token)
        for name, column in columns.items():
            displayed[name] = column[place]
        tokens.append(displayed)
    return tokens


def displayed_prediction(tokenizer: Tokenizer, prediction: Prediction) -> dict[str, Any]:
    """A token, and how a model predicts it."""
    displayed = displayed_token(tokenizer, prediction.token)
    displayed["probability"] = prediction.probability
    displayed["logit"] = prediction.logit
    displayed["rank"] = prediction.rank
    return displayed


def base64_floats(x: np.ndarray) -> str:
    """The bytes of x as little-endian float32 in base64."""
    return base64.b64encode(x.astype("<f4").tobytes()).decode()


def base64_shares(x: np.ndarray) -> str:
    """Numbers from 0 to 1 as little-endian whole numbers of 16 bits, up to 65535, in base64."""
    return base64.b64encode(np.rint(65535 * x).astype("<u2").tobytes()).decode()
