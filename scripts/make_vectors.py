"""Write tests/vectors/v1: small GPT-2s and all that they compute, for a GPT-2 in another language.

    pip install -e . safetensors
    python scripts/make_vectors.py DIRECTORY

The published files never change: other values are in v2 (make_vectors_v2.py). ports.md says what
they hold.

What is expected is computed in float64. The parameters are made of whole numbers from the random
generator, so they are the same bit for bit on every machine; the last digits of what is computed
from them depend on the processor.
"""

import argparse
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tiedgpt import GPT2, Config, generate, loss_and_gradients
from tiedgpt.gpt2.parameters import Parameters, parameter_shapes, unflatten
from tiedgpt.testing import scale_of
from tiedgpt.training.optimizer import AdamW

# The sizes differ, so that no two axes are mistaken for each other.
TIED = Config(
    vocab_size=67,
    n_ctx=17,
    n_embd=3 * 8,
    n_layer=2,
    n_head=3,
    n_inner=50,
    bos_token_id=None,
    eos_token_id=None,
    embd_pdrop=0.0,
    resid_pdrop=0.0,
    attn_pdrop=0.0,
)
MODELS = {
    "tied": TIED,
    "untied": TIED.with_head("untied"),
    "gelu": replace(TIED, activation_function="gelu"),
}
B, T = 2, 9
SEED = 7  # with this seed, greedy generation appends different tokens, none of them by a hair
PROMPT = 6  # greedy generation begins with so many tokens of the first row of ids
GREEDY_TOKENS = 10
# eps is larger than usual. The gradient of the keys' biases is 0 but for rounding errors, which
# differ from program to program. With an eps of 1e-8, AdamW would make whole steps of them.
STEP = {"lr": 0.001, "beta1": 0.9, "beta2": 0.99, "eps": 0.001, "weight_decay": 0.1}


def exact_model(config: Config, seed: int) -> GPT2:
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
        if name.startswith("ln_f."):
            parameters[name] /= 8  # so that no probability is nearly 1
    return GPT2(config, parameters)


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


def write_vectors(directory: Path, config: Config) -> None:
    """Write the five files of one model."""
    directory.mkdir(parents=True)
    model = exact_model(config, SEED)
    reference = model.astype(np.float64)
    text = np.random.default_rng([0, 1]).integers(config.vocab_size, size=(B, T + 1))
    ids = text[:, :-1]
    targets = text[:, 1:]
    tape: dict[str, np.ndarray] = {}
    reference(ids, tape=tape)  # puts all activations and the logits on the tape
    loss, gradients = loss_and_gradients(reference, ids, targets)
    greedy = list(generate(reference, ids[0][:PROMPT], GREEDY_TOKENS, greedy=True))
    document = {
        "loss": loss,
        "adamw": STEP,
        "decayed": "all matrices, wte and wpe among them, but no bias and no layer norm",
        "prompt": ids[0][:PROMPT].tolist(),
        "greedy": greedy,
    }

    names = {name: f"transformer.{name}" for name in parameter_shapes(TIED)}
    parameters = {names.get(name, name): array for name, array in model.parameters.items()}
    save(parameters, directory / "model.safetensors")
    save({"ids": ids, "targets": targets, **tape, **gradients}, directory / "expected.safetensors")
    save(after_one_step(reference, gradients), directory / "after_step.safetensors")
    write_json(config.to_json(), directory / "config.json")
    write_json(document, directory / "vectors.json")


def save(arrays: Parameters, path: Path) -> None:
    """Write a safetensors file. save_file needs arrays in row order."""
    in_row_order = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(in_row_order, path, metadata={"format": "pt"})


def write_json(data: object, path: Path) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write reference values for a GPT-2.")
    parser.add_argument("directory", type=Path, help="a new directory")
    directory = parser.parse_args().directory
    sums = []
    for name, config in MODELS.items():
        write_vectors(directory / name, config)
        for path in sorted((directory / name).iterdir()):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            sums.append(f"{digest}  {name}/{path.name}\n")
    (directory / "SHA256SUMS").write_text("".join(sums), encoding="ascii")


if __name__ == "__main__":
    main()
