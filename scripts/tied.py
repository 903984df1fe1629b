"""GPT-2 in one file, with one switch: is the output matrix the token embedding?

    python scripts/tied.py weights/shakespeare-tied "ROMEO:"
    python scripts/tied.py weights/shakespeare-untied "ROMEO:" --head tied     # turns the switch
    python scripts/tied.py folder-of-gpt2 "Alan Turing theorized that" --greedy -n 20

A folder holds config.json, model.safetensors, vocab.json and merges.txt, as the repository
openai-community/gpt2 of the Hugging Face Hub does. The file reads from top to bottom: the model,
the weights, the tokenizer, the choice of a token, what is refused, which head is used, the command.

Nothing here is fast: for each new token, the whole text goes through the model again. The package
tiedgpt keeps the keys and values of the text in a cache (tiedgpt/gpt2/run.py).

Shapes: T tokens of text, V tokens of vocabulary, D numbers for each token, H heads of K = D / H
numbers, F numbers inside the MLP.
"""

import argparse
import json
import math
import signal
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import regex

# ---- The model ----


def gelu(x):  # [T, F] -> [T, F]
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def softmax(x):  # [..., n] -> [..., n]: positive numbers, which add up to 1 in each row
    # Without its maximum, a row has the same softmax, and exp cannot overflow.
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def layer_norm(x, weight, bias):  # [T, D] -> [T, D]
    mean = x.mean(axis=-1, keepdims=True)
    variance = x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * weight + bias


def linear(x, weight, bias):  # [T, n], weight [n, m] -> [T, m]
    return x @ weight + bias


def attend(q, k, v):  # each [T, K] -> [T, K]
    T, K = q.shape
    scores = q @ k.T / math.sqrt(K)  # [T, T]: row i compares the query of token i with each key
    is_later = np.triu(np.ones((T, T), dtype=bool), k=1)  # row i: does the key come after token i?
    pattern = softmax(np.where(is_later, -np.inf, scores))
    return pattern @ v  # row i is an average of the values up to token i


def attention(x, c_attn, c_proj, n_head):  # [T, D] -> [T, D]
    q, k, v = np.split(linear(x, **c_attn), 3, axis=-1)  # each [T, D]
    K = q.shape[-1] // n_head
    heads = []
    for h in range(n_head):
        columns = slice(h * K, (h + 1) * K)
        heads.append(attend(q[:, columns], k[:, columns], v[:, columns]))
    return linear(np.concatenate(heads, axis=-1), **c_proj)


def mlp(x, c_fc, c_proj):  # [T, D] -> [T, D]
    hidden = gelu(linear(x, **c_fc))  # [T, F]
    return linear(hidden, **c_proj)


def block(x, weights, n_head):  # [T, D] -> [T, D]
    normed = layer_norm(x, **weights["ln_1"])
    x = x + attention(normed, **weights["attn"], n_head=n_head)
    normed = layer_norm(x, **weights["ln_2"])
    x = x + mlp(normed, **weights["mlp"])
    return x


def gpt2(ids, params, n_head, tied):  # T ids -> [T, V]: row i scores each token as the next after i
    wte = params["wte"]["weight"]  # [V, D], a row for each token
    wpe = params["wpe"]["weight"]  # a row for each position
    x = wte[ids] + wpe[: len(ids)]  # [T, D]
    for weights in params["h"]:
        x = block(x, weights, n_head)
    x = layer_norm(x, **params["ln_f"])
    W_U = wte.T if tied else params["lm_head"]["weight"].T  # [D, V]: the switch
    return x @ W_U


# ---- The weights ----


def read_json(path):  # -> dict
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path} is not a JSON object")
    return data


def read_safetensors(path):  # -> {"h.0.ln_1.weight": array, ...}
    """The file is the length of a JSON header, the header, and the bytes of all arrays."""
    arrays = {}
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if 8 + length > path.stat().st_size:
            raise ValueError(f"{path} is not a safetensors file, or not all of it")
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        for full_name, tensor in header.items():
            name = full_name.removeprefix("transformer.")
            # Older files also hold the causal mask of each layer, which is not a parameter.
            if name.endswith((".attn.bias", ".attn.masked_bias")):
                continue
            if tensor["dtype"] != "F32":
                raise ValueError(f"{path}: {name} is {tensor['dtype']}; only F32 is read")
            begin, end = tensor["data_offsets"]  # counted from the end of the header
            file.seek(8 + length + begin)
            data = file.read(end - begin)
            if len(data) != end - begin:
                raise ValueError(f"{path} ends before the end of {name}")
            array = np.frombuffer(data, "<f4")  # little-endian float32
            arrays[name] = array.reshape(tensor["shape"])
    return arrays


def nest(arrays, n_layer):
    """{"h.0.ln_1.weight": array, ...} -> {"h": [{"ln_1": {"weight": array}, ...}, ...], ...}"""
    params = {}
    for name, array in arrays.items():
        *parts, last = name.split(".")
        # Go down from params by the parts of the name. A dict that is missing is made.
        branch = params
        for part in parts:
            branch = branch.setdefault(part, {})
        branch[last] = array
    params["h"] = [params["h"][str(layer)] for layer in range(n_layer)]
    return params


# ---- The tokenizer ----

# Text is cut into words, each with the space before it. Tokens are parts of words.
WORDS = regex.compile(r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


def byte_characters():  # -> {byte: character}
    """Vocabulary files write a byte as a printable character: its own, or one from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable}
    for number, byte in enumerate(others):
        characters[byte] = chr(256 + number)
    return characters


BYTE_CHARACTERS = byte_characters()  # a space, for example, is "Ġ"


def read_merges(path):  # -> {("Ġ", "t"): 0, ("h", "e"): 1, ...}
    """The pairs of tokens that are joined, each with its place in the order of learning."""
    lines = path.read_text(encoding="utf-8").split("\n")
    if lines[0].startswith("#version"):
        lines = lines[1:]
    merges = {}
    for line in lines:
        if line != "":
            pair = tuple(line.split(" "))
            merges[pair] = len(merges)
    return merges


def encode_word(word, merges):  # -> its tokens, written as in the vocabulary
    """Begin with bytes. Again and again, join the two neighbours whose merge was learned first."""
    tokens = [BYTE_CHARACTERS[byte] for byte in word.encode()]
    while len(tokens) > 1:
        pairs = list(pairwise(tokens))
        ranks = [merges.get(pair, math.inf) for pair in pairs]
        first = ranks.index(min(ranks))
        if pairs[first] not in merges:
            break
        tokens[first : first + 2] = ["".join(pairs[first])]
    return tokens


def encode(text, vocabulary, merges):  # -> ids
    ids = []
    for word in WORDS.findall(text):
        for token in encode_word(word, merges):
            ids.append(vocabulary[token])
    return ids


def decode(ids, vocabulary):  # -> text
    token_of_id = {token_id: token for token, token_id in vocabulary.items()}
    byte_of_character = {character: byte for byte, character in BYTE_CHARACTERS.items()}
    characters = "".join(token_of_id[token_id] for token_id in ids)
    data = bytes(byte_of_character[character] for character in characters)
    return data.decode(errors="replace")  # a token may end inside a character of the text


# ---- The choice of a token ----


def choose_token(logits, greedy, rng):  # [V] -> id
    if not np.isfinite(logits).all():
        raise ValueError("the scores of the next token are not finite: the weights are damaged")
    if greedy:
        return int(logits.argmax())
    probabilities = softmax(logits.astype(np.float64))  # rng.choice needs a sum of almost exactly 1
    return int(rng.choice(len(logits), p=probabilities))


# ---- What is refused ----

# Anything else in config.json would be another model than the one above.
GPT2_SETTINGS = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}


def check_config(config, path):
    for name, value in GPT2_SETTINGS.items():
        if config.get(name, value) != value:
            raise ValueError(f"{path}: {name} is {config[name]!r}; only {value!r} is read")
    for name in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head"):
        if type(config.get(name)) is not int or config[name] < 1:
            raise ValueError(f"{path}: {name} must be a whole number of at least 1")
    if config["n_embd"] % config["n_head"] != 0:
        raise ValueError(f"{path}: n_embd does not divide into n_head equal parts")
    if type(config.get("tie_word_embeddings", True)) is not bool:
        raise ValueError(f"{path}: tie_word_embeddings must be true or false")


def parameter_shapes(config):  # -> {"wte.weight": (V, D), ...}
    """The arrays of a tied GPT-2. An untied one also has lm_head.weight, of the shape of wte."""
    V = config["vocab_size"]
    D = config["n_embd"]
    F = config.get("n_inner") or 4 * D
    shapes = {
        "wte.weight": (V, D),
        "wpe.weight": (config["n_positions"], D),
        "ln_f.weight": (D,),
        "ln_f.bias": (D,),
    }
    for layer in range(config["n_layer"]):
        shapes[f"h.{layer}.ln_1.weight"] = (D,)
        shapes[f"h.{layer}.ln_1.bias"] = (D,)
        shapes[f"h.{layer}.attn.c_attn.weight"] = (D, 3 * D)
        shapes[f"h.{layer}.attn.c_attn.bias"] = (3 * D,)
        shapes[f"h.{layer}.attn.c_proj.weight"] = (D, D)
        shapes[f"h.{layer}.attn.c_proj.bias"] = (D,)
        shapes[f"h.{layer}.ln_2.weight"] = (D,)
        shapes[f"h.{layer}.ln_2.bias"] = (D,)
        shapes[f"h.{layer}.mlp.c_fc.weight"] = (D, F)
        shapes[f"h.{layer}.mlp.c_fc.bias"] = (F,)
        shapes[f"h.{layer}.mlp.c_proj.weight"] = (F, D)
        shapes[f"h.{layer}.mlp.c_proj.bias"] = (D,)
    return shapes


def check_arrays(arrays, config, path):
    """The file must have the arrays that config.json describes, and no others."""
    shapes = parameter_shapes(config)
    if "lm_head.weight" in arrays:
        shapes["lm_head.weight"] = shapes["wte.weight"]
    for name, shape in shapes.items():
        if name not in arrays:
            raise ValueError(f"{path} has no {name}, but config.json describes it")
        if arrays[name].shape != shape:
            raise ValueError(f"{path}: {name} is {arrays[name].shape}, by config.json {shape}")
    for name in arrays:
        if name not in shapes:
            raise ValueError(f"{path} has {name}, which config.json does not describe")


def check_tokenizer(vocabulary, merges, V):
    if set("".join(vocabulary)) != set(BYTE_CHARACTERS.values()):
        raise ValueError("vocab.json does not write bytes as GPT-2's does")
    if len(vocabulary) != V or set(vocabulary.values()) != set(range(V)):
        raise ValueError(f"vocab.json does not have one token for each id from 0 to {V - 1}")
    for pair in merges:
        if len(pair) != 2 or "".join(pair) not in vocabulary:
            raise ValueError(f"merges.txt has {pair}, which does not make a token of vocab.json")


def check_tokenizer_settings(folder):
    path = folder / "tokenizer_config.json"
    if not path.exists():
        return
    settings = read_json(path)
    for name in ("add_prefix_space", "add_bos_token"):
        if settings.get(name):
            raise ValueError(f"{path}: {name} is set, which is not read: it changes the tokens")


def special_tokens(vocabulary, merges, folder):  # -> set of texts
    """The tokens that no merge makes, such as <|endoftext|>, and those that were added later."""
    ordinary = set(BYTE_CHARACTERS.values())
    for left, right in merges:
        ordinary.add(left + right)
    special = vocabulary.keys() - ordinary
    if (folder / "added_tokens.json").exists():
        special.update(read_json(folder / "added_tokens.json"))
    if (folder / "tokenizer.json").exists():
        for token in read_json(folder / "tokenizer.json").get("added_tokens") or []:
            special.add(token["content"])
    return special


def check_prompt(prompt, ids, special, n_positions):
    for token in special:
        if token in prompt:
            raise ValueError(f"the prompt has the special token {token}, which is not read")
    if not 1 <= len(ids) <= n_positions:
        raise ValueError(f"the prompt has {len(ids)} tokens; expected 1 to {n_positions}")


# ---- Which head is used ----


def choose_head(arrays, config, head):  # -> whether the model is tied
    """The head that the user names, or else the one of the checkpoint, as in transformers 5.

    A tied model uses wte.T as its output matrix. An untied model has a matrix of its own,
    "lm_head.weight".
    """
    if head is not None:
        return head == "tied"
    says_tied = config.get("tie_word_embeddings", True)
    if "lm_head.weight" not in arrays:
        if says_tied:
            return True
        # With --head untied, read_model copies wte.T, and the model is untied as config.json says.
        raise ValueError(
            "config.json says that the model is untied, but model.safetensors has no "
            "lm_head.weight; choose --head tied, or --head untied for a copy of wte.T"
        )
    if not says_tied:
        return False
    if np.array_equal(arrays["lm_head.weight"], arrays["wte.weight"]):
        return True
    print(
        "tied.py: config.json does not say that the model is untied, but its lm_head.weight is "
        "another matrix than wte.weight, so it is used (--head tied uses wte.weight)",
        file=sys.stderr,
    )
    return False


def read_model(folder, config, head):  # -> the parameters, and whether the model is tied
    path = folder / "model.safetensors"
    if not path.exists() and (folder / "model.safetensors.index.json").exists():
        raise ValueError(f"{folder}: the weights are in several files, which is not read")
    arrays = read_safetensors(path)
    check_arrays(arrays, config, path)
    tied = choose_head(arrays, config, head)
    if not tied and "lm_head.weight" not in arrays:
        print("tied.py: the file has no W_U, so a copy of wte.T is used", file=sys.stderr)
        arrays["lm_head.weight"] = arrays["wte.weight"].copy()
    return nest(arrays, config["n_layer"]), tied


# ---- The command ----


def continue_text(folder, prompt, n, head, greedy, seed):  # -> the prompt and n more tokens
    config = read_json(folder / "config.json")
    check_config(config, folder / "config.json")
    n_positions = config["n_positions"]

    vocabulary = read_json(folder / "vocab.json")
    merges = read_merges(folder / "merges.txt")
    check_tokenizer(vocabulary, merges, config["vocab_size"])
    check_tokenizer_settings(folder)
    ids = encode(prompt, vocabulary, merges)
    special = special_tokens(vocabulary, merges, folder)
    check_prompt(prompt, ids, special=special, n_positions=n_positions)

    params, tied = read_model(folder, config, head)
    rng = np.random.default_rng([seed, 0])  # the package's first sample has the same numbers
    for _ in range(n):
        seen = ids[-n_positions:]  # the model sees the end of a text that is too long for it
        logits = gpt2(seen, params, n_head=config["n_head"], tied=tied)
        ids.append(choose_token(logits[-1], greedy, rng))
    return decode(ids, vocabulary)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the folder of the model")
    parser.add_argument("prompt", help="the beginning of the text")
    parser.add_argument("-n", type=int, default=40, help="how many tokens to add (default: 40)")
    parser.add_argument("--head", choices=["tied", "untied"], help="default: the checkpoint's own")
    parser.add_argument("--greedy", action="store_true", help="always take the likeliest token")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives another text")
    args = parser.parse_args()
    try:
        if args.n < 0 or args.seed < 0:
            raise ValueError("-n and --seed must be at least 0")
        text = continue_text(
            args.folder,
            args.prompt,
            n=args.n,
            head=args.head,
            greedy=args.greedy,
            seed=args.seed,
        )
    except (OSError, ValueError) as error:
        print(f"tied.py: error: {error}", file=sys.stderr)
        sys.exit(2)
    print(text)


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # not on Windows
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # after `| head -1`, end without an error
    main()
