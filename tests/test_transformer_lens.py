"""TransformerLens 4 reads a shipped checkpoint: the same activations, and the same parts of a logit."""

import warnings
from pathlib import Path

import numpy as np
import pytest

import tiedgpt
from tiedgpt.study.attribution import attribute

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
bridge = pytest.importorskip("transformer_lens.model_bridge", reason="transformer-lens 4 is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")
PATH = str(Path(__file__).resolve().parents[1] / "weights" / "shakespeare-tied")
IDS = np.random.default_rng(0).integers(1024, size=(1, 21))


@pytest.fixture(scope="module")
def theirs():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bridge.TransformerBridge.boot_transformers(PATH, device="cpu", dtype=torch.float32).eval()


def test_every_activation(theirs):
    model, tape = tiedgpt.load_model(PATH), {}
    model(IDS, tape=tape)
    with torch.no_grad():
        cache = theirs.run_with_cache(torch.tensor(IDS))[1]
    activations = {name: cache[name] for name in cache.keys()}  # noqa: SIM118
    assert "blocks.3.attn.hook_q" in activations
    for given, count in ((activations, 2 + 14 * 4), (theirs, 2 + 10 * 4)):
        report = tiedgpt.compare(model, given, IDS)
        assert report.first is None, str(report)
        assert len(report.rows) >= count
        for row in report.rows:
            assert row.error <= 2e-6 * max(1, np.abs(tape[row.name]).max()), row.name
    scores = cache["blocks.1.attn.hook_attn_scores"].numpy()  # masked, and so not compared
    seen = scores > -1e30
    np.testing.assert_allclose(scores[seen], tape["attn.1.scores"][seen], atol=1e-5)
    wrong = {"blocks.1.attn.hook_k": activations["blocks.1.attn.hook_q"]}
    assert tiedgpt.compare(model, wrong, IDS).first.name == "attn.1.k"


def test_attribution(theirs):
    """decompose_resid and stack_head_results, read by the head through ln_f, are our parts."""
    model = tiedgpt.load_model(PATH)
    with torch.no_grad():
        logits, cache = theirs.run_with_cache(torch.tensor(IDS))
        parts, labels = cache.decompose_resid(layer=-1, return_labels=True, mode="full")
        heads, head_labels = cache.stack_head_results(layer=-1, return_labels=True)
    token = int(logits[0, -1].argmax())
    ours = attribute(model, IDS[0], token)
    scale = cache["ln_final.hook_scale"][0, -1].double().numpy()
    for label, vector in zip([*labels, *head_labels], [*parts, *heads], strict=True):
        x = vector[0, -1].detach().double().numpy()
        read = (x - x.mean()) / scale * model.parameters["ln_f.weight"] @ model.W_U[:, token]
        layer, _, kind = label.partition("_")
        names = {"embed": ["wte"], "pos_embed": ["wpe"]}.get(label, [])
        if label.startswith("L"):
            layer, head = label[1:].split("H")
            names = [f"attn.{layer}.head.{head}"]
        elif kind in ("attn_out", "mlp_out"):
            prefix = f"{kind.removesuffix('_out')}.{layer}"
            names = [name for name in ours if f"{name}.".startswith(f"{prefix}.")]
        assert names, label
        assert sum(ours[name] for name in names) == pytest.approx(read, abs=5e-6), label
    assert sum(ours.values()) == pytest.approx(float(logits[0, -1, token]), abs=1e-4)
