"""`compare` names the mistake in a wrong GPT-2, and where it begins."""

import numpy as np
import pytest
from support import wrong_gpt2s
from support.comparing import MODELS, some_ids, with_mistake
from support.models import SMALL

from tiedgpt import compare
from tiedgpt.comparison.mistakes import MISTAKES
from tiedgpt.testing import TINY, random_model

SLOW = pytest.mark.slow
BOTH_MODELS = ["tiny", pytest.param("shakespeare", marks=SLOW)]

WRONG_GPT2S = [
    pytest.param(
        wrong_gpt2s.ExactGelu,
        "mlp.0.post: yours is the exact gelu (erf), in every layer",
        id="exact-gelu",
    ),
    pytest.param(
        wrong_gpt2s.ExactGeluInLayer1,
        "mlp.1.post: yours is the exact gelu (erf)",
        id="exact-gelu-in-layer-1",
    ),
    pytest.param(wrong_gpt2s.Relu, "mlp.0.post: yours is relu, in every layer", id="relu"),
    pytest.param(wrong_gpt2s.Silu, "mlp.0.post: yours is silu, in every layer", id="silu"),
    pytest.param(
        wrong_gpt2s.QuickGelu, "mlp.0.post: yours is quick_gelu, in every layer", id="quick-gelu"
    ),
    pytest.param(
        wrong_gpt2s.NoActivationFunction,
        "mlp.0.post: yours has no activation function, in every layer",
        id="no-activation-function",
    ),
    pytest.param(
        wrong_gpt2s.GeluTwice,
        "mlp.0.post: yours applies gelu_new twice, in every layer",
        id="gelu-twice",
    ),
    pytest.param(
        wrong_gpt2s.GeluWithoutHalf,
        "mlp.0.post: yours is gelu_new without the factor 0.5, in every layer",
        id="gelu-without-half",
    ),
    pytest.param(
        wrong_gpt2s.GeluWithoutRoot,
        "mlp.0.post: yours is gelu_new without the square root of 2 / pi, in every layer",
        id="gelu-without-root",
    ),
    pytest.param(
        wrong_gpt2s.GeluWithWrongNumber,
        "mlp.0.post: yours is gelu_new with 0.44715 for 0.044715, in every layer",
        id="gelu-with-wrong-number",
    ),
    pytest.param(
        wrong_gpt2s.NormWithSmallEpsilon,
        "attn.0.in: yours has a layer norm with epsilon 1e-06, everywhere",
        id="norm-with-small-epsilon",
    ),
    pytest.param(
        wrong_gpt2s.NormWithoutEpsilon,
        "attn.0.in: yours has a layer norm with no epsilon, or one of 1e-12, everywhere",
        id="norm-without-epsilon",
    ),
    pytest.param(
        wrong_gpt2s.NormWithEpsilonOutside,
        "attn.0.in: yours has a layer norm with epsilon outside the root, everywhere",
        id="norm-with-epsilon-outside",
    ),
    pytest.param(
        wrong_gpt2s.NormDividedByVariance,
        "attn.0.in: yours has a layer norm that divides by the variance, not by its root, "
        "everywhere",
        id="norm-divided-by-variance",
    ),
    pytest.param(
        wrong_gpt2s.NormWithUnbiasedVariance,
        "attn.0.in: yours has a layer norm with the unbiased variance, everywhere",
        id="norm-with-unbiased-variance",
    ),
    pytest.param(
        wrong_gpt2s.NormOverTokens,
        "attn.0.in: yours has a layer norm over the tokens, not over each vector, everywhere",
        id="norm-over-tokens",
    ),
    pytest.param(
        wrong_gpt2s.NormWithoutWeight,
        "attn.0.in: yours has a layer norm without its weight, everywhere",
        id="norm-without-weight",
    ),
    pytest.param(
        wrong_gpt2s.NormWithoutBias,
        "attn.0.in: yours has a layer norm without its bias, everywhere",
        id="norm-without-bias",
    ),
    pytest.param(
        wrong_gpt2s.NormWithoutWeightAndBias,
        "attn.0.in: yours has a layer norm without weight and bias, everywhere",
        id="norm-without-weight-and-bias",
    ),
    pytest.param(
        wrong_gpt2s.NormWithoutMean,
        "attn.0.in: yours has a layer norm that does not subtract the mean, everywhere",
        id="norm-without-mean",
    ),
    pytest.param(
        wrong_gpt2s.NoNorm, "attn.0.in: yours has no layer norm, everywhere", id="no-norm"
    ),
    pytest.param(wrong_gpt2s.NoFinalNorm, "final: yours has no layer norm", id="no-final-norm"),
    pytest.param(
        wrong_gpt2s.NormsSwapped,
        "attn.0.in: yours has ln_1 and ln_2 swapped, everywhere",
        id="norms-swapped",
    ),
    pytest.param(
        wrong_gpt2s.PostNorm,
        "attn.0.in: yours is post-norm: it normalises after the residual connection, everywhere",
        id="post-norm",
    ),
    pytest.param(
        wrong_gpt2s.ParallelMLP,
        "mlp.0.in: yours gives the MLP the input of attention, in parallel, in every layer",
        id="parallel-mlp",
    ),
    pytest.param(
        wrong_gpt2s.NoBiasOfQKV,
        "attn.0.qkv: yours lacks the bias, in every layer",
        id="no-bias-of-qkv",
    ),
    pytest.param(
        wrong_gpt2s.NoBiasInMLP,
        "mlp.0.pre: yours lacks the bias, in every layer",
        id="no-bias-in-mlp",
    ),
    pytest.param(
        wrong_gpt2s.NoBiasOfQueries,
        "attn.0.q: yours lacks the bias of the queries, in every layer",
        id="no-bias-of-queries",
    ),
    pytest.param(
        wrong_gpt2s.NoBiasOfValues,
        "attn.0.v: yours lacks the bias of the values, in every layer",
        id="no-bias-of-values",
    ),
    pytest.param(
        wrong_gpt2s.AttentionOutTransposed,
        "attn.0.out: yours has its weight transposed, in every layer",
        id="attention-out-transposed",
    ),
    pytest.param(
        wrong_gpt2s.MLPOutInFloat16,
        "mlp.0.out: yours has weights rounded to float16, in every layer",
        id="mlp-out-in-float16",
    ),
    pytest.param(
        wrong_gpt2s.ScoresDividedByRootOfWidth,
        "attn.0.scores: yours scales the scores by 1 / sqrt(n_embd), in every layer",
        id="scores-divided-by-root-of-width",
    ),
    pytest.param(
        wrong_gpt2s.ScoresNotScaled,
        "attn.0.scores: yours scales the scores by 1, not at all, in every layer",
        id="scores-not-scaled",
    ),
    pytest.param(
        wrong_gpt2s.ScoresDividedWithoutRoot,
        "attn.0.scores: yours scales the scores by n_head / n_embd, without the square root, "
        "in every layer",
        id="scores-divided-without-root",
    ),
    pytest.param(
        wrong_gpt2s.ScoresDividedByLayer,
        "attn.1.scores: yours divides the scores by the layer's number, from 1, in every layer",
        id="scores-divided-by-layer",
    ),
    pytest.param(
        wrong_gpt2s.NoMask,
        "attn.0.pattern: yours has no causal mask, in every layer",
        id="no-mask",
    ),
    pytest.param(
        wrong_gpt2s.MaskThatShowsTheNextToken,
        "attn.0.pattern: yours has a mask that is off by one: a token sees the next one, "
        "in every layer",
        id="mask-that-shows-the-next-token",
    ),
    pytest.param(
        wrong_gpt2s.FiniteMaskThatHidesTheTokenItself,
        "attn.0.pattern: yours has a mask of -1e9 that is off by one: a token does not see itself, "
        "in every layer",
        id="finite-mask-that-hides-the-token-itself",
    ),
    pytest.param(
        wrong_gpt2s.MaskOfZeros,
        "attn.0.pattern: yours puts 0 in place of -inf under the mask, in every layer",
        id="mask-of-zeros",
    ),
    pytest.param(
        wrong_gpt2s.MaskOfThePast,
        "attn.0.pattern: yours hides the past, not the future, in every layer",
        id="mask-of-the-past",
    ),
    pytest.param(
        wrong_gpt2s.MaskAfterSoftmax,
        "attn.0.pattern: yours applies the mask after the softmax, in every layer",
        id="mask-after-softmax",
    ),
    pytest.param(
        wrong_gpt2s.SoftmaxOverQueries,
        "attn.0.pattern: yours applies the softmax over the queries, in every layer",
        id="softmax-over-queries",
    ),
    pytest.param(
        wrong_gpt2s.KeysFirst,
        "attn.0.q: yours takes k, q, v for q, k, v, everywhere",
        id="keys-first",
    ),
    pytest.param(
        wrong_gpt2s.ValuesFirst,
        "attn.0.q: yours takes v, k, q for q, k, v, everywhere",
        id="values-first",
    ),
    pytest.param(
        wrong_gpt2s.HeadsInterleaved,
        "attn.0.q: yours interleaves the heads, everywhere",
        id="heads-interleaved",
    ),
    pytest.param(
        wrong_gpt2s.HeadsReshaped,
        "attn.0.q: yours reshapes to heads without a transpose, everywhere",
        id="heads-reshaped",
    ),
    pytest.param(
        wrong_gpt2s.OneHeadAfterTheOther,
        "attn.0.q: yours takes q, k and v of one head after the other from qkv, everywhere",
        id="one-head-after-the-other",
    ),
    pytest.param(
        wrong_gpt2s.HeadsJoinedWithoutTranspose,
        "attn.0.out: yours joins the heads without a transpose, in every layer",
        id="heads-joined-without-transpose",
    ),
    pytest.param(
        wrong_gpt2s.NoResidualAroundAttention,
        "resid_mid.0: yours lacks the residual connection, in every layer",
        id="no-residual-around-attention",
    ),
    pytest.param(
        wrong_gpt2s.NoResidualAroundMLP,
        "resid_post.0: yours lacks the residual connection, in every layer",
        id="no-residual-around-mlp",
    ),
    pytest.param(
        wrong_gpt2s.AttentionAddedToNorm,
        "resid_mid.0: yours adds to the layer norm's output, not to its input, in every layer",
        id="attention-added-to-norm",
    ),
    pytest.param(
        wrong_gpt2s.NoPositions, "embed: yours has no position embedding", id="no-positions"
    ),
    pytest.param(
        wrong_gpt2s.PositionsFrom1, "embed: yours counts positions from 1", id="positions-from-1"
    ),
    pytest.param(
        wrong_gpt2s.PositionsFromMinus1,
        "embed: yours counts positions from -1",
        id="positions-from-minus-1",
    ),
    pytest.param(
        wrong_gpt2s.Position0Twice,
        "embed: yours counts positions 0, 0, 1, 2, ...",
        id="position-0-twice",
    ),
    pytest.param(
        wrong_gpt2s.Position0Only,
        "embed: yours gives every token position 0",
        id="position-0-only",
    ),
    pytest.param(wrong_gpt2s.IdsPlus1, "embed: yours adds 1 to the ids", id="ids-plus-1"),
    pytest.param(wrong_gpt2s.IdsMinus1, "embed: yours subtracts 1 from the ids", id="ids-minus-1"),
    pytest.param(
        wrong_gpt2s.TokenBeforeLastFirst,
        "embed: yours has its ids shifted by one: it reads the token before",
        id="token-before-the-last-one-first",
    ),
    pytest.param(
        wrong_gpt2s.TokenBefore0First,
        "embed: yours has its ids shifted by one: it reads the token before",
        id="token-before-0-first",
    ),
    pytest.param(
        wrong_gpt2s.TokenAfter,
        "embed: yours has its ids shifted by one: it reads the token after",
        id="token-after",
    ),
    pytest.param(
        wrong_gpt2s.TokensTimesRootOfWidth,
        "embed: yours multiplies the token embedding by sqrt(n_embd)",
        id="tokens-times-root-of-width",
    ),
    pytest.param(
        wrong_gpt2s.ParametersInBfloat16,
        "embed: yours has all parameters rounded to bfloat16",
        id="parameters-in-bfloat16",
    ),
    pytest.param(
        wrong_gpt2s.ParametersInFloat16,
        "embed: yours has all parameters rounded to float16",
        id="parameters-in-float16",
    ),
    pytest.param(
        wrong_gpt2s.MatricesInBfloat16,
        "embed: yours has all matrices rounded to bfloat16, but no bias and no layer norm",
        id="matrices-in-bfloat16",
    ),
    pytest.param(
        wrong_gpt2s.MatricesInFloat16,
        "embed: yours has all matrices rounded to float16, but no bias and no layer norm",
        id="matrices-in-float16",
    ),
    pytest.param(
        wrong_gpt2s.BlockSkipped, "resid_post.1: yours skips the block", id="block-skipped"
    ),
    pytest.param(
        wrong_gpt2s.BlockTwice, "resid_pre.1: yours runs the block twice", id="block-twice"
    ),
    pytest.param(
        wrong_gpt2s.BlocksReversed,
        "resid_pre.0: yours runs the blocks in reverse order",
        id="blocks-reversed",
    ),
    pytest.param(
        wrong_gpt2s.WeightsOfBlocksReversed,
        "attn.0.in: yours runs the blocks in reverse order",
        id="weights-of-blocks-reversed",
    ),
    pytest.param(
        wrong_gpt2s.MLPReadsLn1,
        "mlp.0.in: yours gives the MLP the output of ln_1, in every layer",
        id="mlp-reads-ln_1",
    ),
    pytest.param(
        wrong_gpt2s.FinalNormOfLayer1,
        "final: yours has the weight and bias of h.1.ln_2 in ln_f",
        id="final-norm-of-layer-1",
    ),
    pytest.param(
        wrong_gpt2s.KeysFirstInCAttn,
        "attn.0.qkv: yours computes k, q, v with c_attn, not q, k, v, in every layer",
        id="keys-first-in-c_attn",
    ),
    pytest.param(
        wrong_gpt2s.ProbabilitiesForLogits,
        "logits: yours is softmax(logits)",
        id="probabilities-for-logits",
    ),
]
# One mistake for each activation in which a mistake may show first. These are tried with the larger
# model, too, whose search takes seconds.
ONE_OF_EACH_PLACE = {
    "exact-gelu-in-layer-1",
    "no-norm",
    "no-final-norm",
    "parallel-mlp",
    "no-bias-of-qkv",
    "no-bias-in-mlp",
    "no-bias-of-queries",
    "no-bias-of-values",
    "mlp-out-in-float16",
    "scores-not-scaled",
    "scores-divided-by-layer",
    "softmax-over-queries",
    "heads-joined-without-transpose",
    "attention-added-to-norm",
    "no-residual-around-mlp",
    "token-after",
    "probabilities-for-logits",
}
CASES_FOR_SHAKESPEARE = [case for case in WRONG_GPT2S if case.id in ONE_OF_EACH_PLACE]


def make(wrong_gpt2, model):
    """The wrong GPT-2, a class of wrong_gpt2s.py, with the parameters of the model."""
    return wrong_gpt2(model.parameters, model.config.n_layer, model.config.n_head)


@pytest.mark.parametrize("name", BOTH_MODELS)
@pytest.mark.parametrize(("wrong_gpt2", "diagnosis"), WRONG_GPT2S)
def test_a_wrong_gpt2_is_diagnosed(wrong_gpt2, diagnosis, name):
    model = MODELS[name]
    ids = some_ids(model, B=1, T=13)[0]
    report = compare(model, make(wrong_gpt2, model), ids)
    assert report.diagnosis == [diagnosis], str(report)


def test_a_tied_head_in_place_of_an_untied_head_is_named():
    model = MODELS["tiny untied"]
    ids = some_ids(model, B=1, T=13)[0]
    report = compare(model, make(wrong_gpt2s.TiedHead, model), ids)
    assert report.diagnosis == ["logits: yours is the tied head, wte"]


def test_nan_is_counted_and_explained():
    """The mask leaves the first of 13 tokens no key. So its 13 numbers are nan in each of 3 heads.

    These are 3 * 13 = 39 of the 3 * 13 * 13 = 507 numbers of the pattern.
    """
    model = MODELS["tiny"]
    ids = some_ids(model, B=1, T=13)[0]
    report = compare(model, make(wrong_gpt2s.MaskThatHidesTheTokenItself, model), ids)
    assert report.diagnosis == [
        "attn.0.pattern: yours is nan in 39 of 507 places",
        "attn.0.pattern: yours has a mask that is off by one: a token does not see itself, "
        "in every layer",
    ]


@pytest.mark.parametrize("name", BOTH_MODELS)
def test_the_weights_of_transformer_lens_are_named_and_how_to_load_the_trained_ones(name):
    model = MODELS[name]
    ids = some_ids(model, B=1, T=13)[0]
    theirs = make(wrong_gpt2s.FoldedAndCentred, model)
    report = compare(model, theirs, ids)
    assert report.diagnosis == [
        "embed: yours has the folded and centred weights that TransformerLens's HookedTransformer "
        "makes by default"
    ]
    assert report.note == (
        "to compare the weights as they were trained, load the model with "
        "HookedTransformer.from_pretrained_no_processing, or without enable_compatibility_mode"
    )
    # The logits alone give the same diagnosis.
    from_logits = compare(model, theirs(ids)["logits"], ids)
    assert from_logits.diagnosis == report.diagnosis
    assert from_logits.note == report.note


def test_zeros_are_named():
    model = MODELS["tiny"]
    ids = some_ids(model, B=1, T=13)[0]
    report = compare(model, make(wrong_gpt2s.ZerosForLogits, model), ids)
    assert report.diagnosis == ["logits: yours is 0 everywhere"]
    assert report.note == ""


def test_zeros_alone_are_named():
    model = MODELS["tiny"]
    ids = some_ids(model, B=1, T=13)[0]
    report = compare(model, np.zeros((13, model.config.vocab_size), np.float32), ids)
    assert report.diagnosis == ["logits: yours is 0 everywhere"]
    assert report.note == "to find where it begins, give resid_post.0 to resid_post.2, too"


def test_the_exact_gelu_of_nano_gpt_is_named_and_how_to_read_it():
    model = MODELS["tiny"]
    ids = some_ids(model, B=1, T=13)[0]
    report = compare(model, make(wrong_gpt2s.ExactGelu, model), ids)
    assert report.note == (
        "if it was trained so, as nanoGPT's models: "
        'from_state_dict(..., activation_function="gelu")'
    )


def assert_diagnosed_from_logits(model, wrong_gpt2, diagnosis):
    """From the logits alone, the report names the mistake, perhaps among others.

    The place where it begins, and in how many places it is, may be wrong.
    """
    ids = some_ids(model, B=1, T=13)[0]
    logits = make(wrong_gpt2, model)(ids)["logits"].astype(np.float32)
    report = compare(model, logits, ids)
    _, mistake = diagnosis.split(": ", maxsplit=1)
    mistake = mistake.removesuffix(", in every layer").removesuffix(", everywhere")
    assert any(mistake in sentence for sentence in report.diagnosis), str(report)


@pytest.mark.slow
@pytest.mark.parametrize(("wrong_gpt2", "diagnosis"), WRONG_GPT2S)
def test_a_wrong_gpt2_is_diagnosed_from_logits_alone(wrong_gpt2, diagnosis):
    assert_diagnosed_from_logits(MODELS["tiny"], wrong_gpt2, diagnosis)


@pytest.mark.slow
@pytest.mark.parametrize(("wrong_gpt2", "diagnosis"), CASES_FOR_SHAKESPEARE)
def test_a_wrong_shakespeare_is_diagnosed_from_logits_alone(wrong_gpt2, diagnosis):
    assert_diagnosed_from_logits(MODELS["shakespeare"], wrong_gpt2, diagnosis)


# These "mistakes" change nothing in the models of the next test. The models have the first three
# properties. The bias of the keys shifts all scores of a query equally, which changes no softmax.
RIGHT = [
    "is gelu_new, the approximation with tanh",
    "has a layer norm with epsilon 1e-05",
    "scales the scores by 1 / sqrt(n_embd / n_head)",
    "lacks the bias of the keys",
]
RIGHT_IF_TIED = [*RIGHT, "is the tied head, wte"]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=SLOW)])
@pytest.mark.parametrize(
    ("config", "right"),
    [
        pytest.param(TINY.with_head("untied"), RIGHT, id="tiny-untied"),
        pytest.param(SMALL, RIGHT_IF_TIED, id="small-tied", marks=SLOW),
    ],
)
def test_every_mistake_moves_a_logit_of_the_random_model(config, right, seed):
    model = random_model(config, seed)
    ids = some_ids(model, B=1, T=config.n_ctx)
    logits = model(ids)
    sentences = [mistake.sentence for mistake in MISTAKES if mistake.sentence not in right]
    for sentence in sentences:
        difference = np.abs(with_mistake(model, ids, sentence)["logits"] - logits).max()
        # It is nan if the mistake is a mask that hides all keys of a token.
        assert np.isnan(difference) or difference >= 1e-2, sentence
