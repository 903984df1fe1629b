"""The libraries that benchmark.py measures, each through the fastest interface it has for a row.

Each side runs in its own process and is constructed from the path of a checkpoint in transformers'
layout. If a library cannot read that layout, `convert` first writes a file for it, in float32. All
sides get the same weights and token ids.

A line of benchmark.py's table is measured by one method of each side. Most sides have these three,
which the other methods use:

    read()           -> the model, from the files at self.path
    steps(rows, n)   -> the next n tokens of the first of B rows of ids, one after the other. The
                        other rows are continued with it. All are greedy; no token ends a text
    all_logits(ids)  -> the logits after each token

The libraries are imported where they are used, because not all of them are installed. Shapes: B
texts of T tokens, V tokens of vocabulary, L layers, H heads of K numbers, D numbers for each token.
"""

import os
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
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
    """Milliseconds per token, from the times at which tokens arrived.

    The time until the first token arrives is that of the prompt, and does not count.
    """
    return 1e3 * (times[-1] - times[0]) / (len(times) - 1)


def prompts(ids: list[int], batch: int) -> list[list[int]]:
    """`batch` different prompts: rotations of ids."""
    return [[*ids[n:], *ids[:n]] for n in range(batch)]


def placeholders(ids: Iterable[int]) -> list[str]:
    """A name for each token. Some libraries require names; speed does not depend on them."""
    return [f"t{token}" for token in ids]


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

    # The model from the files of `path`
    read: Callable[[], Any]

    # rows of ids, n -> the first row's next n tokens, one after the other
    steps: Callable[[list[list[int]], int], Iterator[int]]

    # ids [T] -> logits [T, V]
    all_logits: Callable[[list[int]], Any]

    # An object, its attribute, and the value that gives the model a separate output matrix
    untied: Any

    # The context manager in which the library computes
    mode: Callable[[], Any] = nullcontext

    def __init__(self, path: str) -> None:
        self.path = path
        self.model = self.read()

    @classmethod
    def has(cls, row: str) -> bool:
        return hasattr(cls, row) and row not in cls.lacks

    @classmethod
    def is_installed(cls) -> bool:
        try:
            for package in cls.packages:
                version(package)
        except PackageNotFoundError:
            return False
        return True

    def about(self) -> dict[str, str]:
        return {package: version(package) for package in self.packages}

    def timed(self, tokens: Iterable[int]) -> tuple[float, list[int]]:
        """Milliseconds per token, and the tokens."""
        all_tokens = []
        times = []
        with self.mode():
            for token in tokens:
                all_tokens.append(token)
                times.append(time.perf_counter())
        return ms_per_step(times), all_tokens

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
        bytes_per_unit = 1024
        if sys.platform == "darwin":  # macOS counts bytes, Linux kilobytes
            bytes_per_unit = 1
        resource: Any = import_module("resource")  # not on Windows
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak * bytes_per_unit / 1e6


class Arrays(Side):
    """A library of arrays. `ones` makes one of them."""

    ones: Callable[..., Any]

    def matrix_vector(self, n: int = 8192) -> float:  # GB/s
        W = self.ones((n, n))
        x = self.ones(n)
        duration = statistics.median(seconds(lambda: W @ x) for _ in range(20))
        return W.nbytes / duration / 1e9

    def matrix_product(self, n: int = 2048) -> float:  # GFLOP/s
        a = self.ones((n, n))
        b = self.ones((n, n))
        duration = statistics.median(seconds(lambda: a @ b) for _ in range(5))
        operations = 2 * n**3  # multiplications and additions
        return operations / duration / 1e9

    def decode_without_cache(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        """As picoGPT does: compute the logits of the whole text for each new token."""
        return self.timed(self.steps_without_cache(ids, n))

    def steps_without_cache(self, ids: list[int], n: int) -> Iterator[int]:
        text = list(ids)
        for _ in range(n):
            next_logits = self.all_logits(text)[-1]
            token = int(next_logits.argmax())
            text.append(token)
            yield token


class Checkout(Side):
    """A checkout of tiedgpt, by the names that do not change."""

    def __init__(self, path: str) -> None:
        # Like the command line, tune before NumPy is imported. Older checkouts have no `tune`,
        # because they do this when they are imported.
        with suppress(ImportError, AttributeError):
            import_module("tiedgpt.fast").tune()
        self.tiedgpt = import_module("tiedgpt")
        super().__init__(path)

    def read(self) -> Any:
        # All rows but "decode, untied" measure the tied model. That row unties it.
        model = self.tiedgpt.load_model(self.path, head="tied")
        config = replace(model.config, eos_token_id=None)  # so that no token ends a text
        return self.tiedgpt.GPT2(config, model.parameters)

    def steps(self, rows: Any, n: int) -> Iterator[int]:
        if len(rows) == 1:  # the package has a function for one sequence
            yield from self.tiedgpt.generate(self.model, rows[0], n, greedy=True, draft=None)
            return
        B = len(rows)
        T = len(rows[0])
        cache = self.model.new_cache(B, T + n)
        ids = rows  # the whole prompts, and from the second step on the newest tokens
        for _ in range(n):
            next_logits = self.model(ids, cache)[:, -1]  # [B, V]
            ids = next_logits.argmax(axis=1)[:, None]  # [B, 1]
            yield int(ids[0, 0])


class Beside(Checkout):
    """The checkout in the folder $TIEDGPT_BESIDE."""

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


class Profile:
    """The time in the functions of PROFILED while they are replaced by timed ones."""

    def __init__(self) -> None:
        # For each call: its part, and its seconds without those of the timed calls in it
        self.durations: list[tuple[str, float]] = []
        self.of_thread = threading.local()

    def call(self, part: str, function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        """Call a function, and note how long it takes without the timed calls in it."""
        # In each thread, `seconds_inside` adds up the timed calls in the one that runs now. While
        # this call runs, its caller's sum waits here.
        seconds_inside_caller = getattr(self.of_thread, "seconds_inside", 0.0)
        self.of_thread.seconds_inside = 0.0
        start = time.perf_counter()
        result = function(*args, **named)
        duration = time.perf_counter() - start
        self.durations.append((part, duration - self.of_thread.seconds_inside))
        self.of_thread.seconds_inside = seconds_inside_caller + duration
        return result

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time the functions in every module of tiedgpt that has imported them.

        Raises LookupError if a function does not exist any more.
        """
        modules = [module for name, module in sys.modules.items() if name.startswith("tiedgpt.")]
        with ExitStack() as stack:  # at its end, the modules get their own functions back
            for name, part in PROFILED.items():
                users = [module for module in modules if callable(vars(module).get(name))]
                if not users:
                    raise LookupError(f"no module of tiedgpt has a function {name!r} to profile")
                for module in users:
                    function = vars(module)[name]
                    timed = partial(self.call, part, function)
                    stack.enter_context(patch.object(module, name, timed))
            yield

    def percentages(self) -> dict[str, float]:
        """The share of each part in the time of all."""
        totals: dict[str, float] = defaultdict(float)
        for part, duration in self.durations:
            totals[part] += duration
        whole = sum(totals.values())
        return {part: 100 * totals[part] / whole for part in PROFILED.values()}


class TiedGPT(Checkout, Arrays):
    packages = ("NumPy",)

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.np = import_module("numpy")
        self.all_logits = self.model
        self.ones = partial(self.np.ones, dtype="f4")

    def about(self) -> dict[str, str]:
        blas = self.np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        about = super().about()
        about["BLAS"] = f"{blas['name']} {blas['version']}"
        kernels = import_module("tiedgpt.fast.blas").kernels()
        if kernels is not None:
            about["BLAS"] += f" with kernels for {kernels}"
        return about

    @cached_property
    def untied(self) -> Any:
        return self, "model", self.model.untie("copy")

    def decode_drafted(self, ids: list[int], n: int, source: Any) -> tuple[float, list[int]]:
        """The milliseconds of a token, and the tokens. source: "lookup", or a model that drafts."""
        generation = import_module("tiedgpt.generation")
        sampling = generation.Sampling(greedy=True)
        streams = generation.random_streams(seed=0, n=1)  # greedy text draws nothing from them
        draft = generation.Draft(source, self.model)
        batch = [ids]
        steps = generation.sample_steps(self.model, batch, n, sampling, streams, draft)

        def tokens() -> Iterator[int]:
            for tokens_of_prompts in steps:
                (new_tokens,) = tokens_of_prompts  # of the only prompt
                yield from new_tokens

        ms_and_tokens = self.timed(tokens())
        # Each step gives one token of the model's own, besides the drafted ones that are right.
        steps_of_model = n - draft.accepted
        self.tokens_per_step = n / steps_of_model
        return ms_and_tokens

    def decode_lookup(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        return self.decode_drafted(ids, n, "lookup")

    def decode_layers(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        return self.decode_drafted(ids, n, self.first_layers)

    @cached_property
    def first_layers(self) -> Any:
        """The first quarter of the model's layers, as a model."""
        config = replace(self.model.config, n_layer=self.model.config.n_layer // 4)
        names = import_module("tiedgpt.gpt2.parameters").parameter_shapes(config).keys()
        parameters = {name: self.model.parameters[name] for name in names}
        return self.tiedgpt.GPT2(config, parameters)

    def lookup_tokens_per_step(self) -> float:
        return self.tokens_per_step

    layers_tokens_per_step = lookup_tokens_per_step

    def score(self, ids: list[int]) -> float:
        token_losses = import_module("tiedgpt.evaluation").token_losses
        stride = self.model.config.n_ctx // 2
        duration = seconds(lambda: token_losses(self.model, ids, stride))
        predicted = len(ids) - 1  # all tokens but the first
        return predicted / duration

    def products_by_blocks(self, rows: int) -> float:
        """The time of a step's products by the blocks' matrices / that of `rows @ weight`."""
        products = import_module("benchmark_products")
        weights = products.block_weights(self.model)
        _time, ratio = products.compare(weights, rows, turns=5)
        return ratio

    def product_by_output_matrix(self, rows: int) -> float:
        """The time of the product by the output matrix / that of `rows @ weight`."""
        products = import_module("benchmark_products")
        _time, ratio = products.compare([self.model.W_U], rows, turns=5)
        return ratio

    # What benchmark.py needs to know about the model

    def config(self) -> dict[str, Any]:
        return asdict(self.model.config)

    def bytes_per_token(self) -> int:
        """Bytes of all weights but the position embedding, of which a token reads one row.

        The token embedding is read as the output matrix.
        """
        parameters = self.model.parameters
        bytes_of_all = sum(array.nbytes for array in parameters.values())
        return bytes_of_all - parameters["wpe.weight"].nbytes

    def operations(self, T: int) -> int:
        """Floating-point operations of a prompt's matrix products, with one token's logits."""
        config = self.model.config
        V = config.vocab_size
        D = config.n_embd
        F = config.n_inner
        L = config.n_layer
        # The number of multiplications. Each comes with an addition.
        of_blocks = T * L * (4 * D * D + 2 * D * F)
        of_output_matrix = V * D
        # Attention has two products of T * T * D, of which the causal mask leaves half.
        of_attention = L * T * T * D
        return 2 * (of_blocks + of_output_matrix + of_attention)

    def profile(self, method: str, *args: Any) -> dict[str, float]:
        """The parts of one method's time, in percent. The times of threads are added up."""
        measure = getattr(self, method)
        profile = Profile()
        with profile.running():
            measure(*args)
        return profile.percentages()


def read_torch_gpt2(path: str) -> Any:
    """The plain torch module with a checkpoint's weights."""
    torch = import_module("torch")
    model = import_module("tiedgpt").load_model(path, head="tied")
    module = import_module("torch_gpt2").GPT2(model.config)
    weights = {}
    for name, array in model.parameters.items():
        if name.startswith("h.") and array.ndim == 2:
            array = array.T  # nn.Linear keeps a matrix as [out, in], GPT-2 as [in, out]
        weights[name] = torch.from_numpy(array)
    module.load_state_dict(weights)
    return module.eval()


class PyTorch(Arrays):
    """A plain decoding loop in torch: scaled_dot_product_attention and a KV cache allocated in
    advance."""

    packages = ("torch",)
    lacks = ("load",)  # it gets tiedgpt's arrays

    def __init__(self, path: str) -> None:
        self.torch = import_module("torch")
        self.torch_gpt2 = import_module("torch_gpt2")
        self.ones = self.torch.ones
        self.mode = self.torch.inference_mode
        super().__init__(path)
        self.head = self.model.wte.weight

    def read(self) -> Any:
        return read_torch_gpt2(self.path)

    @cached_property
    def untied(self) -> Any:
        return self, "head", self.head.detach().clone()

    def steps(self, rows: Any, n: int) -> Iterator[int]:
        ids = self.torch.tensor(rows)
        linear = self.torch.nn.functional.linear
        B, T = ids.shape
        cache = self.torch_gpt2.Cache(self.model, B=B, T=T + n)
        for _ in range(n):
            hidden = self.model.hidden(ids, start=cache.length, attend=cache.attend)
            cache.length += ids.shape[1]
            next_logits = linear(hidden[:, -1], self.head)  # [B, V]
            ids = next_logits.argmax(dim=1, keepdim=True)  # [B, 1]
            yield int(ids[0, 0])

    def all_logits(self, ids: list[int]) -> Any:
        return self.model(self.torch.tensor([ids]))[0]


class Transformers(Side):
    packages = ("torch", "transformers")

    def __init__(self, path: str) -> None:
        self.torch = import_module("torch")
        self.transformers = import_module("transformers")
        self.mode = self.torch.inference_mode
        super().__init__(path)
        self.model.generation_config.eos_token_id = None  # so that no text ends early

    def read(self) -> Any:
        # All rows but "decode, untied" measure the tied model.
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
            """Called after each step. Its answer, False for each sequence, does not stop any."""

            def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
                times.append(time.perf_counter())
                return input_ids.new_zeros(len(input_ids), dtype=bool)

        rows = self.torch.tensor(prompts(ids, batch))
        inputs = {"input_ids": rows, "attention_mask": self.torch.ones_like(rows)}
        settings = {"do_sample": False, "max_new_tokens": n, "min_new_tokens": n}
        out = self.model.generate(**inputs, **settings, stopping_criteria=[NotingTimes()])
        text = out[0].tolist()  # the first prompt and what follows it
        return ms_per_step(times), text[len(ids) :]

    def prompt(self, ids: list[int]) -> float:
        array = self.torch.tensor([ids])
        return self.second_call_ms(
            lambda: self.model(input_ids=array, use_cache=True, logits_to_keep=1)
        )

    def all_logits(self, ids: list[int]) -> Any:
        return self.model(input_ids=self.torch.tensor([ids]), use_cache=False).logits[0]

    def score(self, ids: list[int]) -> float:
        """The recipe of Hugging Face's documentation, "Perplexity of fixed-length models"."""
        text = self.torch.tensor([ids])
        with self.mode():
            duration = seconds(lambda: self.score_windows(text))
        predicted = len(ids) - 1  # all tokens but the first
        return predicted / duration

    def score_windows(self, text: Any) -> None:
        """Compute the losses of a text [1, T] in windows, each half a context after the last."""
        n_ctx = self.model.config.n_positions
        length = text.shape[1]
        scored = 0  # tokens
        for start in range(0, length, n_ctx // 2):
            end = min(start + n_ctx, length)
            window = text[:, start:end]
            labels = window.clone()
            new = end - scored
            labels[:, :-new] = -100  # the loss leaves these out, because they are scored already
            self.model(window, labels=labels, use_cache=False).loss.item()
            scored = end
            if end == length:
                break


def set_linear(spec: Any, parameters: Mapping[str, Any], name: str) -> None:
    """Give a layer of CTranslate2 its matrix, which it keeps as [out, in], and its bias."""
    spec.weight = import_module("numpy").ascontiguousarray(parameters[f"{name}.weight"].T)
    spec.bias = parameters[f"{name}.bias"]


def set_norm(spec: Any, parameters: Mapping[str, Any], name: str) -> None:
    spec.gamma = parameters[f"{name}.weight"]
    spec.beta = parameters[f"{name}.bias"]


class CTranslate2(Side):
    packages = ("CTranslate2",)
    lacks = ("decode_untied",)

    @staticmethod
    def convert(directory: str, out: Path) -> str:
        """Write a CTranslate2 model as the library's converter does, but from tiedgpt's arrays."""
        specs = import_module("ctranslate2.specs")
        model = import_module("tiedgpt").load_model(directory, head="tied")
        config = model.config
        parameters = model.parameters
        spec = specs.TransformerDecoderModelSpec.from_config(
            config.n_layer, config.n_head, pre_norm=True, activation=specs.Activation.GELUTanh
        )
        spec.decoder.scale_embeddings = False
        spec.decoder.embeddings.weight = parameters["wte.weight"]
        spec.decoder.position_encodings.encodings = parameters["wpe.weight"]
        set_norm(spec.decoder.layer_norm, parameters, "ln_f")
        spec.decoder.projection.weight = parameters["wte.weight"]
        for n, layer in enumerate(spec.decoder.layer):
            set_norm(layer.self_attention.layer_norm, parameters, f"h.{n}.ln_1")
            set_linear(layer.self_attention.linear[0], parameters, f"h.{n}.attn.c_attn")
            set_linear(layer.self_attention.linear[1], parameters, f"h.{n}.attn.c_proj")
            set_norm(layer.ffn.layer_norm, parameters, f"h.{n}.ln_2")
            set_linear(layer.ffn.linear_0, parameters, f"h.{n}.mlp.c_fc")
            set_linear(layer.ffn.linear_1, parameters, f"h.{n}.mlp.c_proj")
        vocabulary = placeholders(range(config.vocab_size))
        spec.register_vocabulary(vocabulary)
        # The library requires these. The last token is GPT-2's <|endoftext|>.
        end_of_text = vocabulary[-1]
        spec.config.bos_token = end_of_text
        spec.config.eos_token = end_of_text
        spec.config.unk_token = end_of_text
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
        names = [placeholders(row) for row in rows]  # CTranslate2 takes tokens as strings
        lengths = {"max_length": n, "min_length": n, "include_prompt_in_result": False}
        return self.model.generate_batch(names, sampling_topk=1, **lengths, **more)

    def decode_batch(self, ids: list[int], n: int, batch: int) -> tuple[float, list[int]]:
        times: dict[int, float] = {}  # the number of a step -> when its last sequence was done

        def note_time(token: Any) -> bool:
            times[token.step] = time.perf_counter()
            return False  # True would end the text

        results = self.generate(prompts(ids, batch), n, callback=note_time)
        [tokens] = results[0].sequences_ids  # one text for each prompt
        return ms_per_step(sorted(times.values())), tokens

    def prompt(self, ids: list[int]) -> float:
        return self.second_call_ms(lambda: self.generate([ids], 1))

    def all_logits(self, ids: list[int]) -> Any:
        return self.model.forward_batch([placeholders(ids)])


# Names of tiedgpt's modules -> those in GGUF files
GGUF_NAMES = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """A parameter's name in a GGUF file: blk.0.attn_qkv.weight for h.0.attn.c_attn.weight."""
    module, _, kind = name.rpartition(".")
    if not module.startswith("h."):
        return f"{GGUF_NAMES[module]}.{kind}"
    _, layer, module = module.split(".", 2)
    return f"blk.{layer}.{GGUF_NAMES[module]}.{kind}"


def write_gguf(path: str, model: Any, dtype: str) -> None:
    """Write a GGUF file. dtype: "F32", or "F16" for the matrices that tokens are multiplied by."""
    gguf = import_module("gguf")
    np = import_module("numpy")
    config = model.config
    end_of_text = config.vocab_size - 1
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_context_length(config.n_ctx)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_head_count(config.n_head)
    writer.add_feed_forward_length(config.n_inner)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(placeholders(range(config.vocab_size)))
    writer.add_token_merges(["t 0"])  # llama.cpp expects merges; no text is tokenized
    writer.add_bos_token_id(end_of_text)
    writer.add_eos_token_id(end_of_text)
    for name, array in model.parameters.items():
        if name.startswith("h."):
            array = array.T  # GGUF stores a matrix as [out, in]; a vector stays as it is
        is_multiplied = array.ndim == 2 and name != "wpe.weight"
        if is_multiplied:
            tensor_dtype = gguf.GGMLQuantizationType[dtype]
        else:
            tensor_dtype = gguf.GGMLQuantizationType["F32"]
        data = gguf.quants.quantize(np.ascontiguousarray(array), tensor_dtype)
        writer.add_tensor(gguf_name(name), data, raw_dtype=tensor_dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp(Side):
    packages = ("llama-cpp-python", "gguf")
    lacks = ("decode_batch", "decode_untied", "logits")

    @staticmethod
    def convert(directory: str, out: Path) -> str:
        """Write two GGUF files, of float32 and of float16 matrices."""
        model = import_module("tiedgpt").load_model(directory, head="tied")
        for dtype in ("F32", "F16"):
            write_gguf(f"{out}-{dtype}.gguf", model, dtype)
        return str(out)

    def read(self, dtype: str = "F32", **options: Any) -> Any:
        threads = int(os.environ["OMP_NUM_THREADS"])
        return import_module("llama_cpp").Llama(
            f"{self.path}-{dtype}.gguf",
            n_ctx=0,  # the length in the file
            n_threads=threads,
            n_threads_batch=threads,
            n_batch=1024,  # tokens of a prompt that are read at once: all
            verbose=False,
            **options,
        )

    def steps(self, rows: list[list[int]], n: int) -> Iterator[int]:
        llama_cpp = import_module("llama_cpp")
        ctypeslib = import_module("numpy").ctypeslib
        (ids,) = rows  # this side has no batches
        self.model.reset()
        for _ in range(n):
            self.model.eval(ids)
            last = -1
            pointer = llama_cpp.llama_get_logits_ith(self.model.ctx, last)
            next_logits = ctypeslib.as_array(pointer, shape=(self.model.n_vocab(),))
            token = int(next_logits.argmax())
            yield token
            ids = [token]

    @cached_property
    def f16(self) -> Any:
        return self.read("F16")

    def decode_f16(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        with patch.object(self, "model", self.f16):
            return self.decode(ids, n)

    @cached_property
    def lookup_model(self) -> Any:
        """A model that drafts tokens and counts its steps."""
        lookup = import_module("llama_cpp.llama_speculative").LlamaPromptLookupDecoding()

        def draft(ids: Any) -> Any:  # called before each step of the model but the first
            self.lookup_steps += 1
            return lookup(ids)

        return self.read(draft_model=draft)

    def decode_lookup(self, ids: list[int], n: int) -> tuple[float, list[int]]:
        self.lookup_model.reset()
        self.lookup_steps = 1  # the first step, before which nothing is drafted
        endless_tokens = self.lookup_model.generate(ids, temp=0, repeat_penalty=1.0)
        ms_and_tokens = self.timed(islice(endless_tokens, n))
        self.tokens_per_step = n / self.lookup_steps
        return ms_and_tokens

    def lookup_tokens_per_step(self) -> float:
        return self.tokens_per_step


def make_stateful(step: Any, L: int, H: int, K: int) -> None:
    """Let an OpenVINO model of a step keep its keys and values as its state.

    Its inputs are ids, rows, and the past keys and values of each layer, [B, H, S, K] for S past
    tokens. `rows` has, for each row of ids, the index of its sequence in the past. The outputs are
    the logits and the present keys and values.
    """
    openvino = import_module("openvino")
    ops = import_module("openvino.opset13")
    passes = import_module("openvino.passes")

    # The shape of each input by name; an axis of -1 may have any length.
    shapes = {"ids": [-1, -1], "rows": [-1]}
    # The name of each past input, and that of its present output.
    present_of_past = {}
    for n in range(2 * L):  # the keys and the values of each layer
        shapes[f"past.{n}"] = [-1, H, -1, K]
        present_of_past[f"past.{n}"] = f"present.{n}"
    for port, name in zip(step.inputs, shapes, strict=True):
        port.get_tensor().set_names({name})
    step.reshape({name: openvino.PartialShape(shape) for name, shape in shapes.items()})
    _logits, *present_ports = step.outputs
    for port, name in zip(present_ports, present_of_past.values(), strict=True):
        port.get_tensor().set_names({name})

    # Each pair of a past input and its present output becomes a state.
    manager = passes.Manager()
    manager.register_pass(passes.MakeStateful(present_of_past))
    manager.run_passes(step)

    # Let each state start empty, [B, H, 0, K]. An operation ReadValue reads a state, and its
    # argument is what the state starts with.
    shape_of_ids = ops.shape_of(step.inputs[0])
    first, axis = ops.constant([0]), ops.constant(0)
    B = ops.gather(shape_of_ids, first, axis)  # the first number of the shape
    shape = ops.concat([B, ops.constant([H, 0, K])], 0)
    empty = ops.broadcast(ops.constant(0.0, openvino.Type.f32), shape)
    for operation in step.get_ops():
        if operation.get_type_name() == "ReadValue":
            operation.set_arguments([empty.output(0)])
    step.validate_nodes_and_infer_types()


class OpenVINO(Side):
    """The plain torch module, converted twice, because each is faster at its task:

    x.xml         keeps the keys and values as its state, as OpenVINO's own exports do
    x-prompt.xml  reads a prompt with causal attention and returns the keys and values
    """

    packages = ("OpenVINO", "torch")
    lacks = ("decode_untied", "logits")

    @staticmethod
    def convert(directory: str, out: Path) -> str:
        openvino = import_module("openvino")
        torch = import_module("torch")
        model = read_torch_gpt2(directory)
        L = len(model.h)
        H = model.n_head
        K = model.head_width

        # OpenVINO follows a call of the module with examples of its inputs: one text of two tokens,
        # and the keys and values of three tokens before it.
        module = import_module("torch_gpt2").WithCache(model)
        ids = torch.zeros(1, 2, dtype=torch.int64)
        rows = torch.zeros(1, dtype=torch.int32)
        past = [torch.zeros(1, H, 3, K)] * 2 * L  # the keys and the values of each layer
        with torch.no_grad():
            prompt = openvino.convert_model(module, example_input=ids)
            step = openvino.convert_model(module, example_input=(ids, rows, *past))
        prompt.reshape([-1, -1])  # any number of texts and of tokens
        openvino.save_model(prompt, f"{out}-prompt.xml", compress_to_fp16=False)

        make_stateful(step, L, H, K)
        openvino.save_model(step, f"{out}.xml", compress_to_fp16=False)
        return str(out)

    def __init__(self, path: str) -> None:
        self.np = import_module("numpy")
        self.openvino = import_module("openvino")
        super().__init__(path)

    def read(self, suffix: str = "") -> Any:
        """The model that is used for steps, or with the suffix "-prompt" that for prompts."""
        threads = int(os.environ["OMP_NUM_THREADS"])
        settings = {
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        model = self.openvino.Core().compile_model(f"{self.path}{suffix}.xml", "CPU", settings)
        return model.create_infer_request()

    def steps(self, rows: Any, n: int) -> Iterator[int]:
        self.model.reset_state()
        ids = self.np.array(rows)
        all_rows = self.np.arange(len(rows), dtype="i4")
        for _ in range(n):
            inputs = {"ids": ids, "rows": all_rows}
            outputs = self.model.infer(inputs, share_inputs=True, share_outputs=True)
            next_logits = outputs[0]  # [B, V]
            ids = next_logits.argmax(axis=1)[:, None]  # [B, 1]
            yield int(ids[0, 0])

    @cached_property
    def prompt_model(self) -> Any:
        return self.read("-prompt")

    def prompt(self, ids: list[int]) -> float:
        inputs = [self.np.array([ids])]
        infer = self.prompt_model.infer
        return self.second_call_ms(lambda: infer(inputs, share_inputs=True, share_outputs=True))


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
        return import_module("tiedgpt").Config(
            **self.sizes,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=None,
            eos_token_id=None,
        )


SMALL = {"n_layer": 4, "n_head": 4, "n_embd": 128}
BYTES = SMALL | {"vocab_size": 257, "n_ctx": 64}
SHIPPED = SMALL | {"vocab_size": 1024, "n_ctx": 128}
TRAININGS = (
    Training("d 128, V 257, 12 x 64", BYTES, B=12, T=64, steps=40),  # nanoGPT's setting for a CPU
    Training("d 128, V 1024, 32 x 128", SHIPPED, B=32, T=128, steps=20),
    Training("124M, 4 x 64", {}, B=4, T=64, steps=3),  # llm.c's batch
)
WARM_UP = 3  # steps before the first that is timed


class TiedGPTTraining:
    def __init__(self, training: Training) -> None:
        import_module("tiedgpt.fast").tune()  # before NumPy is imported, as the command line does
        np = import_module("numpy")
        tiedgpt = import_module("tiedgpt")
        loop = import_module("tiedgpt.training.loop")
        self.training = training
        config = training.config()
        rng = np.random.default_rng(0)
        tokens = rng.integers(0, config.vocab_size, 100 * training.B * training.T)
        # The evaluation of the held-out text is not to be measured, so the text is as short as
        # possible. It is evaluated before the first step, and then after a tenth of all steps.
        # There are so many steps that this is never reached.
        held_out = tokens[:2]
        settings = loop.Settings(steps=10**9, batch=training.B, context=training.T)
        model = tiedgpt.GPT2.random(config)
        # A step is computed when its record is asked for.
        self.records = loop.Trainer(model, tokens, held_out, settings).run()
        for _ in range(WARM_UP):
            next(self.records)

    def train_step(self) -> float:  # ms
        speeds = [next(self.records)["tokens_per_s"] for _ in range(self.training.steps)]
        tokens = self.training.B * self.training.T  # of a step
        return 1e3 * tokens / statistics.median(speeds)


class PyTorchTraining:
    """The plain torch module and torch's fused AdamW."""

    def __init__(self, training: Training) -> None:
        self.torch = import_module("torch")
        self.training = training
        self.config = training.config()
        self.model = self.new_model().train()
        # As in tiedgpt, matrices decay, and vectors do not.
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        vectors = [p for p in self.model.parameters() if p.ndim == 1]
        groups = [
            {"params": matrices, "weight_decay": 0.1},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.optimizer = self.torch.optim.AdamW(groups, lr=1e-3, fused=True)
        for _ in range(WARM_UP):
            self.step()

    def new_model(self) -> Any:
        model = import_module("torch_gpt2").GPT2(self.config)
        # torch draws embeddings with a standard deviation of 1. As an output matrix they give
        # probabilities so small that some processors compute them slowly.
        for parameter in model.parameters():
            if parameter.ndim == 2:
                self.torch.nn.init.normal_(parameter, std=0.02)
        return model

    def logits(self, ids: Any) -> Any:
        return self.model(ids)

    def step(self) -> None:
        V = self.config.vocab_size
        ids = self.torch.randint(V, (self.training.B, self.training.T + 1))
        targets = ids[:, 1:]  # each token predicts the next one
        logits = self.logits(ids[:, :-1])
        loss = self.torch.nn.functional.cross_entropy(logits.view(-1, V), targets.reshape(-1))
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def train_step(self) -> float:  # ms
        return 1e3 * statistics.median(seconds(self.step) for _ in range(self.training.steps))


class TransformersTraining(PyTorchTraining):
    """transformers' GPT-2, trained in the same way."""

    def new_model(self) -> Any:
        library = import_module("transformers")
        config = library.GPT2Config(**self.config.to_json(), use_cache=False)
        return library.GPT2LMHeadModel(config)

    def logits(self, ids: Any) -> Any:
        return self.model(ids).logits


TRAINING_SIDES: dict[str, type[Any]] = {
    "tiedgpt": TiedGPTTraining,
    "transformers": TransformersTraining,
    "PyTorch": PyTorchTraining,
}
