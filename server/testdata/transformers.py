"""An engine as many are built: a launcher that serves HTTP, a worker, and a core in a session of its own that holds the model.

A request goes to the core over a unix socket. The answer comes back in shared memory, and a named semaphore announces it.
SIGTERM ends all of it in order, unless --forget is set: then the launcher leaves what it started, as one that is killed does.
"""

import argparse
import ctypes
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from multiprocessing import resource_tracker, shared_memory

SIZE = 1 << 20
libc = ctypes.CDLL(None, use_errno=True)
libc.sem_open.restype = ctypes.c_void_p
libc.sem_open.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_uint]
libc.sem_wait.argtypes = libc.sem_post.argtypes = [ctypes.c_void_p]


def semaphore(name):
    sem = libc.sem_open(name.encode(), os.O_CREAT, 0o600, 0)
    if not sem:
        raise OSError(ctypes.get_errno(), "sem_open " + name)
    return sem


def segment(name, create):
    shm = shared_memory.SharedMemory(name, create, SIZE)
    # Python's resource tracker would remove it when the launcher is killed; an engine in C++ has none.
    resource_tracker.unregister(shm._name, "shared_memory")
    return shm


class Model:
    def __init__(self, folder, device):
        import torch
        import transformers

        self.torch = torch
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder).float().to(self.device).eval()
        self.reserve = torch.empty(256 << 20, dtype=torch.uint8, device=self.device)  # as a KV cache would

    def complete(self, prompt, max_tokens):
        ids = self.tokenizer(prompt, return_tensors="pt")["input_ids"].to(self.device)
        with self.torch.inference_mode():
            out = self.model.generate(ids, max_new_tokens=max_tokens, do_sample=False, pad_token_id=0)
        new = out[0, ids.shape[1] :].tolist()
        stop = bool(new) and new[-1] == self.model.config.eos_token_id
        return self.tokenizer.decode(new[:-1] if stop else new), "stop" if stop else "length"


def core(args):
    model = Model(args.model, args.device)
    shm, sem = segment(args.name, False), semaphore("/" + args.name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(args.socket)
    listener.listen()
    print("core", os.getpid(), "holds the model on", model.device, flush=True)
    while True:
        conn, _ = listener.accept()
        with conn, conn.makefile("r") as lines:
            for line in lines:
                q = json.loads(line)
                text, reason = model.complete(q["prompt"], q["max_tokens"])
                answer = json.dumps({"text": text, "finish_reason": reason}).encode()
                shm.buf[: len(answer) + 4] = len(answer).to_bytes(4, "little") + answer
                libc.sem_post(sem)


def worker(_):
    argv = [sys.executable, __file__, "--role=core"] + sys.argv[2:]
    child = subprocess.Popen(argv, start_new_session=True)
    signal.signal(signal.SIGTERM, lambda *_: child.kill())
    sys.exit(child.wait() & 0x7F)


class Launcher:
    def __init__(self, args):
        self.forget = args.forget
        self.name = "et-transformers-%d" % os.getpid()
        self.path = os.path.join(tempfile.gettempdir(), "core.sock")
        self.shm, self.sem = segment(self.name, True), semaphore("/" + self.name)
        argv = ["--model", args.model, "--device", args.device, "--name", self.name, "--socket", self.path]
        self.worker = subprocess.Popen([sys.executable, __file__, "--role=worker"] + argv)
        self.link, self.lock, self.ready = socket.socket(socket.AF_UNIX), threading.Lock(), threading.Event()

    def connect(self):
        while self.worker.poll() is None:
            try:
                self.link.connect(self.path)
                self.ready.set()
                return
            except OSError:
                threading.Event().wait(0.05)
        os._exit(1)

    def ask(self, prompt, max_tokens):
        with self.lock:
            self.link.sendall(json.dumps({"prompt": prompt, "max_tokens": max_tokens}).encode() + b"\n")
            libc.sem_wait(self.sem)
            n = int.from_bytes(self.shm.buf[:4], "little")
            return json.loads(bytes(self.shm.buf[4 : n + 4]))

    def end(self, *_):
        if not self.forget:
            self.worker.terminate()
            self.worker.wait()
            libc.shm_unlink(("/" + self.name).encode())
            libc.sem_unlink(("/" + self.name).encode())
            os.unlink(self.path)
        os._exit(0)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body):
        b = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(b)))
        self.end_headers()
        self.wfile.write(b)

    def do_GET(self):
        if self.path == "/v1/models":
            self.answer(200, {"data": [{"id": "bundled"}]})
        else:
            self.answer(200 if self.server.engine.ready.is_set() else 503, {})

    def do_POST(self):
        q = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        got = self.server.engine.ask(q["prompt"], q.get("max_tokens") or 16)
        self.answer(200, {"choices": [{"index": 0, **got}]})

    def log_message(self, *_):
        pass


def launcher(args):
    engine = Launcher(args)
    signal.signal(signal.SIGTERM, engine.end)
    threading.Thread(target=engine.connect, daemon=True).start()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", args.port), Handler)
    server.engine = engine
    server.serve_forever()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--role", default="launcher", choices=["launcher", "worker", "core"])
    p.add_argument("--port", type=int)
    p.add_argument("--model")
    p.add_argument("--device", default="")
    p.add_argument("--name")
    p.add_argument("--socket")
    p.add_argument("--forget", action="store_true")
    args = p.parse_args()
    {"launcher": launcher, "worker": worker, "core": core}[args.role](args)
