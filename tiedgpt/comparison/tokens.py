"""Another GPT-2's greedy tokens against ours: identical, a tie-break, or a defect, and which.

`compare_tokens` lets our model read the prompt and then the other GPT-2's tokens, one after the
other. A departure is a place where our model would have taken another token. Its gap is the
distance of the two logits. It is a tie-break if rounding in the other GPT-2's precision can close
this gap, and a defect if not.

What rounding can do is measured for this model and this text. Our model computes the same logits
with its weights, or its activations, or both, rounded to the precision; the differences from
float64 tell how far rounding moves a logit here.

A known mistake explains a defect if, planted in our model, each of the tokens is the best one
within rounding. Mistakes that give the tokens of a right GPT-2, too, are what tokens cannot tell.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import numpy as np

from ..errors import COUNT, ArgumentError, counted, short_repr
from ..generation import check_prompt_ids
from ..gpt2.checks import as_array, check_ids, check_logits
from ..gpt2.model import GPT2, Array
from ..gpt2.ops import log_softmax
from ..gpt2.run import Tape
from .compare import no_progress
from .diagnosis import OnTrial
from .mistakes import mistakes_in, rounded
from .places import SLACK, Trial, compute_activations, trials_in_all_layers
from .vector_mistakes import mistakes_of_steps

# A precision -> how many times as far as in our model another program's rounding may move a logit,
# because it rounds in other places. In nanoGPT and transformers of torch, and in NumPy, on five
# models, the largest difference at a place was at most 2.3 times ours in float16 and bfloat16. For
# another order of float32's sums `compare` has a number, for the same reason.
SLACK_OF = {"float32": SLACK, "float16": 3.0, "bfloat16": 3.0}
QUANTISED = (
    "quantised weights (int8, q4 and others) are not judged, because their rounding is not known: "
    "give a model whose weights are rounded so, or the logits"
)
# Many mistakes make nan. The argmax of nan, or of equal logits, is token 0.
ALL_ZERO = "all tokens are 0, as if the logits were nan or all equal: look at them"
FEWEST_DRAWN = 5  # departures from which tokens may look drawn

Verdict = Literal["identical", "tie-break", "defect"]


class Departure(TypedDict):
    """A place where our model, after the same tokens, takes another token."""

    place: int  # of their token, counted from 0
    token: int  # theirs
    ours: int
    gap: float  # our logit of `ours` minus that of `token`
    rounding: float  # what rounding in their precision can make of this gap
    rank: int  # of their token by our logits; the best has 1
    is_tie_break: bool


class TokensReport(TypedDict):
    """What `compare_tokens` found."""

    verdict: Verdict
    sentence: str
    precision: str
    given: int  # their tokens
    judged: int  # the first of them, as many as the context has room for
    departures: list[Departure]
    mistakes: list[str]  # known mistakes that, planted in all layers, give these tokens, too
    notes: list[str]
    trials: int  # mistakes that were planted
    all_trials: int


def compare_tokens(
    model: GPT2,
    prompt_ids: Any,
    their_ids: Any,
    precision: str = "float32",
    *,
    greedy: bool | None = None,
    trials: int | None = None,
    progress: OnTrial = no_progress,
) -> TokensReport:
    """Judge the tokens that another GPT-2 with these weights appended to a prompt, greedily.

    prompt_ids [T] and their_ids [N]: token ids. Tokens that the context has no room for are not
    judged, because programs differ there. precision: that of the other GPT-2: "float32", "float16"
    or "bfloat16", with sums in float32 or better. greedy: True says that the tokens are greedy;
    None refuses tokens that look drawn, of which nothing can be said.

    trials: plant at most so many known mistakes; None: all, some hundred. Each is a forward pass or
    two. progress: called before each, with the number of those before it and of all. Raises
    ArgumentError.
    """
    if not isinstance(model, GPT2):
        raise ArgumentError(f"the model must be a GPT2, got {short_repr(model)}")
    if precision not in tuple(SLACK_OF):  # a dict would raise for a list
        raise ArgumentError(
            f"precision must be one of {', '.join(SLACK_OF)}, got {short_repr(precision)}; "
            f"{QUANTISED}"
        )
    if greedy is False:
        raise ArgumentError(DRAWN)
    if greedy not in (True, None):
        raise ArgumentError(f"greedy must be True or None, got {short_repr(greedy)}")
    if trials is not None:
        trials = COUNT.check("trials", trials)
    return judge_tokens(Text.of(model, prompt_ids, their_ids, precision), greedy, trials, progress)


def judge_tokens(
    text: "Text", greedy: bool | None, trials: int | None, progress: OnTrial
) -> TokensReport:
    """The report on a text, from arguments that compare_tokens has checked."""
    departures = departures_of(text)
    verdict: Verdict = "defect"
    if not departures:
        verdict = "identical"
    elif all(departure["is_tie_break"] for departure in departures):
        verdict = "tie-break"

    # Our model may repeat the prompt, too: then nothing departs there.
    length = len(text.prompt)
    begins_with_prompt = text.tokens[:length] == text.prompt
    if begins_with_prompt and any(departure["place"] < length for departure in departures):
        raise ArgumentError(
            "the tokens begin with the prompt: give those after it, which your program appended"
        )
    search = plant(text, trials, progress)
    # Drawn tokens look like a defect that no known mistake explains.
    if verdict == "defect" and not search.found and greedy is None:
        refuse_drawn_tokens(text)
    return TokensReport(
        verdict=verdict,
        sentence=sentence_of(verdict, text, departures),
        precision=text.precision,
        given=text.given,
        judged=len(text.tokens),
        departures=departures,
        mistakes=search.found,
        notes=notes_of(verdict, text, departures, search),
        trials=search.tried,
        all_trials=search.all,
    )


# Their tokens, by our logits


@dataclass(frozen=True)
class Text:
    """A prompt, the tokens of the other GPT-2 after it, and what our model makes of each."""

    model32: GPT2
    prompt: list[int]
    tokens: list[int]  # those that are judged
    given: int  # their number before the context ended
    precision: str
    activations: Tape  # ours of `ids`, in float32
    logits: Array  # ours, [N, V] in float64: row n is what `tokens[n]` was chosen from
    rounding: Array  # [N]: how far rounding to `precision` can move the gap of two logits
    rounding32: Array  # [N]: the same in float32

    @property
    def ids(self) -> Array:  # [1, T + N - 1]
        """What our model reads: the last token is only predicted."""
        return np.array([[*self.prompt, *self.tokens[:-1]]])

    @classmethod
    def of(cls, model: GPT2, prompt_ids: Any, their_ids: Any, precision: str) -> "Text":
        """A text with what our model makes of it. Raises ArgumentError for what is no token."""
        prompt = check_prompt_ids(prompt_ids, model.config)
        given = as_array(their_ids)
        if given.ndim != 1 or given.size == 0:
            raise ArgumentError(
                "the tokens must be one sequence of ids [N] with at least one, got shape "
                f"{given.shape}"
            )
        # As [N, 1], N sequences of one token: there may be more tokens than fit into the context.
        check_ids(given[:, None], model.config)
        room = model.config.n_ctx - len(prompt) + 1  # a full context still predicts one token
        tokens = [int(token) for token in given[:room]]
        ids = np.array([[*prompt, *tokens[:-1]]])
        model32 = model.astype(np.float32)
        activations = compute_activations(model32, ids, given={}, planted={})
        first = len(prompt) - 1  # the row that predicts the first token
        logits = check_logits(model.astype(np.float64)(ids)[0, first:])
        rounding = rounding_of(model32, ids, activations, logits, precision)
        if not np.isfinite(rounding).all():
            raise ArgumentError(
                f"{precision} cannot hold the activations of this model on this text: they "
                "become infinite"
            )
        return cls(
            model32=model32,
            prompt=prompt,
            tokens=tokens,
            given=given.size,
            precision=precision,
            activations=activations,
            logits=logits,
            rounding=rounding,
            rounding32=rounding_of(model32, ids, activations, logits, "float32"),
        )

    def gives_their_tokens(self, trial: Trial) -> bool:
        """Whether each of their tokens is the best within rounding with this mistake.

        False, too, for a mistake that changes no logit beyond rounding.
        """
        start = len(self.prompt)
        # Most mistakes are excluded by the first token, for which the prompt is read alone.
        first = self.logits_with(trial, self.ids[:, :start])[-1]
        if not self.is_best(first, place=0):
            return False

        rows = self.logits_with(trial, self.ids)[start - 1 :]  # [N, V]
        if not self.is_near(rows[0], first, place=0):
            # With this mistake, a token sees later ones, and the prompt alone has other logits. So
            # each token needs a pass that ends before it, up to the first that is not theirs.
            rows = np.array([first, *self.steps(trial)])
        right = self.activations["logits"][0, start - 1 :]
        changes_a_logit = False
        for place, logits in enumerate(rows):
            if not self.is_best(logits, place):
                return False
            if not self.is_near(logits, right[place], place):
                changes_a_logit = True
        return changes_a_logit

    def logits_with(self, trial: Trial, ids: Array) -> Array:  # ids [1, T] -> [T, V]
        tape = compute_activations(self.model32, ids, given={}, planted=trial.planted)
        return tape["logits"][0]

    def steps(self, trial: Trial) -> list[Array]:
        """The logits of each token after the first, each from a pass that ends before the token.

        They end with the first logits of which their token is not the best.
        """
        rows = []
        start = len(self.prompt)
        for place in range(1, len(self.tokens)):
            ids = self.ids[:, : start + place]
            rows.append(self.logits_with(trial, ids)[-1])
            if not self.is_best(rows[-1], place):
                break
        return rows

    def is_near(self, logits: Array, others: Array, place: int) -> bool:
        """Whether the logits differ by float32's rounding alone. nan is near nan."""
        tolerance = float(self.rounding32[place])
        return np.allclose(logits, others, rtol=1e-5, atol=tolerance, equal_nan=True)

    def is_best(self, logits: Array, place: int) -> bool:  # logits [V]
        """Whether their token at this place is the best one within rounding."""
        token = self.tokens[place]
        if np.isnan(logits).any():  # argmax takes the first nan
            return token == int(np.isnan(logits).argmax())
        # A mistake may make all logits larger, and their rounding as much larger.
        scale = max(1.0, float(logits.std() / self.logits[place].std()))
        return bool(logits.max() - logits[token] <= scale * self.rounding[place])


def to_precision(x: Array, precision: str) -> Array:
    """The float32 numbers rounded to a precision, as float32."""
    if precision == "float16":
        with np.errstate(over="ignore"):  # above 65,504 they are infinite in float16
            return x.astype(np.float16).astype(np.float32)
    if precision == "bfloat16":
        return rounded(x, precision).astype(np.float32)
    return x


def rounding_of(  # logits [N, V] -> [N]
    model32: GPT2, ids: Array, activations: Tape, logits: Array, precision: str
) -> Array:
    """How far rounding can move the distance of the best logit from another one, at each place.

    activations: ours of the ids, in float32. logits: ours of the last N places, in float64.
    """
    rounded_logits = [activations["logits"]]  # as rounded as float32 is
    if precision != "float32":
        weights = {name: to_precision(x, precision) for name, x in model32.parameters.items()}
        rounded_model = GPT2(model32.config, weights)
        # In each place of the pass, the right activation is rounded.
        all_rounded = dict.fromkeys(activations, lambda place: to_precision(place.right, precision))
        for model, planted in (
            (rounded_model, {}),
            (model32, all_rounded),
            (rounded_model, all_rounded),
        ):
            tape = compute_activations(model, ids, given={}, planted=planted)
            rounded_logits.append(tape["logits"])

    best = logits.argmax(axis=-1)[:, None]  # [N, 1]
    largest = np.zeros(len(logits))
    for rounded_ones in rounded_logits:
        errors = rounded_ones[0, -len(logits) :] - logits  # of each logit
        errors -= np.take_along_axis(errors, best, axis=-1)  # of its distance from the best one
        errors[~np.isfinite(errors)] = np.inf
        largest = np.maximum(largest, np.abs(errors).max(axis=-1))
    # At a few places rounding is small by chance: there the median counts. If our float32 is exact
    # by chance at most places, one rounding of the largest logit counts.
    least = np.finfo(np.float32).eps * np.abs(logits).max(axis=-1)
    return SLACK_OF[precision] * np.maximum(largest, np.maximum(np.median(largest), least))


def departures_of(text: Text) -> list[Departure]:
    """The places where our model takes another token, in order."""
    departures = []
    for place, token in enumerate(text.tokens):
        logits = text.logits[place]
        ours = int(logits.argmax())
        if ours == token:
            continue
        gap = float(logits[ours] - logits[token])
        rounding = float(text.rounding[place])
        departures.append(
            Departure(
                place=place,
                token=token,
                ours=ours,
                gap=gap,
                rounding=rounding,
                rank=1 + int((logits > logits[token]).sum()),
                is_tie_break=gap <= rounding,
            )
        )
    return departures


def first_defect(departures: Sequence[Departure]) -> Departure:
    return next(departure for departure in departures if not departure["is_tie_break"])


# What cannot be judged

DRAWN = (
    "drawn tokens are not judged: each token that has a probability can be drawn, so no token is "
    "wrong; let your program take the likeliest token each time (temperature 0, no penalties)"
)


def refuse_drawn_tokens(text: Text) -> None:
    """Raise ArgumentError if the tokens are as likely as tokens that are drawn from our model.

    At some temperature that people use, their log probability and the number of the likeliest
    tokens among them are both within two standard deviations of those of drawn tokens.
    """
    tokens = np.array(text.tokens)
    is_best = text.logits.argmax(axis=-1) == tokens
    departing = int((~is_best).sum())
    if departing < FEWEST_DRAWN:
        return
    for temperature in np.arange(0.6, 1.21, 0.1):
        log_p = log_softmax(text.logits / temperature)  # [N, V]
        p = np.exp(log_p)
        log_p_of_tokens = np.take_along_axis(log_p, tokens[:, None], axis=-1).sum()
        # Of a drawn token in each place: the mean and the variance of its log probability, and the
        # probability that it is the likeliest one.
        mean = (p * log_p).sum(axis=-1)
        variance = (p * log_p**2).sum(axis=-1) - mean**2
        best = p.max(axis=-1)
        # In standard deviations
        distance = abs(log_p_of_tokens - mean.sum()) / math.sqrt(variance.sum())
        distance_of_best = abs(is_best.sum() - best.sum()) / math.sqrt((best * (1 - best)).sum())
        if distance < 2 and distance_of_best < 2:
            raise ArgumentError(
                f"{departing} of the {len(tokens)} tokens are not the likeliest, as in a text "
                f"drawn at temperature {temperature:.1f}: {DRAWN}; if they are greedy, say so: "
                '"greedy": true in the file, greedy=True in Python'
            )


# Known mistakes


@dataclass(frozen=True)
class Search:
    """The known mistakes that, planted, give their tokens within rounding."""

    found: list[str]  # sentences on them
    tried: int
    all: int  # those that could be tried


def plant(text: Text, most_trials: int | None, progress: OnTrial) -> Search:
    """Plant one known mistake after the other, and keep those that give their tokens.

    A mistake is planted in all layers. (Of the thousands in one place, some give the same few
    tokens by chance.)
    """
    mistakes = [*mistakes_in(text.model32.config.n_layer), *mistakes_of_steps(len(text.prompt))]
    if text.precision != "float32":  # then "weights rounded to float16" is no mistake
        mistakes = [mistake for mistake in mistakes if "rounded to" not in mistake.sentence]
    names = list(text.activations)  # where a mistake can be planted
    # A mistake may be made in several ways, such as a norm over a text or over a batch. They have
    # one sentence, and count as one.
    ways: dict[str, list[Trial]] = {}  # the sentence on a mistake -> a trial of each way
    for trial in trials_in_all_layers(mistakes, names):
        ways.setdefault(trial.line, []).append(trial)
    sentences = list(ways)[:most_trials]  # all, if it is None
    found = []
    for tried, sentence in enumerate(sentences):
        progress(tried, len(ways))
        if any(text.gives_their_tokens(trial) for trial in ways[sentence]):
            found.append(sentence)
    return Search(found, tried=len(sentences), all=len(ways))


# What is said


def sentence_of(verdict: Verdict, text: Text, departures: Sequence[Departure]) -> str:
    """The verdict in one sentence, which says first what was not judged."""
    count = len(text.tokens)
    start = "" if count == text.given else f"of {text.given} tokens the first {count} are judged; "
    tokens = counted(count, "token")
    if verdict == "identical":
        return f"{start}identical: the {tokens} are those that this model takes"
    if verdict == "tie-break":
        largest = max(departures, key=lambda departure: departure["gap"])
        return (
            f"{start}tie-break: {len(departures)} of {tokens} differ, by a gap that rounding to "
            f"{text.precision} can close; the widest is {largest['gap']:.1e} at "
            f"tokens[{largest['place']}], where rounding can do {largest['rounding']:.1e}"
        )
    first = first_defect(departures)
    return (
        f"{start}defect: tokens[{first['place']}] is {first['token']}, this model takes "
        f"{first['ours']}; the gap is {first['gap']:.1e}, rounding to {text.precision} can do "
        f"{first['rounding']:.1e}; {first['token']} has rank {first['rank']}"
    )


def notes_of(
    verdict: Verdict, text: Text, departures: Sequence[Departure], search: Search
) -> list[str]:
    """What was not judged and why, what explains the verdict, what tokens cannot tell."""
    notes = []
    if len(text.tokens) < text.given:
        notes.append(
            f"tokens[{len(text.tokens)}] and later are not judged: the context of "
            f"{text.model32.config.n_ctx} tokens is full, and programs go on in different ways"
        )
    if verdict != "defect" and search.tried == 0:
        notes.append("no known mistake was planted: what these tokens cannot tell is not known")
        return notes

    tried = f"of {search.tried:,} known mistakes, planted in all layers,"
    count = "1 gives" if len(search.found) == 1 else f"{len(search.found)} give"
    if verdict == "defect" and search.found:
        notes.append(f"{tried} {count} these tokens; the logits tell more")
    elif verdict == "defect":
        notes.append(f"{tried} none gives these tokens: give the logits")
    elif search.found:
        notes.append(f"these tokens cannot tell: {tried} {count} them, too; the logits tell")
    else:
        notes.append(f"{tried} none gives these tokens")
    if search.tried < search.all:
        notes.append(
            f"{search.all - search.tried:,} more were not planted: --trials {search.all} (in "
            f"Python, trials={search.all})"
        )
    if verdict == "defect":
        notes += defect_notes(text, departures, search)
    return notes


def defect_notes(text: Text, departures: Sequence[Departure], search: Search) -> list[str]:
    """What else a defect may be."""
    notes = []
    precisions = list(SLACK_OF)
    for precision in precisions[precisions.index(text.precision) + 1 :]:
        rounding = rounding_of(text.model32, text.ids, text.activations, text.logits, precision)
        if not np.isfinite(rounding).all():  # this precision cannot hold the activations
            continue
        if all(departure["gap"] <= rounding[departure["place"]] for departure in departures):
            notes.append(
                f"in {precision} this would be a tie-break: say so if yours computes in it"
            )
            break
    if first_defect(departures)["ours"] in text.model32.config.eos_token_ids:
        notes.append("this model ends the text there, and yours goes on")
    if set(text.tokens) == {0}:
        notes.append(ALL_ZERO)
    if not search.found:
        notes.append(QUANTISED)
    return notes
