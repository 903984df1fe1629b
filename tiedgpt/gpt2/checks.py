"""Checks of arguments. They raise ArgumentError, or return the value as later code needs it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import ArgumentError, TiedGPTError, counted, nearest_names, short_repr
from .config import SIZE, Config
from .parameters import parameter_shapes
from .run import KVCache, activation_shapes


def check_logits(logits: np.ndarray) -> np.ndarray:  # [..., V]
    """The logits. Raises TiedGPTError if one is nan or infinite."""
    if not np.isfinite(logits).all():
        raise TiedGPTError("the model's logits are not finite numbers: its checkpoint is damaged")
    return logits


def as_array(ids: Any) -> np.ndarray:
    """ids as an array, if they are not text and all rows have the same length."""
    if isinstance(ids, (str, bytes)):
        raise ArgumentError(
            "expected token ids, got text: encode it first, with tokenizer.encode(text)"
        )
    try:
        return np.asarray(ids)
    except ValueError as error:
        raise ArgumentError(f"ids must be [T] or [B, T]: {error}") from error


def check_ids(ids: Any, config: Config) -> np.ndarray:  # -> [T] or [B, T]
    """ids as an array, if a model of this configuration can read them in one context."""
    array = as_array(ids)
    if array.size == 0 or array.ndim not in (1, 2):
        raise ArgumentError(
            f"ids must be [T] or [B, T] with at least one token, got shape {array.shape}"
        )
    if array.dtype.kind not in "iu":
        raise ArgumentError(f"ids must be whole numbers, got {array.dtype}")
    V = config.vocab_size
    outside = array[(array < 0) | (array >= V)]
    if outside.size:  # NumPy would take a negative id from the end of wte
        raise ArgumentError(
            f"token id {outside[0]} is outside the vocabulary of {V} (0 to {V - 1})"
        )
    tokens = array.shape[-1]
    if tokens > config.n_ctx:
        raise ArgumentError(
            f"the input has {tokens} tokens, more than the model's context of {config.n_ctx}"
        )
    return array


def check_targets(targets: Any, ids: np.ndarray, config: Config) -> np.ndarray:
    """targets as an array, if they are ids and have the shape of `ids`."""
    array = check_ids(targets, config)
    if array.shape != ids.shape:
        raise ArgumentError(f"targets have shape {array.shape}; expected that of ids, {ids.shape}")
    return array


def check_vocab_size(vocab_size: Any, config: Config) -> int:
    """vocab_size as an int, if a model of that size has the tokens that begin and end a text."""
    vocab_size = SIZE.check("vocab_size", vocab_size)
    needed = [(token, "ends a text (eos_token_id)") for token in config.eos_token_ids]
    if config.bos_token_id is not None:
        needed.append((config.bos_token_id, "begins a text (bos_token_id)"))
    for token, purpose in needed:
        is_in_model = token < config.vocab_size  # a config.json may name a token that is not
        if is_in_model and token >= vocab_size:
            raise ArgumentError(
                f"vocab_size must be at least {token + 1}: token {token} {purpose}, "
                f"got {vocab_size}"
            )
    return vocab_size


def check_cache(cache: KVCache, batch: np.ndarray, config: Config, dtype: Any) -> None:
    """Check that the cache is one of this model, with room for `batch` [B, T]."""
    if not isinstance(cache, KVCache):
        raise ArgumentError(f"cache must come from this model's new_cache, got {short_repr(cache)}")
    L, B, H, _, K = cache.keys.shape  # [L, B, H, capacity, K]
    model_sizes = (config.n_layer, config.n_head, config.head_width)
    if cache.keys.dtype != dtype or model_sizes != (L, H, K):
        raise ArgumentError(
            "the cache was made for another model: make one with this model's new_cache"
        )
    if len(batch) != B:
        raise ArgumentError(f"ids are {len(batch)} sequences, the cache holds {B}")
    T = batch.shape[1]
    room = min(cache.capacity, config.n_ctx)
    if cache.length + T > room:
        raise ArgumentError(
            f"the cache has {counted(cache.length, 'token')}, {T} more are given, there is room "
            f"for {room}"
        )


def check_edits(edits: Any, config: Config) -> Any:
    """edits, if each key is the name of an activation and each value is a function."""
    if edits is None:
        return None
    if not isinstance(edits, Mapping):
        raise ArgumentError(
            f"edit must map names of activations to functions, got {short_repr(edits)}"
        )
    if not edits:  # the names of a large model's activations need not be listed then
        return edits
    names = activation_shapes(config)
    for name, function in edits.items():
        if name not in names:
            alike = nearest_names(name, names)
            raise ArgumentError(
                f"{short_repr(name)} is not an activation of this model; the nearest are {alike}"
            )
        if not callable(function):
            raise ArgumentError(
                f"the edit of {name} must be a function, got {short_repr(function)}"
            )
    return edits


def check_parameters(parameters: Mapping[str, Any], config: Config) -> None:
    """Check that names and shapes are those of the configuration.

    parameters: arrays, or a file's tensors whose values are not read yet.
    """
    shapes = parameter_shapes(config)
    for name, shape in shapes.items():
        if name not in parameters:
            raise ArgumentError(
                f"parameter {name} is missing; expected shape {shape} in a GPT-2 of "
                f"{counted(config.n_layer, 'layer')}"
            )
        if parameters[name].shape != shape:
            raise ArgumentError(
                f"parameter {name} has shape {short_repr(parameters[name].shape)}; expected {shape}"
            )
    for name in parameters:
        if name not in shapes:
            kind = "a tied" if config.tied else "an untied"
            raise ArgumentError(
                f"parameter {short_repr(name)} is not one of {kind} GPT-2's of "
                f"{counted(config.n_layer, 'layer')}"
            )
