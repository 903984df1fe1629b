"""A verdict on somebody else's model is a promise: it fails if nothing was looked at.

For each public assertion and each command whose exit code is a verdict: nothing that is known, an
empty file, numbers in which nothing shows, one of two matrices. What is said of wrong models is in
the other test files.
"""

import json
from dataclasses import replace
from types import SimpleNamespace

import check_gpt2  # of scripts/
import numpy as np
import pytest
from exercises import main as exercises  # of scripts/
from support import exercise_solutions
from support.checkpoint_files import safetensors_content
from support.comparing import MODELS, some_ids, tape_of
from support.other_gpt2 import OtherGPT2

import tiedgpt
from tiedgpt import GPT2, compare
from tiedgpt.comparison.compare import NothingCompared
from tiedgpt.comparison.recording import Recorder, record, untied_module_sentences
from tiedgpt.errors import ArgumentError
from tiedgpt.testing import TINY, assert_same_gpt2, assert_tied, random_model

MODEL = MODELS["tiny"]
UNTIED = MODELS["tiny untied"]
# All known mistakes are tried sooner in one layer of a short text.
SHALLOW = random_model(replace(TINY, n_layer=1))
IDS = some_ids(MODEL)
TARGETS = some_ids(MODEL, seed=1)
SAME = r"^not the same GPT-2\n"
NOT_ENOUGH = r"^not enough was compared to say that it is the same GPT-2\n\n"


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")


@pytest.fixture
def torch_gpt2s(torch):
    from support import torch_gpt2s

    return torch_gpt2s


# What a torch module returns are its logits.

WRONG = {
    "negated": {"wrong": lambda logits: -logits},
    "scaled": {"wrong": lambda logits: 1.5 * logits},
    "zero": {"wrong": lambda logits: 0 * logits},
    "no ln_f": {"has_ln_f": False},
    "eps": {"eps": 1e-6},
}
RETURNED = {
    "a tensor": lambda logits: logits,
    "an attribute": lambda logits: SimpleNamespace(loss=None, logits=logits),
    "an item": lambda logits: {"loss": None, "logits": logits},
    "the first of a tuple": lambda logits: (logits, None),
    "a tuple after the loss": lambda logits: (logits.mean(), logits),
    "[B T, V]": lambda logits: logits.flatten(0, 1),
    "padded": lambda logits: logits[..., list(range(TINY.vocab_size)) + [0] * 45],
}


@pytest.mark.parametrize("returned", RETURNED)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_torch_module_fails(torch_gpt2s, wrong, returned):
    """Its names are those of transformers, but it has no module whose output are the logits."""
    module = torch_gpt2s.TiedByHand(SHALLOW, **WRONG[wrong], returned=RETURNED[returned])
    with pytest.raises(AssertionError, match=SAME):
        assert_same_gpt2(module, SHALLOW, IDS[:1, :9])


@pytest.mark.parametrize("returned", RETURNED)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_torch_module_with_names_of_its_own_fails(torch_gpt2s, wrong, returned):
    module = torch_gpt2s.OwnNames(SHALLOW, **WRONG[wrong], returned=RETURNED[returned])
    with pytest.raises(AssertionError, match=SAME):
        assert_same_gpt2(module, SHALLOW, IDS[:1, :9])


@pytest.mark.parametrize("returned", RETURNED)
def test_a_right_torch_module_passes(torch_gpt2s, returned):
    for module in (torch_gpt2s.TiedByHand, torch_gpt2s.OwnNames):
        assert_same_gpt2(module(MODEL, returned=RETURNED[returned]), MODEL, IDS)


@pytest.mark.parametrize("model", [MODEL, UNTIED], ids=["tied", "untied"])
def test_the_other_right_gpt2s_of_the_tests_pass(torch_gpt2s, model):
    pytest.importorskip("transformers", reason="transformers is not installed")
    for theirs in (
        model,
        lambda ids: tape_of(model, ids),
        OtherGPT2(model),
        torch_gpt2s.nano_gpt(model),
        torch_gpt2s.transformers_gpt2(model),
    ):
        assert_same_gpt2(theirs, model)


@pytest.mark.parametrize("wrong", ["negated", "scaled", "zero"])
def test_logits_that_are_changed_after_the_output_matrix(torch_gpt2s, wrong):
    """lm_head computes the right ones, and the module returns others."""
    nano_gpt = torch_gpt2s.nano_gpt(MODEL)
    change = WRONG[wrong]["wrong"]
    nano_gpt.register_forward_hook(lambda module, arguments, logits: change(logits))
    with pytest.raises(AssertionError, match="'lm_head' and 'logits', and they differ"):
        assert_same_gpt2(nano_gpt, MODEL)


def test_an_output_matrix_whose_wrong_logits_are_not_returned(torch, torch_gpt2s):
    nano_gpt = torch_gpt2s.nano_gpt(MODEL).eval()
    right = nano_gpt(torch.from_numpy(IDS), torch.from_numpy(IDS))
    nano_gpt.lm_head.register_forward_hook(lambda module, arguments, logits: -logits)
    nano_gpt.register_forward_hook(lambda module, arguments, logits: right)
    report = compare(MODEL, nano_gpt, IDS)
    assert report.first.name == "logits, 'lm_head'"
    assert report.diagnosis == ["logits: yours are two, 'lm_head' and 'logits', and they differ"]
    with pytest.raises(AssertionError, match=SAME):
        assert_same_gpt2(nano_gpt, MODEL, IDS)


NO_NAMES = (
    r"^OwnNames returns no logits, and has no module of a GPT-2, such as h\.0\.attn\.c_attn or "
    r"blocks\.0\.mlp: give a function from ids to logits"
)


def test_a_module_that_returns_no_logits_fails(torch_gpt2s):
    """It returns the logits of the last token, nothing, or a loss."""
    for returned in (
        lambda logits: logits[:, -1:],
        lambda logits: None,
        lambda logits: logits.mean(),
    ):
        module = torch_gpt2s.TiedByHand(MODEL, returned=returned)
        with pytest.raises(AssertionError, match=NOT_ENOUGH + "logits: not compared\n"):
            assert_same_gpt2(module, MODEL, IDS)
        with pytest.raises(ArgumentError, match=NO_NAMES):
            assert_same_gpt2(torch_gpt2s.OwnNames(MODEL, returned=returned), MODEL, IDS)


NOT_LOGITS = {
    "the likeliest tokens": lambda logits: logits.argmax(-1),
    "of the last token": lambda logits: logits[:, -1:],
    "of one token more": lambda logits: logits[:, [0, *range(logits.shape[1])]],
    "of fewer tokens of the vocabulary": lambda logits: logits[..., :100],
    "a loss": lambda logits: logits.mean(),
    "a list": lambda logits: [logits],
}


@pytest.mark.parametrize("returned", NOT_LOGITS)
def test_a_right_output_matrix_of_a_module_that_returns_no_logits(torch_gpt2s, returned):
    """lm_head computes the right logits, and a user of the module does not get them."""
    nano_gpt = torch_gpt2s.nano_gpt(MODEL)
    change = NOT_LOGITS[returned]
    nano_gpt.register_forward_hook(lambda module, arguments, logits: change(logits))
    with pytest.raises(AssertionError, match=NOT_ENOUGH + "logits: not compared\n"):
        assert_same_gpt2(nano_gpt, MODEL, IDS)


@pytest.mark.filterwarnings("ignore")  # torch's, on tracing
def test_a_module_that_torch_has_traced(torch, torch_gpt2s):
    """Python knows no signature of its forward."""
    for wrong, same in (({}, True), (WRONG["scaled"], False)):
        module = torch_gpt2s.TiedByHand(MODEL, **wrong).eval()
        traced = torch.jit.trace(module, torch.from_numpy(IDS))
        assert compare(MODEL, traced, IDS, trials=0).same is same


def test_a_module_that_takes_other_arguments(torch):
    message = (
        r"^the other model failed on these ids: \w+: (.|\n)*; if it takes more than ids, give a "
        r"function from ids to logits$"
    )
    with pytest.raises(ArgumentError, match=message):
        assert_same_gpt2(torch.nn.Linear(5, 5), MODEL)


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_what_a_module_without_parameters_is_called_with(torch, dtype):
    """With ids as torch's embeddings need them, on torch's device, and without gradients."""
    called_with = []

    class Module(torch.nn.Module):
        def forward(self, ids):
            called_with.append((ids.dtype, tuple(ids.shape), torch.is_grad_enabled()))
            return torch.from_numpy(MODEL(ids.numpy()))

    ids = IDS[0].astype(dtype)
    assert compare(MODEL, Module(), ids).same
    assert called_with == [(torch.long, (1, len(ids)), False)]


def test_a_module_is_called_with_ids_on_its_own_device(torch):
    """It may be on another one than torch's default, such as the device `meta`."""

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = torch.nn.Parameter(torch.zeros(1))

        def forward(self, ids):
            return torch.from_numpy(MODEL(ids.numpy())) + self.bias

    module = Module()
    with torch.device("meta"):
        assert compare(MODEL, module, IDS).same


def test_a_module_that_fails_is_left_as_it_was(torch_gpt2s):
    theirs = torch_gpt2s.nano_gpt(SHALLOW).train()
    theirs.transformer.ln_f.eval()
    theirs.lm_head = None
    modes = [module.training for module in theirs.modules()]
    with pytest.raises(ArgumentError, match="failed on these ids: TypeError"):
        compare(SHALLOW, theirs, IDS)
    assert [module.training for module in theirs.modules()] == modes
    for module in theirs.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


# assert_same_gpt2 and compare of arrays


@pytest.mark.parametrize(
    "names", [["embed"], ["attn.0.q", "final"], [*tape_of(MODEL, IDS)][:-1]], ids=len
)
def test_activations_without_logits(names):
    tape = tape_of(MODEL, IDS)
    given = {name: tape[name] for name in names}
    report = compare(MODEL, given, IDS)
    assert report.first is None
    assert report.same is None
    text = str(report)
    assert text.startswith("logits: not compared\n")
    assert "all agree" not in text
    counts = f"({len(names)} compared; {len(tape) - len(names)} activations were not given)"
    assert f"what was compared agrees {counts}" in text
    with pytest.raises(AssertionError, match=NOT_ENOUGH + "logits: not compared\n"):
        assert_same_gpt2(given, MODEL, IDS)


def test_wrong_activations_without_logits():
    report = compare(MODEL, {"embed": -tape_of(MODEL, IDS)["embed"]}, IDS)
    assert report.same is False
    assert str(report).startswith("logits: not compared\n")


@pytest.mark.parametrize("missing", [[], ["lm_head.weight"], ["wte.weight", "ln_f.bias"]])
def test_gradients_are_needed_if_there_are_targets(missing):
    _, gradients = tiedgpt.loss_and_gradients(UNTIED, IDS, TARGETS)
    given = {"logits": UNTIED(IDS)}
    sentence = "gradients: not compared\n"
    if missing:
        given |= {name: gradients[name] for name in gradients if name not in missing}
        count = len(gradients)
        sentence = f"{len(missing)} of {count} gradients: not compared, such as {missing[0]}\n"
    report = compare(UNTIED, given, IDS, TARGETS)
    assert report.same is None
    assert (report.diagnosis, report.note) == ([], "")
    assert str(report).startswith(sentence)
    assert "all agree" not in str(report)
    with pytest.raises(AssertionError, match=NOT_ENOUGH + sentence):
        assert_same_gpt2(given, UNTIED, IDS, TARGETS)
    assert_same_gpt2({"logits": UNTIED(IDS), **gradients}, UNTIED, IDS, TARGETS)


def test_gradients_smaller_than_their_rounding_are_not_compared():
    """The model is so sure of each target that zeros are as near to its gradients as ours are."""
    model = random_model()
    for name in ("ln_f.weight", "ln_f.bias"):  # so all logits are 40 times as large
        model = changed(model, name, lambda array: 40 * array)
    ids = np.random.default_rng(1).integers(TINY.vocab_size, size=(2, 9))
    logits = model(ids)
    targets = logits.argmax(-1)
    _, gradients = tiedgpt.loss_and_gradients(model, ids, targets)
    zeros = {name: 0 * gradient for name, gradient in gradients.items()}
    report = compare(model, {"logits": logits, **zeros}, ids, targets)
    assert report.same is None
    assert str(report).startswith("gradients: not compared\n")


def test_gradients_without_logits():
    _, gradients = tiedgpt.loss_and_gradients(MODEL, IDS, TARGETS)
    report = compare(MODEL, gradients, IDS, TARGETS)
    assert report.same is None
    assert str(report).startswith("logits: not compared\n\n")


@pytest.mark.parametrize("ids", [IDS[:1, :1], IDS[:, :1]], ids=["one text", "two texts"])
def test_one_token_shows_nothing_of_attention(ids):
    """Its pattern is 1, whatever the queries, the keys, the mask and the scale are."""
    no_attention = OtherGPT2(MODEL, scores=lambda q, k, layer, H: 0 * q @ k.swapaxes(1, 2))
    logits = no_attention(ids)["logits"]
    report = compare(MODEL, logits, ids)
    assert (report.first, report.same) == (None, None)
    assert str(report).startswith("attention between tokens: not compared, because ids has one ")
    with pytest.raises(AssertionError, match=NOT_ENOUGH + "attention between tokens: not compared"):
        assert_same_gpt2(logits, MODEL, ids)


def changed(model, name, change):
    """The model with one of its parameters changed."""
    return GPT2(model.config, {**model.parameters, name: change(model.parameters[name])})


@pytest.mark.parametrize(
    "model",
    [
        changed(UNTIED, "lm_head.weight", lambda array: 0 * array),
        changed(MODEL, "wpe.weight", lambda array: array + np.float32(np.nan)),
    ],
    ids=["zero", "nan"],
)
def test_a_model_in_whose_logits_nothing_shows(model):
    """A wrong GPT-2 has the same zeros, or nans."""
    with np.errstate(invalid="ignore"):
        logits = model(IDS)
    with pytest.raises(NothingCompared, match=r"^there is nothing to compare: "):
        compare(model, logits, IDS)
    with pytest.raises(AssertionError, match="there is nothing to compare"):
        assert_same_gpt2(logits, model, IDS)
    # Logits with numbers are no zeros, and no nans.
    assert compare(model, MODEL(IDS), IDS, trials=0).same is False


@pytest.mark.parametrize(
    ("name", "change"),
    [
        # The logits are those of ln_f's bias, whatever the layers compute.
        ("ln_f.weight", lambda array: 0 * array),
        # One logit is so large that its rounding is larger than all others.
        (
            "lm_head.weight",
            lambda array: (
                array * np.where(np.arange(211) == 5, np.float32(1e9), np.float32(1))[:, None]
            ),
        ),
    ],
    ids=["constant", "one-large"],
)
def test_a_model_in_almost_all_of_whose_logits_nothing_shows(name, change):
    model = changed(UNTIED, name, change)
    logits = np.where(np.arange(211) == 5, model(IDS), model(IDS)[0, 0])
    report = compare(model, logits, IDS)
    assert report.same is None
    assert str(report).startswith("logits: not compared, because almost all of this model's are ")
    with pytest.raises(AssertionError, match=NOT_ENOUGH):
        assert_same_gpt2(logits, model, IDS)


def test_an_activation_in_which_nothing_shows_is_not_counted():
    model = changed(UNTIED, "lm_head.weight", lambda array: 0 * array)
    tape = tape_of(model, IDS)
    report = compare(model, {"embed": tape["embed"], "logits": tape["logits"]}, IDS)
    assert report.same is None
    assert [row.name for row in report.rows] == ["embed"]
    assert str(report).startswith("logits: not compared\n")


def test_arrays_of_no_known_name():
    with pytest.raises(AssertionError, match="there is nothing to compare"):
        assert_same_gpt2({"hook_embed": IDS, "probs": IDS}, MODEL, IDS)


@pytest.mark.parametrize("wrong", ["ln_f", "final"])
def test_two_arrays_of_one_activation_are_both_compared(wrong):
    """In a dict, the last one counts. A wrong one before it is found, too."""
    right = tape_of(MODEL, IDS)
    given = {"ln_f": right["final"], "final": right["final"], "logits": right["logits"]}
    assert compare(MODEL, given, IDS).same is True
    given[wrong] = -given[wrong]
    report = compare(MODEL, given, IDS, trials=0)
    assert report.same is False
    assert report.diagnosis[-1] == "final: yours are two, 'ln_f' and 'final', and they differ"


def test_two_arrays_of_one_activation_that_rounding_alone_tells_apart():
    tape = tape_of(MODEL, IDS)
    given = {"ln_f": tape["final"] * np.float32(1 + 1e-7), "final": tape["final"]}
    report = compare(MODEL, given, IDS)
    assert [row.name for row in report.rows] == ["final", "final, 'ln_f'"]
    assert (report.first, report.diagnosis) == (None, [])


# tiedgpt compare


@pytest.fixture
def compared(run, tmp_path):
    """compared(arrays, *flags) -> the exit code, stdout and stderr of the command."""
    ids = np.arange(9)

    def compared(arrays, *flags):
        np.savez(tmp_path / "mine.npz", ids=ids, **arrays)
        return run("compare", "-m", "shakespeare-tied", str(tmp_path / "mine.npz"), *flags)

    return compared


def test_the_command_on_activations_alone(compared):
    embed = tape_of(MODELS["shakespeare"], np.arange(9))["embed"]
    code, out, _ = compared({"embed": embed})
    assert code == 0
    assert out.startswith("logits: not compared\n")
    assert "all agree" not in out
    _, out, _ = compared({"embed": embed}, "--json")
    assert json.loads(out)["same"] is None
    assert json.loads(out)["not_compared"] == ["logits: not compared"]
    code, out, _ = compared({"embed": -embed})
    assert code == 1
    assert out.startswith("logits: not compared\n")


def test_the_command_on_nothing_that_is_compared(compared):
    arrays = {"probs": np.ones(3), "hook_embed": np.ones(3)}
    code, out, _ = compared(arrays)
    assert code == 1
    assert out.startswith("there is nothing to compare")
    code, out, _ = compared(arrays, "--json")
    assert code == 1
    assert json.loads(out)["same"] is None


@pytest.mark.parametrize(
    "arrays", [{}, {"no_name": np.ones(3)}, {"logits": np.zeros((9, 0))}], ids=lambda a: str([*a])
)
def test_the_command_on_a_file_without_an_activation(compared, arrays):
    code, out, _ = compared(arrays)
    assert code == 2
    assert out == ""


# tiedgpt check


V, D = 40, 8
MATRIX = np.random.default_rng(0).normal(size=(V, D)).astype(np.float32)
STORED = {
    "no tensors": {},
    "no common names": {"a": MATRIX},
    "no common shape": {"model.embed_tokens.weight": MATRIX[1:]},
}


@pytest.fixture
def checked(run, tmp_path):
    """checked(tensors, tied) -> the exit code and stdout of the command."""

    def checked(tensors, tied):
        config = {"model_type": "llama", "vocab_size": V, "hidden_size": D}
        (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": tied}))
        (tmp_path / "model.safetensors").write_bytes(safetensors_content(tensors))
        code, out, _ = run("check", str(tmp_path))
        return code, out

    return checked


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("stored", STORED)
def test_check_of_files_without_a_known_matrix(checked, stored, tied):
    code, out = checked(STORED[stored], tied)
    assert code == 1
    assert "the files hold" in out


def test_check_of_one_of_two_matrices(checked):
    assert checked({"model.embed_tokens.weight": MATRIX}, tied=False)[0] == 1
    assert checked({"lm_head.weight": MATRIX}, tied=False)[0] == 1


def test_check_of_nothing(run, tmp_path):
    assert run("check", str(tmp_path))[0] == 2
    assert run("check")[0] == 2


# assert_tied


def test_assert_tied_of_a_model_in_which_no_gradient_shows(torch):
    """All weights are 0, so no gradient of the input matrix comes from the lookup."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = torch.nn.Parameter(torch.zeros(9, 5))

        def forward(self, ids):
            return torch.nn.functional.embedding(ids, self.wte) @ self.wte.T

    model = Model()
    with pytest.raises(AssertionError, match="nothing of it comes from the input"):
        assert_tied(model, matrices=(model.wte, model.wte))


@pytest.mark.parametrize(
    "change", [lambda array: 0 * array, lambda array: array * np.float32(np.nan)]
)
def test_assert_tied_of_a_gpt2_in_which_no_gradient_shows(change):
    zero = GPT2(MODEL.config, {name: change(a) for name, a in MODEL.parameters.items()})
    with np.errstate(all="ignore"), pytest.raises(AssertionError, match="gradient: "):
        assert_tied(zero)


def test_assert_tied_of_one_of_two_matrices(torch):
    model = torch.nn.Embedding(9, 5)
    with pytest.raises(ArgumentError, match="gives no matrix: pass matrices"):
        assert_tied(model)


# The exercises


@pytest.mark.parametrize(
    "source",
    ["", *[f"def {name}(*a, **k): return 0\n" for name in ("gelu", "softmax")], "gelu = 1\n"],
)
def test_the_exercises_of_an_empty_file(capsys, tmp_path, source):
    (tmp_path / "mine.py").write_text(source)
    for number in range(1, 13):
        assert exercises([str(number), str(tmp_path / "mine.py")]) == 1
    assert ": right" not in capsys.readouterr().out


def test_exercises_whose_results_are_all_zero(capsys, tmp_path):
    """The functions are right, but each result is multiplied by 0."""
    source = "import numpy as np\nfrom support import exercise_solutions as right\n"
    source += "def zero(function):\n"
    source += "    def of_zeros(*a, **k):\n"
    source += "        result = function(*a, **k)\n"
    source += (
        "        if isinstance(result, (list, tuple)): return type(result)(0 * x for x in result)\n"
    )
    source += "        return 0 * result\n"
    source += "    return of_zeros\n"
    for name in exercise_solutions.__all__:
        source += f"{name} = zero(right.{name})\n"
    (tmp_path / "mine.py").write_text(source)
    for number in range(1, 13):
        assert exercises([str(number), str(tmp_path / "mine.py")]) == 1
    assert ": right" not in capsys.readouterr().out


# scripts/check_gpt2.py


def published(**facts):
    return {
        "last_position_logits": {"examples": [], "suggested_tolerance": 1e-3},
        "greedy": [],
        "final_hidden": {"ids": [1, 2], "values": [], "tolerance": 1e-3},
        "mean_loss": [],
        **facts,
    }


def test_check_gpt2_without_published_numbers(capsys):
    assert check_gpt2.report(MODEL, published()) is False
    assert "DIFFERS final hidden state: inf" in capsys.readouterr().out


def test_check_gpt2_with_fewer_tokens_than_were_published(monkeypatch):
    """The model ends its text after a token that is right."""
    monkeypatch.setattr(tiedgpt, "generate", lambda *args, **kwargs: iter([7]))
    facts = published(greedy=[{"ids": [1, 2], "output_ids": [1, 2, 7, 7, 7]}])
    [greedy] = [fact for fact in check_gpt2.facts(facts) if fact.name == "greedy tokens"]
    assert greedy.difference(MODEL) == np.inf


def test_check_gpt2_of_another_model(capsys, monkeypatch, tmp_path):
    tiedgpt.save_model(random_model(), None, tmp_path / "model")
    monkeypatch.setattr("sys.argv", ["check_gpt2.py", str(tmp_path / "model")])
    with pytest.raises(SystemExit) as ended:
        check_gpt2.main()
    assert ended.value.code not in (0, None)


def test_a_module_whose_two_matrices_differ_is_called_untied(torch_gpt2s):
    tied = torch_gpt2s.nano_gpt(MODEL)
    assert untied_module_sentences(tied, MODEL) == []
    untied = torch_gpt2s.nano_gpt(MODEL.untie("zeros"))
    (sentence,) = untied_module_sentences(untied, MODEL)
    assert sentence == "logits: yours has an lm_head.weight that is not its wte.weight"
    assert untied_module_sentences(untied, MODEL.untie()) == []
    assert compare(MODEL, untied, IDS[:1, :5]).diagnosis == [
        "logits: yours is 0 everywhere",
        sentence,
    ]
    # What its config says, if it has one
    for says_tied, end in ((False, ""), (True, ", though its config says tied")):
        untied.config = SimpleNamespace(tie_word_embeddings=says_tied)
        assert untied_module_sentences(untied, MODEL) == [sentence + end]
    # Without logits, nothing is said of what computes them.
    untied.transformer.ln_f.eps = 1.0
    untied.register_forward_hook(lambda module, arguments, logits: logits.mean())
    report = compare(MODEL, untied, IDS[:1, :5], trials=0)
    assert report.first.name == "final"
    assert "lm_head" not in str(report)
    two_equal_matrices = torch_gpt2s.nano_gpt(MODEL.untie("copy"))
    assert untied_module_sentences(two_equal_matrices, MODEL) == []


def test_the_arrays_of_an_npz_are_compared(tmp_path):
    """np.load returns a mapping that is no dict."""
    ids = IDS[:1, :5]
    np.savez(tmp_path / "mine.npz", logits=MODEL(ids))
    with np.load(tmp_path / "mine.npz") as arrays:
        assert compare(MODEL, arrays, ids).same


def test_the_hooks_keep_tensors_of_known_names(torch):
    """An input may be given by its name. Our own name as that of a module has other contents."""
    recorder = Recorder(torch)
    x = torch.ones(2)
    recorder.keep_input("h.0.mlp.c_proj", None, (), {"input": x})
    recorder.keep_input("h.0.attn.c_proj", None, (x,), {"scale": 2 * x})
    recorder.keep_input("h.0", None, (), {})
    recorder.keep_output("h.0.attn", None, (), (x, None))
    for name in ("embed", "model.embed", "wte", "no_name"):
        recorder.keep_output(name, None, (), x)
    assert set(recorder.arrays) == {"h.0.mlp.c_proj:in", "h.0.attn.c_proj:in", "h.0.attn"}
    x += 1
    assert all(torch.equal(array, torch.ones(2)) for array in recorder.arrays.values())


@pytest.mark.parametrize(
    ("length", "kept"),
    [
        (0, {}),
        (1, {"h.0.attn": 0}),
        (2, {"h.0.attn": 0, "h.0.attn:1": 1}),
        (3, {"h.0.attn": 0, "h.0.attn:1": 1}),
    ],
)
@pytest.mark.parametrize("kind", [tuple, list])
def test_of_several_outputs_the_second_one_is_the_pattern(torch, kind, length, kept):
    recorder = Recorder(torch)
    outputs = kind(torch.tensor(number) for number in range(length))
    recorder.keep_output("h.0.attn", None, (), outputs)
    assert {name: int(array) for name, array in recorder.arrays.items()} == kept


def test_a_module_gets_targets_only_if_it_has_a_parameter_of_this_name(torch, torch_gpt2s):
    class WithCache(torch_gpt2s.OwnNames):
        def forward(self, ids, cache=None):
            assert cache is None
            return super().forward(ids)

    assert_same_gpt2(WithCache(MODEL), MODEL, IDS)


def test_what_transformers_returns_is_no_dict_of_activations():
    class Output(dict):
        logits = np.ones((1, 2, 3))

    given = record(Output(logits=Output.logits, loss=1.0), IDS, vocab_size=3, with_gradients=False)
    assert list(given) == ["logits"]
    assert given["logits"] is Output.logits


def test_the_inputs_and_outputs_of_modules_are_compared(torch_gpt2s):
    rows = {row.name for row in compare(MODEL, torch_gpt2s.nano_gpt(MODEL), IDS).rows}
    inputs = {"resid_pre.0", "attn.0.heads", "mlp.0.post"}
    outputs = {"attn.0.in", "attn.0.qkv", "attn.0.out", "mlp.0.pre", "mlp.0.out", "final", "logits"}
    assert rows >= inputs | outputs
