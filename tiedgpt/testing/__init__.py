"""For the tests of another GPT-2, or of any tied model: a GPT-2 in which mistakes show, assertions.

from tiedgpt.testing import assert_same_gpt2, assert_tied, tiny_gpt2

def test_my_gpt2(tiny_gpt2):  # once tied, once untied
    assert_same_gpt2(MyGPT2(tiny_gpt2.parameters), model=tiny_gpt2)

def test_my_model():  # a torch module
    model = MyModel()
    assert_tied(model, torch.optim.AdamW(model.parameters()))

tie_of(model.state_dict()) says whether a state dict holds one matrix or two.

Or a conftest.py says pytest_plugins = ["tiedgpt.pytest_plugin"]. Then all three are fixtures, which
need no import.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from ..comparison.compare import NothingCompared, compare
from ..comparison.vectors import judge
from ..gpt2.config import Config
from ..gpt2.model import GPT2
from ..gpt2.parameters import parameter_shapes
from .state_dict import Tie as Tie
from .state_dict import tie_of as tie_of
from .tie import assert_tied as assert_tied

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
    # A logit is a sum of D products with numbers of wte, which are SMALL. With this factor in the
    # gain of ln_f, the standard deviation of the logits is about 17.
    large = 12 / SMALL / np.sqrt(D)
    # Each key is a part of names; of several in a name, the first counts. A product with a matrix
    # adds up D or F terms, so the division by the root of D or F gives results of one scale.
    scales = {
        "ln_f.weight": (1.3 * large, 0.4 * large),
        "ln_f.bias": (0, 0.4 * large),
        "c_proj.bias": (0, SMALL / 2),
        "bias": (0, 0.4),
        "ln_": (1.3, 0.4),  # ln_1 and ln_2
        "attn.c_proj": (0, SMALL / np.sqrt(D)),
        "mlp.c_proj": (0, 3 * SMALL / np.sqrt(F)),
        "c_": (0, 1.5 / np.sqrt(D)),  # c_attn and c_fc
        "w": (0, SMALL),  # wte.weight, wpe.weight and lm_head.weight
    }
    for part, scale in scales.items():
        if part in name:
            return scale
    raise AssertionError(f"{name} has no scale")  # every name has "bias" or the w of "weight"


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

    theirs: what `compare` takes. The assertion fails without logits; a torch module's logits are
    what it returns. With targets, it fails unless the gradients of all parameters are given. To
    compare a part of the activations or of the gradients, call `compare`.

    model: random_model() if None. ids: two random sequences if None, as long as the context, at
    most 64. Raises ArgumentError for what cannot be compared.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    of_model = ""
    if model is None:
        model = random_model()
        of_model = " as tiedgpt.testing.random_model(), since no model was given"
    if ids is None:
        config = model.config
        length = min(config.n_ctx, 64)
        ids = np.random.default_rng(0).integers(config.vocab_size, size=(2, length))
    try:
        report = compare(model, theirs, ids, targets)
    except NothingCompared as error:  # nothing was seen to be the same, so the assertion fails
        raise AssertionError(str(error)) from None
    if report.same is None:
        raise AssertionError(
            f"not enough was compared to say that it is the same GPT-2{of_model}\n\n{report}"
        )
    if not report.same:
        raise AssertionError(f"not the same GPT-2{of_model}\n\n{report}")


def assert_vectors(answers: Mapping[str, Any]) -> None:
    """Raise AssertionError if an answer to the reference values is wrong, with what is wrong in it.

    answers: the name of a case of tests/vectors/v2 -> the answer of another GPT-2: an array, nested
    lists, or a text. Cases that are not given are not looked at. Raises ArgumentError if none is
    given, and for a name that is no case.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    report = judge(answers)
    if report["wrong"] == 0:
        return
    lines = [report["sentence"], ""]
    for case in report["cases"]:
        if case["status"] == "wrong":
            lines.append(f"{case['name']}: {case['sentence']}")
    # For each group of cases, such as encode: what explains all answers of the group.
    for group, mistakes in report["mistakes"].items():
        lines += [f"{group}: {sentence}" for sentence in mistakes]
    raise AssertionError("\n".join(lines))


with suppress(ImportError):  # only the fixture needs pytest
    import pytest

    @pytest.fixture(params=["tied", "untied"])
    def tiny_gpt2(request: pytest.FixtureRequest) -> GPT2:
        """random_model(), once tied and once untied."""
        return random_model(TINY.with_head(request.param))
