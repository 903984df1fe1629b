"""Places in a pass, mistakes made there, and arrays of another GPT-2 beside ours."""

import numpy as np
import pytest
from support.comparing import TWO_LAYERS, some_ids, tape_of

from tiedgpt.comparison.places import (
    Comparison,
    Mistake,
    Place,
    ReportRow,
    Scope,
    compare_arrays,
    compute_activations,
    digits_before_point,
    digits_of,
    distance,
    few_digits,
    kind_of,
    layer_of,
    tolerance_of,
    trials_in_all_layers,
    trials_of,
)


@pytest.mark.parametrize(
    ("name", "kind", "layer"),
    [
        ("attn.3.qkv", "attn.N.qkv", 3),
        ("mlp.10.post", "mlp.N.post", 10),
        ("resid_post.11", "resid_post.N", 11),
        ("final", "final", None),
    ],
)
def test_the_kind_and_the_layer_of_an_activation(name, kind, layer):
    assert kind_of(name) == kind
    assert layer_of(name) == layer


def test_distances_are_in_float64():
    """Half of a float16's range is beyond it, and float32 has no 2^24 + 1."""
    assert distance("embed", np.float16([60_000]), np.float16([-60_000])).tolist() == [120_000]
    assert distance("embed", np.float32([2**24]), np.float32([-1])).tolist() == [2**24 + 1]


def test_distances_of_nan_and_inf():
    inf, nan = np.inf, np.nan
    a = np.array([nan, nan, 1.0, inf, inf, -inf, inf])
    b = np.array([nan, 1.0, nan, inf, -inf, -inf, 1.0])
    assert distance("embed", a, b).tolist() == [0, inf, inf, 0, inf, 0, inf]


def test_scores_of_later_keys_are_not_compared():
    """On the diagonal a token scores itself."""
    ones = np.ones((1, 1, 3, 3))
    for name in ("attn.0.scores", "attn.12.scores"):
        assert distance(name, ones, 0 * ones)[0, 0].tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert distance("attn.0.pattern", ones, 0 * ones).min() == 1


def test_a_row_on_a_wrong_array_has_its_first_wrong_number():
    """The largest of our numbers may be negative. inf is not counted."""
    ours64 = np.array([[1.0, -8.0], [np.inf, 2.0], [3.0, 4.0]])
    ours32 = ours64 + [[0, 0], [0, 0.01], [0, 0]]
    theirs = ours64.copy()
    theirs[1, 1], theirs[2, 0] = 3, -3
    row = compare_arrays("embed", theirs, ours64, ours32)
    tolerance = pytest.approx(0.16)
    assert row == ReportRow(
        "embed",
        error=6.0,
        tolerance=tolerance,
        largest=8.0,
        first_wrong=(1, 1),
        yours=3.0,
        expected=2.0,
    )
    right = compare_arrays("embed", ours64, ours64, ours32)
    assert right == ReportRow("embed", error=0.0, tolerance=tolerance, largest=8.0)


def test_rounding_is_that_of_the_largest_number_though_it_is_negative():
    exact = np.array([[-8.0, np.inf], [1.0, np.nan]])
    eps = np.finfo(np.float32).eps
    assert tolerance_of(exact, exact) == pytest.approx(16 * 8 * eps, rel=1e-6)
    assert tolerance_of(exact, exact + 0.5) == 16 * 0.5


def test_arrays_without_a_number_agree():
    empty = np.zeros((0, 3))
    agrees = ReportRow("embed", error=0.0, tolerance=0.0, largest=0.0)
    assert compare_arrays("embed", empty, empty, empty) == agrees


def test_all_of_many_numbers_have_few_digits_or_none():
    """Of more than 10,000 the first ones are looked at before all."""
    few = np.random.default_rng(0).uniform(0.2, 0.9, size=10_001).round(3)
    assert digits_of(few) == (3, "decimals")
    for place in (0, -1):
        more = few.copy()
        more[place] = 1 / 3
        assert digits_of(more) is None


def test_digits_are_those_of_numbers_that_are_no_zero_inf_or_nan():
    numbers = np.random.default_rng(0).uniform(2.0, 9.0, size=12).round(2)
    others = [0.0, np.inf, -np.inf, np.nan]
    assert digits_of(np.append(numbers, others)) == (2, "decimals")
    assert digits_of(-numbers) == (2, "decimals")
    assert digits_of(np.append(numbers, others) * 1e-4) == (3, "digits")


def test_one_to_six_digits_are_few():
    rng = np.random.default_rng(0)
    for count in range(1, 8):
        low, high = (2.0, 90.0) if count == 1 else (0.2, 0.9)
        numbers = rng.uniform(low, high, size=40).round(count)
        assert digits_of(numbers) == ((count, "decimals") if count < 7 else None)


def test_ten_different_numbers_tell_how_many_digits_there_are():
    ten = np.linspace(0.11, 0.29, 10)
    assert digits_of(np.append(ten, ten)) == (2, "decimals")
    assert digits_of(np.append(ten[1:], ten[1:])) is None


def test_whole_numbers_and_their_halves_and_quarters_are_not_rounded():
    for unit in (1, 2, 4, 64):
        assert digits_of(np.arange(1.0, 30.0) / unit) is None


def test_the_digits_before_the_point():
    numbers = {2.5: 1, 25: 2, 0.25: 0, 0.025: -1, 1: 1, 10: 2, -250: 3}
    assert digits_before_point(np.array(list(numbers))).tolist() == list(numbers.values())


def test_few_digits_are_told_with_half_a_unit_of_the_last_one():
    """Unless ours has few, too, or half a unit is within the tolerance."""
    ours = np.random.default_rng(0).uniform(2.0, 9.0, size=12)
    decimals = few_digits(ours.round(2), ours, tolerance=0.004)
    assert decimals == ("yours has no more than 2 decimals: print more", pytest.approx(0.005))
    # The largest is near 0.0009: the third of its digits is the sixth decimal.
    small = np.append(1e-4 * ours, np.inf)
    digits = few_digits(np.append(1e-4 * ours.round(2), np.inf), small, tolerance=1e-9)
    assert digits == ("yours has no more than 3 digits: print more", pytest.approx(5e-7))
    for theirs, right, tolerance in (
        (ours.round(2), ours.round(3), 0.004),
        (ours.round(2), ours, 0.005),
        (ours, ours, 0.0),
    ):
        assert few_digits(theirs, right, tolerance) == ("", 0.0)


def test_a_planted_activation_is_in_the_precision_of_the_model():
    """It may be computed in float64, and divide by 0."""
    ids = some_ids(TWO_LAYERS, B=1, T=3)
    planted = {"mlp.1.post": lambda place: np.log(0 * place.right.astype(np.float64))}
    given = {"final": tape_of(TWO_LAYERS, ids)["final"]}
    tape = compute_activations(TWO_LAYERS, ids, given, planted, last="mlp.1.post")
    assert tape["mlp.1.post"].dtype == np.float32
    assert (tape["mlp.1.post"] == -np.inf).all()
    assert "mlp.1.out" not in tape
    planted["logits"] = lambda place: place.right.astype(np.float64)
    assert compute_activations(TWO_LAYERS, ids, given, planted)["logits"].dtype == np.float32


def test_earlier_arrays_of_an_activation_have_rows_and_names_of_their_own():
    """The last one counts. One that is the same, nan for nan, has no row."""
    ids = some_ids(TWO_LAYERS, B=1, T=3)
    tape = tape_of(TWO_LAYERS, ids)
    right = tape["final"]
    first, second = 2 * right, right.copy()
    second[0, 0, 0] = np.nan
    # In another order than that of the pass
    given = {
        "logits": tape["logits"],
        "ln_f": first,
        "transformer.ln_f": second,
        "final": right,
        "embed": tape["embed"],
    }
    comparison = Comparison(TWO_LAYERS, ids, given)
    assert list(comparison.theirs) == ["embed", "final", "logits"]
    assert comparison.theirs["final"] is not first
    np.testing.assert_array_equal(comparison.theirs["final"], right)
    rows, sentences = comparison.rows_of_earlier()
    assert [row.name for row in rows] == ["final, 'ln_f'", "final, 'transformer.ln_f'"]
    assert [row.first_wrong for row in rows] == [(0, 0, 0), (0, 0, 0)]
    assert rows[0].yours == pytest.approx(2 * rows[0].expected, rel=1e-4)
    assert sentences == [
        "final: yours are two, 'ln_f' and 'final', and they differ",
        "final: yours are two, 'transformer.ln_f' and 'final', and they differ",
    ]

    given = {"ln_f": second, "lm_head:in": second.copy()}
    comparison = Comparison(TWO_LAYERS, ids, given)
    comparison.model64 = None  # no pass is computed for nothing
    assert comparison.rows_of_earlier() == ([], [])
    assert comparison.their_names == {"final": "'lm_head:in'"}


def test_our_pass_goes_on_with_what_is_given_and_makes_the_mistakes_that_are_planted():
    ids = some_ids(TWO_LAYERS, B=1, T=3)
    tape = tape_of(TWO_LAYERS, ids)
    theirs = {name: 2 * tape[name] for name in ("final", "logits")}
    comparison = Comparison(TWO_LAYERS, ids, theirs)
    doubled = {"final": lambda place: 2 * place.right}
    for given, planted, differ in (
        ({}, {}, [True, True]),
        ({"final": theirs["final"]}, {}, [True, False]),
        ({}, doubled, [False, False]),
    ):
        rows, ours = comparison.rows(given, planted)
        assert [row.name for row in rows] == ["final", "logits"]
        assert [row.differs for row in rows] == differ
        np.testing.assert_allclose(ours["final"], (1 + bool(planted)) * tape["final"], rtol=1e-5)


def test_the_columns_beyond_the_vocabulary_are_kept_beside_it():
    ids = some_ids(TWO_LAYERS, B=1, T=3)
    logits = tape_of(TWO_LAYERS, ids)["logits"]
    V = logits.shape[-1]
    padded = np.append(logits, np.full((1, 3, 2), 7.0), axis=-1)
    comparison = Comparison(TWO_LAYERS, ids, {"logits": padded})
    np.testing.assert_array_equal(comparison.theirs["logits"], logits)
    assert comparison.beyond_vocabulary.tolist() == [[[7, 7]] * 3]
    assert Comparison(TWO_LAYERS, ids, {"logits": logits}).beyond_vocabulary.shape == (1, 3, 0)
    assert Comparison(TWO_LAYERS, ids, {}).beyond_vocabulary.shape == (1, 3, 0)
    assert comparison.our_logits.shape == (1, 3, V)


def test_a_mistake_is_tried_from_the_widest_scope_to_the_narrowest():
    """`first` changes two kinds of activation, `whole` is made everywhere or not at all.

    In mlp.0.out alone, `first` is as `same`, which comes before it: its scope is wider.
    """

    def wrong(place):
        return place.right

    def wrong_too(place):
        return place.right

    names = ["embed", "attn.0.out", "mlp.0.out", "attn.1.out", "mlp.1.out", "final"]
    first = Mistake("is a", {"attn.N.out": wrong, "mlp.N.out": wrong}, note="see a")
    whole = Mistake("is b", {"mlp.N.out": wrong_too}, only_everywhere=True)
    same = Mistake("is c", {"mlp.N.out": wrong})  # as `first` in one kind of activation
    final = Mistake("is d", {"final": wrong})
    trials = trials_of([first, whole, same, final], ["mlp.0.out", "final"], names)
    assert [(trial.scope, trial.line, list(trial.planted), trial.note) for trial in trials] == [
        (Scope.EVERYWHERE, "mlp.0.out: yours is a, everywhere", names[1:-1], "see a"),
        (Scope.EVERYWHERE, "mlp.0.out: yours is b", ["mlp.0.out", "mlp.1.out"], ""),
        (Scope.EVERYWHERE, "mlp.0.out: yours is c, in every layer", ["mlp.0.out", "mlp.1.out"], ""),
        (Scope.EVERYWHERE, "final: yours is d", ["final"], ""),
        (Scope.LAYER, "mlp.0.out: yours is a", ["attn.0.out", "mlp.0.out"], "see a"),
        (Scope.LAYER, "mlp.0.out: yours is c", ["mlp.0.out"], ""),
    ]
    in_all_layers = trials_in_all_layers([first, whole, same, final], names)
    assert [trial.line for trial in in_all_layers] == [
        "attn.0.out: yours is a, everywhere",
        "mlp.0.out: yours is b",
        "mlp.0.out: yours is c, in every layer",
        "final: yours is d",
        "attn.0.out: yours is a, in every layer",
    ]


COMPUTED_FROM = {  # an activation -> the one from which it is computed, and its parameters
    "attn.1.in": ("resid_pre.1", "h.1.ln_1"),
    "attn.1.qkv": ("attn.1.in", "h.1.attn.c_attn"),
    "attn.1.q": ("attn.1.qkv", "h.1.attn.c_attn"),
    "attn.1.k": ("attn.1.qkv", "h.1.attn.c_attn"),
    "attn.1.v": ("attn.1.qkv", "h.1.attn.c_attn"),
    "attn.1.pattern": ("attn.1.scores", None),
    "resid_mid.1": ("attn.1.out", None),
    "mlp.1.in": ("resid_mid.1", "h.1.ln_2"),
    "mlp.1.pre": ("mlp.1.in", "h.1.mlp.c_fc"),
    "mlp.1.post": ("mlp.1.pre", None),
    "mlp.1.out": ("mlp.1.post", "h.1.mlp.c_proj"),
    "resid_post.1": ("mlp.1.out", None),
    "final": ("resid_post.1", "ln_f"),
    "logits": ("final", None),
}


def places():
    """{name: place} of all activations in a pass of the model of two layers."""
    ids = some_ids(TWO_LAYERS, B=1, T=3)
    places = {}
    before = {}  # the activations before the place
    for name, array in tape_of(TWO_LAYERS, ids).items():
        places[name] = Place(name, array, TWO_LAYERS, ids, dict(before))
        before[name] = array
    return places


def test_a_place_has_what_it_is_computed_from():
    place_of = places()
    for name, (x, parameters) in COMPUTED_FROM.items():
        place = place_of[name]
        assert place.x is place.tape[x]
        if parameters is not None:
            assert place.weight is TWO_LAYERS.parameters[f"{parameters}.weight"]
            assert place.bias is TWO_LAYERS.parameters[f"{parameters}.bias"]


def test_a_place_in_a_layer_of_two_digits():
    place = Place("mlp.11.pre", None, TWO_LAYERS, None, tape={"mlp.11.in": "the input"})
    assert (place.kind, place.layer, place["mlp.N.in"]) == ("mlp.N.pre", 11, "the input")


def test_the_output_of_attention_is_computed_from_all_heads_side_by_side():
    place = places()["attn.1.out"]
    np.testing.assert_allclose(place.x @ place.weight + place.bias, place.right, atol=1e-4)
    assert place.weight is TWO_LAYERS.parameters["h.1.attn.c_proj.weight"]
