"""The settings of a model with which other programs generate a text."""

import json

import pytest

from tiedgpt.checkpoints.json_files import Folder
from tiedgpt.checkpoints.opened import generation_settings


def test_the_settings_are_those_of_the_old_config_json_where_there_is_no_newer_file(tmp_path):
    """Of config.json, which has more fields, only settings of a text count."""
    settings = {"repetition_penalty": 1.3, "top_k": 40, "no_repeat_ngram_size": 3}
    without_effect = {"temperature": 1.0, "min_length": 0, "bad_words_ids": None}
    config = {"model_type": "gpt2", "n_embd": 8, **settings, **without_effect}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert generation_settings(Folder(tmp_path)) == ("config.json", settings)
    newer = {"top_p": 0.9, "do_sample": True, "eos_token_id": 3}
    (tmp_path / "generation_config.json").write_text(json.dumps(newer))
    assert generation_settings(Folder(tmp_path)) == ("generation_config.json", {"top_p": 0.9})


# A setting -> values that change a text, and one with which it is as without the setting
CHANGE_A_TEXT = {
    "temperature": (0.7, 1.0),
    "top_k": (40, 0),
    "top_p": (0.9, 1.0),
    "typical_p": (0.9, 1.0),
    "repetition_penalty": (1.2, 1.0),
    "num_beams": (4, 1),
    "num_beam_groups": (2, 1),
    "length_penalty": (2.0, 1.0),
    "guidance_scale": (1.5, 1),
    "no_repeat_ngram_size": (3, 0),
    "bad_words_ids": ([[7]], None),
    "suppress_tokens": ([7], []),
    "begin_suppress_tokens": ([7], []),
    "forced_bos_token_id": (7, None),
    "forced_eos_token_id": (7, None),
    "exponential_decay_length_penalty": ([5, 1.1], None),
    "min_length": (10, 0),
}
IN_NEW_FILES_ALONE = {"min_p": (0.1, None), "min_new_tokens": (5, None), "top_h": (0.4, None)}
# Names in which one of a setting that changes no text is a part
IN_NEW_FILES_ALONE |= {"do_sample_as": ("said", None), "xreturn_scores": (True, False)}
FILES = {"config.json": CHANGE_A_TEXT, "generation_config.json": CHANGE_A_TEXT | IN_NEW_FILES_ALONE}


@pytest.mark.parametrize(("file", "name"), [(f, name) for f in FILES for name in FILES[f]])
def test_a_setting_is_named_if_it_changes_a_text(tmp_path, file, name):
    changing, without_effect = FILES[file][name]
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / file).write_text(json.dumps({name: changing}))
    assert generation_settings(Folder(tmp_path)) == (file, {name: changing})
    (tmp_path / file).write_text(json.dumps({name: without_effect}))
    assert generation_settings(Folder(tmp_path)) == (file, {})


OF_THE_PROGRAM = {
    "_from_model_config": True,
    "transformers_version": "5.24.0",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 3,
    "decoder_start_token_id": 4,
    "do_sample": True,
    "max_length": 50,
    "max_new_tokens": 50,
    "max_time": 9.5,
    "early_stopping": True,
    "use_cache": True,
    "cache_implementation": "static",
    "cache_config": {"a": 1},
    "output_scores": True,
    "output_hidden_states": True,
    "return_dict_in_generate": True,
    "return_legacy_cache": True,
    "num_return_sequences": 2,
    "renormalize_logits": True,
    "remove_invalid_values": True,
    "encoder_no_repeat_ngram_size": 3,
    "encoder_repetition_penalty": 1.2,
    "num_assistant_tokens": 5,
    "assistant_confidence_threshold": 0.4,
    "is_assistant": True,
    "target_lookbehind": 10,
    "prompt_lookup_num_tokens": 3,
    "disable_compile": True,
    "compile_config": {"a": 1},
    "low_memory": True,
    "prefill_chunk_size": 64,
    "speculation_type": "ngram",
    "use_mtp": True,
    "continuous_batching_config": {"a": 1},
}


@pytest.mark.parametrize("name", OF_THE_PROGRAM)
def test_a_setting_of_the_program_is_not_named(tmp_path, name):
    """Such as how much memory it takes, or which token ends a text: the tokens are as likely."""
    settings = {name: OF_THE_PROGRAM[name], "top_k": 40}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    assert generation_settings(Folder(tmp_path)) == ("generation_config.json", {"top_k": 40})
