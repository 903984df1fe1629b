"""How programs name and lay out the tensors of a GPT-2: one table, in which a layout is a row.

A row has, for each of our modules, the names of its weight and its bias. In a name stands

    N          for the number of the layer; without N, one tensor [L, ...] holds all layers
    (w|b)      for w in the name of the weight, for b in that of the bias
    (q+k+v)    for several tensors, which are one of ours, side by side
    ^T         after a matrix that is stored transposed, [out, in]
    ^H         after one that is stored by head, [H, D, K] in place of [D, H K]; a bias [H, K]
    ^HK        after one that is stored [H, K, D] in place of [H K, D]

An axis of 1 before those of ours is left out.

`by_our_names` gives the tensors of any of these programs our names and our layout. They may be
arrays, or tensors of a file whose values are not read.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from ..errors import ArgumentError, short_repr

HEAD = "lm_head.weight"  # W_U transposed
PREFIX = "transformer."  # before all names but the head's, in the files that transformers writes
# Before all other names: torch's DistributedDataParallel and torch.compile, a module that holds the
# model as `model`, transformers.
PREFIXES = re.compile(r"^((module|_orig_mod|model)\.)*(transformer\.)?")
WRAPPED = "_original_component."  # inside of the names of TransformerLens's bridge
# What a model may have beside, or in place of, the head that predicts tokens.
OTHER_HEAD = re.compile(r"(v_head|score|classifier|multiple_choice_head|qa_outputs)\.")
NOT_OF_TOKENS = "of another head than the one that predicts tokens, so it is not used"
LAYER = re.compile(r"(?<=\.)\d+(?=\.)|(?<=/h)\d+(?=/)", re.ASCII)  # the first one is the layer's
MAX_PARTS = 1 << 12  # the most layers or heads that one tensor may hold


class HasShape(Protocol):
    """An array, or a tensor of a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...


Join = Callable[[Sequence[Any], int], Any]  # puts tensors side by side along an axis


class Part(NamedTuple):
    """What a tensor of another program is: one of ours, or one of several parts of it."""

    ours: str
    form: str  # "T", "H", "HK" or "", as in the table
    place: int  # among the parts
    of: int  # how many parts there are


@dataclass(frozen=True)
class Layout:
    """The names and forms of one program's tensors."""

    program: str
    modules: dict[str, str]  # our module -> the names of its weight and bias
    not_parameters: tuple[str, ...] = ()  # names of tensors such as causal masks
    must_be_zero: tuple[str, ...] = ()  # names of parameters that a GPT-2 lacks
    no_bias: tuple[str, ...] = ()  # our modules that may lack a bias where others have one: it is 0

    @cached_property
    def parts(self) -> dict[str, Part]:
        """A name of this program, with N for the layer -> what it is."""
        parts = {}
        for module, pattern in self.modules.items():
            kinds = ("weight", "bias") if "|" in pattern else ("weight",)
            for kind in kinds:
                names = names_of(pattern, kind)
                for place, (name, form) in enumerate(names):
                    parts[name] = Part(f"{module}.{kind}", form, place, of=len(names))
        return parts


def names_of(pattern: str, kind: str) -> list[tuple[str, str]]:
    """(name, form) of each tensor that the weight or the bias of a module is made of.

    >>> names_of("att.W_(q+k).(weight^T|bias)", "weight")
    [('att.W_q.weight', 'T'), ('att.W_k.weight', 'T')]
    """
    # "(weight^T|bias)" becomes its first or its second half.
    of_kind = 1 if kind == "weight" else 2
    pattern = re.sub(r"\(([^()|]*)\|([^()|]*)\)", lambda match: match[of_kind], pattern)
    # "(q+k)" stands for several names.
    several = re.search(r"\((.*)\)", pattern)
    names = [pattern]
    if several is not None:
        names = [pattern.replace(several[0], part) for part in several[1].split("+")]
    split = [name.partition("^") for name in names]
    return [(name, form) for name, _, form in split]


OURS = {
    "wte": "wte.weight",
    "wpe": "wpe.weight",
    "h.N.ln_1": "h.N.ln_1.(weight|bias)",
    "h.N.attn.c_attn": "h.N.attn.c_attn.(weight|bias)",
    "h.N.attn.c_proj": "h.N.attn.c_proj.(weight|bias)",
    "h.N.ln_2": "h.N.ln_2.(weight|bias)",
    "h.N.mlp.c_fc": "h.N.mlp.c_fc.(weight|bias)",
    "h.N.mlp.c_proj": "h.N.mlp.c_proj.(weight|bias)",
    "ln_f": "ln_f.(weight|bias)",
    "lm_head": "lm_head.weight",
}
MASKS = ("h.N.attn.bias", "h.N.attn.masked_bias")
MASK = re.compile(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias", re.ASCII)  # a name of MASKS
# Two layouts with the same names differ by the shape of c_attn.weight.
LAYOUTS = (
    Layout("transformers", OURS, not_parameters=MASKS),
    Layout(
        "nanoGPT, minGPT and mlx-lm",
        {
            **OURS,
            "h.N.attn.c_attn": "h.N.attn.c_attn.(weight^T|bias)",
            "h.N.attn.c_proj": "h.N.attn.c_proj.(weight^T|bias)",
            "h.N.mlp.c_fc": "h.N.mlp.c_fc.(weight^T|bias)",
            "h.N.mlp.c_proj": "h.N.mlp.c_proj.(weight^T|bias)",
        },
        not_parameters=MASKS,
    ),
    Layout(
        "minGPT of 2020",
        {
            "wte": "tok_emb.weight",
            "wpe": "pos_emb",  # [1, n_ctx, D]
            "h.N.ln_1": "blocks.N.ln1.(weight|bias)",
            "h.N.attn.c_attn": "blocks.N.attn.(query+key+value).(weight^T|bias)",
            "h.N.attn.c_proj": "blocks.N.attn.proj.(weight^T|bias)",
            "h.N.ln_2": "blocks.N.ln2.(weight|bias)",
            "h.N.mlp.c_fc": "blocks.N.mlp.0.(weight^T|bias)",
            "h.N.mlp.c_proj": "blocks.N.mlp.2.(weight^T|bias)",
            "ln_f": "ln_f.(weight|bias)",
            "lm_head": "head.weight",
        },
        not_parameters=("blocks.N.attn.mask",),
    ),
    Layout(
        "llm.c",
        {
            "wte": "wte",
            "wpe": "wpe",
            "h.N.ln_1": "ln1(w|b)",
            "h.N.attn.c_attn": "qkv(w^T|b)",
            "h.N.attn.c_proj": "attproj(w^T|b)",
            "h.N.ln_2": "ln2(w|b)",
            "h.N.mlp.c_fc": "fc(w^T|b)",
            "h.N.mlp.c_proj": "fcproj(w^T|b)",
            "ln_f": "lnf(w|b)",
        },
    ),
    Layout(
        "TransformerLens",
        {
            "wte": "embed.W_E",
            "wpe": "pos_embed.W_pos",
            "h.N.ln_1": "blocks.N.ln1.(w|b)",
            "h.N.attn.c_attn": "blocks.N.attn.(W|b)_(Q+K+V)^H",
            "h.N.attn.c_proj": "blocks.N.attn.(W_O^HK|b_O)",
            "h.N.ln_2": "blocks.N.ln2.(w|b)",
            "h.N.mlp.c_fc": "blocks.N.mlp.(W|b)_in",
            "h.N.mlp.c_proj": "blocks.N.mlp.(W|b)_out",
            "ln_f": "ln_final.(w|b)",
            "lm_head": "unembed.W_U^T",
        },
        not_parameters=("blocks.N.attn.mask", "blocks.N.attn.IGNORE"),
        must_be_zero=("unembed.b_U",),
    ),
    Layout(
        "OpenAI",
        {
            "wte": "model/wte",
            "wpe": "model/wpe",
            "h.N.ln_1": "model/hN/ln_1/(g|b)",
            "h.N.attn.c_attn": "model/hN/attn/c_attn/(w|b)",  # [1, D, 3D]
            "h.N.attn.c_proj": "model/hN/attn/c_proj/(w|b)",
            "h.N.ln_2": "model/hN/ln_2/(g|b)",
            "h.N.mlp.c_fc": "model/hN/mlp/c_fc/(w|b)",
            "h.N.mlp.c_proj": "model/hN/mlp/c_proj/(w|b)",
            "ln_f": "model/ln_f/(g|b)",
        },
    ),
    Layout(
        "LLMs-from-scratch",
        {
            "wte": "tok_emb.weight",
            "wpe": "pos_emb.weight",
            "h.N.ln_1": "trf_blocks.N.norm1.(scale|shift)",
            "h.N.attn.c_attn": "trf_blocks.N.att.W_(query+key+value).(weight^T|bias)",
            "h.N.attn.c_proj": "trf_blocks.N.att.out_proj.(weight^T|bias)",
            "h.N.ln_2": "trf_blocks.N.norm2.(scale|shift)",
            "h.N.mlp.c_fc": "trf_blocks.N.ff.layers.0.(weight^T|bias)",
            "h.N.mlp.c_proj": "trf_blocks.N.ff.layers.2.(weight^T|bias)",
            "ln_f": "final_norm.(scale|shift)",
            "lm_head": "out_head.weight",
        },
        not_parameters=("trf_blocks.N.att.mask",),
        no_bias=("h.N.attn.c_attn",),
    ),
)


# The matrix "wte" or "lm_head" -> the modules whose weight it is, as [V, D], in all layouts. For
# lm_head they are lm_head, head, out_head.
MODULES_OF = {
    matrix: dict.fromkeys(  # in the table's order, each once
        layout.modules[matrix].removesuffix(".weight")
        for layout in LAYOUTS
        if layout.modules.get(matrix, "").endswith((".weight", "wte"))
    )
    for matrix in ("wte", "lm_head")
}
# The last parts of the names of modules: transformer.wte is an embedding, lm_head is a head. Those
# of GPT-2s are in the table.
EMBEDDINGS = (
    *MODULES_OF["wte"],
    "embed_tokens",
    "word_embeddings",
    "embed_in",
    "tok_embeddings",
    "tokens_embed",
    "embeddings",
)
HEADS = (
    *MODULES_OF["lm_head"],
    "embed_out",
    "output",
    "decoder",
    "output_projection",
    "proj_out",
)
IN_A_LAYER = re.compile(r"(^|\.)(h|layers?|blocks?)\.\d+\.")
# Tables of something else than tokens, or for the layers: never one of the matrices.
OTHER_TABLE = re.compile(r"wpe|position|pos_emb|token_type|per_layer")


def name_in_transformers(ours: str) -> str:
    """The name under which our tensor is written."""
    return ours if ours == HEAD else PREFIX + ours


def plain_name(name: str) -> str:
    """A name without what may stand before it."""
    return PREFIXES.sub("", name).replace(WRAPPED, "")


def with_N(name: str) -> tuple[str, str]:
    """A plain name with N for the number of the layer, and the number; "" if it has none.

    >>> with_N("h.3.ln_1.bias")
    ('h.N.ln_1.bias', '3')
    """
    number = LAYER.search(name)
    if number is None:
        return name, ""
    return f"{name[: number.start()]}N{name[number.end() :]}", number[0]


def all_names() -> list[str]:
    """The names in all layouts, with N for the layer."""
    names: dict[str, Part] = {}  # whose keys are in the order of the table, each once
    for layout in LAYOUTS:
        names |= layout.parts
    return list(names)


def our_parameter(name: str) -> str:
    """Our name of the parameter that has this plain name in a layout; "" if none has it.

    >>> our_parameter("trf_blocks.3.att.W_key.bias")
    'h.3.attn.c_attn.bias'
    """
    kind, number = with_N(name)
    for layout in LAYOUTS:
        if kind in layout.parts:
            ours = layout.parts[kind].ours
            return ours.replace("N", number) if number else ours
    return ""


def is_no_parameter(name: str) -> bool:
    """Whether a plain name is that of a tensor which is no parameter, such as a mask."""
    kind, _ = with_N(name)
    return any(kind in layout.not_parameters for layout in LAYOUTS)


class Renamed(NamedTuple):
    """Tensors under our names, in our layout."""

    layout: Layout  # theirs
    tensors: dict[str, Any]
    must_be_zero: dict[str, Any]  # name -> tensor; the caller looks at its values
    n_head: int | None  # None for a layout whose shapes do not tell it

    def check_n_head(self, n_head: int) -> None:
        """Raise ArgumentError if the tensors are stored by head, and have other heads."""
        if self.n_head not in (None, n_head):
            raise ArgumentError(f"n_head is {n_head}, but the tensors have {self.n_head} heads")

    def refuse_extra_parameters(self, values: Callable[[Any], Any]) -> None:
        """Raise ArgumentError for a parameter that a GPT-2 lacks, unless all its values are 0.

        values(tensor): an array of them.
        """
        for name, tensor in self.must_be_zero.items():
            if values(tensor).any():
                raise ArgumentError(f"{name} is not 0, and a GPT-2 has no such parameter")


def by_our_names(given: Mapping[str, HasShape], join: Join) -> Renamed:
    """Tensors under our names, and in our layout.

    given: by their names without a prefix (plain_name). A tensor that is not known keeps its name,
    a mask is left out.
    join: puts tensors side by side. Raises ArgumentError for parts of a tensor that are missing or
    do not fit each other.
    """
    layout = layout_of(given)
    found: dict[str, dict[int, Any]] = {}  # our name -> the parts that are there, by place
    others: dict[str, Any] = {}
    must_be_zero: dict[str, Any] = {}  # parameters that a GPT-2 lacks, so the caller checks them
    n_head = None
    for name, tensor in given.items():
        kind, number = with_N(name)
        if kind in layout.parts:
            part = layout.parts[kind]
            if part.form in ("H", "HK") and len(tensor.shape) > 1:  # [H, D, K], [H, K, D], [H, K]
                n_head = tensor.shape[0]
            for ours, of_layer in by_layer(part.ours, number, tensor):
                found.setdefault(ours, {})[part.place] = in_our_form(of_layer, part, join)
        elif kind in layout.must_be_zero:
            must_be_zero[name] = tensor
        elif kind not in layout.not_parameters:
            others[name] = tensor

    tensors = {}
    for ours, places in found.items():
        tensors[ours] = joined(ours, places, layout, join)
    for name, tensor in others.items():
        if name in tensors:
            raise ArgumentError(
                f"{short_repr(name)} is there twice, also by its name in {layout.program}"
            )
        tensors[name] = tensor
    return Renamed(layout, tensors, must_be_zero, n_head)


def layout_of(given: Mapping[str, HasShape]) -> Layout:
    """The layout that has most of the names.

    Two layouts with the same names differ by the shape of c_attn.weight: it is [D, 3D], or [3D, D]
    in the layout that has it transposed.
    """
    shapes = {}  # name with N -> shape
    for name, tensor in given.items():
        kind, _ = with_N(name)
        shapes[kind] = tensor.shape
    known = {layout.program: len(layout.parts.keys() & shapes.keys()) for layout in LAYOUTS}
    most = max(known.values())
    candidates = [layout for layout in LAYOUTS if known[layout.program] == most]
    for layout in candidates:
        fits = True
        for name, part in layout.parts.items():
            shape = shapes.get(name, ())
            is_whole = part.of == 1  # q, k and v are one tensor, which has three times the columns
            if part.ours == "h.N.attn.c_attn.weight" and is_whole and len(shape) >= 2:
                is_transposed = shape[-2] > shape[-1]
                fits = is_transposed == (part.form == "T")
        if fits:
            return layout
    return candidates[0]  # none fits: a later check of the shapes says so


def by_layer(ours: str, number: str, tensor: Any) -> Iterator[tuple[str, Any]]:
    """Our name and the tensor of each layer. number: the layer's, "" if there are all layers."""
    if "N" not in ours or number != "":
        yield ours.replace("N", number), tensor
        return
    if not may_be_sliced(tensor):
        raise ArgumentError(f"{ours} of all layers has the shape {short_repr(tensor.shape)}")
    for layer in range(tensor.shape[0]):
        yield ours.replace("N", f"{layer}"), tensor[layer]


def in_our_form(tensor: Any, part: Part, join: Join) -> Any:
    """A tensor as we have it. It stays as it is if it has not the shape of its form."""
    if part.form in ("H", "HK") and len(tensor.shape) > 1 and may_be_sliced(tensor):
        by_head = [tensor[head] for head in range(tensor.shape[0])]
        axis = 0 if part.form == "HK" else -1  # HK: [K, D] of each head; H: [D, K], or a bias [K]
        return join(by_head, axis)
    is_matrix = part.ours.endswith(".weight") and "ln_" not in part.ours
    axes = 2 if is_matrix else 1
    if len(tensor.shape) == axes + 1 and tensor.shape[0] == 1:  # [1, ...], as OpenAI's c_attn
        tensor = tensor[0]
    if part.form == "T" and len(tensor.shape) == 2:
        return tensor.T
    return tensor


def may_be_sliced(tensor: HasShape) -> bool:
    """Whether the first axis of a tensor may be one of layers or heads."""
    return len(tensor.shape) > 0 and 1 <= tensor.shape[0] <= MAX_PARTS


def joined(ours: str, places: dict[int, Any], layout: Layout, join: Join) -> Any:
    """One of our tensors, from its parts. Raises ArgumentError."""
    kind, number = with_N(ours)
    names = [name for name, part in layout.parts.items() if part.ours == kind]
    for place, name in enumerate(names):
        if place not in places:
            raise ArgumentError(f"{name.replace('N', number)} is missing, a part of {ours}")
        if places[place].shape[:-1] != places[0].shape[:-1]:
            raise ArgumentError(
                f"{name.replace('N', number)} of shape {short_repr(places[place].shape)} does not "
                f"fit the other parts of {ours}"
            )
    parts = [places[place] for place in range(len(names))]
    if len(parts) == 1:
        return parts[0]
    return join(parts, -1)  # the columns of one after those of another


def absent_biases(layout: Layout, tensors: Mapping[str, HasShape]) -> dict[str, tuple[int, ...]]:
    """The biases that a model was made without, and their shapes: they are 0.

    It has no bias at all, or lacks those of a module that may be without one in this layout. No
    other bias that is missing is returned. tensors: by our names.
    """
    absent = {}
    present = set()  # the modules, with N, that have a bias in some layer
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".")
        if kind == "bias":
            present.add(with_N(name)[0])
        elif kind == "weight" and module.startswith(("h.", "ln_f")):
            bias = f"{module}.bias"
            if bias not in tensors:
                absent[bias] = tensor.shape[-1:]  # a number for each column of the weight
    if not present:
        return absent
    allowed = {f"{module}.bias" for module in layout.no_bias} - present
    return {name: shape for name, shape in absent.items() if with_N(name)[0] in allowed}
