"""The libraries that benchmark.py measures: each one's own best way to do what a row asks for.

A side lives in a process of its own and is made of a checkpoint's directory, as transformers writes them.
What another library cannot read is written for it first, in float32, by `convert`. Every library reads the
same weights and ids; a method that a library has no counterpart of is not there, and its row shows a dash.
"""

import ctypes
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch


def seconds(function: Callable[[], Any]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def second(function: Callable[[], Any]) -> float:
    """Milliseconds of a second call, right after a first: no memory is new, no thread asleep."""
    function()
    return 1e3 * seconds(function)


def per_step(times: list[float]) -> float:
    """Milliseconds from one token to the next, of the moments when tokens came, the first not counted."""
    return 1e3 * (times[-1] - times[0]) / (len(times) - 1)


def prompts(ids: list[int], batch: int) -> list[list[int]]:
    """So many prompts, each another."""
    return [[*ids[n:], *ids[:n]] for n in range(batch)]


def blank_vocabulary(directory: str) -> list[str]:
    """A name for each token: some libraries want one, and speed does not depend on it."""
    config = json.loads((Path(directory) / "config.json").read_text(encoding="utf-8"))
    return [f"t{n}" for n in range(config["vocab_size"])]


class Side:
    """A library under measurement.

    `decode(ids, n)`              -> milliseconds per token, and the n tokens
    `decode_untied(ids, n)`       -> the same, with a head of its own
    `decode_batch(ids, n, batch)` -> milliseconds per step of so many sequences, and the first one's tokens
    `prompt(ids)`                 -> milliseconds from a prompt to the logits of what follows it
    `logits(ids)`                 -> milliseconds for the logits after every one of ids
    `score(ids)`                  -> tokens per second of a text's loss, by Hugging Face's sliding windows
    `load()`                      -> seconds, the file being in the page cache
    """

    modules: tuple[str, ...]  # without which there is no such side

    @classmethod
    def is_installed(cls) -> bool:
        return all(find_spec(module) for module in cls.modules)

    def peak_memory(self) -> float:  # MB, of this process so far
        unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes
        resource: Any = import_module("resource")  # which Windows lacks
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


class Limits(Side):
    """What the machine can do, by the matrix products of a library; `ones` makes an array of its kind."""

    ones: Callable[..., Any]

    def matrix_vector(self, n: int = 8192) -> float:  # GB/s
        W, x = self.ones((n, n)), self.ones(n)
        return W.nbytes / statistics.median(seconds(lambda: W @ x) for _ in range(20)) / 1e9

    def matrix_product(self, n: int = 2048) -> float:  # GFLOP/s
        a, b = self.ones((n, n)), self.ones((n, n))
        return 2 * n**3 / statistics.median(seconds(lambda: a @ b) for _ in range(5)) / 1e9


class TiedGPT(Limits):
    modules = ("numpy",)

    def __init__(self, directory: str) -> None:
        self.np, self.tiedgpt = import_module("numpy"), import_module("tiedgpt")
        self.generation = import_module("tiedgpt.generation")
        self.losses = import_module("tiedgpt.evaluation").token_losses
        self.ones = partial(self.np.ones, dtype="f4")
        self.directory = directory
        model = self.tiedgpt.load_model(directory, head="tied")
        endless = replace(model.config, eos_token_id=None)
        self.model = self.tiedgpt.GPT2(endless, model.parameters)

    def about(self) -> dict[str, str]:
        blas = self.np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        about = {"NumPy": self.np.__version__, "BLAS": f"{blas['name']} {blas['version']}"}
        # The OpenBLAS in NumPy's wheels tells which kernels it chose for this processor.
        for library in Path(self.np.__path__[0]).parent.glob("numpy.libs/*openblas64*"):
            corename = ctypes.CDLL(str(library)).scipy_openblas_get_corename64_
            corename.restype = ctypes.c_char_p
            about["BLAS"] += f" with kernels for {corename().decode()}"
        return about

    def bytes_per_token(self) -> int:
        """Of the weights: all but the position embedding. The token embedding counts as the head."""
        parameters = self.model.parameters
        return sum(array.nbytes for array in parameters.values()) - parameters["wpe.weight"].nbytes

    def operations(self, T: int) -> int:
        """Of a prompt's products by weights and of attention's, in the blocks and for one token's logits."""
        config = self.model.config
        D, F, L = config.n_embd, config.n_inner, config.n_layer
        weights = L * (4 * D * D + 2 * D * F)
        return 2 * (T * weights + config.vocab_size * D + L * T * T * D)  # half of T x T, twice

    def load(self) -> float:
        return seconds(lambda: self.tiedgpt.load_model(self.directory))

    def decode(self, ids: list[int], n: int, model: Any = None) -> tuple[float, list[int]]:
        tokens, times = [], []
        for token in self.tiedgpt.generate(model or self.model, ids, max_new_tokens=n, greedy=True):
            tokens.append(token)
            times.append(time.perf_counter())
        return per_step(times), tokens

    def decode_untied(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        return self.decode(ids, n, self.untied)

    @cached_property
    def untied(self) -> Any:
        return self.model.untie("copy")

    def decode_batch(self, ids: list[int], n: int, batch: int) -> tuple[float, list[int]]:
        """Of different prompts: there is no command for that, but it is the same step."""
        rows = self.np.array(prompts(ids, batch))
        cache, times, first = self.model.new_cache(batch, len(ids) + n), [], []
        for _ in range(n):
            rows = self.generation.next_logits(self.model, rows, cache).argmax(axis=1)[:, None]
            first.append(int(rows[0, 0]))
            times.append(time.perf_counter())
        return per_step(times), first

    def decode_without_cache(self, ids: list[int], n: int) -> float:
        """picoGPT's way: for every token all before it are read again, and unembedded."""
        ids, times = list(ids), []
        for _ in range(n):
            ids.append(int(self.model(ids)[-1].argmax()))
            times.append(time.perf_counter())
        return per_step(times)

    def prompt(self, ids: list[int]) -> float:
        array = self.np.array([ids])

        def read() -> None:
            self.generation.next_logits(self.model, array, self.model.new_cache(capacity=len(ids)))

        return second(read)

    def profile(self, method: str, *args: Any) -> dict[str, float]:
        """What the time of one of the methods above goes into, in percent, threads' times added up."""
        model, spent = import_module("tiedgpt.model"), []

        def watched(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **named: Any) -> Any:
                start = time.perf_counter()
                result = function(*args, **named)
                spent.append((part, time.perf_counter() - start))
                return result

            return call

        activation = self.model.config.activation_function
        with (
            patch.object(model, "transformer", watched("", model.transformer)),
            patch.object(self.generation, "unembed", watched("head", self.generation.unembed)),
            patch.object(model, "linear", watched("products by weights", model.linear)),
            patch.object(model, "softmax", watched("softmax", model.softmax)),
            patch.object(model, "layer_norm", watched("layer norms", model.layer_norm)),
            patch.dict(model.ACTIVATIONS, {activation: watched("activation", model.ACTIVATIONS[activation])}),
        ):
            getattr(self, method)(*args)
        parts: dict[str, float] = {}
        for part, duration in spent:
            parts[part] = parts.get(part, 0.0) + duration
        blocks = parts.pop("")
        whole = blocks + parts["head"]
        parts["attention's products and the rest"] = whole - sum(parts.values())
        return {part: 100 * duration / whole for part, duration in parts.items()}

    def logits(self, ids: list[int]) -> float:
        return second(lambda: self.model(ids))

    def score(self, ids: list[int]) -> float:
        stride = self.model.config.n_ctx // 2
        return (len(ids) - 1) / seconds(lambda: self.losses(self.model, ids, stride))


class Transformers(Limits):
    modules = ("torch", "transformers")

    def __init__(self, directory: str) -> None:
        self.torch, self.transformers = import_module("torch"), import_module("transformers")
        self.ones = self.torch.ones
        self.directory = directory
        self.model = self.read()
        self.model.generation_config.eos_token_id = None

    def read(self) -> Any:
        return self.transformers.AutoModelForCausalLM.from_pretrained(
            self.directory, dtype=self.torch.float32, tie_word_embeddings=True
        )

    def about(self) -> dict[str, str]:
        return {"torch": self.torch.__version__, "transformers": self.transformers.__version__}

    def load(self) -> float:
        return seconds(self.read)

    def decode(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        return self.decode_batch(ids, n, 1)

    def decode_untied(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        tied, self.model.lm_head.weight = self.model.lm_head.weight, self.untied
        decoded = self.decode(ids, n)
        self.model.lm_head.weight = tied
        return decoded

    @cached_property
    def untied(self) -> Any:
        return self.torch.nn.Parameter(self.model.lm_head.weight.detach().clone())

    def decode_batch(self, ids: list[int], n: int, batch: int) -> tuple[float, list[int]]:
        rows, arrivals = self.torch.tensor(prompts(ids, batch)), watch(self.transformers)
        inputs = {"input_ids": rows, "attention_mask": self.torch.ones_like(rows)}
        settings = {"do_sample": False, "max_new_tokens": n, "min_new_tokens": n}
        out = self.model.generate(**inputs, **settings, stopping_criteria=[arrivals])
        return per_step(arrivals.times), out[0, len(ids) :].tolist()

    def prompt(self, ids: list[int]) -> float:
        array = self.torch.tensor([ids])
        with self.torch.inference_mode():
            return second(lambda: self.model(input_ids=array, use_cache=True, logits_to_keep=1))

    def logits(self, ids: list[int]) -> float:
        array = self.torch.tensor([ids])
        with self.torch.inference_mode():
            return second(lambda: self.model(input_ids=array, use_cache=False))

    def score(self, ids: list[int]) -> float:
        """The recipe of Hugging Face's documentation, "Perplexity of fixed-length models"."""
        text, n_ctx = self.torch.tensor([ids]), self.model.config.n_positions

        def recipe() -> None:
            before = 0
            for start in range(0, len(ids), n_ctx // 2):
                end = min(start + n_ctx, len(ids))
                window = text[:, start:end]
                labels = window.clone()
                labels[:, : before - end] = -100
                self.model(window, labels=labels, use_cache=False).loss.item()
                before = end
                if end == len(ids):
                    break

        with self.torch.inference_mode():
            return (len(ids) - 1) / seconds(recipe)


def watch(transformers: Any) -> Any:
    """A stopping criterion for transformers that stops nothing and notes when each step is done."""

    class Noting(transformers.StoppingCriteria):
        def __init__(self) -> None:
            self.times: list[float] = []

        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            self.times.append(time.perf_counter())
            return input_ids.new_zeros(len(input_ids), dtype=bool)

    return Noting()


class CTranslate2(Side):
    modules = ("ctranslate2",)

    @staticmethod
    def convert(directory: str, out: Path) -> str:
        """Written from our arrays, as the library's own converter does it from torch's."""
        specs, tiedgpt = import_module("ctranslate2.specs"), import_module("tiedgpt")
        np = import_module("numpy")
        model = tiedgpt.load_model(directory, head="tied")
        config, p = model.config, model.parameters
        activation = {"gelu_new": specs.Activation.GELUTanh, "gelu": specs.Activation.GELU}
        spec = specs.TransformerDecoderModelSpec.from_config(
            config.n_layer, config.n_head, pre_norm=True, activation=activation[config.activation_function]
        )

        def linear(spec: Any, name: str) -> None:
            spec.weight = np.ascontiguousarray(p[f"{name}.weight"].T)
            spec.bias = p[f"{name}.bias"]

        def norm(spec: Any, name: str) -> None:
            spec.gamma, spec.beta = p[f"{name}.weight"], p[f"{name}.bias"]

        spec.decoder.scale_embeddings = False
        spec.decoder.embeddings.weight = p["wte.weight"]
        spec.decoder.position_encodings.encodings = p["wpe.weight"]
        norm(spec.decoder.layer_norm, "ln_f")
        spec.decoder.projection.weight = p["wte.weight"]
        for n, layer in enumerate(spec.decoder.layer):
            norm(layer.self_attention.layer_norm, f"h.{n}.ln_1")
            linear(layer.self_attention.linear[0], f"h.{n}.attn.c_attn")
            linear(layer.self_attention.linear[1], f"h.{n}.attn.c_proj")
            norm(layer.ffn.layer_norm, f"h.{n}.ln_2")
            linear(layer.ffn.linear_0, f"h.{n}.mlp.c_fc")
            linear(layer.ffn.linear_1, f"h.{n}.mlp.c_proj")
        vocabulary = blank_vocabulary(directory)
        spec.register_vocabulary(vocabulary)
        spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = vocabulary[-1]
        spec.validate()
        spec.optimize()
        out.mkdir()
        spec.save(str(out))
        return str(out)

    def __init__(self, directory: str) -> None:
        self.ctranslate2, self.directory = import_module("ctranslate2"), directory
        self.generator = self.read()

    def read(self) -> Any:
        threads = int(os.environ["OMP_NUM_THREADS"])
        return self.ctranslate2.Generator(
            self.directory, device="cpu", compute_type="float32", inter_threads=1, intra_threads=threads
        )

    def about(self) -> dict[str, str]:
        return {"CTranslate2": self.ctranslate2.__version__}

    def load(self) -> float:
        return seconds(self.read)

    def decode(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        return self.decode_batch(ids, n, 1)

    def decode_batch(self, ids: list[int], n: int, batch: int) -> tuple[float, list[int]]:
        times: dict[int, float] = {}

        def note(step: Any) -> bool:
            times[step.step] = time.perf_counter()
            return False

        names = [[f"t{token}" for token in row] for row in prompts(ids, batch)]
        results = self.generator.generate_batch(
            names,
            max_length=n,
            min_length=n,
            sampling_topk=1,
            include_prompt_in_result=False,
            callback=note,
        )
        return per_step(sorted(times.values())), results[0].sequences_ids[0]

    def prompt(self, ids: list[int]) -> float:
        names = [[f"t{token}" for token in ids]]
        settings = {"max_length": 1, "sampling_topk": 1, "include_prompt_in_result": False}
        return second(lambda: self.generator.generate_batch(names, **settings))

    def logits(self, ids: list[int]) -> float:
        names = [[f"t{token}" for token in ids]]
        return second(lambda: self.generator.forward_batch(names))


class LlamaCpp(Side):
    modules = ("llama_cpp", "gguf")
    dtype = "F32"

    @classmethod
    def convert(cls, directory: str, out: Path) -> str:
        """A GGUF file; matrices transposed, as llama.cpp has them."""
        gguf, tiedgpt, np = (import_module(name) for name in ("gguf", "tiedgpt", "numpy"))
        model = tiedgpt.load_model(directory, head="tied")
        config, p = model.config, model.parameters
        file = f"{out}.gguf"
        writer = gguf.GGUFWriter(file, "gpt2")
        writer.add_context_length(config.n_ctx)
        writer.add_embedding_length(config.n_embd)
        writer.add_block_count(config.n_layer)
        writer.add_feed_forward_length(config.n_inner)
        writer.add_head_count(config.n_head)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        vocabulary = blank_vocabulary(directory)
        writer.add_token_list(vocabulary)
        writer.add_token_merges(["t 0"])
        writer.add_bos_token_id(len(vocabulary) - 1)
        writer.add_eos_token_id(len(vocabulary) - 1)
        names = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}
        names |= {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output"}
        names |= {"ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
        for name, array in p.items():
            path, _, last = name.rpartition(".")  # "h.0.attn.c_attn", "weight"
            block = ""
            if path.startswith("h."):
                _, number, path = path.split(".", 2)
                block = f"blk.{number}."
            matrix = np.ascontiguousarray(array.T if block else array)
            kind = gguf.GGMLQuantizationType[cls.dtype if array.ndim == 2 and path != "wpe" else "F32"]
            data = gguf.quants.quantize(matrix, kind)
            writer.add_tensor(f"{block}{names[path]}.{last}", data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return file

    def __init__(self, file: str) -> None:
        self.np, self.llama_cpp, self.file = import_module("numpy"), import_module("llama_cpp"), file
        self.model = self.read()

    def read(self) -> Any:
        threads = int(os.environ["OMP_NUM_THREADS"])
        return self.llama_cpp.Llama(
            self.file,
            n_ctx=1024,
            n_batch=1024,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )

    def about(self) -> dict[str, str]:
        return {"llama-cpp-python": self.llama_cpp.__version__}

    def load(self) -> float:
        return seconds(self.read)

    def next_logits(self, ids: list[int]) -> Any:
        self.model.eval(ids)
        pointer = self.llama_cpp.llama_get_logits_ith(self.model.ctx, -1)
        return self.np.ctypeslib.as_array(pointer, shape=(self.model.n_vocab(),))

    def decode(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        self.model.reset()
        tokens, times = [], []
        read = ids
        for _ in range(n):
            tokens.append(int(self.next_logits(read).argmax()))
            times.append(time.perf_counter())
            read = tokens[-1:]
        return per_step(times), tokens

    def prompt(self, ids: list[int]) -> float:

        def read() -> None:
            self.model.reset()
            self.next_logits(ids)

        return second(read)


class LlamaCppHalf(LlamaCpp):
    """In half precision: half the bytes of float32 are read for a token."""

    dtype = "F16"


class LlamaCppQ8(LlamaCpp):
    """In 8 bits and a scale for every 32 numbers: about a quarter of the bytes."""

    dtype = "Q8_0"


SIDES: dict[str, type[Any]] = {
    "tiedgpt": TiedGPT,
    "transformers": Transformers,
    "CTranslate2": CTranslate2,
    "llama.cpp": LlamaCpp,
}
HALVES: dict[str, type[Any]] = {"llama.cpp f16": LlamaCppHalf, "llama.cpp q8_0": LlamaCppQ8}


# Training


@dataclass(frozen=True)
class Training:
    """A model's sizes and a batch's, to be trained for `steps` steps a turn."""

    name: str
    goal: str
    V: int
    L: int
    H: int
    D: int
    n_ctx: int
    B: int
    T: int
    steps: int


TRAININGS = (
    # nanoGPT's setting for a CPU, by byte; the shipped models' size; GPT-2 124M on llm.c's batch
    Training(
        "nanoGPT's on a CPU", "transformers <= 0.75", V=257, L=4, H=4, D=128, n_ctx=64, B=12, T=64, steps=40
    ),
    Training(
        "4 x 128, V 1024", "transformers <= 0.8", V=1024, L=4, H=4, D=128, n_ctx=128, B=32, T=128, steps=20
    ),
    Training(
        "124M, 4 x 64", "transformers <= 0.55", V=50257, L=12, H=12, D=768, n_ctx=1024, B=4, T=64, steps=3
    ),
)
NO_DROPOUT = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
WARM_UP = 3  # steps before the first turn


class TiedGPTTraining:
    def __init__(self, training: Training) -> None:
        np, tiedgpt = import_module("numpy"), import_module("tiedgpt")
        loop = import_module("tiedgpt.training.loop")
        t = self.training = training
        sizes = {"vocab_size": t.V, "n_ctx": t.n_ctx, "n_layer": t.L, "n_head": t.H, "n_embd": t.D}
        config = tiedgpt.Config(**sizes, **NO_DROPOUT, bos_token_id=None, eos_token_id=None)
        tokens = np.random.default_rng(0).integers(0, t.V, 100 * t.B * t.T)
        endless = 10**9  # steps, which also puts the next look at held-out text far away
        settings = loop.Settings(steps=endless, batch=t.B, context=t.T)
        self.records = loop.Trainer(tiedgpt.GPT2.random(config), tokens, tokens[:2], settings).run()
        for _ in range(WARM_UP):
            next(self.records)

    def train_step(self) -> float:  # ms
        steps = [next(self.records)["tokens_per_s"] for _ in range(self.training.steps)]
        return 1e3 * self.training.B * self.training.T / statistics.median(steps)


class TorchTraining:
    """The better of two: transformers' GPT-2, and the fewest torch operations that make one."""

    def __init__(self, training: Training) -> None:
        self.torch, self.training = import_module("torch"), training
        self.models = []
        for model in (self.transformers(), self.plain()):
            parameters = list(model.train().parameters())
            groups = [
                {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
                {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
            ]
            self.models.append((model, self.torch.optim.AdamW(groups, lr=1e-3, fused=True)))
            for _ in range(WARM_UP):
                self.step(*self.models[-1])

    def train_step(self) -> float:  # ms
        return min(
            1e3 * statistics.median(seconds(partial(self.step, *model)) for _ in range(self.training.steps))
            for model in self.models
        )

    def step(self, model: Any, optimizer: Any) -> None:
        t = self.training
        ids = self.torch.randint(t.V, (t.B, t.T + 1))
        logits = model(ids[:, :-1])
        logits = getattr(logits, "logits", logits)
        loss = self.torch.nn.functional.cross_entropy(logits.view(-1, t.V), ids[:, 1:].reshape(-1))
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def transformers(self) -> Any:
        library, t = import_module("transformers"), self.training
        sizes = {"vocab_size": t.V, "n_positions": t.n_ctx, "n_layer": t.L, "n_head": t.H, "n_embd": t.D}
        tokens = {"bos_token_id": 0, "eos_token_id": 0}
        config = library.GPT2Config(**sizes, **NO_DROPOUT, **tokens, use_cache=False)
        return library.GPT2LMHeadModel(config)

    def plain(self) -> Any:
        t, nn = self.training, self.torch.nn
        F = nn.functional

        class Block(nn.Module):  # type: ignore[name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.ln_1, self.ln_2 = nn.LayerNorm(t.D), nn.LayerNorm(t.D)
                self.c_attn, self.attn_proj = nn.Linear(t.D, 3 * t.D), nn.Linear(t.D, t.D)
                self.c_fc, self.mlp_proj = nn.Linear(t.D, 4 * t.D), nn.Linear(4 * t.D, t.D)

            def forward(self, x: Any) -> Any:
                qkv = self.c_attn(self.ln_1(x)).view(t.B, t.T, 3, t.H, t.D // t.H)
                heads = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), is_causal=True)
                x = x + self.attn_proj(heads.transpose(1, 2).reshape(x.shape))
                return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))

        class Plain(nn.Module):  # type: ignore[name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.wte, self.wpe = nn.Embedding(t.V, t.D), nn.Embedding(t.n_ctx, t.D)
                self.h = nn.ModuleList(Block() for _ in range(t.L))
                self.ln_f = nn.LayerNorm(t.D)

            def forward(self, ids: Any) -> Any:
                x = self.wte(ids) + self.wpe.weight[: t.T]
                for block in self.h:
                    x = block(x)
                return F.linear(self.ln_f(x), self.wte.weight)

        return Plain()
