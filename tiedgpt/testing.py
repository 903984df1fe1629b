"""For the tests of another GPT-2, or of any tied model: a GPT-2 in which mistakes show, assertions.

from tiedgpt.testing import assert_same_gpt2, assert_tied, tiny_gpt2

def test_my_gpt2(tiny_gpt2):  # once tied, once untied
    assert_same_gpt2(MyGPT2(tiny_gpt2.parameters), model=tiny_gpt2)

def test_my_model():  # a torch module
    model = MyModel()
    assert_tied(model, torch.optim.AdamW(model.parameters()))

In pytest, both assertions are fixtures, too (pytest_plugin.py).
"""

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from . import torch_tie
from .comparison.compare import NothingCompared, compare
from .comparison.vectors import judge
from .errors import ArgumentError, short_repr
from .gpt2.backward import loss_and_gradients
from .gpt2.config import Config
from .gpt2.model import GPT2
from .gpt2.parameters import Parameters, parameter_shapes
from .training.optimizer import AdamW

# Sizes that differ, so that no two axes are mistaken for each other, and a vocabulary that is not
# padded.
TINY = Config(
    vocab_size=211,
    n_ctx=37,
    n_embd=3 * 16,
    n_layer=3,
    n_head=3,
    n_inner=100,
    bos_token_id=0,
    eos_token_id=0,
)

# What is added to the residual stream is so small that the epsilon of a layer norm matters.
SMALL = 0.02


def scale_of(name: str, config: Config) -> tuple[float, float]:
    """The mean and the standard deviation of a parameter. No gain is near 1 and no bias near 0."""
    D = config.n_embd
    F = config.n_inner or 4 * D  # 4 D is for the type checker: n_inner of a Config is a number
    # wte has the deviation SMALL. With this factor in ln_f, that of the logits is about 15.
    large = 12 / SMALL / np.sqrt(D)
    # The first key that is a part of the name counts. A matrix adds up D or F products, so the root
    # of that number keeps the scale of its results the same for all sizes.
    scales = {
        "ln_f.weight": (1.3 * large, 0.4 * large),
        "ln_f.bias": (0, 0.4 * large),
        "c_proj.bias": (0, SMALL / 2),
        "bias": (0, 0.4),
        "ln_": (1.3, 0.4),
        "attn.c_proj": (0, SMALL / np.sqrt(D)),
        "mlp.c_proj": (0, 3 * SMALL / np.sqrt(F)),
        "c_": (0, 1.5 / np.sqrt(D)),
        "w": (0, SMALL),
    }
    for part, scale in scales.items():
        if part in name:
            return scale
    raise AssertionError(f"{name} has no scale")  # "w" is in the name of each embedding


def random_model(config: Config = TINY, seed: int = 0) -> GPT2:
    """A model in which every parameter matters, in float32.

    Mistakes that GPT2.random hides move a logit by 0.01 or more: exact gelu, another epsilon, no
    bias.
    """
    rng = np.random.default_rng(seed)
    parameters = {}
    for name, shape in parameter_shapes(config).items():
        mean, deviation = scale_of(name, config)
        numbers = rng.standard_normal(shape, np.float32)
        parameters[name] = np.float32(mean) + np.float32(deviation) * numbers
    return GPT2(config, parameters)


def assert_same_gpt2(
    theirs: Any, model: GPT2 | None = None, ids: Any = None, targets: Any = None
) -> None:
    """Raise AssertionError with the report of `compare` unless `theirs` is the GPT-2 `model`.

    theirs: what `compare` takes. It fails without logits; of a torch module, these are what it
    returns. With targets, it fails unless the gradients of all parameters were given. To compare a
    part of the activations or of the gradients, call `compare`.

    model: random_model() if None. ids: two random sequences if None, as long as the context, at
    most 64. Raises ArgumentError for what cannot be compared.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    if model is None:
        model = random_model()
    if ids is None:
        config = model.config
        length = min(config.n_ctx, 64)
        ids = np.random.default_rng(0).integers(config.vocab_size, size=(2, length))
    try:
        report = compare(model, theirs, ids, targets)
    except NothingCompared as error:
        raise AssertionError(str(error)) from None
    if report.same is None:
        raise AssertionError(
            f"not enough was compared to say that it is the same GPT-2\n\n{report}"
        )
    if not report.same:
        raise AssertionError(f"not the same GPT-2\n\n{report}")


def assert_vectors(answers: Mapping[str, Any]) -> None:
    """Raise AssertionError, which says what is wrong, if an answer to the reference values is.

    answers: the name of a case of tests/vectors/v2 -> the answer of another GPT-2: an array, nested
    lists, or a text. Raises ArgumentError if there are none, and for a name that is no case.
    """
    __tracebackhide__ = True
    report = judge(answers)
    if report["wrong"] == 0:
        return
    lines = [report["sentence"], ""]
    for case in report["cases"]:
        if case["status"] == "wrong":
            lines.append(f"{case['name']}: {case['sentence']}")
    for kind, mistakes in report["mistakes"].items():
        lines += [f"{kind}: {sentence}" for sentence in mistakes]
    raise AssertionError("\n".join(lines))


def assert_tied(model: Any, optimizer: Any = None, batch: Any = None, matrices: Any = None) -> None:
    """Raise AssertionError, which says what failed, unless the model's two matrices are one.

    The input matrix and the output matrix have one storage. The gradient of a batch reaches it from
    the input, and from the output of each token. The optimizer, if it is given, holds the matrix
    once, and after one step both are equal. Afterwards the modes, attributes, parameters, buffers,
    gradients, the optimizer and torch's random state are as before.

    Not looked at: what a loss adds to the logits; of a torch module, the output of the tokens of
    your own batch, and rows for which it returns no logit.

    model: a GPT2, or a torch module of any kind. It returns logits [..., V], or an object, dict or
        tuple that has them.
    batch: ids, or for a torch module a tuple or dict of its arguments too, with at most half of the
        V tokens. If None, a few ids of the first 12.
    optimizer: torch's, or for a GPT2 the AdamW of training.
    matrices: the input and the output matrix of a torch module; the output matrix may be [V, D] or
        [D, V]. If None, they are the weights of get_input_embeddings() and get_output_embeddings().
    Raises ArgumentError for other arguments; if the module has no such methods, cannot read the
    batch or returns no logits; if its matrices have no numbers (on the device meta); if what the
    input reads cannot be told from the output; if torch cannot compute the gradient or the step.
    """
    __tracebackhide__ = True
    torch = sys.modules.get("torch")  # imported already, if the model is a torch module
    if torch is not None and isinstance(model, torch.nn.Module):
        torch_tie.check_module(model, optimizer, batch, matrices)
        return
    if not isinstance(model, GPT2) or not isinstance(optimizer, AdamW | None):
        raise ArgumentError(
            "expected a GPT2 and an AdamW of tiedgpt, or a torch module and torch's optimizer, got "
            f"{short_repr(model)} and {short_repr(optimizer)}"
        )
    if matrices is not None:
        raise ArgumentError("matrices= are those of a torch module; a GPT2 has W_E and W_U")
    check_gpt2(model, optimizer, batch)


def check_gpt2(model: GPT2, optimizer: AdamW | None, batch: Any) -> None:
    """What assert_tied does for a GPT2 of tiedgpt."""
    if not np.shares_memory(model.W_E, model.W_U):
        raise AssertionError("storage: W_E and W_U are two arrays: the model is untied")
    if batch is None:
        batch = np.arange(min(12, model.config.n_ctx)) % model.config.vocab_size
    ids = np.asarray(batch)
    targets = np.roll(ids, 1, axis=-1)
    _, gradients = loss_and_gradients(model, ids, targets)
    # An untied copy has a gradient for each of the two uses.
    _, parts = loss_and_gradients(model.untie("copy"), ids, targets)
    for use, name in (("input", "wte.weight"), ("output", "lm_head.weight")):
        if not parts[name].any():
            raise AssertionError(f"gradient: nothing of it comes from the {use}")
    both = parts["wte.weight"] + parts["lm_head.weight"]
    if not np.allclose(gradients["wte.weight"], both, rtol=1e-4, atol=1e-4 * abs(both).max()):
        raise AssertionError("gradient: it is not the sum of those from input and output")
    if optimizer is not None:
        check_step(model, optimizer, gradients)


def check_step(model: GPT2, optimizer: AdamW, gradients: Parameters) -> None:
    """Raise AssertionError if the optimizer unties the model in a step, which is then undone."""
    is_once = "wte.weight" in optimizer.shapes and "lm_head.weight" not in optimizer.shapes
    if not is_once or not np.shares_memory(model.W_E, optimizer.flat):
        raise AssertionError("optimizer: it does not hold the model's matrix once")
    vectors = (optimizer.flat, optimizer.m, optimizer.v)
    before = [vector.copy() for vector in vectors]
    steps = optimizer.steps
    gradient = np.concatenate([gradients[name].ravel() for name in optimizer.shapes])
    try:
        optimizer.step(gradient, lr=1e-3)
        if not np.array_equal(model.W_E.T, model.W_U):
            raise AssertionError("optimizer: after one step, W_E.T and W_U differ")
    finally:
        optimizer.steps = steps
        for vector, values in zip(vectors, before, strict=True):
            vector[:] = values


with suppress(ImportError):  # only the fixture needs pytest
    import pytest

    @pytest.fixture(params=["tied", "untied"])
    def tiny_gpt2(request: pytest.FixtureRequest) -> GPT2:
        """random_model(), once tied and once untied."""
        return random_model(TINY.with_head(request.param))
