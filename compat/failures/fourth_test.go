package failures

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// served are tests of the module testdata/served, an inference server with defects: the folder, the
// test, and the flags of "go test". Half of them look like failures of the machine.
var served = map[string]string{
	"engine--4-crash-eof":      "engine TestFirstToken",
	"engine--4-crash-refused":  "engine TestHealthStays",
	"engine--4-crash-noise":    "engine TestSecondModel",
	"engine--4-crash-panic":    "engine TestRowThree",
	"engine--4-crash-retries":  "engine TestRetry",
	"engine--4-crash-oom-warn": "engine TestBatchFour",
	"engine--4-files":          "engine TestManyRequests",
	"engine--4-pool":           "engine TestPoolDrains",
	"engine--4-upstream":       "engine TestUpstream",
	"engine--4-cut":            "engine TestStream",
	"engine--4-worker":         "engine TestRanks",
	"engine--4-other-port":     "engine TestReady",
	"engine--4-config":         "engine TestLoads",
	"engine--4-heads":          "engine TestTensorSplit",
	"engine--4-url":            "engine TestModels",
	"engine--4-https":          "engine TestVersion",
	"engine--4-mode":           "engine TestWorkerStarts",
	"engine--4-mmap":           "engine TestMapEmpty",
	"engine--4-makeslice":      "engine TestLongPrompt",
	"engine--4-pipe":           "engine TestSteps",
	"engine--4-killed":         "engine TestSlots",
	"engine--4-closed":         "engine TestStopped",
	"engine--4-joined":         "engine TestReload",
	"engine--4-port-range":     "engine TestPortRange",
	"engine--4-race":           "engine TestCount -race",
	"engine--4-socket":         "engine TestSocket",
	"engine--4-base":           "hub TestBase",
	"engine--4-empty":          "hub TestEmpty",

	"timeout--4-start":    "engine TestWarmUp",
	"timeout--4-hang":     "engine TestHang",
	"timeout--4-token":    "engine TestTokenSoon",
	"timeout--4-drain":    "engine TestDrain",
	"timeout--4-deadlock": "engine TestSteal -timeout 3s",

	"test--4-latency":  "engine TestLatency",
	"test--4-tokens":   "engine TestTokens",
	"test--4-logprobs": "engine TestLogprobs",
	"test--4-testdata": "engine TestTiny",
	"test--4-golden":   "engine TestGolden",
	"test--4-noise":    "engine TestAnswer",
	"test--4-message":  "engine TestMessage",
	"test--4-status":   "engine TestListModels",
	"test--4-text":     "engine TestErrorText",
	"test--4-table":    "engine TestTable",
	"test--4-404":      "hub TestMisspelled",
	"test--4-sum":      "hub TestSum",
	"test--4-mirrors":  "hub TestTwoMirrors",

	"leak--4-goroutine":   "engine TestBackground",
	"leak--4-port":        "engine TestRestart",
	"leak--4-descriptors": "engine TestDescriptors",

	"infra--4-spill":     "engine TestSpill",
	"infra--4-trace":     "engine TestTrace",
	"infra--4-port":      "engine TestFixedPort",
	"infra--4-metrics":   "engine TestMetricsPort",
	"infra--4-hub-503":   "hub TestTiny",
	"infra--4-hub-429":   "hub TestSmall",
	"infra--4-hub-reset": "hub TestReset",
	"infra--4-hub-short": "hub TestShort",
	"infra--4-hub-slow":  "hub TestSlow",
	"infra--4-hub-tls":   "hub TestHandshake",
	"infra--4-registry":  "hub TestRegistry",
	"infra--4-proxy":     "hub TestProxy",
	"infra--4-dns":       "hub TestMirror",
	"infra--4-hub-disk":  "hub TestRoomForIt",
}

// says runs a program that prints what an engine or a runner prints, which this machine cannot make
// it do for lack of a GPU or a cluster.
func says(text, end string) func(t *testing.T) error {
	return func(t *testing.T) error {
		file := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			panic("harmless: " + err.Error())
		}
		return shell("cat " + file + " >&2; " + end)(t)
	}
}

// raises runs a Python program that raises an exception below two frames.
func raises(classes, raise string) func(t *testing.T) error {
	body := classes + "\ndef forward(x):\n    " + raise + "\ndef step():\n    forward(1)\nstep()\n"
	return shell("cat > $WORK/engine_core.py <<'EOF'\n" + body + "EOF\n" + python + " engine_core.py")
}

var fourthErrors = map[string]func(t *testing.T) error{
	"capacity--4-torch-oom": raises("class OutOfMemoryError(RuntimeError): pass", `raise OutOfMemoryError("CUDA out of memory. Tried to allocate 3.50 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.02 GiB is free. Process 2481 has 70.02 GiB memory in use.")`),
	"capacity--4-kv-none":   raises("", `raise ValueError("No available memory for the cache blocks. Try increasing gpu_memory_utilization when initializing the engine.")`),
	"capacity--4-kv-free":   raises("", `raise ValueError("Free memory on device (10.2/23.6 GiB) on startup is less than desired GPU memory utilization (0.9, 21.24 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.")`),
	"capacity--4-shm":       raises("", `raise RuntimeError("DataLoader worker (pid 812) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.")`),
	"capacity--4-cublas":    raises("", `raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)")`),
	"capacity--4-busy":      raises("", `raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable")`),
	"capacity--4-none":      says("ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected", "exit 1"),
	"capacity--4-llama":     says("ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 0: cudaMalloc failed: out of memory\nllama_model_load: error loading model: unable to allocate CUDA0 buffer\nmain: exiting due to model loading error", "exit 1"),
	"capacity--4-ranks":     raises("", `raise RuntimeError("world size 8 is larger than the number of available GPUs 2 on this node")`),
	"capacity--4-sbatch":    says("sbatch: error: Batch job submission failed: Requested node configuration is not available", "exit 1"),
	"capacity--4-killed": func(t *testing.T) error {
		return inCgroup(python + ` -c 'x = bytearray(500 << 20)'`)(t)
	},
	"capacity--4-pthread": says("OpenBLAS blas_thread_init: pthread_create failed for thread 7 of 16: Resource temporarily unavailable\nOpenBLAS blas_thread_init: RLIMIT_NPROC 64 current, 64 max", "exit 1"),

	"engine--4-illegal":    raises("", `raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported at some other API call.")`),
	"engine--4-assert":     says("/kernels/gather.cu:144: block: [3,0,0], thread: [64,0,0] Assertion `index >= 0 && index < size` failed.\nRuntimeError: CUDA error: device-side assert triggered", "exit 1"),
	"engine--4-misaligned": says("CUDA error: misaligned address\n  current device: 0, in function launch at kernels.cu:88\nkernels.cu:88: launch failed", "kill -ABRT $$"),
	"engine--4-config-arg": raises("", `raise RuntimeError("CUDA error: invalid configuration argument")`),
	"engine--4-nccl":       says("node1:812:901 [0] NCCL WARN Cuda failure 700 'an illegal memory access was encountered'\nnode1:812:901 [0] NCCL INFO [Service thread] Connection closed by localRank 0", "exit 1"),
	"engine--4-huge":       raises("", `raise MemoryError("Unable to allocate 17179869184.0 GiB for a block table with shape (-1, 2147483647)")`),
	"engine--4-locked":     shell(python + ` -c 'import sqlite3; a = sqlite3.connect("p.db", isolation_level=None); a.execute("create table t (n)"); a.execute("begin exclusive"); b = sqlite3.connect("p.db", timeout=0.1); b.execute("insert into t values (1)")'`),
	"engine--4-malformed":  shell(python + ` -c 'open("p.db", "wb").write(b"SQLite format 3\0" + b"\7" * 900); import sqlite3; sqlite3.connect("p.db").execute("select * from t")'`),
	"engine--4-shape":      raises("", `raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (7x4096 and 5120x4096)")`),
	"engine--4-coredump":   shell("sh -c 'kill -SEGV $$'; echo \"worker 2 ended with status $?\" >&2; exit 1"),
	"engine--4-139":        shell("exit 139"),
	"engine--4-134":        says("GGML_ASSERT(n_tokens_all <= cparams.n_batch) failed", "exit 134"),
	"engine--4-warn-dns":   says("WARN usage statistics: getaddrinfo ENOTFOUND stats.example.com\nINFO loading tiny\npanicked: page table of sequence 4 has 3 entries, its length needs 5", "exit 101"),
	"engine--4-warn-disk":  says("WARN cannot write /var/cache/kernels/a.cubin: No space left on device, compiling in memory\nERROR engine core died: KeyError: 'model.layers.31.mlp'", "exit 1"),
	"engine--4-own-refuse": says("router: start worker 0 at 127.0.0.1:40112\nworker 0: terminate called after throwing an instance of 'std::out_of_range'\nrouter: dial tcp 127.0.0.1:40112: connect: connection refused", "exit 1"),
	"engine--4-threads":    goProgram("", "import (\n\"os\"\n\"runtime/debug\"\n\"syscall\"\n\"time\"\n)\nfunc main() {\ndebug.SetMaxThreads(20)\nvar p [2]int\n_ = syscall.Pipe(p[:])\nfor range 60 { go func() { b := make([]byte, 1); syscall.Read(p[0], b); os.Exit(0) }() }\ntime.Sleep(2 * time.Second)\n}"),

	"infra--4-xid":      says("NVRM: Xid (PCI:0000:3b:00): 79, pid=812, GPU has fallen off the bus.\nRuntimeError: CUDA error: unknown error", "exit 1"),
	"infra--4-ecc":      raises("", `raise RuntimeError("CUDA error: uncorrectable ECC error encountered")`),
	"infra--4-driver":   says("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.86", "exit 18"),
	"infra--4-cudart":   raises("", `raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).")`),
	"infra--4-preempt":  says("slurmstepd: error: *** JOB 4411 ON node7 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***", "exit 143"),
	"infra--4-node":     says("slurmstepd: error: *** JOB 4412 ON node7 CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", "exit 143"),
	"infra--4-runner":   says("The runner has received a shutdown signal. This can happen when the runner service is stopped, or a manually started runner is canceled.", "exit 143"),
	"infra--4-spot":     says("Spot interruption notice received: this instance will be terminated in 2 minutes", "exit 143"),
	"infra--4-tool":     func(*testing.T) error { return exec.Command("nvcc-12-9", "--version").Run() },
	"infra--4-quota":    says("OSError: [Errno 122] Disk quota exceeded: '/home/ci/.cache/models/tiny.part'", "exit 1"),
	"infra--4-stale":    says("cp: cannot stat '/mnt/models/tiny.gguf': Stale file handle", "exit 1"),
	"infra--4-s3":       raises("class ClientError(Exception): pass", `raise ClientError("An error occurred (SlowDown) when calling the GetObject operation (reached max retries: 4): Please reduce your request rate.")`),
	"infra--4-hf":       raises("class HfHubHTTPError(OSError): pass", `raise HfHubHTTPError("502 Server Error: Bad Gateway for url: https://hub.example.com/acme/tiny/resolve/main/config.json")`),
	"infra--4-conda":    says("CondaHTTPError: HTTP 000 CONNECTION FAILED for url <https://conda.example.com/linux-64/repodata.json>", "exit 1"),
	"timeout--4-slurm":  says("slurmstepd: error: *** JOB 4413 ON node7 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***", "exit 143"),
	"timeout--4-nccl":   says("[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=18, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600043 milliseconds before timing out.", "exit 1"),
	"timeout--4-engine": raises("", `raise TimeoutError("Timed out waiting for engine core processes to start. Waited 600s (configured by --ready-timeout)")`),
}

// runServed runs one test of testdata/served.
func runServed(t *testing.T, what string) []byte {
	fields := strings.Fields(what)
	module, pkg := "served", fields[0]
	if rest, ok := strings.CutPrefix(pkg, "../"); ok {
		module, pkg = rest, ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	netns, err := filepath.Abs("testdata/served/netns")
	require.NoError(t, err)
	dir := filepath.Join("testdata", module)
	args := append([]string{"test", "-json", "-count=1", "-exec", netns, "-run", "^" + fields[1] + "$"}, fields[2:]...)
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+pkg)...)
	cmd.Dir, cmd.WaitDelay = dir, time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("%s passes", what)
	}
	return out
}

func init() { maps.Copy(errorCases, fourthErrors) }
