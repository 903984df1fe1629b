"""GPT-2 in one file, with one switch: is the output matrix the token embedding?

    python scripts/tied.py weights/shakespeare-tied "ROMEO:"
    python scripts/tied.py weights/shakespeare-untied "ROMEO:" --head tied     # turns the switch
    python scripts/tied.py folder-of-gpt2 "Alan Turing theorized that" --greedy -n 20

A folder holds config.json, model.safetensors, vocab.json and merges.txt, as the repository
openai-community/gpt2 of the Hugging Face Hub does. Other files are not read: where a tokenizer.json
or tokenizer_config.json changes the tokens, use tiedgpt. This file reads from top to bottom: the
model, the weights, the tokenizer, the choice of a token, what is refused, which head is used, the
command.

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
    return json.loads(path.read_text(encoding="utf-8"))


def read_safetensors(path):  # -> {"h.0.ln_1.weight": array, ...}
    """The file is the length of a JSON header, the header, and the bytes of all arrays."""
    arrays = {}
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
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
            array = np.frombuffer(file.read(end - begin), "<f4")  # little-endian float32
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


# ---- What is refused: the files of another model ----

# With another value of one of these settings, config.json describes another model than gpt2().
GPT2_SETTINGS = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
}


def check_config(config):
    for name, value in GPT2_SETTINGS.items():
        if config.get(name, value) != value:
            raise ValueError(f"config.json: {name} is {config[name]!r}; only {value!r} is read")


def check_arrays(arrays, config):
    """The arrays must be those that config.json describes, with lm_head.weight or without."""
    V = config["vocab_size"]
    D = config["n_embd"]
    F = config.get("n_inner") or 4 * D
    shapes = {
        "wte.weight": (V, D),
        "wpe.weight": (config["n_positions"], D),
        "ln_f.weight": (D,),
        "ln_f.bias": (D,),
    }
    if "lm_head.weight" in arrays:
        shapes["lm_head.weight"] = (V, D)
    for layer in range(config["n_layer"]):
        block = f"h.{layer}"
        shapes[f"{block}.ln_1.weight"] = (D,)
        shapes[f"{block}.ln_1.bias"] = (D,)
        shapes[f"{block}.attn.c_attn.weight"] = (D, 3 * D)
        shapes[f"{block}.attn.c_attn.bias"] = (3 * D,)
        shapes[f"{block}.attn.c_proj.weight"] = (D, D)
        shapes[f"{block}.attn.c_proj.bias"] = (D,)
        shapes[f"{block}.ln_2.weight"] = (D,)
        shapes[f"{block}.ln_2.bias"] = (D,)
        shapes[f"{block}.mlp.c_fc.weight"] = (D, F)
        shapes[f"{block}.mlp.c_fc.bias"] = (F,)
        shapes[f"{block}.mlp.c_proj.weight"] = (F, D)
        shapes[f"{block}.mlp.c_proj.bias"] = (D,)
    shapes_in_file = {name: array.shape for name, array in arrays.items()}
    # A name that only one of them has, or that has another shape in each
    different = sorted(set(shapes.items()) ^ set(shapes_in_file.items()))
    if different:
        name, _ = different[0]
        raise ValueError(
            f"model.safetensors: {name} has shape {shapes_in_file.get(name)}; "
            f"config.json says {shapes.get(name)}"
        )


def check_vocabulary(vocabulary, V):
    if sorted(vocabulary.values()) != list(range(V)):
        raise ValueError(f"vocab.json does not have one token for each id from 0 to {V - 1}")


def check_prompt(prompt, ids, n_positions):
    if "<|endoftext|>" in prompt:
        raise ValueError("the prompt has the special token <|endoftext|>, which is not read")
    if not 1 <= len(ids) <= n_positions:
        raise ValueError(f"the prompt has {len(ids)} tokens; expected 1 to {n_positions}")


# ---- Which head is used ----


def choose_head(arrays, config, head):  # -> whether the model is tied
    """The head that the user names, or else that of the checkpoint, as in transformers 5."""
    if head is not None:
        return head == "tied"
    says_tied = config.get("tie_word_embeddings", True)
    if "lm_head.weight" not in arrays:
        if not says_tied:
            raise ValueError(
                "config.json says untied, but model.safetensors has no lm_head.weight; choose "
                "--head tied, or --head untied for a copy of wte.T"
            )
        return True
    is_copy = np.array_equal(arrays["lm_head.weight"], arrays["wte.weight"])
    if says_tied and not is_copy:
        note("config.json does not say untied, but lm_head.weight is not wte.weight: it is used")
    return says_tied and is_copy


def read_model(folder, config, head):  # -> the parameters, and whether the model is tied
    arrays = read_safetensors(folder / "model.safetensors")
    check_arrays(arrays, config)
    tied = choose_head(arrays, config, head)
    if not tied and "lm_head.weight" not in arrays:
        note("the file has no W_U, so a copy of wte.T is used")
        arrays["lm_head.weight"] = arrays["wte.weight"].copy()  # lm_head.weight is W_U.T
    return nest(arrays, config["n_layer"]), tied


def note(text):
    print(f"tied.py: {text}", file=sys.stderr)


# ---- The command ----


def continue_text(folder, prompt, n, head, greedy, seed):  # -> the prompt and n more tokens
    config = read_json(folder / "config.json")
    check_config(config)
    n_positions = config["n_positions"]

    vocabulary = read_json(folder / "vocab.json")
    merges = read_merges(folder / "merges.txt")
    check_vocabulary(vocabulary, config["vocab_size"])
    ids = encode(prompt, vocabulary, merges)
    check_prompt(prompt, ids, n_positions)

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
