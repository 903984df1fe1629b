"""Write tests/goldens: tiny GPT-2 checkpoints made by transformers, and what transformers computes from them.

    pip install torch==2.13.0        (the CPU build will do)
    pip install -e .[parity]
    python scripts/make_goldens.py [DIRECTORY]

tests/test_goldens.py reads the result without torch. Each case is a directory: the files that
`save_pretrained` wrote, and expected.json with token ids [B, T], their logits [B, T, V] in float64 and the
greedy continuation of each row, all computed by transformers from those very files. The same versions of
torch and transformers write the same bytes again.
"""

# mypy: disable-error-code="import-not-found, import-untyped"
# (torch, transformers and safetensors are an extra: whoever checks types may not have them.)

import argparse
import json
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

# Small, and every size another number, so that no transposition or mix-up of axes cancels out.
BASE = {
    "vocab_size": 48,
    "n_positions": 23,
    "n_embd": 12,
    "n_layer": 2,
    "n_head": 3,
    "bos_token_id": None,
    "eos_token_id": None,
}

# name -> what its GPT2Config has besides BASE; gelu_new is the default, so most cases test it
CASES: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "n_inner": {"n_inner": 29},
    "one_head": {"n_head": 1},
    "odd_vocabulary": {"vocab_size": 37},
    "gelu": {"activation_function": "gelu"},
    "relu": {"activation_function": "relu"},
    "silu": {"activation_function": "silu"},
    "tanh": {"activation_function": "tanh"},
    "quick_gelu": {"activation_function": "quick_gelu"},
    "layer_norm_epsilon": {"layer_norm_epsilon": 1e-3},
    "unscaled_attention": {"scale_attn_weights": False},
    "inverse_layer_idx": {"scale_attn_by_inverse_layer_idx": True, "n_layer": 3},
    "float16": {},
    "bfloat16": {"tie_word_embeddings": False},
    "sharded": {"tie_word_embeddings": False},
    "unprefixed": {},
}
SHARD_BYTES = 6000  # makes four files of "sharded"

BATCH, LENGTH, NEW = 2, 8, 12
SCALE = 10.0  # the largest |logit|, about what a trained GPT-2's logits spread over


def randomise(model: GPT2LMHeadModel, seed: int) -> None:
    """Fill every parameter, biases and layer norms included, with numbers large enough to matter."""
    rng = np.random.default_rng(seed)
    width = model.config.n_embd
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # a tied lm_head is not among them
            values = rng.standard_normal(tuple(parameter.shape), np.float32)
            # A block's matrices keep the size of what they are given; the rest is of a size with it.
            values *= width**-0.5 if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")) else 0.3
            if "ln_" in name and name.endswith("weight"):
                values += 1
            parameter.copy_(torch.from_numpy(values))


def scale_logits(model: GPT2LMHeadModel, ids: torch.Tensor) -> None:
    """Make the largest |logit| of ids SCALE, whichever the head, by way of the final layer norm."""
    with torch.no_grad():
        # Rounded, so that a machine that adds in another order still writes the same weights.
        factor = float(f"{SCALE / model(ids).logits.abs().max().item():.3g}")
        for parameter in model.transformer.ln_f.parameters():
            parameter.mul_(factor)


def save(name: str, model: GPT2LMHeadModel, directory: Path) -> None:
    """Write the checkpoint in the form that the case is about."""
    if name in ("float16", "bfloat16"):
        model = model.to(getattr(torch, name))
    if name == "sharded":
        model.save_pretrained(directory, max_shard_size=SHARD_BYTES)
    elif name == "unprefixed":  # as the original gpt2 is: no `transformer.`, but each layer's causal mask
        model.transformer.save_pretrained(directory)
        tensors = load_file(directory / "model.safetensors")
        n_ctx = model.config.n_positions
        mask = torch.ones(n_ctx, n_ctx).tril().reshape(1, 1, n_ctx, n_ctx)
        for layer in range(model.config.n_layer):  # float32 in gpt2; bool as later versions wrote it
            tensors[f"h.{layer}.attn.bias"] = mask.clone() if layer == 0 else mask.bool()
            tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    else:
        model.save_pretrained(directory)


def expect(directory: Path, ids: torch.Tensor) -> dict[str, Any] | None:
    """What transformers makes of the files, in float64; None if a continuation is monotonous or undecided."""
    model = GPT2LMHeadModel.from_pretrained(directory, dtype=torch.float64).eval()
    with torch.inference_mode():
        whole = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False, use_cache=False
        )
        logits = model(whole).logits
    greedy = whole[:, LENGTH:]
    best = logits[:, LENGTH - 1 : -1].topk(2).values
    if (best[..., 0] - best[..., 1]).min() < 0.02 or min(len(set(row)) for row in greedy.tolist()) < 4:
        return None
    return {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "ids": ids.tolist(),
        "greedy": greedy.tolist(),
        # The digits beyond the twelfth depend on the processor.
        "logits": [[[round(x, 12) for x in at] for at in row] for row in logits[:, :LENGTH].tolist()],
    }


def write_case(name: str, directory: Path) -> None:
    """Write one case, with the first seed that gives continuations worth comparing."""
    config = GPT2Config(**{**BASE, **CASES[name]})
    for seed in count():
        shutil.rmtree(directory, ignore_errors=True)
        rng = np.random.default_rng(seed)
        ids = torch.from_numpy(rng.integers(config.vocab_size, size=(BATCH, LENGTH)))
        model = GPT2LMHeadModel(config).eval()
        randomise(model, seed)
        scale_logits(model, ids)
        save(name, model, directory)
        if expected := expect(directory, ids):
            # One row of numbers to a line.
            text = json.dumps(expected).replace("], [", "],\n[").replace(', "', ',\n"')
            (directory / "expected.json").write_text(text + "\n", encoding="utf-8")
            return


def main(directory: Path) -> None:
    """Write all cases below `directory`."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    for name in CASES:
        write_case(name, directory / name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="write the golden checkpoints that the tests read")
    default = Path(__file__).resolve().parents[1] / "tests" / "goldens"
    parser.add_argument("directory", type=Path, nargs="?", default=default, help="default: tests/goldens")
    main(parser.parse_args().directory)
