"""count_parameters: how many parameters a configuration has, by group, tied and untied."""

import pytest
from support.models import SMALL

from tiedgpt import Config, count_parameters
from tiedgpt.checkpoints.model_names import known_config
from tiedgpt.gpt2.parameters import count_matrices, tie_saves


# The tied counts were published. An untied model has an output matrix, of vocab_size * n_embd
# parameters, more.
@pytest.mark.parametrize(
    ("name", "tied", "untied"),
    [
        ("distilgpt2", 81_912_576, 120_509_952),
        ("gpt2", 124_439_808, 163_037_184),
        ("gpt2-medium", 354_823_168, 406_286_336),
        ("gpt2-large", 774_030_080, 838_359_040),
        ("gpt2-xl", 1_557_611_200, 1_638_022_400),
    ],
)
def test_published_counts(name, tied, untied):
    counts = count_parameters(known_config(name))
    assert counts["tied"]["total"] == tied
    assert counts["untied"]["total"] == untied
    assert counts["tied"]["bytes"] == 4 * tied


CONFIGS = [
    pytest.param(SMALL, id="tied"),
    pytest.param(SMALL.with_head("untied"), id="untied"),
    pytest.param(Config(n_layer=0, n_inner=5), id="no-layers"),
]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("head", ["tied", "untied"])
def test_groups_cover_every_parameter_once(config, head):
    counts = count_parameters(config)[head]
    assert sum(counts["groups"].values()) == counts["total"]


@pytest.mark.parametrize("config", CONFIGS)
def test_the_difference_of_tied_and_untied_is_the_output_head(config):
    """Both counts are given, whether the configuration is tied or untied."""
    counts = count_parameters(config)
    embedding = config.vocab_size * config.n_embd
    assert counts["untied"]["total"] - counts["tied"]["total"] == embedding
    assert counts["untied"]["groups"]["output head"] == embedding
    assert counts["tied"]["groups"]["output head"] == 0


def test_the_parameters_of_each_group():
    """V is 101, n_ctx 31, D 21 and F 53. There are two layers."""
    D, F = 21, 53
    attention = (D * 3 * D + 3 * D) + (D * D + D)  # weights and biases of c_attn and c_proj
    mlp = (D * F + F) + (F * D + D)
    groups = {
        "token embedding": 101 * D,
        "position embedding": 31 * D,
        "attention": 2 * attention,
        "MLP": 2 * mlp,
        "layer norms": 2 * (2 * 2 * D) + 2 * D,  # two in each layer, and the final one
        "output head": 0,
    }
    counts = count_parameters(SMALL)
    assert counts["tied"]["groups"] == groups
    assert list(counts["tied"]["groups"]) == list(groups)
    assert counts["untied"]["groups"] == {**groups, "output head": 101 * D}
    assert counts["untied"]["bytes"] == 4 * counts["untied"]["total"]


def test_what_a_tie_saves_is_a_share_of_each_of_the_two_models():
    saves = tie_saves(tied=100, untied=125)
    assert saves == {"difference": 25, "more_percent": 25, "less_percent": 20}


def test_matrices_alone():
    sizes = count_matrices(50, 4, 1_000)
    assert sizes["tied"]["groups"] == {"token embedding": 200, "output head": 0}
    assert sizes["untied"]["groups"] == {"token embedding": 200, "output head": 200}
    assert sizes["untied"]["total"] == 400
    assert sizes["difference"] == 200
    assert sizes["saving_percent"] == 20
    assert count_matrices(50, 4)["saving_percent"] is None


def test_an_untied_model_has_at_least_both_matrices():
    assert count_matrices(50, 40, 4_000)["saving_percent"] == 50
    assert count_matrices(50, 40, 3_999)["saving_percent"] is None
    assert count_matrices(50, 40, 2_000)["saving_percent"] is None, "an embedding alone, tied"
