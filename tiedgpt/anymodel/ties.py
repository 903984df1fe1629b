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
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from ..checkpoints.files import ADAPTER_WEIGHTS, NOT_WEIGHTS, WEIGHTS, what_is_there
from ..checkpoints.json_files import CONFIG
from ..checkpoints.model_names import INDEX
from ..checkpoints.opened import Opened
from ..checkpoints.tensors import Tensor
from ..errors import CheckpointError, shape_in_words, short_repr
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
from .mends import FLAG, LETTER_OF_FLAG, find_mends

Report = dict[str, Any]
Readings = dict[str, str | None]  # a reader -> its reading; None if it is not known

# What the reports of check, and those of params, do not speak of
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
# The parts of config.json that transformers takes for the configuration of the language model
READ_AS_TEXT = {"decoder", "generator", "text_encoder"}

# A field of the report -> the program that it is about.
READERS = {
    "transformers4": "transformers 4",
    "transformers": "transformers 5",
    "others": "vLLM-like programs",
}
MEASURED = {"transformers4": "4", "transformers": "5"}  # -> the version that was measured


@dataclass(frozen=True)
class Facts:
    """What config.json says of a model, and what its files hold."""

    model: AnyModel
    known: ModelClass | None  # its class; None if it was not measured
    flag: Report  # what read_flag returns
    tensors: dict[str, Tensor]  # by their names in the files; {} for a config.json alone
    matrices: Matrices
    compared: Comparison
    not_read: list[str]  # files of weights beside those that were read
    file_of_others: str  # one beside that vLLM and programs like it may read; "" for none

    @classmethod
    def of(cls, name: str, model: AnyModel) -> "Facts":
        """The facts about a model. name: what the user calls it. Raises CheckpointError."""
        config = model.config_json
        if config.get("transformers_weights") is not None:
            raise CheckpointError(
                f"{name}: config.json names other files of weights, by transformers_weights; these "
                "are not read"
            )
        known = model_class(config)
        flag = read_flag(name, config, known)
        tensors = {} if is_config_alone(model) else model.stored
        matrices = find_matrices(config, tensors, known)
        compared = compare_matrices(model, matrices)
        not_read = weights_beside(model)
        file_of_others = read_by_others(model, not_read)
        return cls(model, known, flag, tensors, matrices, compared, not_read, file_of_others)


def tie_report(name: str, model: AnyModel) -> Report:
    """What `check` says of a model. A value is None if it is not known.

    "verdict" is "tied", "untied", "conflict", "not known", or "no head" for a class that has none,
    whatever the files hold. "flag" is what config.json says (read_flag), and "holds" what the files
    have (held_report). "not_read" are files of weights beside those that were read.
    "transformers4", "transformers" and "others" are "tied", "untied", "random head", "random
    embedding", "random" or "error". "not_measured" says why "transformers4" or "transformers" is
    None, and "without_class" which of the two versions have no such class. "one" has the names of
    the matrices of an encoder and a decoder that are one. "not_looked_at" is what the report does
    not speak of. Raises CheckpointError.
    """
    facts = Facts.of(name, model)
    known, flag, tensors, matrices = facts.known, facts.flag, facts.tensors, facts.matrices
    because_of_adapter = adapter_not_measured(model, matrices)
    readings, why_not_known, is_measured = read(facts, because_of_adapter)
    known_readings = [reading for reading in readings.values() if reading is not None]
    says_tied = flag["tied"] or any(is_tied(reading) for reading in known_readings)
    adapter = adapter_report(model, known, matrices, says_tied, because_of_adapter)

    conflict = describe_conflict(known, flag, matrices, facts.compared, readings)
    mends = [] if conflict else adapter.mends
    # A mend is tried on facts: if something was not measured or not read, there is none.
    is_all_known = is_measured and not adapter.changed and not facts.not_read
    if conflict and known is not None and is_all_known:
        state = facts.compared.state
        mends = find_mends(known, model.config_json, flag["word"], tensors, matrices, state)
    if conflict and facts.not_read:  # one of them may have what is missing
        conflict += f"; not looked at: {', '.join(facts.not_read)} beside them"

    without_class = []  # the fields of versions that do not have the class
    if known is not None:
        without_class = [
            reader for reader, version in MEASURED.items() if version not in known.versions
        ]
    report = {
        "model": name,
        "verdict": "",  # below: it is made of the rest
        "flag": flag,
        "tensors": len(tensors),
        **held_report(known, matrices, facts.compared, readings["transformers"]),
        **{reader: in_words(readings[reader]) for reader in READERS},
        "without_class": without_class,
        "changed_by_adapter": adapter.changed,
        "not_measured": why_not_known,
        "not_read": facts.not_read,
        "conflict": conflict or adapter.conflict,
        "mend": "\n".join(mend["text"] for mend in mends),  # for people; "mends" is for programs
        "mends": mends,
        "parameters": count_parameters(model, tensors, matrices, known, facts.compared.state),
        "not_looked_at": not_looked_at(model.config_json) if tensors else None,
    }
    report["verdict"] = verdict(report, known)
    # "tied" and "untied" hold for all programs: not if one may read another file, or an adapter.
    why_unsure = adapter.not_known
    if facts.file_of_others:
        why_unsure = f"vLLM-like programs may read {facts.file_of_others}, which was not looked at"
    if why_unsure and report["verdict"] in ("tied", "untied"):
        report["verdict"] = "not known"
        report["not_measured"] = why_unsure
    return report


def weights_beside(model: AnyModel) -> list[str]:
    """The files of a folder that may hold weights, by their names, and that were not read."""
    if not isinstance(model, Opened) or not model.has_weights or not model.path.is_dir():
        return []
    read = {tensor.file.name for tensor in model.stored.values()}
    folder = model.folder.path
    found = {path.name for path in folder.iterdir() if WEIGHTS_NAME.fullmatch(path.name)}
    beside = found - read - set(ADAPTER_WEIGHTS)
    return sorted(name for name in beside if not NOT_WEIGHTS.match(name))


def read_by_others(model: AnyModel, not_read: list[str]) -> str:
    """A file that was not read, and that vLLM and programs like it may read; "" for none.

    They read the files that an index lists; without an index, all safetensors files of a folder.
    """
    if not isinstance(model, Opened) or not model.path.is_dir():
        return ""
    # With both, WEIGHTS was read here, and they read the files of the index.
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
        # Values are read only for an encoder and a decoder, whose equal matrices may be one. No
        # count depends on whether a head equals its embedding.
        has_more = any(tensor is not None for tensor in matrices.tensors[2:])
        state = compare_matrices(model, matrices).state if has_more else matrices.state_if_equal
        numbers = count_parameters(model, tensors, matrices, known, state)
        shape = matrices.stored[0].shape if matrices.stored else None
        reason = "; ".join(matrices.misfits) or (
            "its matrices are not clear, it is quantised, or a bias is stored twice and differs"
        )
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
    """
    numbers = count_stored(tensors, matrices, known, state)
    if numbers is None or known is None:
        return numbers
    # The counts take a matrix that is not stored for one of the same shape. By config.json it may
    # have another: there V, and then D, of the embedding and of the head stand at these places.
    for places in zip(*known.sizes, strict=True):
        values = [value_at(model.config_json, place) for place in places if place is not None]
        sizes = set(values) - {None}
        if len(sizes) > 1 and len(matrices.stored) < 2:
            return None
    # A bias may be stored by two names. If the two differ, the count depends on the program: of
    # BERT's head transformers 4 keeps one, and 5 both.
    for name in known.separate:
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
    """A bias as a matrix, since equal_rows compares rows."""
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
    # Of a class that was not measured, each object in config.json with a flag is a place.
    nested = [
        place for place, fields in config.items() if isinstance(fields, dict) and FLAG in fields
    ]
    places = known.places if known is not None else ("", *nested)
    flag_of: dict[str, bool] = {}  # place -> the flag there
    # Each place once. A flag in text_config is checked even if the class does not read it.
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
            if FLAG not in fields_at(config, place):  # its kind's default, which is not known
                values.add(None)
    first_place = next(iter(flag_of), None)
    return {
        "kind": kind,
        "class": known.name if known is not None else None,
        "said": flag_of,
        "word": "".join(LETTER_OF_FLAG[flag_of.get(place)] for place in places),
        "tied": values.pop() if len(values) == 1 else None,
        "place": None if first_place is None else f"{first_place}.{FLAG}".removeprefix("."),
        "class_without_head": name if name in without_head else None,
    }


def not_measured(
    model: AnyModel, known: ModelClass | None, flag: Report, matrices: Matrices
) -> str | None:
    """Why it is not known how transformers reads a model; None if it was measured."""
    config = model.config_json
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
        or setting_not_measured(config, known)
        or file_not_measured(model, known, matrices, matrices.name_set)
    )


def place_not_measured(config: dict[str, Any], known: ModelClass) -> str | None:
    """Which size, flag or kind of a part was not measured at its place; None without one."""
    # V and D stand where they were measured.
    for place in sorted({place for axes in known.sizes for place in axes if place is not None}):
        parent, _, field = place.rpartition(".")
        if parent and config.get(parent) is None and config.get(field) in SIZE:
            return (
                f"config.json has {field} and no {parent}: {known.name} was measured with {field} "
                f"in {parent} alone"
            )
        if value_at(config, place) not in SIZE:
            return f"config.json does not say {place}, as a whole number"
    # No part, such as text_config, that has a flag in other classes only.
    own_parts = {place.partition(".")[0] for place in known.places}
    parts = {place.partition(".")[0] for each in all_classes() for place in each.places} - {""}
    for part in sorted((parts | READ_AS_TEXT) - own_parts):
        if config.get(part) is not None:  # transformers asks even what is no object for its flag
            return f"config.json has {part}, which {known.name} has not"
    # No flag at a place where its effect was not measured.
    for place in known.other_flags:
        if FLAG in fields_at(config, place):
            return f"{place}.{FLAG} in config.json was not measured"
    # A model of images and text takes a text model of any kind, which may have other names, and
    # another default of the flag.
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


def file_not_measured(
    model: AnyModel, known: ModelClass, matrices: Matrices, name_set: int
) -> str | None:
    """Which form of the files was not measured; None without one.

    name_set: the number of the set of names that the matrices have.
    """
    if is_inside(model):
        return "the state dict is inside of another dict, where transformers does not look for it"
    for one, other in combinations(matrices.stored, 2):
        if not share_memory(one, other) or is_same(one, other):
            continue
        if one.start == other.start and one.end == other.end:
            return f"{one.name} and {other.name} have one memory in the file, in another order"
        return f"{one.name} and {other.name} share a part of their memory in the file"
    if not matrices.stored:
        return None
    # The bias of the head has a number for each row. It stands in the head's module, or in the one
    # around it: cls.predictions.bias beside cls.predictions.decoder.weight.
    matrix = matrices.head or matrices.stored[0]
    module = known.names[name_set][1].rpartition(".")[0]
    for name in (f"{module}.bias", f"{module.rpartition('.')[0]}.bias"):
        bias = model.stored.get(name)
        if bias is not None and bias.shape != matrix.shape[:1]:
            shape = shape_in_words(bias.shape)
            return f"the shape of {name} is {shape}, and {matrix.name} has {matrix.shape[0]:,} rows"
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
    """The names of two matrices that are one in a file of torch.save, which ties the head.

    [] if there are none. Readings were measured with files in which each matrix has memory of its
    own. An untied reading is wrong if the embedding shares its memory with the head, or if matrices
    that are one with them do. It holds if an encoder shares with a decoder, and not with the head.
    """
    if reading == "!" or is_tied(reading):
        return []
    embedding_and_head = {root(reading, 0), root(reading, 1)}
    for (number, one), (other_number, other) in combinations(enumerate(matrices.tensors), 2):
        if one is None or other is None or not share_memory(one, other):
            continue
        if {root(reading, number), root(reading, other_number)} == embedding_and_head:
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
    # A tensor that makes transformers take the file for one of a larger model
    of_matrices = {matrix.name for matrix in matrices.stored}
    other_names = [name for name in model.stored if name not in of_matrices]
    for version in known.rules:
        wrapper = known.wrapper(version)
        inside = [name for name in other_names if name.startswith(wrapper)]
        if wrapper and inside:
            reasons[version] = (
                f"beside {short_repr(inside[0])} transformers {version} may not look for the "
                "matrices under their usual names"
            )
    if "4" in known.rules and config.get("quantization_config", "") is None:
        reasons["4"] = 'transformers 4 fails at "quantization_config": null in config.json'
    # A head beside tensors whose names lack the prefix, as in a model that was saved without a head
    # (A class without such a prefix has "", with which every name begins.)
    prefix = max(known.absent_prefixes, key=len).removesuffix(".")
    has_prefix = any(name.startswith(prefix) for name in model.stored)
    if "4" in known.rules and matrices.embedding is None and not has_prefix:
        reasons["4"] = f"transformers 4 may refuse a head beside names without {prefix}"
    if known.not_read_by_4 and not str(config.get("transformers_version", "")).startswith("4."):
        reasons["4"] = f"transformers 4 cannot load a {known.name} that transformers 5 saved"
    # Metadata with another format, or with none. A file without metadata is read.
    formats = {each.get("format") for each in model.saved.metadata if each is not None}
    if "4" in known.rules and formats - MEASURED_FORMATS:
        reasons["4"] = (
            "transformers 4 may refuse a safetensors file with metadata that lack "
            f'"format": "pt": got {" and ".join(sorted(map(short_repr, formats)))}'
        )
    return reasons


def other_ties(config: dict[str, Any], known: ModelClass | None) -> dict[str, bool]:
    """The other flags in config.json that are about a tie -> the values they were measured with.

    One is Lfm2's tie_embedding. A flag that the class was not measured with is taken for one that
    ties if it is True.
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
    """Which setting of config.json was not measured with its value; None without one."""
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
    """Which setting of a part of config.json was not measured with its value; None without one.

    part: config.json, or an object in it. V: the size of the vocabulary.
    """
    if part.get("quantization_config") is not None:
        return "config.json says that the model is quantised"
    # The padding token must be a row of the embedding, and of a table of positions in some classes.
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


def read(facts: Facts, because_of_adapter: dict[str, str]) -> tuple[Readings, str | None, bool]:
    """How each reader reads the files; why that is not known of transformers; is all measured?

    The second value is None if it is known. If it is not known of both versions, the reason is that
    of version 5. The third value is False if something in config.json, in the files or in an
    adapter was not measured.

    because_of_adapter: version of transformers -> why it is not known (adapter_not_measured).
    """
    model, known, matrices, compared = facts.model, facts.known, facts.matrices, facts.compared
    # Why no version was measured with this, and: version -> why this version was not
    unmeasured: str | None = "config.json alone was read"
    if not is_config_alone(model):
        unmeasured = not_measured(model, known, facts.flag, matrices)
    unmeasured_versions = because_of_adapter | versions_not_measured(model, known, matrices)
    is_measured = unmeasured is None and not unmeasured_versions and not compared.equal_if_rounded

    readings: Readings = dict.fromkeys(READERS)
    # Of matrices that cannot be compared, it is known which are stored.
    state = compared.state or matrices.state_if_equal
    if state is None:
        return readings, unmeasured, is_measured
    reads_other_files = facts.file_of_others != "" or is_inside(model)
    if goes_by_the_flag(model.config_json, known, matrices) and not reads_other_files:
        readings["others"] = by_rule(facts.flag["tied"], state)
    if known is None or matrices.name_set is None or unmeasured is not None:
        return readings, unmeasured, is_measured
    why_not_known = None
    for reader, version in MEASURED.items():
        why = unmeasured_versions.get(version)
        if why is None:
            readings[reader], why = read_by(
                version, known, facts.flag["word"], matrices, matrices.name_set, state
            )
        why_not_known = why or why_not_known  # version 5 comes last
    if compared.equal_if_rounded:  # transformers 5 compares them in the dtype of the model
        readings["transformers"] = None
        why_not_known = "the matrices differ by less than bfloat16 or float16 may round"
    return readings, why_not_known, is_measured


def read_by(
    version: str, known: ModelClass, flags: str, matrices: Matrices, name_set: int, state: str
) -> tuple[str | None, str | None]:
    """How a version of transformers reads a state of the files, and why that is not known.

    One of the two is None. name_set: the number of the set of names that the matrices have.
    """
    if version not in known.versions:
        return None, f"transformers {version} has no {known.name}"
    if version not in known.rules:
        return None, f"{known.name} was not measured with transformers {version}"
    reading = known.reading(version, name_set, flags, state)
    # Names that lack a prefix were measured beside other tensors of the head, and were an error
    # then. Files without these tensors may be read.
    is_uncertain = reading == "!" and known.absent_prefixes[name_set] != ""
    if reading is None or is_uncertain:
        return None, (
            f"{known.name} was not measured with transformers {version} in this state of flags "
            "and files"
        )
    one_in_file = stay_one(matrices, reading)
    if one_in_file:
        return None, (
            f"{' and '.join(one_in_file)} are one matrix in the file, which stays one in memory "
            "until the model is saved"
        )
    return reading, None


def goes_by_the_flag(config: dict[str, Any], known: ModelClass | None, matrices: Matrices) -> bool:
    """Whether vLLM and programs like it read the matrices of a model by their rule."""
    # Another flag of a tie has another value than was measured: programs may go by it.
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

    "" if there is no conflict, or none is known. There is one if a reader loses a matrix, or if two
    readers read the same files in another way.
    """
    reading_of = {reader: reading for reader, reading in readings.items() if reading is not None}
    # Quantised matrices are not compared. They are taken for equal: to drop one then loses nothing.
    state = compared.state or matrices.state_if_equal or ""
    names = ["" if matrix is None else matrix.name for matrix in matrices.tensors]
    is_lost = any(what_is_lost(reading, state, names) for reading in reading_of.values())
    if not reading_of or (not is_lost and agree(reading_of.values())):
        return ""
    # Readers that do the same are told together.
    readers_of: dict[str, list[str]] = {}  # what is done, such as "drops lm_head.weight" -> by whom
    for reader, reading in reading_of.items():
        does = what_is_lost(reading, state, names) or what_is_kept(reading, state)
        readers_of.setdefault(does, []).append(READERS[reader])
    parts = []
    for does, readers in readers_of.items():
        verb, _, rest = does.partition(" ")
        # "transformers 5 drops", but "vLLM-like programs drop".
        if verb != "cannot" and (len(readers) > 1 or readers == [READERS["others"]]):
            verb = verb.removesuffix("s")
        parts.append(f"{' and '.join(readers)} {verb} {rest}")
    conflict = f"{said_and_held(flag, state)}: {'; '.join(parts)}"
    measured = set() if known is None else known.all_readings("5")
    if known is not None and measured and not any(is_tied(reading) for reading in measured):
        conflict += f"; transformers 5 never ties {known.name}"
    return conflict


def what_is_kept(reading: str, state: str) -> str:
    """What a reader that loses nothing does with the matrices in the files."""
    if state == "ab":
        return "keeps both"
    if len(state.replace(".", "")) == 1:  # one matrix is stored
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
    if len(state) > 2:  # an encoder and a decoder
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
    # Which of the first two the files have; neither, if a third tensor may be one of them
    first_two = {"embedding": matrices.embedding, "head": matrices.head}
    stored = [
        which for which, tensor in first_two.items() if tensor is not None and not matrices.unclear
    ]
    holds = stored[0] if len(stored) == 1 else None
    if len(stored) == 2:
        holds = "not comparable"
        if compared.state is not None:
            holds = "equal" if compared.state[0] == compared.state[1] else "different"
    # The names of an encoder and a decoder by the number of the first matrix that they are one with
    one: dict[int, list[str]] = {}
    if known is not None and reading is not None and reading != "!" and len(reading) > 2:
        for number, name in enumerate(known.names[matrices.name_set or 0]):
            one.setdefault(root(reading, number), []).append(name)
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
        "wasted_bytes": wasted_bytes(matrices, compared.state or ""),
    }


def wasted_bytes(matrices: Matrices, state: str) -> int:
    """The bytes of all copies of a matrix in the files but the first. state: "" if not known."""
    sizes_of: dict[str, dict[tuple[Path, int], int]] = {}  # letter -> where a copy begins -> bytes
    for letter, tensor in zip(state, matrices.tensors, strict=False):
        if tensor is not None:  # a file of PyTorch may have one copy under two names
            copies = sizes_of.setdefault(letter, {})
            copies[tensor.file, tensor.start] = tensor.end - tensor.start
    total = 0
    for copies in sizes_of.values():
        _first, *others = copies.values()
        total += sum(others)
    return total


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
