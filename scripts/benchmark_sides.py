"""The libraries that benchmark.py measures, each through the fastest interface it has for a row.

Each side runs in its own process and is constructed from the path of a checkpoint in transformers'
layout. If a library cannot read that layout, `convert` first writes a file for it, in float32. All sides get
the same weights and token ids. A side without a method has no figure in that method's row.
"""

import ctypes
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def seconds(function: Callable[[], Any]) -> float:
    """The duration of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def second_call_ms(function: Callable[[], Any]) -> float:
    """Milliseconds of a second call. The first call allocates memory and wakes threads."""
    function()
    return 1e3 * seconds(function)


def ms_per_step(times: list[float]) -> float:
    """Milliseconds per token, from the times at which tokens arrived. The first token is the prompt's."""
    return 1e3 * (times[-1] - times[0]) / (len(times) - 1)


def prompts(ids: list[int], batch: int) -> list[list[int]]:
    """`batch` different prompts: rotations of ids."""
    return [[*ids[n:], *ids[:n]] for n in range(batch)]


def placeholder_vocabulary(directory: str) -> list[str]:
    """A name for each token. Some libraries require names; speed does not depend on them."""
    config = json.loads((Path(directory) / "config.json").read_text(encoding="utf-8"))
    return [f"t{n}" for n in range(config["vocab_size"])]


class Side:
    """A library. The methods that a side may have, in the order of the rows:

    `decode(ids, n)`              -> milliseconds per token, and the n tokens
    `decode_untied(ids, n)`       -> the same with a separate output matrix
    `decode_lookup(ids, n)`       -> the same with drafted tokens, copied from earlier in the text
    `lookup_tokens_per_step()`    -> tokens per step of the model in the last call of decode_lookup
    `decode_layers(ids, n)`       -> as decode_lookup, drafted by a model of the first quarter of the layers
    `layers_tokens_per_step()`    -> tokens per step of the model in the last call of decode_layers
    `decode_batch(ids, n, batch)` -> milliseconds per step of `batch` sequences, and the first one's tokens
    `decode_without_cache(ids, n)`-> milliseconds per token when the whole text is computed again each time
    `prompt(ids)`                 -> milliseconds from a prompt to the logits of the next token
    `logits(ids)`                 -> milliseconds for the logits after every token
    `score(ids)`                  -> tokens per second when computing a text's loss in sliding windows
    `load()`                      -> seconds to load the model; its file is in the page cache
    """

    modules: tuple[str, ...]  # Python modules that this side needs
    decode_batch: Callable[..., Any]

    @classmethod
    def is_installed(cls) -> bool:
        return all(find_spec(module) for module in cls.modules)

    def decode(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        return self.decode_batch(ids, n, 1)

    def peak_memory(self) -> float:  # MB, of this process so far
        unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes
        resource: Any = import_module("resource")  # not on Windows
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


class Limits(Side):
    """The machine's limits, by a library's matrix products. `ones` makes one of the library's arrays."""

    ones: Callable[..., Any]

    def matrix_vector(self, n: int = 8192) -> float:  # GB/s
        W, x = self.ones((n, n)), self.ones(n)
        return W.nbytes / statistics.median(seconds(lambda: W @ x) for _ in range(20)) / 1e9

    def matrix_product(self, n: int = 2048) -> float:  # GFLOP/s
        a, b = self.ones((n, n)), self.ones((n, n))
        return 2 * n**3 / statistics.median(seconds(lambda: a @ b) for _ in range(5)) / 1e9


# For the profile: functions of tiedgpt, and what their time is spent on, apart from the calls of other
# functions in this table.
PROFILED = {
    "transformer": "residual stream and embedding",
    "layer_norm": "layer norms",
    "attention": "attention's products",
    "softmax": "softmax",
    "mlp": "activation",
    "linear": "products by weights",
    "unembed": "output matrix",
}


class TiedGPT(Limits):
    modules = ("numpy",)

    def __init__(self, directory: str) -> None:
        import_module("tiedgpt.fast").tune()  # before NumPy is imported, as the command line does
        self.tiedgpt, self.np = import_module("tiedgpt"), import_module("numpy")
        self.generation, self.drafts = map(
            import_module, ("tiedgpt.inference.generation", "tiedgpt.inference.drafts")
        )
        self.shapes = import_module("tiedgpt.parameters").parameter_shapes
        self.losses = import_module("tiedgpt.inference.evaluation").token_losses
        self.ones = partial(self.np.ones, dtype="f4")
        self.directory = directory
        model = self.tiedgpt.load_model(directory, head="tied")
        self.model = self.tiedgpt.GPT2(replace(model.config, eos_token_id=None), model.parameters)

    def about(self) -> dict[str, str]:
        blas = self.np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        about = {"NumPy": self.np.__version__, "BLAS": f"{blas['name']} {blas['version']}"}
        # The OpenBLAS in NumPy's wheels reports which kernels it chose for this processor.
        for library in Path(self.np.__path__[0]).parent.glob("numpy.libs/*openblas64*"):
            corename = ctypes.CDLL(str(library)).scipy_openblas_get_corename64_
            corename.restype = ctypes.c_char_p
            about["BLAS"] += f" with kernels for {corename().decode()}"
        return about

    def config(self) -> dict[str, Any]:
        return asdict(self.model.config)

    def bytes_per_token(self) -> int:
        """Bytes of all weights but the position embedding. The token embedding is also the output matrix."""
        parameters = self.model.parameters
        return sum(array.nbytes for array in parameters.values()) - parameters["wpe.weight"].nbytes

    def operations(self, T: int) -> int:
        """Floating-point operations of a prompt's matrix products, with one token's logits."""
        config = self.model.config
        D, F, L = config.n_embd, config.n_inner, config.n_layer
        weights = L * (4 * D * D + 2 * D * F)
        # Attention has two products, of which the causal mask leaves half.
        return 2 * (T * weights + config.vocab_size * D + L * T * T * D)

    def load(self) -> float:
        return seconds(lambda: self.tiedgpt.load_model(self.directory))

    def decode(self, ids: list[int], n: int, model: Any = None, draft: Any = None) -> tuple[float, list[int]]:
        model = model or self.model
        tokens, times, steps = [], [], 0
        sampling, streams = self.generation.Sampling(greedy=True), self.generation.random_streams(0, 1)
        source = draft and self.drafts.Draft(draft, model)
        for (chosen,) in self.generation.sample_steps(model, [ids], n, sampling, streams, source):
            steps += 1
            tokens += chosen
            times += [time.perf_counter()] * len(chosen)
        self.tokens_per_step = n / steps
        return ms_per_step(times), tokens

    def decode_lookup(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        return self.decode(ids, n, draft="lookup")

    def decode_layers(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        return self.decode(ids, n, draft=self.first_layers)

    def lookup_tokens_per_step(self) -> float:
        return self.tokens_per_step

    layers_tokens_per_step = lookup_tokens_per_step

    @cached_property
    def first_layers(self) -> Any:
        """The first quarter of the model's layers, as a model."""
        config = replace(self.model.config, n_layer=self.model.config.n_layer // 4)
        return self.tiedgpt.GPT2(config, {n: self.model.parameters[n] for n in self.shapes(config)})

    def decode_untied(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        return self.decode(ids, n, self.untied)

    @cached_property
    def untied(self) -> Any:
        return self.model.untie("copy")

    def next_logits(self, ids: Any, cache: Any) -> Any:  # [B, T] -> [B, V]
        return self.generation.unembed(self.model.final(ids, cache)[:, -1], self.model.W_U)

    def decode_batch(self, ids: list[int], n: int, batch: int) -> tuple[float, list[int]]:
        """The steps of `generate`, for different prompts of one length."""
        rows = self.np.array(prompts(ids, batch))
        cache, times, first = self.model.new_cache(batch, len(ids) + n), [], []
        for _ in range(n):
            rows = self.next_logits(rows, cache).argmax(axis=1)[:, None]
            first.append(int(rows[0, 0]))
            times.append(time.perf_counter())
        return ms_per_step(times), first

    def decode_without_cache(self, ids: list[int], n: int) -> float:
        """As picoGPT does: compute the logits of the whole text for each new token."""
        ids, times = list(ids), []
        for _ in range(n):
            ids.append(int(self.model(ids)[-1].argmax()))
            times.append(time.perf_counter())
        return ms_per_step(times)

    def prompt(self, ids: list[int]) -> float:
        array = self.np.array([ids])

        def read() -> None:
            self.next_logits(array, self.model.new_cache(capacity=len(ids)))

        return second_call_ms(read)

    def profile(self, method: str, *args: Any) -> dict[str, float]:
        """The parts of one method's time, in percent. The times of threads are added up."""
        from unittest.mock import patch  # slow to import

        spent: list[tuple[str, float]] = []
        inner = threading.local()  # .seconds: the timed calls inside the current one

        def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **named: Any) -> Any:
                before, inner.seconds = getattr(inner, "seconds", 0.0), 0.0
                start = time.perf_counter()
                result = function(*args, **named)
                duration = time.perf_counter() - start
                spent.append((part, duration - inner.seconds))
                inner.seconds = before + duration
                return result

            return call

        modules = [module for name, module in sys.modules.items() if name.startswith("tiedgpt.")]
        with ExitStack() as stack:
            for name, part in PROFILED.items():
                users = [module for module in modules if callable(vars(module).get(name))]
                if not users:
                    raise LookupError(f"no module of tiedgpt has a function {name!r} to profile")
                for module in users:
                    stack.enter_context(patch.object(module, name, timed(part, vars(module)[name])))
            getattr(self, method)(*args)
        whole = sum(duration for _, duration in spent)
        return {
            part: 100 * sum(duration for other, duration in spent if other == part) / whole
            for part in PROFILED.values()
        }

    def logits(self, ids: list[int]) -> float:
        return second_call_ms(lambda: self.model(ids))

    def score(self, ids: list[int]) -> float:
        stride = self.model.config.n_ctx // 2
        return (len(ids) - 1) / seconds(lambda: self.losses(self.model, ids, stride))


def torch_gpt2(torch: Any, V: int, n_ctx: int, L: int, H: int, D: int, F: int) -> Any:
    """GPT-2 as a plain torch module whose state_dict has the names of a checkpoint.

    `attend(layer, q, k, v)` computes attention. A caller with a KV cache passes its own.
    """
    nn, functional = torch.nn, torch.nn.functional
    Module: Any = nn.Module

    def causal(layer: int, q: Any, k: Any, v: Any) -> Any:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    class Block(Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(D), nn.LayerNorm(D)
            self.attn = nn.ModuleDict({"c_attn": nn.Linear(D, 3 * D), "c_proj": nn.Linear(D, D)})
            self.mlp = nn.ModuleDict({"c_fc": nn.Linear(D, F), "c_proj": nn.Linear(F, D)})

        def forward(self, x: Any, attend: Callable[..., Any]) -> Any:
            qkv = self.attn["c_attn"](self.ln_1(x)).view(*x.shape[:2], 3, H, D // H)
            heads = attend(*qkv.permute(2, 0, 3, 1, 4).unbind())
            x = x + self.attn["c_proj"](heads.transpose(1, 2).reshape(x.shape))
            hidden = functional.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
            return x + self.mlp["c_proj"](hidden)

    class GPT2(Module):
        n_head, head_width = H, D // H

        def __init__(self) -> None:
            super().__init__()
            self.wte, self.wpe = nn.Embedding(V, D), nn.Embedding(n_ctx, D)
            self.h = nn.ModuleList(Block() for _ in range(L))
            self.ln_f = nn.LayerNorm(D)

        def hidden(self, ids: Any, start: int = 0, attend: Callable[..., Any] = causal) -> Any:
            x = self.wte(ids) + self.wpe.weight[start : start + ids.shape[1]]
            for layer, block in enumerate(self.h):
                x = block(x, partial(attend, layer))
            return self.ln_f(x)

        def forward(self, ids: Any) -> Any:  # [B, T] -> [B, T, V]
            return functional.linear(self.hidden(ids), self.wte.weight)

    return GPT2()


def read_torch_gpt2(torch: Any, directory: str) -> Any:
    """The plain torch module with a checkpoint's weights."""
    model = import_module("tiedgpt").load_model(directory, head="tied")
    c = model.config
    module = torch_gpt2(torch, c.vocab_size, c.n_ctx, c.n_layer, c.n_head, c.n_embd, c.n_inner)
    for layer_norm in module.modules():
        if isinstance(layer_norm, torch.nn.LayerNorm):
            layer_norm.eps = c.layer_norm_epsilon
    weights = {  # nn.Linear keeps a matrix as [out, in], GPT-2 as [in, out]
        name: torch.from_numpy(array.T if name.startswith("h.") and array.ndim == 2 else array)
        for name, array in model.parameters.items()
    }
    module.load_state_dict(weights)
    return module.eval()


class PyTorch(Limits):
    """A plain decoding loop in torch: scaled_dot_product_attention and a KV cache allocated in advance."""

    modules = ("torch",)

    def __init__(self, directory: str) -> None:
        self.torch = import_module("torch")
        self.ones = self.torch.ones
        self.model = read_torch_gpt2(self.torch, directory)

    def about(self) -> dict[str, str]:
        return {"torch": str(self.torch.__version__)}

    def new_cache(self, batch: int, capacity: int) -> list[Any]:
        """Memory for the keys and values of each layer."""
        shape = (2, batch, self.model.n_head, capacity, self.model.head_width)
        return [self.torch.empty(shape) for _ in self.model.h]

    def next_logits(self, ids: Any, start: int, cache: list[Any], head: Any) -> Any:  # [B, T] -> [B, V]
        """The logits after `ids`, whose first position is `start`; their keys and values go to the cache."""
        end = start + ids.shape[1]
        functional = self.torch.nn.functional

        def attend(layer: int, q: Any, k: Any, v: Any) -> Any:
            keys, values = cache[layer]
            keys[:, :, start:end], values[:, :, start:end] = k, v
            return functional.scaled_dot_product_attention(
                q, keys[:, :, :end], values[:, :, :end], is_causal=start == 0
            )

        return functional.linear(self.model.hidden(ids, start, attend)[:, -1], head)

    def decode_untied(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        return self.decode_batch(ids, n, 1, self.untied)

    @cached_property
    def untied(self) -> Any:
        return self.model.wte.weight.detach().clone()

    def decode_batch(self, ids: list[int], n: int, batch: int, head: Any = None) -> tuple[float, list[int]]:
        rows, cache = self.torch.tensor(prompts(ids, batch)), self.new_cache(batch, len(ids) + n)
        head = self.model.wte.weight if head is None else head
        start, times, first = 0, [], []
        with self.torch.inference_mode():
            for _ in range(n):
                logits = self.next_logits(rows, start, cache, head)
                start += rows.shape[1]
                rows = logits.argmax(dim=1, keepdim=True)
                first.append(int(rows[0, 0]))
                times.append(time.perf_counter())
        return ms_per_step(times), first

    def decode_without_cache(self, ids: list[int], n: int) -> float:
        ids, times = list(ids), []
        with self.torch.inference_mode():
            for _ in range(n):
                ids.append(int(self.model(self.torch.tensor([ids]))[0, -1].argmax()))
                times.append(time.perf_counter())
        return ms_per_step(times)

    def prompt(self, ids: list[int]) -> float:
        array, head = self.torch.tensor([ids]), self.model.wte.weight
        with self.torch.inference_mode():
            return second_call_ms(lambda: self.next_logits(array, 0, self.new_cache(1, len(ids)), head))

    def logits(self, ids: list[int]) -> float:
        array = self.torch.tensor([ids])
        with self.torch.inference_mode():
            return second_call_ms(lambda: self.model(array))


class Transformers(Side):
    modules = ("torch", "transformers")

    def __init__(self, directory: str) -> None:
        self.torch, self.transformers = import_module("torch"), import_module("transformers")
        self.directory = directory
        self.model = self.read()
        self.model.generation_config.eos_token_id = None

    def read(self) -> Any:
        return self.transformers.AutoModelForCausalLM.from_pretrained(
            self.directory, dtype=self.torch.float32, tie_word_embeddings=True
        )

    def about(self) -> dict[str, str]:
        return {"torch": str(self.torch.__version__), "transformers": self.transformers.__version__}

    def load(self) -> float:
        return seconds(self.read)

    def decode_untied(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        tied, self.model.lm_head.weight = self.model.lm_head.weight, self.untied
        decoded = self.decode(ids, n)
        self.model.lm_head.weight = tied
        return decoded

    @cached_property
    def untied(self) -> Any:
        return self.torch.nn.Parameter(self.model.lm_head.weight.detach().clone())

    def decode_batch(self, ids: list[int], n: int, batch: int) -> tuple[float, list[int]]:
        rows, arrivals = self.torch.tensor(prompts(ids, batch)), note_times(self.transformers)
        inputs = {"input_ids": rows, "attention_mask": self.torch.ones_like(rows)}
        settings = {"do_sample": False, "max_new_tokens": n, "min_new_tokens": n}
        out = self.model.generate(**inputs, **settings, stopping_criteria=[arrivals])
        return ms_per_step(arrivals.times), out[0, len(ids) :].tolist()

    def prompt(self, ids: list[int]) -> float:
        array = self.torch.tensor([ids])
        with self.torch.inference_mode():
            return second_call_ms(lambda: self.model(input_ids=array, use_cache=True, logits_to_keep=1))

    def logits(self, ids: list[int]) -> float:
        array = self.torch.tensor([ids])
        with self.torch.inference_mode():
            return second_call_ms(lambda: self.model(input_ids=array, use_cache=False))

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


def note_times(transformers: Any) -> Any:
    """A stopping criterion for transformers that never stops and notes the time of each step."""

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
        """Write a CTranslate2 model from tiedgpt's arrays, as the library's converter does from torch's."""
        specs, tiedgpt = import_module("ctranslate2.specs"), import_module("tiedgpt")
        np = import_module("numpy")
        model = tiedgpt.load_model(directory, head="tied")
        config, p = model.config, model.parameters
        spec = specs.TransformerDecoderModelSpec.from_config(
            config.n_layer, config.n_head, pre_norm=True, activation=specs.Activation.GELUTanh
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
        vocabulary = placeholder_vocabulary(directory)
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
        return ms_per_step(sorted(times.values())), results[0].sequences_ids[0]

    def prompt(self, ids: list[int]) -> float:
        names = [[f"t{token}" for token in ids]]
        settings = {"max_length": 1, "sampling_topk": 1, "include_prompt_in_result": False}
        return second_call_ms(lambda: self.generator.generate_batch(names, **settings))

    def logits(self, ids: list[int]) -> float:
        names = [[f"t{token}" for token in ids]]
        return second_call_ms(lambda: self.generator.forward_batch(names))


class LlamaCpp(Side):
    modules = ("llama_cpp", "gguf")
    dtype = "F32"

    @classmethod
    def convert(cls, directory: str, out: Path) -> str:
        """Write a GGUF file. It stores matrices as [out, in]."""
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
        vocabulary = placeholder_vocabulary(directory)
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
        self.lookup_steps = self.lookup_tokens = 0

    def read(self, **options: Any) -> Any:
        threads = {name: int(os.environ["OMP_NUM_THREADS"]) for name in ("n_threads", "n_threads_batch")}
        # n_ctx=0 is the file's own context
        return self.llama_cpp.Llama(self.file, n_ctx=0, n_batch=1024, verbose=False, **threads, **options)

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
        return ms_per_step(times), tokens

    @cached_property
    def lookup_model(self) -> Any:
        lookup = import_module("llama_cpp.llama_speculative").LlamaPromptLookupDecoding()

        def draft(ids: Any) -> Any:  # called once after each step of the model
            self.lookup_steps += 1
            return lookup(ids)

        return self.read(draft_model=draft)

    def decode_lookup(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        self.lookup_model.reset()
        tokens: list[int] = []
        times: list[float] = []
        for token in self.lookup_model.generate(ids, temp=0, repeat_penalty=1.0):
            if not tokens:
                self.lookup_steps = 1
            tokens.append(token)
            times.append(time.perf_counter())
            if len(tokens) == n:
                break
        self.lookup_tokens = n
        return ms_per_step(times), tokens

    def lookup_tokens_per_step(self) -> float:
        return self.lookup_tokens / self.lookup_steps

    def prompt(self, ids: list[int]) -> float:
        def read() -> None:
            self.model.reset()
            self.next_logits(ids)

        return second_call_ms(read)


class LlamaCppF16(LlamaCpp):
    """Weights in half precision: half the bytes of float32 per token."""

    dtype = "F16"


class LlamaCppQ8(LlamaCpp):
    """Weights in 8 bits with one scale for 32 numbers: about a quarter of the bytes."""

    dtype = "Q8_0"


class OpenVINO(Side):
    """The plain torch module, converted twice, because each is faster at its task:

    x.xml         keeps the keys and values as its state, as OpenVINO's own exports of language models do
    x-prompt.xml  reads a prompt with causal attention and returns the keys and values
    """

    modules = ("openvino", "torch")

    @staticmethod
    def convert(directory: str, out: Path) -> str:
        openvino, torch = import_module("openvino"), import_module("torch")
        model = read_torch_gpt2(torch, directory)
        attention = torch.nn.functional.scaled_dot_product_attention
        L, H, K = len(model.h), model.n_head, model.head_width
        Module: Any = torch.nn.Module

        class Prompt(Module):
            def forward(self, ids: Any) -> Any:  # [B, T] -> [B, V]
                present: list[Any] = []

                def attend(layer: int, q: Any, k: Any, v: Any) -> Any:
                    present.extend((k, v))
                    return attention(q, k, v, is_causal=True)

                hidden = self.model.hidden(ids, 0, attend)[:, -1]
                return torch.nn.functional.linear(hidden, self.model.wte.weight), *present

        class Step(Module):
            def forward(self, ids: Any, rows: Any, *past: Any) -> Any:  # [B, T] -> [B, V]
                """`rows` selects sequences of the cache. OpenVINO needs it to fuse cache and attention."""
                present = []
                before = past[0].shape[2]
                positions = torch.arange(before + ids.shape[1])
                allowed = positions <= positions[before:, None]

                def attend(layer: int, q: Any, *new: Any) -> Any:
                    for old, one in zip(past[2 * layer : 2 * layer + 2], new, strict=True):
                        present.append(torch.cat([old.index_select(0, rows), one], 2))
                    return attention(q, *present[-2:], attn_mask=allowed)

                hidden = self.model.hidden(ids, before, attend)[:, -1]
                return torch.nn.functional.linear(hidden, self.model.wte.weight), *present

        prompt, step = Prompt(), Step()
        prompt.model = step.model = model
        ids, rows, past = (torch.zeros(*at, dtype=int) for at in ((1, 2), (1,), (1, H, 3, K)))
        example = (ids, rows.int(), *[past.float()] * 2 * L)
        with torch.no_grad():
            prompt = openvino.convert_model(prompt, example_input=ids)
            step = openvino.convert_model(step, example_input=example)
        prompt.reshape([-1, -1])
        openvino.save_model(prompt, f"{out}-prompt.xml", compress_to_fp16=False)

        shapes = [[-1, -1], [-1], *[[-1, H, -1, K]] * 2 * L]
        names = ["ids", "rows", *(f"past.{n}" for n in range(2 * L))]
        for port, name in zip(step.inputs, names, strict=True):
            port.get_tensor().set_names({name})
        step.reshape({name: openvino.PartialShape(at) for name, at in zip(names, shapes, strict=True)})
        for n, port in enumerate(step.outputs[1:]):
            port.get_tensor().set_names({f"present.{n}"})
        passes, ops = import_module("openvino.passes"), import_module("openvino.opset13")
        manager = passes.Manager()
        manager.register_pass(passes.MakeStateful({f"past.{n}": f"present.{n}" for n in range(2 * L)}))
        manager.run_passes(step)
        # Each state starts empty, [B, H, 0, K].
        batch = ops.gather(ops.shape_of(step.inputs[0]), ops.constant([0]), ops.constant(0))
        shape = ops.concat([batch, ops.constant([H, 0, K])], 0)
        empty = ops.broadcast(ops.constant(0.0, openvino.Type.f32), shape)
        for operation in step.get_ops():
            if operation.get_type_name() == "ReadValue":
                operation.set_arguments([empty.output(0)])
        step.validate_nodes_and_infer_types()
        openvino.save_model(step, f"{out}.xml", compress_to_fp16=False)
        return str(out)

    def __init__(self, file: str) -> None:
        self.np, self.openvino, self.file = import_module("numpy"), import_module("openvino"), file
        self.request = self.read(".xml").create_infer_request()

    def read(self, suffix: str) -> Any:
        threads = int(os.environ["OMP_NUM_THREADS"])
        settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
        settings |= {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        return self.openvino.Core().compile_model(f"{self.file}{suffix}", "CPU", settings)

    def about(self) -> dict[str, str]:
        return {"OpenVINO": self.openvino.__version__.split("-")[0]}

    def load(self) -> float:
        return seconds(lambda: self.read(".xml"))

    def decode_batch(self, ids: list[int], n: int, batch: int) -> tuple[float, list[int]]:
        self.request.reset_state()
        inputs = {"ids": self.np.array(prompts(ids, batch)), "rows": self.np.arange(batch, dtype="i4")}
        times, first = [], []
        for _ in range(n):
            logits = self.request.infer(inputs, share_inputs=True, share_outputs=True)[0]
            inputs["ids"] = logits.argmax(axis=1)[:, None]
            first.append(int(inputs["ids"][0, 0]))
            times.append(time.perf_counter())
        return ms_per_step(times), first

    @cached_property
    def prompt_request(self) -> Any:
        return self.read("-prompt.xml").create_infer_request()

    def prompt(self, ids: list[int]) -> float:
        array = [self.np.array([ids])]
        infer = self.prompt_request.infer
        return second_call_ms(lambda: infer(array, share_inputs=True, share_outputs=True))


class Checkout(Side):
    """Another checkout of tiedgpt, in the folder $TIEDGPT_BESIDE, by the names that do not change."""

    def __init__(self, directory: str) -> None:
        sys.path.insert(0, os.environ["TIEDGPT_BESIDE"])
        self.tiedgpt = import_module("tiedgpt")
        with suppress(ImportError, AttributeError):  # older ones do this when they are imported
            import_module("tiedgpt.fast").tune()
        self.directory = directory
        model = self.tiedgpt.load_model(directory, head="tied")
        self.model = self.tiedgpt.GPT2(replace(model.config, eos_token_id=None), model.parameters)

    def about(self) -> dict[str, str]:
        return {"beside": os.environ["TIEDGPT_BESIDE"]}

    def load(self) -> float:
        return seconds(lambda: self.tiedgpt.load_model(self.directory))

    def decode(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        tokens, times = [], []
        for token in self.tiedgpt.generate(self.model, ids, n, greedy=True, draft=None):
            tokens.append(token)
            times.append(time.perf_counter())
        return ms_per_step(times), tokens

    def decode_batch(self, ids: list[int], n: int, batch: int) -> tuple[float, list[int]]:
        rows: Any = prompts(ids, batch)
        cache, times, first = self.model.new_cache(batch, len(ids) + n), [], []
        for _ in range(n):
            rows = self.model(rows, cache)[:, -1].argmax(axis=1)[:, None]
            first.append(int(rows[0, 0]))
            times.append(time.perf_counter())
        return ms_per_step(times), first

    def prompt(self, ids: list[int]) -> float:
        final = getattr(self.model, "final", None) or self.model.hidden
        return second_call_ms(
            lambda: final([ids], self.model.new_cache(capacity=len(ids)))[:, -1] @ self.model.W_U
        )


SIDES: dict[str, type[Any]] = {
    "tiedgpt": TiedGPT,
    "transformers": Transformers,
    "PyTorch": PyTorch,
    "CTranslate2": CTranslate2,
    "llama.cpp": LlamaCpp,
    "OpenVINO": OpenVINO,
}
REDUCED: dict[str, type[Any]] = {"llama.cpp f16": LlamaCppF16, "llama.cpp q8_0": LlamaCppQ8}


# Training


@dataclass(frozen=True)
class Training:
    """The sizes of a model and of a batch, and the number of steps that are timed at a time."""

    name: str
    V: int
    L: int
    H: int
    D: int
    n_ctx: int
    B: int
    T: int
    steps: int


TRAININGS = (
    # nanoGPT's setting for a CPU, on bytes; the shipped models' size; GPT-2 124M on llm.c's batch
    Training("d 128, V 257, 12 x 64", V=257, L=4, H=4, D=128, n_ctx=64, B=12, T=64, steps=40),
    Training("d 128, V 1024, 32 x 128", V=1024, L=4, H=4, D=128, n_ctx=128, B=32, T=128, steps=20),
    Training("124M, 4 x 64", V=50257, L=12, H=12, D=768, n_ctx=1024, B=4, T=64, steps=3),
)
NO_DROPOUT = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
WARM_UP = 3  # steps before the first that is timed


class TiedGPTTraining:
    def __init__(self, training: Training) -> None:
        import_module("tiedgpt.fast").tune()  # before NumPy is imported, as the command line does
        np, tiedgpt = import_module("numpy"), import_module("tiedgpt")
        loop = import_module("tiedgpt.training.loop")
        t = self.training = training
        sizes = {"vocab_size": t.V, "n_ctx": t.n_ctx, "n_layer": t.L, "n_head": t.H, "n_embd": t.D}
        config = tiedgpt.Config(**sizes, **NO_DROPOUT, bos_token_id=None, eos_token_id=None)
        tokens = np.random.default_rng(0).integers(0, t.V, 100 * t.B * t.T)
        # So many steps that the held-out text is never evaluated here.
        settings = loop.Settings(steps=10**9, batch=t.B, context=t.T)
        self.records = loop.Trainer(tiedgpt.GPT2.random(config), tokens, tokens[:2], settings).run()
        for _ in range(WARM_UP):
            next(self.records)

    def train_step(self) -> float:  # ms
        steps = [next(self.records)["tokens_per_s"] for _ in range(self.training.steps)]
        return 1e3 * self.training.B * self.training.T / statistics.median(steps)


class PyTorchTraining:
    """The plain torch module and torch's fused AdamW."""

    def __init__(self, training: Training) -> None:
        self.torch, self.training = import_module("torch"), training
        self.model = self.new_model().train()
        parameters = list(self.model.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
        ]
        self.optimizer = self.torch.optim.AdamW(groups, lr=1e-3, fused=True)
        for _ in range(WARM_UP):
            self.step()

    def new_model(self) -> Any:
        t = self.training
        return torch_gpt2(self.torch, t.V, t.n_ctx, t.L, t.H, t.D, 4 * t.D)

    def logits(self, ids: Any) -> Any:
        return self.model(ids)

    def step(self) -> None:
        t = self.training
        ids = self.torch.randint(t.V, (t.B, t.T + 1))
        logits = self.logits(ids[:, :-1])
        loss = self.torch.nn.functional.cross_entropy(logits.view(-1, t.V), ids[:, 1:].reshape(-1))
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def train_step(self) -> float:  # ms
        return 1e3 * statistics.median(seconds(self.step) for _ in range(self.training.steps))


class TransformersTraining(PyTorchTraining):
    """transformers' GPT-2, trained in the same way."""

    def new_model(self) -> Any:
        library, t = import_module("transformers"), self.training
        sizes = {"vocab_size": t.V, "n_positions": t.n_ctx, "n_layer": t.L, "n_head": t.H, "n_embd": t.D}
        tokens = {"bos_token_id": 0, "eos_token_id": 0}
        config = library.GPT2Config(**sizes, **NO_DROPOUT, **tokens, use_cache=False)
        return library.GPT2LMHeadModel(config)

    def logits(self, ids: Any) -> Any:
        return self.model(ids).logits


TRAINING_SIDES: dict[str, type[Any]] = {
    "tiedgpt": TiedGPTTraining,
    "transformers": TransformersTraining,
    "PyTorch": PyTorchTraining,
}
