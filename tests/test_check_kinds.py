"""`check` beside transformers: for each kind of causal language model, in each state of its files.

A sample of kinds is tested. `pytest -m '' --all-kinds tests/test_check_kinds.py` tests all that
transformers can make small, in three minutes.
"""

import logging
import warnings

import pytest

from tiedgpt.anymodel import counting, ties
from tiedgpt.anymodel.headers import open_any
from tiedgpt.anymodel.ties import NEVER_TIED, TIED_BY_DEFAULT, UNTIED_BY_DEFAULT, tie_report

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: the extra `parity`"
)
from support import causal_models  # noqa: E402  (it imports both)

pytestmark = pytest.mark.slow

SAMPLE = (
    *("gpt2", "llama", "gemma3", "bert", "gpt_neox"),
    *("mamba", "rwkv", "nemotron_h", "moshi", "prophetnet", "minimax", "deepseek_v3"),
)
# A buffer of this kind, a number for each expert, has the name of a parameter of afmoe.
LONGER = "hy_v3"
NOT_KNOWN = ("moshi", "prophetnet")  # of SAMPLE


@pytest.fixture(autouse=True)
def quiet():
    """transformers warns of each contradiction, which is right here."""
    logging.disable(logging.CRITICAL)
    transformers.utils.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def pytest_generate_tests(metafunc):
    if "tested_kind" in metafunc.fixturenames:
        takes_all = metafunc.config.getoption("--all-kinds")
        metafunc.parametrize("tested_kind", causal_models.KINDS if takes_all else SAMPLE)


def small_model(kind):
    try:
        return causal_models.small_model(kind)
    except Exception as error:
        assert kind not in SAMPLE
        pytest.skip(f"transformers cannot make a small {kind}: {error!r:.100}")


def test_check_says_what_transformers_does_or_not_known(tmp_path, tested_kind):
    model = small_model(tested_kind)
    said = []
    for flags, holds in causal_models.write_cases(model, tmp_path):
        right = causal_models.reading_of_transformers(type(model), tmp_path)
        report = tie_report(tested_kind, open_any(str(tmp_path)))
        assert report["transformers"] in (right, None), (flags, holds, report)
        assert report["holds"] in (holds, None)
        if holds == "different" and report["parameters"] and tested_kind != LONGER:
            assert report["parameters"]["untied"]["total"] == model.num_parameters()
        if flags in causal_models.FLAGS and flags != (None, None):
            said.append(report["transformers"])
    if tested_kind in SAMPLE and tested_kind not in NOT_KNOWN:
        assert None not in said


def test_the_kinds_that_are_never_tied():
    """The classes that tie nothing, of all that transformers can make."""
    for kind in causal_models.KINDS:
        try:
            with torch.device("meta"):
                model = causal_models.new_model(kind)
        except Exception:
            continue
        is_never_tied = not model._tied_weights_keys
        assert is_never_tied == (model.config.model_type in NEVER_TIED), kind


@pytest.mark.parametrize("kind", TIED_BY_DEFAULT + UNTIED_BY_DEFAULT)
def test_the_default_of_a_kind(kind):
    config = transformers.CONFIG_MAPPING[kind]()
    assert config.tie_word_embeddings == (kind in TIED_BY_DEFAULT)


@pytest.mark.parametrize("kind", counting.LIKE_LLAMA)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"head_dim": 16},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"num_key_value_heads": 1, "intermediate_size": 37},
        {"num_key_value_heads": 4, "hidden_size": 24, "vocab_size": 101},
    ],
    ids=str,
)
def test_parameters_counted_from_the_config(kind, fields):
    model = causal_models.new_model(kind, **fields)
    config = model.config.to_dict()
    counts = counting.count_like_llama(config)
    if counts is None:
        assert "attention_bias" in fields or "mlp_bias" in fields
        return
    assert counts["untied"]["total"] == model.num_parameters()


def test_the_python_that_mends_a_model_with_a_head_alone(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    for flags, holds in causal_models.write_cases(small_model("llama"), old):
        if flags[0] is True and holds == "head":
            lines = ties.SAVE_AGAIN.replace("NEW_DIRECTORY", str(new))
            lines = lines.replace("DIRECTORY", str(old))
            exec(lines, {"transformers": transformers})
    report = tie_report("new", open_any(str(new)))
    assert (report["holds"], report["conflict"]) == ("embedding", "")
