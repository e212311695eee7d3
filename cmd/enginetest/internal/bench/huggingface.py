#!/usr/bin/env python3
"""The peer of `enginetest bench --device cuda --shape 1b`: Hugging Face transformers on a Llama of the same shape, random bf16 weights.

Prefill is the forward pass of all prompts at once, eager, scaled_dot_product_attention. Decoding is greedy on a static cache, the forward pass compiled
with mode reduce-overhead (CUDA graphs), from an empty context. Medians, and the least, of --repeat; times end with a synchronization of the device.
"""
import argparse
import statistics
import time

import torch
import transformers

SHAPES = {  # hidden, layers, heads, KV heads, head size, intermediate, vocabulary
    "1b": (2048, 16, 32, 8, 64, 8192, 128256),
    "tiny": (64, 2, 4, 2, 16, 128, 256),  # to try the script without a GPU
}
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--shape", choices=SHAPES, default="1b")
parser.add_argument("--device", default="cuda")
parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt")
parser.add_argument("--prompts", type=int, default=32, help="prompts of a prefill; 0 measures none")
parser.add_argument("--output", type=int, default=128, help="tokens of a decoding")
parser.add_argument("--batch", type=int, nargs="*", default=[1, 32], help="sequences of a decoding")
parser.add_argument("--repeat", type=int, default=5)
args = parser.parse_args()

hidden, layers, heads, kv_heads, head, intermediate, vocab = SHAPES[args.shape]
config = transformers.LlamaConfig(
    hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head, intermediate_size=intermediate,
    vocab_size=vocab, max_position_embeddings=8192, tie_word_embeddings=True,
)
torch.manual_seed(0)
with torch.device(args.device):
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()


def seconds(f):
    """Times of f, the device's work included, after two runs that are not counted."""
    times = []
    for i in range(args.repeat + 2):
        synchronize()
        began = time.perf_counter()
        f()
        synchronize()
        times.append(time.perf_counter() - began)
    return times[2:]


def synchronize():
    if args.device.startswith("cuda"):
        torch.cuda.synchronize()


def show(what, times, tokens):
    middle = statistics.median(times)
    print(f"{what:24} {1e3 * middle:9.3f} ms (least {1e3 * min(times):.3f})  {tokens / middle:10.0f} tok/s", flush=True)


@torch.inference_mode()
def prefill():
    ids = torch.randint(vocab, (args.prompts, args.prompt), device=args.device)
    times = seconds(lambda: model(ids, use_cache=True, logits_to_keep=1))
    show(f"prefill {args.prompts}×{args.prompt}", times, ids.numel())


@torch.inference_mode()
def decode(batch):
    cache = transformers.StaticCache(config=config, max_cache_len=args.output)
    ids = torch.zeros((batch, 1), dtype=torch.long, device=args.device)
    position = torch.zeros(1, dtype=torch.long, device=args.device)
    model(ids, past_key_values=cache, use_cache=True)  # makes the cache outside of the graph: what is made inside is overwritten by the next step
    step = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)

    def run():
        cache.reset()
        position.zero_()
        for _ in range(args.output):
            out = step(ids, past_key_values=cache, position_ids=position.expand(batch, 1), use_cache=True)
            ids.copy_(out.logits[:, -1:].argmax(-1))
            position.add_(1)

    times = [t / args.output for t in seconds(run)]
    show(f"a step of {batch}", times, batch)


where = torch.cuda.get_device_name() if args.device.startswith("cuda") else args.device
print(f"transformers {transformers.__version__}, torch {torch.__version__}, {sum(p.numel() for p in model.parameters()) / 1e9:.2f} B parameters, {where}")
if args.prompts:
    prefill()
for n in args.batch:
    decode(n)
