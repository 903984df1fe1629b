"""Live parity with transformers: both load the same files. transformers in float64 is the
reference.

Needs torch and transformers (pip install torch==2.13.0, then the extra `parity`); without them
test_goldens.py compares with what transformers computed before.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from tiedgpt.gpt2.activations import ACTIVATIONS
from tiedgpt.gpt2.config import HEADS
from tiedgpt.inference.evaluation import token_losses
from tiedgpt.inference.sampling import Sampling

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

# torch's threads wait for work by spinning, in the way of NumPy's: on a busy machine a minute
# becomes many.
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
            whole,
            attention_mask=torch.ones_like(whole),
            max_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
        )
    return out[0, ids.size :].tolist()


def random_transformers_model(
    config: Any, ids: np.ndarray, seed: int = 0, positions: float = 1.0
) -> Any:
    """A model whose every parameter matters, with logits for `ids` up to make_goldens.SCALE, 10.

    The larger `positions`, the more its continuations depend on them instead of repeating one
    token.
    """
    with third_party():
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
    "upcast": {"reorder_and_upcast_attn": True},  # in half precision alone it would change anything
}
STORED = ["float32", "float16", "bfloat16", "float32 shards", "bfloat16 shards"]
USUAL = ("small", "defaults", "gelu_new", "float32")
GRID = list(product(HEADS, SHAPES, FIELDS, ACTIVATIONS, STORED))
CASES = [  # with one thing that is not usual, and a random forty of all
    *(case for case in GRID if sum(map(str.__ne__, case[1:], USUAL)) < 2),
    *(GRID[at] for at in np.random.default_rng(3).choice(len(GRID), 40, replace=False)),
]


@pytest.mark.parametrize("case", dict.fromkeys(CASES), ids=", ".join)
def test_there_and_back(tmp_path: Path, case: tuple[str, ...]) -> None:
    """transformers -> load_model -> save_model -> transformers, for a batch that fills the
    context."""
    head, shape, fields, activation, stored = case
    dtype, _, shards = stored.partition(" ")
    sharded = bool(shards) and shape != "no block"  # which is too small to be divided
    settings: dict[str, Any] = {
        **SHAPES[shape],
        **FIELDS[fields],
        "activation_function": activation,
    }
    tied = head == "tied"
    config = GPT2Config(bos_token_id=0, eos_token_id=[0, 1], tie_word_embeddings=tied, **settings)
    ids = np.random.default_rng(0).integers(config.vocab_size, size=(3, config.n_positions))
    written = random_transformers_model(config, ids).to(getattr(torch, dtype))
    with third_party():
        written.save_pretrained(tmp_path / "theirs", max_shard_size=4000 if sharded else "1GB")
    assert (tmp_path / "theirs" / "model.safetensors.index.json").exists() == sharded

    expected = transformers_logits(written.double(), ids)
    assert 9 < np.abs(expected).max() < 11
    model = tiedgpt.load_model(tmp_path / "theirs")
    assert model.config.head == head
    assert_close(model(ids[1]), expected[1], 1e-4)
    assert_close(logits_when_saved(model, ids, tmp_path), expected, 1e-12)


def logits_when_saved(
    model: GPT2, ids: np.ndarray, directory: Path
) -> np.ndarray:  # [B, T] -> [B, T, V]
    """Save the model, let transformers load it without a complaint, save it again and compute its
    logits.

    They are the model's, and the two files have the same names: what loading forgives, a prefix too
    many for one, other readers of the format need not. From half precision also the file is
    float32, and config.json must not say otherwise.
    """
    tiedgpt.save_model(model, None, directory / "saved")
    with third_party():
        loaded, complaints = GPT2LMHeadModel.from_pretrained(
            directory / "saved", output_loading_info=True
        )
        loaded.save_pretrained(directory / "again")
    assert complaints.keys() >= {"missing_keys", "unexpected_keys", "mismatched_keys"}
    assert not any(complaints.values()), complaints
    assert (loaded.lm_head.weight is loaded.transformer.wte.weight) == model.config.tied
    saved, again = (
        {name: (tensor.dtype, tensor.shape) for name, tensor in read_header(path).items()}
        for path in (directory / name / "model.safetensors" for name in ("saved", "again"))
    )
    assert saved == again
    logits = transformers_logits(loaded.eval().double(), ids)
    assert_close(model(ids), logits, 1e-4)
    assert_close(model.astype(np.float64)(ids), logits, 1e-9)
    return logits


TIED, UNTIED = random_model(SMALL, seed=1), random_model(SMALL.with_head("untied"), seed=2)
GOLDENS = Path(__file__).parent / "goldens"
SAVED = {
    "untied by copy": TIED.untie("copy"),
    "untied at random": TIED.untie("random", seed=3),
    "tied again": UNTIED.tie(),
    "tied and untied again": UNTIED.tie().untie("copy"),
    "loaded untied": tiedgpt.load_model(GOLDENS / "tied", head="untied"),
    "loaded tied": tiedgpt.load_model(GOLDENS / "untied", head="tied"),
}


@pytest.mark.parametrize("kind", SAVED)
def test_transformers_reads_what_is_saved(tmp_path: Path, kind: str) -> None:
    config = SAVED[kind].config
    ids = np.random.default_rng(0).integers(config.vocab_size, size=(3, config.n_ctx))
    logits_when_saved(SAVED[kind], ids, tmp_path)


@pytest.mark.slow
def test_the_goldens_are_what_the_script_writes(tmp_path: Path) -> None:
    assert {path.parent.name for path in GOLDENS.glob("*/config.json")} == set(make_goldens.CASES)
    for name in make_goldens.CASES:
        with third_party():
            make_goldens.write_case(name, tmp_path / name)
        old, new = (tiedgpt.load_model(directory / name) for directory in (GOLDENS, tmp_path))
        assert old.config == new.config
        assert all(
            np.array_equal(old.parameters[key], new.parameters[key]) for key in new.parameters
        )


@pytest.mark.parametrize("eos", [5, [3, 5]])
def test_greedy_ends_where_transformers_ends(tmp_path: Path, eos: Any) -> None:
    """transformers gives the end-of-text token, generate does not."""
    ids = np.arange(7)
    config = GPT2Config(**SHAPES["small"], bos_token_id=None, eos_token_id=None)
    random_transformers_model(config, ids[None]).save_pretrained(tmp_path)
    free = transformers_greedy(transformers_model(tmp_path), ids, 12)
    # the ids at which this continuation is to end
    config.eos_token_id = free[eos] if isinstance(eos, int) else [free[at] for at in eos]
    config.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    *expected, _ = transformers_greedy(transformers_model(tmp_path), ids, 12)
    assert len(expected) + 1 < len(free) == 12
    tokens = tiedgpt.generate(tiedgpt.load_model(tmp_path), ids, max_new_tokens=12, greedy=True)
    assert list(tokens) == expected


def transformers_probabilities(logits: np.ndarray, sampling: Sampling) -> np.ndarray:  # [V] -> [V]
    warpers = [TemperatureLogitsWarper(sampling.temperature)]
    warpers += [TopKLogitsWarper(sampling.top_k)] if sampling.top_k is not None else []
    warpers += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p is not None else []
    scores = torch.from_numpy(logits)[None].double()
    for warper in warpers:
        scores = warper(None, scores)
    return scores.softmax(-1)[0].numpy()


NORMAL = np.random.default_rng(4).standard_normal(1009, np.float32)
PEAK = np.float32(np.arange(1009) == 500)
LOGITS = {
    "random": NORMAL,
    "peaked": NORMAL + 25 * PEAK,  # one token has almost everything
    "two peaks": NORMAL + 12 * PEAK + 11 * np.roll(PEAK, 100),
    "steep": 10 * NORMAL,
    "as GPT-2's": 3 * NORMAL - 100,  # far from zero, as the real model's are
    "equal": np.round(2 * NORMAL),  # many tokens have the same
}


@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("temperature", [0.01, 0.7, 1.0, 1.3, 5.0])
def test_sampling_distribution(kind: str, temperature: float) -> None:
    """top_k keeps all that equal the last one kept. top_p keeps as many, but which is the sort's
    affair."""
    logits = LOGITS[kind]
    for top_k, top_p in product(
        [None, 1, 2, 40, 1008, 1009, 5000], [None, 1e-6, 0.1, 0.5, 0.9, 0.999, 1]
    ):
        sampling = Sampling(temperature, top_k, top_p)
        p, expected = sampling.probabilities(logits), transformers_probabilities(logits, sampling)
        if kind == "equal" and top_p not in (None, 1.0):
            p, expected = np.sort(p), np.sort(expected)
        assert np.array_equal(p > 0, expected > 0), sampling
        np.testing.assert_allclose(p, expected, rtol=1e-11, atol=0, err_msg=f"{sampling}")


def recipe(model: Any, ids: np.ndarray, max_length: int, stride: int) -> float:  # ids [N]
    """The sliding windows of transformers' documentation: their means, weighted by the tokens
    predicted."""
    sums, counts = [], []
    previous_end = 0
    for start in range(0, ids.size, stride):
        end = min(start + max_length, ids.size)
        labels = torch.from_numpy(ids[None, start:end]).clone()
        inputs = labels.clone()
        labels[:, : -(end - previous_end)] = -100
        with third_party():
            sums.append(model(inputs, labels=labels).loss.item())
        counts.append(int((labels[:, 1:] != -100).sum()))
        previous_end = end
        if end == ids.size:
            break
    return float(np.average(sums, weights=counts))


@pytest.mark.parametrize("stride", [1, 10, 15, 30, 31])
@pytest.mark.parametrize("tied", [True, False], ids=HEADS)
def test_score_is_the_recipes(tmp_path: Path, tied: bool, stride: int) -> None:
    config = GPT2Config(**SHAPES["small"], tie_word_embeddings=tied, bos_token_id=0, eos_token_id=0)
    ids = np.random.default_rng(8).integers(config.vocab_size, size=31 * 3 + 5)
    random_transformers_model(config, ids[None, :31], seed=8).save_pretrained(tmp_path)
    expected = recipe(transformers_model(tmp_path), ids, 31, stride)
    model = tiedgpt.load_model(tmp_path)
    # Not closer: transformers makes the logits float32 before it takes their loss.
    assert token_losses(model.astype(np.float64), ids, stride).mean() == pytest.approx(
        expected, rel=1e-7
    )
    assert token_losses(model, ids, stride).mean() == pytest.approx(expected, rel=1e-6)


def rounding_of_products(product: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> float:
    """The root mean square error of a matrix product of the model's size in float32."""
    rng = np.random.default_rng(7)
    x, W = rng.standard_normal((64, 768), np.float32), rng.standard_normal((768, 3072), np.float32)
    return np.sqrt(np.square(product(x, W) - x.astype(np.float64) @ W.astype(np.float64)).mean())


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_full_size(head: str, tmp_path: Path) -> None:
    """GPT-2 124M's sizes: at most 1.5 times transformers' error, if both libraries' products are as
    exact.

    They need not be: NumPy's OpenBLAS on AVX-512 rounds 1.4 times as much as torch does. With
    torch's products in the place of NumPy's, the whole model's errors were measured equal.
    """
    rng = np.random.default_rng(5)
    config = GPT2Config(tie_word_embeddings=head == "tied")
    ids, long_ids = (rng.integers(config.vocab_size, size=(1, T)) for T in (64, 600))
    random_transformers_model(config, ids, seed=6, positions=7).save_pretrained(tmp_path)
    float32 = transformers_logits(transformers_model(tmp_path, torch.float32), ids)
    referee = transformers_model(tmp_path)
    expected = transformers_logits(referee, ids)
    long_last = transformers_logits(referee, long_ids)[0, -1].copy()
    greedy = transformers_greedy(referee, ids[0], 20)
    chosen_from = transformers_logits(referee, np.append(ids, [greedy], axis=1))[
        0, ids.size - 1 : -1
    ]
    del referee
    model = tiedgpt.load_model(tmp_path)

    by_numpy = rounding_of_products(lambda x, W: x @ W)
    by_torch = rounding_of_products(
        lambda x, W: (torch.from_numpy(x) @ torch.from_numpy(W)).numpy()
    )
    rival, error = np.abs(float32 - expected).max(), np.abs(model(ids) - expected).max()
    assert 9 < np.abs(expected).max() < 11
    assert error <= 1.5 * rival * max(1, by_numpy / by_torch)

    second, first = np.sort(chosen_from, axis=-1)[:, -2:].T
    assert (first - second).min() > 1e-3  # each token is decided well above rounding
    assert len(set(greedy)) > 5  # and they are not one token repeated
    assert list(tiedgpt.generate(model, ids[0], max_new_tokens=20, greedy=True)) == greedy

    cases = ((ids, range(1, 64), expected[0, -1]), (long_ids, (256, 512, 513, 590), long_last))
    for prompt, cuts, last in cases:
        cache = model.new_cache()
        logits = np.concatenate(
            [model(piece, cache) for piece in np.split(prompt, cuts, axis=1)], axis=1
        )
        assert_close(logits, model(prompt), 1e-4)
        assert_close(logits[0, -1], last, 1e-4)
