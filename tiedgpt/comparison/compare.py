"""Another GPT-2's activations and gradients against ours: which differs first, and which mistake
explains it.

The reference is our model in float64. An activation agrees if its largest distance from the
reference is at most SLACK times the largest distance of our own float32, or SLACK roundings if that
is more. This holds for float64 arrays, too, because one np.sqrt(K) makes float64 arrays of float32
ones, with float32's rounding.

To find a mistake, each activation is computed again from the other model's activations before it.
"""

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import numpy as np

from ..errors import ArgumentError, short_repr
from ..gpt2.backward import loss_and_gradients
from ..gpt2.checks import check_ids, check_targets
from ..gpt2.model import GPT2, Array
from ..gpt2.parameters import Parameters
from ..gpt2.run import Tape, activation_shapes
from .conventions import PARAMETER, our_activations, our_name, our_parameters, shape_error
from .mistakes import HALVES, Place, Trial, rounded, trials_in

SLACK = 16.0
SECONDS = 15.0  # for which mistakes are tried
Progress = Callable[[int, int], Any]


@dataclass(frozen=True)
class Row:
    name: str
    error: float  # the largest distance from our float64
    tolerance: float
    first_wrong: tuple[int, ...] | None = None  # the first index beyond the tolerance
    yours: float | None = None  # there
    expected: float | None = None


@dataclass(frozen=True)
class Report:
    """What `compare` found. `str(report)` is a table in the order of the forward pass, then the
    diagnosis."""

    rows: list[Row]
    diagnosis: list[str]  # what explains the first difference; several if they cannot be told apart
    note: str  # what to do next, or ""
    not_given: int  # activations of the model that were not compared

    @property
    def first(self) -> Row | None:
        """The first row that differs; None if the two are the same GPT-2."""
        return next((row for row in self.rows if row.first_wrong), None)

    def __str__(self) -> str:
        width = max(len(row.name) for row in self.rows)
        lines = [f"{'':{width}}  largest error  tolerance  first wrong index"]
        for row in self.rows:
            at = list(row.first_wrong or ()) or ""
            lines.append(
                f"{row.name:{width}}  {row.error:13.1e}  {row.tolerance:9.1e}  {at}".rstrip()
            )
        end = "all agree"
        if first := self.first:
            at = list(first.first_wrong or ())
            end = f"first difference: {first.name}{at} is {first.yours:.9g}, expected {first.expected:.9g}"
        count = f"({len(self.rows)} compared; {self.not_given} activations were not given)"
        return "\n".join([*lines, "", f"{end} {count}", *self.diagnosis, self.note]).rstrip()


def compare(
    model: GPT2,
    theirs: Any,
    ids: Any,
    targets: Any = None,
    progress: Progress = lambda done, total: None,
) -> Report:
    """Compare another GPT-2 with `model` on `ids` [T] or [B, T].

    theirs: a dict of arrays (NumPy's or torch's) under any names of conventions.py; or a function
    from ids to such a dict, or to logits; or a torch module: transformers', nanoGPT's or
    TransformerLens's GPT-2, whose activations are recorded by hooks, without dropout. With
    `targets`, of the shape of ids, gradients of the mean loss are compared, too: arrays of the dict
    under names of parameters. `progress` is called before each trial of a mistake, with the number
    of those before it and of all. Raises ArgumentError.
    """
    ids = check_ids(ids, model.config)
    targets = None if targets is None else np.atleast_2d(check_targets(targets, ids, model.config))
    values = read_theirs(theirs, ids, targets)
    gradients = our_parameters(
        {name: x for name, x in values.items() if our_name(name).endswith(PARAMETER)}
    )
    if gradients and targets is None:
        raise ArgumentError(
            f"{min(gradients)} is a parameter: to compare its gradient, give targets"
        )
    comparison = Comparison(model, np.atleast_2d(ids), values)
    rows = comparison.rows({}, {})
    diagnosis, note = (
        comparison.diagnose(progress) if any(row.first_wrong for row in rows) else ([], "")
    )
    for row in reversed([] if diagnosis else rows):
        if comparison.theirs[row.name].dtype == np.float64 and row.error > row.tolerance / 2**24:
            note = (
                f"{row.name} is float64 and has float32's rounding: something before it is float32"
            )
    rows += comparison.gradient_rows(gradients, targets) if gradients else []
    if not rows:
        raise ArgumentError("there is nothing to compare: no activation of the model was given")
    return Report(rows, diagnosis, note, len(comparison.names) - len(comparison.theirs))


def read_theirs(theirs: Any, ids: Array, targets: Array | None) -> Mapping[Any, Any]:
    torch = sys.modules.get("torch")  # imported already if theirs is torch's
    if torch is not None and isinstance(theirs, torch.nn.Module):
        if targets is not None:
            raise ArgumentError(
                "of a torch module, gradients are not recorded: give them in a dict"
            )
        if not any(our_name(name) for name, _ in theirs.named_modules()):
            kind = type(theirs).__name__
            raise ArgumentError(
                f"{kind} has no module of a GPT-2, such as h.0.attn.c_attn or blocks.0.mlp"
            )
        theirs = partial(record_module, torch, theirs)
    if callable(theirs):
        try:
            theirs = theirs(ids.copy())
        except Exception as error:
            says = f"{type(error).__name__}: {error}"
            raise ArgumentError(f"the other model failed on these ids: {says}") from error
    if hasattr(theirs, "shape"):
        theirs = {"logits": theirs}
    if not isinstance(theirs, Mapping) or not theirs:
        expected = "expected logits, a dict of arrays, a torch module or a function"
        raise ArgumentError(f"{expected}, got {short_repr(theirs)}")
    return theirs


def record_module(torch: Any, module: Any, ids: Array) -> dict[str, Any]:
    """A torch module's activations under its modules' names."""
    taken: dict[str, Any] = {}

    def take(name: str, _: Any, args: tuple[Any, ...], rest: Any) -> None:
        """A hook. `rest` is the output, or what is beside args in the input."""
        values = [*args, *rest.values()] if name.endswith(":in") else rest
        values = values if isinstance(values, tuple | list) else [values]
        for key, value in zip((name, f"{name}:1"), values, strict=False):
            ours = our_name(key)
            # TransformerLens's module `embed` is not ours: it has no positions. Nor is wte the
            # parameter.
            known = ours not in ("", key.split(".")[-1]) and not ours.endswith(PARAMETER)
            if known and torch.is_tensor(value):
                taken[key] = value.clone()

    device = next((parameter.device for parameter in module.parameters()), None)
    batch = torch.as_tensor(np.atleast_2d(ids), dtype=torch.long, device=device)
    with ExitStack() as undo, torch.no_grad():
        undo.callback(module.train, module.training)
        for name, part in module.named_modules():
            undo.enter_context(
                part.register_forward_pre_hook(partial(take, f"{name}:in"), with_kwargs=True)
            )
            undo.enter_context(part.register_forward_hook(partial(take, name)))
        module.eval()
        # nanoGPT computes all logits only if it gets targets.
        module(*[batch] * (1 + ("targets" in signature(module.forward).parameters)))
    return taken


@np.errstate(all="ignore")
def forward(
    model: GPT2, ids: Array, given: Tape, edits: Mapping[str, Callable[[Place], Any]]
) -> Tape:
    """Each activation as the model computes it, with edits, from the `given` activations before
    it."""
    computed: Tape = {}
    tape: Tape = {}

    def replace(name: str, x: Array) -> Array:
        if name in edits:
            x = edits[name](Place(name, x, model, ids, tape))
        computed[name] = np.asarray(x, model.dtype)
        return given.get(name, x)

    model(
        ids,
        tape=tape,
        edit={name: partial(replace, name) for name in activation_shapes(model.config)},
    )
    replace("logits", tape["logits"])
    return computed


@np.errstate(invalid="ignore")
def distance(name: str, a: Array, b: Array) -> Array:
    """|a - b| in float64; 0 where both are the same inf or nan, inf where one of them is nan."""
    far = np.abs(np.subtract(a, b, dtype=np.float64))
    far[(a == b) | (np.isnan(a) & np.isnan(b))] = 0
    far[np.isnan(far)] = np.inf
    return np.tril(far) if name.endswith(".scores") else far  # those of later tokens may be masked


def row_of(name: str, theirs: Array, wide: Array, narrow: Array) -> Row:
    """Compare theirs with our float64, `wide`. Our float32, `narrow`, tells how large rounding
    is."""
    finite = np.isfinite(wide) & np.isfinite(narrow)
    rounding = np.abs(wide[finite] - narrow[finite]).max(initial=0)
    unit = np.finfo(np.float32).eps * np.abs(wide[finite]).max(initial=0)
    tolerance = SLACK * float(max(rounding, unit))
    far = distance(name, theirs, wide)
    error = float(far.max(initial=0))
    if error <= tolerance:
        return Row(name, error, tolerance)
    index = tuple(map(int, np.unravel_index(int((far > tolerance).argmax()), far.shape)))
    return Row(name, error, tolerance, index, float(theirs[index]), float(wide[index]))


class Comparison:
    """Our model in float32 and float64 on some ids, and the other model's activations."""

    def __init__(self, model: GPT2, ids: Array, activations: Mapping[Any, Any]) -> None:
        self.narrow, self.wide = model.astype(np.float32), model.astype(np.float64)
        self.ids = ids
        ours = forward(self.narrow, ids, {}, {})
        self.names = list(ours)
        self.theirs = our_activations(activations, ours, model.config)

    def rows(self, given: Tape, edits: Mapping[str, Any]) -> list[Row]:
        """Theirs against ours with edits, computed from what is given."""
        narrow, wide = (
            forward(model, self.ids, given, edits) for model in (self.narrow, self.wide)
        )
        return [
            row_of(name, theirs, wide[name], narrow[name]) for name, theirs in self.theirs.items()
        ]

    def gradient_rows(self, gradients: Parameters, targets: Any) -> list[Row]:
        wide, narrow = (
            loss_and_gradients(m, self.ids, targets)[1] for m in (self.wide, self.narrow)
        )
        for name, array in gradients.items():
            if name not in wide:
                raise ArgumentError(
                    f"{name} is not a parameter of this {self.wide.config.head} model"
                )
            if array.shape != wide[name].shape:
                raise shape_error(f"the gradient of {name}", array.shape, wide[name].shape)
        return [
            row_of(n, gradients[n], wide[n], narrow[n]) for n in reversed(wide) if n in gradients
        ]

    @np.errstate(all="ignore")
    def diagnose(self, progress: Progress) -> tuple[list[str], str]:
        """The mistakes that explain the first difference, and a note on what to do next."""
        # If each agrees with what we compute from theirs before it, small differences have grown.
        given = self.theirs if any(row.first_wrong for row in self.rows(self.theirs, {})) else {}
        first = next(row for row in self.rows(given, {}) if row.first_wrong)
        theirs, right = (
            self.theirs[first.name],
            forward(self.narrow, self.ids, given, {})[first.name],
        )
        far = distance(first.name, theirs, right)
        bad = np.isinf(far)
        where = "everywhere" if bad.all() else f"in {bad.sum()} of {bad.size} places"
        kind = "nan" if np.isnan(theirs[bad]).any() else "inf"
        says = [f"{first.name}: yours is {kind} {where}"] if bad.any() else []
        for name, bits in HALVES.items():
            if (
                np.array_equal(theirs, rounded(theirs, bits))
                and far.max() <= np.abs(right).max() / 64
            ):
                return [f"{first.name}: yours is rounded to {name}"], "compare in float32"

        end = self.names.index(first.name)
        start = next((i + 1 for i in reversed(range(end)) if self.names[i] in given), 0)
        window = self.names[start : end + 1]  # what comes before it is given
        trials = trials_in(window, self.names)
        deadline = time.monotonic() + SECONDS
        errors: dict[Trial, float] = {}
        found: list[tuple[int, int, float, str, str]] = []
        for done, (trial, (stage, sentence)) in enumerate(trials.items()):
            if time.monotonic() > deadline or (found and min(found)[:2] < (0, stage)):
                break
            progress(done, len(trials))
            here = frozenset(edit for edit in trial if edit[0] in window)
            edits = {name: partial(Place.evaluate, code=code) for name, code in trial}
            if here not in errors:
                x = forward(self.narrow, self.ids, given, edits)[first.name]
                errors[here] = distance(first.name, theirs, x).max()
            if errors[here] >= first.error / 4:  # not much nearer than without the mistake
                continue
            left = [row.name for row in self.rows(given, edits) if row.first_wrong]
            if first.name not in left:
                found.append((len(left), stage, errors[here], sentence, left[0] if left else ""))

        blocks = [name for name in window[:-1] if name.startswith("resid_post")]
        names = f"{blocks[0]} to {blocks[-1]}" if len(blocks) > 1 else ", ".join(window[:-1])
        to_give = f"to find where it begins, give {names}, too" if names else ""
        if not found:
            none = "this is none of the known mistakes"
            if time.monotonic() > deadline:
                tried = f"{done} trials that {SECONDS:.0f} s sufficed for"
                none = f"none of the {tried} explains this, of {len(trials)}"
            return [*says, f"{first.name}: {none}"], to_give
        fewest, stage, nearest, _, next_wrong = min(found)
        alike = [
            trial[3] for trial in found if trial[:2] == (fewest, stage) and trial[2] <= 2 * nearest
        ]
        # A mistake that explains nan alone, and no number, is one of many.
        unsure = bool(says) and far[~bad].max(initial=0) <= first.tolerance
        how = "perhaps yours" if unsure else "yours"
        for sentence in dict.fromkeys(alike):
            says.append(sentence.replace("yours", how, 1))
            how = "or yours"
        if next_wrong:
            return says, f"{next_wrong} differs then, too: correct this first, and compare again"
        return says, to_give if unsure else ""
