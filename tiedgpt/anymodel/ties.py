"""Is a language model of any kind tied? What config.json says, what the files hold, who reads what.

transformers 4 and 5 were measured (kinds.py). vLLM and programs like it read one matrix if the flag
says tied, and two if it says untied: that is their rule, which was not run. What was not measured
is None in the report: nothing is guessed.

Matrix 0 of a class is the token embedding, matrix 1 the output matrix (the head); those of an
encoder and a decoder follow. A state has a letter for each matrix of the files: "ab" are two that
differ, "aa" two equal ones, "." is one that is not stored. A reading has a letter for each matrix
that a program has in memory then: "a0" is one, since the head is matrix 0, "a?" has a random head,
"!" is an error. A place is one of config.json: "" its top, "text_config" inside of it.
"""

import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from ..checkpoints.files import ADAPTER_WEIGHTS, NOT_WEIGHTS, WEIGHTS, what_is_there
from ..checkpoints.json_files import CONFIG
from ..checkpoints.model_names import INDEX
from ..checkpoints.opened import Opened
from ..checkpoints.tensors import Tensor
from ..errors import CheckpointError, short_repr
from .adapters import adapter_not_measured, adapter_report
from .counting import count_from_config, count_stored
from .headers import AnyModel
from .kinds import (
    HAVE_A_RULE,
    ModelClass,
    agree,
    all_classes,
    by_rule,
    fields_at,
    in_words,
    is_tied,
    load_kinds,
    model_class,
    named_class,
    root,
    value_at,
    what_is_lost,
)
from .matrices import (
    SIZE,
    Comparison,
    Matrices,
    compare_matrices,
    find_matrices,
    matrix_shape,
)
from .mends import FLAG, find_mends

Report = dict[str, Any]
Readings = dict[str, str | None]  # a reader -> its reading; None if it is not known

# What is not looked at, for whom a report is printed.
REST_OF_FILES = (
    "whether the rest of config.json and of the files loads, and whether the class has more or "
    "fewer parameters"
)
OTHER_TENSORS = "which of the stored tensors the class leaves out, and which others it has"

WEIGHTS_NAME = re.compile(r".*\.(safetensors|bin|pt|pth|ckpt)")

# The values of dtype in config.json with which a model may be loaded.
DTYPES = (None, "float64", "float32", "float16", "bfloat16")
# Settings that make another head, or copy it, and the value with which all classes were measured.
MEASURED_SETTINGS = {
    "additional_vocab_size": 0,  # Idefics has a second embedding and head for more tokens
    "asm": False,
    "legacy": True,
    "pruned_heads": {},
    "torchscript": False,
}
# The "format" in the metadata of the safetensors files that were measured, and the same for MLX.
MEASURED_FORMATS = {"pt", "mlx"}
# transformers takes what is nested here for the language model.
READ_AS_TEXT = {"decoder", "generator", "text_encoder"}

# A field of the report -> the program that it is about.
READERS = {
    "transformers4": "transformers 4",
    "transformers": "transformers 5",
    "others": "vLLM-like programs",
}
MEASURED = {"transformers4": "4", "transformers": "5"}  # those that were measured, and the version


def tie_report(name: str, model: AnyModel) -> Report:
    """What `check` says of a model. A value is None if it is not known.

    "verdict" is "tied", "untied", "conflict", "not known", or "no head" for a class that has none,
    whatever the files hold. "flag" is what config.json says (read_flag), and "holds" what the files
    have (held_report). "not_read" are files of weights beside those that were read.
    "transformers4", "transformers" and "others" are "tied", "untied", "random head", "random
    embedding", "random" or "error". "not_measured" says why those of transformers are None, and
    "without_class" which of them have no such class. "one" has the names of the matrices of an
    encoder and a decoder that are one. "not_looked_at" is what the others do not speak of. Raises
    CheckpointError.
    """
    config = model.config_json
    if config.get("transformers_weights") is not None:
        raise CheckpointError(
            f"{name}: config.json names other files of weights, by transformers_weights; these are "
            "not read"
        )
    known = model_class(config)
    flag = read_flag(name, config, known)
    has_config_alone = is_config_alone(model)
    tensors = {} if has_config_alone else model.stored
    matrices = find_matrices(config, tensors, known)
    compared = compare_matrices(model, matrices)
    unmeasured: str | None = "config.json alone was read"
    if not has_config_alone:
        unmeasured = not_measured(config, known, flag, matrices)
        unmeasured = unmeasured or file_not_measured(model, known, matrices)
    because_of_adapter = adapter_not_measured(model, matrices)
    unmeasured_versions = because_of_adapter | versions_not_measured(model, known, matrices)
    not_read = weights_beside(model)
    file_of_others = read_by_others(model, not_read)
    has_rule = goes_by_the_flag(config, known, matrices) and not (
        file_of_others or is_inside(model)
    )
    readings, why_not_known = read(
        known, flag, matrices, compared, unmeasured, unmeasured_versions, has_rule
    )
    known_readings = [reading for reading in readings.values() if reading is not None]
    says_tied = flag["tied"] or any(is_tied(reading) for reading in known_readings)
    adapter = adapter_report(model, known, matrices, says_tied, because_of_adapter)
    conflict = describe_conflict(known, flag, matrices, compared, readings)
    mends = adapter.mends
    if conflict:
        mends = []
        is_measured = (
            unmeasured is None and not unmeasured_versions and not compared.equal_if_rounded
        )
        if known is not None and is_measured and not adapter.changed and not not_read:
            mends = find_mends(known, config, flag["word"], tensors, matrices, compared.state)
        if not_read:  # one of them may have what is missing
            conflict += f"; not looked at: {', '.join(not_read)} beside them"
    report = {
        "model": name,
        "verdict": "",
        "flag": flag,
        "tensors": len(tensors),
        **held_report(known, matrices, compared, readings["transformers"]),
        **{reader: in_words(readings[reader]) for reader in READERS},
        "without_class": [
            reader
            for reader, version in MEASURED.items()
            if known is not None and version not in known.versions
        ],
        "changed_by_adapter": adapter.changed,
        "not_measured": why_not_known,
        "not_read": not_read,
        "conflict": conflict or adapter.conflict,
        "mend": "\n".join(mend["text"] for mend in mends),
        "mends": mends,
        "parameters": count_parameters(model, tensors, matrices, known, compared.state),
        "not_looked_at": not_looked_at(config) if tensors else None,
    }
    report["verdict"] = verdict(report, known)
    why_unsure = adapter.not_known
    if file_of_others:
        why_unsure = f"vLLM-like programs may read {file_of_others}, which was not looked at"
    if why_unsure and report["verdict"] in ("tied", "untied"):
        report["verdict"] = "not known"
        report["not_measured"] = why_unsure
    return report


def weights_beside(model: AnyModel) -> list[str]:
    """The files of a folder that may hold weights, and are not those that are read."""
    if not isinstance(model, Opened) or not model.has_weights or not model.path.is_dir():
        return []
    read = {tensor.file.name for tensor in model.stored.values()}
    folder = model.folder.path
    found = {path.name for path in folder.iterdir() if WEIGHTS_NAME.fullmatch(path.name)}
    beside = found - read - set(ADAPTER_WEIGHTS)
    return sorted(name for name in beside if not NOT_WEIGHTS.match(name))


def read_by_others(model: AnyModel, not_read: list[str]) -> str:
    """A file beside those that were read, which vLLM and programs like it may read; "" for none.

    They read the files that an index lists; without an index, all safetensors files of a folder.
    """
    if not isinstance(model, Opened) or not model.path.is_dir():
        return ""
    if model.folder.has(INDEX):
        return INDEX if model.folder.has(WEIGHTS) else ""
    return next((name for name in not_read if name.endswith(".safetensors")), "")


def not_looked_at(config: dict[str, Any]) -> str:
    """What a report on files does not speak of."""
    if "auto_map" in config:
        return f"the code that auto_map in config.json names; {REST_OF_FILES}"
    return REST_OF_FILES


def verdict(report: Report, known: ModelClass | None) -> str:
    """The "verdict" of a report."""
    if report["conflict"]:
        return "conflict"
    if report["flag"]["class_without_head"] is not None and report["tensors"] > 0:
        return "no head"
    unknown = [version for reader, version in MEASURED.items() if report[reader] is None]
    # A version that has the class may read this state in another way than the other version.
    if known is not None and any(version in known.versions for version in unknown):
        return "not known"
    # A version without the class may drop a head that differs, if the flag says tied.
    if unknown and report["holds"] == "different" and report["flag"]["tied"]:
        return "not known"
    readings = {report[reader] for reader in MEASURED} - {None}
    return str(readings.pop()) if len(readings) == 1 else "not known"


def size_report(name: str, model: AnyModel) -> Report:
    """What `params` says of a model that is no GPT-2. "source" is where the counts are from.

    "not_looked_at" says what may make num_parameters() of the class another number than that of the
    stored tensors: None for counts from config.json. Raises CheckpointError if they are not known.
    """
    config = model.config_json
    known = model_class(config)
    tensors = model.stored if model.has_weights else {}
    shape: tuple[int, ...] | None = matrix_shape(config)
    numbers: Report | None = None
    if tensors:
        matrices = find_matrices(config, tensors, known)
        source = "the headers of the weights"
        has_more = len(matrices.stored) > 2  # an encoder and a decoder may have equal copies
        state = compare_matrices(model, matrices).state if has_more else None
        numbers = count_parameters(model, tensors, matrices, known, state)
        shape = matrices.stored[0].shape if matrices.stored else None
        reason = (
            "its matrices are not clear, it is quantised, or a bias is stored twice and differs"
        )
        if matrices.misfits:
            reason = "; ".join(matrices.misfits)
    else:
        source = "config.json"
        try:
            numbers = count_from_config(config)
        except CheckpointError as error:
            reason = f"there are no weights, and {error}"
    if numbers is None:
        raise CheckpointError(f"{name}: its parameters are not known: {reason}")
    flag = read_flag(name, config, known)
    return {
        "model": name,
        "flag": flag,
        "shape": shape,
        "source": source,
        "not_looked_at": OTHER_TENSORS if tensors else None,
        **numbers,
    }


def count_parameters(
    model: AnyModel,
    tensors: dict[str, Tensor],
    matrices: Matrices,
    known: ModelClass | None,
    state: str | None,
) -> Report | None:
    """The counts of a model from its tensors; None if they are not known.

    state: that of the files; None if it is not known.

    The counts are not known if a bias is stored twice, and the two differ: of BERT's head
    transformers 4 keeps one, and 5 both.
    """
    numbers = count_stored(tensors, matrices, known, state)
    if numbers is None or known is None:
        return numbers
    # The places in config.json of V for the embedding and for the head, then those of D.
    for places in zip(*known.sizes, strict=True):
        values = [value_at(model.config_json, place) for place in places if place is not None]
        sizes = set(values) - {None}
        if len(sizes) > 1 and len(matrices.stored) < 2:  # the other one has another shape
            return None
    for name in known.separate:  # the second name of a bias, for example
        bias, copy = tensors.get(known.copies[name]), tensors.get(name)
        if bias is None or copy is None or len(bias.shape) != 1:
            continue
        if bias.shape != copy.shape:
            return None
        equal, compared = model.equal_rows(as_column(bias), as_column(copy))
        if equal < compared:
            return None
    return numbers


def as_column(bias: Tensor) -> Tensor:  # [V] -> [V, 1]
    strides = None if bias.strides is None else (*bias.strides, 0)
    return replace(bias, shape=(*bias.shape, 1), strides=strides)


def is_config_alone(model: AnyModel) -> bool:
    """Whether a model here is a config.json, by itself or in a folder without any weights."""
    if not isinstance(model, Opened) or model.has_weights:
        return False
    if not model.path.is_dir():
        return True
    return model.folder.has(CONFIG) and what_is_there(model.path) == ""


# What config.json says


def read_flag(model: str, config: dict[str, Any], known: ModelClass | None) -> Report:
    """The "kind" and "class" of the model, and whether it is "tied" by config.json.

    "said" has the flag of each place where config.json has one. "word" has a letter for each place
    of a measured class: "t" for tied, "f" for untied, "-" where there is no flag. "tied" is None if
    it is not known, or if two places contradict each other. "place" is where it is said, None for
    the default of the class. "class_without_head" is the class of the model, None for one that has
    a head. Raises CheckpointError for a flag that is neither true nor false, with what the user
    calls the model.
    """
    kind = config.get("model_type")
    kind = kind if isinstance(kind, str) else None
    name = named_class(config)
    without_head = load_kinds()["without_head"].get(kind, ())
    nested = [
        place for place, fields in config.items() if isinstance(fields, dict) and FLAG in fields
    ]
    places = known.places if known is not None else ("", *nested)
    flag_of: dict[str, bool] = {}  # place -> the flag there
    # Each place once. A flag in text_config must be one, even if the class does not read it.
    for place in dict.fromkeys((*places, "text_config")):
        fields = fields_at(config, place)
        if FLAG not in fields:
            continue
        if not isinstance(fields[FLAG], bool):
            raise CheckpointError(
                f"{model}: {FLAG} in config.json must be true or false, got "
                f"{short_repr(fields[FLAG])}: how programs read this was not measured"
            )
        if place in places:
            flag_of[place] = fields[FLAG]
    values: set[bool | None] = set(flag_of.values())
    if known is not None:
        values = {flag_of.get(place, known.default(place)) for place in places}
        for place in other_nested_kinds(config, known):
            if FLAG not in fields_at(config, place):  # the default is that of the kind there
                values.add(None)
    first_place = next(iter(flag_of), None)
    return {
        "kind": kind,
        "class": known.name if known is not None else None,
        "said": flag_of,
        "word": "".join({True: "t", False: "f", None: "-"}[flag_of.get(place)] for place in places),
        "tied": values.pop() if len(values) == 1 else None,
        "place": None if first_place is None else f"{first_place}.{FLAG}".removeprefix("."),
        "class_without_head": name if name in without_head else None,
    }


def not_measured(
    config: dict[str, Any], known: ModelClass | None, flag: Report, matrices: Matrices
) -> str | None:
    """Why it is not known how transformers reads a model; None if it was measured."""
    if flag["class_without_head"] is not None:
        return f"{flag['class_without_head']} has no output matrix"
    kind, name = flag["kind"], named_class(config)
    if known is None and kind is None:
        return "a model without a model_type in a config.json was not measured"
    if known is None and name is None:
        return f"the kind {kind}, without one class that config.json names, was not measured"
    if known is None:
        return f"{name} of kind {kind} was not measured"
    if matrices.misfits:
        return "; ".join(matrices.misfits)
    if matrices.unclear:
        return f"these may be the matrices: {', '.join(matrices.unclear)}"
    if matrices.possible_others:
        return f"beside the matrices there may be others: {', '.join(matrices.possible_others)}"
    if matrices.name_set is None:
        return "the files have other names than transformers looks for"
    if matrices.quantised:
        return f"{', '.join(sorted(matrices.quantised))} is quantised"
    return (
        place_not_measured(config, known)
        or nested_kind_not_measured(config, known)
        or setting_not_measured(config, known)
    )


def place_not_measured(config: dict[str, Any], known: ModelClass) -> str | None:
    """Which size or flag stands at a place that was not measured so; None without one."""
    for place in sorted({place for axes in known.sizes for place in axes if place is not None}):
        parent, _, field = place.rpartition(".")
        if parent and config.get(parent) is None and config.get(field) in SIZE:
            return (
                f"config.json has {field} and no {parent}: {known.name} was measured with {field} "
                f"in {parent} alone"
            )
        if value_at(config, place) not in SIZE:
            return f"config.json does not say {place}, as a whole number"
    own_parts = {place.partition(".")[0] for place in known.places}
    parts = {place.partition(".")[0] for each in all_classes() for place in each.places} - {""}
    for part in sorted((parts | READ_AS_TEXT) - own_parts):
        if config.get(part) is not None:  # transformers asks even what is no object for its flag
            return f"config.json has {part}, which {known.name} has not"
    for place in known.other_flags:
        if FLAG in fields_at(config, place):
            return f"{place}.{FLAG} in config.json was not measured"
    return None


def nested_kind_not_measured(config: dict[str, Any], known: ModelClass) -> str | None:
    """Which part of config.json has a kind that the class was not measured with; None without one.

    A model of images and text takes a text model of any kind, which may have other names, and
    another default of the flag.
    """
    for place, kind in other_nested_kinds(config, known).items():
        return f"{known.name} was not measured with a {place} of kind {short_repr(kind)}"
    return None


def other_nested_kinds(config: dict[str, Any], known: ModelClass) -> dict[str, Any]:
    """Place in config.json -> the kind there, if the class was not measured with it."""
    found = {}
    for place in known.places[1:]:  # the first is the top of config.json
        kind = fields_at(config, place).get("model_type")
        if kind is not None and kind not in known.nested_kinds.get(place, ()):
            found[place] = kind
    return found


def file_not_measured(model: AnyModel, known: ModelClass | None, matrices: Matrices) -> str | None:
    """Which form of the files was not measured; None without one."""
    if is_inside(model):
        return "the state dict is inside of another dict, where transformers does not look for it"
    for one, other in combinations(matrices.stored, 2):
        if not share_memory(one, other) or is_same(one, other):
            continue
        if one.start == other.start and one.end == other.end:
            return f"{one.name} and {other.name} have one memory in the file, in another order"
        return f"{one.name} and {other.name} share a part of their memory in the file"
    if known is None or matrices.name_set is None or not matrices.stored or matrices.quantised:
        return None
    # The bias of the head has a number for each row, beside the matrix or a module above it.
    matrix = matrices.head or matrices.stored[0]
    module = known.names[matrices.name_set][1].rpartition(".")[0]
    for name in (f"{module}.bias", f"{module.rpartition('.')[0]}.bias"):
        bias = model.stored.get(name)
        if bias is not None and bias.shape != matrix.shape[:1]:
            length = " x ".join(f"{size:,}" for size in bias.shape)
            return f"{name} has {length} numbers, and {matrix.name} has {matrix.shape[0]:,} rows"
    return None


def is_inside(model: AnyModel) -> bool:
    """Whether a file of torch.save has the state dict inside of another dict."""
    return isinstance(model, Opened) and model.has_weights and model.saved.is_nested


def share_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors share bytes of a file of torch.save: they do in memory, too."""
    is_apart = one.end <= other.start or other.end <= one.start
    return one.file == other.file and one.file.suffix != ".safetensors" and not is_apart


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are one in a file, by two names."""
    layouts = [(each.start, each.end, each.shape, each.T.strides) for each in (one, other)]
    return layouts[0] == layouts[1]


def stay_one(matrices: Matrices, reading: str) -> list[str]:
    """The names of two matrices that are one in a file of torch.save, and would tie a reading.

    The reading was measured with files of which each matrix has memory of its own. One memory of an
    encoder and of a decoder leaves the head as it is read.
    """
    for (number, one), (other_number, other) in combinations(enumerate(matrices.tensors), 2):
        if one is None or other is None or reading == "!" or is_tied(reading):
            continue
        roots = {root(reading, number), root(reading, other_number)}
        is_tie = roots == {root(reading, 0), root(reading, 1)}  # of the embedding and the head
        if share_memory(one, other) and is_tie:
            return [one.name, other.name]
    return []


def versions_not_measured(
    model: AnyModel, known: ModelClass | None, matrices: Matrices
) -> dict[str, str]:
    """Version of transformers -> why it is not known how this version alone reads the files."""
    if known is None or not model.has_weights:
        return {}
    config = model.config_json
    reasons = {}
    of_matrices = {matrix.name for matrix in matrices.stored}
    other_names = [name for name in model.stored if name not in of_matrices]
    for version in known.rules:
        # A tensor whose name begins so makes the file one of a larger model.
        wrapper = known.wrapper(version)
        inside = [name for name in other_names if name.startswith(wrapper)]
        if wrapper and inside:
            reasons[version] = (
                f"beside {short_repr(inside[0])} transformers {version} may not look for the "
                "matrices under their usual names"
            )
    if "4" in known.rules and config.get("quantization_config", "") is None:
        reasons["4"] = 'transformers 4 fails at "quantization_config": null in config.json'
    # Files of a model without its head lack the prefix of all names.
    beginning = max(known.absent_prefixes, key=len).removesuffix(".")
    has_prefix = any(name.startswith(beginning) for name in model.stored)
    if "4" in known.rules and matrices.embedding is None and not has_prefix:
        reasons["4"] = f"transformers 4 may refuse a head beside names without {beginning}"
    if known.not_read_by_4 and not str(config.get("transformers_version", "")).startswith("4."):
        reasons["4"] = f"transformers 4 cannot load a {known.name} that transformers 5 saved"
    # A file without metadata names no format.
    formats = {each.get("format") for each in model.saved.metadata if each is not None}
    if "4" in known.rules and formats - MEASURED_FORMATS:
        reasons["4"] = (
            "transformers 4 may refuse a safetensors file with metadata that lack "
            f'"format": "pt": got {" and ".join(sorted(map(short_repr, formats)))}'
        )
    return reasons


def other_ties(config: dict[str, Any], known: ModelClass | None) -> dict[str, bool]:
    """The other flags in config.json that are about a tie, such as Lfm2's tie_embedding, and the
    values with which the class was measured.
    """
    measured = {} if known is None else known.shares
    return {
        name: measured.get(name, False)
        for name, value in config.items()
        if name != FLAG
        and isinstance(value, bool)
        and {"tie", "tied", "share", "shared"} & set(name.split("_"))
    }


def setting_not_measured(config: dict[str, Any], known: ModelClass) -> str | None:
    """Which setting changes what is loaded, and was not measured so; None without one."""
    measured: dict[str, Any] = other_ties(config, known)
    measured |= {name: value for name, value in MEASURED_SETTINGS.items() if name in config}
    if "decoder_vocab_size" in config:  # Marian may have two vocabularies
        measured["decoder_vocab_size"] = config.get("vocab_size")
    for name, value in measured.items():
        if config[name] != value:
            return f"{name}, with its value in config.json, was not measured"
    V = value_at(config, known.sizes[0][0] or "vocab_size")
    parts = (config, *(value for value in config.values() if isinstance(value, dict)))
    # Without a padding token in any of them, the class has one by default.
    default_pad = None if any("pad_token_id" in part for part in parts) else known.default_pad
    reasons = (setting_of_part_not_measured(part, V, known, default_pad) for part in parts)
    return next((reason for reason in reasons if reason is not None), None)


def setting_of_part_not_measured(
    part: dict[str, Any], V: Any, known: ModelClass, default_pad: int | None
) -> str | None:
    """Which setting changes what is loaded, and was not measured so; None without one.

    part: config.json, or an object in it. V: the size of the vocabulary.
    """
    if part.get("quantization_config") is not None:
        return "config.json says that the model is quantised"
    pad = part.get("pad_token_id", default_pad)
    if pad in SIZE and V in SIZE and pad >= V:
        return f"pad_token_id is {pad}, and the vocabulary has {V} tokens"
    for name, default in known.positions.items():
        positions = part.get(name, default)
        if pad in SIZE and positions in SIZE and pad >= positions:
            return f"pad_token_id is {pad}, and {name} is {positions}"
    for name in ("dtype", "torch_dtype"):
        if part.get(name) not in DTYPES:
            return f"{name} {short_repr(part[name])} in config.json was not measured"
    return None


# Who reads what


def read(
    known: ModelClass | None,
    flag: Report,
    matrices: Matrices,
    compared: Comparison,
    unmeasured: str | None,
    unmeasured_versions: dict[str, str],
    has_rule: bool,
) -> tuple[Readings, str | None]:
    """How each reader reads the files, and why that is not known of transformers.

    The reason is None if it is known. Where both versions have one, it is that of version 5.

    unmeasured: why no version was measured with these flags and files, None if they were.
    unmeasured_versions: version of transformers -> why this version was not. has_rule: whether vLLM
    and programs like it read these files by their rule.
    """
    readings: Readings = dict.fromkeys(READERS)
    state = compared.state or matrices.state_if_equal
    if state is None:
        return readings, unmeasured
    if has_rule:
        readings["others"] = by_rule(flag["tied"], state)
    if known is None or matrices.name_set is None or unmeasured is not None:
        return readings, unmeasured
    why_not_known = None
    for reader, version in MEASURED.items():
        if version in unmeasured_versions:
            why_not_known = unmeasured_versions[version]
            continue
        readings[reader], why = read_by(version, known, flag, matrices, state)
        why_not_known = why or why_not_known
    if compared.equal_if_rounded:  # transformers 5 compares them in the dtype of the model
        readings["transformers"] = None
        why_not_known = "the matrices differ by less than bfloat16 or float16 may round"
    return readings, why_not_known


def read_by(
    version: str, known: ModelClass, flag: Report, matrices: Matrices, state: str
) -> tuple[str | None, str | None]:
    """How a version of transformers reads a state of the files; why it is not known, if it is not.

    The names of the matrices are those of the class.
    """
    name_set = matrices.name_set or 0
    reading = known.reading(version, name_set, flags=flag["word"], state=state)
    if version not in known.versions:
        return None, f"transformers {version} has no {known.name}"
    # Names that lack a prefix were measured beside other tensors of the head, and were an error
    # then. Files without these tensors may be read.
    is_uncertain = reading == "!" and known.absent_prefixes[name_set] != ""
    if reading is None or is_uncertain:
        reason = f"{known.name} was not measured with transformers {version}"
        is_state = version in known.rules
        return None, reason + (" in this state of flags and files" if is_state else "")
    one_in_file = stay_one(matrices, reading)
    if one_in_file:
        return None, (
            f"{' and '.join(one_in_file)} are one matrix in the file, which stays one in memory "
            "until the model is saved"
        )
    return reading, None


def goes_by_the_flag(config: dict[str, Any], known: ModelClass | None, matrices: Matrices) -> bool:
    """Whether vLLM and programs like it read the matrices of a model by their rule."""
    if any(config[name] != value for name, value in other_ties(config, known).items()):
        return False
    if known is not None:
        return matrices.name_set is not None and known.has_usual_rule(matrices.name_set)
    name = named_class(config)
    if name is not None and not name.endswith(HAVE_A_RULE):  # it may have no output matrix
        return False
    # A class that was not measured is read by the rule if some class has the same usual names, and
    # no other matrix.
    names = {matrix.name for matrix in matrices.stored}
    return any(names <= set(each.names[0]) and len(each.names[0]) == 2 for each in all_classes())


# What is wrong


def describe_conflict(
    known: ModelClass | None,
    flag: Report,
    matrices: Matrices,
    compared: Comparison,
    readings: Readings,
) -> str:
    """What config.json and the files contradict each other in, and what each reader makes of it.

    "" if there is no conflict, or none is known.
    """
    reading_of = {reader: reading for reader, reading in readings.items() if reading is not None}
    state = compared.state or matrices.state_if_equal or ""
    names = ["" if matrix is None else matrix.name for matrix in matrices.tensors]
    readers_of: dict[str, list[str]] = {}  # what happens -> to whom
    for reader, reading in reading_of.items():
        happens = what_is_lost(reading, state, names) or what_is_kept(reading, state)
        readers_of.setdefault(happens, []).append(READERS[reader])
    is_lost = any(what_is_lost(reading, state, names) for reading in reading_of.values())
    if not reading_of or (not is_lost and agree(reading_of.values())):
        return ""
    parts = []
    for happens, readers in readers_of.items():
        verb, _, rest = happens.partition(" ")
        # "transformers 5 drops", but "vLLM-like programs drop".
        if verb != "cannot" and (len(readers) > 1 or readers == [READERS["others"]]):
            verb = verb.removesuffix("s")
        parts.append(f"{' and '.join(readers)} {verb} {rest}")
    conflict = f"{said_and_held(flag, state)}: {'; '.join(parts)}"
    rules = [] if known is None else known.rules.get("5", [])
    by_states = [by_state for rule in rules if rule for by_state in rule.values()]
    measured = [reading for by_state in by_states for reading in by_state.values()]
    if known is not None and measured and not any(is_tied(reading) for reading in measured):
        conflict += f"; transformers 5 never ties {known.name}"
    return conflict


def what_is_kept(reading: str, state: str) -> str:
    """What a reader that loses nothing does with the matrices in the files."""
    if state == "ab":
        return "keeps both"
    if len(state.replace(".", "")) == 1:
        return "reads what is there"
    return "ties the head" if is_tied(reading) else "keeps the head apart"


def said_and_held(flag: Report, state: str) -> str:
    """What config.json says, and what the files have."""
    if len(set(flag["said"].values())) > 1:
        says = "one flag of config.json says tied and another one untied"
    elif flag["tied"] is None:
        says = "config.json does not say whether the model is tied"
    else:
        by_default = "" if flag["place"] else ", by default,"
        says = f"config.json says{by_default} {'tied' if flag['tied'] else 'untied'}"
    if len(state) > 2:
        count = len(set(state) - {"."})
        held = f"{count} different matrices" if count > 1 else "one matrix"
        return f"{says}, and the files hold {held}"
    held_of = {
        "a.": "have no head",
        ".a": "have no embedding",
        "ab": "have another head",
        "aa": "have two equal matrices",
        "..": "have neither matrix",
    }
    return f"{says}, and the files {held_of.get(state, 'are not known')}"


# What the files hold


def held_report(
    known: ModelClass | None, matrices: Matrices, compared: Comparison, reading: str | None
) -> Report:
    """The matrices in the files, which are equal, and which are one for transformers 5.

    reading: that of transformers 5; None if it is not known.

    "holds" is "embedding" or "head" if the files have one of the two, "equal", "different" or "not
    comparable" if they have both. "equal_rows" of "compared_rows" are the same in both. "more" are
    the matrices of an encoder and a decoder. "wasted_bytes" are those of all equal copies but one.
    """
    has = {"embedding": matrices.embedding, "head": matrices.head}
    stored = [which for which in has if has[which] is not None and matrices.stored]
    holds = stored[0] if len(stored) == 1 else None
    if len(stored) == 2:
        holds = "not comparable"
        if compared.state is not None:
            holds = "equal" if compared.state[0] == compared.state[1] else "different"
    one: dict[int, list[str]] = {}  # root of the reading -> the names that are one matrix
    if known is not None and reading is not None and reading != "!" and len(reading) > 2:
        for number, name in enumerate(known.names[matrices.name_set or 0]):
            one.setdefault(root(reading, number), []).append(name)
    # Letter of the state -> where its copies begin -> bytes.
    copies: dict[str, dict[tuple[Path, int], int]] = {}
    for letter, tensor in zip(compared.state or "", matrices.tensors, strict=False):
        if tensor is not None:  # a file of PyTorch may have one copy under two names
            beginnings = copies.setdefault(letter, {})
            beginnings[tensor.file, tensor.start] = tensor.end - tensor.start
    return {
        "embedding": tensor_report(matrices.embedding),
        "head": tensor_report(matrices.head),
        "more": [tensor_report(tensor) for tensor in matrices.tensors[2:]],
        "usual": matrices.name_set is not None,
        "unclear": matrices.unclear,
        "holds": holds,
        "equal_rows": compared.equal_rows,
        "compared_rows": compared.compared_rows,
        "one": list(one.values()),
        "wasted_bytes": sum(sum([*sizes.values()][1:]) for sizes in copies.values()),
    }


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
