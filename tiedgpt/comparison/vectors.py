"""The answers of a GPT-2 in another language to the cases of the reference values, judged.

tests/vectors/v2 has the reference values: a manifest with all cases, the weights and vocabularies
from which they are computed, and what is expected. A port writes its answers under the names of the
cases. `judge` says of each case: right, tie-break, wrong and why, or not given.

What is right is computed anew, by our model in float64. Float32 tells how large rounding is.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np

from ..checkpoints.vocabulary import read_tokenizer
from ..errors import ArgumentError, counted, nearest_names, short_repr
from ..gpt2.config import Config
from ..gpt2.model import GPT2, Array
from ..gpt2.tokenizer import Tokenizer
from .compare import compare
from .diagnosis import joined_by_or
from .places import compare_arrays, distance, few_digits, tolerance_of
from .recording import read_safetensors
from .tokens import compare_tokens
from .vector_mistakes import (
    DECODERS,
    ENCODERS,
    Results,
    Vocabulary,
    adamw_results,
    batch_results,
    gradient_results,
    step_results,
)

PACKAGE = Path(__file__).resolve().parents[1]
# In a checkout, the files are among the tests; in an installation they are inside the package.
IN_CHECKOUT = PACKAGE.parent / "tests" / "vectors" / "v2"
DIRECTORY = IN_CHECKOUT if IN_CHECKOUT.is_dir() else PACKAGE / "vectors" / "v2"

Status = Literal["right", "tie-break", "wrong", "not given"]


class Case(TypedDict):
    """A case of the manifest. `kind` says what is asked, the other fields what it is asked of."""

    name: str
    kind: str
    given: dict[str, Any]


class CaseReport(TypedDict):
    name: str
    status: Status
    sentence: str  # what is wrong, or ""
    mistakes: list[str]  # known mistakes that give this answer, too


class VectorsReport(TypedDict):
    """What `judge` found. `sentence` says first what was not looked at, and not given."""

    inputs: list[str]  # the names among the answers of what cases begin with: not looked at
    cases: list[CaseReport]
    right: int
    tie_break: int
    wrong: int
    not_given: int
    sentence: str
    mistakes: dict[str, list[str]]  # a group with a wrong answer -> what gives all its answers


@dataclass(frozen=True)
class Vectors:
    """The reference values of a directory."""

    directory: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        path = self.directory / "manifest.json"
        if not path.is_file():
            raise ArgumentError(f"{path}: no such file; it has the cases of the reference values")
        manifest: dict[str, Any] = json.loads(path.read_bytes())
        return manifest

    @property
    def cases(self) -> list[Case]:
        cases: list[Case] = self.manifest["cases"]
        return cases

    @property
    def inputs(self) -> set[str]:
        """The names in `expected` that are no cases: gradients with which AdamW makes its step."""
        steps = [case for case in self.cases if case["kind"] == "adamw"]
        gradients: set[str] = {case["given"]["gradient"] for case in steps}
        return gradients - {case["name"] for case in self.cases}

    @cached_property
    def weights(self) -> dict[str, Array]:
        return read_safetensors(self.directory / "weights.safetensors")

    @cached_property
    def expected(self) -> dict[str, Array]:
        return read_safetensors(self.directory / "expected.safetensors")

    @cached_property
    def models(self) -> dict[str, GPT2]:
        """Each model of the manifest, in float32."""
        models = {}
        for name, settings in self.manifest["models"].items():
            parameters = {
                parameter: self.weights[stored]
                for parameter, stored in settings["parameters"].items()
            }
            models[name] = GPT2(Config.from_json(settings["config"]), parameters)
        return models

    @cached_property
    def tokenizers(self) -> dict[str, Tokenizer]:
        folders = self.manifest["vocabularies"]
        return {name: read_tokenizer(self.directory / folder) for name, folder in folders.items()}


@cache
def opened(directory: Path) -> Vectors:
    """The reference values of a directory, which are read once."""
    return Vectors(directory)


def judge(answers: Mapping[str, Any], directory: Path = DIRECTORY) -> VectorsReport:
    """Judge answers under the names of cases: each an array, nested lists, or a text.

    expected.json has inputs of cases, too: under their names, nothing is looked at. Raises
    ArgumentError if there are no answers, for a name that is neither a case nor an input, and for
    an answer that is of another kind than its case asks for.
    """
    vectors = opened(directory)
    names = [case["name"] for case in vectors.cases]
    if not isinstance(answers, Mapping):
        raise ArgumentError("expected answers under the names of cases")
    inputs = [name for name in answers if name in vectors.inputs]
    answers = {name: answer for name, answer in answers.items() if name not in inputs}
    if not answers:
        raise ArgumentError("there are no answers: expected at least one, under a case's name")
    for name in answers:
        if name not in names:
            raise ArgumentError(
                f"{short_repr(name)} is not a case; the nearest are {nearest_names(name, names)}"
            )
    reports = []
    for case in vectors.cases:
        name = case["name"]
        if name in answers:
            judge_answer = JUDGES.get(case["kind"], judge_array)
            reports.append(judge_answer(vectors, case, answers[name]))
        else:
            reports.append(report_of(case, "not given"))
    counts = dict.fromkeys(("right", "tie-break", "wrong", "not given"), 0)
    for report in reports:
        counts[report["status"]] += 1
    sentence = (
        f"not given: {counts['not given']} of {len(reports)} cases; right: {counts['right']}, "
        f"tie-break: {counts['tie-break']}, wrong: {counts['wrong']}"
    )
    if inputs:
        sentence = f"not looked at, an input and no answer: {', '.join(inputs)}; {sentence}"
    return VectorsReport(
        inputs=inputs,
        cases=reports,
        right=counts["right"],
        tie_break=counts["tie-break"],
        wrong=counts["wrong"],
        not_given=counts["not given"],
        sentence=sentence,
        mistakes=common_mistakes(vectors, reports, answers),
    )


def common_mistakes(
    vectors: Vectors, reports: list[CaseReport], answers: Mapping[str, Any]
) -> dict[str, list[str]]:
    """For each group with a wrong answer: the mistakes that give all answers of the group.

    A right answer excludes the mistakes that would have given another one.
    """
    common: dict[str, list[str]] = {}
    # Wrong answers first: the right ones of a group matter only if its wrong ones share a mistake.
    for status in ("wrong", "right"):
        for case, report in zip(vectors.cases, reports, strict=True):
            # The cases in which one mistake shows: all texts of a tokenizer, or of a model.
            group = case["name"]
            if case["kind"] in ("encode", "decode"):
                group = case["kind"]
            elif case["kind"] == "greedy":
                group = f"greedy/{case['given']['model']}"
            if report["status"] != status or (status == "right" and not common.get(group)):
                continue
            mistakes = report["mistakes"]
            if status == "right":
                mistakes = mistakes_giving(vectors, case, answers[case["name"]])
            so_far = common.get(group, mistakes)
            common[group] = [mistake for mistake in so_far if mistake in mistakes]
    for group, mistakes in common.items():
        of_group = [answer for name, answer in answers.items() if name.startswith(f"{group}/")]
        yours = "yours"
        if group.startswith("greedy/") and not any(np.any(answer) for answer in of_group):
            yours = "perhaps yours"  # many mistakes make tokens of 0 (tokens.ALL_ZERO)
        # The sentences on logits are those of `compare`, which have "or yours" already.
        if not group.startswith("logits/"):
            common[group] = joined_by_or(mistakes, first=yours)
    return common


# A case


def report_of(
    case: Case, status: Status, sentence: str = "", mistakes: list[str] | None = None
) -> CaseReport:
    return CaseReport(name=case["name"], status=status, sentence=sentence, mistakes=mistakes or [])


def as_numbers(case: Case, answer: Any) -> Array:
    """The answer as float64, with null as nan. Raises ArgumentError for anything but numbers."""
    try:
        array = np.asarray(answer)
        if array.dtype == object:  # null, which JavaScript writes for nan and inf
            array = np.array(answer, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(
            f"{case['name']}: expected numbers in lists of equal lengths: {error!s:.100}"
        ) from error
    if array.dtype.kind not in "iuf":
        raise ArgumentError(f"{case['name']}: expected numbers, got {short_repr(answer)}")
    return array.astype(np.float64)


def as_ids(case: Case, answer: Any) -> list[int]:
    """The answer as a list of whole numbers. An empty list is one."""
    try:
        array = np.asarray(answer)
    except ValueError:  # lists of unequal lengths
        array = np.asarray(None)  # which is refused below
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ArgumentError(
            f"{case['name']}: expected a list of whole numbers, got {short_repr(answer)}"
        )
    return [int(each) for each in array]


def as_text(case: Case, answer: Any) -> str:
    """A text, or that of its bytes: a program may print neither U+FFFD nor half a character."""
    if isinstance(answer, str):
        return answer
    numbers = as_ids(case, answer)
    if any(not 0 <= number < 256 for number in numbers):
        raise ArgumentError(f"{case['name']}: expected a text, or a list of its bytes")
    return bytes(numbers).decode(errors="replace")


def judge_logits(vectors: Vectors, case: Case, answer: Any) -> CaseReport:
    model = vectors.models[case["given"]["model"]]
    ids = np.array(case["given"]["ids"])
    theirs = as_numbers(case, answer)
    expected = (*ids.shape, model.config.vocab_size)
    if theirs.shape != expected:
        return report_of(case, "wrong", f"the shape is {theirs.shape}, expected {expected}")
    report = compare(model, {"logits": theirs}, ids)
    if report.same:
        return report_of(case, "right")
    # The other sentences say that no known mistake explains it.
    named = [line for line in report.diagnosis if "yours " in line]
    return report_of(case, "wrong", report.verdict(), named)


def judge_greedy(vectors: Vectors, case: Case, answer: Any) -> CaseReport:
    model = vectors.models[case["given"]["model"]]
    tokens = as_ids(case, answer)
    count = case["given"]["tokens"]
    if len(tokens) != count:
        sentence = f"{counted(len(tokens), 'token')}, expected {count}"
        return report_of(case, "wrong", sentence)
    V = model.config.vocab_size
    outside = [token for token in tokens if not 0 <= token < V]
    if outside:
        sentence = f"{outside[0]} is no token: the vocabulary has {V}"
        return report_of(case, "wrong", sentence)
    # trials=0: mistakes are planted only if the tokens are wrong, by mistakes_giving.
    report = compare_tokens(model, case["given"]["prompt"], tokens, greedy=True, trials=0)
    if report["verdict"] == "identical":
        return report_of(case, "right")
    if report["verdict"] == "tie-break":
        return report_of(case, "tie-break", report["sentence"])
    return report_of(case, "wrong", report["sentence"], mistakes_giving(vectors, case, tokens))


def judge_text(vectors: Vectors, case: Case, answer: Any) -> CaseReport:
    """The ids of a text, or the text of ids."""
    given = case["given"]
    tokenizer = vectors.tokenizers[given["vocabulary"]]
    theirs: Any
    right: Any
    if case["kind"] == "encode":
        theirs = as_ids(case, answer)
        right = tokenizer.encode(given["text"], special="token")
        sentence = f"{short_repr(given['text'])} is {short_repr(theirs)}, expected {right}"
    else:
        theirs = as_text(case, answer)
        right = tokenizer.decode(given["ids"])
        sentence = f"{given['ids']} is {short_repr(theirs)}, expected {short_repr(right)}"
    if theirs == right:
        return report_of(case, "right")
    return report_of(case, "wrong", sentence, mistakes_giving(vectors, case, theirs))


def mistakes_giving(vectors: Vectors, case: Case, answer: Any) -> list[str]:
    """The mistakes that give this answer, right or wrong: tokens, or a text."""
    given = case["given"]
    if case["kind"] == "greedy":
        model = vectors.models[given["model"]]
        tokens = as_ids(case, answer)
        return compare_tokens(model, given["prompt"], tokens, greedy=True)["mistakes"]
    tokenizer = vectors.tokenizers[given["vocabulary"]]
    if case["kind"] == "encode":
        vocabulary = Vocabulary(tokenizer)
        ids = as_ids(case, answer)
        found = [
            line for line, wrong in ENCODERS.items() if wrong(vocabulary, given["text"]) == ids
        ]
    else:
        text = as_text(case, answer)
        found = [line for line, wrong in DECODERS.items() if wrong(tokenizer, given["ids"]) == text]
    return [f"yours {line}" for line in found]


def results_of(vectors: Vectors, case: Case, dtype: type) -> Results:
    """Yield ("", the right array in this dtype), then (a mistake's sentence, its wrong array)."""
    given = case["given"]
    model = vectors.models[given["model"]].astype(dtype)
    if case["kind"] == "steps":
        return step_results(model, given["prompt"], given["next"])
    if case["kind"] == "batch":
        return batch_results(model, given["texts"])
    if case["kind"] == "gradient":
        return gradient_results(model, given["parameter"], given["ids"], given["targets"])
    # AdamW makes its step with the gradient that the files have.
    before = model.parameters[given["parameter"]]
    return adamw_results(
        before, vectors.expected[given["gradient"]].astype(dtype), given["settings"]
    )


def judge_array(vectors: Vectors, case: Case, answer: Any) -> CaseReport:
    theirs = as_numbers(case, answer)
    exact_results = results_of(vectors, case, np.float64)
    _, exact = next(exact_results)  # the first one is right; the mistakes follow
    if theirs.shape != exact.shape:
        return report_of(case, "wrong", f"the shape is {theirs.shape}, expected {exact.shape}")
    _, ours32 = next(results_of(vectors, case, np.float32))
    row = compare_arrays(case["name"], theirs, exact, ours32)
    if not row.differs:
        return report_of(case, "right")
    found = []
    for sentence, array in exact_results:
        if sentence in found or array.shape != exact.shape:
            continue
        # The numbers of a mistake may be larger than the right ones, and are then rounded more.
        tolerance = max(row.tolerance, tolerance_of(array, array))
        if distance(case["name"], theirs, array).max() <= tolerance:
            found.append(sentence)
    digits, _ = few_digits(theirs, exact, row.tolerance)
    if not found and digits:
        found.append(digits)
    index = list(row.first_wrong or ())  # () is for the type checker: the row differs
    place = f"{index} is {row.yours:.9g}, expected {row.expected:.9g}"
    return report_of(case, "wrong", place, found)


# A kind of case -> what judges it. All others are judged as arrays.
JUDGES = {
    "logits": judge_logits,
    "greedy": judge_greedy,
    "encode": judge_text,
    "decode": judge_text,
}
