"""The libraries that benchmark.py measures, each through the fastest interface it has for a row.

Each side runs in its own process and is constructed from the path of a checkpoint in transformers'
layout. If a library cannot read that layout, `convert` first writes a file for it, in float32. All
sides get the same weights and token ids.
"""

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch


def seconds(function: Callable[[], Any]) -> float:
    """The duration of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def ms_per_step(times: list[float]) -> float:
    """Milliseconds per token, from the times at which tokens arrived. The first token is the
    prompt's."""
    return 1e3 * (times[-1] - times[0]) / (len(times) - 1)


def prompts(ids: list[int], batch: int) -> list[list[int]]:
    """`batch` different prompts: rotations of ids."""
    return [[*ids[n:], *ids[:n]] for n in range(batch)]


def placeholders(V: int) -> list[str]:
    """A name for each token. Some libraries require names; speed does not depend on them."""
    return [f"t{n}" for n in range(V)]


class Side:
    """A library. It has all rows of this class but those that it `lacks`, and may have these:

    `decode_lookup(ids, n)`       -> as decode, with drafted tokens, copied from earlier in the text
    `decode_layers(ids, n)`       -> as decode, drafted by the first quarter of the layers
    `lookup_tokens_per_step()`    -> tokens per step of the model in the last decode_lookup
    `layers_tokens_per_step()`    -> the same of decode_layers
    `decode_f16(ids, n)`          -> as decode, with weights in half precision
    `decode_without_cache(ids, n)`-> as decode, when the whole text is computed again each time
    `score(ids)`                  -> tokens per second of a text's loss in sliding windows
    `matrix_product()`, `matrix_vector()`: the machine's limits
    `products_by_blocks(rows)`, `product_by_output_matrix(rows)`: time / that of `rows @ weight`
    """

    packages: tuple[str, ...]  # what pip installs for this side
    lacks: tuple[str, ...] = ()
    read: Callable[[], Any]  # the model from the files of `path`
    steps: Callable[
        [list[list[int]], int], Iterator[int]
    ]  # rows, n -> the first row's next n tokens
    all_logits: Callable[[list[int]], Any]  # [T] -> [T, V]
    untied: (
        Any  # an object, its attribute, and the value that gives the model a separate output matrix
    )
    mode: Callable[[], Any] = nullcontext  # in which the library computes

    def __init__(self, path: str) -> None:
        self.path = path
        self.model = self.read()

    @classmethod
    def has(cls, row: str) -> bool:
        return hasattr(cls, row) and row not in cls.lacks

    @classmethod
    def is_installed(cls) -> bool:
        with suppress(PackageNotFoundError):
            return bool([version(package) for package in cls.packages])
        return False

    def about(self) -> dict[str, str]:
        return {package: version(package) for package in self.packages}

    def timed(self, tokens: Iterable[int]) -> tuple[float, list[int]]:
        """Milliseconds per token, and the tokens."""
        found, times = [], []
        with self.mode():
            for token in tokens:
                found.append(token)
                times.append(time.perf_counter())
        return ms_per_step(times), found

    def second_call_ms(self, function: Callable[[], Any]) -> float:
        """Milliseconds of a second call. The first call allocates memory and wakes threads."""
        with self.mode():
            function()
            return 1e3 * seconds(function)

    def decode_batch(self, ids: list[int], n: int, batch: int) -> tuple[float, list[int]]:
        """Milliseconds per step of `batch` sequences, and the first one's n tokens."""
        return self.timed(self.steps(prompts(ids, batch), n))

    def decode(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        """Milliseconds per token, and the n tokens."""
        return self.decode_batch(ids, n, 1)

    def decode_untied(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        """The same with a separate output matrix."""
        with patch.object(*self.untied):
            return self.decode(ids, n)

    def prompt(self, ids: list[int]) -> float:
        """Milliseconds from a prompt to the logits of the next token."""
        return self.second_call_ms(lambda: next(self.steps([ids], 1)))

    def logits(self, ids: list[int]) -> float:
        """Milliseconds for the logits after every token."""
        return self.second_call_ms(lambda: self.all_logits(ids))

    def load(self) -> float:
        """Seconds to load the model; its file is in the page cache."""
        return seconds(self.read)

    def peak_memory(self) -> float:  # MB, of this process so far
        unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes
        resource: Any = import_module("resource")  # not on Windows
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


class Arrays(Side):
    """A library of arrays. `ones` makes one of them."""

    ones: Callable[..., Any]

    def matrix_vector(self, n: int = 8192) -> float:  # GB/s
        W, x = self.ones((n, n)), self.ones(n)
        return W.nbytes / statistics.median(seconds(lambda: W @ x) for _ in range(20)) / 1e9

    def matrix_product(self, n: int = 2048) -> float:  # GFLOP/s
        a, b = self.ones((n, n)), self.ones((n, n))
        return 2 * n**3 / statistics.median(seconds(lambda: a @ b) for _ in range(5)) / 1e9

    def decode_without_cache(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        """As picoGPT does: compute the logits of the whole text for each new token."""
        text = list(ids)

        def tokens() -> Iterator[int]:
            for _ in range(n):
                text.append(int(self.all_logits(text)[-1].argmax()))
                yield text[-1]

        return self.timed(tokens())


class Checkout(Side):
    """A checkout of tiedgpt, by the names that do not change."""

    def __init__(self, path: str) -> None:
        with suppress(ImportError, AttributeError):  # older ones do this when they are imported
            import_module(
                "tiedgpt.fast"
            ).tune()  # before NumPy is imported, as the command line does
        self.tiedgpt = import_module("tiedgpt")
        super().__init__(path)

    def read(self) -> Any:
        model = self.tiedgpt.load_model(self.path, head="tied")
        return self.tiedgpt.GPT2(replace(model.config, eos_token_id=None), model.parameters)

    def steps(self, rows: Any, n: int) -> Iterator[int]:
        if len(rows) == 1:
            yield from self.tiedgpt.generate(self.model, rows[0], n, greedy=True, draft=None)
            return
        cache = self.model.new_cache(len(rows), len(rows[0]) + n)
        for _ in range(n):
            rows = self.model(rows, cache)[:, -1].argmax(axis=1)[:, None]
            yield int(rows[0, 0])


class Beside(Checkout):
    """The one in the folder $TIEDGPT_BESIDE."""

    packages = ()
    lacks = ("decode_untied", "logits")

    def __init__(self, path: str) -> None:
        sys.path.insert(0, os.environ["TIEDGPT_BESIDE"])
        super().__init__(path)

    def about(self) -> dict[str, str]:
        return {"beside": os.environ["TIEDGPT_BESIDE"]}


# For the profile: functions of tiedgpt, and what their time is spent on, apart from the calls of
# other functions in this table.
PROFILED = {
    "transformer": "residual stream and embedding",
    "layer_norm": "layer norms",
    "attention": "attention's products",
    "softmax": "softmax",
    "mlp": "activation",
    "linear": "products by weights",
    "unembed": "output matrix",
}


class TiedGPT(Checkout, Arrays):
    packages = ("NumPy",)

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.np, self.all_logits = import_module("numpy"), self.model
        self.ones = partial(self.np.ones, dtype="f4")

    def about(self) -> dict[str, str]:
        blas = self.np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        about = {**super().about(), "BLAS": f"{blas['name']} {blas['version']}"}
        kernels = import_module("tiedgpt.fast.blas").kernels()
        if kernels is not None:
            about["BLAS"] += f" with kernels for {kernels}"
        return about

    @cached_property
    def untied(self) -> Any:
        return self, "model", self.model.untie("copy")

    def decode_drafted(self, ids: list[int], n: int, source: Any) -> tuple[float, list[int]]:
        generation = import_module("tiedgpt.inference.generation")
        sampling, streams = generation.Sampling(greedy=True), generation.random_streams(0, 1)
        draft = generation.Draft(source, self.model)
        steps = generation.sample_steps(self.model, [ids], n, sampling, streams, draft)
        decoded = self.timed(token for (chosen,) in steps for token in chosen)
        self.tokens_per_step = n / (n - draft.accepted)
        return decoded

    def decode_lookup(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        return self.decode_drafted(ids, n, "lookup")

    def decode_layers(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        return self.decode_drafted(ids, n, self.first_layers)

    @cached_property
    def first_layers(self) -> Any:
        """The first quarter of the model's layers, as a model."""
        config = replace(self.model.config, n_layer=self.model.config.n_layer // 4)
        shapes = import_module("tiedgpt.gpt2.parameters").parameter_shapes(config)
        return self.tiedgpt.GPT2(config, {name: self.model.parameters[name] for name in shapes})

    def lookup_tokens_per_step(self) -> float:
        return self.tokens_per_step

    layers_tokens_per_step = lookup_tokens_per_step

    def score(self, ids: list[int]) -> float:
        losses = import_module("tiedgpt.inference.evaluation").token_losses
        stride = self.model.config.n_ctx // 2
        return (len(ids) - 1) / seconds(lambda: losses(self.model, ids, stride))

    def products_by_blocks(self, rows: int) -> float:
        """The time of a step's products by the blocks' matrices / that of `rows @ weight`."""
        products = import_module("benchmark_products")
        weights = products.block_weights(self.model)
        return products.compare(weights, rows, turns=5)[1]

    def product_by_output_matrix(self, rows: int) -> float:
        """The time of the product by the output matrix / that of `rows @ weight`."""
        products = import_module("benchmark_products")
        return products.compare([self.model.W_U], rows, turns=5)[1]

    # What benchmark.py needs to know about the model

    def config(self) -> dict[str, Any]:
        return asdict(self.model.config)

    def bytes_per_token(self) -> int:
        """Bytes of all weights but the position embedding. The token embedding is also the output
        matrix."""
        parameters = self.model.parameters
        return sum(array.nbytes for array in parameters.values()) - parameters["wpe.weight"].nbytes

    def operations(self, T: int) -> int:
        """Floating-point operations of a prompt's matrix products, with one token's logits."""
        config = self.model.config
        D, F, L = config.n_embd, config.n_inner, config.n_layer
        weights = L * (4 * D * D + 2 * D * F)
        # Attention has two products, of which the causal mask leaves half.
        return 2 * (T * weights + config.vocab_size * D + L * T * T * D)

    def profile(self, method: str, *args: Any) -> dict[str, float]:
        """The parts of one method's time, in percent. The times of threads are added up."""
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


def torch_gpt2(torch: Any, config: Any) -> Any:
    """GPT-2 as a plain torch module whose state_dict has the names of a checkpoint, for tiedgpt's
    Config.

    `attend(layer, q, k, v)` computes attention. A caller with a KV cache passes its own.
    """
    nn, functional = torch.nn, torch.nn.functional
    Module: Any = nn.Module
    D, H, F = config.n_embd, config.n_head, config.n_inner
    LayerNorm = partial(nn.LayerNorm, D, eps=config.layer_norm_epsilon)

    def causal(layer: int, q: Any, k: Any, v: Any) -> Any:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    class Block(Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = LayerNorm(), LayerNorm()
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
            self.wte, self.wpe = nn.Embedding(config.vocab_size, D), nn.Embedding(config.n_ctx, D)
            self.h = nn.ModuleList(Block() for _ in range(config.n_layer))
            self.ln_f = LayerNorm()

        def hidden(self, ids: Any, start: int = 0, attend: Callable[..., Any] = causal) -> Any:
            x = self.wte(ids) + self.wpe.weight[start : start + ids.shape[1]]
            for layer, block in enumerate(self.h):
                x = block(x, partial(attend, layer))
            return self.ln_f(x)

        def forward(self, ids: Any) -> Any:  # [B, T] -> [B, T, V]
            return functional.linear(self.hidden(ids), self.wte.weight)

    return GPT2()


def read_torch_gpt2(torch: Any, path: str) -> Any:
    """The plain torch module with a checkpoint's weights."""
    model = import_module("tiedgpt").load_model(path, head="tied")
    module = torch_gpt2(torch, model.config)
    weights = {  # nn.Linear keeps a matrix as [out, in], GPT-2 as [in, out]
        name: torch.from_numpy(array.T if name.startswith("h.") and array.ndim == 2 else array)
        for name, array in model.parameters.items()
    }
    module.load_state_dict(weights)
    return module.eval()


class PyTorch(Arrays):
    """A plain decoding loop in torch: scaled_dot_product_attention and a KV cache allocated in
    advance."""

    packages = ("torch",)
    lacks = ("load",)  # it gets tiedgpt's arrays

    def __init__(self, path: str) -> None:
        self.torch = import_module("torch")
        self.ones, self.mode = self.torch.ones, self.torch.inference_mode
        super().__init__(path)
        self.head = self.model.wte.weight

    def read(self) -> Any:
        return read_torch_gpt2(self.torch, self.path)

    @cached_property
    def untied(self) -> Any:
        return self, "head", self.head.detach().clone()

    def steps(self, rows: Any, n: int) -> Iterator[int]:
        rows, functional = self.torch.tensor(rows), self.torch.nn.functional
        shape = (2, len(rows), self.model.n_head, rows.shape[1] + n, self.model.head_width)
        cache = [self.torch.empty(shape) for _ in self.model.h]  # the keys and values of each layer
        start = 0

        def attend(layer: int, q: Any, k: Any, v: Any) -> Any:
            keys, values = cache[layer][:, :, :, :end]
            keys[:, :, start:], values[:, :, start:] = k, v
            return functional.scaled_dot_product_attention(q, keys, values, is_causal=start == 0)

        for _ in range(n):
            end = start + rows.shape[1]
            logits = functional.linear(self.model.hidden(rows, start, attend)[:, -1], self.head)
            start, rows = end, logits.argmax(dim=1, keepdim=True)
            yield int(rows[0, 0])

    def all_logits(self, ids: list[int]) -> Any:
        return self.model(self.torch.tensor([ids]))[0]


class Transformers(Side):
    packages = ("torch", "transformers")

    def __init__(self, path: str) -> None:
        self.torch, self.transformers = import_module("torch"), import_module("transformers")
        self.mode = self.torch.inference_mode
        super().__init__(path)
        self.model.generation_config.eos_token_id = None

    def read(self) -> Any:
        return self.transformers.AutoModelForCausalLM.from_pretrained(
            self.path, dtype=self.torch.float32, tie_word_embeddings=True
        )

    @cached_property
    def untied(self) -> Any:
        head = self.model.lm_head
        return head, "weight", self.torch.nn.Parameter(head.weight.detach().clone())

    def decode_batch(self, ids: list[int], n: int, batch: int) -> tuple[float, list[int]]:
        times: list[float] = []
        StoppingCriteria: Any = self.transformers.StoppingCriteria

        class NotingTimes(StoppingCriteria):
            """Called after each step. Never stops."""

            def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
                times.append(time.perf_counter())
                return input_ids.new_zeros(len(input_ids), dtype=bool)

        rows = self.torch.tensor(prompts(ids, batch))
        inputs = {"input_ids": rows, "attention_mask": self.torch.ones_like(rows)}
        settings = {"do_sample": False, "max_new_tokens": n, "min_new_tokens": n}
        out = self.model.generate(**inputs, **settings, stopping_criteria=[NotingTimes()])
        return ms_per_step(times), out[0, len(ids) :].tolist()

    def prompt(self, ids: list[int]) -> float:
        array = self.torch.tensor([ids])
        return self.second_call_ms(
            lambda: self.model(input_ids=array, use_cache=True, logits_to_keep=1)
        )

    def all_logits(self, ids: list[int]) -> Any:
        return self.model(input_ids=self.torch.tensor([ids]), use_cache=False).logits[0]

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

        with self.mode():
            return (len(ids) - 1) / seconds(recipe)


class CTranslate2(Side):
    packages = ("CTranslate2",)
    lacks = ("decode_untied",)

    @staticmethod
    def convert(directory: str, out: Path) -> str:
        """Write a CTranslate2 model from tiedgpt's arrays, as the library's converter does from
        torch's."""
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
        vocabulary = placeholders(config.vocab_size)
        spec.register_vocabulary(vocabulary)
        spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = vocabulary[-1]
        spec.validate()
        spec.optimize()
        out.mkdir()
        spec.save(str(out))
        return str(out)

    def read(self) -> Any:
        threads = int(os.environ["OMP_NUM_THREADS"])
        return import_module("ctranslate2").Generator(
            self.path, device="cpu", compute_type="float32", inter_threads=1, intra_threads=threads
        )

    def generate(self, rows: list[list[int]], n: int, **more: Any) -> Any:
        names = [[f"t{token}" for token in row] for row in rows]
        lengths = {"max_length": n, "min_length": n, "include_prompt_in_result": False}
        return self.model.generate_batch(names, sampling_topk=1, **lengths, **more)

    def decode_batch(self, ids: list[int], n: int, batch: int) -> tuple[float, list[int]]:
        times: dict[int, float] = {}

        def note(step: Any) -> bool:
            times[step.step] = time.perf_counter()
            return False

        results = self.generate(prompts(ids, batch), n, callback=note)
        return ms_per_step(sorted(times.values())), results[0].sequences_ids[0]

    def prompt(self, ids: list[int]) -> float:
        return self.second_call_ms(lambda: self.generate([ids], 1))

    def all_logits(self, ids: list[int]) -> Any:
        return self.model.forward_batch([[f"t{token}" for token in ids]])


class LlamaCpp(Side):
    packages = ("llama-cpp-python", "gguf")
    lacks = ("decode_batch", "decode_untied", "logits")

    @staticmethod
    def convert(directory: str, out: Path) -> str:
        """Write two GGUF files, of float32 and of float16 matrices. GGUF stores matrices as [out,
        in]."""
        gguf, tiedgpt, np = (import_module(name) for name in ("gguf", "tiedgpt", "numpy"))
        model = tiedgpt.load_model(directory, head="tied")
        config, vocabulary = model.config, placeholders(model.config.vocab_size)
        names = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}
        names |= {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output"}
        names |= {"ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
        for dtype in ("F32", "F16"):
            writer = gguf.GGUFWriter(f"{out}-{dtype}.gguf", "gpt2")
            end = len(vocabulary) - 1
            fields = {"context_length": config.n_ctx, "embedding_length": config.n_embd}
            fields |= {"block_count": config.n_layer, "head_count": config.n_head}
            fields |= {
                "feed_forward_length": config.n_inner,
                "layer_norm_eps": config.layer_norm_epsilon,
            }
            fields |= {
                "tokenizer_model": "gpt2",
                "tokenizer_pre": "gpt-2",
                "token_list": vocabulary,
            }
            fields |= {"token_merges": ["t 0"], "bos_token_id": end, "eos_token_id": end}
            for field, value in fields.items():
                getattr(writer, f"add_{field}")(value)
            for name, array in model.parameters.items():
                path, _, last = name.rpartition(".")  # "h.0.attn.c_attn", "weight"
                block = ""
                if path.startswith("h."):
                    _, number, path = path.split(".", 2)
                    block = f"blk.{number}."
                matrix = np.ascontiguousarray(array.T if block else array)
                kind = gguf.GGMLQuantizationType[
                    dtype if array.ndim == 2 and path != "wpe" else "F32"
                ]
                data = gguf.quants.quantize(matrix, kind)
                writer.add_tensor(f"{block}{names[path]}.{last}", data, raw_dtype=kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
        return str(out)

    def read(self, dtype: str = "F32", **options: Any) -> Any:
        llama_cpp, threads = import_module("llama_cpp"), int(os.environ["OMP_NUM_THREADS"])
        options |= {
            "n_threads": threads,
            "n_threads_batch": threads,
            "n_batch": 1024,
            "verbose": False,
        }
        return llama_cpp.Llama(
            f"{self.path}-{dtype}.gguf", n_ctx=0, **options
        )  # 0 is the file's own

    def steps(self, rows: list[list[int]], n: int) -> Iterator[int]:
        llama_cpp, (ids,) = import_module("llama_cpp"), rows
        self.model.reset()
        for _ in range(n):
            self.model.eval(ids)
            pointer = llama_cpp.llama_get_logits_ith(self.model.ctx, -1)
            logits = import_module("numpy").ctypeslib.as_array(
                pointer, shape=(self.model.n_vocab(),)
            )
            ids = [int(logits.argmax())]
            yield ids[0]

    @cached_property
    def f16(self) -> Any:
        return self.read("F16")

    def decode_f16(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        with patch.object(self, "model", self.f16):
            return self.decode(ids, n)

    @cached_property
    def lookup_model(self) -> Any:
        lookup = import_module("llama_cpp.llama_speculative").LlamaPromptLookupDecoding()

        def draft(ids: Any) -> Any:  # called once after each step of the model
            self.lookup_steps += 1
            return lookup(ids)

        return self.read(draft_model=draft)

    def decode_lookup(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        self.lookup_model.reset()
        self.lookup_steps = 1
        decoded = self.timed(islice(self.lookup_model.generate(ids, temp=0, repeat_penalty=1.0), n))
        self.tokens_per_step = n / self.lookup_steps
        return decoded

    def lookup_tokens_per_step(self) -> float:
        return self.tokens_per_step


class OpenVINO(Side):
    """The plain torch module, converted twice, because each is faster at its task:

    x.xml         keeps the keys and values as its state, as OpenVINO's own exports do
    x-prompt.xml  reads a prompt with causal attention and returns the keys and values
    """

    packages = ("OpenVINO", "torch")
    lacks = ("decode_untied", "logits")

    @staticmethod
    def convert(directory: str, out: Path) -> str:
        openvino, torch = import_module("openvino"), import_module("torch")
        model = read_torch_gpt2(torch, directory)
        attention = torch.nn.functional.scaled_dot_product_attention
        L, H, K = len(model.h), model.n_head, model.head_width
        Module: Any = torch.nn.Module

        class Cached(Module):
            """Without `past`, a prompt; else a step, after the keys and values of the tokens before
            it."""

            def forward(self, ids: Any, rows: Any = None, *past: Any) -> Any:  # [B, T] -> [B, V]
                present: list[Any] = []
                before = past[0].shape[2] if past else 0
                positions = torch.arange(before + ids.shape[1])
                mask = (
                    {"attn_mask": positions <= positions[before:, None]}
                    if past
                    else {"is_causal": True}
                )

                def attend(layer: int, q: Any, *new: Any) -> Any:
                    # `rows` selects sequences of the cache: so OpenVINO fuses cache and attention.
                    if past:
                        pairs = zip(past[2 * layer : 2 * layer + 2], new, strict=True)
                        new = tuple(
                            torch.cat([old.index_select(0, rows), one], 2) for old, one in pairs
                        )
                    present.extend(new)
                    return attention(q, *new, **mask)

                hidden = self.model.hidden(ids, before, attend)[:, -1]
                return torch.nn.functional.linear(hidden, self.model.wte.weight), *present

        cached = Cached()
        cached.model = model
        ids, rows, past = (torch.zeros(*at, dtype=int) for at in ((1, 2), (1,), (1, H, 3, K)))
        example = (ids, rows.int(), *[past.float()] * 2 * L)
        with torch.no_grad():
            prompt = openvino.convert_model(cached, example_input=ids)
            step = openvino.convert_model(cached, example_input=example)
        prompt.reshape([-1, -1])
        openvino.save_model(prompt, f"{out}-prompt.xml", compress_to_fp16=False)

        shapes = [[-1, -1], [-1], *[[-1, H, -1, K]] * 2 * L]
        names = ["ids", "rows", *(f"past.{n}" for n in range(2 * L))]
        for port, name in zip(step.inputs, names, strict=True):
            port.get_tensor().set_names({name})
        step.reshape(
            {name: openvino.PartialShape(at) for name, at in zip(names, shapes, strict=True)}
        )
        for n, port in enumerate(step.outputs[1:]):
            port.get_tensor().set_names({f"present.{n}"})
        passes, ops = import_module("openvino.passes"), import_module("openvino.opset13")
        manager = passes.Manager()
        manager.register_pass(
            passes.MakeStateful({f"past.{n}": f"present.{n}" for n in range(2 * L)})
        )
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

    def __init__(self, path: str) -> None:
        self.np, self.openvino = import_module("numpy"), import_module("openvino")
        super().__init__(path)

    def read(self, suffix: str = "") -> Any:
        threads = int(os.environ["OMP_NUM_THREADS"])
        settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
        settings |= {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        model = self.openvino.Core().compile_model(f"{self.path}{suffix}.xml", "CPU", settings)
        return model.create_infer_request()

    def steps(self, rows: Any, n: int) -> Iterator[int]:
        self.model.reset_state()
        inputs = {"ids": self.np.array(rows), "rows": self.np.arange(len(rows), dtype="i4")}
        for _ in range(n):
            logits = self.model.infer(inputs, share_inputs=True, share_outputs=True)[0]
            inputs["ids"] = logits.argmax(axis=1)[:, None]
            yield int(inputs["ids"][0, 0])

    @cached_property
    def prompt_model(self) -> Any:
        return self.read("-prompt")

    def prompt(self, ids: list[int]) -> float:
        array, infer = [self.np.array([ids])], self.prompt_model.infer
        return self.second_call_ms(lambda: infer(array, share_inputs=True, share_outputs=True))


SIDES: dict[str, type[Side]] = {
    "tiedgpt": TiedGPT,
    "transformers": Transformers,
    "PyTorch": PyTorch,
    "CTranslate2": CTranslate2,
    "llama.cpp": LlamaCpp,
    "OpenVINO": OpenVINO,
}


# Training


@dataclass(frozen=True)
class Training:
    """The sizes of a model and of a batch, and the number of steps that are timed at a time."""

    name: str
    sizes: dict[str, int]
    B: int
    T: int
    steps: int

    def config(self) -> Any:
        off = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
        return import_module("tiedgpt").Config(
            **self.sizes, **off, bos_token_id=None, eos_token_id=None
        )


SMALL = {"n_layer": 4, "n_head": 4, "n_embd": 128}
TRAININGS = (
    # nanoGPT's setting for a CPU, on bytes; the shipped models' size; GPT-2 124M on llm.c's batch
    Training(
        "d 128, V 257, 12 x 64", SMALL | {"vocab_size": 257, "n_ctx": 64}, B=12, T=64, steps=40
    ),
    Training(
        "d 128, V 1024, 32 x 128", SMALL | {"vocab_size": 1024, "n_ctx": 128}, B=32, T=128, steps=20
    ),
    Training("124M, 4 x 64", {}, B=4, T=64, steps=3),
)
WARM_UP = 3  # steps before the first that is timed


class TiedGPTTraining:
    def __init__(self, training: Training) -> None:
        import_module("tiedgpt.fast").tune()  # before NumPy is imported, as the command line does
        np, tiedgpt = import_module("numpy"), import_module("tiedgpt")
        loop = import_module("tiedgpt.training.loop")
        t = self.training = training
        config = t.config()
        tokens = np.random.default_rng(0).integers(0, config.vocab_size, 100 * t.B * t.T)
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
        self.torch, self.training, self.config = import_module("torch"), training, training.config()
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
        model = torch_gpt2(self.torch, self.config)
        # torch draws embeddings with a standard deviation of 1. As an output matrix they give
        # probabilities so small that some processors compute them slowly.
        for parameter in model.parameters():
            if parameter.ndim == 2:
                self.torch.nn.init.normal_(parameter, std=0.02)
        return model

    def logits(self, ids: Any) -> Any:
        return self.model(ids)

    def step(self) -> None:
        V, t = self.config.vocab_size, self.training
        ids = self.torch.randint(V, (t.B, t.T + 1))
        logits = self.logits(ids[:, :-1])
        loss = self.torch.nn.functional.cross_entropy(logits.view(-1, V), ids[:, 1:].reshape(-1))
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def train_step(self) -> float:  # ms
        return 1e3 * statistics.median(seconds(self.step) for _ in range(self.training.steps))


class TransformersTraining(PyTorchTraining):
    """transformers' GPT-2, trained in the same way."""

    def new_model(self) -> Any:
        library = import_module("transformers")
        return library.GPT2LMHeadModel(library.GPT2Config(**self.config.to_json(), use_cache=False))

    def logits(self, ids: Any) -> Any:
        return self.model(ids).logits


TRAINING_SIDES: dict[str, type[Any]] = {
    "tiedgpt": TiedGPTTraining,
    "transformers": TransformersTraining,
    "PyTorch": PyTorchTraining,
}
