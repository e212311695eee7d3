#!/usr/bin/env python3
"""Tiny random checkpoints of every architecture, with what transformers computes for them.

    python3 make_golden.py [OUTPUT_FOLDER] [NAME ...]

Per checkpoint: config.json, model*.safetensors, golden.json (prompt ids, greedy ids, log-probabilities, margins) and golden.safetensors (float32
logits at every prompt position). Everything is computed in float32, eager attention, on one CPU thread; weights stored as bf16 or f16 are widened
to float32 first. Needs torch, transformers and safetensors; tiny-llama is not made here.
"""

import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file
from transformers import Gemma3TextConfig, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

SHAPE = dict(vocab_size=259, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0)

CASES = {
    # A window shorter than most prompts, one KV head, head_dim that is not hidden / heads.
    "mistral-window": dict(
        config=MistralConfig(hidden_size=40, intermediate_size=72, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1,
                             head_dim=12, sliding_window=8, rms_norm_eps=1e-5, tie_word_embeddings=False, **SHAPE),
    ),
    # Bias on q, k and v; two query heads a KV head; bf16 file.
    "qwen2-bias-bf16": dict(
        config=Qwen2Config(hidden_size=64, intermediate_size=88, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                           tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **SHAPE),
        dtype=torch.bfloat16,
    ),
    # q and k norms, tied, eight query heads on one KV head; head_dim times heads is twice the hidden size.
    "qwen3-tied": dict(
        config=Qwen3Config(hidden_size=48, intermediate_size=100, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=1,
                           head_dim=10, tie_word_embeddings=True, **SHAPE),
    ),
    # llama3 rope scaling with an original context short enough that prompts reach all three bands; tied; biases everywhere; f16 file.
    "llama3-rope-f16": dict(
        config=LlamaConfig(hidden_size=56, intermediate_size=90, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
                           head_dim=16, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
                           rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
                                            "high_freq_factor": 4.0, "original_max_position_embeddings": 64}, **SHAPE),
        dtype=torch.float16,
    ),
    # Qwen2 with a window in its last layer only, in three shards with an index.
    "qwen2-sharded-window": dict(
        config=Qwen2Config(hidden_size=32, intermediate_size=44, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2,
                           use_sliding_window=True, sliding_window=5, max_window_layers=2, tie_word_embeddings=False, **SHAPE),
        shards=3,
    ),
    # Four norms a layer, gelu, a scaled embedding, a window in two layers of three, tied; the scale of the queries is not 1/sqrt(head_dim).
    "gemma3-window": dict(
        config=Gemma3TextConfig(hidden_size=40, intermediate_size=72, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                                head_dim=12, query_pre_attn_scalar=20, sliding_window=6, tie_word_embeddings=True,
                                layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"], **SHAPE),
    ),
    # The full layers turn with a scaled base of their own; the file is bf16, the embedding's scale is not (as in float32).
    "gemma3-rope-bf16": dict(
        config=Gemma3TextConfig(hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1,
                                head_dim=16, query_pre_attn_scalar=16, sliding_window=9, tie_word_embeddings=True,
                                layer_types=["sliding_attention", "full_attention", "full_attention"],
                                rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                                                 "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}, **SHAPE),
        dtype=torch.bfloat16,
    ),
    # Two of five experts a token, one layer of three without experts, their weights not normalised in the second case.
    "qwen3-moe": dict(
        config=Qwen3MoeConfig(hidden_size=32, intermediate_size=56, moe_intermediate_size=24, num_hidden_layers=3, num_attention_heads=4,
                              num_key_value_heads=2, head_dim=8, num_experts=5, num_experts_per_tok=2, norm_topk_prob=True,
                              decoder_sparse_step=1, mlp_only_layers=[1], tie_word_embeddings=False, **SHAPE),
        published=True,
    ),
    "qwen3-moe-raw": dict(
        config=Qwen3MoeConfig(hidden_size=32, intermediate_size=40, moe_intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
                              num_key_value_heads=4, head_dim=8, num_experts=8, num_experts_per_tok=3, norm_topk_prob=False,
                              decoder_sparse_step=2, mlp_only_layers=[], tie_word_embeddings=True, **SHAPE),
        published=True,
    ),
}

PROMPT_LENGTHS = [1, 3, 8, 17, 40, 300]
STEPS = 24


def build(name, config, seed):
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "norm" in key:
                # transformers starts with ones (Gemma, which adds 1, with zeros), and biases with zeros: errors would not show
                p.copy_(torch.rand_like(p) - (0.5 if config.model_type.startswith("gemma") else -0.5))
            elif key.endswith("bias"):
                p.copy_(torch.randn_like(p) * 0.3)
            else:
                p.copy_(torch.randn_like(p) * ((0.15 if config.model_type.startswith("gemma") else 1.0) if "embed" in key else p.shape[-1] ** -0.5 * 1.5))
    return model


def save_published(folder, model):
    """As published checkpoints are: transformers 5 holds all experts in one tensor and writes one per expert."""
    model.config.architectures = [type(model).__name__]
    model.config.dtype = torch.float32
    model.save_pretrained(folder)
    for extra in ["generation_config.json"]:
        (folder / extra).unlink(missing_ok=True)


def save(folder, model, dtype, shards):
    tied = model.config.tie_word_embeddings
    tensors = {k: v.detach().to(dtype).contiguous() for k, v in model.state_dict().items() if not (tied and k == "lm_head.weight")}
    model.load_state_dict({k: v.float() for k, v in tensors.items()}, strict=False)  # compute with what the file holds
    model.config.dtype = dtype
    model.config.architectures = [type(model).__name__]
    model.config.to_json_file(folder / "config.json")
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return
    index = {"metadata": {"total_size": sum(t.numel() * t.element_size() for t in tensors.values())}, "weight_map": {}}
    names = sorted(tensors)
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = names[i::shards]
        save_file({n: tensors[n] for n in part}, folder / file, {"format": "pt"})
        index["weight_map"].update({n: file for n in part})
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1, sort_keys=True))


@torch.no_grad()
def reference(model, ids):
    """Logits of the whole prompt, and greedy decoding, each step over the whole sequence: no cache that could hide an error."""
    seq, greedy, logprobs, margins, first = list(ids), [], [], [], None
    prompt = model(torch.tensor([ids]), use_cache=False).logits[0, -40:].float().clone()
    for _ in range(STEPS):
        logits = model(torch.tensor([seq]), use_cache=False).logits[0, -1].float()
        top = logits.topk(2).values
        token = int(logits.argmax())
        lp = logits.double().log_softmax(-1)
        first = first if first is not None else lp
        greedy.append(token)
        logprobs.append(float(lp[token]))
        margins.append(float(top[0] - top[1]))
        seq.append(token)
    best = first.topk(5)
    return prompt, dict(ids=ids, greedy=greedy, logprob_of_greedy=logprobs, min_margin=min(margins),
                        top5_first_ids=best.indices.tolist(), top5_first_logprobs=best.values.tolist())


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    torch.set_num_threads(1)
    for number, (name, case) in enumerate(CASES.items()):
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        folder = out / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        seed = 100 + number
        model = build(name, case["config"], seed)
        if case.get("published"):
            save_published(folder, model)
        else:
            save(folder, model, case.get("dtype", torch.float32), case.get("shards", 1))
        tensors, prompts = {}, []
        rng = torch.Generator().manual_seed(seed)
        for i, n in enumerate(PROMPT_LENGTHS):
            ids = torch.randint(3, model.config.vocab_size, (n,), generator=rng).tolist()
            tensors[f"p{i}.logits"], prompt = reference(model, ids)
            prompts.append(prompt)
        save_file(tensors, folder / "golden.safetensors")
        (folder / "golden.json").write_text(json.dumps(dict(torch=torch.__version__, transformers=transformers.__version__, seed=seed, prompts=prompts)))
        size = sum(f.stat().st_size for f in folder.iterdir())
        print(f"{name}: {size / 1024:.0f} KiB, smallest margin {min(p['min_margin'] for p in prompts):.2g}, "
              f"distinct greedy tokens {len({t for p in prompts for t in p['greedy']})}")


main()
