"""Subclasses of OtherGPT2, a GPT-2 in NumPy. Each makes one mistake, in the step that it overrides.

The name of a class says what the mistake is. A method gets one sequence: x is [T, D]; q, k and v
are [H, T, K]; scores and patterns are [H, T, T]. self.weights(layer, name) is (weight, bias) of a
part of a block. block() must also record the residual stream on the tape, with record_stream().
"""

import math

import numpy as np

from .other_gpt2 import OtherGPT2

# Activation functions


def gelu(x):
    """The exact gelu."""
    erf = np.vectorize(math.erf)
    return (x * (1 + erf(x / math.sqrt(2))) / 2).astype(x.dtype)


class ExactGelu(OtherGPT2):
    def activation(self, x, layer):
        return gelu(x)


class ExactGeluInLayer1(OtherGPT2):
    def activation(self, x, layer):
        if layer == 1:
            return gelu(x)
        return super().activation(x, layer)


class NearlyExactGelu(OtherGPT2):
    """A function near the exact gelu, but not so near that it should be taken for it."""

    def activation(self, x, layer):
        return 1.1 * gelu(x) - 0.1 * super().activation(x, layer)


class Relu(OtherGPT2):
    def activation(self, x, layer):
        return np.maximum(x, 0)


class Silu(OtherGPT2):
    def activation(self, x, layer):
        return x / (1 + np.exp(-x))


class QuickGelu(OtherGPT2):
    def activation(self, x, layer):
        return x / (1 + np.exp(-1.702 * x))


class NoActivationFunction(OtherGPT2):
    def activation(self, x, layer):
        return x


class GeluTwice(OtherGPT2):
    def activation(self, x, layer):
        return super().activation(super().activation(x, layer), layer)


class GeluWithoutHalf(OtherGPT2):
    def activation(self, x, layer):
        return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


class GeluWithoutRoot(OtherGPT2):
    def activation(self, x, layer):
        return 0.5 * x * (1 + np.tanh((2 / np.pi) * (x + 0.044715 * x**3)))


class GeluWithWrongNumber(OtherGPT2):
    def activation(self, x, layer):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.44715 * x**3)))


# Layer norms


class NormWithSmallEpsilon(OtherGPT2):
    def layer_norm(self, x, weight, bias):
        mean = x.mean(axis=-1, keepdims=True)
        variance = x.var(axis=-1, keepdims=True)
        return (x - mean) / np.sqrt(variance + 1e-6) * weight + bias


class NormWithoutEpsilon(OtherGPT2):
    def layer_norm(self, x, weight, bias):
        mean = x.mean(axis=-1, keepdims=True)
        variance = x.var(axis=-1, keepdims=True)
        return (x - mean) / np.sqrt(variance) * weight + bias


class NormWithEpsilonOutside(OtherGPT2):
    def layer_norm(self, x, weight, bias):
        mean = x.mean(axis=-1, keepdims=True)
        variance = x.var(axis=-1, keepdims=True)
        return (x - mean) / (np.sqrt(variance) + 1e-5) * weight + bias


class NormDividedByVariance(OtherGPT2):
    def layer_norm(self, x, weight, bias):
        mean = x.mean(axis=-1, keepdims=True)
        variance = x.var(axis=-1, keepdims=True)
        return (x - mean) / (variance + 1e-5) * weight + bias


class NormWithUnbiasedVariance(OtherGPT2):
    """The sum of squares is divided by D - 1, not by D."""

    def layer_norm(self, x, weight, bias):
        mean = x.mean(axis=-1, keepdims=True)
        variance = x.var(axis=-1, ddof=1, keepdims=True)
        return (x - mean) / np.sqrt(variance + 1e-5) * weight + bias


class NormOverTokens(OtherGPT2):
    """The mean and the variance are over axis T of [T, D], not over axis D."""

    def layer_norm(self, x, weight, bias):
        mean = x.mean(axis=0, keepdims=True)
        variance = x.var(axis=0, keepdims=True)
        return (x - mean) / np.sqrt(variance + 1e-5) * weight + bias


class NormWithoutMean(OtherGPT2):
    def layer_norm(self, x, weight, bias):
        mean_square = (x * x).mean(axis=-1, keepdims=True)
        return x / np.sqrt(mean_square + 1e-5) * weight + bias


class NormWithoutWeight(OtherGPT2):
    def layer_norm(self, x, weight, bias):
        return super().layer_norm(x, 1, bias)


class NormWithoutBias(OtherGPT2):
    def layer_norm(self, x, weight, bias):
        return super().layer_norm(x, weight, 0)


class NormWithoutWeightAndBias(OtherGPT2):
    def layer_norm(self, x, weight, bias):
        return super().layer_norm(x, 1, 0)


class NoNorm(OtherGPT2):
    def layer_norm(self, x, weight, bias):
        return x


class NoFinalNorm(OtherGPT2):
    def final_norm(self, resid):
        return resid


class FinalNormOfLayer1(OtherGPT2):
    def final_norm(self, resid):
        return self.layer_norm(resid, *self.weights(1, "ln_2"))


class NormsSwapped(OtherGPT2):
    def weights(self, layer, name):
        if name == "ln_1":
            return super().weights(layer, "ln_2")
        if name == "ln_2":
            return super().weights(layer, "ln_1")
        return super().weights(layer, name)


# The block


class PostNorm(OtherGPT2):
    def block(self, resid_pre, layer, tape):
        with_attention = resid_pre + self.attention(resid_pre, layer, tape)
        resid_mid = self.layer_norm(with_attention, *self.weights(layer, "ln_1"))
        with_mlp = resid_mid + self.mlp(resid_mid, layer, tape)
        resid_post = self.layer_norm(with_mlp, *self.weights(layer, "ln_2"))
        self.record_stream(tape, layer, resid_pre, resid_mid, resid_post)
        return resid_post


class ParallelMLP(OtherGPT2):
    def block(self, resid_pre, layer, tape):
        normed = self.layer_norm(resid_pre, *self.weights(layer, "ln_1"))
        resid_mid = resid_pre + self.attention(normed, layer, tape)
        normed = self.layer_norm(resid_pre, *self.weights(layer, "ln_2"))
        resid_post = resid_mid + self.mlp(normed, layer, tape)
        self.record_stream(tape, layer, resid_pre, resid_mid, resid_post)
        return resid_post


class NoResidualAroundAttention(OtherGPT2):
    def block(self, resid_pre, layer, tape):
        normed = self.layer_norm(resid_pre, *self.weights(layer, "ln_1"))
        resid_mid = self.attention(normed, layer, tape)
        normed = self.layer_norm(resid_mid, *self.weights(layer, "ln_2"))
        resid_post = resid_mid + self.mlp(normed, layer, tape)
        self.record_stream(tape, layer, resid_pre, resid_mid, resid_post)
        return resid_post


class NoResidualAroundMLP(OtherGPT2):
    def block(self, resid_pre, layer, tape):
        normed = self.layer_norm(resid_pre, *self.weights(layer, "ln_1"))
        resid_mid = resid_pre + self.attention(normed, layer, tape)
        normed = self.layer_norm(resid_mid, *self.weights(layer, "ln_2"))
        resid_post = self.mlp(normed, layer, tape)
        self.record_stream(tape, layer, resid_pre, resid_mid, resid_post)
        return resid_post


class AttentionAddedToNorm(OtherGPT2):
    def block(self, resid_pre, layer, tape):
        normed = self.layer_norm(resid_pre, *self.weights(layer, "ln_1"))
        resid_mid = normed + self.attention(normed, layer, tape)
        normed = self.layer_norm(resid_mid, *self.weights(layer, "ln_2"))
        resid_post = resid_mid + self.mlp(normed, layer, tape)
        self.record_stream(tape, layer, resid_pre, resid_mid, resid_post)
        return resid_post


class MLPReadsLn1(OtherGPT2):
    def block(self, resid_pre, layer, tape):
        normed = self.layer_norm(resid_pre, *self.weights(layer, "ln_1"))
        resid_mid = resid_pre + self.attention(normed, layer, tape)
        resid_post = resid_mid + self.mlp(normed, layer, tape)
        self.record_stream(tape, layer, resid_pre, resid_mid, resid_post)
        return resid_post


class BlockSkipped(OtherGPT2):
    def layers(self):
        """The blocks 0, 2, 3, ..., without block 1."""
        layers = list(range(self.n_layer))
        layers.remove(1)
        return layers


class BlockTwice(OtherGPT2):
    def layers(self):
        """The blocks 0, 1, 1, 2, ..."""
        layers = list(range(self.n_layer))
        layers.insert(1, 1)
        return layers


class BlocksReversed(OtherGPT2):
    """The last block runs first. Each activation has the number of the block that computes it."""

    def layers(self):
        return reversed(range(self.n_layer))


class WeightsOfBlocksReversed(OtherGPT2):
    """The last block's weights come first. The activations are numbered in the order of running."""

    def weights(self, layer, name):
        return super().weights(self.n_layer - 1 - layer, name)


# All parameters


def bfloat16(array):
    """The float32 numbers rounded to the nearest bfloat16; to the even one if two are as near."""
    # A bfloat16 is the upper 16 bits of a float32. To round, half of the last of these bits is
    # added, 0x8000, or one less where that bit is 0. Then the lower 16 bits are set to 0.
    bits = array.view(np.uint32)
    last_bit = (bits >> 16) & 1
    rounded_bits = (bits + 0x7FFF + last_bit) & 0xFFFF0000
    return rounded_bits.astype(np.uint32).view(np.float32)


class ParametersInBfloat16(OtherGPT2):
    def __init__(self, parameters, n_layer, n_head):
        rounded = {name: bfloat16(array) for name, array in parameters.items()}
        super().__init__(rounded, n_layer, n_head)


class ParametersInFloat16(OtherGPT2):
    def __init__(self, parameters, n_layer, n_head):
        rounded = {name: array.astype(np.float16) for name, array in parameters.items()}
        super().__init__(rounded, n_layer, n_head)


def with_rounded_matrices(parameters, rounded):
    """The parameters. The function `rounded` is applied to the matrices, not to the vectors."""
    mixed = {}
    for name, array in parameters.items():
        mixed[name] = rounded(array) if array.ndim == 2 else array
    return mixed


class MatricesInBfloat16(OtherGPT2):
    def __init__(self, parameters, n_layer, n_head):
        super().__init__(with_rounded_matrices(parameters, bfloat16), n_layer, n_head)


class MatricesInFloat16(OtherGPT2):
    def __init__(self, parameters, n_layer, n_head):
        mixed = with_rounded_matrices(parameters, lambda array: array.astype(np.float16))
        super().__init__(mixed, n_layer, n_head)


def centred(x):
    """The vectors (the last axis), from each of which its mean is subtracted."""
    return x - x.mean(axis=-1, keepdims=True)


class FoldedAndCentred(OtherGPT2):
    """The weights are changed as TransformerLens does by default.

    To fold the weight and bias of a layer norm is to make them a part of the linear layer that
    reads its output. The bias of the values is folded into the bias of c_proj. Each vector that is
    added to the residual stream is centred: its mean is subtracted. So are the logits.
    """

    def __init__(self, parameters, n_layer, n_head):
        super().__init__(parameters, n_layer, n_head)
        p = self.parameters
        # Fold ln_f into the output matrix, and centre the logits.
        head = p.get("lm_head.weight", p["wte.weight"]).T  # [D, V]; a tied model has wte alone
        self.head_bias = centred(p["ln_f.bias"] @ head)
        self.head = centred(p["ln_f.weight"][:, None] * head)
        # Centre the embeddings.
        p["wte.weight"] = centred(p["wte.weight"])
        p["wpe.weight"] = centred(p["wpe.weight"])
        for layer in range(n_layer):
            self.fold(norm=f"h.{layer}.ln_1", linear=f"h.{layer}.attn.c_attn")
            self.fold(norm=f"h.{layer}.ln_2", linear=f"h.{layer}.mlp.c_fc")
            # Centre what the layer adds to the residual stream: the outputs of these two.
            for name in (f"h.{layer}.attn.c_proj", f"h.{layer}.mlp.c_proj"):
                p[f"{name}.weight"] = centred(p[f"{name}.weight"])
                p[f"{name}.bias"] = centred(p[f"{name}.bias"])
            # The bias of c_proj stays centred, because the weight of c_proj is centred already.
            self.fold_bias_of_values(f"h.{layer}.attn")

    def fold(self, norm, linear):
        """Fold the weight and bias of a layer norm into the linear layer that reads its output."""
        p = self.parameters
        p[f"{linear}.bias"] = p[f"{linear}.bias"] + p[f"{norm}.bias"] @ p[f"{linear}.weight"]
        p[f"{linear}.weight"] = p[f"{norm}.weight"][:, None] * p[f"{linear}.weight"]

    def fold_bias_of_values(self, attn):
        """Move the bias of the values to c_proj.

        The output of attention stays the same, because each row of a pattern adds up to 1.
        """
        p = self.parameters
        q_bias, k_bias, v_bias = np.split(p[f"{attn}.c_attn.bias"], 3)
        p[f"{attn}.c_attn.bias"] = np.concatenate([q_bias, k_bias, 0 * v_bias])
        p[f"{attn}.c_proj.bias"] = p[f"{attn}.c_proj.bias"] + v_bias @ p[f"{attn}.c_proj.weight"]

    def layer_norm(self, x, weight, bias):
        """Apply no weight and bias, because they are folded into the next linear layer."""
        return super().layer_norm(x, 1, 0)

    def logits(self, final):
        return final @ self.head + self.head_bias


# Linear layers


class NoBiasOfQKV(OtherGPT2):
    def linear(self, x, layer, name):
        weight, bias = self.weights(layer, name)
        if name == "attn.c_attn":
            return x @ weight
        return x @ weight + bias


class NoBiasInMLP(OtherGPT2):
    def linear(self, x, layer, name):
        weight, bias = self.weights(layer, name)
        if name == "mlp.c_fc":
            return x @ weight
        return x @ weight + bias


class ReluWithoutBias(NoBiasInMLP):
    def activation(self, x, layer):
        return np.maximum(x, 0)


class ColumnsOfMLPReversed(OtherGPT2):
    def linear(self, x, layer, name):
        weight, bias = self.weights(layer, name)
        if name == "mlp.c_fc":
            return x @ weight[:, ::-1] + bias
        return x @ weight + bias


class NanInMLPOfLayer1(OtherGPT2):
    def linear(self, x, layer, name):
        out = super().linear(x, layer, name)
        if name == "mlp.c_fc" and layer == 1:
            out[3, 5] = np.nan  # one number of one token
        return out


class AttentionOutTransposed(OtherGPT2):
    def linear(self, x, layer, name):
        weight, bias = self.weights(layer, name)
        if name == "attn.c_proj":
            return x @ weight.T + bias
        return x @ weight + bias


class MLPOutInFloat16(OtherGPT2):
    def linear(self, x, layer, name):
        weight, bias = self.weights(layer, name)
        if name == "mlp.c_proj":
            weight = weight.astype(np.float16).astype(np.float32)
        return x @ weight + bias


class KeysFirstInCAttn(OtherGPT2):
    """c_attn computes k, q and v in this order, but the model takes them for q, k and v."""

    def linear(self, x, layer, name):
        out = super().linear(x, layer, name)
        if name == "attn.c_attn":
            q, k, v = np.split(out, 3, axis=-1)
            out = np.concatenate([k, q, v], axis=-1)
        return out


# Heads


class NoBiasOfQueries(OtherGPT2):
    def split_heads(self, qkv, layer):
        q, k, v = np.split(qkv, 3, axis=-1)
        _, bias = self.weights(layer, "attn.c_attn")
        q_bias, _, _ = np.split(bias, 3)
        return self.heads_of(q - q_bias), self.heads_of(k), self.heads_of(v)


class NoBiasOfValues(OtherGPT2):
    def split_heads(self, qkv, layer):
        q, k, v = np.split(qkv, 3, axis=-1)
        _, bias = self.weights(layer, "attn.c_attn")
        _, _, v_bias = np.split(bias, 3)
        return self.heads_of(q), self.heads_of(k), self.heads_of(v - v_bias)


class KeysFirst(OtherGPT2):
    def split_heads(self, qkv, layer):
        k, q, v = np.split(qkv, 3, axis=-1)
        return self.heads_of(q), self.heads_of(k), self.heads_of(v)


class ValuesFirst(OtherGPT2):
    def split_heads(self, qkv, layer):
        v, k, q = np.split(qkv, 3, axis=-1)
        return self.heads_of(q), self.heads_of(k), self.heads_of(v)


class OneHeadAfterTheOther(OtherGPT2):
    """The columns are taken for q, k, v of head 0, then for q, k, v of head 1, and so on."""

    def split_heads(self, qkv, layer):
        T, width = qkv.shape
        K = width // (3 * self.n_head)
        by_head = qkv.reshape(T, self.n_head, 3, K).transpose(2, 1, 0, 3)  # [3, H, T, K]
        return by_head[0], by_head[1], by_head[2]


class HeadsInterleaved(OtherGPT2):
    """Head 0 gets the columns 0, H, 2 H, ...; head 1 gets the columns 1, H + 1, 2 H + 1, ..."""

    def heads_of(self, part):
        T, D = part.shape
        return part.reshape(T, D // self.n_head, self.n_head).transpose(2, 0, 1)


class HeadsReshaped(OtherGPT2):
    def heads_of(self, part):
        T, D = part.shape
        return part.reshape(self.n_head, T, D // self.n_head)


class HeadsJoinedWithoutTranspose(OtherGPT2):
    def join_heads(self, heads):
        H, T, K = heads.shape
        return heads.reshape(T, H * K)


# Scores and the pattern


class ScoresDividedByRootOfWidth(OtherGPT2):
    def scores(self, q, k, layer):
        D = q.shape[-1] * self.n_head
        return q @ k.transpose(0, 2, 1) / np.sqrt(D)


class ScoresNotScaled(OtherGPT2):
    def scores(self, q, k, layer):
        return q @ k.transpose(0, 2, 1)


class ScoresDividedWithoutRoot(OtherGPT2):
    def scores(self, q, k, layer):
        K = q.shape[-1]
        return q @ k.transpose(0, 2, 1) / K


class ScoresDividedByLayer(OtherGPT2):
    def scores(self, q, k, layer):
        return super().scores(q, k, layer) / (layer + 1)


class NoMask(OtherGPT2):
    def hide_later(self, scores):
        return scores


class MaskThatShowsTheNextToken(OtherGPT2):
    def is_later(self, scores):
        return np.triu(np.ones(scores.shape[-2:], bool), k=2)


class MaskThatHidesTheTokenItself(OtherGPT2):
    def is_later(self, scores):
        return np.triu(np.ones(scores.shape[-2:], bool), k=0)


class FiniteMaskThatHidesTheTokenItself(OtherGPT2):
    def hide_later(self, scores):
        hidden = np.triu(np.ones(scores.shape[-2:], bool), k=0)
        return np.where(hidden, -1e9, scores)


class MaskOfZeros(OtherGPT2):
    def hide_later(self, scores):
        return np.where(self.is_later(scores), 0, scores)


class MaskOfThePast(OtherGPT2):
    """The mask hides the keys before the query, not the keys after it."""

    def is_later(self, scores):
        return super().is_later(scores).T


class MaskAfterSoftmax(OtherGPT2):
    def pattern(self, scores):
        return np.where(self.is_later(scores), 0, self.softmax(scores))


class SoftmaxOverQueries(OtherGPT2):
    """The sum is over axis -2 of the scores (the queries), not over axis -1 (the keys)."""

    def softmax(self, x):
        exponentials = np.exp(x - x.max(axis=-2, keepdims=True))
        return exponentials / exponentials.sum(axis=-2, keepdims=True)


# The embedding and the head


class NoPositions(OtherGPT2):
    def embed(self, ids):
        return self.token_vectors(ids)


class PositionsFrom1(OtherGPT2):
    def positions(self, T):
        return np.arange(T) + 1


class PositionsFromMinus1(OtherGPT2):
    def positions(self, T):
        """-1, 0, 1, ... NumPy takes index -1 for the last row of wpe."""
        return np.arange(T) - 1


class Position0Twice(OtherGPT2):
    def positions(self, T):
        """0, 0, 1, 2, ..."""
        return np.maximum(np.arange(T) - 1, 0)


class Position0Only(OtherGPT2):
    def positions(self, T):
        return np.zeros(T, int)


class IdsPlus1(OtherGPT2):
    def token_vectors(self, ids):
        return super().token_vectors(ids + 1)


class IdsMinus1(OtherGPT2):
    def token_vectors(self, ids):
        return super().token_vectors(ids - 1)


class TokenBeforeLastFirst(OtherGPT2):
    """Each token is replaced by the token before it, and the first token by the last token."""

    def token_vectors(self, ids):
        return super().token_vectors(np.roll(ids, 1))


class TokenBefore0First(OtherGPT2):
    """Each token is replaced by the token before it, and the first token by the token with id 0."""

    def token_vectors(self, ids):
        before = np.concatenate([[0], ids[:-1]])
        return super().token_vectors(before)


class TokenAfter(OtherGPT2):
    """Each token is replaced by the token after it. The last token stays."""

    def token_vectors(self, ids):
        after = np.concatenate([ids[1:], ids[-1:]])
        return super().token_vectors(after)


class TokensTimesRootOfWidth(OtherGPT2):
    def token_vectors(self, ids):
        vectors = super().token_vectors(ids)
        D = vectors.shape[-1]
        return vectors * math.sqrt(D)


class TiedHead(OtherGPT2):
    def logits(self, final):
        return final @ self.parameters["wte.weight"].T


class ProbabilitiesForLogits(OtherGPT2):
    def logits(self, final):
        return self.softmax(super().logits(final))


class ZerosForLogits(OtherGPT2):
    def logits(self, final):
        return 0 * super().logits(final)
