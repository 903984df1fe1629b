"""Small causal language models of every kind that transformers can make, and how it reads them.

A case of a kind is a directory whose files have the embedding, the head or both, beside flags.
"""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

KINDS = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
MAX_PARAMETERS = 20_000_000
V, D = 99, 32
FLAG = "tie_word_embeddings"
WEIGHTS = "model.safetensors"
# The flag of config.json and the one of text_config in it; None for a flag that is not there
FLAGS = ((True, True), (False, False), (None, None))
FLAGS_THAT_DIFFER = ((None, True), (None, False), (True, False), (False, True))
# A field of a configuration -> its value in a small model, if the kind has this field.
SMALL = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "emb_dim", "embedding_size"), D),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_ff"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 64),
    **dict.fromkeys(("moe_intermediate_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts"), 4),
    **dict.fromkeys(("head_dim", "v_head_dim", "qk_head_dim", "attention_head_size"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "kv_lora_rank", "q_lora_rank"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("vocab_size", "unpadded_vocab_size", "vocab_size_per_layer_input"), V),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("pad_token_id", "pad_idx", "num_nextn_predict_layers"), 0),
    **dict.fromkeys(("bos_token_id", "decoder_start_token_id"), 1),
    **dict.fromkeys(("eos_token_id", "num_experts_per_tok", "num_key_value_heads"), 2),
    "hidden_size_per_layer_input": 8,
    "state_size": 8,
    "mamba_d_head": 16,
    "mamba_n_heads": 4,
    "image_token_id": 5,
}
MORE_FIELDS = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "mamba2": {"num_heads": 8},
    "nemotron": {"num_key_value_heads": 2},
    "zamba2": {"layer_types": ["mamba", "hybrid"]},
    "hunyuan_v1_dense": {"head_dim": 8},
}
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")


def small_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The values of SMALL for the fields of a configuration, and of those in it."""
    small: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict) and (name.endswith("config") or name == "decoder"):
            small[name] = small_fields(value)
        elif name == "layer_types" and isinstance(value, list):
            small[name] = value[:2]
        elif name in SMALL and (type(value) is int or name in TOKENS):
            small[name] = SMALL[name]
    return small


def new_model(kind: str, **more_fields: Any) -> Any:
    """An untied model of a kind with random weights. Raises what transformers raises."""
    config_class = CONFIG_MAPPING[kind]
    fields = small_fields(config_class().to_dict())
    config = config_class(**(fields | MORE_FIELDS.get(kind, {}) | more_fields))
    set_flag(config, False)
    return AutoModelForCausalLM.from_config(config)


def small_model(kind: str) -> Any:
    """The same, if it is small; ValueError if not."""
    with torch.device("meta"):  # to see its size
        parameters = new_model(kind).num_parameters()
    if parameters > MAX_PARAMETERS:
        raise ValueError(f"{kind} cannot be made small: {parameters:,} parameters")
    torch.manual_seed(0)
    return new_model(kind)


def set_flag(config: Any, tied: bool) -> None:
    """Set the flag of a configuration, and of its text_config."""
    config.tie_word_embeddings = tied
    text = getattr(config, "text_config", None)
    if text is not None:
        text.tie_word_embeddings = tied


def matrices(model: Any) -> tuple[Any, Any]:
    """The embedding and the head of a model: parameters [V, D]."""
    return model.get_input_embeddings().weight, model.get_output_embeddings().weight


def write_cases(model: Any, directory: Path) -> Iterator[tuple[tuple, str]]:
    """Write each case to the directory, one after the other: its flags, and what the files hold."""
    embedding, head = matrices(model)
    with torch.no_grad():
        embedding.normal_(std=0.02)
        head.normal_(std=0.02)
        # transformers sets this row of some kinds to 0 when it loads them.
        embedding[SMALL["pad_token_id"]] = 0
        head[SMALL["pad_token_id"]] = 0
    model.save_pretrained(directory)
    config = json.loads((directory / "config.json").read_text())
    tensors = load_file(directory / WEIGHTS)
    # transformers has other names in memory than in files for some kinds.
    name = name_of(embedding, tensors)
    head_name = name_of(head, tensors)
    stored = {
        "embedding": {key: tensors[key] for key in tensors if key != head_name},
        "head": {key: tensors[key] for key in tensors if key != name},
        "different": tensors,
    }
    if embedding.shape == head.shape:
        stored["equal"] = {**tensors, head_name: tensors[name].clone()}
    all_flags = FLAGS + FLAGS_THAT_DIFFER if "text_config" in config else FLAGS
    for flags, holds in product(all_flags, stored):
        (directory / "config.json").write_text(json.dumps(with_flags(config, *flags)))
        save_file(stored[holds], directory / WEIGHTS, {"format": "pt"})
        yield flags, holds


def with_flags(config: dict[str, Any], outer: bool | None, nested: bool | None) -> dict[str, Any]:
    """config.json with these flags: its own, and the one in text_config."""
    config = {**config, FLAG: outer}
    if "text_config" in config:
        config["text_config"] = {**config["text_config"], FLAG: nested}
        if nested is None:
            del config["text_config"][FLAG]
    if outer is None:
        del config[FLAG]
    return config


def name_of(matrix: Any, tensors: dict[str, Any]) -> str:
    """The name of a matrix in a file."""
    [name] = [name for name, tensor in tensors.items() if torch.equal(tensor, matrix)]
    return name


def reading_of_transformers(model_class: Any, directory: Path) -> str:
    """What a class of transformers makes of a directory, in the words of ties.READINGS."""
    model, loading = model_class.from_pretrained(directory, output_loading_info=True)
    embedding, head = matrices(model)
    if embedding is head:
        return "tied"
    names = {id(each): name for name, each in model.named_parameters(remove_duplicate=False)}
    if names[id(head)] in loading["missing_keys"]:
        return "random head"
    if names[id(embedding)] in loading["missing_keys"]:
        return "random embedding"
    return "untied"
