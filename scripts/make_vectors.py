"""Write tests/vectors: values of small GPT-2s, for a GPT-2 in another language.

    pip install -e . safetensors
    python scripts/make_vectors.py DIRECTORY

DIRECTORY/v1 has three models and all that they compute. DIRECTORY/v2 has cases that a port answers,
and `tiedgpt compare --vectors ANSWERS` judges the answers. A case is there because without it a
known mistake is not found, or is not told from another one: tests/comparison/test_vectors_v2.py has
the table. The published files never change; ports.md explains them.

What is expected is computed in float64. The parameters are made of whole numbers from the random
generator, so they are the same bit for bit on every machine; the last digits of what is computed
from them depend on the processor.
"""

import argparse
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import tiedgpt
from tiedgpt import GPT2, Config, Tokenizer, generate, loss_and_gradients
from tiedgpt.comparison.vector_mistakes import adamw_results, batch_results, gradient_of
from tiedgpt.gpt2.parameters import Parameters, parameter_shapes
from tiedgpt.gpt2.tokenizer import EOT, byte_alphabet, spelled_ids
from tiedgpt.testing import scale_of

# The sizes differ, so that no two axes are mistaken for each other.
SMALL = Config(
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
# eps is larger than usual. The gradient of the keys' biases is 0 but for rounding errors, which
# differ from program to program. With an eps of 1e-8, AdamW would make whole steps of them.
STEP = {"lr": 0.001, "beta1": 0.9, "beta2": 0.99, "eps": 0.001, "weight_decay": 0.1}


def scales_of(config: Config) -> Iterator[tuple[str, tuple[int, ...], float, float]]:
    """The name, the shape, the mean and the standard deviation of each parameter.

    With these, every parameter changes the logits. ln_f is so small that no probability is nearly
    1.
    """
    for name, shape in parameter_shapes(config).items():
        mean, deviation = scale_of(name, config)
        small = 8 if name.startswith("ln_f.") else 1
        yield name, shape, mean / small, deviation / small


def after_step(parameter: np.ndarray, gradient: np.ndarray, settings: dict[str, float]) -> Any:
    """The parameter after the first step of AdamW, without clipping."""
    # adamw_results yields the right result first, and then those of known mistakes.
    _, right = next(adamw_results(parameter, gradient, settings))
    return right


def save(arrays: Parameters, path: Path) -> None:
    """Write a safetensors file. save_file needs arrays in row order."""
    in_row_order = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(in_row_order, path, metadata={"format": "pt"})


def write_json(data: object, path: Path) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# v1

MODELS = {
    "tied": SMALL,
    "untied": SMALL.with_head("untied"),
    "gelu": replace(SMALL, activation_function="gelu"),
}
B, T = 2, 9
SEED_V1 = 7  # greedy generation appends different tokens then, none of them by a hair
PROMPT = 6  # greedy generation begins with so many tokens of the first row of ids
GREEDY_TOKENS = 10


def exact_model(config: Config) -> GPT2:
    """A model that is the same bit for bit on every machine.

    Its numbers are evenly distributed. (Normal random numbers are computed with logarithms, which
    differ in the last bit from one system's library to the other's.)
    """
    rng = np.random.default_rng(SEED_V1)
    parameters = {}
    for name, shape, mean, deviation in scales_of(config):
        # Whole numbers below 2**24, and their quotients by a power of 2, are exact in float32.
        integers = rng.integers(-(2**20), 2**20, shape)
        numbers = np.float32(integers) / np.float32(2**20)  # from -1 to 1
        # Such numbers have the standard deviation 1 / sqrt(3).
        width = np.float32(deviation * np.sqrt(3))
        parameters[name] = np.float32(mean) + width * numbers
    return GPT2(config, parameters)


def write_v1_model(directory: Path, config: Config) -> None:
    """Write the five files of one model."""
    directory.mkdir(parents=True)
    model = exact_model(config)
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

    # The names in a checkpoint of transformers. lm_head.weight, which SMALL lacks, has no prefix.
    names = {name: f"transformer.{name}" for name in parameter_shapes(SMALL)}
    parameters = {names.get(name, name): array for name, array in model.parameters.items()}
    save(parameters, directory / "model.safetensors")
    save({"ids": ids, "targets": targets, **tape, **gradients}, directory / "expected.safetensors")
    stepped = {
        name: after_step(parameter, gradients[name], STEP)
        for name, parameter in reference.parameters.items()
    }
    save(stepped, directory / "after_step.safetensors")
    write_json(config.to_json(), directory / "config.json")
    write_json(document, directory / "vectors.json")


def write_v1(directory: Path) -> None:
    sums = []
    for name, config in MODELS.items():
        write_v1_model(directory / name, config)
        for path in sorted((directory / name).iterdir()):
            sums.append(f"{sha256_of(path)}  {name}/{path.name}\n")
    (directory / "SHA256SUMS").write_text("".join(sums), encoding="ascii")


# v2

TIED = replace(SMALL, n_ctx=53)
UNTIED = replace(TIED.with_head("untied"), layer_norm_epsilon=1e-4)
SEED_V2 = 11
BITS = 13  # the bits of a number beside its sign, more than bfloat16's 8 and float16's 11
TOKENS = 40
# For the greedy texts. Of some hundred random prompts of 6 tokens, these are the ones after which
# the most known mistakes write other tokens, with margins that float32's rounding cannot close.
PROMPTS: dict[str, list[list[int]]] = {
    "tied": [
        [28, 58, 20, 0, 2, 13],  # both gelus write other texts
        [56, 61, 32, 6, 66, 57],
        [7, 63, 21, 4, 61, 35],
        [40, 16, 25, 64, 50, 61],
    ],
    "gelu": [[22, 29, 62, 13, 35, 21]],
}
STEP_V2 = {**STEP, "beta2": 0.999}

# Texts of the vocabulary of the shipped models. Each finds a mistake that the others do not find,
# or tells two apart.
TEXTS = [
    "wherefore art thou",
    "\U0001f600\U0001f44d\U0001f3fd ok",
    "e\u0301 \u00e9 \ufb01 \u212b",
    "line\r\nline\r\n",
    "nul\0nul",
    "one<|endoftext|> two",
]
# In the vocabulary "split", merges join these characters. A tokenizer that splits a text elsewhere
# than GPT-2 joins others. (Merges that were learned from a text never cross GPT-2's split.)
JOINS = ["a\u00e9", "\u00e9a", "1\u00b2", "\u00b21", "a\u00b2", "a1", "1a", "11", "a.", ".a", ".."]
JOINS += ["a ", ". ", "1 ", "  ", "\n\n", "a\n", " \n", "\n ", "\na", " a", "a'", "'s", "'S"]
JOINS += ["sa", "Sa", "_a", "a_", "1_", "_1", "\u00e9.", ".\u00a0", "\u00a0a", "\ra", "\r\n"]
SPLIT_TEXTS = [
    "11 111",
    "it's a's",
    "'Sa 'sa",
    " \n a",
    "_a a_1",
    "a\u00e9a",
    "a\u00b21 1\u00b2",
    ".\u00a0a",
]
# Bytes of characters that are cut, NUL, special tokens, spaces before punctuation marks
DECODED = [
    "\u00e9\U0001f600",
    "To be , or not !",
    " my lord \n",
    "a\0b",
    "one<|endoftext|> two",
]


def exact_parameters(config: Config) -> tuple[Parameters, dict[str, Any]]:
    """Parameters in which each matters, and the same as whole numbers, for JSON.

    Each is a whole number divided by a power of 2, which is exact in float32.
    """
    rng = np.random.default_rng(SEED_V2)
    parameters = {}
    document = {}
    for name, shape, mean, deviation in scales_of(config):
        if name == "ln_f.bias":  # so that a greedy text has many different tokens
            deviation /= 4
        if name == "wpe.weight":
            deviation *= 2
        if name.endswith("mlp.c_proj.weight"):  # so that both gelus write different texts
            deviation *= 3
        # The numbers are evenly distributed from -width to width, which is then below 2**BITS.
        divisor = 2 ** (BITS - int(np.ceil(np.log2(2 * deviation))))
        width = int(deviation * np.sqrt(3) * divisor)
        numbers = rng.integers(-width, width + 1, shape) + round(mean * divisor)
        # An odd number of 13 bits is no bfloat16 and no float16.
        numbers |= 1
        parameters[name] = np.float32(numbers) / np.float32(divisor)
        document[name] = {
            "shape": list(shape),
            "divisor": divisor,
            "numbers": numbers.ravel().tolist(),
        }
    return parameters, document


def models_of(parameters: Parameters) -> dict[str, tuple[GPT2, dict[str, str]]]:
    """Each model, and for each of its parameters the name under which its weights are stored."""
    stored = {name: name for name in parameter_shapes(TIED)}
    of_untied = {**stored, "lm_head.weight": "lm_head.weight"}
    of_copy = {**stored, "lm_head.weight": "wte.weight"}  # W_U^T is a copy of wte
    models = {}
    for name, config, places in (
        ("tied", TIED, stored),
        ("untied", UNTIED, of_untied),
        ("copy", TIED.with_head("untied"), of_copy),
        ("gelu", replace(TIED, activation_function="gelu"), stored),
    ):
        own = {parameter: parameters[place].copy() for parameter, place in places.items()}
        models[name] = (GPT2(config, own), places)
    return models


def split_merges() -> list[tuple[str, str]]:
    """The pairs of neighbouring bytes in JOINS, each once."""
    alphabet = byte_alphabet()
    merges = []
    for text in JOINS:
        spelled = [alphabet[byte] for byte in text.encode()]
        merges += list(pairwise(spelled))
    return list(dict.fromkeys(merges))


def write_vocabulary(directory: Path, tokenizer: Tokenizer) -> None:
    directory.mkdir()
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in tokenizer.merges)]
    text = "\n".join(lines) + "\n"
    (directory / "merges.txt").write_text(text, encoding="utf-8", newline="\n")
    ids = {**spelled_ids(tokenizer.merges, 0), EOT: tokenizer.special_tokens[EOT]}
    vocabulary = json.dumps(ids, ensure_ascii=False)
    (directory / "vocab.json").write_text(vocabulary + "\n", encoding="utf-8", newline="\n")


class Cases:
    """The cases, and what is expected of each."""

    def __init__(self) -> None:
        self.listed: list[dict[str, Any]] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.others: dict[str, Any] = {}  # texts, which safetensors cannot hold

    def add(self, name: str, kind: str, expected: Any, note: str = "", **given: Any) -> None:
        """Add a case: a text or numbers are expected for what is given."""
        case: dict[str, Any] = {"name": name, "kind": kind, "given": given}
        if note:
            case["note"] = note
        self.listed.append(case)
        if isinstance(expected, str):
            self.others[name] = expected
        else:
            self.arrays[name] = np.array(expected)


def margin_of(model: GPT2, prompt: list[int], tokens: list[int]) -> float:
    """The smallest distance of the best logit from the second one, where a token is chosen."""
    # The first token is chosen after the prompt, the last one after the token before it.
    logits = model([*prompt, *tokens[:-1]])[len(prompt) - 1 :]
    best_two = np.sort(logits, axis=-1)[:, -2:]
    return float((best_two[:, 1] - best_two[:, 0]).min())


def add_forward(cases: Cases, models: dict[str, GPT2]) -> None:
    rng = np.random.default_rng([SEED_V2, 1])
    ids = rng.integers(TIED.vocab_size, size=(2, 9))
    for name in ("tied", "untied", "gelu"):
        logits = models[name](ids)
        cases.add(f"logits/{name}", "logits", logits, model=name, ids=ids.tolist())
    text = rng.integers(TIED.vocab_size, size=9).tolist()
    # The text after a prompt of 5, one token in each step.
    cases.add(
        "steps/tied",
        "steps",
        models["tied"](text)[5:],
        model="tied",
        prompt=text[:5],
        next=text[5:],
    )
    texts = [rng.integers(TIED.vocab_size, size=n).tolist() for n in (3, 8, 5)]
    # batch_results yields the right logits first, and then those of each known mistake.
    _, last_of_each = next(batch_results(models["tied"], texts))
    cases.add("batch/tied", "batch", last_of_each, model="tied", texts=texts)
    for name, prompts in PROMPTS.items():
        for number, prompt in enumerate(prompts, start=1):
            tokens = list(generate(models[name], prompt, TOKENS, greedy=True))
            margin = margin_of(models[name], prompt, tokens)
            cases.add(
                f"greedy/{name}/{number}",
                "greedy",
                tokens,
                note=f"the smallest margin of two logits is {margin:.2g}",
                model=name,
                prompt=prompt,
                tokens=TOKENS,
            )


def add_tokenizer(cases: Cases, tokenizers: dict[str, Tokenizer]) -> None:
    for vocabulary, texts in (("shakespeare", TEXTS), ("split", SPLIT_TEXTS)):
        for number, text in enumerate(texts, start=1):
            ids = tokenizers[vocabulary].encode(text, special="token")
            name = f"encode/{vocabulary}/{number}"
            cases.add(name, "encode", ids, vocabulary=vocabulary, text=text)
    shipped = tokenizers["shakespeare"]
    for number, text in enumerate(DECODED, start=1):
        ids = shipped.encode(text, special="token")
        if number == 1:
            ids = ids[1:-1]  # cuts both characters
        name = f"decode/{number}"
        cases.add(name, "decode", shipped.decode(ids), vocabulary="shakespeare", ids=ids)


def add_training(cases: Cases, models: dict[str, GPT2]) -> None:
    rng = np.random.default_rng([SEED_V2, 2])
    # Some tokens are looked up twice, and most not at all.
    ids = rng.integers(12, size=(2, 8))
    targets = rng.integers(TIED.vocab_size, size=(2, 8))
    for name, parameter in (
        ("tied", "wte.weight"),
        ("copy", "wte.weight"),
        ("untied", "lm_head.weight"),
    ):
        cases.add(
            f"gradient/{name}/{parameter}",
            "gradient",
            gradient_of(models[name], parameter, ids, targets),
            model=name,
            parameter=parameter,
            ids=ids.tolist(),
            targets=targets.tolist(),
        )
    for parameter in ("wte.weight", "h.0.ln_1.weight"):
        gradient = gradient_of(models["tied"], parameter, ids, targets)
        stored = f"gradient/tied/{parameter}"
        cases.arrays[stored] = gradient  # a port reads the gradient there: the case has its name
        cases.add(
            f"adamw/tied/{parameter}",
            "adamw",
            after_step(models["tied"].parameters[parameter], gradient, STEP_V2),
            model="tied",
            parameter=parameter,
            gradient=stored,
            settings=STEP_V2,
        )


def with_digits(array: np.ndarray) -> Any:
    """Nested lists, numbers with 12 digits."""
    if array.dtype.kind in "iu":
        return array.tolist()
    return json.loads(
        np.array2string(
            array,
            separator=",",
            threshold=array.size + 1,
            formatter={"float_kind": lambda x: f"{x:.12g}"},
        )
    )


def write_json_lines(document: dict[str, Any], path: Path) -> None:
    """A JSON object with one line for each name."""
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in document.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8", newline="\n")


def write_v2(directory: Path) -> None:
    directory.mkdir(parents=True)
    parameters, document = exact_parameters(UNTIED)
    models = models_of(parameters)
    tokenizers = {
        "shakespeare": tiedgpt.load_tokenizer("shakespeare-tied"),
        "split": Tokenizer(split_merges()),
    }
    cases = Cases()
    exact = {name: model.astype(np.float64) for name, (model, _) in models.items()}
    add_forward(cases, exact)
    add_tokenizer(cases, tokenizers)
    add_training(cases, exact)

    # Weights and expected answers, each as safetensors and as JSON
    save(parameters, directory / "weights.safetensors")
    write_json_lines(document, directory / "weights.json")
    save(cases.arrays, directory / "expected.safetensors")
    lists = {name: with_digits(array) for name, array in cases.arrays.items()}
    write_json_lines({**lists, **cases.others}, directory / "expected.json")
    for name, tokenizer in tokenizers.items():
        write_vocabulary(directory / name, tokenizer)

    # The manifest, with the hashes of all other files
    sums = {}
    for path in sorted(directory.rglob("*.*")):
        name = path.relative_to(directory).as_posix()
        sums[name] = sha256_of(path)
    manifest = {
        "version": 2,
        "sha256": sums,
        "models": {
            name: {"config": model.config.to_json(), "parameters": places}
            for name, (model, places) in models.items()
        },
        "vocabularies": {name: name for name in tokenizers},
        "cases": cases.listed,
    }
    write_json(manifest, directory / "manifest.json")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write reference values for a GPT-2.")
    parser.add_argument("directory", type=Path, help="a new directory")
    directory = parser.parse_args().directory
    write_v1(directory / "v1")
    write_v2(directory / "v2")


if __name__ == "__main__":
    main()
