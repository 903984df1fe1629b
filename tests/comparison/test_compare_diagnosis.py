"""What `compare` says if no mistake explains a difference, or several, or if little was given.

A place is the name of an activation, such as "mlp.0.post"; its kind is "mlp.N.post".
"""

import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from support.comparing import MODELS, TWO_LAYERS, some_ids, tape_of, with_mistake
from support.other_gpt2 import OtherGPT2, gelu
from support.wrong_gpt2s import in_linear

from tiedgpt import compare
from tiedgpt.comparison import diagnosis
from tiedgpt.comparison.mistakes import MISTAKES, rounded
from tiedgpt.comparison.places import (
    Comparison,
    Mistake,
    Scope,
    Trial,
    compare_arrays,
    compute_activations,
    kind_of,
    sentence_of,
    trials_of,
)
from tiedgpt.errors import ArgumentError

SLOW = pytest.mark.slow


def with_an_unknown_mistake(ids):
    """The activations of TWO_LAYERS. All but the embedding have a mistake that is not known."""
    tape = tape_of(TWO_LAYERS, ids)
    for name, array in tape.items():
        if name != "embed":
            tape[name] = array + np.float32(0.1) * array * array
    return tape


def test_nan_alone_is_explained_with_a_perhaps():
    """A mask that hides the first token from itself makes all logits nan. So may other mistakes."""
    ids = some_ids(TWO_LAYERS, B=1, T=5)
    report = compare(TWO_LAYERS, np.full((1, 5, 211), np.nan), ids)
    assert report.diagnosis == [
        "logits: yours is nan everywhere",
        "attn.0.pattern: perhaps yours has a mask that is off by one: a token does not see itself, "
        "in every layer",
    ]
    assert report.note == "to find where it begins, give resid_post.0 to resid_post.1, too"


@SLOW
def test_inf_is_not_explained():
    ids = some_ids(TWO_LAYERS, B=1, T=5)
    report = compare(TWO_LAYERS, np.full((1, 5, 211), np.inf), ids)
    assert report.diagnosis == [
        "logits: yours is inf everywhere",
        "logits: this is none of the known mistakes",
    ]
    assert report.note == "to find where it begins, give resid_post.0 to resid_post.1, too"


@pytest.mark.parametrize(("values", "kind"), [([np.inf, np.nan], "nan"), ([np.inf] * 2, "inf")])
def test_nan_beside_inf_is_named_first(values, kind):
    """inf may be an overflow. Where there is nan, the search begins with it."""
    ids = some_ids(TWO_LAYERS, B=1, T=5)
    logits = TWO_LAYERS(ids)
    logits[0, 2, [3, 4]] = values
    report = compare(TWO_LAYERS, logits, ids, trials=0)
    assert report.diagnosis[0] == f"logits: yours is {kind} in 2 of {logits.size} places"


def test_the_note_names_what_comes_before_the_first_difference():
    """Both activations that are given are wrong. The mistake may begin before the first of them."""
    ids = some_ids(TWO_LAYERS, B=1, T=9)
    tape = with_an_unknown_mistake(ids)
    given = {name: tape[name] for name in ("resid_post.0", "resid_post.1")}
    report = compare(TWO_LAYERS, given, ids, trials=0)
    assert report.first.name == "resid_post.0"
    assert report.note.startswith(
        "to find where it begins, give embed, resid_pre.0, attn.0.in, attn.0.qkv, "
    )


def test_the_note_names_what_comes_between_the_last_right_and_the_first_wrong_activation():
    """The activation embed is right, and attn.0.heads is wrong."""
    ids = some_ids(TWO_LAYERS, B=1, T=9)
    tape = with_an_unknown_mistake(ids)
    given = {name: tape[name] for name in ("embed", "attn.0.heads")}
    report = compare(TWO_LAYERS, given, ids, trials=0)
    assert report.first.name == "attn.0.heads"
    assert report.note.startswith(
        "to find where it begins, give resid_pre.0, attn.0.in, attn.0.qkv, attn.0.q, "
    )


def test_there_is_no_note_if_nothing_comes_before_the_first_difference():
    """Nothing comes before the embedding."""
    ids = some_ids(TWO_LAYERS, B=1, T=9)
    embed = tape_of(TWO_LAYERS, ids)["embed"]
    report = compare(TWO_LAYERS, {"embed": 2 * embed}, ids)
    assert report.diagnosis == ["embed: this is none of the known mistakes"]
    assert report.note == ""


@pytest.mark.parametrize(
    ("scope", "places", "words"),
    [
        (Scope.EVERYWHERE, ["resid_mid.0", "resid_post.0", "resid_mid.1"], ", everywhere"),
        (Scope.EVERYWHERE, ["resid_mid.0", "resid_mid.1"], ", in every layer"),
        (Scope.KIND, ["resid_mid.0", "resid_mid.1"], ", in every layer"),
        (Scope.KIND, ["resid_mid.0"], ""),
        (Scope.LAYER, ["resid_mid.1", "resid_post.1"], ""),
        (Scope.PLACE, ["resid_mid.1"], ""),
    ],
)
def test_how_far_a_mistake_goes_is_said_of_those_that_are_not_in_one_layer(scope, places, words):
    residual = next(row for row in MISTAKES if row.sentence == "lacks the residual connection")
    assert sentence_of(residual, scope, places) == f"lacks the residual connection{words}"


# Mistakes in activations that `without_hidden_places` leaves out.
MISTAKES_IN_HIDDEN_PLACES = [
    pytest.param("is relu", "mlp.0.post: yours is relu, in every layer", id="activation-function"),
    pytest.param(
        "has no causal mask", "attn.0.pattern: yours has no causal mask, in every layer", id="mask"
    ),
    pytest.param(
        "lacks the residual connection",
        "resid_mid.0: yours lacks the residual connection, everywhere",
        id="residual-connection",
    ),
]


def without_hidden_places(tape):
    """The tape without the activations in which MISTAKES_IN_HIDDEN_PLACES are made."""
    hidden_kinds = ("attn.N.pattern", "mlp.N.post", "resid_mid.N")
    return {name: array for name, array in tape.items() if kind_of(name) not in hidden_kinds}


@pytest.mark.parametrize(("sentence", "diagnosis"), MISTAKES_IN_HIDDEN_PLACES)
def test_a_mistake_is_named_where_it_was_made_even_if_that_was_not_recorded(sentence, diagnosis):
    ids = some_ids(TWO_LAYERS, B=1, T=9)
    tape = with_mistake(TWO_LAYERS, ids, sentence)
    assert compare(TWO_LAYERS, without_hidden_places(tape), ids).diagnosis == [diagnosis]


@pytest.mark.parametrize(
    ("sentence", "diagnosis"),
    [
        MISTAKES_IN_HIDDEN_PLACES[0],
        *(
            pytest.param(*case.values, id=case.id, marks=SLOW)
            for case in MISTAKES_IN_HIDDEN_PLACES[1:]
        ),
    ],
)
def test_a_mistake_is_named_where_it_was_made_from_the_logits_alone(sentence, diagnosis):
    ids = some_ids(TWO_LAYERS, B=1, T=9)
    logits = with_mistake(TWO_LAYERS, ids, sentence)["logits"]
    assert compare(TWO_LAYERS, logits, ids).diagnosis == [diagnosis]


def test_a_mistake_that_is_known_before_one_that_is_not():
    """The MLP lacks a bias, and then has an activation function of its own."""
    ids = some_ids(TWO_LAYERS, B=1, T=9)
    without_bias = in_linear("c_fc", lambda x, weight, bias: x @ weight)
    theirs = OtherGPT2(TWO_LAYERS, linear=without_bias, gelu=lambda x, layer: x * np.abs(x))
    report = compare(TWO_LAYERS, theirs, ids)
    assert report.diagnosis == ["mlp.0.pre: yours lacks the bias, in every layer"]
    assert report.note == "mlp.0.post differs then, too: correct this first, and compare again"


def test_small_differences_that_add_up_are_a_difference():
    """Each activation agrees if it is computed from theirs, and not if it is from the ids."""
    ours = np.random.default_rng(0).uniform(0.2, 0.9, size=50)
    theirs = ours + 0.1
    agrees = compare_arrays("logits", ours, ours, ours)
    differs = compare_arrays("logits", theirs, ours, ours)
    comparison = SimpleNamespace(
        theirs={"logits": theirs},
        rows=lambda given, planted: ([agrees if given else differs], {"logits": ours}),
        names=["logits"],
    )
    found = diagnosis.diagnose(comparison, [], progress=lambda *counts: None, most_trials=9)
    assert found.sentences == ["logits: this is none of the known mistakes"]


def test_two_mistakes_that_cannot_be_told_apart():
    """There are two tokens. A mask that shows the first one its next token hides nothing."""
    ids = some_ids(TWO_LAYERS, B=1, T=2)
    tape = with_mistake(TWO_LAYERS, ids, "has no causal mask")
    report = compare(TWO_LAYERS, without_hidden_places(tape), ids)
    assert report.diagnosis == [
        "attn.0.pattern: yours has no causal mask, in every layer",
        "attn.0.pattern: or yours has a mask that is off by one: a token sees the next one, "
        "in every layer",
    ]


@pytest.mark.parametrize(("error", "named"), [(1e-6, "ab"), (2e-6, "ab"), (2.1e-6, "a")])
def test_mistakes_that_rounding_alone_tells_apart_are_alternatives(error, named):
    """One that leaves at most twice the error may be the right one, too."""
    explanations = []
    for sentence, its_error in (("a", 1e-6), ("b", error)):
        trial = Trial("attn.0.in", sentence, "", Scope.EVERYWHERE, {})
        explanations.append(diagnosis.Explanation((trial,), its_error, still_wrong=[]))
    best, alike = diagnosis.nearest_of(explanations, 0)
    assert best is explanations[0]
    assert [trial.sentence for trial in alike] == list(named)


def some_trial(start="attn.0.in", sentence="a", scope=Scope.KIND, note=""):
    return Trial(start, sentence, note, scope, {})


def test_which_explanation_is_the_best():
    """The fewest activations still wrong; then the fewest mistakes; then the widest scopes."""
    ranked = [
        ([], [Scope.PLACE]),
        ([], [Scope.EVERYWHERE, Scope.KIND]),
        ([], [Scope.KIND, Scope.KIND]),
        (["final"], [Scope.EVERYWHERE]),
    ]
    explanations = []
    for number, (still_wrong, scopes) in enumerate(ranked):
        trials = tuple(some_trial(scope=scope) for scope in scopes)
        explanations.append(diagnosis.Explanation(trials, 1e-6 / (number + 1), still_wrong))
    while explanations:
        best, _ = diagnosis.nearest_of(explanations[::-1], 0)
        assert best is explanations.pop(0)


def test_a_difference_that_is_little_beyond_the_tolerance_is_explained():
    """The mistake leaves a sixth of it."""
    ids = some_ids(TWO_LAYERS, B=1, T=9)
    theirs = tape_of(TWO_LAYERS, ids)
    comparison = Comparison(TWO_LAYERS, ids, theirs)
    rows, _ = comparison.rows(given=comparison.theirs, planted={})
    tolerance = next(row.tolerance for row in rows if row.name == "mlp.0.post")
    mistake = Mistake("adds a little", {"mlp.N.post": lambda at: at.right + tolerance})
    theirs["mlp.0.post"] = theirs["mlp.0.post"] + np.float32(1.2 * tolerance)
    comparison = Comparison(TWO_LAYERS, ids, theirs)
    found = diagnosis.diagnose(comparison, [mistake], lambda *counts: None, most_trials=None)
    assert found.sentences == ["mlp.0.post: yours adds a little, in every layer"]


def test_which_mistakes_are_tried_together_with_others():
    """Those of all layers, if there are two places for them. The trials with others are counted.

    Alone, the mistake is tried in both layers and in each that is not given. As a second mistake,
    and as a third one, it is tried beside each of the nearest four.
    """
    names = ["mlp.0.post", "mlp.1.post", "logits"]
    mistake = Mistake("a", {"mlp.N.post": rounded})
    x = np.zeros(2)
    for given, distances, may_be_several, total in (
        ({}, [1.0, 1.0], True, 3 + 2 * 4),
        ({"mlp.0.post": x}, [1.0, 1.0], True, 2 + 2 * 4),
        ({"mlp.1.post": x}, [1.0, 1.0], False, 0),
        ({}, [1.0, np.inf], True, 3 + 2 * 4),
        ({}, [1e-7, np.inf], False, 3),  # many mistakes make inf
    ):
        difference = diagnosis.Difference(
            name="logits",
            error=1.0,
            tolerance=1e-6,
            theirs=x,
            distances=np.array(distances),
            given=given,
            computed=dict.fromkeys(names, x),
        )
        counter = diagnosis.Counter(progress=lambda *counts: None, most=0)
        comparison = SimpleNamespace(names=names)
        search = diagnosis.Search(comparison, [mistake], difference, {}, counter)
        in_all_layers = search.by_scope[Scope.EVERYWHERE]
        assert len(in_all_layers) == (1 if total > 0 else 0)
        assert [(trial,) for trial in search.wide] == in_all_layers
        assert search.may_be_several == may_be_several
        assert search.explain(most=3) == (None, [])
        assert counter.total == total


def test_what_is_tried_first():
    """The wider a scope is, the likelier. Two mistakes are likelier than one in one layer."""
    search = SimpleNamespace(
        by_scope={scope: scope.name for scope in Scope},
        one_more=lambda count: [f"one more beside {count}"],
    )
    everywhere, kind, layer, place = "EVERYWHERE", "KIND", "LAYER", "PLACE"
    second, third = "one more beside 1", "one more beside 2"
    for most, groups in (
        (1, [everywhere, kind, layer, place]),
        (2, [everywhere, kind, second, layer, place]),
        (3, [everywhere, kind, second, layer, place, third]),
    ):
        assert list(diagnosis.Search.groups(search, most)) == groups


@pytest.mark.parametrize(
    ("most", "tried", "named"), [(9, "abcd", "c"), (2, "ab", "a"), (0, "", None)]
)
def test_a_search_ends_with_the_group_that_explains_all_differences(most, tried, named):
    """Mistake a leaves the logits wrong, and c nothing. At most `most` trials are made."""
    a, b, c, d, e = (some_trial(sentence=sentence) for sentence in "abcde")
    explanations = {
        "a": diagnosis.Explanation((a,), 1e-6, still_wrong=["logits"]),
        "c": diagnosis.Explanation((c,), 1e-6, still_wrong=[]),
    }
    attempts = []

    def attempt(trials):
        sentence = trials[0].sentence
        attempts.append(sentence)
        return explanations.get(sentence)

    search = SimpleNamespace(
        may_be_several=False,
        groups=lambda most: [[(a,), (b,)], [(c,), (d,)], [(e,)]],
        counter=diagnosis.Counter(progress=lambda *counts: None, most=most),
        attempt=attempt,
        explanations=[],
    )
    search.best = partial(diagnosis.Search.best, search)
    best, _ = diagnosis.Search.explain(search, most=1)
    assert attempts == list(tried)
    assert best == explanations.get(named)


def test_mistakes_are_planted_beside_those_that_were_found():
    """A later one replaces an earlier one in the same place."""
    first = Trial("a", "a", "", Scope.KIND, {"b": 1, "c": 1})
    second = Trial("a", "a", "", Scope.KIND, {"c": 2, "d": 2})
    kept = {"a": 0, "b": 0}
    planted = diagnosis.Search.with_planted(SimpleNamespace(kept=kept), (first, second))
    assert planted == {"a": 0, "b": 1, "c": 2, "d": 2}
    assert kept == {"a": 0, "b": 0}


def test_the_distance_that_a_mistake_leaves_is_the_median():
    """One wrong number may have another reason."""
    ids = some_ids(TWO_LAYERS, B=1, T=9)
    embed = tape_of(TWO_LAYERS, ids)["embed"]
    theirs = embed + 3
    theirs[0, 2, 5] += 100
    comparison = Comparison(TWO_LAYERS, ids, {"embed": theirs})
    difference = diagnosis.first_difference(comparison, given={}, planted={})
    counter = diagnosis.Counter(progress=lambda *counts: None, most=9)
    mistake = Mistake("adds 1", {"embed": lambda at: at.right + 1})
    search = diagnosis.Search(comparison, [mistake], difference, {}, counter)
    assert search.explain(most=1) == (None, [])
    [(median, trials)] = search.tried
    assert median == pytest.approx(2, rel=1e-5)
    assert trials == search.by_scope[Scope.EVERYWHERE][0]


def test_the_trials_beside_two_mistakes_are_counted():
    """For each of the two, each mistake of a wide scope is tried in its place."""
    wide = [some_trial(sentence=sentence) for sentence in "abc"]
    two = diagnosis.Explanation((wide[0], wide[1]), 1e-6, still_wrong=[])
    counter = diagnosis.Counter(progress=lambda *counts: None, most=0, total=50)
    search = SimpleNamespace(explanations=[two], wide=wide, counter=counter)
    best, alike = diagnosis.Search.best(search)
    assert (best, alike) == (two, [[wide[0]], [wide[1]]])
    assert (counter.tried, counter.total, counter.is_at_limit) == (0, 56, True)


def test_in_the_place_of_each_of_three_mistakes_all_others_are_tried():
    """The last one fits in the third place as well, and in the second place it fits better."""
    a, b, c, d = wide = [some_trial(sentence=sentence) for sentence in "abcd"]
    three = diagnosis.Explanation((a, b, c), 1e-6, still_wrong=[])
    others = {"adc": 0.4e-6, "add": 0.7e-6}  # the mistakes that fit, too, and the error they leave
    tried = []

    def attempt(trials):
        sentences = "".join(trial.sentence for trial in trials)
        tried.append(sentences)
        if sentences in others:
            return diagnosis.Explanation(trials, others[sentences], still_wrong=[])
        return None

    counter = diagnosis.Counter(progress=lambda *counts: None, most=99)
    search = SimpleNamespace(explanations=[three], wide=wide, counter=counter, attempt=attempt)
    best, alike = diagnosis.Search.best(search)
    in_first_place, in_second_place = "abc bbc cbc dbc", "aac abc acc adc"
    in_third_place = "ada adb adc add"  # beside d in the second place
    assert " ".join(tried) == f"{in_first_place} {in_second_place} {in_third_place}"
    assert best.trials == (a, d, c)
    assert alike == [[a], [d], [c, d]]
    assert (counter.tried, counter.total, counter.is_at_limit) == (12, 12, False)


def test_a_mistake_that_is_made_everywhere_or_nowhere_is_tried_everywhere_alone():
    names = ["mlp.0.post", "mlp.1.post"]
    for only_everywhere, scopes in ((True, [Scope.EVERYWHERE]), (False, [0, 2, 2])):
        mistake = Mistake("a", {"mlp.N.post": rounded}, only_everywhere=only_everywhere)
        trials = trials_of([mistake], window=names, names=names)
        assert [trial.scope for trial in trials] == scopes
        assert list(trials[0].planted) == names


def test_at_most_three_mistakes_are_looked_for(monkeypatch):
    """Here each one that is found leaves the logits wrong."""
    asked_for = []
    begun_with = []  # the mistakes that were found before each search
    compared = []  # with what the next difference was looked for
    wrong = [["attn.1.in", "final", "logits"], ["final", "logits"], ["logits"]]

    class FindsOne:
        def __init__(self, comparison, mistakes, difference, kept, counter):
            begun_with.append(list(kept))
            self.kept = kept

        def explain(self, most):
            asked_for.append(most)
            trial = some_trial()
            still_wrong = wrong[len(asked_for) - 1]
            return diagnosis.Explanation((trial,), 1e-6, still_wrong), [[trial]]

        def with_planted(self, trials):
            return {**self.kept, f"mlp.{len(self.kept)}.post": None}

    def first_difference(comparison, given, planted):
        compared.append((given, list(planted)))
        return difference

    monkeypatch.setattr(diagnosis, "Search", FindsOne)
    monkeypatch.setattr(diagnosis, "first_difference", first_difference)
    given = {"embed": np.zeros(2)}
    difference = SimpleNamespace(given=given)
    found, still_wrong = diagnosis.find_mistakes(None, [], difference, None)
    assert asked_for == [3, 2, 1]
    planted = ["mlp.0.post", "mlp.1.post", "mlp.2.post"]
    assert begun_with == [[], planted[:1], planted[:2]]
    assert compared == [(given, planted[:1]), (given, planted[:2]), (given, planted)]
    assert len(found) == 3
    assert still_wrong == ["logits"]


def test_beside_which_mistakes_another_one_is_tried():
    """Beside those of a wide scope that left the smallest distances."""
    wide = [some_trial(sentence=str(number)) for number in range(6)]
    tried = [(0, (some_trial(scope=Scope.LAYER),)), (0, (wide[0], wide[1]))]
    tried += zip((6, 2, 4, 5, 3, 1), [(trial,) for trial in wide], strict=True)
    search = SimpleNamespace(explanations=[], may_be_several=True, tried=tried, wide=wide)
    groups = list(diagnosis.Search.one_more(search, 1))
    assert groups == [[(wide[first], trial) for trial in wide] for first in (5, 1, 4, 2)]
    for none in ({"explanations": [1]}, {"may_be_several": False}):
        other = SimpleNamespace(**{**vars(search), **none})
        assert list(diagnosis.Search.one_more(other, 1)) == []


def test_a_mistake_of_which_a_later_one_leaves_nothing_is_not_tried():
    first = Trial("mlp.0.post", "a", "", Scope.KIND, {"mlp.0.post": None})
    for places in (["mlp.0.post"], ["mlp.0.post", "mlp.1.post"]):
        later = Trial("mlp.0.post", "b", "", Scope.KIND, dict.fromkeys(places))
        assert diagnosis.Search.attempt(SimpleNamespace(), (first, later)) is None
    # Two later ones together leave nothing of one in two places.
    both = Trial("mlp.0.post", "c", "", Scope.KIND, dict.fromkeys(["mlp.0.post", "mlp.1.post"]))
    second = Trial("mlp.1.post", "d", "", Scope.KIND, {"mlp.1.post": None})
    for later in ((first, second), (second, first)):
        assert diagnosis.Search.attempt(SimpleNamespace(), (both, *later)) is None
    assert diagnosis.Search.attempt(SimpleNamespace(), (second, first, first)) is None


def test_a_trial_ends_with_the_activation_that_differs():
    """What comes after it costs time, and tells nothing of it."""
    ids = some_ids(TWO_LAYERS, B=1, T=9)
    computed = []

    def wrong(at):
        computed.append(at.name)
        return at.right + 1

    mistake = Mistake("adds 1", {"resid_mid.N": wrong, "logits": wrong})
    theirs = {"mlp.0.in": -tape_of(TWO_LAYERS, ids)["mlp.0.in"]}
    comparison = Comparison(TWO_LAYERS, ids, theirs)
    found = diagnosis.diagnose(comparison, [mistake], lambda *counts: None, most_trials=1)
    assert found.sentences[0].startswith("mlp.0.in: this is none of the known mistakes")
    assert found.tried == 1
    assert computed == ["resid_mid.0"]


def some_difference(theirs, ours, distances, tolerance=1e-6, name="logits"):
    return diagnosis.Difference(
        name=name,
        error=float(distances.max()),
        tolerance=tolerance,
        theirs=theirs,
        distances=distances,
        given={},
        computed={name: ours},
    )


def test_how_mistakes_are_described():
    """In the order of the forward pass, the likeliest of alternatives first, with all notes."""
    comparison = SimpleNamespace(names=["embed", "attn.0.q", "logits"])
    found = [
        [some_trial("attn.0.q", "has a", note="note a"), some_trial("attn.0.q", "has b")],
        [some_trial("embed", "has c", note="note c")],
    ]
    x = np.zeros(2)

    def described(distances):
        difference = some_difference(x, x, np.array(distances))
        return diagnosis.describe_mistakes(comparison, difference, found, still_wrong=[])

    sentences, note = described([1.0, np.inf])
    assert sentences == [
        "embed: yours has c",
        "attn.0.q: and yours has a",
        "attn.0.q: or yours has b",
    ]
    assert note == "these are 2 mistakes: correct them in this order; note c; note a"
    found[1][0] = some_trial("embed", "has c")
    _, note = described([1.0, np.inf])
    assert note == "these are 2 mistakes: correct them in this order; note a"
    found[1][0] = some_trial("embed", "has c", note="note c")
    sentences, _ = described([1e-6, np.inf])  # the other number agrees
    assert sentences[0] == "embed: perhaps yours has c"
    difference = some_difference(x, x, np.ones(2))
    for count, correct in ((1, "correct this first"), (2, "correct these 2 first, in this order")):
        wrong = ["final", "logits"]
        _, note = diagnosis.describe_mistakes(comparison, difference, found[:count], wrong)
        assert note == f"final differs then, too: {correct}, and compare again"
    assert diagnosis.joined_by_or(["embed: yours is yours "] * 2) == [
        "embed: yours is yours ",
        "embed: or yours is yours ",
    ]
    assert diagnosis.joined_by_or(["embed: yours is yours "], "perhaps yours") == [
        "embed: perhaps yours is yours "
    ]


def test_blocks_are_asked_for_before_all_activations():
    window = ["mlp.0.out", "resid_post.0", "attn.1.in", "resid_post.1", "logits"]
    give = "to find where it begins, give"
    assert diagnosis.what_to_give(window) == f"{give} resid_post.0 to resid_post.1, too"
    assert diagnosis.what_to_give(window[:3]) == f"{give} mlp.0.out, resid_post.0, too"
    assert diagnosis.what_to_give(window[:4]) == f"{give} mlp.0.out, resid_post.0, attn.1.in, too"
    assert diagnosis.what_to_give(window[:1]) == ""
    blocks = [f"resid_post.{layer}" for layer in range(12)]
    assert (
        diagnosis.what_to_give([*blocks, "final"]) == f"{give} resid_post.0 to resid_post.11, too"
    )


@pytest.mark.parametrize("is_at_limit", [True, False])
def test_what_is_said_if_no_mistake_explains_a_difference(is_at_limit):
    x = np.zeros(2)
    difference = some_difference(x, x, np.ones(2))
    counter = diagnosis.Counter(
        progress=lambda *counts: None, most=1234, tried=1234, total=56789, is_at_limit=is_at_limit
    )
    [sentence], note = diagnosis.describe_failure(difference, counter)
    if is_at_limit:
        trials = " in 1,234 trials of 56,789"
        assert note == "to make all, give --trials 56789 (in Python, trials=56789)"
    else:
        trials = ""
        assert note == ""
    assert sentence == f"logits: this is none of the known mistakes{trials}"


@pytest.mark.parametrize(("dtype", "digits"), [("bfloat16", 8), ("float16", 11)])
def test_how_far_rounding_to_half_precision_explains_a_difference(dtype, digits):
    ours = -np.random.default_rng(0).uniform(0.2, 0.9, size=50)
    theirs = rounded(ours, dtype)
    half_unit = -theirs.min() / 2**digits
    tolerance = half_unit / 10

    def plain(distance):
        distances = np.full_like(ours, distance)
        return diagnosis.plain_diagnosis(some_difference(theirs, ours, distances, tolerance))

    sentence = f"logits: yours is rounded to {dtype}"
    note = "compare in float32: in rounded numbers no other mistake is looked for"
    assert plain(half_unit + 0.9 * tolerance) == diagnosis.Diagnosis([sentence], note)
    for far in (half_unit + 1.1 * tolerance, 0.99 * -ours.min() / 64):
        of_half = f"which explains {half_unit:.1e} of {far:.1e}: it computes in {dtype}, or has "
        found = diagnosis.Diagnosis([f"{sentence}, {of_half}another mistake"], note)
        assert plain(far) == found
    assert plain(1.01 * -ours.min() / 64) is None, "then there is another mistake"


def test_how_far_few_digits_explain_a_difference():
    ours = np.random.default_rng(0).uniform(0.2, 0.9, size=50)
    for distance, is_plain in ((0.00054, True), (0.00056, False)):
        distances = np.full_like(ours, distance)
        difference = some_difference(ours.round(3), ours, distances, tolerance=0.00005)
        sentence = "logits: yours has no more than 3 decimals: print more"
        expected = diagnosis.Diagnosis([sentence], note="") if is_plain else None
        assert diagnosis.plain_diagnosis(difference) == expected


def test_a_zero_among_other_numbers_is_not_plain_to_see():
    ours = np.random.default_rng(0).uniform(0.2, 0.9, size=50)
    theirs = np.where(np.arange(50) == 7, 0, 3 * ours)
    difference = some_difference(theirs, ours, abs(theirs - ours))
    assert diagnosis.plain_diagnosis(difference) is None
    difference = some_difference(0 * ours, ours, ours)
    zeros = diagnosis.Diagnosis(["logits: yours is 0 everywhere"], note="")
    assert diagnosis.plain_diagnosis(difference) == zeros


def test_numbers_that_are_rounded_to_half_precision():
    """At least ten different ones, which are not whole. Those that are not finite do not count."""
    numbers = rounded(np.random.default_rng(0).uniform(0.2, 0.9, size=10), "float16")
    beside = [np.nan, np.inf, -np.inf]
    assert diagnosis.two_byte_dtype(np.append(numbers, beside)) == "float16"
    assert diagnosis.two_byte_dtype(np.append(numbers[:9], [numbers[0], *beside])) is None
    assert diagnosis.two_byte_dtype(np.arange(50.0)) is None


def test_a_mistake_that_can_be_made_in_two_places_is_named_once():
    """The heads may be joined wrongly in attn.0.heads and in attn.0.out, with the same logits."""
    ids = some_ids(TWO_LAYERS, B=1, T=9)
    logits = with_mistake(TWO_LAYERS, ids, "joins the heads without a transpose")["logits"]
    assert compare(TWO_LAYERS, logits, ids).diagnosis == [
        "attn.0.heads: yours joins the heads without a transpose, in every layer"
    ]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["mlp.0.out", "mlp.1.out", "logits"], id="all-mlps"),
        pytest.param(["logits"], id="logits", marks=SLOW),
    ],
)
def test_a_mistake_in_one_layer_of_several(names):
    """The same mistake in every layer, or in another one, leaves other numbers wrong."""
    ids = some_ids(TWO_LAYERS, B=1, T=9)
    relu_in_layer_1 = OtherGPT2(
        TWO_LAYERS, gelu=lambda x, layer: np.maximum(x, 0) if layer == 1 else gelu(x)
    )
    theirs = relu_in_layer_1(ids)
    given = {name: theirs[name] for name in names}
    assert compare(TWO_LAYERS, given, ids).diagnosis == ["mlp.1.post: yours is relu"]


def test_the_first_difference_is_in_the_text_of_the_report():
    ids = some_ids(TWO_LAYERS, B=1, T=9)
    report = compare(TWO_LAYERS, with_mistake(TWO_LAYERS, ids, "is relu"), ids)
    index = list(report.first.first_wrong)
    assert report.first.name == "mlp.0.post"
    assert f"first difference: mlp.0.post{index} is " in str(report)
    assert str(report).endswith("mlp.0.post: yours is relu, in every layer")


def test_the_trials_are_counted():
    """`progress` is called before each trial: with how many were tried, and how many there are."""
    ids = some_ids(TWO_LAYERS, B=1, T=9)
    right = tape_of(TWO_LAYERS, ids)
    theirs = {"resid_post.1": right["resid_post.1"], "logits": right["logits"] ** 2}
    calls = []
    report = compare(TWO_LAYERS, theirs, ids, progress=lambda *counts: calls.append(counts))
    assert report.trials == report.all_trials > 300
    assert f"; {report.trials:,} of {report.trials:,} trials of known mistakes)" in str(report)
    assert calls == [(number, report.trials) for number in range(report.trials)]


def test_a_gpt2_that_overwrites_its_ids_does_not_change_ours():
    ids = some_ids(TWO_LAYERS, B=1, T=9)
    ids_before = ids.copy()

    def logits_of_zeros(ids):
        ids *= 0
        return TWO_LAYERS(ids)

    report = compare(TWO_LAYERS, logits_of_zeros, ids, trials=0)
    assert report.first.name == "logits"
    np.testing.assert_array_equal(ids, ids_before)


@pytest.mark.parametrize("last", ["embed", "attn.1.pattern", "resid_post.1", "final", "logits"])
def test_a_pass_ends_with_the_activation_that_is_asked_for(last):
    """What the pass computes is in its place, even if another array is given for it."""
    ids = some_ids(TWO_LAYERS, B=1, T=9)
    right = compute_activations(TWO_LAYERS, ids, given={}, planted={})
    names = list(right)[: list(right).index(last) + 1]
    for given in ({}, {last: right[last] + 1}, dict(right)):
        found = compute_activations(TWO_LAYERS, ids, given, planted={}, last=last)
        assert list(found) == names
        np.testing.assert_array_equal(found[last], right[last])


@SLOW
def test_the_trials_do_not_change_the_model():
    ids = some_ids(TWO_LAYERS, B=1, T=9)
    logits_before = TWO_LAYERS(ids)
    compare(TWO_LAYERS, with_an_unknown_mistake(ids)["logits"], ids, trials=400)
    np.testing.assert_array_equal(TWO_LAYERS(ids), logits_before)


# The limit of trials


def test_trials_can_be_limited():
    ids = some_ids(TWO_LAYERS, B=1, T=9)
    logits = with_an_unknown_mistake(ids)["logits"]
    total = compare(TWO_LAYERS, logits, ids, trials=0).all_trials
    report = compare(TWO_LAYERS, logits, ids, trials=5)
    assert report.trials == 5
    assert report.diagnosis == [
        f"logits: this is none of the known mistakes in 5 trials of {total:,}"
    ]
    assert report.note == (
        "to find where it begins, give resid_post.0 to resid_post.1, too; "
        f"to make all, give --trials {total} (in Python, trials={total})"
    )


def test_progress_counts_up_to_the_limit():
    ids = some_ids(TWO_LAYERS, B=1, T=9)
    logits = with_an_unknown_mistake(ids)["logits"]
    calls = []
    compare(TWO_LAYERS, logits, ids, progress=lambda *counts: calls.append(counts), trials=5)
    assert calls == [(0, 5), (1, 5), (2, 5), (3, 5), (4, 5)]


def test_the_default_limit_is_a_number_of_multiplications(monkeypatch):
    """It is not a time, so that a busy machine tries the same mistakes."""
    # This limit is so small that it allows some of the trials, but not all.
    monkeypatch.setattr(diagnosis, "MOST_MULTIPLICATIONS", 1e8)
    parameters = sum(array.size for array in TWO_LAYERS.parameters.values())
    for B, T, tokens in ((1, 9, 32), (2, 30, 60)):  # fewer than 32 tokens count as 32
        ids = some_ids(TWO_LAYERS, B=B, T=T)
        report = compare(TWO_LAYERS, with_an_unknown_mistake(ids)["logits"], ids)
        assert report.trials == int(1e8 / (tokens * parameters)) < report.all_trials


def test_the_default_limit_for_the_smallest_gpt2():
    """It has 124 million parameters. With up to 32 tokens, 2,511 trials are made: some minutes."""

    class Begun(Exception):
        pass

    def progress(*counts):
        assert counts == (0, 2511)
        raise Begun

    ids = some_ids(TWO_LAYERS, B=1, T=9)
    comparison = Comparison(TWO_LAYERS, ids, {"logits": TWO_LAYERS(ids) + 1})
    parameters = {"all": np.broadcast_to(np.float32(0), 124_439_808)}  # without memory for them
    of_gpt2 = SimpleNamespace(
        theirs=comparison.theirs,
        names=comparison.names,
        ids=ids,
        rows=comparison.rows,
        model32=SimpleNamespace(parameters=parameters),
    )
    mistakes = [Mistake(str(n), {"logits": partial(rounded, dtype=str(n))}) for n in range(300)]
    with pytest.raises(Begun):
        diagnosis.diagnose(of_gpt2, mistakes, progress, most_trials=None)


@pytest.mark.parametrize("trials", [-1, 0.0, 2.5, "", "5"])
def test_trials_that_are_no_number_or_below_0(trials):
    ids = some_ids(TWO_LAYERS, B=1, T=9)
    message = f"trials must be a whole number of at least 0, got {trials!r}"
    with pytest.raises(ArgumentError, match=re.escape(message)):
        compare(TWO_LAYERS, TWO_LAYERS(ids), ids, trials=trials)


# Random differences, which are not mistakes

PLACES = [
    "embed",
    "attn.1.in",
    "attn.0.qkv",
    "attn.1.pattern",
    "resid_mid.0",
    "mlp.1.post",
    "logits",
]


# Three ways to change an array by about `size`.


def with_noise(array, size, rng):
    return array + size * rng.standard_normal(array.shape, np.float32)


def with_one_changed_number(array, size, rng):
    """One number changes by 1, because a change by `size` might be as small as rounding."""
    changed = array.copy()
    changed.flat[rng.integers(array.size)] += 1
    return changed


def with_a_constant(array, size, rng):
    return array + size


CHANGES = [with_noise, with_one_changed_number, with_a_constant]


@pytest.mark.parametrize(
    ("place", "change"),
    [
        pytest.param(place, change, marks=() if (p + c) % len(CHANGES) == 0 else SLOW)
        for p, place in enumerate(PLACES)
        for c, change in enumerate(CHANGES)
    ],
)
@pytest.mark.parametrize("name", ["tiny", pytest.param("shakespeare", marks=SLOW)])
def test_a_random_difference_is_none_of_the_known_mistakes(name, place, change):
    model = MODELS[name]
    ids = some_ids(model, B=1, T=9)
    tape = tape_of(model, ids)
    rng = np.random.default_rng(PLACES.index(place))  # a different seed for each place
    # The size is a power of ten from 1e-4 to 1, times the mean of the absolute numbers.
    fraction = 10.0 ** rng.integers(-4, 1)
    size = np.float32(fraction * np.abs(tape[place]).mean())
    tape[place] = change(tape[place], size, rng)

    report = compare(model, tape, ids)
    assert report.first.name == place
    assert report.diagnosis == [f"{place}: this is none of the known mistakes"]
