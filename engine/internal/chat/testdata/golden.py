"""Writes golden.json: what transformers renders of features.txt and of families/*.jinja. Needs transformers and jinja2.

python3 golden.py   # in this folder
"""
import datetime as dt
import json
import pathlib

import jinja2
import transformers
from transformers.utils import chat_template_utils as utils


class Clock(dt.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 2, 3, 4, 5, 6)


utils.datetime = Clock

TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "Adds \"two\" numbers <é>", "parameters": {
        "type": "object", "properties": {"b": {"type": "number"}, "a": {"type": "number", "default": 1.5}}, "required": ["b", "a"]}}},
    {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}},
]
CALL = {"id": "abcdef123", "type": "function", "function": {"name": "add", "arguments": {"b": 2, "a": 40}}}
CHATS = {
    "plain": [{"role": "user", "content": " What is 2+3? "}],
    "system": [{"role": "system", "content": "Be brief. "}, {"role": "user", "content": "Hi"}],
    "turns": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": " <think>\nhm\n</think>\n\nHello "}, {"role": "user", "content": "2+3?\n"}],
    "system_turns": [{"role": "system", "content": "S"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},
                     {"role": "assistant", "content": "d"}],
    "tool_call": [{"role": "user", "content": "40+2?"}, {"role": "assistant", "content": "", "tool_calls": [CALL]},
                  {"role": "tool", "content": "42", "tool_call_id": "abcdef123"}, {"role": "assistant", "content": "It is 42."}],
    "wrong_order": [{"role": "assistant", "content": "me first"}, {"role": "assistant", "content": "and again"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]}],
    "unicode": [{"role": "user", "content": "Füße 日本 \u2028 \U0001f600 'q' \"d\" \\ \t"}],
    "empty": [],
}
VARS = {
    "bos_token": "<s>", "eos_token": "</s>", "n": 7, "neg": -7, "f": 2.5, "big": 1e16, "small": 0.00001, "s": "Hello, World", "u": "Füße 日本 \U0001f600",
    "e": "", "words": ["b", "A", "c", "a"], "nums": [3, 1, 2, 1], "none": None, "yes": True, "lines": "one\n  two\n\nthree\r\nfour",
    "d": {"z": 1, "a": [1, 2.0, None, True, "x\"y\n"], "m": {"k": "v"}}, "users": [{"name": "Bo", "age": 3, "tags": ["x"]}, {"name": "al", "age": 30}, {"name": "Cy", "age": 7, "tags": []}],
}


def render(template, variables):
    try:
        return {"want": utils._cached_compile_jinja_template(template).render(**variables)}
    except Exception as e:  # whatever Jinja or Python says: there is no text
        return {"fails": f"{type(e).__name__}: {e}"}


cases = []
features = pathlib.Path("features.txt").read_text(newline="").split("\n=====\n")
for i, template in enumerate(features):
    cases.append({"name": f"feature {i+1}", "template": template, **render(template, VARS)})
for path in sorted(pathlib.Path("families").glob("*.jinja")):
    source = path.read_text()
    for name, messages in CHATS.items():
        for tools in (None, TOOLS):
            for prompt in (False, True):
                v = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": prompt, "bos_token": "<s>", "eos_token": "</s>"}
                cases.append({"name": f"{path.stem} {name}{' tools' if tools else ''}{' prompt' if prompt else ''}", "file": path.name, "chat": name,
                              "tools": bool(tools), "prompt": prompt, **render(source, v)})
out = {"transformers": transformers.__version__, "jinja2": jinja2.__version__, "vars": VARS, "tools": TOOLS, "chats": CHATS, "cases": cases}
pathlib.Path("golden.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")
print(len(cases), "cases,", sum("fails" in c for c in cases), "fail")
