"""The settings of a model with which other programs generate a text."""

import json

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
