package report

import "github.com/enginetest/enginetest/verdict"

// A rule finds a class in the text of a failure that recorded none: when a text that occurs in many
// failures says what it was. All texts are lower case.
type rule struct {
	class verdict.Class
	name  string // the evidence, for people
	any   []string
}

// anywhere are rules for what is decisive wherever it stands in the output. Their order is their
// priority; product classes only, so that no log line of a service can excuse a bug.
var anywhere = []rule{
	{verdict.ClassLeak, "a fixture's proof failed", []string{"leakcheck: ", " is not gone: ", "left behind:\n"}},
	{verdict.ClassLeak, "goleak", []string{"found unexpected goroutines", "found leaked goroutines"}},
	{verdict.ClassLeak, "goroutines or memory that are left", []string{
		"expected not to leak ", "error: leaksanitizer: detected memory leaks", "*** test i/o incomplete ", " are definitely lost in loss record",
	}},
	{verdict.ClassEngine, "a sanitizer", []string{"error: addresssanitizer: ", "warning: threadsanitizer: ", "undefinedbehaviorsanitizer"}},
	{verdict.ClassEngine, "the C library", []string{
		"double free or corruption", "double free detected", "free(): invalid", "malloc(): ", "malloc_consolidate(", "corrupted size",
		"stack smashing detected", "pure virtual method called",
	}},
	{verdict.ClassEngine, "an error of the CUDA driver", []string{
		"illegal memory access", "device-side assert", "cuda_error_illegal_address", "cudaerrorillegaladdress", "misaligned address",
		"unspecified launch failure", "cuda_error_launch_failed", "cublas_status_execution_failed", "cublas_status_invalid_value",
	}},
	{
		verdict.ClassEngine, "an assertion of the engine",
		[]string{"ggml_assert(", "enginecore encountered a fatal error", "enginedeaderror", "assertion `"},
	},
	{verdict.ClassEngine, "the engine's process crashed", []string{
		"segmentation fault", "core dumped", "sigabrt", "child crashed", "died with sigsegv", "died with sigill", "died with sigbus", "signal: aborted",
		"signal: segmentation", "exit status 139", "exit status 134", "terminate called after throwing",
	}},
}

// decisive are rules for the text that made the test fail. A machine is blamed only by the error itself, never by a log line
// beside it and never by a comparison that mentions it.
var decisive = []rule{
	{verdict.ClassCapacity, "out of device memory", []string{
		"cuda out of memory", "cuda_error_out_of_memory", "cudaerrormemoryallocation", "cudamalloc failed: out of memory", "hip out of memory",
		"no available memory for the cache blocks", "free memory on device", "failed to allocate cuda", "unable to allocate cuda", "model requires more system memory",
		"insufficient memory on device", "out of device memory", "larger than the available kv cache memory", "failed to allocate buffer",
		"failed to allocate memory", "insufficient memory (attempted", "_status_alloc_failed", "out of shared memory", "shared memory limit",
	}},
	{verdict.ClassCapacity, "out of memory", []string{
		"cannot allocate memory", "out of memory", "oom-kill", "oom killer", "oomkilled", "killed by the kernel for memory", "was killed by sigkill", "resource temporarily unavailable",
		"too many open files in system",
	}},
	{verdict.ClassCapacity, "too few devices", []string{
		"no free device", "devices are busy", "no gpu", "no cuda gpus are available", "needs 2 gpus", "needs two gpus", "not enough gpus", "insufficient nvidia.com/gpu", "no cuda-capable device",
		"all cuda-capable devices are busy", "waiting for a lease", "no device is free", "0 gpus available",
		"exceeds the number of gpus available", "could not select device driver", "number of available gpus", "requested node configuration is not available", "invalid device ordinal",
	}},
	{verdict.ClassCapacity, "a server is full", []string{"server busy, please try again", "maximum pending requests exceeded"}},
	{verdict.ClassInfra, "the device or its driver failed", []string{
		"gpu is lost", "fallen off the bus", "driver/library version mismatch", "nvml: driver", "nvml: device lost", "nvml: gpu is lost", "gpuwait: cannot measure", "uncorrectable ecc", "cuda_error_ecc_uncorrectable", "nvidia-smi has failed",
		"cuda_error_system_not_ready", "cuda_error_system_driver_mismatch", "failed to initialize nvml", "device is lost", "device lost", "cannot measure: ", "cuda driver version is insufficient",
		"unable to determine the device handle", "driver on your system is too old", "ncclsystemerror", "system not yet initialized",
	}},
	{verdict.ClassInfra, "a port is taken", []string{
		"address already in use", "eaddrinuse", "its port was taken by another program", "couldn't bind", "bindexception",
		"only one usage of each socket address", "port is already allocated",
	}},
	{verdict.ClassInfra, "the disk", []string{
		"no space left on device", "read-only file system", "input/output error", "stale file handle", "database or disk is full", "enospc", "erofs", "stale nfs file handle", "disk quota exceeded",
	}},
	{verdict.ClassInfra, "a service that the machine needs", []string{
		"cannot connect to the docker daemon", "cannot connect to podman", "unable to connect to podman", "imagepullbackoff", "node is not ready",
		"the runner has received a shutdown signal", "due to preemption", "due to node failure", "spot interruption", "toomanyrequests", "lost communication with the server", "reduce your request rate",
	}},
	{verdict.ClassInfra, "a program is not installed", []string{": executable file not found in $path"}},
	{verdict.ClassTimeout, "a time limit of the job", []string{"due to time limit"}},
	{verdict.ClassTimeout, "a time limit inside of the server", []string{
		"timed out waiting for", "start timeout of ", " was not ready after ", "collective operation timeout", "timeouterror: ",
	}},
}

// engineRule says that the engine itself failed.
var engineRule = rule{verdict.ClassEngine, "the engine ended or refused to start", []string{
	"engine: dead", "engine: injected fault", "encountered an issue. see stack trace", "has unexpectedly stopped",
	"runner process has terminated", "enginecore failed to start", "engine core initialization failed", "error loading model", "failed to load model",
	"unable to load model", "server exited", "exited before it was ready", "process exited", "child exited", "connection reset by peer", "unexpected eof",
	"broken pipe", `": eof`, "engine is dead", "died before it", "exited with code", "500 internal server error", "failed to decode", "exit status 1: ",
	"was killed by", "connect: connection refused", "hit its limit of",
}}

// lateRule is for what took too long, when nothing says why.
var lateRule = rule{verdict.ClassTimeout, "a time limit", []string{
	"context deadline exceeded", "handshake timeout", "timeouterror", "timeoutexpired", "timeoutexception", "etimedout", "aborted due to timeout", "timeout hit", "timeout awaiting", "operation too slow",
	"timeout reached", "exit status 124", "gateway timeout", "deadline exceeded", "timed out", "i/o timeout", "timeout after", "timeout exceeded", "condition never satisfied",
	"has not returned", "did not return", "not ready after", "did not become ready", "client.timeout", "still running after", "queue.empty", "watchdog timeout",
}}

// skipRules find the class of a skip: only a lack of capacity has one.
var skipRules = []rule{
	{verdict.ClassCapacity, "the machine lacks something", []string{
		"no gpu", "no cuda", "no nvml", "no nvidia", "no amd", "gpus, there", "gpus; there", "needs 2 gpus", "needs a gpu", "needs gpu", "requires a gpu", "requires gpu", "not enough memory",
		"needs two gpus", "one device only", "no driver", "no device", "without a gpu", "insufficient", "cannot measure", "not enough", "device is busy", "too few",
	}},
}
