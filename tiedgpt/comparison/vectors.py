"""The answers of a GPT-2 in another language to the cases of the reference values, judged.

tests/vectors/v2 has the reference values: a manifest with all cases, the weights and vocabularies
from which they are computed, and what is expected. A port writes its answers under the names of the
cases. `judge` says of each case: right, tie-break, wrong and why, or not given.

What is right is computed anew, by our model in float64. Float32 tells how large rounding is.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np

from ..checkpoints.vocabulary import read_tokenizer
from ..errors import ArgumentError, nearest_names, short_repr
from ..gpt2.config import Config
from ..gpt2.model import GPT2, Array
from ..gpt2.run import Tape
from ..gpt2.tokenizer import Tokenizer
from .compare import compare
from .mistakes import mistakes_in
from .places import Scope, Wrong, compute_activations, trials_of
from .recording import KINDS, read_json_object, read_npz, read_safetensors
from .rows import compare_arrays, distance, tolerance_of
from .tokenizer_mistakes import DECODERS, ENCODERS, Vocabulary
from .tokens import compare_tokens, mistakes_of_steps
from .training_mistakes import (
    after_step,
    gradient_of,
    last_of_each,
    wrong_batches,
    wrong_gradients,
    wrong_steps,
    wrong_updates,
)

PACKAGE = Path(__file__).resolve().parents[1]
# In a checkout, the files are among the tests; in an installation they are inside the package.
IN_CHECKOUT = PACKAGE.parent / "tests" / "vectors" / "v2"
DIRECTORY = IN_CHECKOUT if IN_CHECKOUT.is_dir() else PACKAGE / "vectors" / "v2"

Status = Literal["right", "tie-break", "wrong", "not given"]
UNKNOWN = "this is none of the known mistakes"


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
    """What `judge` found. `sentence` says first how many cases were not given."""

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


def read_answers(path: Path) -> dict[str, Any]:
    """A port's answers: arrays of an .npz or a .safetensors file; a JSON object has texts, too.

    Raises ArgumentError.
    """
    suffix = path.suffix.lower()
    if suffix == ".json":
        return read_json_object(path, '{"logits/tied": [[[0.5, ...]]]}')
    if suffix == ".safetensors":
        return dict(read_safetensors(path))
    if path.is_dir():
        raise ArgumentError(f"{path} is a directory: expected a {KINDS.split(',')[0]}")
    return dict(read_npz(path))


def judge(answers: Mapping[str, Any], directory: Path = DIRECTORY) -> VectorsReport:
    """Judge answers under the names of cases: each an array, nested lists, or a text.

    Raises ArgumentError if there are none, and for a name that is no case.
    """
    vectors = opened(directory)
    names = [case["name"] for case in vectors.cases]
    if not isinstance(answers, Mapping) or not answers:
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
            reports.append(judge_case(vectors, case, answers[name]))
        else:
            reports.append(CaseReport(name=name, status="not given", sentence="", mistakes=[]))
    counts = dict.fromkeys(("right", "tie-break", "wrong", "not given"), 0)
    for report in reports:
        counts[report["status"]] += 1
    sentence = (
        f"not given: {counts['not given']} of {len(reports)} cases; right: {counts['right']}, "
        f"tie-break: {counts['tie-break']}, wrong: {counts['wrong']}"
    )
    return VectorsReport(
        cases=reports,
        right=counts["right"],
        tie_break=counts["tie-break"],
        wrong=counts["wrong"],
        not_given=counts["not given"],
        sentence=sentence,
        mistakes=common_mistakes(vectors, reports, answers),
    )


def group_of(case: Case) -> str:
    """The cases in which one mistake shows: all texts of a tokenizer, or of a model's greedy."""
    if case["kind"] in ("encode", "decode"):
        return case["kind"]
    if case["kind"] == "greedy":
        return f"greedy/{case['given']['model']}"
    return case["name"]


def common_mistakes(
    vectors: Vectors, reports: list[CaseReport], answers: Mapping[str, Any]
) -> dict[str, list[str]]:
    """For each group with a wrong answer: the mistakes that give all answers of the group.

    A right answer excludes the mistakes that would have given another one.
    """
    common: dict[str, list[str]] = {}
    for status in ("wrong", "right"):  # the wrong ones first, because they name few
        for case, report in zip(vectors.cases, reports, strict=True):
            group = group_of(case)
            if report["status"] != status or (status == "right" and not common.get(group)):
                continue
            mistakes = report["mistakes"]
            if status == "right":
                mistakes = mistakes_of_right(vectors, case, answers[case["name"]])
            others = common.get(group, mistakes)
            common[group] = [each for each in others if each in mistakes]
    return common


def mistakes_of_right(vectors: Vectors, case: Case, answer: Any) -> list[str]:
    """The mistakes that give a right answer, too."""
    given = case["given"]
    if case["kind"] == "encode":
        return wrong_encoders(vectors.tokenizers[given["vocabulary"]], given["text"], answer)
    if case["kind"] == "decode":
        tokenizer = vectors.tokenizers[given["vocabulary"]]
        return wrong_decoders(tokenizer, given["ids"], tokenizer.decode(given["ids"]))
    report = compare_tokens(
        vectors.models[given["model"]], given["prompt"], as_ids(case, answer), greedy=True
    )
    return report["mistakes"]


def wrong_encoders(tokenizer: Tokenizer, text: str, ids: Any) -> list[str]:
    """The mistakes with which a text has these ids."""
    vocabulary = Vocabulary(tokenizer)
    ids = list(ids)
    return [f"yours {sentence}" for sentence, f in ENCODERS.items() if f(vocabulary, text) == ids]


def wrong_decoders(tokenizer: Tokenizer, ids: list[int], text: str) -> list[str]:
    """The mistakes with which ids have this text."""
    return [f"yours {sentence}" for sentence, f in DECODERS.items() if f(tokenizer, ids) == text]


# A case


def judge_case(vectors: Vectors, case: Case, answer: Any) -> CaseReport:
    """Judge the answer to one case. Raises ArgumentError for an answer that is of another kind."""
    judges: dict[str, Callable[[Vectors, Case, Any], CaseReport]] = {
        "logits": judge_logits,
        "steps": judge_steps,
        "batch": judge_batch,
        "greedy": judge_greedy,
        "encode": judge_encode,
        "decode": judge_decode,
        "gradient": judge_gradient,
        "adamw": judge_adamw,
    }
    return judges[case["kind"]](vectors, case, answer)


def right(case: Case) -> CaseReport:
    return CaseReport(name=case["name"], status="right", sentence="", mistakes=[])


def wrong(case: Case, sentence: str, mistakes: list[str] | None = None) -> CaseReport:
    return CaseReport(name=case["name"], status="wrong", sentence=sentence, mistakes=mistakes or [])


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
        array = np.asarray(None)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ArgumentError(
            f"{case['name']}: expected a list of whole numbers, got {short_repr(answer)}"
        )
    return [int(each) for each in array]


def judge_arrays(
    case: Case, answer: Any, ours: Callable[[type], Array], mistakes: Iterable[tuple[str, Array]]
) -> CaseReport:
    """ours: computes the right array in a dtype. mistakes: sentences, and the arrays they make."""
    theirs = as_numbers(case, answer)
    exact = ours(np.float64)
    if theirs.shape != exact.shape:
        return wrong(case, f"the shape is {theirs.shape}, expected {exact.shape}")
    row = compare_arrays(case["name"], theirs, exact, ours(np.float32))
    if not row.differs:
        return right(case)
    found = []
    for sentence, array in mistakes:
        if sentence in found or array.shape != exact.shape:
            continue
        tolerance = max(row.tolerance, tolerance_of(array, array))
        if distance("", theirs, array).max() <= tolerance:
            found.append(sentence)
    index = list(row.first_wrong or ())
    place = f"{index} is {row.yours:.9g}, expected {row.expected:.9g}"
    return wrong(case, place, found)


def planted(model: GPT2, ids: Array, start: int = 0) -> Iterator[tuple[str, dict[str, Wrong]]]:
    """Each known mistake in all layers, as it is said, and where it is planted.

    start: the length of a prompt after which steps begin; 0 if there are none.
    """
    names = list(compute_activations(model, ids, given={}, planted={}))
    mistakes = mistakes_in(model.config.n_layer)
    if start:
        mistakes = [*mistakes_of_steps(start), *mistakes]
    trials = [trial for trial in trials_of(mistakes, names, names) if trial.scope <= Scope.KIND]
    for trial in trials:
        yield f"{trial.start}: yours {trial.sentence}", dict(trial.planted)


def judge_logits(vectors: Vectors, case: Case, answer: Any) -> CaseReport:
    model = vectors.models[case["given"]["model"]]
    ids = np.array(case["given"]["ids"])
    theirs = as_numbers(case, answer)
    expected = (*ids.shape, model.config.vocab_size)
    if theirs.shape != expected:
        return wrong(case, f"the shape is {theirs.shape}, expected {expected}")
    report = compare(model, {"logits": theirs}, ids)
    if report.same:
        return right(case)
    named = [line for line in report.diagnosis if "yours " in line]
    return wrong(case, report.verdict(), named)


def judge_steps(vectors: Vectors, case: Case, answer: Any) -> CaseReport:
    """Logits [N, V] of tokens that are read one after the other, with a KV cache."""
    model = vectors.models[case["given"]["model"]]
    prompt = case["given"]["prompt"]
    ids = np.array([[*prompt, *case["given"]["next"]]])

    def ours(dtype: type) -> Array:
        return model.astype(dtype)(ids)[0, len(prompt) :]

    def mistakes() -> Iterator[tuple[str, Array]]:
        model64 = model.astype(np.float64)
        for sentence, wrong_functions in planted(model, ids, start=len(prompt)):
            tape: Tape = compute_activations(model64, ids, {}, wrong_functions)
            yield sentence, tape["logits"][0, len(prompt) :]
        yield from wrong_steps(model64, prompt, case["given"]["next"])

    return judge_arrays(case, answer, ours, mistakes())


def judge_batch(vectors: Vectors, case: Case, answer: Any) -> CaseReport:
    """Logits [B, V] after the last token of each text of a batch."""
    model = vectors.models[case["given"]["model"]]
    texts = case["given"]["texts"]

    def ours(dtype: type) -> Array:
        return last_of_each(model.astype(dtype), texts)

    return judge_arrays(case, answer, ours, wrong_batches(model.astype(np.float64), texts))


def judge_greedy(vectors: Vectors, case: Case, answer: Any) -> CaseReport:
    model = vectors.models[case["given"]["model"]]
    tokens = as_ids(case, answer)
    count = case["given"]["tokens"]
    if len(tokens) != count:
        return wrong(case, f"there are {len(tokens)} tokens, expected {count}")
    outside = [token for token in tokens if not 0 <= token < model.config.vocab_size]
    if outside:
        return wrong(
            case, f"{outside[0]} is no token: the vocabulary has {model.config.vocab_size}"
        )
    report = compare_tokens(model, case["given"]["prompt"], tokens, greedy=True, trials=0)
    if report["verdict"] == "identical":
        return right(case)
    if report["verdict"] == "tie-break":
        return CaseReport(
            name=case["name"], status="tie-break", sentence=report["sentence"], mistakes=[]
        )
    report = compare_tokens(model, case["given"]["prompt"], tokens, greedy=True)
    return wrong(case, report["sentence"], report["mistakes"])


def judge_encode(vectors: Vectors, case: Case, answer: Any) -> CaseReport:
    tokenizer = vectors.tokenizers[case["given"]["vocabulary"]]
    text = case["given"]["text"]
    ids = as_ids(case, answer)
    expected = tokenizer.encode(text, special="token")
    if ids == expected:
        return right(case)
    found = wrong_encoders(tokenizer, text, ids)
    return wrong(case, f"{short_repr(text)} is {short_repr(ids)}, expected {expected}", found)


def judge_decode(vectors: Vectors, case: Case, answer: Any) -> CaseReport:
    """A text, or its bytes: a program may print neither U+FFFD nor half a character."""
    tokenizer = vectors.tokenizers[case["given"]["vocabulary"]]
    ids = case["given"]["ids"]
    text = answer
    if not isinstance(answer, str):
        numbers = as_ids(case, answer)
        if any(not 0 <= number < 256 for number in numbers):
            raise ArgumentError(f"{case['name']}: expected a text, or a list of its bytes")
        text = bytes(numbers).decode(errors="replace")
    expected = tokenizer.decode(ids)
    if text == expected:
        return right(case)
    found = wrong_decoders(tokenizer, ids, text)
    return wrong(case, f"{ids} is {short_repr(text)}, expected {short_repr(expected)}", found)


def judge_gradient(vectors: Vectors, case: Case, answer: Any) -> CaseReport:
    """The gradient of one parameter, of the mean loss."""
    given = case["given"]
    model = vectors.models[given["model"]]
    ours = partial(gradient_of, model, given["parameter"], given["ids"], given["targets"])
    mistakes = wrong_gradients(model, given["parameter"], given["ids"], given["targets"])
    return judge_arrays(case, answer, ours, mistakes)


def judge_adamw(vectors: Vectors, case: Case, answer: Any) -> CaseReport:
    """A parameter after one step of AdamW, with the gradient that the files have."""
    given = case["given"]
    before = vectors.models[given["model"]].parameters[given["parameter"]]
    gradient = vectors.expected[given["gradient"]]

    def ours(dtype: type) -> Array:
        return after_step(before.astype(dtype), gradient.astype(dtype), given["settings"])

    exact = (before.astype(np.float64), gradient.astype(np.float64), given["settings"])

    return judge_arrays(case, answer, ours, wrong_updates(*exact))
