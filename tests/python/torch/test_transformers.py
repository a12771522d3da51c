"""Tiny random Transformers models: "tilewright" against "eager"."""

import pytest
import torch

import tilewright.torch as twt

transformers = pytest.importorskip("transformers")

COMMON = {
    "vocab_size": 99,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 98,
}
WINDOWS = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
MODELS = {
    "Llama": {},
    "Mistral": {"sliding_window": 8},
    "Gemma2": {**WINDOWS, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 16},
    "Gemma3": {**WINDOWS, "query_pre_attn_scalar": 16},
    "Qwen2": {},
    "Qwen3": {},
    "GptOss": {**WINDOWS, "num_local_experts": 2, "num_experts_per_tok": 1},
    "Llama4": {
        "intermediate_size_mlp": 96, "num_local_experts": 2, "num_experts_per_tok": 1,
        "attention_chunk_size": 8, "interleave_moe_layer_step": 1,
    },
    "Cohere2": WINDOWS,
    "Olmo3": WINDOWS,
}  # fmt: skip
CLASSES = {"Llama4": ("Llama4TextConfig", "Llama4ForCausalLM"), "Gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM")}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _registered():
    twt.register_transformers()


def causal_lm(name):
    config, model = CLASSES.get(name, (f"{name}Config", f"{name}ForCausalLM"))
    config = getattr(transformers, config)(**{**COMMON, **MODELS[name]})
    torch.manual_seed(3)
    made = getattr(transformers, model)(config).eval()
    if name == "GptOss":  # sinks are not initialised
        for layer in made.model.layers:
            torch.nn.init.normal_(layer.self_attn.sinks)
    return made


def padded(length=21):
    ids = torch.randint(2, 97, (2, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    ids[1, :5] = 0
    return ids, mask


def by(model, name, call):
    model.set_attn_implementation(name)
    try:
        return call()
    finally:
        model.set_attn_implementation("eager")


def close(have, want, tolerance=1e-5):
    error = float((have - want).abs().max())
    assert error <= tolerance * max(1.0, float(want.abs().max()))


@pytest.mark.parametrize("name", MODELS)
def test_prefill(name):
    model = causal_lm(name)
    ids, mask = padded()
    with torch.no_grad():
        for inputs in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": mask}):
            want, have = (
                by(model, which, lambda inputs=inputs: model(**inputs).logits)
                for which in ("eager", "tilewright")
            )
            keep = inputs.get("attention_mask", torch.ones_like(ids)).bool()
            close(have[keep], want[keep])


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", MODELS)
def test_generate(name, cache):
    model = causal_lm(name)
    ids, mask = padded()
    options = {"max_new_tokens": 12, "do_sample": False, "cache_implementation": cache}
    options["disable_compile"] = True
    want, have = (
        by(model, which, lambda: model.generate(input_ids=ids, attention_mask=mask, **options))
        for which in ("eager", "tilewright")
    )
    assert torch.equal(have, want)


@pytest.mark.parametrize("name", ["Llama", "Gemma2"])
def test_compiled_in_one_graph(name):
    model = causal_lm(name)
    ids, mask = padded()

    def logits(run):
        return run(input_ids=ids, attention_mask=mask, use_cache=False).logits[mask.bool()]

    with torch.no_grad():
        want = logits(model)
        model.set_attn_implementation("tilewright")
        close(logits(torch.compile(model, backend="aot_eager", fullgraph=True)), want)


@pytest.mark.parametrize("name", MODELS)
def test_a_training_step(name):
    model = causal_lm(name).train()
    ids, mask = (x.flip(1) for x in padded())  # on the right, as is usual in training
    labels = ids.masked_fill(mask == 0, -100)

    def gradients():
        model.zero_grad()
        model(input_ids=ids, attention_mask=mask, labels=labels).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    want, have = (by(model, which, gradients) for which in ("eager", "tilewright"))
    assert want.keys() == have.keys()
    for name in want:
        close(have[name], want[name], 1e-4)


def test_t5():
    config = transformers.T5Config(
        vocab_size=99, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=0,
    )  # fmt: skip
    torch.manual_seed(3)
    model = transformers.T5ForConditionalGeneration(config).eval()
    ids, mask = padded()

    def run():
        model.zero_grad()
        out = model(input_ids=ids, attention_mask=mask, labels=ids)
        out.loss.backward()
        bias = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
        return out.logits.detach(), bias.grad.clone()

    want, have = (by(model, which, run) for which in ("eager", "tilewright"))
    close(have[0], want[0])
    close(have[1], want[1], 1e-4)
    tokens = [
        by(
            model,
            which,
            lambda: model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=9),
        )
        for which in ("eager", "tilewright")
    ]
    assert torch.equal(*tokens)


def test_bert():
    config = transformers.BertConfig(
        vocab_size=99, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(3)
    model = transformers.BertModel(config)
    ids, mask = padded()
    mask = mask.flip(1)  # padding on the right

    def run():
        model.zero_grad()
        out = model(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()]
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        return out.detach(), model.embeddings.word_embeddings.weight.grad.clone()

    want, have = (by(model, which, run) for which in ("eager", "tilewright"))
    close(have[0], want[0])
    close(have[1], want[1], 1e-4)


def test_vit():
    config = transformers.ViTConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        image_size=32, patch_size=8,
    )  # fmt: skip
    torch.manual_seed(3)
    model = transformers.ViTModel(config)
    pixels = torch.randn(2, 3, 32, 32)

    def run():
        model.zero_grad()
        out = model(pixels).last_hidden_state
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        return out.detach(), model.embeddings.patch_embeddings.projection.weight.grad.clone()

    want, have = (by(model, which, run) for which in ("eager", "tilewright"))
    close(have[0], want[0])
    close(have[1], want[1], 1e-4)


def test_decoding_builds_no_mask_and_records_nothing(monkeypatch):
    from tilewright.torch import _block_mask, _environment

    model = causal_lm("Llama")
    ids, mask = padded()
    options = {"do_sample": False, "input_ids": ids, "attention_mask": mask}
    by(model, "tilewright", lambda: model.generate(max_new_tokens=6, **options))
    built, before = [], _environment.counts["recorded"]
    create = _block_mask.create_block_mask
    monkeypatch.setattr(
        _block_mask, "create_block_mask", lambda *a, **k: built.append(a) or create(*a, **k)
    )
    by(model, "tilewright", lambda: model.generate(max_new_tokens=12, **options))
    assert _environment.counts["recorded"] == before
    assert len(built) == 1  # the prompt's
