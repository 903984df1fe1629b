"""What an adapter of PEFT changes of the matrices of a tied model, and what a merge makes of it.

PEFT 0.21.2 was measured with transformers 5.24: 74 small tied models, each with adapters of
several kinds, merged, saved and loaded again. Encoder-decoder models, and models whose head has a
bias, gave other results: what a merge makes of these is known only if LoRA adds to a matrix.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..checkpoints.files import ADAPTER, ADAPTER_WEIGHTS, adapter_tensors
from ..checkpoints.names import EMBEDDINGS, HEADS, IN_A_LAYER
from ..checkpoints.opened import Opened
from ..checkpoints.tensors import FLOATS, Tensor
from ..errors import CheckpointError, short_repr
from .headers import AnyModel
from .kinds import VERSIONS, ModelClass
from .matrices import Matrices

PEFT = "PEFT 0.21.2"
MEASURED_KINDS = ("LORA", "TRAINABLE_TOKENS")
# What is done to a matrix -> the end of a tensor's name, after the name of the matrix's module.
ENDS = {
    "adds": r"\.lora_.*",
    "changes rows of": r"\.(token_adapter\.)?trainable_tokens_delta",
    "replaces": r"(\.modules_to_save)?\.weight",
}
# The lines of the remedy.
UNTIE_AND_MERGE = """\
import torch
from peft import PeftModel
from transformers import {class_name}
model = {class_name}.from_pretrained("MODEL")
head = model.get_output_embeddings()
head.weight = torch.nn.Parameter(head.weight.detach().clone())
for config in (model.config, model.config.get_text_config()):
    config.tie_word_embeddings = False
model = PeftModel.from_pretrained(model, "ADAPTER").merge_and_unload()
model.save_pretrained("MERGED")"""
BEFORE_THE_LINES = (
    f"to merge it, move {ADAPTER} and its weights to a directory ADAPTER of their own, and run"
)


@dataclass(frozen=True)
class AdapterReport:
    """What an adapter beside a model makes of the tie. Without an adapter nothing is in it."""

    changed: list[str] = field(default_factory=list)  # of "embedding" and "head"
    conflict: str = ""
    not_known: str = ""  # why it is not known what becomes of the tie
    mends: list[dict[str, Any]] = field(default_factory=list)  # at most one: mends.describe_mend


def adapter_report(
    model: AnyModel,
    known: ModelClass | None,
    matrices: Matrices,
    tied: bool,
    not_measured: dict[str, str],
) -> AdapterReport:
    """What the adapter in a model's folder makes of the tie. On the hub, none is looked for.

    tied: whether config.json or transformers says so. An untied model has no tie to lose.
    not_measured: version of transformers -> why it is not known how it loads the model with this
    adapter beside (adapter_not_measured).
    """
    if not isinstance(model, Opened):
        return AdapterReport()
    try:
        tensors = adapter_tensors(model.folder.path)
        adapter_config = model.folder.json(ADAPTER) if tensors else {}
    except CheckpointError:  # Opened.adapter says that it cannot be read
        return AdapterReport()
    if "5" in not_measured:  # the version with which PEFT was measured
        return AdapterReport(may_be_changed(tensors, known), not_known=not_measured["5"])
    changes = changes_of(tensors, known)
    changed = [matrix for matrix, tensor_of in changes.items() if tensor_of]
    if not changed or not tied:
        return AdapterReport(changed)
    which = " and ".join(f"the {matrix}" for matrix in changed)
    is_usual = has_usual_head(model, known, matrices)  # no third matrix, no bias for each token
    outcome = outcome_of(model, adapter_config, changes, is_usual)
    if outcome == "one":
        return AdapterReport(changed)
    if outcome == "two":
        conflict = (
            f"the model is tied, and the adapter beside it replaces {which}: both together are "
            f"untied, and {PEFT} merges and saves them so; older versions were not run"
        )
        return AdapterReport(changed, conflict)
    if outcome == "other logits" and known is not None:
        mends = []
        # The remedy unties the model first. An adapter with ensure_weight_tying computes other
        # logits in an untied model, so there is no remedy for it.
        if is_usual and not adapter_config.get("ensure_weight_tying"):
            python = UNTIE_AND_MERGE.format(class_name=known.name)
            text = f"{BEFORE_THE_LINES}\n{python}"
            mends.append({"flags": {}, "python": python, "text": text})
        conflict = (
            f"the model is tied, and the adapter beside it adds to {which}: {PEFT} merges this "
            "into the one matrix, so both its uses change, and the merged model has other logits"
        )
        return AdapterReport(changed, conflict, mends=mends)
    return AdapterReport(
        changed, not_known=f"what a merge of the adapter, which changes {which}, makes of the tie"
    )


def adapter_not_measured(model: AnyModel, matrices: Matrices) -> dict[str, str]:
    """Version of transformers -> why it is not known how it loads a model with this adapter beside.

    transformers applies an adapter that lies beside a model, if PEFT is installed.
    """
    if not isinstance(model, Opened) or not model.folder.has(ADAPTER):
        return {}
    if not model.folder.has(ADAPTER_WEIGHTS[0]):
        return dict.fromkeys(VERSIONS, f"{ADAPTER} lies beside it without {ADAPTER_WEIGHTS[0]}")
    try:
        tensors = adapter_tensors(model.folder.path)
        adapter_config = model.folder.json(ADAPTER)
    except CheckpointError:  # Opened.adapter says that it cannot be read
        return dict.fromkeys(VERSIONS, f"{ADAPTER} and its weights cannot be read")
    kind = adapter_config.get("peft_type")
    if kind not in MEASURED_KINDS:
        return dict.fromkeys(VERSIONS, f"an adapter, {short_repr(kind)}, lies beside it")
    shapes = {matrix.shape for matrix in matrices.stored}
    for tensor_of in changes_of(tensors, known=None).values():
        replaced = tensor_of.get("replaces")
        if replaced is not None and replaced.shape not in shapes:
            return dict.fromkeys(VERSIONS, f"the adapter has {replaced.name} of another shape")
    base = adapter_config.get("base_model_name_or_path")
    if isinstance(base, str) and os.path.realpath(base) == os.path.realpath(model.folder.path):
        return {}
    return {"4": f"transformers 4 loads the base model of the adapter, {short_repr(base)}"}


def outcome_of(
    model: Opened,
    adapter_config: dict[str, Any],
    changes: dict[str, dict[str, Tensor]],
    is_usual: bool,
) -> str:
    """What a merge makes of a tied model: "one" or "two" matrices, or "other logits".

    "" if it is not known. changes: what is done to the "embedding" and to the "head" (changes_of).
    is_usual: whether the head is one with which all changes were measured.
    """
    ways = {way for tensor_of in changes.values() for way in tensor_of}
    if ways == {"adds"}:  # what is added for one use is merged into the matrix of both uses
        return "other logits"
    if len(ways) > 1 or not is_usual:
        return ""
    [way] = ways
    embedding, head = changes["embedding"].get(way), changes["head"].get(way)
    is_equal = False
    if embedding is not None and head is not None and embedding.shape == head.shape:
        if len(embedding.shape) != 2 or not {embedding.dtype, head.dtype} <= set(FLOATS):
            return ""  # equal_rows compares matrices of floats
        equal, compared = model.equal_rows(embedding, head)
        is_equal = equal == compared
    if way == "replaces" and adapter_config.get("modules_to_save"):
        # Of the measured classes, PEFT keeps the tie of those whose embedding has this name.
        can_tie = embedding is not None and ".embed_tokens." in embedding.name
        is_kept = is_equal and can_tie and adapter_config.get("ensure_weight_tying")
        return "one" if is_kept else "two"
    if is_equal:  # copies of the one matrix, or the changed rows of both its uses
        return "one"
    if way == "changes rows of" and adapter_config["peft_type"] == "LORA":
        # PEFT gives the head the changed rows of the embedding, unless it has its own.
        return "one" if head is None else "other logits"
    return ""


def has_usual_head(model: Opened, known: ModelClass | None, matrices: Matrices) -> bool:
    """Whether a model has an embedding and a head, no third matrix, and no bias for each token."""
    if known is None or len(known.names[0]) != 2 or not matrices.stored:
        return False
    V = matrices.stored[0].shape[0]
    return not any(
        name.endswith("bias") and V in tensor.shape and not IN_A_LAYER.search(name)
        for name, tensor in model.stored.items()
    )


def changes_of(
    tensors: Mapping[str, Tensor], known: ModelClass | None
) -> dict[str, dict[str, Tensor]]:
    """For the "embedding" and the "head": what is done to it (ENDS) -> a tensor that does it."""
    changes: dict[str, dict[str, Tensor]] = {"embedding": {}, "head": {}}
    for name, tensor in tensors.items():
        if IN_A_LAYER.search(name):
            continue
        for way, end in ENDS.items():
            module = re.sub(f"{end}$", "", name)
            if module == name:  # the name has not this end
                continue
            for matrix, last_names in names_of_modules(known).items():
                if module.rpartition(".")[2] in last_names:
                    changes[matrix].setdefault(way, tensor)
    return changes


def may_be_changed(tensors: Mapping[str, Tensor], known: ModelClass | None) -> list[str]:
    """Which of "embedding" and "head" an adapter may change, if it was not measured what it does.

    A matrix may be changed if any part of a tensor's name is that of the matrix's module.
    """
    outside_layers = [name for name in tensors if not IN_A_LAYER.search(name)]
    parts = {part for name in outside_layers for part in name.split(".")}
    return [
        matrix for matrix, last_names in names_of_modules(known).items() if parts & set(last_names)
    ]


def names_of_modules(known: ModelClass | None) -> dict[str, tuple[str, ...]]:
    """The last names of the modules that have the embedding, and of those that have the head.

    In model.embed_tokens.weight the module is model.embed_tokens, and its last name embed_tokens.
    """
    if known is None:
        return {"embedding": EMBEDDINGS, "head": HEADS}
    # The embedding is the first of a class's names, the head the second. An encoder and a decoder
    # have the embedding by names of their own, too.
    last_names = [[name.split(".")[-2] for name in names] for names in known.names]
    return {
        "embedding": tuple({each for names in last_names for each in (names[0], *names[2:])}),
        "head": tuple({names[1] for names in last_names}),
    }
