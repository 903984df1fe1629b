"""What lies beside the weights, is not used here, and is used by other programs.

It is said to the user: an adapter of peft, and the settings in generation_config.json.
"""

import re
from typing import Any

from ..errors import CheckpointError, short_repr
from .files import read_weights
from .folder import GENERATION_CONFIG, Folder
from .refused import ADAPTER, how_to_use

ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
# Settings of generation_config.json, and the value with which a text is as without it. The value of
# any other setting is None, False, 0 or nothing.
NO_CHANGE = {
    "temperature": 1,
    "top_p": 1,
    "typical_p": 1,
    "repetition_penalty": 1,
    "num_beams": 1,
    "num_beam_groups": 1,
    "length_penalty": 1,
    "guidance_scale": 1,
}
# The parts of that file that do not change which tokens are likely.
NOT_OF_THE_TEXT = re.compile(
    r"_.*|transformers_version|(bos|eos|pad|decoder_start)_token_id|do_sample|max_.*|early_stopping"
    r"|use_cache|cache_.*|output_.*|return_.*|num_return_sequences|renormalize_logits"
    r"|remove_invalid_values|encoder_.*|.*assistant.*|.*_lookbehind|prompt_lookup_num_tokens"
    r"|speculation_type|use_mtp|.*compile.*|low_memory|prefill_chunk_size|continuous_batching_config"
)


def generation_settings(folder: Folder) -> dict[str, Any]:
    """The settings of generation_config.json that change a text, but for the token that ends it.

    transformers generates with them. Raises CheckpointError.
    """
    if not folder.has(GENERATION_CONFIG):
        return {}
    settings = {}
    for name, value in folder.json(GENERATION_CONFIG).items():
        if not NOT_OF_THE_TEXT.fullmatch(name) and value and value != NO_CHANGE.get(name):
            settings[name] = value
    return settings


def describe_adapter(folder: Folder) -> str:
    """What is to be said of a model beside which lies an adapter, which is not read; "" without.

    Raises CheckpointError for an adapter_config.json that cannot be read.
    """
    if not folder.has(ADAPTER):
        return ""
    adapter = folder.json(ADAPTER)
    kind = short_repr(adapter.get("peft_type"))
    text = (
        f"{ADAPTER} is of an adapter, {kind}, which lies beside the model and is not used, but "
        f"which transformers applies where peft is installed: {how_to_use(adapter)}"
    )
    for file in ADAPTER_WEIGHTS:
        if folder.has(file):
            try:
                names = read_weights(folder.path / file).tensors
            except CheckpointError as error:
                return f"{text}; whether it changes the head is not known: {error}"
            of_head = [name for name in names if re.search(r"\b(lm_head|wte)\b", name)]
            if of_head:
                return f"{text}; it changes the head: {file} has {short_repr(of_head[0])}"
            return text
    return f"{text}; whether it changes the head is not known: its weights are not here"
