"""generation_config.json: settings with which other programs generate, and this one does not."""

import re
from typing import Any

from .json_files import CONFIG, GENERATION_CONFIG, Folder

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
# Other settings that a config.json may have, as those of before 2023.
IN_OLD_CONFIGS = (
    "top_k",
    "no_repeat_ngram_size",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "exponential_decay_length_penalty",
    "min_length",
)
# The parts of generation_config.json that do not change which tokens are likely.
NOT_OF_THE_TEXT = re.compile(
    r"_.*|transformers_version|(bos|eos|pad|decoder_start)_token_id|do_sample|max_.*|early_stopping"
    r"|use_cache|cache_.*|output_.*|return_.*|num_return_sequences|renormalize_logits"
    r"|remove_invalid_values|encoder_.*|.*assistant.*|.*_lookbehind|prompt_lookup_num_tokens"
    r"|speculation_type|use_mtp|.*compile.*|low_memory|prefill_chunk_size|continuous_batching_config"
)


def generation_settings(folder: Folder) -> tuple[str, dict[str, Any]]:
    """The name of generation_config.json, and its settings that change a text.

    The token that ends a text is not among them. transformers generates with them. Without this
    file, it takes those of config.json. Raises CheckpointError.
    """
    file = GENERATION_CONFIG
    said: dict[str, Any] = {}
    if (folder.path / file).is_file():
        said = folder.json(file)
    else:
        file = CONFIG
        others = folder.json(file)
        said = {name: others[name] for name in (*NO_CHANGE, *IN_OLD_CONFIGS) if name in others}
    settings = {}
    for name, value in said.items():
        if not NOT_OF_THE_TEXT.fullmatch(name) and value and value != NO_CHANGE.get(name):
            settings[name] = value
    return file, settings
