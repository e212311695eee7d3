"""Trains small tokenizers with the pipelines of real checkpoints and writes what Hugging Face's library encodes and decodes with them.

    python3 make.py                       # writes NAME/tokenizer.json and NAME/golden.json beside this file
    python3 make.py --random 3000 --seed 7 --out DIR   # also DIR/NAME.json: random strings, for the differential test (see README.md)

Needs the Python package tokenizers; the committed files were made with 0.23.1.
"""

import argparse
import json
import os
import random
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SUFFIX}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = O200K.replace(SUFFIX, "").replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
]

HARD = [
    "",
    " ",
    "  ",
    "\n",
    "a",
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "  two  spaces   and    more     ",
    "\n\nnew\r\nlines\t\tand tabs \r\n \r\n\t\n end",
    "trailing newline\n",
    "trailing spaces   ",
    " \n \n  x",
    "naïve café Über Straße",
    "cafe\u0301 A\u030a \u1e9b\u0323 \ufb01 \u2126 \uac00 \u1100\u1161\u11a8",  # combining marks, compatibility forms, Hangul
    "日本語のテキスト、漢字とカタカナ。ｶﾀｶﾅ",
    "中文没有空格，但是有标点。",
    "한국어 텍스트입니다",
    "Привет, мир! Ёлка",
    "مرحبا بالعالم، كيف حالك؟ ١٢٣٤",
    "שלום עולם",
    "ภาษาไทยไม่มีช่องว่าง ๑๒๓",
    "हिन्दी में पाठ क्षत्रिय १२३",
    "emoji 😀👩‍👩‍👧 🏳️‍🌈 👍🏽 🇫🇷 end",
    "123 4567 89.01 1234567890 ½ ² Ⅳ ㊿ 𝟙𝟚",
    "don't we'll I'M they'RE it'S you'D I'VE 'tis 'S'T'LL x'ſ '",
    "DON'T We'Ll CamelCase HTMLParser iPhoneXS ǅungla ABC'sDef ÀÉÎ éÉé",
    "x=1;y=2\tif(a&&b){return c[0]/2;}//comment\n/// <tag attr=\"v\"/>\n",
    "https://example.com/path?q=1&r=%20#frag user@example.org",
    "$100.00 €5 #hash @at 100% a_b __init__ snake_case_name",
    "...!!!??? --- *** ~~~ ((())) \"quoted\" 'single' `code`",
    "nul\x00in\x00side \x01\x02\x7f",
    "nbsp\u00a0here\u3000ideographic\u0085nel\u2028ls\u2029ps\u200bzwsp\u202fnnbsp\ufeffbom",
    "\u00a0\u00a0 \u3000\u3000x \u0085\u0085y \u2003 z",
    "soft\u00adhyphen ﬀ ligature ßẞ İıſ Kelvin K Å",
    "z\u0335\u0321a\u0300\u0301\u0302l\u0303\u0304g\u0305\u0306o\u0307\u0308 \u0301leading mark",
    "a" + "\u0301" * 40 + "b" + "\u0323\u0301" * 20,  # more than 30 combining marks in a row
    "<s>inside</s> <|endoftext|> <|im_start|>user\nhi<|im_end|>\n<|begin_of_text|>",
    "<|endoftext|><|endoftext|>  <|endoftext|>x<|endoftext",
    "  <mask>  word <mask>word lone[W]word [W] [W]. x[W] Ünï[N] ünï[N] UNI\u0308[N]",
    "<0x41> <0xE2> ▁under▁▁bar ▁ Ġ Ċ",
    "\U0001f9d1\U0001f3ff\u200d\U0001f680 \U00020000\U0002a6d6 \U0010ffff \ufffd \ufffe",
    "mixed日本English한국русский123abc١٢٣",
    "w" * 300,
    "ab" * 200 + " " * 50 + "1" * 100,
    "?" * 40 + "\n" * 5 + "\t" * 7 + "x",
    "ａｂｃ　１２３ ①②③ ™ ℀ ﷺ ㎏",
    "line one\rline two\r\r\nline three\u000b\u000cend",
    "¿Qué? ¡Sí! «guillemets» „low“ ‘curly’s don’t",
    "\u0e33\u0f77\u0958\u2adc \u0344 \u0340\u0341\u0343",  # composition exclusions and singletons
    "\u0301ABC \u0301abc A\u0301BC a\u0301B \u01c5Z ʰA中B中b \u0301\u0301",  # marks and caseless letters among cased ones
    "\U000105d4's \U00010d5f'T \U00010d75'Ve \U00010d40\U00010d41\U00010d42\U00010d43 x\U0001e5d0",  # new in Unicode 16
    "Ġé ïÂ Ã© 'S'sſ 'ſ \u212a 'M'D'rE'LL'lL'LE'RR",
    "೧೨೩ ৳ ﹏ ‿ ⁀ _ \u200d\u200c joiner",
]


def corpus(seed=1):
    r = random.Random(seed)
    nouns = "lighthouse keeper harbour storm engine memory token river garden teacher window letter story number".split()
    verbs = "watched opened carried painted remembered followed counted finished repaired answered".split()
    lines = []
    for _ in range(3000):
        a, b, v = r.choice(nouns), r.choice(nouns), r.choice(verbs)
        lines.append(f"The {a} {v} the {b}, and the {b}'s {r.choice(nouns)} didn't {v[:-2]} {r.randint(0, 9999)}.")
        if r.random() < 0.2:
            lines.append(f'{{"{a}": {r.randint(0, 99)}, "{b}": [{r.random():.2f}, "{v}"]}}')
        if r.random() < 0.1:
            lines.append(f"def {v}_{a}(x):\n    return x + {r.randint(0, 9)}\n")
    for s in HARD[5:35]:
        if len(s) < 120:
            lines += [s] * 12
    return lines


def byte_level(split, normalizer=None, **bpe):
    def build():
        t = Tokenizer(models.BPE(**bpe))
        if normalizer:
            t.normalizer = normalizer
        if split is None:
            t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        else:
            steps = [pre_tokenizers.Split(Regex(p), "isolated") for p in split]
            t.pre_tokenizer = pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        t.decoder = decoders.ByteLevel()
        t.post_processor = processors.ByteLevel(trim_offsets=False)
        return t, dict(vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())

    return build


def llama2(metaspace):
    def build():
        t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
        if metaspace:
            t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
        else:
            t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        t.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(content=" ", left=1, right=0)]
        )
        return t, dict(vocab_size=1200, limit_alphabet=120, max_token_length=12)

    return build


def old_metaspace():
    """The form before byte fallback: unknown characters fuse into <unk>; every word begins with the visible space."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Digits(individual_digits=True)])
    t.decoder = decoders.Metaspace()
    return t, dict(vocab_size=700, limit_alphabet=90)


MADE = {
    "gpt2": byte_level(None),
    "llama3": byte_level([LLAMA3], ignore_merges=True),
    "qwen2": byte_level([QWEN2], normalizers.NFC()),
    "qwen35": byte_level([QWEN35], normalizers.NFC()),
    "cl100k": byte_level([CL100K], normalizers.NFKD()),
    "o200k": byte_level([O200K]),
    "tekken": byte_level([TEKKEN], normalizers.NFD()),
    "deepseek": byte_level(DEEPSEEK),
    "llama2": llama2(False),
    "mistral": llama2(True),
    "metaspace": old_metaspace,
}


def finish(name, t):
    """Adds the special and added tokens and the post-processor of the model's kin."""
    specials = ["<unk>", "<s>", "</s>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>"]
    t.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in specials])
    t.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=name in ("llama3", "mistral"), special=True, normalized=False)])
    t.add_tokens([AddedToken("[W]", single_word=True, normalized=False), AddedToken("ünï[N]", normalized=True), AddedToken("   ", normalized=False)])
    bos, eos = ("<s>", "</s>") if name in ("llama2", "mistral", "metaspace") else ("<|begin_of_text|>", "<|endoftext|>")
    ids = [(s, t.token_to_id(s)) for s in (bos, eos)]
    template = processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=ids)
    if name == "llama3":
        template = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    if name == "metaspace":
        template = processors.TemplateProcessing(single=f"{bos} $A {eos}", pair=f"{bos} $A $B", special_tokens=ids)
    if name not in ("gpt2", "qwen2"):
        t.post_processor = template


def train(name):
    t, options = MADE[name]()
    options = dict(show_progress=False, special_tokens=["<unk>", "<s>", "</s>"], **options)
    if "initial_alphabet" not in options and "fallback" in json.dumps(json.loads(t.to_str())["model"]).lower() and name != "metaspace":
        options["special_tokens"] += [f"<0x{b:02X}>" for b in range(256)]
    t.train_from_iterator(corpus(), trainers.BpeTrainer(**options))
    finish(name, t)
    return t


def reload(name, t):
    """Goes through the file, as a reader does; byte tokens must not stay special."""
    f = json.loads(t.to_str())
    f["added_tokens"] = [a for a in f["added_tokens"] if not a["content"].startswith("<0x")]
    if name in ("cl100k", "llama2"):  # the older form of merges
        f["model"]["merges"] = [" ".join(m) for m in f["model"]["merges"]]
    text = json.dumps(f, ensure_ascii=False, separators=(",", ":"))
    return text, Tokenizer.from_str(text)


def reference(t, texts, lists):
    cases = []
    for s in texts:
        ids, special = t.encode(s, add_special_tokens=False).ids, t.encode(s).ids
        cases.append(
            {"text": s, "ids": ids, "special": special, "decoded": t.decode(special, skip_special_tokens=False), "skipped": t.decode(special)}
        )
    for ids in lists:
        cases.append({"special": ids, "decoded": t.decode(ids, skip_special_tokens=False), "skipped": t.decode(ids)})
    return cases


def random_text(r, known):
    kinds = [
        lambda: chr(r.randrange(0x20, 0x7F)),
        lambda: r.choice(" \t\n\r\x0b\x0c\u0085\u00a0\u2003\u2028\u3000  \n"),
        lambda: r.choice(["'s", "'T", "'ll", "'Ve", "'d", "'ſ", "don't", "the", " of", "123", "१२", "<s>", "<mask>", "[W]", "ünï[N]", "   ", "▁", "Ġ"]),
        lambda: chr(r.randrange(0x300, 0x370)),
        lambda: chr(r.choice([r.randrange(0xA0, 0x250), r.randrange(0x370, 0x600), r.randrange(0x600, 0x1200)])),
        lambda: chr(r.choice([r.randrange(0x2000, 0x2C00), r.randrange(0x3000, 0x3200), r.randrange(0x4E00, 0x9FFF), r.randrange(0xAC00, 0xD7A4)])),
        lambda: chr(r.choice([r.randrange(0xF900, 0x10000), r.randrange(0x10000, 0x11000), r.randrange(0x1F000, 0x1FB00), r.randrange(0xE000, 0x110000)])),
        lambda: r.choice(HARD[5:35])[:12],
    ]
    weights = [r.random() ** 2 for _ in kinds]
    s = "".join(r.choices(kinds, weights)[0]() for _ in range(r.choice([1, 2, 3, 5, 8, 13, 30, 80])))
    # The library's normalizers know an old Unicode (a stale table, not an intent): keep to characters that it has.
    return "".join(c for c in s if not known or unicodedata.ucd_3_2_0.category(c) != "Cn")


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--random", type=int, default=0)
    args.add_argument("--seed", type=int, default=7)
    args.add_argument("--out", default="")
    args = args.parse_args()
    for name in MADE:
        path = os.path.join(HERE, name)
        if args.out:
            t = Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
        else:
            text, t = reload(name, train(name))
            os.makedirs(path, exist_ok=True)
            with open(os.path.join(path, "tokenizer.json"), "w") as f:
                f.write(text)
        n = t.get_vocab_size()
        r = random.Random(args.seed)
        ids = lambda count: [[r.randrange(n) for _ in range(r.choice([1, 2, 4, 9, 20]))] for _ in range(count)]
        # Low ids are bytes and specials: many broken characters.
        low = lambda count: [[r.randrange(300) for _ in range(r.choice([2, 5, 12]))] for _ in range(count)]
        if args.out:
            cases, out = reference(t, [random_text(r, t.normalizer is not None) for _ in range(args.random)], ids(args.random) + low(args.random)), os.path.join(args.out, name + ".json")
        else:
            cases, out = reference(t, HARD, ids(15) + low(15)), os.path.join(path, "golden.json")
        with open(out, "w") as f:
            f.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")
        print(name, n, "tokens,", len(cases), "cases")


main()
