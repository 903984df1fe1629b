"""Reference values for a GPT-2 in another language: a small model and all that it computes.

    config.json               the model's sizes
    model.safetensors         its parameters, float32, as in a checkpoint of transformers
    expected.safetensors      `ids` and `targets` [B, T], int64; each activation, under the names of
                              the tape; the gradient of each parameter, under the parameter's name
    after_step.safetensors    each parameter after one step of AdamW
    vectors.json              the loss, the settings of that step, and tokens that greedy generation
                              appends to the first row of ids

What is expected is computed in float64. The parameters are made of whole numbers from the random
generator, so they are the same bit for bit on every machine.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoints import safetensors
from ..checkpoints.files import write_checkpoint
from ..generation import generate
from ..gpt2.backward import loss_and_gradients
from ..gpt2.config import Config
from ..gpt2.model import GPT2
from ..gpt2.parameters import Parameters, parameter_shapes, unflatten
from ..gpt2.run import Tape
from ..training.optimizer import AdamW
from ..writing import new_directory
from .random_model import scale_of

# Sizes that differ, so that no two axes are mistaken for each other. All files take 0.6 MB.
VECTORS = Config(
    vocab_size=101,
    n_ctx=23,
    n_embd=3 * 10,
    n_layer=2,
    n_head=3,
    n_inner=62,
    bos_token_id=None,
    eos_token_id=None,
    embd_pdrop=0.0,
    resid_pdrop=0.0,
    attn_pdrop=0.0,
)
B, T = 2, 9
GREEDY_TOKENS = 10
# eps is larger than usual. The gradient of the keys' biases is 0 but for rounding errors, which
# differ from program to program. With an eps of 1e-8, AdamW would make whole steps of them.
STEP = {"lr": 0.001, "beta1": 0.9, "beta2": 0.99, "eps": 0.001, "weight_decay": 0.1}


def exact_model(config: Config = VECTORS, seed: int = 0) -> GPT2:
    """A model in which every parameter matters, the same bit for bit on every machine.

    Its numbers are evenly distributed. (Normal random numbers are computed with logarithms, which
    differ in the last bit from one system's library to the other's.)
    """
    rng = np.random.default_rng(seed)
    parameters = {}
    for name, shape in parameter_shapes(config).items():
        mean, deviation = scale_of(name, config)
        # Whole numbers below 2**24, and their quotients by a power of 2, are exact in float32.
        integers = rng.integers(-(2**20), 2**20, shape)
        numbers = np.float32(integers) / np.float32(2**20)  # from -1 to 1
        # Such numbers have the standard deviation 1 / sqrt(3).
        width = np.float32(deviation * np.sqrt(3))
        parameters[name] = np.float32(mean) + width * numbers
    return GPT2(config, parameters)


def random_batch(config: Config, seed: int) -> tuple[np.ndarray, np.ndarray]:  # [B, T], [B, T]
    """Token ids, and the tokens that follow them."""
    rng = np.random.default_rng([seed, 1])
    text = rng.integers(config.vocab_size, size=(B, T + 1))
    return text[:, :-1], text[:, 1:]


def after_one_step(model: GPT2, gradients: Parameters) -> Parameters:
    """The parameters after a step of AdamW with the settings of STEP, without clipping."""
    shapes = parameter_shapes(model.config)
    flat = np.concatenate([model.parameters[name].ravel() for name in shapes])
    flat_gradient = np.concatenate([gradients[name].ravel() for name in shapes])
    optimizer = AdamW(
        flat,
        shapes,
        betas=(STEP["beta1"], STEP["beta2"]),
        weight_decay=STEP["weight_decay"],
        eps=STEP["eps"],
    )
    optimizer.step(flat_gradient, STEP["lr"])
    return unflatten(flat, shapes)


def write_vectors(directory: Path, head: str, seed: int = 0) -> None:
    """Write the files that this module's docstring lists. Raises CheckpointError."""
    model = exact_model(VECTORS.with_head(head), seed)
    reference = model.astype(np.float64)
    ids, targets = random_batch(model.config, seed)
    tape: Tape = {}
    reference(ids, tape=tape)  # puts all activations and the logits on the tape
    loss, gradients = loss_and_gradients(reference, ids, targets)
    greedy = list(generate(reference, ids[0], GREEDY_TOKENS, greedy=True))
    document = {
        "loss": loss,
        "adamw": STEP,
        "decayed": "all matrices, wte and wpe among them, but no bias and no layer norm",
        "greedy": greedy,
    }
    with new_directory(directory) as new:
        write_checkpoint(new, model, others={})
        expected = {"ids": ids, "targets": targets, **tape, **gradients}
        write_arrays(new / "expected.safetensors", expected)
        write_arrays(new / "after_step.safetensors", after_one_step(reference, gradients))
        text = json.dumps(document, indent=2) + "\n"
        (new / "vectors.json").write_text(text, encoding="utf-8")


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write a safetensors file. Arrays of float64 and int64 stay such."""
    with open(path, "wb") as file:
        safetensors.write(file, arrays.items(), exact=True)
