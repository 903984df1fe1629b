"""Is a language model of any kind tied? What config.json says, what the files hold, who reads what.

The two matrices are found by the ends of their names, and must have the shape [V, D] that
config.json gives. What is not clear is None in the report: nothing is guessed.
"""

import re
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from ..checkpoints.safetensors import FLOATS, Tensor
from ..errors import CheckpointError, short_repr
from .counting import count_like_llama, count_stored, matrix_shape, text_config
from .headers import AnyModel

Report = dict[str, Any]

FLAG = "tie_word_embeddings"
# The last parts of the names of modules: transformer.wte is an embedding, lm_head is a head.
EMBEDDINGS = (
    "embed_tokens",
    "wte",
    "word_embeddings",
    "embed_in",
    "tok_embeddings",
    "tokens_embed",
    "embeddings",
)
HEADS = ("lm_head", "embed_out", "output", "decoder", "output_projection", "proj_out", "head")
IN_A_LAYER = re.compile(r"(^|\.)(h|layers?|blocks?)\.\d+\.")
# Tables of something else than tokens, or for the layers: never one of the two matrices.
OTHER_TABLE = re.compile(r"wpe|position|pos_emb|token_type|per_layer")

# The modules of both matrices in the files of a kind (measured with transformers 5.24). A tensor of
# another name is not read: one of a wrapped model, say, or one of another program.
LLAMAS_NAMES = ("model.embed_tokens", "lm_head")  # those of most kinds
OTHER_NAMES = {
    **dict.fromkeys(
        ("gpt2", "gpt_neo", "gptj", "mpt", "codegen", "gpt_bigcode", "exaone"),
        ("transformer.wte", "lm_head"),
    ),
    **dict.fromkeys(("bloom", "falcon"), ("transformer.word_embeddings", "lm_head")),
    **dict.fromkeys(
        ("mamba", "mamba2", "falcon_mamba", "nemotron_h", "xlstm"),
        ("backbone.embeddings", "lm_head"),
    ),
    "gpt_neox": ("gpt_neox.embed_in", "embed_out"),
    "opt": ("model.decoder.embed_tokens", "lm_head"),
    "bert": ("bert.embeddings.word_embeddings", "cls.predictions.decoder"),
    **dict.fromkeys(
        ("roberta", "xlm-roberta", "camembert"),
        ("roberta.embeddings.word_embeddings", "lm_head.decoder"),
    ),
    "openai-gpt": ("transformer.tokens_embed", "lm_head"),
    "rwkv": ("rwkv.embeddings", "head"),
}
NAMES_WITH_TEXT_CONFIG = (  # models of texts and images have one of these
    LLAMAS_NAMES,
    ("model.language_model.embed_tokens", "lm_head"),
    ("model.text_model.embed_tokens", "lm_head"),
    ("language_model.model.embed_tokens", "language_model.lm_head"),
)
# The ends of the names of transformers' classes that have no head, or one that predicts no tokens.
NO_HEAD = re.compile(r"((?<!LMHead)(?<!DoubleHeads)Model|Classification|QuestionAnswering)$")
# The parts of a module whose weight is quantised, by GPTQ and AWQ, MLX, compressed-tensors, FP8
QUANTISED = ("qweight", "scales", "biases", "weight_packed", "weight_scale", "weight_scale_inv")

# What transformers 5 takes if config.json has no flag, for some kinds (measured with 5.24).
TIED_BY_DEFAULT = (
    *("gpt2", "gpt_neo", "opt", "bloom", "falcon", "mpt", "gemma", "gemma2", "gemma3"),
    *("gemma3_text", "gemma4", "gemma4_text", "cohere", "cohere2", "smollm3", "starcoder2"),
    *("mamba", "bert", "roberta"),
)
UNTIED_BY_DEFAULT = (
    *("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gpt_neox", "gptj", "phi"),
    *("phi3", "olmo", "olmo2", "gpt_oss", "deepseek_v3", "nanochat"),
)
# Kinds that transformers 5 never ties, whatever config.json says (measured with 5.24).
NEVER_TIED = (
    *("bailing_hybrid", "bigbird_pegasus", "cpmant", "inkling_text", "inkling2_text"),
    *("inkling2_loop_text", "kimi_linear", "mllama_text_model", "moshi", "nemotron_h"),
    *("rembert", "xlstm"),
)
# Kinds with more than one embedding, of which a file may have one: what it holds is not clear.
MORE_EMBEDDINGS = ("prophetnet",)

# The kinds that were made small, saved in each state and loaded again with transformers 5.24, as
# causal language models. How another kind is read is not known.
MEASURED = frozenset(
    """
    afmoe apertus apertus1p5_text arcee aria_text axk1 axk2 bailing_hybrid bamba bart beam
    bert bert-generation big_bird bigbird_pegasus biogpt bitnet blenderbot blenderbot-small
    bloom camembert codegen cohere cohere2 cohere2_moe cpmant ctrl cwm data2vec-text
    deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 diffllama doge dory electra emu3 ernie
    ernie4_5 ernie4_5_moe exaone exaone4 exaone_moe falcon falcon_mamba flex_olmo flint fuyu
    gemma gemma2 gemma3 gemma3_text gemma4 gemma4_text gemma4_unified gemma4_unified_assistant
    gemma4_unified_text git glm glm4 glm4_moe glm4_moe_lite glm_moe_dsa got_ocr2 gpt-sw3 gpt2
    gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese gpt_oss gptj granite granite_swa granitemoe
    granitemoe_swa granitemoehybrid granitemoeshared helium hrm_text hunyuan_v1_dense hy_v3
    hy_v4 hyperclovax inkling2_loop_text inkling2_text inkling_text internlm3 iquestcoder
    jais2 jamba jetmoe kimi_linear kolibri1 laguna lara_mini lfm2 lfm3 llama llama4
    llama4_text longcat_flash mamba mamba2 marian mbart megatron-bert mellum mimo_v2_flash
    minicpm3 minimax minimax_m2 minimax_m3_vl_text ministral3 mistral mixtral mllama
    modernbert-decoder moshi moss_transcribe_diarize mpt mvp nanochat nemotron nemotron_h olmo
    olmo2 olmo3 olmoe openai-gpt opt pegasus persimmon phi phi3 phi4_multimodal phimoe plbart
    prophetnet qwen2 qwen2_moe qwen3 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text
    qwen3_moe qwen3_next qwen4_exp qwen4_exp_text recurrent_gemma rembert roberta
    roberta-prelayernorm roc_bert roformer rwkv sarvam_mla sarvam_moe seed_oss smollm3
    solar_open stablelm starcoder2 trocr vaultgemma whisper xglm xlm xlm-roberta
    xlm-roberta-xl xlnet xlstm xmod youtu zamba2
    """.split()  # noqa: SIM905 (a list of names is longer)
)


class Reading(NamedTuple):
    """What programs make of a flag and of what the files hold."""

    transformers: str | None  # version 5; None if it is not known
    others: str | None  # most other programs, which trust the flag
    conflict: str = ""  # "" if there is none
    mend: str = ""


UNKNOWN = Reading(None, None)
SAY_TIED = f'write "{FLAG}": true into config.json, unless the other matrix was lost'
SAY_UNTIED = (
    f'if this head was trained, write "{FLAG}": false into config.json;\n'
    "if it is an old copy, remove it from the files"
)
SAVE_AGAIN = (
    'model = transformers.AutoModelForCausalLM.from_pretrained("DIRECTORY")\n'
    'model.save_pretrained("NEW_DIRECTORY")'
)
# (is it tied by the flag, what the files hold) -> how that is read
READINGS: dict[tuple[bool | None, str | None], Reading] = {
    (True, "embedding"): Reading("tied", "tied"),
    (True, "head"): Reading(
        "tied",
        "error",
        "the only matrix has the name of the head, and most programs look for the embedding",
        SAVE_AGAIN,
    ),
    (True, "equal"): Reading("tied", "tied"),
    (True, "different"): Reading(
        "untied",
        "tied",
        "config.json says tied, and the files have another head, which most programs drop",
        SAY_UNTIED,
    ),
    (True, "not comparable"): Reading(None, "tied"),
    (False, "embedding"): Reading(
        "random head", "error", "config.json says untied, and the files have no head", SAY_TIED
    ),
    (False, "head"): Reading(
        "random embedding",
        "error",
        "config.json says untied, and the files have no embedding",
        SAY_TIED,
    ),
    (False, "equal"): Reading("untied", "untied"),
    (False, "different"): Reading("untied", "untied"),
    (False, "not comparable"): Reading("untied", "untied"),
    (None, "different"): Reading("untied", None),
}


def tie_report(name: str, model: AnyModel) -> Report:
    """What `check` says of a model. A value is None if it is not known.

    "flag" is what config.json says, "holds" what the files have: "embedding" or "head" if they have
    one of the matrices, "equal", "different" or "not comparable" if they have both. "equal_rows" of
    "compared_rows" are the same in both. "transformers" and "others" are "tied", "untied",
    "random head", "random embedding" or "error"; they are not known for matrices without "usual"
    names. Raises CheckpointError.
    """
    flag = read_flag(model.config)
    tensors = model.read_tensors()
    matrices = find_matrices(model.config, tensors)
    holds, equal_rows, compared_rows = what_is_held(model, matrices)
    is_usual = have_usual_names(model.config, matrices.stored)
    reading = read(flag, holds if is_usual else None)
    embedding, head = matrices.embedding, matrices.head
    if embedding is not None and embedding.dtype not in FLOATS:
        # It is quantised, by MLX, for example. Whether transformers can read it is not known.
        reading = reading._replace(transformers=None)
    return {
        "model": name,
        "flag": flag,
        "embedding": tensor_report(embedding),
        "head": tensor_report(head),
        "usual": is_usual,
        "unclear": matrices.unclear,
        "tensors": len(tensors),
        "holds": holds,
        "equal_rows": equal_rows,
        "compared_rows": compared_rows,
        **reading._asdict(),
        "wasted_bytes": wasted_bytes(embedding, head) if holds == "equal" else 0,
        "parameters": count_stored(tensors, matrices.countable),
    }


def size_report(name: str, model: AnyModel) -> Report:
    """What `params` says of a model that is no GPT-2. "source" is where the counts are from.

    Raises CheckpointError if they are not known.
    """
    tensors = model.read_tensors(required=False)
    matrices = find_matrices(model.config, tensors).countable
    shape: tuple[int, ...] | None = matrix_shape(model.config)
    if tensors:
        source = "the headers of the weights"
        numbers = count_stored(tensors, matrices)
        shape = matrices[0].shape if matrices else None
        reason = "its two matrices are not clear, or it is quantised"
    else:
        source = "config.json"
        numbers = count_like_llama(model.config)
        reason = "there are no weights, and config.json is not of a kind that is counted from it"
    if numbers is None:
        raise CheckpointError(f"{name}: its parameters are not known: {reason}")
    flag = read_flag(model.config)
    return {"model": name, "flag": flag, "shape": shape, "source": source, **numbers}


def read(flag: Report, holds: str | None) -> Reading:
    """How a flag of read_flag, and what the files hold, are read."""
    is_never_tied = flag["kind"] in NEVER_TIED
    # transformers goes by "outer", and other programs by "tied".
    by_transformers = False if is_never_tied else flag["outer"]
    reading = READINGS.get((flag["tied"], holds), UNKNOWN)
    reading = reading._replace(
        transformers=READINGS.get((by_transformers, holds), UNKNOWN).transformers
    )
    if flag["kind"] not in MEASURED:
        reading = reading._replace(transformers=None, mend="")  # a mend was not tried either
    if flag["class_without_head"] is not None and holds == "embedding":
        return reading._replace(conflict="", mend="")  # no program needs a head
    if is_never_tied and holds in ("embedding", "head"):
        # No flag mends this. To load the model and save it would store a random matrix.
        missing = "transformers never ties this kind, and the files lack one of the matrices"
        return reading._replace(conflict=missing, mend="")
    if flag["nested"] is None or flag["outer"] in (None, flag["nested"]):
        return reading
    # Both flags contradict each other.
    outer_value, nested_value = ("true", "false") if flag["outer"] else ("false", "true")
    conflict = (
        f"text_config in config.json says {nested_value}, but the model around it says "
        f"{outer_value}, and programs differ in the one that they go by"
    )
    # Some kinds are tied by either flag, so a flag is not said to be wrong.
    return Reading(reading.transformers, None, conflict, mend="")


# What config.json says


def read_flag(config: dict[str, Any]) -> Report:
    """The "kind" of the model, and whether it is "tied" by config.json.

    "outer" is what transformers goes by: the flag of the whole model, or else the default of the
    kind, None if that is not known. "nested" is the flag in text_config, None if there is none;
    other programs go by that one, too. "place" is where "tied" is said, None for the default.
    "class_without_head" is the class of the model, None for one that has a head. Raises
    CheckpointError for a flag that is neither true nor false.
    """
    kind = config.get("model_type")
    outer = config.get(FLAG)
    nested = text_config(config).get(FLAG)
    for fields in (config, text_config(config)):
        if FLAG in fields and not isinstance(fields[FLAG], bool):
            raise CheckpointError(
                f"config.json: {FLAG} must be true or false, got {short_repr(fields[FLAG])}"
            )
    place = FLAG if outer is not None else None
    if outer is None and kind in TIED_BY_DEFAULT:
        outer = True
    elif outer is None and kind in UNTIED_BY_DEFAULT:
        outer = False
    tied = outer
    if outer is None and nested is not None:
        tied = nested
        place = f"text_config.{FLAG}"
    return {
        "kind": kind if isinstance(kind, str) else None,
        "tied": tied,
        "place": place,
        "outer": outer,
        "nested": nested,
        "class_without_head": class_without_head(config),
    }


def class_without_head(config: dict[str, Any]) -> str | None:
    """The class that config.json names, if it has no head that predicts tokens.

    >>> class_without_head({"architectures": ["MistralModel"]})
    'MistralModel'
    >>> class_without_head({"architectures": ["GPT2LMHeadModel"]})
    """
    match config.get("architectures"):
        case [str(name), *_] if NO_HEAD.search(name):
            return name
    return None


# What the files hold


@dataclass
class Matrices:
    """The two matrices of a model as they are stored. None: not there, or not clear."""

    embedding: Tensor | None
    head: Tensor | None
    has_quantised: bool  # whether one of them is
    # The names of tensors that may be a matrix that is None. If there are some, what is stored is
    # not known.
    unclear: list[str]

    @property
    def countable(self) -> list[Tensor]:
        """`stored`, if its shapes are those of the numbers in it."""
        return [] if self.has_quantised else self.stored

    @property
    def stored(self) -> list[Tensor]:
        """The matrices that the files have, one or two; none if that is not known."""
        if self.unclear:
            return []
        return [matrix for matrix in (self.embedding, self.head) if matrix is not None]


def have_usual_names(config: dict[str, Any], matrices: list[Tensor]) -> bool:
    """Whether the stored matrices have the names that transformers looks for in this kind.

    Of a kind whose code is in its repository, the names are not known.
    """
    kind = str(config.get("model_type"))
    if "auto_map" in config and kind not in TIED_BY_DEFAULT + UNTIED_BY_DEFAULT:
        return False
    usual = [OTHER_NAMES.get(kind, LLAMAS_NAMES)]
    if "model_type" not in config:
        usual += OTHER_NAMES.values()
    if text_config(config):
        usual += NAMES_WITH_TEXT_CONFIG
    modules = {matrix.name.rpartition(".")[0] for matrix in matrices}
    for embedding, head in usual:
        without_prefix = embedding.partition(".")[2]  # as the model without its head is saved
        if modules <= {embedding, head} or modules <= {without_prefix, head}:
            return True
    return False


def find_matrices(config: dict[str, Any], tensors: dict[str, Tensor]) -> Matrices:
    """The two matrices, by the ends of their names and their shape."""
    shape = matrix_shape(config) or shape_of_embedding(tensors)
    found: dict[str, list[Tensor]] = {"embedding": [], "head": []}
    unclear = []
    has_quantised = False
    for module, parts in modules_outside_layers(tensors).items():
        weight = parts.get("weight") or next(iter(parts.values()))
        is_quantised = weight.dtype not in FLOATS or any(part in QUANTISED for part in parts)
        last_name = module.rpartition(".")[2]
        if last_name in EMBEDDINGS + HEADS and (is_quantised or weight.shape == shape):
            found["embedding" if last_name in EMBEDDINGS else "head"].append(weight)
            has_quantised |= is_quantised
        elif any(could_be_matrix(tensor, shape) for tensor in parts.values()):
            unclear += [tensor.name for tensor in parts.values()]
    for candidates in found.values():
        if len(candidates) > 1 or config.get("model_type") in MORE_EMBEDDINGS:
            unclear += [tensor.name for tensor in candidates]
            candidates.clear()
    embedding, head = (candidates[0] if candidates else None for candidates in found.values())
    if embedding is not None and head is not None:
        unclear = []
    return Matrices(embedding, head, has_quantised, sorted(unclear))


def modules_outside_layers(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """module -> part -> tensor, for all tensors but biases, and those that are never a matrix.

    >>> modules_outside_layers({"transformer.wte.weight": 1, "h.0.ln_1.weight": 2, "wpe.weight": 3})
    {'transformer.wte': {'weight': 1}}
    """
    modules: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if part != "bias" and not IN_A_LAYER.search(name) and not OTHER_TABLE.search(name):
            modules.setdefault(module, {})[part] = tensor
    return modules


def shape_of_embedding(tensors: dict[str, Tensor]) -> tuple[int, ...] | None:
    """The shape of the only embedding of a file without config.json; None without one."""
    names = tuple(f"{name}.weight" for name in EMBEDDINGS)
    shapes = [tensor.shape for name, tensor in tensors.items() if name.endswith(names)]
    if len(shapes) == 1 and len(shapes[0]) == 2 and prod(shapes[0]) > 0:
        return shapes[0]
    return None


def could_be_matrix(tensor: Tensor, shape: tuple[int, ...] | None) -> bool:
    """Whether a tensor could be one of the two matrices: V rows, or width D and more than V rows.

    Either may be transposed.
    """
    if shape is None or len(tensor.shape) != 2:
        return False
    V, D = shape
    return V in tensor.shape or (D in tensor.shape and max(tensor.shape) > V)


def what_is_held(model: AnyModel, matrices: Matrices) -> tuple[str | None, int | None, int | None]:
    """The "holds", "equal_rows" and "compared_rows" of tie_report."""
    stored = matrices.stored
    if len(stored) == 2 and matrices.has_quantised:
        return "not comparable", None, None
    if len(stored) == 2:
        equal, compared = model.equal_rows(*stored)
        return ("equal" if equal == compared else "different"), equal, compared
    if len(stored) == 1:
        return ("head" if matrices.embedding is None else "embedding"), None, None
    return None, None, None


def wasted_bytes(embedding: Tensor | None, head: Tensor | None) -> int:
    """The bytes of an equal copy. A file of PyTorch may have one matrix under two names."""
    if embedding is None or head is None:
        return 0
    if (embedding.file, embedding.start) == (head.file, head.start):
        return 0
    return head.end - head.start


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
