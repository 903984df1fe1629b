"""What `compare` says of mistakes with the tie."""

import numpy as np
import pytest

import tiedgpt
from tiedgpt import compare
from tiedgpt.testing import TINY, random_model

MODEL = random_model()
IDS = np.random.default_rng(1).integers(TINY.vocab_size, size=(2, 9))
TARGETS = np.random.default_rng(2).integers(TINY.vocab_size, size=(2, 9))


def gradients_apart():
    """The gradients of wte as embedding, and of wte as output matrix.

    In an untied copy of the model, these are the gradients of two parameters.
    """
    _, gradients = tiedgpt.loss_and_gradients(MODEL.untie("copy"), IDS, TARGETS)
    return gradients["wte.weight"], gradients["lm_head.weight"]


def test_the_gradient_of_a_tied_wte_is_the_sum():
    as_embedding, as_output = gradients_apart()
    report = compare(MODEL, {"wte.weight": as_embedding + as_output}, IDS, TARGETS)
    assert report.first is None
    assert report.diagnosis == []


def test_the_output_matrixs_gradient_alone_is_named():
    _, as_output = gradients_apart()
    report = compare(MODEL, {"wte.weight": as_output}, IDS, TARGETS)
    assert report.diagnosis == [
        "wte.weight: yours is the gradient of the output matrix, without the embedding's; "
        "a tied wte gets the sum of both"
    ]


def test_the_embeddings_gradient_alone_is_named():
    as_embedding, _ = gradients_apart()
    report = compare(MODEL, {"wte.weight": as_embedding}, IDS, TARGETS)
    assert report.diagnosis == [
        "wte.weight: yours is the gradient of the embedding, without the output matrix's; "
        "a tied wte gets the sum of both"
    ]


def test_gradients_of_the_sum_of_the_losses_are_named():
    _, gradients = tiedgpt.loss_and_gradients(MODEL, IDS, TARGETS)
    n = TARGETS.size
    summed = {name: n * gradient for name, gradient in gradients.items()}
    report = compare(MODEL, summed, IDS, TARGETS)
    assert report.diagnosis == [
        f"gradients: yours are {n} times as large, those of the sum of the {n} losses; "
        "expected those of their mean"
    ]

    # If one of them is wrong in another way, the sum of the losses does not explain them.
    one_is_three_times_as_large = {**summed, "ln_f.bias": 3 * gradients["ln_f.bias"]}
    assert compare(MODEL, one_is_three_times_as_large, IDS, TARGETS).diagnosis == []


def test_beside_a_missing_part_few_digits_are_not_spoken_of():
    _, gradients = tiedgpt.loss_and_gradients(MODEL, IDS, TARGETS)
    _, as_output = gradients_apart()
    theirs = {"ln_f.bias": gradients["ln_f.bias"].round(3), "wte.weight": as_output}
    report = compare(MODEL, theirs, IDS, TARGETS)
    assert report.first.name == "ln_f.bias"
    (sentence,) = report.diagnosis
    assert "the output matrix, without the embedding's" in sentence
    printed = {name: gradients[name].round(3) for name in ("ln_f.bias", "ln_f.weight")}
    (sentence,) = compare(MODEL, printed, IDS, TARGETS).diagnosis
    assert sentence.startswith("ln_f.bias: yours has no more than ")
    assert sentence.endswith("print more")
    printed["ln_f.bias"] = gradients["ln_f.bias"]  # the first one in the backward pass agrees
    (sentence,) = compare(MODEL, printed, IDS, TARGETS).diagnosis
    assert sentence.startswith("ln_f.weight: yours has no more than ")


def test_another_wrong_gradient_is_not_explained():
    as_embedding, as_output = gradients_apart()
    report = compare(MODEL, {"wte.weight": as_embedding + 2 * as_output}, IDS, TARGETS)
    assert report.first.name == "wte.weight"
    assert report.diagnosis == []


def test_an_untied_model_has_the_two_gradients():
    as_embedding, as_output = gradients_apart()
    gradients = {"wte.weight": as_embedding, "lm_head.weight": as_output}
    report = compare(MODEL.untie("copy"), gradients, IDS, TARGETS)
    assert report.first is None
    order_of_the_backward_pass = ["lm_head.weight", "wte.weight"]
    assert [row.name for row in report.rows] == order_of_the_backward_pass


@pytest.mark.parametrize("name", ["wte", "lm_head"])
def test_of_a_module_with_one_matrix_by_a_known_name_no_tie_is_judged(name):
    """Its logits are wrong, and whether the matrix is one with another is not known."""
    torch = pytest.importorskip("torch", reason="needs pip install -e .[parity]")

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            setattr(self, name, torch.nn.Linear(TINY.n_embd, TINY.vocab_size, bias=False))

        def forward(self, ids):
            return torch.from_numpy(MODEL(ids.numpy())) + 1

    report = compare(MODEL, Module(), IDS, trials=0)
    assert report.first.name == "logits"
    assert "lm_head" not in str(report)


def test_a_module_whose_output_matrix_is_not_its_wte_is_named():
    """The module's config says tied, but its lm_head.weight differs from its wte.weight."""
    torch = pytest.importorskip("torch", reason="needs pip install -e .[parity]")
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(**MODEL.config.to_json(), attn_implementation="eager")
    module = transformers.GPT2LMHeadModel(config)
    state = {}
    for name, array in MODEL.parameters.items():
        state[f"transformer.{name}"] = torch.from_numpy(array)
    # Not strict, because the state has no lm_head.weight: in the module, it is wte.
    module.load_state_dict(state, strict=False)
    assert compare(MODEL, module, IDS).first is None

    # Give the module an output matrix of its own, which differs from wte in one column.
    with torch.no_grad():
        changed = module.lm_head.weight.clone()
        changed[:, 0] += 1
        module.lm_head.weight = torch.nn.Parameter(changed)
    report = compare(MODEL, module, IDS)
    assert report.first.name == "logits"
    assert report.diagnosis[-1] == (
        "logits: yours has an lm_head.weight that is not its wte.weight, though its config says "
        "tied"
    )
