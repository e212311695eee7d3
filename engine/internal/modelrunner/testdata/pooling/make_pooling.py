#!/usr/bin/env python3
"""Tiny random checkpoints of models that pool, with what transformers computes for them.

    python3 make_pooling.py [OUTPUT_FOLDER] [NAME ...]

Per checkpoint: config.json, model.safetensors, golden.json: per prompt its ids, and what the head gives: "last", "mean", "cls" (each as it is and
normalised to length one), "pooler" (BERT's), "logits", or "pairs" for a cross encoder (ids with token types). Everything is computed in float32,
eager attention, one sequence at a time. Needs torch, transformers and safetensors.
"""

import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file
from transformers import BertConfig, Qwen2Config, Qwen3Config

SHAPE = dict(vocab_size=259, max_position_embeddings=512, pad_token_id=0)

CASES = {
    # Published embedding checkpoints of Qwen3 name their tensors without "model."; sentence-transformers says how they are pooled.
    "qwen3-embedding": dict(
        model=transformers.Qwen3Model, architecture="Qwen3ForCausalLM",
        config=Qwen3Config(hidden_size=48, intermediate_size=100, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
                           bos_token_id=1, eos_token_id=2, tie_word_embeddings=True, **SHAPE),
        pooling="lasttoken", normalize=True,
    ),
    "qwen2-classify": dict(
        model=transformers.Qwen2ForSequenceClassification,
        config=Qwen2Config(hidden_size=40, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, num_labels=3,
                           bos_token_id=1, eos_token_id=2, tie_word_embeddings=False, **SHAPE),
    ),
    "qwen3-rerank": dict(
        model=transformers.Qwen3ForSequenceClassification,
        config=Qwen3Config(hidden_size=40, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1, head_dim=10,
                           num_labels=1, bos_token_id=1, eos_token_id=2, tie_word_embeddings=True, **SHAPE),
    ),
    "bert-embed": dict(
        model=transformers.BertModel,
        config=BertConfig(hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4, type_vocab_size=2, **SHAPE),
        pooling="mean", normalize=True,
    ),
    "bert-classify": dict(
        model=transformers.BertForSequenceClassification,
        config=BertConfig(hidden_size=40, intermediate_size=72, num_hidden_layers=2, num_attention_heads=5, type_vocab_size=2, num_labels=4, **SHAPE),
    ),
    "bert-cross-encoder": dict(
        model=transformers.BertForSequenceClassification,
        config=BertConfig(hidden_size=40, intermediate_size=72, num_hidden_layers=2, num_attention_heads=4, type_vocab_size=2, num_labels=1, **SHAPE),
    ),
}

PROMPT_LENGTHS = [1, 2, 9, 33, 120]


def build(case, seed):
    torch.manual_seed(seed)
    config = case["config"]
    config._attn_implementation = "eager"
    model = case["model"](config).float().eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "norm" in key.lower() and key.endswith("weight"):
                p.copy_(0.5 + torch.rand_like(p))
            elif key.endswith("bias"):
                p.copy_(torch.randn_like(p) * 0.3)
            else:
                p.copy_(torch.randn_like(p) * (0.7 if "embed" in key else p.shape[-1] ** -0.5 * 1.5))
    return model


def save(folder, model, case):
    tensors = {k: v.detach().contiguous() for k, v in model.state_dict().items() if "position_ids" not in k and k != "lm_head.weight"}
    model.config.dtype = torch.float32
    model.config.architectures = [case.get("architecture", type(model).__name__)]
    model.config.to_json_file(folder / "config.json")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    if "pooling" not in case:
        return
    modules = [dict(idx=0, name="0", path="", type="sentence_transformers.models.Transformer"),
               dict(idx=1, name="1", path="1_Pooling", type="sentence_transformers.models.Pooling")]
    if case.get("normalize"):
        modules.append(dict(idx=2, name="2", path="2_Normalize", type="sentence_transformers.models.Normalize"))
    (folder / "modules.json").write_text(json.dumps(modules, indent=2))
    (folder / "1_Pooling").mkdir()
    kinds = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]
    chosen = {"mean": "mean_tokens", "cls": "cls_token"}.get(case["pooling"], case["pooling"])
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(
        {"word_embedding_dimension": model.config.hidden_size, **{f"pooling_mode_{k}": k == chosen for k in kinds}, "include_prompt": True}, indent=2))


@torch.no_grad()
def reference(model, ids, types=None):
    inputs = dict(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long))
    if types is not None:
        inputs["token_type_ids"] = torch.tensor([types])
    out = model(**inputs)
    got = dict(ids=ids)
    if types is not None:
        got["token_types"] = types
    if "logits" in out:
        got["logits"] = out.logits[0].double().tolist()
        return got
    hidden = out.last_hidden_state[0].double()
    for name, v in dict(last=hidden[-1], cls=hidden[0], mean=hidden.mean(0)).items():
        got[name] = v.tolist()
        got[name + "_normalized"] = torch.nn.functional.normalize(v, dim=0).tolist()
    if getattr(out, "pooler_output", None) is not None:
        got["pooler"] = out.pooler_output[0].double().tolist()
    return got


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    torch.set_num_threads(1)
    for number, (name, case) in enumerate(CASES.items()):
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        folder = out / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        model = build(case, 200 + number)
        save(folder, model, case)
        rng = torch.Generator().manual_seed(200 + number)
        prompts = []
        for n in PROMPT_LENGTHS:
            ids = torch.randint(3, 259, (n,), generator=rng).tolist()
            prompts.append(reference(model, ids))
            if isinstance(case["config"], BertConfig) and n > 2:
                prompts.append(reference(model, ids, [0] * (n // 2) + [1] * (n - n // 2)))
        golden = dict(torch=torch.__version__, transformers=transformers.__version__, seed=200 + number, prompts=prompts)
        (folder / "golden.json").write_text(json.dumps(golden))
        print(name, {k: tuple(v.shape) for k, v in list(model.state_dict().items())[:3]}, "first:", prompts[0].get("logits", prompts[0].get("mean", []))[:3])


main()
