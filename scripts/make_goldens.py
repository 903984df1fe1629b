"""Write tests/goldens: tiny GPT-2 checkpoints saved by transformers, and its outputs for them.

    pip install torch==2.13.0        (the CPU build is enough)
    pip install -e .[parity]
    python scripts/make_goldens.py [DIRECTORY]

tests/gpt2/test_goldens.py reads the result without torch. Each case is a directory with the files
that `save_pretrained` wrote and expected.json: token ids [B, T], their logits [B, T, V] in float64
and the greedy continuation of each row, all computed by transformers from those files. The same
versions of torch and transformers write the same bytes again, except for the last digits of some
logits on another processor.
"""

import argparse
import json
import shutil
import sys
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

# Functions import torch and transformers when they run, so that -h is quick and works without them.

# Small sizes, all different, so that no two axes can be confused without an error.
BASE: dict[str, Any] = {
    "vocab_size": 48,
    "n_positions": 23,
    "n_embd": 12,
    "n_layer": 2,
    "n_head": 3,
    "bos_token_id": None,
    "eos_token_id": None,
}

# name -> the fields of its GPT2Config besides BASE. The default activation is gelu_new.
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
SHARD_BYTES = 6000  # splits "sharded" into four files

BLOCK_MATRICES = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
BATCH = 2  # prompts
LENGTH = 8  # tokens of a prompt
NEW = 12  # tokens of a continuation
SCALE = 10.0  # the largest |logit|, about the spread of a trained GPT-2's logits


def randomise(model: Any, seed: int) -> None:
    """Fill every parameter, also biases and layer norms, with numbers that affect the logits."""
    import numpy as np
    import torch

    rng = np.random.default_rng(seed)
    width = model.config.n_embd
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # a tied lm_head is not among them
            values = rng.standard_normal(tuple(parameter.shape), np.float32)
            if name.endswith(BLOCK_MATRICES):
                # With this scale, a matrix gives numbers as large as those that it gets.
                values *= width**-0.5
            else:
                values *= 0.3  # numbers that are neither 0 nor large
            is_weight_of_layer_norm = "ln_" in name and name.endswith("weight")
            if is_weight_of_layer_norm:
                values += 1
            parameter.copy_(torch.from_numpy(values))


def scale_logits(model: Any, ids: Any) -> None:
    """Scale the final layer norm so that the largest |logit| of ids is SCALE."""
    import torch

    with torch.no_grad():
        largest = model(ids).logits.abs().max().item()
        # Three digits, so that machines that add in another order write the same weights.
        factor = float(f"{SCALE / largest:.3g}")
        for parameter in model.transformer.ln_f.parameters():
            parameter.mul_(factor)


def save(name: str, model: Any, directory: Path) -> None:
    """Write the checkpoint in the format that the case tests."""
    import torch

    if name == "float16":
        model.to(torch.float16).save_pretrained(directory)
    elif name == "bfloat16":
        model.to(torch.bfloat16).save_pretrained(directory)
    elif name == "sharded":
        model.save_pretrained(directory, max_shard_size=SHARD_BYTES)
    elif name == "unprefixed":
        save_unprefixed(model, directory)
    else:
        model.save_pretrained(directory)


def save_unprefixed(model: Any, directory: Path) -> None:
    """Write names without `transformer.`, and causal masks, as in the original gpt2."""
    import torch
    from safetensors.torch import load_file, save_file

    model.transformer.save_pretrained(directory)
    tensors = load_file(directory / "model.safetensors")
    n_ctx = model.config.n_positions
    mask = torch.ones(n_ctx, n_ctx).tril().reshape(1, 1, n_ctx, n_ctx)  # as stored in gpt2
    for layer in range(model.config.n_layer):
        # The masks are float32 in gpt2. Later versions of transformers wrote bool.
        if layer == 0:
            tensors[f"h.{layer}.attn.bias"] = mask.clone()
        else:
            tensors[f"h.{layer}.attn.bias"] = mask.bool()
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def expect(directory: Path, ids: Any) -> dict[str, Any] | None:
    """The outputs of transformers in float64, for expected.json.

    None if a continuation has fewer than four different tokens, or is nearly a tie: a test with it
    would show little, or depend on the last digits.
    """
    import torch
    import transformers
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(directory, dtype=torch.float64).eval()
    with torch.inference_mode():
        text = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW,
            do_sample=False,
            use_cache=False,
        )
        logits = model(text).logits
    greedy = text[:, LENGTH:]  # without the prompt

    # Each new token was chosen by the logits of the position before it.
    best_two = logits[:, LENGTH - 1 : -1].topk(2).values
    smallest_margin = (best_two[..., 0] - best_two[..., 1]).min()
    fewest_tokens = min(len(set(row)) for row in greedy.tolist())
    if smallest_margin < 0.02 or fewest_tokens < 4:
        return None

    # Digits after the twelfth depend on the processor.
    rounded_logits = []
    for row in logits[:, :LENGTH].tolist():
        rounded_row = []
        for logits_of_position in row:
            rounded_row.append([round(x, 12) for x in logits_of_position])
        rounded_logits.append(rounded_row)
    return {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "ids": ids.tolist(),
        "greedy": greedy.tolist(),
        "logits": rounded_logits,
    }


def write_case(name: str, directory: Path) -> None:
    """Write one case, with the first seed whose continuations `expect` accepts.

    `expect` refuses a continuation in which two tokens are nearly equally likely, because rounding
    could choose the other one.
    """
    import numpy as np
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(**(BASE | CASES[name]))
    for seed in count():
        shutil.rmtree(directory, ignore_errors=True)
        rng = np.random.default_rng(seed)
        ids = torch.from_numpy(rng.integers(config.vocab_size, size=(BATCH, LENGTH)))
        model = GPT2LMHeadModel(config).eval()
        randomise(model, seed)
        scale_logits(model, ids)
        save(name, model, directory)
        expected = expect(directory, ids)
        if expected is not None:
            # Write one row of numbers on a line, and one entry on a line.
            text = json.dumps(expected)
            text = text.replace("], [", "],\n[")
            text = text.replace(', "', ',\n"')
            (directory / "expected.json").write_text(text + "\n", encoding="utf-8")
            return


def main() -> int:
    """Write all cases; return the exit code."""
    description = "Write the golden checkpoints that the tests read. Needs torch and transformers."
    parser = argparse.ArgumentParser(description=description)
    goldens = Path(__file__).resolve().parents[1] / "tests" / "goldens"
    replaced = "each case replaces the directory of its name there (default: tests/goldens)"
    parser.add_argument("directory", type=Path, nargs="?", default=goldens, help=replaced)
    directory = parser.parse_args().directory
    try:
        import_module("torch")  # without torch, transformers only warns
        import transformers

        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        for name in CASES:
            write_case(name, directory / name)
    except ImportError as error:
        print(
            f"make_goldens.py: error: {error}; pip install -e '.[parity]' installs it",
            file=sys.stderr,
        )
        return 2
    except OSError as error:
        path = error.filename or directory
        reason = error.strerror or error
        print(f"make_goldens.py: error: cannot write {path}: {reason}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("make_goldens.py: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
