"""Another GPT-2's activations and gradients against ours: which differs first, and why.

places.py says which arrays agree, diagnosis.py which known mistakes explain those that do not.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checkpoints.state_dicts import rename_arrays
from ..errors import COUNT, ArgumentError, counted, short_repr
from ..gpt2.backward import loss_and_gradients
from ..gpt2.checks import check_ids, check_targets
from ..gpt2.model import GPT2, Array
from ..gpt2.parameters import Parameters, parameter_shapes
from .conventions import is_parameter, our_name, shape_error
from .diagnosis import Diagnosis, OnTrial, diagnose
from .mistakes import mistakes_in
from .places import Comparison, ReportRow, compare_arrays, few_digits
from .recording import record, untied_module_sentences

ALMOST_NONE = 1 / 16  # of the logits of a text


class NothingCompared(ArgumentError):
    """No array that was given could show a difference."""


@dataclass(frozen=True)
class Report:
    """What `compare` found.

    `str(report)` says what was not compared, has a table in the order of the forward pass, and then
    the diagnosis.
    """

    rows: list[ReportRow]
    # What explains the differences: several sentences if mistakes were made together ("and yours"),
    # or cannot be told apart ("or yours").
    diagnosis: list[str]
    note: str  # what to do next, or ""
    not_given: int  # activations of the model that were not compared
    trials: int = 0  # of known mistakes: one in one of its places, or several together
    all_trials: int = 0  # those that could be made
    not_compared: Sequence[str] = ()  # sentences on what a verdict needs and was not compared
    left_out: str = ""  # a sentence on logits for no token of the vocabulary

    def __bool__(self) -> bool:
        """`assert compare(...)` fails unless it is known to be the same GPT-2."""
        return self.same is True

    @property
    def same(self) -> bool | None:
        """Whether it is the same GPT-2. None if all that was compared agrees, and that is too
        little: without logits, with one token, or without a gradient where targets were given.
        """
        if self.first is not None:
            return False
        return None if self.not_compared else True

    @property
    def first(self) -> ReportRow | None:
        """The first row that differs, or None if all agree."""
        for row in self.rows:
            if row.differs:
                return row
        return None

    def __str__(self) -> str:
        lines = [*self.not_compared]
        if self.left_out:
            lines.append(self.left_out)
        if lines:
            lines.append("")
        width = max(len(row.name) for row in self.rows)  # of names; numbers are below their titles
        lines.append(f"{'':{width}}  largest error  tolerance  first wrong index")
        for row in self.rows:
            line = f"{row.name:{width}}  {row.error:13.1e}  {row.tolerance:9.1e}"
            if row.first_wrong is not None:
                line += f"  {list(row.first_wrong)}"
            lines.append(line)
        lines.append("")
        lines.append(f"{self.verdict()} ({self.counts()})")
        lines += self.diagnosis
        if self.note:
            lines.append(self.note)
        return "\n".join(lines)

    def verdict(self) -> str:
        """The first number that is wrong, for people."""
        first = self.first
        if first is None or first.first_wrong is None:
            return "all agree" if self.same else "what was compared agrees"
        return (
            f"first difference: {first.name}{list(first.first_wrong)} is {first.yours:.9g}, "
            f"expected {first.expected:.9g}"
        )

    def counts(self) -> str:
        """How many activations were compared and how many mistakes were tried, for people."""
        counts = f"{len(self.rows)} compared; {self.not_given} activations were not given"
        if self.all_trials > 0:
            counts += f"; {self.trials:,} of {self.all_trials:,} trials of known mistakes"
        return counts


def no_progress(tried: int, total: int) -> None:
    """Called before each trial, if the caller of `compare` does not want to know of trials."""


def compare(
    model: GPT2,
    theirs: Any,
    ids: Any,
    targets: Any = None,
    progress: OnTrial = no_progress,
    trials: int | None = None,
) -> Report:
    """Compare another GPT-2 with `model` on `ids` [T] or [B, T].

    theirs: a dict of arrays (NumPy's or torch's) under any names of conventions.py; or a function
    from ids to such a dict, or to logits; or a torch module: transformers', nanoGPT's or
    TransformerLens's GPT-2, whose activations are recorded by hooks, without dropout. If a padded
    vocabulary gives logits more columns than the model's V, the first V are compared, and no later
    column may have the largest logit of its row.

    targets: of the shape of ids. With them, gradients of the mean loss are compared, too: arrays of
    the dict under names of parameters.

    progress: called before each trial of a mistake, with the number of trials made and of all.
    trials: the most trials that are made, the likeliest first; None: as many as take some minutes.

    Raises ArgumentError. It is a NothingCompared if no array could show a difference.
    """
    if not isinstance(model, GPT2):
        raise ArgumentError(f"the model must be a GPT2, got {short_repr(model)}")
    if trials is not None:
        trials = COUNT.check("trials", trials)
    ids = check_ids(ids, model.config)
    if targets is not None:
        targets = np.atleast_2d(check_targets(targets, ids, model.config))
    values = record(theirs, ids, model.config.vocab_size, with_gradients=targets is not None)
    # Activations have other names than parameters, so an array with a parameter's is its gradient.
    arrays = {name: value for name, value in values.items() if is_parameter(our_name(name))}
    gradients = rename_arrays(arrays).tensors
    if gradients and targets is None:
        first_name = sorted(gradients)[0]
        raise ArgumentError(f"{first_name} is a parameter: to compare its gradient, give targets")
    # Some mistakes compute with ids - 1. Unsigned ids have no -1, so they become signed.
    batch = np.atleast_2d(ids).astype(np.int64)
    comparison = Comparison(model, batch, values)

    # Our model computes all activations from the ids, with nothing given and no mistake planted.
    rows, _ = comparison.rows(given={}, planted={})
    if any(row.differs for row in rows):
        mistakes = mistakes_in(model.config.n_layer)
        diagnosis = diagnose(comparison, mistakes, progress, trials)
    else:
        diagnosis = Diagnosis(sentences=[], note=rounding_note(rows, comparison.theirs))

    sentences = list(diagnosis.sentences)
    # Logits may differ because their head is not tied, which no planted mistake shows.
    if any(row.name == "logits" and row.differs for row in rows):
        sentences += untied_module_sentences(theirs, model)
    # Of two arrays of one activation, `rows` has the later one. The earlier one gets a row, too.
    earlier_rows, earlier_sentences = comparison.rows_of_earlier()
    rows += earlier_rows
    sentences += earlier_sentences
    left_out, rows_beyond, sentences_beyond = look_beyond_vocabulary(comparison)
    rows += rows_beyond
    sentences += sentences_beyond
    if gradients:
        gradient_rows, gradient_sentences = compare_gradients(comparison, gradients, targets)
        rows += gradient_rows
        if not sentences:  # else a wrong activation explains wrong gradients
            sentences = gradient_sentences

    # An array of zeros agrees with ours if our rounding is larger than our numbers, and arrays of
    # inf and nan alone agree. Such a row shows nothing.
    rows = [row for row in rows if row.differs or row.largest > row.tolerance]
    if not rows:
        raise NothingCompared(
            "there is nothing to compare: no activation of the model was given in which it has "
            "numbers other than 0, inf and nan, or larger than their rounding"
        )
    compared = {row.name: row for row in rows}
    return Report(
        rows=rows,
        diagnosis=sentences,
        note=diagnosis.note,
        not_given=sum(name not in compared for name in comparison.names),
        trials=diagnosis.tried,
        all_trials=diagnosis.total,
        not_compared=sentences_on_missing(compared, comparison, targets),
        left_out=left_out,
    )


def look_beyond_vocabulary(comparison: Comparison) -> tuple[str, list[ReportRow], list[str]]:
    """What is said of logits with more columns than the vocabulary: that they were left out, and a
    row and a sentence if one of them is the largest of its row, or nan.
    """
    beyond = comparison.beyond_vocabulary  # [B, T, columns]
    columns = beyond.shape[-1]
    if columns == 0:
        return "", [], []
    V = comparison.our_logits.shape[-1]
    left_out = (
        f"{counted(columns, 'column')} of logits beyond the vocabulary of {V:,}: not compared"
    )
    all_logits = np.concatenate([comparison.theirs["logits"], beyond], axis=-1)
    chosen = all_logits.argmax(axis=-1)  # [B, T]: of a greedy program. The first nan is chosen.
    is_outside = chosen >= V
    if not is_outside.any():
        return f"{left_out}; none is the largest of its row", [], []
    b, t = (int(axis[0]) for axis in is_outside.nonzero())
    token = int(chosen[b, t])
    row = ReportRow(
        name="logits",
        error=math.inf,
        tolerance=0,
        largest=math.inf,
        first_wrong=(b, t, token),
        yours=float(all_logits[b, t, token]),
        expected=-math.inf,
    )
    sentence = (
        f"logits: yours chooses token {token:,}, which the vocabulary of {V:,} has not: set such "
        "logits to -inf, or leave them out"
    )
    return left_out, [row], [sentence]


def sentences_on_missing(
    compared: Mapping[str, ReportRow], comparison: Comparison, targets: Any
) -> list[str]:
    """A sentence on each thing that a verdict on a whole GPT-2 needs, and that was not compared.

    compared: the rows of activations and gradients by name. targets: with them, gradients are
    needed.
    """
    sentences = []
    if "logits" not in compared:
        sentences.append("logits: not compared")
    else:
        # Logits that are almost the same for all tokens show nothing: a GPT-2 with wrong layers has
        # them, too. With one token, this cannot be seen.
        logits = comparison.our_logits
        by_token = logits.reshape(-1, logits.shape[-1])  # [B T, V]
        differ = np.abs(by_token[1:] - by_token[0]) > compared["logits"].tolerance
        if len(by_token) > 1 and differ.mean() < ALMOST_NONE:
            sentences.append(
                "logits: not compared, because almost all of this model's are the same for all "
                "tokens"
            )
    if comparison.ids.shape[1] == 1:
        sentences.append("attention between tokens: not compared, because ids has one token")
    if targets is None:
        return sentences
    names = list(parameter_shapes(comparison.model32.config))
    missing = [name for name in names if name not in compared]
    if len(missing) == len(names):
        sentences.append("gradients: not compared")
    elif missing:
        sentences.append(
            f"{len(missing)} of {len(names)} gradients: not compared, such as {missing[0]}"
        )
    return sentences


def rounding_note(rows: list[ReportRow], theirs: Mapping[str, Array]) -> str:
    """A note on the first float64 array with the precision of float32, or "" if there is none."""
    for row in rows:
        # The tolerance is for rounding to float32, which has 24 binary digits. float64 has 53, so
        # its rounding is 2**29 times finer. An error above this limit, which is between the two,
        # cannot be float64's rounding.
        limit = row.tolerance / 2**24
        is_float64 = theirs[row.name].dtype == np.float64
        if is_float64 and row.error > limit:
            return (
                f"{row.name} is float64 and has float32's rounding: something before it is float32"
            )
    return ""


# Gradients


def compare_gradients(
    comparison: Comparison, gradients: Parameters, targets: Array
) -> tuple[list[ReportRow], list[str]]:
    """A row for each of their gradients, in the order of the backward pass, and what is wrong."""
    _, ours64 = loss_and_gradients(comparison.model64, comparison.ids, targets)
    _, ours32 = loss_and_gradients(comparison.model32, comparison.ids, targets)  # for tolerances
    for name, gradient in gradients.items():
        if name not in ours64:
            head = "untied" if "lm_head.weight" in ours64 else "tied"
            raise ArgumentError(f"{name} is not a parameter of this {head} model")
        if gradient.shape != ours64[name].shape:
            raise shape_error(f"the gradient of {name}", gradient.shape, ours64[name].shape)
    rows = []
    for name in reversed(ours64):  # parameters are in the order of the forward pass
        if name in gradients:
            rows.append(compare_arrays(name, gradients[name], ours64[name], ours32[name]))
    differing = [row.name for row in rows if row.differs]
    sentences: list[str] = []
    if "wte.weight" in differing and comparison.model64.config.tied:
        # Is one of the two gradients of a tied wte missing?
        sentences += missing_part_sentences(comparison, gradients["wte.weight"], targets)

    # If all differ: are they the gradients of the sum of the losses, in place of the mean?
    n = targets.size
    is_sum = all(
        not compare_arrays(name, gradient / n, ours64[name], ours32[name]).differs
        for name, gradient in gradients.items()
    )
    if is_sum and len(differing) == len(rows):
        sentences.append(
            f"gradients: yours are {n} times as large, those of the sum of the {n} losses; "
            "expected those of their mean"
        )
    if differing and not sentences:
        # Was the first gradient that differs printed with too few digits?
        first = next(row for row in rows if row.differs)
        sentence, _ = few_digits(gradients[first.name], ours64[first.name], first.tolerance)
        if sentence:
            sentences.append(f"{first.name}: {sentence}")
    return rows, sentences


def missing_part_sentences(comparison: Comparison, gradient: Array, targets: Array) -> list[str]:
    """A sentence if their gradient of a tied wte lacks one of its two parts; else none.

    The right gradient is that of the embedding plus that of the output matrix.
    """
    model = comparison.model64
    # An untied model with a copy of wte as output matrix has the same activations, and an array for
    # each of the two parts. compare_arrays takes its tolerance from the float32 one.
    _, apart64 = loss_and_gradients(model.untie("copy"), comparison.ids, targets)
    _, apart32 = loss_and_gradients(comparison.model32.untie("copy"), comparison.ids, targets)
    for name, part in (
        ("lm_head.weight", "the output matrix, without the embedding's"),
        ("wte.weight", "the embedding, without the output matrix's"),
    ):
        row = compare_arrays(name, gradient, apart64[name], apart32[name])
        if not row.differs:
            return [f"wte.weight: yours is the gradient of {part}; a tied wte gets the sum of both"]
    return []
