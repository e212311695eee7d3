"""Writes reference.safetensors (by Hugging Face's safetensors) and configs.json (what transformers resolves config.json files to).

    python3 make.py    # needs torch, transformers and safetensors; the committed files were made with 2.14, 5.12.1 and 0.8.0
"""

import copy
import json
import os

import torch
from safetensors.torch import save_file
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

HERE = os.path.dirname(os.path.abspath(__file__))

tensors = {
    "b.bf16": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    "a.f16": torch.arange(3, dtype=torch.float16),
    "z.f32": torch.arange(4, dtype=torch.float32).reshape(2, 2),
    "ids.i64": torch.tensor([1, -1]),
    "mask": torch.tensor([True, False, True]),
    "q.f8": torch.arange(5, dtype=torch.float32).to(torch.float8_e4m3fn),
    "empty": torch.zeros(0, 7),
    "scalar": torch.tensor(2.5),
    'odd "name" <é>': torch.zeros(1, dtype=torch.uint8),
}
save_file(tensors, os.path.join(HERE, "reference.safetensors"), metadata={"format": "pt"})

BASE = dict(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4)
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)


def llama(**kw):
    return dict(BASE, architectures=["LlamaForCausalLM"], model_type="llama", **kw)


def mistral(**kw):
    return dict(BASE, architectures=["MistralForCausalLM"], model_type="mistral", **kw)


def qwen(n, **kw):
    return dict(BASE, architectures=[f"Qwen{n}ForCausalLM"], model_type=f"qwen{n}", **kw)


CASES = {
    "llama, all defaults": llama(),
    "llama, grouped query heads": llama(num_key_value_heads=2, rms_norm_eps=1e-5, max_position_embeddings=4096),
    "llama, null for what has a default": llama(num_key_value_heads=None, head_dim=None, rope_scaling=None),
    "llama 3.1, rope_scaling with rope_type": llama(rope_theta=500000.0, max_position_embeddings=131072, rope_scaling=dict(LLAMA3, rope_type="llama3")),
    "llama 3.1, rope_scaling with type": llama(rope_theta=500000.0, max_position_embeddings=131072, rope_scaling=dict(LLAMA3, type="llama3")),
    "llama 3.2, rope_parameters": llama(
        max_position_embeddings=131072, rope_parameters=dict(LLAMA3, factor=32.0, rope_type="llama3", rope_theta=500000.0), tie_word_embeddings=True
    ),
    "llama, theta outside rope_parameters": llama(rope_theta=20000.0, rope_parameters=dict(rope_type="default")),
    "llama, both forms: the older one wins": llama(
        max_position_embeddings=131072, rope_theta=500000.0, rope_scaling=dict(LLAMA3, rope_type="llama3"), rope_parameters=dict(rope_type="default", rope_theta=7.0)
    ),
    "llama, biases": llama(attention_bias=True, mlp_bias=True),
    "llama, several ends": llama(eos_token_id=[5, 6, 7], bos_token_id=4, pad_token_id=3),
    "llama, no ends": llama(eos_token_id=None, bos_token_id=None),
    "llama, a head_dim of its own": llama(head_dim=32),
    "mistral, window missing": mistral(num_key_value_heads=2),
    "mistral, window null": mistral(num_key_value_heads=2, sliding_window=None),
    "mistral, window": mistral(num_key_value_heads=2, sliding_window=128, max_position_embeddings=1024),
    "qwen2, window not in use": qwen(2, num_key_value_heads=2, sliding_window=128, use_sliding_window=False),
    "qwen2, window from layer 2 on": qwen(2, num_key_value_heads=2, sliding_window=128, use_sliding_window=True, max_window_layers=2),
    "qwen2, window by layer types": qwen(
        2, num_key_value_heads=2, sliding_window=64, use_sliding_window=True, layer_types=["sliding_attention", "full_attention"] * 2
    ),
    "qwen3, defaults": qwen(3, num_key_value_heads=2),
    "qwen3, tied": qwen(3, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, attention_bias=True, rope_theta=1000000),
}


def resolve(d):
    d = copy.deepcopy(d)
    c = AutoConfig.for_model(d.pop("model_type"), **d)
    window = getattr(c, "sliding_window", None)
    types = getattr(c, "layer_types", None) or ["sliding_attention" if window else "full_attention"] * c.num_hidden_layers
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    eos = c.eos_token_id
    c.head_dim = head_dim
    rope = LlamaRotaryEmbedding(c)  # the four classes compute it alike
    return {
        "NumKVHeads": c.num_key_value_heads,
        "HeadDim": head_dim,
        "MaxPositions": c.max_position_embeddings,
        "RMSNormEps": c.rms_norm_eps,
        "TieEmbeddings": c.tie_word_embeddings,
        "Windows": [(window or 0) if t == "sliding_attention" else 0 for t in types],
        "EOS": [] if eos is None else eos if isinstance(eos, list) else [eos],
        "InvFreq": rope.inv_freq.tolist(),
    }


with open(os.path.join(HERE, "configs.json"), "w") as f:
    cases = [json.dumps({"why": why, "config": d, "want": resolve(d)}) for why, d in CASES.items()]
    f.write("[\n" + ",\n".join(cases) + "\n]\n")
