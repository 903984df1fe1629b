"""Live parity with transformers: both libraries load the same files and compute the same numbers.

What transformers computes in float64 is taken as the right result. The tests need torch and
transformers (pip install torch==2.13.0, then the extra `parity`). Without them, test_goldens.py
compares with saved results of transformers. `theirs` and `expected` are of transformers.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import make_goldens  # of scripts/: what makes the goldens also makes the checkpoints here
import numpy as np
import pytest
from support.models import SMALL, random_model

import tiedgpt
from tiedgpt import GPT2
from tiedgpt.checkpoints.safetensors import read_header
from tiedgpt.evaluation import token_losses
from tiedgpt.generation import Sampling
from tiedgpt.gpt2.activations import ACTIVATIONS
from tiedgpt.gpt2.config import HEADS

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: the extra `parity`"
)


@contextmanager
def third_party() -> Iterator[None]:
    """For calls of transformers: ignore its warnings and compute no gradients."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


with third_party():
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.generation import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()

# Several threads of torch and of NumPy would take the processors from each other while they wait.
torch.set_num_threads(1)


def transformers_model(directory: Path, dtype: Any = None) -> Any:
    """A checkpoint as transformers loads it, by default in float64."""
    with third_party():
        return GPT2LMHeadModel.from_pretrained(directory, dtype=dtype or torch.float64).eval()


def transformers_logits(model: Any, ids: np.ndarray) -> np.ndarray:  # [B, T] -> [B, T, V]
    with third_party():
        return model(torch.from_numpy(ids)).logits.numpy()


def transformers_greedy(model: Any, ids: np.ndarray, new: int) -> list[int]:  # [T] -> new ids
    """The greedy continuation by transformers' own generate, its end-of-text token included."""
    batch_of_one = torch.from_numpy(ids)[None]
    with third_party():
        out = model.generate(
            batch_of_one,
            attention_mask=torch.ones_like(batch_of_one),
            max_new_tokens=new,
            do_sample=False,
            pad_token_id=0,  # generate asks for one, although there is no padding here
        )
    return out[0, ids.size :].tolist()


def random_transformers_model(
    config: Any, ids: np.ndarray, seed: int = 0, positions: float = 1.0
) -> Any:
    """A model with random parameters, whose largest logit for `ids` is about 10.

    positions: a factor of the position embedding. With a large one, a greedy continuation does not
    repeat one token.
    """
    with third_party():  # without gradients, so that parameters can be changed in place
        model = GPT2LMHeadModel(config).eval()
        make_goldens.randomise(model, seed)
        model.transformer.wpe.weight.mul_(positions)
        make_goldens.scale_logits(model, torch.from_numpy(ids))
    return model


def assert_close(actual: np.ndarray, expected: np.ndarray, atol: float) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


SHAPES: dict[str, dict[str, int]] = {
    "small": {
        "vocab_size": 101,
        "n_positions": 31,
        "n_embd": 21,
        "n_layer": 2,
        "n_head": 3,
        "n_inner": 17,
    },
    "deep": {"vocab_size": 61, "n_positions": 19, "n_embd": 10, "n_layer": 7, "n_head": 5},
    "wide": {
        "vocab_size": 257,
        "n_positions": 67,
        "n_embd": 96,
        "n_layer": 1,
        "n_head": 2,
        "n_inner": 100,
    },
    "heads one wide": {"vocab_size": 59, "n_positions": 13, "n_embd": 7, "n_layer": 2, "n_head": 7},
    "no block": {"vocab_size": 43, "n_positions": 11, "n_embd": 6, "n_layer": 0, "n_head": 1},
}
FIELDS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "epsilon": {"layer_norm_epsilon": 1e-2},
    "unscaled": {"scale_attn_weights": False},
    "by layer": {"scale_attn_by_inverse_layer_idx": True},
    "unscaled, by layer": {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
    "upcast": {"reorder_and_upcast_attn": True},  # changes nothing but in half precision
}
STORED = ["float32", "float16", "bfloat16", "float32 shards", "bfloat16 shards"]


@dataclass(frozen=True)
class Case:
    """A checkpoint of transformers. `shape` and `fields` are keys of SHAPES and FIELDS."""

    head: str
    shape: str = "small"
    fields: str = "defaults"
    activation: str = "gelu_new"
    stored: str = "float32"

    def __str__(self) -> str:
        return ", ".join(astuple(self))

    def differs_in_one_field(self) -> bool:
        """Whether at most one field differs from its default; the head has no default."""
        different = set(astuple(self)) - set(astuple(Case(self.head)))
        return len(different) <= 1

    def has_shards(self) -> bool:
        # The file of the model without a block is too small to be divided.
        return "shards" in self.stored and self.shape != "no block"

    def dtype(self) -> Any:
        name = self.stored.removesuffix(" shards")
        return getattr(torch, name)

    def config(self) -> Any:
        return GPT2Config(
            **SHAPES[self.shape],
            **FIELDS[self.fields],
            activation_function=self.activation,
            tie_word_embeddings=self.head == "tied",
            bos_token_id=0,
            eos_token_id=[0, 1],
        )


def chosen_cases() -> list[Any]:
    """All cases that differ from the defaults in one field, and forty random cases.

    Of the random ones, the first ten are quick tests.
    """
    every_case = [Case(*keys) for keys in product(HEADS, SHAPES, FIELDS, ACTIVATIONS, STORED)]
    random_numbers = np.random.default_rng(3).choice(len(every_case), 40, replace=False)
    chosen = []
    for number, case in enumerate(every_case):
        if case.differs_in_one_field() or number in random_numbers[:10]:
            chosen.append(case)
        elif number in random_numbers:
            chosen.append(pytest.param(case, marks=pytest.mark.slow))
    return chosen


@pytest.mark.parametrize("case", chosen_cases(), ids=str)
def test_a_checkpoint_of_transformers_is_loaded_and_saved_again(tmp_path: Path, case: Case) -> None:
    """The logits of a batch of n_ctx tokens stay the same in all these steps:

    transformers -> load_model -> save_model -> transformers
    """
    config = case.config()
    ids = np.random.default_rng(0).integers(config.vocab_size, size=(3, config.n_positions))
    written = random_transformers_model(config, ids).to(case.dtype())
    theirs = tmp_path / "theirs"
    shard_size = "1GB"
    if case.has_shards():
        shard_size = 4000  # bytes, so that the file is divided into shards
    with third_party():
        written.save_pretrained(theirs, max_shard_size=shard_size)
    assert (theirs / "model.safetensors.index.json").exists() == case.has_shards()

    expected = transformers_logits(written.double(), ids)
    # random_transformers_model chooses weights for which the largest of these logits is about 10.
    assert 9 < np.abs(expected).max() < 11, "the tolerances below are for logits of this size"
    model = tiedgpt.load_model(theirs)
    assert model.config.head == case.head
    assert_close(model(ids[1]), expected[1], 1e-4)  # a single sequence, in float32
    logits_after_saving = save_and_compare(model, ids, tmp_path)
    assert_close(logits_after_saving, expected, 1e-12)


def save_and_compare(  # ids [B, T] -> [B, T, V]
    model: GPT2, ids: np.ndarray, directory: Path
) -> np.ndarray:
    """Save the model. transformers must load it without a complaint and compute the same logits.

    Returns the logits that transformers computes in float64. transformers also saves the model
    again: both files must have the same names, dtypes and shapes of tensors.
    """
    tiedgpt.save_model(model, None, directory / "saved")
    with third_party():
        loaded, complaints = GPT2LMHeadModel.from_pretrained(
            directory / "saved", output_loading_info=True
        )
        loaded.save_pretrained(directory / "again")
    # transformers still has these kinds of complaints, and there is none of any kind.
    assert complaints.keys() >= {"missing_keys", "unexpected_keys", "mismatched_keys"}
    assert not any(complaints.values()), complaints
    assert (loaded.lm_head.weight is loaded.transformer.wte.weight) == model.config.tied
    assert dtypes_and_shapes(directory / "saved") == dtypes_and_shapes(directory / "again")

    logits = transformers_logits(loaded.eval().double(), ids)
    assert_close(model(ids), logits, 1e-4)
    assert_close(model.astype(np.float64)(ids), logits, 1e-9)
    return logits


def dtypes_and_shapes(directory: Path) -> dict[str, tuple[Any, Any]]:
    """The dtype and the shape of each tensor in model.safetensors, by its name."""
    header, _ = read_header(directory / "model.safetensors")
    return {name: (tensor.dtype, tensor.shape) for name, tensor in header.items()}


TIED = random_model(SMALL, seed=1)
UNTIED = random_model(SMALL.with_head("untied"), seed=2)
GOLDENS = Path(__file__).parents[1] / "goldens"
SAVED = {
    "untied by copy": TIED.untie("copy"),
    "untied at random": TIED.untie("random", seed=3),
    "tied again": UNTIED.tie(),
    "tied and untied again": UNTIED.tie().untie("copy"),
    "loaded untied": tiedgpt.load_model(GOLDENS / "tied", head="untied"),
    "loaded tied": tiedgpt.load_model(GOLDENS / "untied", head="tied"),
}


@pytest.mark.parametrize("kind", SAVED)
def test_transformers_reads_a_saved_model_whose_head_was_changed(tmp_path: Path, kind: str) -> None:
    config = SAVED[kind].config
    ids = np.random.default_rng(0).integers(config.vocab_size, size=(3, config.n_ctx))
    save_and_compare(SAVED[kind], ids, tmp_path)


@pytest.mark.slow
def test_each_golden_is_a_case_of_make_goldens() -> None:
    folders = {path.parent.name for path in GOLDENS.glob("*/config.json")}
    assert folders == set(make_goldens.CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", make_goldens.CASES)
def test_make_goldens_writes_the_same_checkpoint_again(tmp_path: Path, name: str) -> None:
    with third_party():
        make_goldens.write_case(name, tmp_path)
    written = tiedgpt.load_model(tmp_path)
    golden = tiedgpt.load_model(GOLDENS / name)
    assert written.config == golden.config
    for tensor, array in written.parameters.items():
        np.testing.assert_array_equal(array, golden.parameters[tensor], tensor)


@pytest.mark.parametrize("has_two", [False, True], ids=["one-end-token", "two-end-tokens"])
def test_a_greedy_text_ends_where_that_of_transformers_ends(tmp_path: Path, has_two: bool) -> None:
    """The text of transformers includes the token that ends it; the text of tiedgpt does not."""
    ids = np.arange(7)
    config = GPT2Config(**SHAPES["small"], bos_token_id=None, eos_token_id=None)
    random_transformers_model(config, ids[None]).save_pretrained(tmp_path)
    without_end = transformers_greedy(transformers_model(tmp_path), ids, 12)
    assert len(without_end) == 12

    # Make one or two of these twelve tokens end the text.
    config.eos_token_id = without_end[5]
    if has_two:
        config.eos_token_id = [without_end[3], without_end[5]]
    config.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()  # it says that no token ends the text
    with_end = transformers_greedy(transformers_model(tmp_path), ids, 12)
    assert len(with_end) < 12
    tokens = tiedgpt.generate(tiedgpt.load_model(tmp_path), ids, max_new_tokens=12, greedy=True)
    assert list(tokens) == with_end[:-1]


def transformers_probabilities(logits: np.ndarray, sampling: Sampling) -> np.ndarray:  # [V] -> [V]
    warpers: list[Any] = [TemperatureLogitsWarper(sampling.temperature)]
    if sampling.top_k is not None:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p is not None:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    scores = torch.from_numpy(logits)[None].double()
    for warper in warpers:
        scores = warper(None, scores)  # None for the ids before, which these warpers do not use
    return scores.softmax(-1)[0].numpy()


# Logits of 1009 tokens
NORMAL = np.random.default_rng(4).standard_normal(1009, np.float32)
PEAK = np.float32(np.arange(1009) == 500)  # 1 for token 500, and 0 for all other tokens
LOGITS = {
    "random": NORMAL,
    "peaked": NORMAL + 25 * PEAK,  # token 500 has almost all the probability
    "two peaks": NORMAL + 12 * PEAK + 11 * np.roll(PEAK, 100),
    "steep": 10 * NORMAL,
    "as GPT-2's": 3 * NORMAL - 100,  # the logits of GPT-2 are as far from 0
    "equal": np.round(2 * NORMAL),  # many tokens have the same logit
}


TOP_K = [None, 1, 2, 40, 1008, 1009, 5000]
TOP_P = [None, 1e-6, 0.1, 0.5, 0.9, 0.999, 1]


@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("temperature", [0.01, 0.7, 1.0, 1.3, 5.0])
def test_sampling_probabilities_are_those_of_transformers(kind: str, temperature: float) -> None:
    logits = LOGITS[kind]
    for top_k, top_p in product(TOP_K, TOP_P):
        sampling = Sampling(temperature, top_k, top_p)
        p = sampling.probabilities(logits)
        expected = transformers_probabilities(logits, sampling)
        # If several tokens have the same logit, top_p may keep only some of them. Both libraries
        # keep the same number of tokens, but not the same tokens.
        if kind == "equal" and top_p not in (None, 1.0):
            p = np.sort(p)
            expected = np.sort(expected)
        assert np.array_equal(p > 0, expected > 0), sampling
        np.testing.assert_allclose(p, expected, rtol=1e-11, atol=0, err_msg=f"{sampling}")


def recipe(model: Any, ids: np.ndarray, max_length: int, stride: int) -> float:  # ids [N]
    """The mean loss of a text, by the sliding windows in the documentation of transformers."""
    losses = []  # the mean of each window
    counts = []  # the number of tokens in this mean
    previous_end = 0
    for start in range(0, ids.size, stride):
        end = min(start + max_length, ids.size)
        labels = torch.from_numpy(ids[None, start:end]).clone()
        inputs = labels.clone()
        # The label -100 leaves out the tokens that earlier windows have predicted.
        new_tokens = end - previous_end
        labels[:, :-new_tokens] = -100
        with third_party():
            losses.append(model(inputs, labels=labels).loss.item())
        # The first token of a window is not predicted.
        counts.append(int((labels[:, 1:] != -100).sum()))
        previous_end = end
        if end == ids.size:
            break
    return float(np.average(losses, weights=counts))


@pytest.mark.parametrize("stride", [1, 10, 15, 30, 31])
@pytest.mark.parametrize("tied", [True, False], ids=HEADS)
def test_the_mean_loss_is_that_of_the_recipe(tmp_path: Path, tied: bool, stride: int) -> None:
    config = GPT2Config(**SHAPES["small"], tie_word_embeddings=tied, bos_token_id=0, eos_token_id=0)
    n_ctx = config.n_positions
    ids = np.random.default_rng(8).integers(config.vocab_size, size=3 * n_ctx + 5)
    first_window = ids[None, :n_ctx]
    # The model's logits are scaled so that the largest logit of the first window is about 10.
    random_transformers_model(config, first_window, seed=8).save_pretrained(tmp_path)
    expected = recipe(transformers_model(tmp_path), ids, n_ctx, stride)
    model = tiedgpt.load_model(tmp_path)
    in_float32 = token_losses(model, ids, stride).mean()
    in_float64 = token_losses(model.astype(np.float64), ids, stride).mean()
    assert in_float32 == pytest.approx(expected, rel=1e-6)
    # transformers computes the loss from logits in float32, so that a lower tolerance would fail.
    assert in_float64 == pytest.approx(expected, rel=1e-7)


# A random model of GPT-2 124M's size


@dataclass
class FullSize:
    """A model, two prompts [1, T], and what transformers computed from them in float64."""

    model: GPT2
    prompt: np.ndarray
    logits: np.ndarray  # of the prompt: [1, T, V]
    logits_in_float32: np.ndarray  # the same by transformers in float32
    greedy: list[int]  # the greedy continuation of the prompt
    greedy_logits: np.ndarray  # [n, V]: each row chose one token of `greedy`
    long_prompt: np.ndarray
    long_last_logits: np.ndarray  # of the last token of the long prompt: [V]


@pytest.fixture(scope="module", params=HEADS)
def full_size(request: pytest.FixtureRequest, tmp_path_factory: Any) -> FullSize:
    """A random model of GPT-2 124M's size, and what transformers computes from two prompts."""
    directory = tmp_path_factory.mktemp("full-size")
    config = GPT2Config(tie_word_embeddings=request.param == "tied")
    rng = np.random.default_rng(5)
    prompt = rng.integers(config.vocab_size, size=(1, 64))
    long_prompt = rng.integers(config.vocab_size, size=(1, 600))
    random_transformers_model(config, prompt, seed=6, positions=7).save_pretrained(directory)

    in_float32 = transformers_model(directory, torch.float32)
    logits_in_float32 = transformers_logits(in_float32, prompt)
    del in_float32  # frees its memory

    theirs = transformers_model(directory)  # in float64
    greedy = transformers_greedy(theirs, prompt[0], 20)
    continued = np.append(prompt, [greedy], axis=1)
    # The logits after a token choose the next token. So the first token of `greedy` is chosen after
    # the last token of the prompt, and its last token after the last but one of the whole text.
    logits_of_continued = transformers_logits(theirs, continued)
    greedy_logits = logits_of_continued[0, prompt.size - 1 : -1]
    with third_party():
        last_of_long_prompt = theirs(torch.from_numpy(long_prompt), logits_to_keep=1)
    return FullSize(
        model=tiedgpt.load_model(directory),
        prompt=prompt,
        logits=logits_of_continued[:, : prompt.size],
        logits_in_float32=logits_in_float32,
        greedy=greedy,
        greedy_logits=greedy_logits,
        long_prompt=long_prompt,
        long_last_logits=last_of_long_prompt.logits[0, 0].numpy(),
    )


def rounding_of_products(product: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> float:
    """The root mean square error of `product` for two float32 matrices as in the model's MLP."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((64, 768), np.float32)
    W = rng.standard_normal((768, 3072), np.float32)
    errors = product(x, W) - x.astype(np.float64) @ W.astype(np.float64)
    return np.sqrt(np.mean(errors**2))


def product_of_torch(x: np.ndarray, W: np.ndarray) -> np.ndarray:
    return (torch.from_numpy(x) @ torch.from_numpy(W)).numpy()


@pytest.mark.slow
def test_full_size_logits_are_as_exact_as_those_of_transformers(full_size: FullSize) -> None:
    """The error in float32 is at most 1.5 times that of transformers.

    Where NumPy's matrix products have larger errors than torch's, the allowed error is larger by
    the same factor. With OpenBLAS on AVX-512, this factor is 1.4.
    """
    by_numpy = rounding_of_products(np.matmul)
    by_torch = rounding_of_products(product_of_torch)
    allowed = 1.5 * max(1, by_numpy / by_torch)
    error = np.abs(full_size.model(full_size.prompt) - full_size.logits).max()
    their_error = np.abs(full_size.logits_in_float32 - full_size.logits).max()
    assert 9 < np.abs(full_size.logits).max() < 11, "the model was scaled to logits of about 10"
    assert error <= allowed * their_error


@pytest.mark.slow
def test_full_size_greedy_tokens_are_those_of_transformers(full_size: FullSize) -> None:
    sorted_logits = np.sort(full_size.greedy_logits, axis=-1)
    highest = sorted_logits[:, -1]
    second_highest = sorted_logits[:, -2]
    margins = highest - second_highest
    assert margins.min() > 1e-3, "rounding decides a token"
    assert len(set(full_size.greedy)) > 5, "one token is repeated"
    tokens = tiedgpt.generate(full_size.model, full_size.prompt[0], max_new_tokens=20, greedy=True)
    assert list(tokens) == full_size.greedy


def logits_of_pieces(model: GPT2, ids: np.ndarray, cuts: Any) -> np.ndarray:
    """The logits of a text that is cut before the tokens `cuts` and read piece by piece."""
    cache = model.new_cache()
    logits = [model(piece, cache) for piece in np.split(ids, cuts, axis=1)]
    return np.concatenate(logits, axis=1)


@pytest.mark.slow
def test_full_size_logits_token_by_token(full_size: FullSize) -> None:
    before_each_token_but_the_first = range(1, full_size.prompt.size)
    logits = logits_of_pieces(full_size.model, full_size.prompt, before_each_token_but_the_first)
    assert_close(logits, full_size.model(full_size.prompt), 1e-4)
    assert_close(logits[0, -1], full_size.logits[0, -1], 1e-4)


@pytest.mark.slow
def test_full_size_logits_of_a_long_text_in_pieces(full_size: FullSize) -> None:
    logits = logits_of_pieces(full_size.model, full_size.long_prompt, [256, 512, 513, 590])
    assert_close(logits, full_size.model(full_size.long_prompt), 1e-4)
    assert_close(logits[0, -1], full_size.long_last_logits, 1e-4)
