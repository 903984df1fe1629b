"""Live parity with transformers: both load the same files. transformers in float64 is the reference.

Needs torch and transformers (pip install torch==2.13.0, then the extra `parity`); without them
test_goldens.py compares with what transformers computed before.
"""

import runpy
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import SMALL, random_model

import tiedgpt
from tiedgpt import GPT2
from tiedgpt.activations import ACTIVATIONS
from tiedgpt.checkpoints.safetensors import read_header
from tiedgpt.config import HEADS
from tiedgpt.inference.evaluation import token_losses
from tiedgpt.inference.sampling import Sampling

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: the extra `parity`")


@contextmanager
def third_party() -> Iterator[None]:
    """For calls of transformers: ignore its warnings and compute no gradients."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


with third_party():
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.activations import get_activation
    from transformers.generation import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    # What makes the goldens also makes the checkpoints here: randomise, scale_logits, write_case, CASES.
    SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "make_goldens.py"
    make_goldens = SimpleNamespace(**runpy.run_path(str(SCRIPT)))
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()

# torch's threads wait for work by spinning, in the way of NumPy's: on a busy machine a minute becomes many.
torch.set_num_threads(1)


def transformers_model(directory: Path, dtype: Any = None) -> Any:
    """A checkpoint as transformers loads it, in float64 if not told otherwise."""
    with third_party():
        return GPT2LMHeadModel.from_pretrained(directory, dtype=dtype or torch.float64).eval()


def transformers_logits(model: Any, ids: np.ndarray) -> np.ndarray:  # [B, T] -> [B, T, V]
    with third_party():
        return model(torch.from_numpy(ids)).logits.numpy()


def transformers_greedy(model: Any, ids: np.ndarray, new: int) -> list[int]:  # [T] -> new ids
    """The greedy continuation by transformers' own generate, its end-of-text token included."""
    whole = torch.from_numpy(ids)[None]
    with third_party():
        out = model.generate(
            whole, attention_mask=torch.ones_like(whole), max_new_tokens=new, do_sample=False, pad_token_id=0
        )
    return out[0, ids.size :].tolist()


def random_transformers_model(config: Any, ids: np.ndarray, seed: int = 0, positions: float = 1.0) -> Any:
    """A model whose every parameter matters, with logits for `ids` up to make_goldens.SCALE, 10.

    The larger `positions`, the more its continuations depend on them instead of repeating one token.
    """
    with third_party():
        model = GPT2LMHeadModel(config).eval()
        make_goldens.randomise(model, seed)
        model.transformer.wpe.weight.mul_(positions)
        make_goldens.scale_logits(model, torch.from_numpy(ids))
    return model


def assert_close(actual: np.ndarray, expected: np.ndarray, atol: float) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


# Loading: checkpoints of every kind that transformers writes.

SHAPES: dict[str, dict[str, int]] = {
    "small": {"vocab_size": 101, "n_positions": 31, "n_embd": 21, "n_layer": 2, "n_head": 3},
    "deep": {"vocab_size": 61, "n_positions": 19, "n_embd": 10, "n_layer": 7, "n_head": 5},
    "wide": {"vocab_size": 257, "n_positions": 67, "n_embd": 96, "n_layer": 1, "n_head": 2, "n_inner": 100},
    "heads one wide": {"vocab_size": 59, "n_positions": 13, "n_embd": 7, "n_layer": 2, "n_head": 7},
    "no block": {"vocab_size": 43, "n_positions": 11, "n_embd": 6, "n_layer": 0, "n_head": 1},
}
FIELDS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "n_inner": {"n_inner": 17},
    "epsilon": {"layer_norm_epsilon": 1e-2},
    "unscaled": {"scale_attn_weights": False},
    "by layer": {"scale_attn_by_inverse_layer_idx": True},
    "unscaled, by layer": {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
    "upcast": {"reorder_and_upcast_attn": True},  # in half precision alone it would change anything
}
STORED = {  # torch's name of the dtype, bytes per shard
    "float32": ("float32", None),
    "float16": ("float16", None),
    "bfloat16": ("bfloat16", None),
    "float32 shards": ("float32", 9000),
    "bfloat16 shards": ("bfloat16", 4000),
}


def check_loading(
    directory: Path,
    overrides: dict[str, Any],
    dtype: str = "float32",
    shard: int | None = None,
    seed: int = 0,
) -> None:
    """Write a random checkpoint, read it with both, compare the logits of a batch that fills the context."""
    config = GPT2Config(**{"bos_token_id": 0, "eos_token_id": 0, **overrides})
    ids = np.random.default_rng(seed).integers(config.vocab_size, size=(3, config.n_positions))
    written = random_transformers_model(config, ids, seed)
    with third_party():
        sharding = {} if shard is None else {"max_shard_size": shard}
        written.to(getattr(torch, dtype)).save_pretrained(directory, **sharding)
    assert (directory / "model.safetensors.index.json").exists() == (shard is not None)

    expected = transformers_logits(transformers_model(directory), ids)
    assert 9 < np.abs(expected).max() < 11
    model = tiedgpt.load_model(directory)
    assert model.config.tied == config.tie_word_embeddings
    assert_close(model(ids), expected, 1e-4)
    assert_close(model(ids[1]), expected[1], 1e-4)
    assert_close(model.astype(np.float64)(ids), expected, 1e-9)


@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tied", [True, False], ids=HEADS)
def test_loading_every_shape_with_every_field(tmp_path: Path, tied: bool, shape: str, fields: str) -> None:
    check_loading(tmp_path, {"tie_word_embeddings": tied, **SHAPES[shape], **FIELDS[fields]})


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("tied", [True, False], ids=HEADS)
def test_loading_every_activation(tmp_path: Path, tied: bool, activation: str) -> None:
    overrides = {"tie_word_embeddings": tied, "activation_function": activation}
    check_loading(tmp_path, {**SHAPES["wide"], **overrides}, seed=1)


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("shape", ["small", "deep"])
@pytest.mark.parametrize("tied", [True, False], ids=HEADS)
def test_loading_every_way_of_storing(tmp_path: Path, tied: bool, shape: str, stored: str) -> None:
    dtype, shard = STORED[stored]
    check_loading(tmp_path, {"tie_word_embeddings": tied, **SHAPES[shape]}, dtype, shard, seed=2)


def some_combinations() -> Iterator[Any]:
    """The axes one against the other would be thousands of checkpoints: a random forty of them."""
    grid = list(product(HEADS, SHAPES, FIELDS, ACTIVATIONS, STORED))
    for seed, at in enumerate(np.random.default_rng(3).choice(len(grid), 40, replace=False)):
        yield pytest.param(*grid[at], seed, id=", ".join(grid[at]))


@pytest.mark.parametrize(
    ("head", "shape", "fields", "activation", "stored", "seed"), list(some_combinations())
)
def test_loading_any_combination(
    tmp_path: Path, head: str, shape: str, fields: str, activation: str, stored: str, seed: int
) -> None:
    overrides = {"tie_word_embeddings": head == "tied", "activation_function": activation}
    dtype, shard = STORED[stored]
    shard = None if shape == "no block" else shard  # which is too small to be divided
    check_loading(tmp_path, {**SHAPES[shape], **FIELDS[fields], **overrides}, dtype, shard, seed)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name: str) -> None:
    x = np.concatenate([np.linspace(-30, 30, 6001), [-1e4, 1e4]])
    with third_party():
        expected = get_activation(name)(torch.from_numpy(x)).numpy()
    # gelu_fast has sqrt(2/pi) to ten digits only.
    np.testing.assert_allclose(ACTIVATIONS[name].forward(x), expected, rtol=1e-13, atol=3e-11)
    np.testing.assert_allclose(
        ACTIVATIONS[name].forward(x.astype(np.float32)), expected, rtol=1e-6, atol=1e-6
    )


def test_the_goldens_are_what_the_script_writes(tmp_path: Path) -> None:
    committed = SCRIPT.parents[1] / "tests" / "goldens"
    assert {path.parent.name for path in committed.glob("*/config.json")} == set(make_goldens.CASES)
    for name in make_goldens.CASES:
        with third_party():
            make_goldens.write_case(name, tmp_path / name)
        old, new = (tiedgpt.load_model(directory / name) for directory in (committed, tmp_path))
        assert old.config == new.config
        assert all(np.array_equal(old.parameters[key], new.parameters[key]) for key in new.parameters)


@pytest.mark.parametrize("eos", [None, 5, [3, 5]])
def test_greedy_ends_where_transformers_ends(tmp_path: Path, eos: Any) -> None:
    """transformers gives the end-of-text token, generate does not."""
    ids = np.arange(7)
    config = GPT2Config(**SHAPES["small"], bos_token_id=None, eos_token_id=None)
    random_transformers_model(config, ids[None]).save_pretrained(tmp_path)
    free = transformers_greedy(transformers_model(tmp_path), ids, 12)
    assert len(free) == 12
    if eos is None:
        expected = free
    else:  # the ids at which this continuation is to end
        config.eos_token_id = free[eos] if isinstance(eos, int) else [free[at] for at in eos]
        config.save_pretrained(tmp_path)
        (tmp_path / "generation_config.json").unlink()
        ended = transformers_greedy(transformers_model(tmp_path), ids, 12)
        assert len(ended) < 12
        expected = ended[:-1]
    tokens = tiedgpt.generate(tiedgpt.load_model(tmp_path), ids, max_new_tokens=12, greedy=True)
    assert list(tokens) == expected


# Saving: what save_model writes, as transformers reads it.


def transposed(model: GPT2) -> GPT2:
    """The same numbers, each matrix a transposed view: what safetensors' own writer writes wrongly."""
    views = {name: np.ascontiguousarray(array.T).T for name, array in model.parameters.items()}
    assert all(not view.flags.c_contiguous for view in views.values() if view.ndim == 2)
    return GPT2(model.config, views)


def strided(model: GPT2) -> GPT2:
    """The same numbers, every one from the middle of a larger array."""
    views = {name: np.stack([array, -array], axis=-1)[..., 0] for name, array in model.parameters.items()}
    assert not any(view.flags.c_contiguous or view.flags.f_contiguous for view in views.values())
    return GPT2(model.config, views)


def fortran(model: GPT2) -> GPT2:
    """The same numbers in Fortran order."""
    return GPT2(model.config, {name: np.asfortranarray(a) for name, a in model.parameters.items()})


TIED, UNTIED = random_model(SMALL, seed=1), random_model(SMALL.with_head("untied"), seed=2)
SAVED = {
    "tied": lambda: TIED,
    "untied": lambda: UNTIED,
    "untied by copy": lambda: TIED.untie("copy"),
    "untied at random": lambda: TIED.untie("random", seed=3),
    "tied again": lambda: UNTIED.tie(),
    "tied and untied again": lambda: UNTIED.tie().untie("copy"),
    "tied, transposed views": lambda: transposed(TIED),
    "untied, transposed views": lambda: transposed(UNTIED),
    "W_U made into a parameter": lambda: GPT2(
        UNTIED.config, {**UNTIED.parameters, "lm_head.weight": np.ascontiguousarray(UNTIED.W_U).T}
    ),
    "untied, Fortran order": lambda: fortran(UNTIED),
    "tied, Fortran order": lambda: fortran(TIED),
    "tied, strided": lambda: strided(TIED),
    "untied, strided": lambda: strided(UNTIED),
    "tied, float64": lambda: TIED.astype(np.float64),
    "untied, float64": lambda: UNTIED.astype(np.float64),
}


def check_saving(model: GPT2, directory: Path) -> None:
    """Save, let transformers load it without a complaint and save it again, compare names and logits."""
    tiedgpt.save_model(model, None, directory / "saved")
    with third_party():
        loaded, complaints = GPT2LMHeadModel.from_pretrained(directory / "saved", output_loading_info=True)
        loaded.save_pretrained(directory / "again")
    assert complaints.keys() >= {"missing_keys", "unexpected_keys", "mismatched_keys"}
    assert not any(complaints.values()), complaints
    assert (loaded.lm_head.weight is loaded.transformer.wte.weight) == model.config.tied
    # What loading forgives, a prefix too many for one, other readers of the format need not.
    saved, again = (read_header(directory / name / "model.safetensors") for name in ("saved", "again"))
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in saved.items()} == {
        name: (tensor.dtype, tensor.shape) for name, tensor in again.items()
    }

    ids = np.random.default_rng(0).integers(model.config.vocab_size, size=(3, model.config.n_ctx))
    expected = transformers_logits(loaded.eval().double(), ids)
    assert_close(model(ids), expected, 1e-4)
    assert_close(model.astype(np.float64)(ids), expected, 1e-9)


@pytest.mark.parametrize("kind", SAVED)
def test_transformers_reads_what_is_saved(tmp_path: Path, kind: str) -> None:
    check_saving(SAVED[kind](), tmp_path)


def check_saving_again(directory: Path, head: str, overrides: dict[str, Any], dtype: str = "float32") -> None:
    """transformers -> load_model with this head -> save_model -> transformers."""
    config = GPT2Config(**{"bos_token_id": 0, "eos_token_id": [0, 1], **overrides})
    ids = np.arange(5)[None]
    written = random_transformers_model(config, ids).to(getattr(torch, dtype))
    written.save_pretrained(directory / "theirs")
    check_saving(tiedgpt.load_model(directory / "theirs", head=head), directory / "ours")
    if (
        head == "untied" or config.tie_word_embeddings
    ):  # else a W_U was left behind, and the logits are others
        ours = transformers_model(directory / "ours" / "saved")
        assert_close(transformers_logits(ours, ids), transformers_logits(written.double(), ids), 1e-12)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tied", [True, False], ids=HEADS)
def test_saving_again_with_every_shape(tmp_path: Path, tied: bool, shape: str, head: str) -> None:
    check_saving_again(tmp_path, head, {"tie_word_embeddings": tied, **SHAPES[shape]})


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("fields", FIELDS)
def test_saving_again_with_every_field(tmp_path: Path, fields: str, dtype: str) -> None:
    """From half precision also: the file is float32 then, and config.json must not say otherwise."""
    overrides = {"activation_function": "quick_gelu", **SHAPES["small"], **FIELDS[fields]}
    check_saving_again(tmp_path, "untied", overrides, dtype)


# Sampling: the distribution that is drawn from.


def transformers_probabilities(
    logits: np.ndarray, temperature: float, top_k: int | None, top_p: float | None
) -> np.ndarray:  # [V] -> [V]
    warpers = [TemperatureLogitsWarper(temperature)]
    warpers += [TopKLogitsWarper(top_k)] if top_k is not None else []
    warpers += [TopPLogitsWarper(top_p)] if top_p is not None else []
    scores = torch.from_numpy(logits)[None].double()
    with third_party():
        for warper in warpers:
            scores = warper(None, scores)
        return scores.softmax(-1)[0].numpy()


def example_logits(kind: str, V: int = 1009) -> np.ndarray:  # -> [V]
    rng = np.random.default_rng(4)
    logits = rng.standard_normal(V).astype(np.float32)
    if kind == "peaked":  # one token has almost everything
        logits[rng.integers(V)] += 25
    elif kind == "two peaks":
        logits[rng.choice(V, 2, replace=False)] += [12, 11]
    elif kind == "steep":
        logits *= 10
    elif kind == "as GPT-2's":  # far from zero, as the real model's are
        logits = 3 * logits - 100
    return logits


LOGITS = ["random", "peaked", "two peaks", "steep", "as GPT-2's"]
TEMPERATURES = [0.01, 0.7, 1.0, 1.3, 5.0]
TOP_KS = [None, 1, 2, 40, 1008, 1009, 5000]
TOP_PS = [None, 1e-6, 0.1, 0.5, 0.9, 0.999, 1.0]


@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_sampling_distribution(kind: str, temperature: float) -> None:
    logits = example_logits(kind)
    for top_k, top_p in product(TOP_KS, TOP_PS):
        expected = transformers_probabilities(logits, temperature, top_k, top_p)
        p = Sampling(temperature, top_k, top_p).probabilities(logits)
        message = f"top_k {top_k}, top_p {top_p}"
        assert np.array_equal(p > 0, expected > 0), message
        np.testing.assert_allclose(p, expected, rtol=1e-11, atol=0, err_msg=message)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_sampling_distribution_of_equal_logits(temperature: float) -> None:
    """top_k keeps all that equal the last one kept. top_p keeps as many, but which is the sort's affair."""
    logits = np.round(2 * example_logits("random"))
    for top_k, top_p in product(TOP_KS, TOP_PS):
        expected = transformers_probabilities(logits, temperature, top_k, top_p)
        p = Sampling(temperature, top_k, top_p).probabilities(logits)
        if top_p in (None, 1.0):
            assert np.array_equal(p > 0, expected > 0), f"top_k {top_k}"
        np.testing.assert_allclose(
            np.sort(p), np.sort(expected), rtol=1e-11, atol=0, err_msg=f"top_k {top_k}, top_p {top_p}"
        )


# Scoring: the sliding-window recipe of transformers' documentation.


def recipe(model: Any, ids: np.ndarray, max_length: int, stride: int) -> tuple[float, float]:  # ids [N]
    """The loss per token: with a window's mean weighted by what it predicts, and as the recipe weights it.

    The recipe subtracts one from every window's count of labels, for the first token of a window has no
    prediction. But where windows overlap, that token is not among the labels.
    """
    sums, counts, recipes_counts = [], [], []
    previous_end = 0
    for start in range(0, ids.size, stride):
        end = min(start + max_length, ids.size)
        labels = torch.from_numpy(ids[None, start:end]).clone()
        inputs = labels.clone()
        labels[:, : -(end - previous_end)] = -100
        with third_party():
            mean = model(inputs, labels=labels).loss.item()
        counts.append(int((labels[:, 1:] != -100).sum()))
        recipes_counts.append(int((labels != -100).sum()) - 1)
        sums.append(mean)
        previous_end = end
        if end == ids.size:
            break
    return np.average(sums, weights=counts), np.average(sums, weights=recipes_counts)


@pytest.mark.parametrize("stride", [1, 10, 15, 30, 31])
@pytest.mark.parametrize("tied", [True, False], ids=HEADS)
def test_score_is_the_recipes(tmp_path: Path, tied: bool, stride: int) -> None:
    config = GPT2Config(**SHAPES["small"], tie_word_embeddings=tied, bos_token_id=0, eos_token_id=0)
    ids = np.random.default_rng(8).integers(config.vocab_size, size=31 * 9 + 5)
    random_transformers_model(config, ids[None, :31], seed=8).save_pretrained(tmp_path)
    expected, as_written = recipe(transformers_model(tmp_path), ids, 31, stride)
    model = tiedgpt.load_model(tmp_path)
    # Not closer: transformers makes the logits float32 before it takes their loss.
    assert token_losses(model.astype(np.float64), ids, stride).mean() == pytest.approx(expected, rel=1e-7)
    assert token_losses(model, ids, stride).mean() == pytest.approx(expected, rel=1e-6)
    if stride == 31:
        assert expected == as_written
    elif stride > 1:  # at 1, nothing counts but the first window
        assert expected == pytest.approx(as_written, rel=0.01)


# Full size: GPT-2 124M's shapes with random weights, the whole vocabulary, the tolerances of the real thing.


@dataclass(frozen=True)
class FullSize:
    """A 124M checkpoint loaded here, and what transformers makes of the same file."""

    model: GPT2
    ids: np.ndarray  # [1, 64]
    float64: np.ndarray  # its logits [1, 64, V] by transformers in float64, the referee
    float32: np.ndarray  # and in float32, the rival
    greedy: list[int]  # its continuation by transformers in float64
    gap: float  # how far the chosen tokens are ahead of the second best, at least
    long_ids: np.ndarray  # [1, 600]
    long_last: np.ndarray  # [V], the last logits in float64


@pytest.fixture(scope="session", params=HEADS)
def full_size(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullSize]:
    """Half a gigabyte is written once, read by all, and removed."""
    directory = tmp_path_factory.mktemp(request.param)
    rng = np.random.default_rng(5)
    config = GPT2Config(tie_word_embeddings=request.param == "tied")
    ids, long_ids = (rng.integers(config.vocab_size, size=(1, T)) for T in (64, 600))
    random_transformers_model(config, ids, seed=6, positions=7).save_pretrained(directory)

    float32 = transformers_logits(transformers_model(directory, torch.float32), ids)
    referee = transformers_model(directory)
    float64 = transformers_logits(referee, ids)
    long_last = transformers_logits(referee, long_ids)[0, -1].copy()
    greedy = transformers_greedy(referee, ids[0], 20)
    chosen_from = transformers_logits(referee, np.append(ids, [greedy], axis=1))[0, ids.size - 1 : -1]
    second, first = np.sort(chosen_from, axis=-1)[:, -2:].T
    del referee
    yield FullSize(
        model=tiedgpt.load_model(directory),
        ids=ids,
        float64=float64,
        float32=float32,
        greedy=greedy,
        gap=(first - second).min(),
        long_ids=long_ids,
        long_last=long_last,
    )
    shutil.rmtree(directory)


def rounding_of_products(product: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> float:
    """The root mean square error of a matrix product of the model's size in float32."""
    rng = np.random.default_rng(7)
    x, W = rng.standard_normal((64, 768), np.float32), rng.standard_normal((768, 3072), np.float32)
    return np.sqrt(np.square(product(x, W) - x.astype(np.float64) @ W.astype(np.float64)).mean())


@pytest.mark.slow
def test_full_size_is_as_exact_as_transformers(full_size: FullSize) -> None:
    """At most 1.5 times transformers' error, if the libraries under both multiply matrices equally well.

    They need not: NumPy's OpenBLAS on AVX-512 rounds 1.4 times as much as torch does (and no more than torch
    once a sum of 768 is cut into pieces of 192). With torch's products in the place of NumPy's, the whole
    model's errors were measured equal.
    """
    by_numpy = rounding_of_products(lambda x, W: x @ W)
    by_torch = rounding_of_products(lambda x, W: (torch.from_numpy(x) @ torch.from_numpy(W)).numpy())
    rival = np.abs(full_size.float32 - full_size.float64).max()
    error = np.abs(full_size.model(full_size.ids) - full_size.float64).max()
    print(f"max error {error:.2e}, transformers' {rival:.2e}; of products {by_numpy:.2e}, {by_torch:.2e}")
    assert 9 < np.abs(full_size.float64).max() < 11
    assert error <= 1.5 * rival * max(1, by_numpy / by_torch)


@pytest.mark.slow
def test_full_size_greedy_continuation(full_size: FullSize) -> None:
    assert full_size.gap > 1e-3  # decided well above rounding
    assert len(set(full_size.greedy)) > 5  # and no mere repetition
    tokens = tiedgpt.generate(full_size.model, full_size.ids[0], max_new_tokens=20, greedy=True)
    assert list(tokens) == full_size.greedy


@pytest.mark.slow
def test_full_size_token_by_token(full_size: FullSize) -> None:
    cache = full_size.model.new_cache()
    logits = [full_size.model(full_size.ids[:, at : at + 1], cache) for at in range(full_size.ids.size)]
    assert_close(np.concatenate(logits, axis=1), full_size.float64, 1e-4)


@pytest.mark.slow
def test_full_size_long_prompt_in_pieces(full_size: FullSize) -> None:
    model, ids = full_size.model, full_size.long_ids
    cache = model.new_cache()
    pieces = np.split(ids, [256, 512, 513, 590], axis=1)
    logits = np.concatenate([model(piece, cache) for piece in pieces], axis=1)
    assert_close(logits[0, -1], full_size.long_last, 1e-4)
    assert_close(logits, model(ids), 1e-4)
