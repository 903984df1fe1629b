"""Is a language model of any kind tied? What config.json says, what the files hold, who reads what.

transformers 4 and 5 were measured (kinds.py). vLLM and programs like it read one matrix if the flag
says tied, and two if it says untied: that is their rule, which was not run. What was not measured
is None in the report: nothing is guessed.
"""

from typing import Any

from ..checkpoints.tensors import Tensor
from ..errors import CheckpointError, short_repr
from .adapters import adapter_conflict, changed_matrices
from .counting import count_like_llama, count_stored
from .headers import AnyModel
from .kinds import (
    ModelClass,
    class_without_head,
    fields_at,
    model_class,
    nested_names,
    usual_names,
    value_at,
)
from .matrices import Comparison, Matrices, compare_matrices, find_matrices, matrix_shape
from .mends import FLAG, Mend, find_mends
from .words import by_rule, in_words, root, values_of

Report = dict[str, Any]

# Settings that make another head, or copy it, and the value with which all classes were measured.
MEASURED_SETTINGS = {"asm": False, "legacy": True, "torchscript": False}
# transformers takes what is nested here for the language model.
READ_AS_TEXT = {"decoder", "generator"}

# A field of the report -> the program that it is about.
READERS = {
    "transformers4": "transformers 4",
    "transformers": "transformers 5",
    "others": "vLLM-like programs",
}


def tie_report(name: str, model: AnyModel) -> Report:
    """What `check` says of a model. A value is None if it is not known.

    "verdict" is "tied", "untied", "conflict", "not known", or "no head" for a class that has none.
    "flag" is what config.json says. "holds" is what the files have: "embedding" or "head" if they
    have one of the matrices, "equal", "different" or "not comparable" if they have both.
    "equal_rows" of "compared_rows" are the same in both. "more" are the matrices of an encoder and
    a decoder, and "one" has the names of those that are one. "transformers4", "transformers" and
    "others" are "tied", "untied", "random head", "random embedding", "random" or "error".
    "not_measured" says why those of transformers are None. Raises CheckpointError.
    """
    config = model.said
    known = model_class(config)
    flag = read_flag(config, known)
    is_config_alone = name.endswith(".json") and not model.has_weights
    tensors = {} if is_config_alone else model.stored
    matrices = find_matrices(config, tensors, known)
    compared = compare_matrices(model, matrices)
    reason = not_measured(config, known, flag, matrices)
    words = read(known, flag, matrices, compared, reason is None)
    if compared.is_near:  # transformers 5 compares them in the dtype of the model
        words["transformers"] = None
        reason = reason or "the matrices differ by less than bfloat16 or float16 may round"
    changed = changed_matrices(model)
    problem = describe_conflict(flag, matrices, compared, words)
    if problem and known is not None and known.is_never_tied("5"):
        problem += f"; transformers 5 never ties {known.name}"
    mends: list[Mend] = []
    problem = problem or adapter_conflict(changed, flag["tied"])
    if problem and not changed and known is not None and reason is None:
        mends = find_mends(known, config, flag["word"], matrices, compared.state)
    report = {
        "model": name,
        "verdict": "",
        "flag": flag,
        "embedding": tensor_report(matrices.embedding),
        "head": tensor_report(matrices.head),
        "more": [tensor_report(tensor) for tensor in matrices.tensors[2:]],
        "usual": matrices.name_set is not None,
        "unclear": matrices.unclear,
        "tensors": len(tensors),
        "holds": what_is_held(matrices, compared),
        "equal_rows": compared.equal_rows,
        "compared_rows": compared.compared_rows,
        **{reader: in_words(words[reader]) for reader in READERS},
        "changed_by_adapter": changed,
        "one": names_of_one(known, matrices, words["transformers"]),
        "not_measured": reason,
        "conflict": problem,
        "mend": "\n".join(mend.text for mend in mends),
        "mends": [mend.as_report() for mend in mends],
        "wasted_bytes": wasted_bytes(matrices, compared),
        "parameters": count_stored(tensors, matrices, known),
    }
    report["verdict"] = verdict(report)
    return report


def verdict(report: Report) -> str:
    """The "verdict" of a report."""
    if report["conflict"]:
        return "conflict"
    if report["flag"]["class_without_head"] is not None and report["holds"] == "embedding":
        return "no head"
    readings = {report[reader] for reader in ("transformers4", "transformers")}
    is_one_unknown = None in readings
    readings -= {None}
    if len(readings) == 1:
        # The version that was not measured may drop a head that differs, if the flag says tied.
        if is_one_unknown and report["holds"] == "different" and report["flag"]["tied"]:
            return "not known"
        return str(readings.pop())
    # Two equal matrices: a version has one of them in memory, the other both.
    return "tied" if readings == {"tied", "untied"} else "not known"


def size_report(name: str, model: AnyModel) -> Report:
    """What `params` says of a model that is no GPT-2. "source" is where the counts are from.

    Raises CheckpointError if they are not known.
    """
    config = model.said
    known = model_class(config)
    tensors = model.stored if model.has_weights else {}
    shape: tuple[int, ...] | None = matrix_shape(config)
    if tensors:
        matrices = find_matrices(config, tensors, known)
        source = "the headers of the weights"
        numbers = count_stored(tensors, matrices, known)
        shape = matrices.stored[0].shape if matrices.stored else None
        reason = "its two matrices are not clear, or it is quantised"
    else:
        source = "config.json"
        numbers = count_like_llama(config)
        reason = "there are no weights, and config.json is not of a kind that is counted from it"
    if numbers is None:
        raise CheckpointError(f"{name}: its parameters are not known: {reason}")
    flag = read_flag(config, known)
    return {"model": name, "flag": flag, "shape": shape, "source": source, **numbers}


# What config.json says


def read_flag(config: dict[str, Any], known: ModelClass | None) -> Report:
    """The "kind" and "class" of the model, and whether it is "tied" by config.json.

    "said" has the flag of each place where config.json has one: "" is the whole, "text_config" is
    inside of it. "word" has a letter for each place of a measured class: t, f, or - for none.
    "tied" is None if it is not known, or if two places contradict each other. "place" is where it
    is said, None for the default of the class. "class_without_head" is the class of the model, None
    for one that has a head. Raises CheckpointError for a flag that is neither true nor false.
    """
    kind = config.get("model_type")
    places = known.places if known is not None else ("", "text_config")
    said: dict[str, bool] = {}
    for place in dict.fromkeys((*places, "text_config")):
        fields = fields_at(config, place)
        if FLAG not in fields:
            continue
        if not isinstance(fields[FLAG], bool):
            raise CheckpointError(
                f"config.json: {FLAG} must be true or false, got {short_repr(fields[FLAG])}"
            )
        if place in places:
            said[place] = fields[FLAG]
    values: set[bool | None] = set(said.values())
    if known is not None:
        values = {said.get(place, known.default(number)) for number, place in enumerate(places)}
    first = next(iter(said), None)
    return {
        "kind": kind if isinstance(kind, str) else None,
        "class": known.name if known is not None else None,
        "said": said,
        "word": "".join({True: "t", False: "f", None: "-"}[said.get(place)] for place in places),
        "tied": values.pop() if len(values) == 1 else None,
        "place": None if first is None else f"{first}.{FLAG}".removeprefix("."),
        "class_without_head": class_without_head(config),
    }


def not_measured(
    config: dict[str, Any],
    known: ModelClass | None,
    flag: Report,
    matrices: Matrices,
) -> str | None:
    """Why it is not known how transformers reads a model; None if it was measured."""
    if flag["class_without_head"] is not None:
        return f"{flag['class_without_head']} has no output matrix"
    if known is None:
        return f"{name_of_class(config)} was not measured"
    if matrices.unclear:
        return f"these may be the matrices: {', '.join(matrices.unclear)}"
    if matrices.name_set is None:
        return "the files have other names than transformers looks for"
    if matrices.quantised:
        return f"{', '.join(sorted(matrices.quantised))} is quantised"
    return setting_not_measured(config, known)


def settings_of_load(config: dict[str, Any]) -> str | None:
    """Which setting changes what is loaded, and was not measured so; None without one."""
    if config.get("transformers_weights") is not None:
        return "config.json names other files, by transformers_weights"
    for name, measured in MEASURED_SETTINGS.items():
        if config.get(name, measured) != measured:
            return f"{name}, with its value in config.json, was not measured"
    if config.get("quantization_config") is not None:
        return "config.json says that the model is quantised"
    return None


def setting_not_measured(config: dict[str, Any], known: ModelClass) -> str | None:
    """What config.json says beside the flags that was not measured; None if there is nothing."""
    for name, value in config.items():
        if is_another_tie(name, value) and known.shares.get(name, False) != value:
            return f"{name}, with its value in config.json, was not measured"
    for place in {place for axes in known.sizes for place in axes if place is not None}:
        if value_at(config, place) is None:
            return f"config.json does not say {place}"
    own = {place.partition(".")[0] for place in known.places}
    for place in (nested_names() | READ_AS_TEXT) - own:
        if fields_at(config, place):
            return f"config.json has a {place}, which {known.name} has not"
    for place in known.other_flags:
        if FLAG in fields_at(config, place):
            return f"{place}.{FLAG} in config.json was not measured"
    return settings_of_load(config)


def name_of_class(config: dict[str, Any]) -> str:
    """The class that config.json names, or else the kind, in words."""
    kind = config.get("model_type")
    if not isinstance(kind, str):
        return "a model without a model_type in a config.json"
    match config.get("architectures"):
        case [str(name), *_]:
            return f"{name} of kind {kind}"
    return f"the kind {kind}, whose class config.json does not name,"


def is_another_tie(name: str, value: Any) -> bool:
    """Whether a field of config.json may tie matrices, beside the flag."""
    words = name.split("_")
    is_about_it = any(word in ("tie", "tied", "share", "shared") for word in words)
    return is_about_it and name != FLAG and isinstance(value, bool)


# Who reads what


def read(
    known: ModelClass | None,
    flag: Report,
    matrices: Matrices,
    compared: Comparison,
    is_measured: bool,
) -> dict[str, str | None]:
    """A reader -> its word (kinds.py); None if it is not known."""
    words: dict[str, str | None] = dict.fromkeys(READERS)
    state = compared.state or matrices.presence
    if state is None:
        return words
    if flag["class_without_head"] is None and has_usual_rule(known, matrices):
        words["others"] = by_rule(flag["tied"], state)
    if known is None or not is_measured or matrices.name_set is None or compared.state is None:
        return words
    for reader, version in (("transformers4", "4"), ("transformers", "5")):
        words[reader] = known.reading(version, matrices.name_set, flag["word"], state)
    return words


def has_usual_rule(known: ModelClass | None, matrices: Matrices) -> bool:
    """Whether vLLM and programs like it read such a file by their rule, as far as is known."""
    if known is not None:
        return known.has_usual_rule and matrices.name_set is not None
    names = {matrix.name for matrix in matrices.stored}
    return len(matrices.tensors) == 2 and any(names <= usual for usual in usual_names())


def names_of_one(known: ModelClass | None, matrices: Matrices, word: str | None) -> list[list[str]]:
    """The names of the matrices that are one for transformers 5, if there are more than two."""
    if known is None or word is None or word == "!" or len(word) < 3:
        return []
    names = known.names[matrices.name_set or 0]
    groups: dict[int, list[str]] = {}
    for place, name in enumerate(names):
        groups.setdefault(root(word, place), []).append(name)
    return list(groups.values())


# What is wrong


def describe_conflict(
    flag: Report, matrices: Matrices, compared: Comparison, words: dict[str, str | None]
) -> str:
    """What config.json and the files contradict each other in, and what each reader makes of it.

    "" if there is no conflict, or none is known.
    """
    readings = {reader: word for reader, word in words.items() if word is not None}
    state = compared.state or matrices.presence or ""
    effects: dict[str, list[str]] = {}
    for reader, word in readings.items():
        effects.setdefault(effect(word, state, matrices), []).append(READERS[reader])
    agree = len({values_of(word) for word in readings.values()}) == 1
    if not readings or (set(effects) == {""} and agree):
        return ""
    parts = []
    for what, readers in effects.items():
        is_plural = len(readers) > 1 or readers == [READERS["others"]]
        what = what or ("keeps both" if state == "ab" else "reads what is there")
        parts.append(f"{' and '.join(readers)} {plural(what) if is_plural else what}")
    return f"{said_and_held(flag, state)}: {'; '.join(parts)}"


def plural(effect: str) -> str:
    """The effect of several readers.

    >>> plural("drops lm_head.weight")
    'drop lm_head.weight'
    """
    verb, _, rest = effect.partition(" ")
    return f"{verb.removesuffix('s')} {rest}" if verb != "cannot" else effect


def effect(word: str, state: str, matrices: Matrices) -> str:
    """What is lost when a state is read so; "" for nothing."""
    if word == "!":
        return "cannot read it"
    values = values_of(word)
    if "?" in values:
        names = ["the embedding", "the head", *("another matrix" for _ in values[2:])]
        random = [name for name, value in zip(names, values, strict=True) if value == "?"]
        return f"makes {' and '.join(dict.fromkeys(random))} random"
    lost = [
        tensor.name
        for letter, tensor in zip(state, matrices.tensors, strict=True)
        if tensor is not None and letter not in values
    ]
    return f"drops {' and '.join(lost)}" if lost else ""


def said_and_held(flag: Report, state: str) -> str:
    """What config.json says, and what the files have."""
    if len(set(flag["said"].values())) > 1:
        said = "one flag of config.json says tied and another one untied"
    elif flag["tied"] is None:
        said = "config.json does not say whether the model is tied"
    else:
        by_default = "" if flag["place"] else ", by default,"
        said = f"config.json says{by_default} {'tied' if flag['tied'] else 'untied'}"
    if len(state) > 2:
        return f"{said}, and the files hold {len(set(state) - {'.'})} different matrices"
    held = {
        "a.": "have no head",
        ".a": "have no embedding",
        "ab": "have another head",
        "aa": "have two equal matrices",
        "..": "have neither matrix",
    }
    return f"{said}, and the files {held.get(state, 'are not known')}"


# What the files hold


def what_is_held(matrices: Matrices, compared: Comparison) -> str | None:
    """The "holds" of tie_report."""
    if matrices.unclear or not matrices.stored:
        return None
    if matrices.embedding is not None and matrices.head is not None:
        if compared.state is None:
            return "not comparable"
        return "equal" if compared.state[0] == compared.state[1] else "different"
    if matrices.head is not None:
        return "head"
    return "embedding" if matrices.embedding is not None else None


def wasted_bytes(matrices: Matrices, compared: Comparison) -> int:
    """The bytes of equal copies. A file of PyTorch may have one matrix under two names."""
    if compared.state is None:
        return 0
    wasted = 0
    places: dict[str, set[Any]] = {}
    for letter, tensor in zip(compared.state, matrices.tensors, strict=True):
        if tensor is None:
            continue
        seen = places.setdefault(letter, set())
        place = (tensor.file, tensor.start)
        if seen and place not in seen:
            wasted += tensor.end - tensor.start
        seen.add(place)
    return wasted


def tensor_report(tensor: Tensor | None) -> Report | None:
    """A stored matrix; None if there is none."""
    if tensor is None:
        return None
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "file": tensor.file.name,
    }
