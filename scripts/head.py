"""Is the head of a language model a table of bigrams? The experiment in one file, for any model.

    python scripts/head.py weights/shakespeare-untied tinyshakespeare.txt
    python scripts/head.py folder-of-SmolLM2-135M text.txt --inputs 500

Without its layers, a language model predicts the next token from one token: logits = norm(W_E) W_U,
with the model's own embedding, final norm and output matrix. Here this path is compared with the
bigrams of a text: what follows each of its frequent tokens. scripts/head.md says what was found.

A folder holds config.json, model.safetensors (or its parts, with their index), and tokenizer.json,
which needs `pip install tokenizers`. A GPT-2 may have vocab.json and merges.txt in its place. The
file reads from top to bottom: the files, the path from token to token, the text, what is measured,
the columns, the report. Read scripts/tied.py first, which has the parts of GPT-2.

Shapes: V tokens of vocabulary, D numbers for each of them, S tokens that occur in the text, n
inputs: the frequent tokens of the text, from which the next token is predicted.
"""

import argparse
import json
import math
import signal
import sys
from functools import cache
from pathlib import Path

import numpy as np
from tied import BYTE_CHARACTERS, WORDS, check_vocabulary, encode_word, read_json, read_merges

# ---- The files ----

# The kinds of models (model_type in config.json) whose path from embedding to logits is known to be
# final_logits below. tests/scripts/test_head.py compares each with transformers' model without
# layers.
LLAMA_LIKE = [
    *["llama", "mistral", "ministral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"],
    *["smollm3", "olmo2", "olmo3", "olmoe", "phi3", "gpt_oss", "deepseek_v2", "deepseek_v3"],
    *["glm4_moe", "exaone4", "seed_oss", "arcee", "apertus"],
]
GEMMA = ["gemma", "gemma2", "gemma3_text"]
GPT2 = ["gpt2", "gpt_neo"]
PYTHIA = ["gpt_neox"]
KINDS = [*LLAMA_LIKE, *GEMMA, *GPT2, *PYTHIA]
# If config.json does not say. This line is written by measure_kinds.py.
TIED_BY_DEFAULT = ["gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neo", "smollm3"]

# The names in a file, without "transformer.", which only some files have
EMBEDDINGS = ["model.embed_tokens.weight", "wte.weight", "gpt_neox.embed_in.weight"]
NORMS = ["model.norm.weight", "ln_f.weight", "gpt_neox.final_layer_norm.weight"]
BIASES = ["ln_f.bias", "gpt_neox.final_layer_norm.bias"]
HEADS = ["lm_head.weight", "embed_out.weight"]


def read_header(path):  # -> {name: (dtype, shape, where its bytes begin, how many they are)}
    """The file is the length of a JSON header, the header, and the bytes of all arrays."""
    places = {}
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > 100_000_000:  # the format's limit: another file begins with other bytes
            raise ValueError(f"{path} is not a safetensors file")
        header = json.loads(file.read(length))
    if type(header) is not dict:
        raise ValueError(f"{path} is not a safetensors file")
    header.pop("__metadata__", None)
    for name, array in header.items():
        match array:  # the offsets count from the end of the header
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]}:
                places[name] = (dtype, shape, 8 + length + begin, end - begin)
            case _:
                raise ValueError(f"{path} does not say where {name} is")
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"{path}: {name} has the shape {shape}")
        if 8 + length + end > path.stat().st_size:
            raise ValueError(f"{path} ends before {name}: it is not complete")
    return places


STORED_AS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # NumPy has no BF16


def open_arrays(folder):  # -> {name: array}; the numbers stay on the disk until they are used
    """The arrays of model.safetensors, or of the parts that its index names."""
    paths = [folder / "model.safetensors"]
    index = folder / "model.safetensors.index.json"
    if not paths[0].exists() and index.exists():
        match read_json(index):  # {"weight_map": {name: the part with this array}}
            case {"weight_map": {**parts}} if all(type(part) is str for part in parts.values()):
                paths = [folder / part for part in sorted(set(parts.values()))]
            case _:
                raise ValueError(f"{index} does not say which files the model has")
    arrays = {}
    for path in paths:
        for full_name, (dtype, shape, begin, size) in read_header(path).items():
            name = full_name.removeprefix("transformer.")  # which some files have
            if name not in EMBEDDINGS + HEADS + NORMS + BIASES:
                continue
            if dtype not in STORED_AS:
                raise ValueError(f"{path}: {name} is {dtype}; only F32, F16 and BF16 are read")
            numbers = size // np.dtype(STORED_AS[dtype]).itemsize
            array = np.memmap(path, STORED_AS[dtype], mode="r", offset=begin, shape=numbers)
            arrays[name] = array.reshape(shape)
    return arrays


def as_float32(array):
    """BF16 is the first half of a float32. The second half is filled with zeros."""
    if array.dtype == np.uint16:
        bits = array.astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    return array.astype(np.float32)


def first_of(names, arrays):  # -> the array that has one of these names, or None
    for name in names:
        if name in arrays:
            return arrays[name]
    return None


def are_equal(x, y):  # [V, D], [V, D] -> bool
    if x.shape != y.shape:
        return False
    for start in range(0, len(x), 4096):  # some rows at a time, because both may be large
        rows = slice(start, start + 4096)
        if not np.array_equal(as_float32(x[rows]), as_float32(y[rows])):
            return False
    return True


def open_model(folder):  # -> {"config", "W_E" [V, D], "W_U" [V, D], "norm", "tie"}
    """W_U is transposed, as it is in the file. "tie" says what flag, file and matrices say."""
    config = read_json(folder / "config.json")
    if type(config) is not dict:
        raise ValueError("config.json is not an object")
    kind = config.get("model_type")
    if kind not in KINDS:
        raise ValueError(
            f"config.json: the path of model_type {kind!r} is not known; known: {', '.join(KINDS)}"
        )
    if config.get("quantization_config") is not None:
        raise ValueError("config.json has a quantization_config; only F32, F16, BF16 are read")
    arrays = open_arrays(folder)
    W_E = first_of(EMBEDDINGS, arrays)
    norm = {"weight": first_of(NORMS, arrays)}
    if kind in GPT2 + PYTHIA:  # the others have RMSNorm, which has no bias
        norm["bias"] = first_of(BIASES, arrays)
    if W_E is None or any(array is None for array in norm.values()):
        raise ValueError(f"{folder} lacks one of {EMBEDDINGS}, {NORMS} or {BIASES}")

    D = W_E.shape[-1]
    if W_E.ndim != 2 or any(array.shape != (D,) for array in norm.values()):
        raise ValueError(f"{folder}: W_E {W_E.shape} and the norm do not fit together")
    tie, W_U = read_tie(config, W_E, first_of(HEADS, arrays))
    return {"config": config, "W_E": W_E, "W_U": W_U, "norm": norm, "tie": tie}


def read_tie(config, W_E, W_U):  # -> what flag, file and matrices say, and the W_U that is used
    says_tied = config.get("tie_word_embeddings")
    if says_tied is not None and type(says_tied) is not bool:
        raise ValueError(f"config.json: tie_word_embeddings is {says_tied!r}")
    flag = "not there"
    if says_tied is not None:
        flag = "tied" if says_tied else "untied"
    if W_U is None:
        is_tied_by_default = config["model_type"] in TIED_BY_DEFAULT
        if says_tied is False or (says_tied is None and not is_tied_by_default):
            raise ValueError("config.json says untied, but the file has no output matrix")
        # The same array: W_U is transposed here.
        return {"flag": flag, "file": "one matrix", "matrices": "W_U is W_E^T"}, W_E
    if W_U.ndim != 2 or W_U.shape[1] != W_E.shape[1]:
        raise ValueError(f"W_E {W_E.shape} and W_U^T {W_U.shape} do not fit together")
    matrices = "W_U is not W_E^T"
    if are_equal(W_E, W_U):
        matrices = "W_U is a copy of W_E^T"
    return {"flag": flag, "file": "two matrices", "matrices": matrices}, W_U


# ---- The path from a token to logits ----


def layer_norm(x, weight, bias, eps):  # [n, D] -> [n, D]
    mean = x.mean(axis=-1, keepdims=True)
    variance = x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * weight + bias


def rms_norm(x, weight, eps):  # [n, D] -> [n, D]
    mean_square = (x * x).mean(axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + eps) * weight


def final_norm(x, config, norm):  # [n, D], rows of W_E -> [n, D]
    kind = config["model_type"]
    if kind in GPT2:  # its position embedding is left out: what does a token say at any position?
        return layer_norm(x, **norm, eps=setting(config, "layer_norm_epsilon"))
    if kind in PYTHIA:
        return layer_norm(x, **norm, eps=setting(config, "layer_norm_eps"))
    eps = setting(config, "rms_norm_eps")
    if kind in GEMMA:
        # The embedding is multiplied by sqrt(D), and the file has the gain less 1.
        return rms_norm(math.sqrt(x.shape[1]) * x, 1 + norm["weight"], eps)
    return rms_norm(x, norm["weight"], eps)


def setting(config, name):
    if type(config.get(name)) not in (int, float):
        raise ValueError(f"config.json: {name} must be a number, got {config.get(name)!r}")
    return config[name]


def cap_of(config):  # -> the number that no logit exceeds, or None
    if config["model_type"] == "gemma2":
        return setting(config, "final_logit_softcapping")
    if config["model_type"] == "gemma3_text":
        return config.get("final_logit_softcapping")
    return None


def final_logits(model, tokens, W_U):  # [n], float32 [V, D] -> [n, V]
    """What each token alone predicts, before a cap, which does not change the order of a row."""
    x = as_float32(model["W_E"][tokens]).astype(np.float64)
    norm = {name: as_float32(array).astype(np.float64) for name, array in model["norm"].items()}
    x = final_norm(x, model["config"], norm)
    logits = x.astype(np.float32) @ W_U.T
    if not np.isfinite(logits).all():
        raise ValueError("the logits are not finite: the weights are damaged")
    return logits


def cap(logits, config):  # [n, V] -> [n, V]
    number = cap_of(config)
    if number is None:
        return logits
    return number * np.tanh(logits / number)


# ---- The text ----

MIN_COUNT = 100  # a token that occurs less often has too few successors
BLOCK = 1_000  # tokens: blocks 0, 2, 4, ... make a table, and blocks 1, 3, 5, ... test it


def read_tokens(folder, kind, text):  # -> ids [N], and a function from an id to its text
    if (folder / "tokenizer.json").exists():
        return read_with_tokenizers(folder / "tokenizer.json", text)
    if kind in GPT2:
        return read_as_gpt2(folder, text)
    raise ValueError(f"{folder} has no tokenizer.json")


def read_with_tokenizers(path, text):
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ValueError(f"{path} needs the library: pip install tokenizers") from error
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more special
        raise ValueError(f"{path}: {error}") from error

    def text_of(i):
        token = tokenizer.id_to_token(i) or ""
        if "▁" in token:  # some vocabularies write it for a space
            return token.replace("▁", " ")
        return tokenizer.decode([i], skip_special_tokens=False)

    return np.array(tokenizer.encode(text, add_special_tokens=False).ids, int), text_of


def read_as_gpt2(folder, text):
    vocabulary = read_json(folder / "vocab.json")
    merges = read_merges(folder / "merges.txt")
    check_vocabulary(vocabulary, len(vocabulary))
    if "<|endoftext|>" in text:
        raise ValueError("the text has the special token <|endoftext|>, which is not read")
    ids_of_word = {}  # a word that occurs again is not cut into tokens again
    ids = []
    for word in WORDS.findall(text):
        if word not in ids_of_word:
            ids_of_word[word] = [vocabulary[token] for token in encode_word(word, merges)]
        ids += ids_of_word[word]
    tokens = {token_id: token for token, token_id in vocabulary.items()}
    byte_of = {character: byte for byte, character in BYTE_CHARACTERS.items()}

    def text_of(i):
        return bytes(byte_of[character] for character in tokens[i]).decode(errors="replace")

    return np.array(ids, int), text_of


def count_successors(first, second, inputs, S):  # -> for each input: what follows it, how often
    """first and second are the pairs of neighbours. What follows an input is sorted by its id."""
    pairs, counts = np.unique(first * S + second, return_counts=True)
    rows = []
    for token in inputs:
        start, end = np.searchsorted(pairs, [token * S, (token + 1) * S])
        rows.append((pairs[start:end] - token * S, counts[start:end]))
    return rows


def count_text(ids, max_inputs):
    """The counts of a text. From here on a token is its place among the S tokens of the text."""
    tokens, places, counts = np.unique(ids, return_inverse=True, return_counts=True)
    S = len(tokens)
    by_count = np.argsort(-counts, kind="stable")[:max_inputs]  # the most frequent first
    inputs = by_count[counts[by_count] >= MIN_COUNT]
    is_odd = np.arange(len(ids) - 1) // BLOCK % 2 == 1  # of each pair: is it in an odd block
    first = places[:-1]
    second = places[1:]
    odd = count_successors(first[is_odd], second[is_odd], inputs, S)
    # An input that no odd block has is left out: the table of the even blocks is tested there.
    is_kept = np.array([len(successors) > 0 for successors, _ in odd], bool)
    if is_kept.sum() < 10:
        raise ValueError(f"fewer than ten tokens of the text occur {MIN_COUNT} times")
    inputs = inputs[is_kept]
    return {
        "ids": tokens,  # [S], in the model's vocabulary
        "counts": counts,  # [S]
        "inputs": inputs,  # [n]
        "rows": count_successors(first, second, inputs, S),
        "even": count_successors(first[~is_odd], second[~is_odd], inputs, S),
        "odd": count_successors(first[is_odd], second[is_odd], inputs, S),
    }


# ---- What is measured ----


def top_ten(scores):  # [V] -> the ten highest, highest first; of equal scores, the lower id first
    k = min(10, len(scores))
    tenth = np.partition(scores, -k)[-k]
    candidates = np.flatnonzero(scores >= tenth)
    order = np.argsort(-scores[candidates], kind="stable")
    return candidates[order][:k]


def entropies(logits):  # [n, V] -> [n], in nats: 0 for a row that is sure of one token
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    powers = np.exp(logits)
    sums = powers.sum(axis=1)
    return np.log(sums) - (powers * logits).sum(axis=1) / sums


def row_entropy(counts):
    shares = counts / counts.sum()
    return -(shares * np.log(shares)).sum()


def ranks(x):  # [n] -> [n]; equal numbers have the mean of their ranks
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def rank_correlation(x, y):  # [n], [n] -> a number from -1 to 1, or nan if all x or y are equal
    if x.min() == x.max() or y.min() == y.max():
        return math.nan
    return np.corrcoef(ranks(x), ranks(y))[0, 1]


def row_blocks(n, width):  # -> slices of rows, with at most 4 million numbers in each
    step = max(1, 2**22 // width)
    return [slice(start, start + step) for start in range(0, n, step)]


def cross_entropies(weights, scores, log_counts, by_text):
    """How many nats softmax(a scores + b log_counts) needs for what follows each input.

    weights are a and b. scores [n, S], log_counts [S], by_text [n, 2]: the mean of a row's scores
    and of log_counts over what follows in the text. Returns the nats [n], and the first and the
    second derivatives of their mean, by a and b.

    The first derivative is a difference of means: those by the softmax minus those by the text. The
    second is the covariance of scores and log_counts by the softmax.
    """
    n, S = scores.shape
    nats = np.empty(n)
    gradient = np.zeros(2)
    curvature = np.zeros((2, 2))
    for rows in row_blocks(n, S):
        x = scores[rows].astype(np.float64)
        logits = weights[0] * x + weights[1] * log_counts
        highest = logits.max(axis=1, keepdims=True)
        p = np.exp(logits - highest)  # at most 1, so nothing overflows
        sums = p.sum(axis=1, keepdims=True)
        p /= sums
        nats[rows] = (highest + np.log(sums))[:, 0] - by_text[rows] @ weights
        px = p * x
        by_softmax = np.stack([px.sum(axis=1), p @ log_counts], axis=1)
        gradient += (by_softmax - by_text[rows]).sum(axis=0)
        xx = (px * x).sum()
        xc = (px @ log_counts).sum()
        cc = (p @ log_counts**2).sum()
        curvature += np.array([[xx, xc], [xc, cc]]) - by_softmax.T @ by_softmax
    return nats, gradient / n, curvature / n


def newton_step(gradient, curvature):  # [2], [2, 2] -> [2]
    # Where the scores say nothing, or what the counts say, one direction has no curvature but that
    # of rounding. lstsq takes no step there.
    return np.linalg.lstsq(curvature, -gradient, rcond=1e-12)[0]


def fit(scores, log_counts, by_text):  # -> the weights a and b with the fewest nats
    """Newton's method. The nats are convex in a and b, so they have one minimum; a may be < 0."""
    weights = np.array([0.0, 1.0])  # begin with the token counts alone
    nats, gradient, curvature = cross_entropies(weights, scores, log_counts, by_text)
    step = newton_step(gradient, curvature)
    for _ in range(100):
        if -gradient @ step < 1e-10:  # what is still to be gained, in nats
            break
        there = cross_entropies(weights + step, scores, log_counts, by_text)
        nats_there, _, _ = there
        if nats_there.mean() > nats.mean():
            step = step / 2  # it went too far
            continue
        weights = weights + step
        nats, gradient, curvature = there
        step = newton_step(gradient, curvature)
    return weights


def nats_of(scores, log_counts, rows):  # -> [n / 2]
    """The nats of every second input, with the weights that are best for the other inputs."""
    by_text = np.empty((len(rows), 2))
    for i, (successors, counts) in enumerate(rows):
        shares = counts / counts.sum()
        by_text[i] = shares @ scores[i, successors], shares @ log_counts[successors]
    weights = fit(scores[::2], log_counts, by_text[::2])
    nats, _, _ = cross_entropies(weights, scores[1::2], log_counts, by_text[1::2])
    return nats


# ---- The columns: the head, another token's row of it, token counts, a table of the text ----
# A column has, for each input, its ten likeliest tokens (ids in V), its entropy, and its scores of
# the S tokens of the text.

PRIOR = 10  # pairs that are added to each row of the table, in proportion to the token counts


def head_column(model, text):
    inputs = text["ids"][text["inputs"]]
    W_U = as_float32(model["W_U"])
    likeliest = []
    entropy = []
    scores = np.empty((len(inputs), len(text["ids"])), np.float32)
    for rows in row_blocks(len(inputs), len(W_U)):
        logits = final_logits(model, inputs[rows], W_U)
        likeliest += [top_ten(row) for row in logits]  # a cap keeps the order
        logits = cap(logits, model["config"])
        entropy.append(entropies(logits))
        scores[rows] = logits[:, text["ids"]]
    return {"likeliest": likeliest, "entropy": np.concatenate(entropy), "scores": scores}


def other_rows(column):
    """Each input gets the row of another input: what is right here is right by chance."""
    n = len(column["likeliest"])
    other = np.roll(np.arange(n), n // 2)
    return {
        "likeliest": [column["likeliest"][i] for i in other],
        "entropy": column["entropy"][other],
        "scores": column["scores"][other],
    }


def counts_column(text):
    """The same after each input: the counts of all tokens."""
    n = len(text["inputs"])
    S = len(text["ids"])
    return {
        "likeliest": [text["ids"][top_ten(text["counts"])]] * n,
        "entropy": np.full(n, row_entropy(text["counts"])),
        "scores": np.broadcast_to(np.float32(0), (n, S)),  # nothing but the counts
    }


def table_column(text):
    """The bigrams of the even blocks of the text, which predict the odd blocks."""
    shares = text["counts"] / text["counts"].sum()
    likeliest = []
    entropy = []
    scores = np.empty((len(text["inputs"]), len(shares)), np.float32)
    for i, (successors, counts) in enumerate(text["even"]):
        row = PRIOR * shares
        row[successors] += counts
        likeliest.append(text["ids"][top_ten(row)])
        entropy.append(row_entropy(row))
        scores[i] = np.log(row)
    return {"likeliest": likeliest, "entropy": np.array(entropy), "scores": scores}


def commonest_ten(text, rows):  # -> for each input, the ids of what follows it most often
    return [text["ids"][successors[top_ten(counts)]] for successors, counts in rows]


def measure(column, text, rows, text_of):
    """The numbers of a column, compared with `rows`: what follows each input, and how often."""
    inputs = text["ids"][text["inputs"]]
    overlaps = []
    spellings = []
    absent = []
    in_text = set(text["ids"].tolist())
    for token, likeliest, ten in zip(
        inputs, column["likeliest"], commonest_ten(text, rows), strict=True
    ):
        # Fewer than ten tokens may follow an input. Then as many of the likeliest are compared.
        overlaps.append(np.isin(likeliest[: len(ten)], ten).mean())
        word = text_of(token).strip().casefold()
        for other in likeliest[likeliest != token]:
            is_spelling = text_of(other).strip().casefold() == word  # " The" for " the"
            spellings.append(is_spelling)
            absent.append(int(other) not in in_text)

    log_counts = np.log(text["counts"])
    nats_by_counts = nats_of(counts_column(text)["scores"], log_counts, rows)
    gains = nats_by_counts - nats_of(column["scores"], log_counts, rows)
    likeliest_of_all = np.array([likeliest[0] for likeliest in column["likeliest"]])
    text_entropy = np.array([row_entropy(counts) for _, counts in rows])
    return {
        "overlap": np.mean(overlaps),
        "gain": gains.mean(),
        "error": gains.std(ddof=1) / math.sqrt(len(gains)),
        "itself": (likeliest_of_all == inputs).mean(),
        "spellings": np.mean(spellings),
        "absent": np.mean(absent),
        "entropy": rank_correlation(column["entropy"], text_entropy),
    }


def study(model, text, text_of):  # -> {column: its numbers}, the head's ten likeliest tokens
    highest = text["ids"].max()
    if highest >= min(len(model["W_E"]), len(model["W_U"])):
        raise ValueError(f"the tokenizer gives id {highest}, for which W_E or W_U has no row")
    head = head_column(model, text)
    numbers = {
        "head": measure(head, text, text["rows"], text_of),
        "another": measure(other_rows(head), text, text["rows"], text_of),
        "counts": measure(counts_column(text), text, text["rows"], text_of),
        # The table has the bigrams of the even blocks, so it is measured on the odd ones.
        "table": measure(table_column(text), text, text["odd"], text_of),
    }
    return numbers, head["likeliest"]


# ---- The report ----


def with_error(number, error):  # -> both with two digits of the error, "+1.312 +- 0.061"
    decimals = 3
    if error > 0:
        decimals = max(0, 1 - math.floor(math.log10(error)))
    return f"{number:+.{decimals}f} +- {error:.{decimals}f}"


def print_numbers(numbers):
    head, another, counts, table = numbers.values()
    print(
        f"Of the ten likeliest next tokens, {head['overlap']:.1%} are among the text's ten\n"
        f"  (another token's list {another['overlap']:.1%}, token counts {counts['overlap']:.1%}, "
        f"a table of the text {table['overlap']:.1%}).\n"
        "Nats nearer to the bigrams than weighted token counts: "
        f"{with_error(head['gain'], head['error'])}\n"
        f"  (another token's row {with_error(another['gain'], another['error'])}, "
        f"a table of the text {table['gain']:+.2f}).\n"
    )
    print(f"{'':<40}{'head':>10}{'another':>10}{'counts':>10}{'table':>10}")
    print_row("The likeliest next token is itself", "itself", numbers, "{:.1%}")
    print_row("Of the ten, without itself: spellings", "spellings", numbers, "{:.1%}")
    print_row("  and tokens that are not in the text", "absent", numbers, "{:.1%}")
    print_row("Sharp and flat as the text (rank corr.)", "entropy", numbers, "{:.2f}")


def print_row(label, field, numbers, form):
    cells = []
    for column in numbers.values():
        number = column[field]
        cells.append("-" if math.isnan(number) else form.format(number))
    print(f"{label:<40}" + "".join(f"{cell:>10}" for cell in cells))


def print_examples(text, likeliest, text_of):
    """Three words: a frequent one, one in the middle, a rarer one."""
    inputs = text["ids"][text["inputs"]]
    words = []  # the place of each input that is a word, in the order of frequency
    for i, token in enumerate(inputs):
        word = text_of(token)
        if word[:1] == " " and word[1:].isalpha() and len(word) > 4:
            words.append(i)
    if not words:
        return
    tens = commonest_ten(text, text["rows"])
    for quarter in (1, 2, 3):
        i = words[len(words) * quarter // 4]
        print(f"\nAfter {json.dumps(text_of(inputs[i]), ensure_ascii=False)}")
        for label, tokens in (("text", tens[i]), ("head", likeliest[i])):
            line = f"  {label}"
            for token in tokens:
                shown = json.dumps(text_of(token), ensure_ascii=False)
                if len(line) + 2 + len(shown) <= 80:  # the columns of a terminal
                    line += f"  {shown}"
            print(line)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the folder of the model")
    parser.add_argument("text", type=Path, help="a text in UTF-8, best of a megabyte or more")
    parser.add_argument(
        "--inputs", type=int, default=2000, help="at most so many frequent tokens (default: 2000)"
    )
    args = parser.parse_args()
    try:
        if args.inputs < 10:
            raise ValueError("--inputs must be at least 10")
        model = open_model(args.folder)
        written = args.text.read_text(encoding="utf-8")
        ids, decode = read_tokens(args.folder, model["config"]["model_type"], written)
        text_of = cache(decode)  # the same tokens are shown again and again
        text = count_text(ids, args.inputs)
        print(
            "Tied? The flag: {flag}. The file: {file}. So {matrices}.".format(**model["tie"])
            + f"\n{len(text['inputs']):,} of the text's {len(text['ids']):,} tokens are inputs: "
            f"they occur {MIN_COUNT} times or more.\n",
            flush=True,
        )
        numbers, likeliest = study(model, text, text_of)
    except (OSError, ValueError, RecursionError) as error:  # Recursion: JSON of many brackets
        print(f"head.py: error: {error}", file=sys.stderr)
        sys.exit(2)
    print_numbers(numbers)
    print_examples(text, likeliest, text_of)


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # not on Windows
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # after `| head -1`, end without an error
    main()
