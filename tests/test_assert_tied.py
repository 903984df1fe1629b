"""assert_tied: it passes on tied models, fails on each way to lose the tie, and changes nothing.

TorchModel is a tied language model in torch: an embedding, a layer with dropout, and a head.
"""

import copy
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from tiedgpt import GPT2
from tiedgpt.errors import ArgumentError
from tiedgpt.gpt2.parameters import parameter_shapes, unflatten
from tiedgpt.testing import assert_tied, random_model
from tiedgpt.training.optimizer import AdamW

V = 13  # tokens


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def tied(torch):
    """A tied model of torch, with the methods that models of transformers have."""

    class TorchModel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = torch.nn.Embedding(V, 5)
            self.block = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Dropout(0.5))
            self.lm_head = torch.nn.Linear(5, V, bias=False)
            self.lm_head.weight = self.wte.weight

        def forward(self, ids):
            return self.lm_head(self.block(self.wte(ids)))

        def get_input_embeddings(self):
            return self.wte

        def get_output_embeddings(self):
            return self.lm_head

    torch.manual_seed(0)
    return TorchModel()


def adam(torch, model):
    """An optimizer that has done a step, so that it has a state."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.tensor([[1, 2]])).sum().backward()
    optimizer.step()
    return optimizer


def test_a_tied_module(torch, tied):
    assert_tied(tied)
    assert_tied(tied, torch.optim.SGD(tied.parameters(), lr=0.1))
    assert_tied(tied, adam(torch, tied), torch.tensor([[3, 4, 5]]))


# Ways to lose the tie. Each changes the model, and may return an optimizer.


def copies(torch, model):
    model.lm_head.weight = torch.nn.Parameter(model.wte.weight.detach().clone())


def deepcopies_the_head(torch, model):
    model.lm_head = copy.deepcopy(model.lm_head)


def has_other_values(torch, model):
    model.lm_head = torch.nn.Linear(5, V)


def detaches_the_matrix(torch, model):
    del model.lm_head.weight
    model.lm_head.weight = model.wte.weight.detach()


def detaches_in_forward(torch, model):
    model.lm_head.forward = lambda x: x @ model.lm_head.weight.detach().T


def detaches_the_input(torch, model):
    model.wte.register_forward_hook(lambda module, args, output: output.detach())


def has_a_new_parameter(torch, model):
    model.lm_head.weight = torch.nn.Parameter(model.wte.weight.detach())


def freezes(torch, model):
    model.wte.weight.requires_grad = False


def holds_two_of_one_memory(torch, model):
    twin = torch.nn.Parameter(model.wte.weight.detach())
    return torch.optim.SGD([*model.parameters(), twin], lr=0.1)


def was_made_before_the_tie(torch, model):
    old_head = torch.nn.Parameter(torch.ones(V, 5))
    return torch.optim.SGD([*model.parameters(), old_head], lr=0.1)


def holds_none(torch, model):
    return torch.optim.SGD(model.block.parameters(), lr=0.1)


FAILS = {  # -> how the error begins
    copies: r"storage: .*they differ by up to 0$",
    deepcopies_the_head: r"storage: .*they differ by up to 0$",
    has_other_values: r"storage: .*they differ by up to \d\.\d",
    detaches_the_matrix: "gradient: nothing of it comes from the output",
    detaches_in_forward: "gradient: nothing of it comes from the output",
    detaches_the_input: "gradient: nothing of it comes from the input",
    has_a_new_parameter: "gradient: nothing of it comes from the output",
    freezes: "gradient: .*requires_grad=False",
    holds_two_of_one_memory: r"optimizer: .*another \[13, 5\]",
    was_made_before_the_tie: r"optimizer: .*another \[13, 5\]",
    holds_none: "optimizer: it holds the matrix 0 times",
}


@pytest.mark.parametrize("lose_the_tie", FAILS)
def test_the_error_says_which_failed(torch, tied, lose_the_tie):
    optimizer = lose_the_tie(torch, tied)
    with pytest.raises(AssertionError, match=f"^{FAILS[lose_the_tie]}"):
        assert_tied(tied, optimizer)


def test_an_optimizer_whose_step_changes_one_side(torch, tied):
    """The output matrix is a view, which the module makes anew from another tensor after a step."""

    class Sgd(torch.optim.SGD):
        def step(self):
            super().step()
            tied.lm_head = copy.deepcopy(tied.lm_head)
            tied.lm_head.weight.data += 1

    with pytest.raises(AssertionError, match=r"^optimizer: after one step, .* differ"):
        assert_tied(tied, Sgd(tied.parameters(), lr=0.1))


def state_of(torch, model, optimizer):
    """All that assert_tied must leave as it was."""
    parameters = list(model.parameters())
    return {
        "objects": [id(each) for each in parameters],
        "memory": [each.data_ptr() for each in parameters],
        "values": [each.tolist() for each in parameters],
        "gradients": [None if each.grad is None else each.grad.tolist() for each in parameters],
        "modes": [part.training for part in model.modules()],
        "state": repr(optimizer.state_dict()),
        "groups": [id(group) for group in optimizer.param_groups],
        "random": torch.get_rng_state().tolist(),
        "gradients are on": torch.is_grad_enabled(),
    }


@pytest.mark.parametrize("lose_the_tie", [None, detaches_in_forward])
def test_all_is_as_before(torch, tied, lose_the_tie):
    optimizer = adam(torch, tied)
    tied.block.eval()  # the other parts are in training
    if lose_the_tie:
        lose_the_tie(torch, tied)
    before = state_of(torch, tied, optimizer)
    with torch.no_grad():
        try:
            assert_tied(tied, optimizer)
        except AssertionError:
            assert lose_the_tie
    assert state_of(torch, tied, optimizer) == before


def test_a_fresh_optimizer_stays_fresh(torch, tied):
    optimizer = torch.optim.AdamW(tied.parameters())
    assert_tied(tied, optimizer)
    assert not optimizer.state


def test_matrices_that_are_given(torch):
    """One parameter that is used twice, and looked up by its index."""

    class OneMatrix(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.W = torch.nn.Parameter(torch.randn(V, 5))

        def forward(self, ids):
            return (torch.tanh(self.W[ids]) @ self.W.T,)

    module = OneMatrix()
    assert_tied(module, torch.optim.SGD(module.parameters()), matrices=(module.W, module.W))
    with pytest.raises(ArgumentError, match=r"OneMatrix\.get_input_embeddings\(\).*matrices="):
        assert_tied(module)


def test_an_output_matrix_that_is_a_transposed_view(torch, tied):
    wte = tied.wte.weight
    assert_tied(tied, torch.optim.SGD(tied.parameters(), lr=0.1), matrices=(wte, wte.T))
    with pytest.raises(AssertionError, match=r"^storage: "):
        assert_tied(tied, matrices=(wte, wte.T.clone()))


def test_rows_that_index_select_takes(torch, tied):
    tied.wte.forward = lambda ids: tied.wte.weight.index_select(0, ids.flatten()).view(
        *ids.shape, 5
    )
    assert_tied(tied)


def test_in_inference_mode(torch, tied):
    with torch.inference_mode():
        assert_tied(tied, torch.optim.SGD(tied.parameters(), lr=0.1))


def test_what_a_pass_changes_is_as_before(torch, tied):
    """A buffer that counts passes, and a matrix whose long rows each lookup shortens."""
    tied.register_buffer("passes", torch.zeros(1))
    tied.wte.max_norm = 0.5
    tied.wte.register_forward_hook(lambda module, args, output: tied.passes.add_(1) and None)
    before = {name: value.clone() for name, value in tied.state_dict().items()}
    assert_tied(tied)
    for name, value in tied.state_dict().items():
        assert value.equal(before[name]), name


def test_an_optimizer_inside_another_one(torch, tied):
    """As accelerate wraps one: state and groups are those of the inner optimizer."""

    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer = optimizer

        state = property(
            lambda self: self.optimizer.state,
            lambda self, state: setattr(self.optimizer, "state", state),
        )
        param_groups = property(
            lambda self: self.optimizer.param_groups,
            lambda self, groups: setattr(self.optimizer, "param_groups", groups),
        )

        def step(self):
            self.optimizer.step()

    optimizer = adam(torch, tied)
    before = state_of(torch, tied, optimizer)
    assert_tied(tied, Wrapper(optimizer))
    assert state_of(torch, tied, optimizer) == before


def test_what_torch_cannot_compute_is_an_argument_error(torch, tied):
    with pytest.raises(ArgumentError, match=r"optimizer failed .*closure"):
        assert_tied(tied, torch.optim.LBFGS(tied.parameters()))
    with pytest.raises(ArgumentError, match="optimizer of torch, got 'adam'"):
        assert_tied(tied, "adam")
    for matrices in ("wte", (1, 2), (tied.wte.weight,)):
        with pytest.raises(ArgumentError, match="matrices must be"):
            assert_tied(tied, matrices=matrices)
    checkpoint = torch.utils.checkpoint.checkpoint
    block = tied.block.forward
    tied.block.forward = lambda x: checkpoint(block, x, use_reentrant=True)
    with pytest.raises(ArgumentError, match="cannot compute the gradient"):
        assert_tied(tied)


@pytest.mark.parametrize(
    "batch", [np.zeros(3), ("a",), {"input": 1}], ids=["array", "tuple", "dict"]
)
def test_a_batch_that_the_module_cannot_read(tied, batch):
    with pytest.raises(ArgumentError, match=r"failed on the batch: TypeError.*pass batch="):
        assert_tied(tied, batch=batch)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_a_module_in_another_dtype(torch, tied, dtype):
    assert_tied(tied.to(getattr(torch, dtype)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "class_name"),
    [("GPT2", "GPT2LMHeadModel"), ("Llama", "LlamaForCausalLM"), ("Gemma", "GemmaForCausalLM")],
)
def test_models_of_transformers(torch, kind, class_name):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    if kind != "GPT2":
        sizes |= {"intermediate_size": 64, "num_key_value_heads": 1, "head_dim": 16}
    config_class = getattr(transformers, f"{kind}Config")
    model_class = getattr(transformers, class_name)
    for is_tied in (True, False):
        config = config_class(vocab_size=99, tie_word_embeddings=is_tied, **sizes)
        model = model_class(config)
        optimizer = torch.optim.AdamW(model.parameters())
        if is_tied:
            ids = torch.tensor([[5, 6, 7]])
            assert_tied(model, optimizer)
            assert_tied(model, optimizer, {"input_ids": ids, "labels": ids})
        else:
            with pytest.raises(AssertionError, match=r"^storage: "):
                assert_tied(model, optimizer)


# Our own GPT-2


def trained(model: GPT2, shapes=None) -> tuple[GPT2, AdamW]:
    """The same model as views of one vector, and an AdamW of this vector."""
    shapes = shapes or parameter_shapes(model.config)
    flat = np.concatenate([model.parameters[name].ravel() for name in shapes])
    views = unflatten(flat, shapes)
    return GPT2(model.config, {**model.parameters, **views}), AdamW(flat, shapes, (0.9, 0.99), 0.1)


def test_our_gpt2():
    model, optimizer = trained(random_model())
    before = [optimizer.flat.copy(), optimizer.m.copy(), optimizer.v.copy(), optimizer.steps]
    assert_tied(model)
    assert_tied(model, optimizer, [[1, 2, 3], [4, 5, 6]])
    after = [optimizer.flat, optimizer.m, optimizer.v, optimizer.steps]
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)


def test_an_untied_gpt2_of_ours():
    with pytest.raises(AssertionError, match=r"^storage: "):
        assert_tied(random_model().untie("copy"))


def test_an_optimizer_of_another_gpt2_of_ours():
    model, _ = trained(random_model())
    _, optimizer = trained(random_model())
    with pytest.raises(AssertionError, match=r"^optimizer: "):
        assert_tied(model, optimizer)


@pytest.mark.parametrize("model", [None, "gpt2", np.zeros((3, 4))], ids=["None", "name", "array"])
def test_what_is_no_model(model):
    with pytest.raises(ArgumentError, match=r"expected a GPT2"):
        assert_tied(model)


# The plugin

TESTS_OF_A_USER = """
import sys

def test_nothing_is_imported():
    ours = [name for name in sys.modules if name.startswith("tiedgpt.")]
    assert ours == ["tiedgpt.pytest_plugin"]
    assert "numpy" not in sys.modules

def test_fixtures(assert_same_gpt2, assert_tied):
    from tiedgpt.testing import random_model
    assert_same_gpt2(random_model())
    assert_tied(random_model())
    assert "torch" not in sys.modules
"""


def test_the_fixtures_of_the_plugin(tmp_path):
    (tmp_path / "test_user.py").write_text(TESTS_OF_A_USER)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tiedgpt.pytest_plugin",
        "-p",
        "no:cacheprovider",
    ]
    # Another installation of tiedgpt may bring the same plugin.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert re.search("2 passed", done.stdout), done.stdout


def test_pytest_shows_the_line_of_the_test_alone(torch, tied):
    tied.lm_head.weight = torch.nn.Parameter(torch.ones(V, 5))
    with pytest.raises(AssertionError) as caught:
        assert_tied(tied)
    shown = caught.traceback.filter(caught)
    assert [entry.path.name for entry in shown] == ["test_assert_tied.py"]


def test_the_entry_point_names_the_plugin():
    pyproject = os.path.join(os.path.dirname(__file__), "..", "pyproject.toml")
    with open(pyproject, encoding="utf-8") as file:
        assert '[project.entry-points.pytest11]\ntiedgpt = "tiedgpt.pytest_plugin"\n' in file.read()
