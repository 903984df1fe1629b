"""assert_tied: it passes on tied models, fails on each way to lose the tie, and changes nothing.

TorchModel is a tied language model in torch: an embedding, a layer with dropout, and a head.
"""

import copy
import os
import subprocess
import sys
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from tiedgpt import GPT2
from tiedgpt.errors import ArgumentError
from tiedgpt.gpt2.parameters import parameter_shapes, unflatten
from tiedgpt.testing import TINY, assert_tied, random_model, tie
from tiedgpt.testing.tie import check_columns, two_batches
from tiedgpt.training.optimizer import AdamW

V = 13  # tokens
rng = np.random.default_rng(0)


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


def holds_its_transpose_too(torch, model):
    twin = torch.nn.Parameter(model.wte.weight.detach().T)
    return torch.optim.SGD([*model.parameters(), twin], lr=0.1)


def was_made_before_the_tie(torch, model):
    old_head = torch.nn.Parameter(torch.ones(V, 5))
    return torch.optim.SGD([*model.parameters(), old_head], lr=0.1)


def holds_none(torch, model):
    return torch.optim.SGD(model.block.parameters(), lr=0.1)


def has_one_other_number(torch, model):
    copies(torch, model)
    model.lm_head.weight.data[12, 4] += 1.25


def has_another_shape(torch, model):
    model.lm_head = torch.nn.Linear(5, V + 1)


def holds_it_twice(torch, model):
    optimizer = torch.optim.SGD(model.block.parameters(), lr=0.1)
    for _ in range(2):
        group = {**optimizer.param_groups[0], "params": [model.wte.weight]}
        optimizer.param_groups.append(group)
    return optimizer


TWO_TENSORS = r"storage: input and output matrix are two tensors, \[13, 5\] and"
STALE = (
    r"optimizer: beside the matrix it holds another \[13, 5\], which is not a parameter of the "
    r"module: make the optimizer after the tie$"
)
FAILS = {  # -> how the error begins
    copies: rf"{TWO_TENSORS} \[13, 5\]; they differ by up to 0$",
    deepcopies_the_head: rf"{TWO_TENSORS} \[13, 5\]; they differ by up to 0$",
    has_one_other_number: rf"{TWO_TENSORS} \[13, 5\]; they differ by up to 1\.25$",
    has_another_shape: rf"{TWO_TENSORS} \[14, 5\]$",
    has_other_values: rf"{TWO_TENSORS} \[13, 5\]; they differ by up to \d\.\d\d",
    detaches_the_matrix: "gradient: nothing of it comes from the output",
    detaches_in_forward: "gradient: nothing of it comes from the output",
    detaches_the_input: "gradient: nothing of it comes from the input",
    has_a_new_parameter: "gradient: nothing of it comes from the output",
    freezes: "gradient: the input matrix has requires_grad=False$",
    holds_two_of_one_memory: STALE,
    holds_its_transpose_too: STALE,
    was_made_before_the_tie: STALE,
    holds_none: "optimizer: it holds the matrix 0 times; expected once$",
    holds_it_twice: "optimizer: it holds the matrix 2 times; expected once$",
}


@pytest.mark.parametrize("lose_the_tie", FAILS)
def test_the_error_says_which_failed(torch, tied, lose_the_tie):
    optimizer = lose_the_tie(torch, tied)
    with pytest.raises(AssertionError, match=f"^{FAILS[lose_the_tie]}"):
        assert_tied(tied, optimizer)


@pytest.mark.parametrize("batch", [None, [[1, 2, 3]]])
def test_logits_that_are_detached_depend_on_nothing(torch, tied, batch):
    tied.lm_head.register_forward_hook(lambda module, args, output: output.detach())
    with pytest.raises(AssertionError, match="logits do not depend on any parameter"):
        assert_tied(tied, batch=None if batch is None else torch.tensor(batch))


def test_a_detached_input_is_seen_with_a_batch_of_the_user(torch, tied):
    detaches_the_input(torch, tied)
    with pytest.raises(AssertionError) as caught:
        assert_tied(tied, batch=torch.tensor([[1, 2, 3]]))
    assert str(caught.value) == (
        "gradient: nothing of it comes from the input: the input is detached, or reads another "
        "parameter"
    )


def test_an_optimizer_whose_step_changes_one_side(torch, tied):
    """The output matrix is a view, which the module makes anew from another tensor after a step."""

    class Sgd(torch.optim.SGD):
        def step(self):
            super().step()
            tied.lm_head = copy.deepcopy(tied.lm_head)
            tied.lm_head.weight.data += 1

    message = r"^optimizer: after one step, input and output matrix differ$"
    with pytest.raises(AssertionError, match=message):
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


def test_a_module_is_looked_at_without_dropout(torch, tied):
    modes = []
    for part in tied.modules():
        part.register_forward_hook(lambda part, args, output: modes.append(part.training))
    assert_tied(tied, torch.optim.SGD(tied.parameters(), lr=0.1))
    assert modes
    assert not any(modes)
    assert tied.block[1].training


def test_a_setting_that_a_step_changes_in_place_is_as_before(torch, tied):
    """Such as a learning rate that is a tensor, or a list of losses."""

    class Sgd(torch.optim.SGD):
        def step(self):
            super().step()
            self.param_groups[0]["history"].append(1)
            self.count = self.new = 1

    optimizer = Sgd(tied.parameters(), lr=0.1)
    optimizer.param_groups[0]["history"] = [0]
    optimizer.count = 0
    assert_tied(tied, optimizer)
    assert optimizer.param_groups[0]["history"] == [0]
    assert optimizer.count == 0
    assert not hasattr(optimizer, "new")


def test_a_parameter_of_the_optimizer_that_is_not_in_the_module_is_as_before(torch, tied):
    """It has another shape than the matrix, so it is no old head."""
    other = torch.nn.Parameter(torch.ones(3))
    other.grad = torch.ones(3)
    assert_tied(tied, torch.optim.SGD([*tied.parameters(), other], lr=0.1, weight_decay=0.5))
    assert other.tolist() == other.grad.tolist() == [1, 1, 1]


def test_a_step_that_changes_nothing_shows_nothing(torch, tied):
    with pytest.raises(AssertionError) as caught:
        assert_tied(tied, torch.optim.SGD(tied.parameters(), lr=0.0))
    assert str(caught.value) == (
        "optimizer: a step does not change the matrix, so it does not show that the matrix stays "
        "one; is the learning rate 0?"
    )


def test_gradients_of_the_user_are_not_used_in_the_step(torch, tied):
    """Only those of the loss are, and they are there again afterwards."""
    seen = []

    class Sgd(torch.optim.SGD):
        def step(self):
            seen.extend(each.grad for group in self.param_groups for each in group["params"])
            super().step()

    frozen = tied.block[0].bias
    frozen.requires_grad = False
    frozen.grad = torch.ones(5)
    optimizer = Sgd(tied.parameters(), lr=0.1)
    assert_tied(tied, optimizer)
    assert sum(gradient is None for gradient in seen) == 1
    assert frozen.grad.tolist() == [1, 1, 1, 1, 1]
    assert tied.wte.weight.grad is None


def test_each_group_of_an_optimizer_is_looked_at(torch, tied):
    groups = [{"params": tied.block.parameters()}, {"params": [tied.wte.weight]}]
    assert_tied(tied, torch.optim.SGD(groups, lr=0.1))
    twin = torch.nn.Parameter(tied.wte.weight.detach())
    groups = [{"params": [tied.wte.weight]}, {"params": [twin]}]
    with pytest.raises(AssertionError, match=f"^{STALE}"):
        assert_tied(tied, torch.optim.SGD(groups, lr=0.1))


def test_a_fresh_optimizer_stays_fresh(torch, tied):
    optimizer = torch.optim.AdamW(tied.parameters())
    state, groups = optimizer.state, optimizer.param_groups
    assert_tied(tied, optimizer)
    assert not optimizer.state
    assert optimizer.state is state, "it has its own dict again, not a copy"
    assert optimizer.param_groups is groups


# Ways to read a row of W for each token, and ways that look like one


def product_of_ones(torch, W, ids):
    return torch.nn.functional.one_hot(ids, V).to(W.dtype) @ W


def bags_of_one(torch, W, ids):
    bags = torch.nn.functional.embedding_bag(ids.reshape(-1, 1), W, mode="sum")
    return bags.reshape(*ids.shape, 5)


def gathered(torch, W, ids):
    return W.gather(0, ids.reshape(-1, 1).expand(-1, 5)).reshape(*ids.shape, 5)


def taken_along_a_dimension(torch, W, ids):
    return torch.take_along_dim(W, ids.reshape(-1, 1), dim=0).reshape(*ids.shape, 5)


LOOKUPS = {
    "W[ids]": lambda torch, W, ids: W[ids],
    "W[ids, :]": lambda torch, W, ids: W[ids, :],
    "index_select": lambda torch, W, ids: W.index_select(0, ids.flatten()).view(*ids.shape, 5),
    "sparse": lambda torch, W, ids: torch.nn.functional.embedding(ids, W, sparse=True),
    "rows of length 1": lambda torch, W, ids: torch.nn.functional.normalize(W, dim=1)[ids],
    "product of ones": product_of_ones,
    "bags of one": bags_of_one,
    "gather": gathered,
    "take_along_dim": taken_along_a_dimension,
}


@pytest.fixture
def one_matrix(torch):
    """A module with one parameter, W, whose two uses are functions: lookup and unembed."""

    class OneMatrix(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.W = torch.nn.Parameter(torch.randn(V, 5))
            self.other = torch.nn.Parameter(torch.randn(V, 5))
            self.lookup = lambda W, ids: W[ids]
            self.unembed = lambda W, x: x @ W.T

        def forward(self, ids):
            return self.unembed(self.W, torch.tanh(self.lookup(self.W, ids)))

    torch.manual_seed(0)
    return OneMatrix()


def assert_one_matrix(module, batch=None):
    assert_tied(module, batch=batch, matrices=(module.W, module.W))


@pytest.mark.parametrize("name", LOOKUPS)
def test_each_way_to_look_rows_up_is_an_input(torch, one_matrix, name):
    one_matrix.lookup = lambda W, ids: LOOKUPS[name](torch, W, ids)
    assert_one_matrix(one_matrix)
    one_matrix.lookup = lambda W, ids: LOOKUPS[name](torch, one_matrix.other, ids)
    with pytest.raises(AssertionError, match=r"^gradient: nothing of it comes from the input"):
        assert_one_matrix(one_matrix)
    one_matrix.lookup = lambda W, ids: LOOKUPS[name](torch, W, ids)
    one_matrix.unembed = lambda W, x: x @ one_matrix.other.T
    with pytest.raises(AssertionError, match=r"^gradient: nothing of it comes from the output"):
        assert_one_matrix(one_matrix)


def test_a_lookup_that_torch_compiles(torch, one_matrix):
    """A compiled module may allow one gradient for each pass."""
    compiled = torch.compile(one_matrix, backend="aot_eager")
    assert_tied(compiled, matrices=(one_matrix.W, one_matrix.W))


OUTPUTS = {
    "scaled, with a bias": lambda torch, W, x: 3 - 2 * (x @ W.T),
    "a soft bound": lambda torch, W, x: 30 * torch.tanh(x @ W.T / 30),
    "log-probabilities": lambda torch, W, x: torch.log_softmax(x @ W.T, dim=-1),
    "less the largest": lambda torch, W, x: x @ W.T - (x @ W.T).amax(-1, keepdim=True),
    "without the last tokens": lambda torch, W, x: (x @ W.T)[..., :10],
    "of the last position": lambda torch, W, x: x[:, [-1]] @ W.T,
    "flat": lambda torch, W, x: (x @ W.T).flatten(0, 1),
    "a dict": lambda torch, W, x: {"logits": x @ W.T, "loss": None},
    "loss and logits": lambda torch, W, x: (x.sum(), x @ W.T),
    "a list": lambda torch, W, x: [None, x @ W.T],
    "a number and logits": lambda torch, W, x: (0.5, x @ W.T),
    "four tokens": lambda torch, W, x: (x @ W.T)[..., :4],
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_each_way_to_return_logits(torch, one_matrix, name):
    one_matrix.unembed = lambda W, x: OUTPUTS[name](torch, W, x)
    assert_one_matrix(one_matrix)
    one_matrix.unembed = lambda W, x: OUTPUTS[name](torch, one_matrix.other, x)
    with pytest.raises(AssertionError, match=r"^gradient: nothing of it comes from the output"):
        assert_one_matrix(one_matrix)
    one_matrix.unembed = lambda W, x: OUTPUTS[name](torch, W, x)
    one_matrix.lookup = lambda W, ids: one_matrix.other[ids]
    with pytest.raises(AssertionError, match=r"^gradient: nothing of it comes from the input"):
        assert_one_matrix(one_matrix)


HALVES = {  # heads of which a part is another parameter, and the first token of that part
    "the last rows": (lambda torch, W, other: torch.cat([W[:6], other[6:]]), 6),
    "the first rows": (lambda torch, W, other: torch.cat([other[:6], W[6:]]), 0),
    "one row": (lambda torch, W, other: torch.cat([W[:7], other[7:8], W[8:]]), 7),
    "detached rows": (lambda torch, W, other: torch.cat([W[:6], W[6:].detach()]), 6),
    "each second row": (
        lambda torch, W, other: torch.where(torch.arange(V)[:, None] % 2 == 0, W, other),
        1,
    ),
    "another token's row": (lambda torch, W, other: torch.cat([W[:12], W[8:9]]), 12),
}


@pytest.mark.parametrize("name", HALVES)
def test_a_head_of_which_a_part_is_another_parameter(torch, one_matrix, name):
    head, first = HALVES[name]
    one_matrix.unembed = lambda W, x: x @ head(torch, W, one_matrix.other).T
    message = (
        rf"^gradient: nothing of it comes from the output of \d+ of 13 tokens, the first is token "
        rf"{first}: the output is detached, or reads another parameter$"
    )
    with pytest.raises(AssertionError, match=message):
        assert_one_matrix(one_matrix)


READ = [0, 1, 4, 5, 8, 9]  # the tokens of assert_tied's own batches, where V is 13
# Tables of which a part is another parameter, and how many of READ are in that part
INPUT_HALVES = {
    "the last rows": (lambda torch, W, other: torch.cat([W[:6], other[6:]]), 2),
    "the first rows": (lambda torch, W, other: torch.cat([other[:6], W[6:]]), 4),
    "detached rows": (lambda torch, W, other: torch.cat([W[:6], W[6:].detach()]), 2),
    "all rows but one": (lambda torch, W, other: torch.cat([W[:1], other[1:]]), 5),
    "one row for all": (lambda torch, W, other: W[:1].expand(V, 5), 5),
}


@pytest.mark.parametrize("name", INPUT_HALVES)
def test_an_input_of_which_a_part_is_another_parameter(torch, one_matrix, name):
    table, count = INPUT_HALVES[name]
    one_matrix.lookup = lambda W, ids: table(torch, W, one_matrix.other)[ids]
    message = f"^gradient: nothing of it comes from the input of {count} of {len(READ)} tokens"
    with pytest.raises(AssertionError, match=message):
        assert_one_matrix(one_matrix)


@pytest.mark.parametrize("token", READ)
def test_the_padding_of_an_embedding_has_no_gradient(torch, one_matrix, token):
    embedding = torch.nn.functional.embedding
    one_matrix.lookup = lambda W, ids: embedding(ids, W, padding_idx=token)
    assert_one_matrix(one_matrix)


def test_a_detached_input_beside_an_output_that_reads_a_row_twice(torch, one_matrix):
    """The scale of all logits is of row 0, as if the input read it."""
    one_matrix.lookup = lambda W, ids: W[ids].detach()
    one_matrix.unembed = lambda W, x: W[0].norm() * (x @ W.T)
    with pytest.raises(AssertionError, match=r"^gradient: nothing of it comes from the input of 5"):
        assert_one_matrix(one_matrix)


COLUMNS = {  # the last three of five columns
    "another parameter": lambda torch, W, other: torch.cat([W[:, :2], other[:, 2:]], 1),
    "detached": lambda torch, W, other: torch.cat([W[:, :2], W[:, 2:].detach()], 1),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_that_are_another_parameter(torch, one_matrix, name):
    def mixed(W):
        return COLUMNS[name](torch, W, one_matrix.other)

    one_matrix.unembed = lambda W, x: x @ mixed(W).T
    message = (
        r"^gradient: nothing of it comes from the output of 3 of 5 columns, the first is column 2: "
        r"the output is detached there, or reads another parameter$"
    )
    for batch in (None, torch.tensor([[1, 2, 3]])):
        with pytest.raises(AssertionError, match=message):
            assert_one_matrix(one_matrix, batch)
    one_matrix.unembed = lambda W, x: x @ W.T
    one_matrix.lookup = lambda W, ids: mixed(W)[ids]
    message = (
        r"^gradient: nothing of it comes from the input of 3 of 5 columns, the first is column 2: "
        r"the input is detached there, or reads another parameter$"
    )
    with pytest.raises(AssertionError, match=message):
        assert_one_matrix(one_matrix)


def test_a_quarter_of_the_columns_may_have_no_gradient(torch):
    has_gradient = torch.ones(3, 8, dtype=torch.bool)  # [tokens, columns]
    has_gradient[:, :2] = False
    check_columns("output", has_gradient)
    has_gradient[:, 2] = False
    with pytest.raises(AssertionError, match=r"output of 3 of 8 columns"):
        check_columns("output", has_gradient)


def test_tokens_without_a_logit_are_not_told(torch, one_matrix):
    one_matrix.unembed = lambda W, x: (x @ one_matrix.other.T)[..., :10]
    message = "gradient: nothing of it comes from the output of 10 of 13 tokens, the first is token"
    with pytest.raises(AssertionError, match=f"^{message} 0: "):
        assert_one_matrix(one_matrix)


def test_a_head_that_has_more_rows(torch, one_matrix):
    one_matrix.unembed = lambda W, x: x @ torch.cat([W, one_matrix.other]).T
    with pytest.raises(AssertionError) as caught:
        assert_one_matrix(one_matrix)
    sentence = "output: the module returns 26 logits for each token, and the matrix has 13 rows"
    assert str(caught.value) == sentence


def test_a_penalty_is_no_output(torch, one_matrix):
    """An untied head, and a loss to which the matrix belongs otherwise."""

    def with_penalty(W, x):
        logits = x @ one_matrix.other.T
        return logits, logits.logsumexp(-1).mean() + W.pow(2).sum()

    one_matrix.unembed = with_penalty
    with pytest.raises(AssertionError, match=r"^gradient: nothing of it comes from the output"):
        assert_one_matrix(one_matrix)
    one_matrix.unembed = lambda W, x: with_penalty(W, x)[1]
    message = (
        r"^the module must return logits of 4 tokens or more: a loss does not show what depends on "
        r"a row\. It returned tensor\("
    )
    with pytest.raises(ArgumentError, match=message):
        assert_one_matrix(one_matrix)


UNCLEAR = {  # -> the module's two uses: each logit depends on rows of tokens that were not read
    "probabilities": (
        lambda W, ids: W[ids].detach(),
        lambda W, x: (x @ W.T).softmax(-1),
    ),
    "an input of all rows, a detached output": (
        lambda W, ids: (W - W.mean(0))[ids],
        lambda W, x: x @ W.detach().T,
    ),
    "the tokens on another axis": (
        lambda W, ids: W[ids],
        lambda W, x: (x @ W.T).transpose(1, 2),
    ),
    "rows in another order": (
        lambda W, ids: W[ids],
        lambda W, x: x @ W.roll(1, dims=0).T,
    ),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_what_cannot_be_told(one_matrix, name):
    one_matrix.lookup, one_matrix.unembed = UNCLEAR[name]
    with pytest.raises(ArgumentError, match=r"the two uses cannot be told apart"):
        assert_one_matrix(one_matrix)


def test_a_batch_of_most_tokens(torch, one_matrix):
    """Of the tokens of a batch nothing can be said of the output."""
    assert_one_matrix(one_matrix, batch=torch.tensor([[1, 2, 3, 9]]))
    with pytest.raises(ArgumentError) as caught:
        assert_one_matrix(one_matrix, batch=torch.arange(12)[None])
    assert str(caught.value) == (
        "the two uses cannot be told apart: each logit depends on the rows of 12 of 13 tokens. "
        "Pass a batch= of fewer tokens, and return logits [..., 13], no probabilities; they are "
        "[1, 12, 13]"
    )


def test_a_batch_of_half_of_the_tokens(torch, one_matrix):
    one_matrix.W = torch.nn.Parameter(torch.randn(12, 5))
    assert_one_matrix(one_matrix, batch=torch.arange(6)[None])
    with pytest.raises(ArgumentError, match=r"rows of 7 of 12 tokens"):
        assert_one_matrix(one_matrix, batch=torch.arange(7)[None])


def test_up_to_12_tokens_all_over_the_vocabulary_are_read(torch):
    for V, tokens in ((4, [0]), (13, [0, 4, 8]), (60, [0, 10, 20, 30, 40, 50])):
        odd, even = two_batches(torch.zeros(V, 1))
        assert odd.unique().tolist() == [token + 1 for token in tokens]
        assert even.unique().tolist() == tokens
        assert even.shape == (len(tokens), 6)
        assert even[:, -1].unique().tolist() == tokens, "each is the last of one sequence"


NOTHING = {
    "no tokens": lambda torch: torch.zeros(2, 0, dtype=torch.long),
    "no sequences": lambda torch: torch.zeros(0, 6, dtype=torch.long),
}


@pytest.mark.parametrize("name", NOTHING)
def test_an_empty_batch_fails(torch, one_matrix, name):
    with pytest.raises(AssertionError, match=r"^gradient: nothing of it comes from"):
        assert_one_matrix(one_matrix, batch=NOTHING[name](torch))


@pytest.mark.parametrize("factor", [0.0, float("nan")])
def test_logits_without_numbers_fail(one_matrix, factor):
    one_matrix.unembed = lambda W, x: factor * (x @ W.T)
    with pytest.raises(AssertionError, match=r"^gradient: "):
        assert_one_matrix(one_matrix)


def test_one_number_of_a_gradient_that_is_nan_fails(torch, one_matrix):
    one_matrix.unembed = lambda W, x: x @ W.T + 0 * torch.sqrt(W[0, 0] - W[0, 0].detach())
    with pytest.raises(AssertionError, match=r"^gradient: it is not finite$"):
        assert_one_matrix(one_matrix)


def test_a_gradient_of_another_parameter_that_is_nan_fails_in_the_step(torch, tied):
    tied.block[0].bias.register_hook(lambda gradient: gradient * float("nan"))
    assert_tied(tied)
    with pytest.raises(AssertionError, match=r"^gradient: it is not finite$"):
        assert_tied(tied, torch.optim.SGD(tied.parameters(), lr=0.1))


@pytest.mark.parametrize("shape", [(3, 5), (1, 5), (0, 5), (13, 0)])
def test_a_matrix_that_is_too_small_fails(torch, one_matrix, shape):
    one_matrix.W = torch.nn.Parameter(torch.ones(shape))
    with pytest.raises((AssertionError, ArgumentError)):
        assert_one_matrix(one_matrix)


def test_a_matrix_of_four_tokens(torch, one_matrix):
    one_matrix.W = torch.nn.Parameter(torch.randn(4, 5))
    assert_one_matrix(one_matrix)


def test_three_logits_are_too_few(one_matrix):
    one_matrix.unembed = lambda W, x: (x @ W.T)[..., :3]
    message = r"^the module must return logits of 4 tokens or more"
    with pytest.raises(ArgumentError, match=message) as caught:
        assert_one_matrix(one_matrix)
    assert len(str(caught.value)) < 200, "what it returned is shown cut"
    one_matrix.unembed = lambda W, x: {"loss": (x @ W.T).sum()}
    with pytest.raises(ArgumentError, match=rf"{message}.* It returned None$"):
        assert_one_matrix(one_matrix)


def test_logits_of_a_single_position(torch, one_matrix):
    one_matrix.unembed = lambda W, x: x[0, -1] @ W.T
    assert_one_matrix(one_matrix, batch=torch.tensor([[1]]))


def test_a_square_matrix_is_not_its_transpose(torch, one_matrix):
    W = one_matrix.W = torch.nn.Parameter(torch.randn(V, V))
    assert_one_matrix(one_matrix)
    with pytest.raises(
        AssertionError, match=r"^storage: .* \[13, 13\] and \[13, 13\]; they differ"
    ):
        assert_tied(one_matrix, matrices=(W, W.T))


def test_a_part_of_the_rows_is_another_tensor(one_matrix):
    W = one_matrix.W
    with pytest.raises(AssertionError, match=r"^storage: .* \[13, 5\] and \[12, 5\]$"):
        assert_tied(one_matrix, matrices=(W, W[:12]))


def test_other_columns_and_large_numbers_are_told(torch, one_matrix):
    W = one_matrix.W
    with pytest.raises(AssertionError, match=r"^storage: .* \[13, 5\] and \[13, 6\]$"):
        assert_tied(one_matrix, matrices=(W, torch.ones(V, 6)))
    large = torch.full((V, 5), 6e4).half()
    with pytest.raises(AssertionError, match=r"they differ by up to 1\.2e\+05$"):
        assert_tied(one_matrix, matrices=(large, -large))


def test_matrices_that_are_given(torch, one_matrix):
    optimizer = torch.optim.SGD([one_matrix.W])
    assert_tied(one_matrix, optimizer, matrices=(one_matrix.W, one_matrix.W))
    one_matrix.get_input_embeddings = lambda: torch.nn.Embedding(V, 5)
    for method in ("get_output_embeddings", "get_input_embeddings"):
        with pytest.raises(ArgumentError) as caught:
            assert_tied(one_matrix)
        sentence = f"OneMatrix.{method}() gives no matrix: pass matrices=(input, output)"
        assert str(caught.value) == sentence
        one_matrix.get_input_embeddings = lambda: None


# What is random, and what has no numbers


def drops_out(torch, x):
    return torch.nn.functional.dropout(x, 0.5, training=True)


def adds_noise(torch, x):
    return x + torch.randn_like(x)


def drops_words(torch, x):
    return x * torch.bernoulli(torch.full_like(x[..., :1], 0.9))


@pytest.mark.parametrize("noise", [drops_out, adds_noise, drops_words])
def test_a_module_that_draws_numbers_in_each_pass(torch, tied, noise):
    tied.wte.register_forward_hook(lambda module, args, output: noise(torch, output))
    before = torch.get_rng_state()
    assert_tied(tied, torch.optim.SGD(tied.parameters(), lr=0.1))
    assert torch.get_rng_state().equal(before)
    detaches_in_forward(torch, tied)
    with pytest.raises(AssertionError, match=r"^gradient: nothing of it comes from the output"):
        assert_tied(tied)


def test_a_module_without_numbers(torch, tied):
    """On the device meta, as a fake tensor, and before its first pass."""
    meta = copy.deepcopy(tied).to("meta")
    message = r"^the matrices have no numbers, so there is nothing to look at: .*meta"
    with pytest.raises(ArgumentError, match=message):
        assert_tied(meta)
    with pytest.raises(ArgumentError, match="have no numbers"):
        assert_tied(tied, matrices=(tied.wte.weight, meta.wte.weight))
    tied.lm_head = torch.nn.LazyLinear(V)
    with pytest.raises(ArgumentError, match="have no numbers"):
        assert_tied(tied)
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.nn.Parameter(torch.randn(V, 5))
    with pytest.raises(ArgumentError, match="have no numbers"):
        assert_tied(tied, matrices=(fake, fake))


def test_an_output_matrix_that_is_a_transposed_view(torch, tied):
    wte = tied.wte.weight
    assert_tied(tied, torch.optim.SGD(tied.parameters(), lr=0.1), matrices=(wte, wte.T))
    with pytest.raises(AssertionError, match=r"^storage: "):
        assert_tied(tied, matrices=(wte, wte.T.clone()))


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


def test_what_a_pass_makes_anew_is_as_before(torch, tied):
    """Attributes, buffers and parameters that forward assigns or registers."""

    def forward(module, args, output):
        module.passes = getattr(module, "passes", 0) + 1
        module.steps = module.steps + 1
        module.mask = torch.ones(6, 6).tril()
        module.register_buffer("positions", torch.arange(6), persistent=False)
        module.block[0].bias = torch.nn.Parameter(torch.zeros(5))
        module.block[0].weight.data = module.block[0].weight.data.clone()

    tied.register_buffer("steps", torch.zeros(1))
    tied.register_buffer("mask", torch.ones(1, 1))
    tied.register_forward_hook(forward)
    before = {name: value.clone() for name, value in tied.state_dict().items()}
    parameters = dict(tied.named_parameters())
    memory = {name: parameter.data_ptr() for name, parameter in parameters.items()}
    assert_tied(tied, torch.optim.SGD(tied.parameters(), lr=0.1))
    after = tied.state_dict()
    assert list(after) == list(before)
    for name, value in before.items():
        assert value.equal(after[name]), name
    for name, parameter in tied.named_parameters():
        assert parameter is parameters[name], name
        assert parameter.data_ptr() == memory[name], name
    assert not hasattr(tied, "passes")
    assert not tied._non_persistent_buffers_set


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
    with pytest.raises(
        ArgumentError, match=r"^the optimizer failed in a step: TypeError: .*closur"
    ):
        assert_tied(tied, torch.optim.LBFGS(tied.parameters()))
    with pytest.raises(ArgumentError, match=r"^expected an optimizer of torch, got 'adam'$"):
        assert_tied(tied, "adam")
    sentence = "^matrices must be the input and the output matrix, got "
    for matrices, got in (("wte", "'wte'"), ((1, 2), r"\(1, 2\)"), ((tied.wte.weight,), r"\(P")):
        with pytest.raises(ArgumentError, match=f"{sentence}{got}"):
            assert_tied(tied, matrices=matrices)
    wte = tied.wte.weight
    for matrices in ((wte, wte[0]), (wte[0], wte), (wte, wte[..., None])):
        with pytest.raises(ArgumentError, match=rf"{sentence}\("):
            assert_tied(tied, matrices=matrices)
    checkpoint = torch.utils.checkpoint.checkpoint
    block = tied.block.forward
    tied.block.forward = lambda x: checkpoint(block, x, use_reentrant=True)
    with pytest.raises(ArgumentError, match=r"^torch cannot compute the gradient: .*reentrant"):
        assert_tied(tied)


@pytest.mark.parametrize(
    "batch", [np.zeros(3), ("a",), {"input": 1}], ids=["array", "tuple", "dict"]
)
def test_a_batch_that_the_module_cannot_read(tied, batch):
    message = (
        r"(?s)^the module failed on the batch: TypeError: .{9,}; pass batch= ids, a tuple of "
        r"arguments or a dict of them$"  # torch's own words, in between, may have several lines
    )
    with pytest.raises(ArgumentError, match=message):
        assert_tied(tied, batch=batch)


@pytest.mark.parametrize(
    "make",
    [tuple, list, lambda ids: {"ids": ids[0]}, lambda ids: MappingProxyType({"ids": ids[0]})],
)
def test_the_arguments_of_a_module(torch, tied, make):
    seen = []
    tied.wte.register_forward_hook(lambda module, given, output: seen.append(given[0].tolist()))
    batch = make([torch.tensor([[1, 2, 3]])])
    assert_tied(tied, torch.optim.SGD(tied.parameters(), lr=0.1), batch=batch)
    assert all(ids == [[1, 2, 3]] for ids in seen)
    assert len(seen) > 1, "in the step of the optimizer, too"


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


@pytest.mark.parametrize("size", [{"n_ctx": 5}, {"vocab_size": 7}], ids=str)
def test_a_small_gpt2_of_ours(size):
    """The usual batch has at most 12 tokens."""
    assert_tied(random_model(replace(TINY, **size)))


def test_an_untied_gpt2_of_ours():
    message = "^storage: W_E and W_U are two arrays: the model is untied$"
    with pytest.raises(AssertionError, match=message):
        assert_tied(random_model().untie("copy"))


def test_a_gpt2_of_ours_without_a_gradient():
    """ln_f ends in zeros, so that no logit depends on anything."""
    model = random_model()
    for name in ("ln_f.weight", "ln_f.bias"):
        model.parameters[name] = np.zeros_like(model.parameters[name])
    model = GPT2(model.config, model.parameters)
    with pytest.raises(AssertionError, match=r"^gradient: nothing of it comes from the input$"):
        assert_tied(model)


def test_a_gpt2_of_ours_in_which_one_use_has_no_gradient():
    """First the gain of ln_f is 0, then all rows that it gets are constant, so that it gives 0."""
    config = replace(TINY, n_layer=1)
    zeros = {name: np.zeros(shape, np.float32) for name, shape in parameter_shapes(config).items()}
    wte = rng.integers(-4, 5, size=(TINY.vocab_size, TINY.n_embd)).astype(np.float32)
    input_is_cut = {"wte.weight": wte, "ln_f.bias": wte[0]}
    output_is_cut = {"wte.weight": wte[:, :1].repeat(TINY.n_embd, axis=1), "ln_f.weight": wte[0]}
    for use, parameters in (("input", input_is_cut), ("output", output_is_cut)):
        message = rf"^gradient: nothing of it comes from the {use}$"
        with pytest.raises(AssertionError, match=message):
            assert_tied(GPT2(config, zeros | parameters))


def test_the_batch_of_a_gpt2_of_ours_is_read():
    size = TINY.vocab_size
    message = rf"^token id {size} is outside the vocabulary of {size} \(0 to {size - 1}\)$"
    with pytest.raises(ArgumentError, match=message):
        assert_tied(random_model(), batch=[[1, size]])


@pytest.mark.parametrize("is_small", [False, True])
def test_a_gradient_of_ours_that_lacks_one_use(monkeypatch, is_small):
    """As a backward pass that forgets the sum of both would have it, or has one of both too large.

    is_small: it is too large by a hundredth.
    """
    model = random_model()
    right = tie.loss_and_gradients

    def lacks_the_output(of_model, ids, targets):
        loss, gradients = right(of_model, ids, targets)
        if of_model.tied:
            _, parts = right(of_model.untie("copy"), ids, targets)
            wrong = 1.01 * gradients["wte.weight"] if is_small else parts["wte.weight"]
            gradients = {**gradients, "wte.weight": wrong}
        return loss, gradients

    monkeypatch.setattr(tie, "loss_and_gradients", lacks_the_output)
    message = "^gradient: it is not the sum of those from input and output$"
    with pytest.raises(AssertionError, match=message):
        assert_tied(model)


def test_a_step_of_ours_that_changes_one_side():
    """The output matrix is made anew in the step. All is as before, though the test fails."""

    class TwoMatrices(GPT2):
        own = None

        @property
        def W_U(self):
            return self.W_E.T if self.own is None else self.own

    class Stepping(AdamW):
        def step(self, gradient, lr):
            model.own = model.W_E.T.copy()
            super().step(gradient, lr)

    trained_model, trained_optimizer = trained(random_model())
    model = TwoMatrices(trained_model.config, trained_model.parameters)
    trained_optimizer.__class__ = Stepping
    before, steps = trained_optimizer.flat.copy(), trained_optimizer.steps
    with pytest.raises(AssertionError, match=r"^optimizer: after one step, W_E.T and W_U differ"):
        assert_tied(model, trained_optimizer)
    np.testing.assert_array_equal(trained_optimizer.flat, before)
    assert trained_optimizer.steps == steps


def test_matrices_of_a_gpt2_of_ours():
    model = random_model()
    message = "^matrices= are those of a torch module; a GPT2 has W_E and W_U$"
    with pytest.raises(ArgumentError, match=message):
        assert_tied(model, matrices=(model.W_E, model.W_E))


def test_an_optimizer_of_another_gpt2_of_ours():
    model, _ = trained(random_model())
    _, optimizer = trained(random_model())
    message = "^optimizer: it does not hold the model's matrix once$"
    with pytest.raises(AssertionError, match=message):
        assert_tied(model, optimizer)


def test_an_optimizer_that_holds_another_matrix_beside_that_of_a_gpt2_of_ours():
    model = random_model()
    shapes = parameter_shapes(model.config.with_head("untied"))
    parameters = {**model.parameters, "lm_head.weight": model.W_E.copy()}
    flat = np.concatenate([parameters[name].ravel() for name in shapes])
    views = unflatten(flat, shapes)
    optimizer = AdamW(flat, shapes, (0.9, 0.99), 0.1)
    del views["lm_head.weight"]
    message = "^optimizer: it does not hold the model's matrix once$"
    with pytest.raises(AssertionError, match=message):
        assert_tied(GPT2(model.config, views), optimizer)


def test_another_optimizer_than_that_of_a_gpt2_of_ours():
    with pytest.raises(ArgumentError) as caught:
        assert_tied(random_model(), "adam")
    assert str(caught.value).startswith(
        "expected a GPT2 and an AdamW of tiedgpt, or a torch module and torch's optimizer, got "
    )
    assert str(caught.value).endswith(" and 'adam'")


@pytest.mark.parametrize("model", [None, "gpt2", np.zeros((3, 4))], ids=["None", "name", "array"])
def test_what_is_no_model(model):
    with pytest.raises(ArgumentError, match=r"expected a GPT2"):
        assert_tied(model)


# The plugin

TESTS_OF_A_USER = """
import sys

def test_fixtures(tiny_gpt2, assert_same_gpt2, assert_tied):
    assert_same_gpt2(tiny_gpt2, model=tiny_gpt2)
    if tiny_gpt2.tied:
        assert_tied(tiny_gpt2)
    assert "torch" not in sys.modules
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_asked_for", [True, False])
def test_the_fixtures_of_the_plugin(tmp_path, is_asked_for):
    (tmp_path / "test_user.py").write_text(TESTS_OF_A_USER)
    if is_asked_for:
        (tmp_path / "conftest.py").write_text('pytest_plugins = ["tiedgpt.pytest_plugin"]')
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    # An older tiedgpt in this environment would load the plugin by itself.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    expected = "2 passed" if is_asked_for else "fixture 'tiny_gpt2' not found"
    assert expected in done.stdout


def test_pytest_shows_the_line_of_the_test_alone(torch, tied):
    tied.lm_head.weight = torch.nn.Parameter(torch.ones(V, 5))
    with pytest.raises(AssertionError) as caught:
        assert_tied(tied)
    shown = caught.traceback.filter(caught)
    assert [entry.path.name for entry in shown] == ["test_assert_tied.py"]


def test_no_project_has_the_plugin_unasked():
    pyproject = os.path.join(os.path.dirname(__file__), "..", "..", "pyproject.toml")
    with open(pyproject, encoding="utf-8") as file:
        assert "pytest11" not in file.read()
