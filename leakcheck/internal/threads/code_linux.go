package threads

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/enginetest/enginetest/internal/cudafd"
)

// nvidia are the libraries of NVIDIA's driver and of CUDA, by their whole names: libcurl and libcups
// start like them.
var nvidia = regexp.MustCompile(`^lib(` +
	`cuda|cudart|cudadebugger|cublas|cublasLt|cublasmp|cufft|cufftw|cufile|cufile_rdma|cupti|curand|` +
	`cusolver|cusolverMg|cusparse|cusparseLt|cudla|cutensor|cutensorMg|cudnn|cudnn_[a-z0-9_]+|nccl|nccl-[a-z0-9_-]+|` +
	`nvidia-[a-z0-9_-]+|nvcuvid|nvoptix|nvrtc|nvrtc-builtins|nvJitLink|nvfatbin|nvjpeg|nvjpeg2k|nvblas|nvvm|nvToolsExt|` +
	`nvperf_[a-z]+|nvinfer|nvinfer_[a-z0-9_]+|nvonnxparser|nvshmem|nvshmem_[a-z0-9_]+|npp[a-z]+` +
	`)\.so(\.[0-9.]+)?$`)

// pools are the libraries that keep threads until the process ends.
var pools = regexp.MustCompile(`^lib(gomp|omp|iomp[0-9]*|tbb(_preview|malloc|malloc_proxy|bind[0-9_]*)?|openblas[a-z0-9_]*|blis(-mt)?|mkl_[a-z0-9_]+|tsan|asan)` +
	`([-.][0-9a-z.+]+)?\.so(\.[0-9.]+)?$`)

// basic are the libraries of the C language, in which every thread may be.
var basic = regexp.MustCompile(`^(lib(c|pthread|dl|m|rt|gcc_s|stdc\+\+)|ld-linux.*|ld-musl.*|ld)[-.]|^\[vdso\]`)

// describe says what a thread of C does. A name that a thread of Go's has, too, was inherited.
func describe(k identity, name string, ofGo map[string]bool, maps []mapping) Thread {
	t := Thread{ID: k.id, Name: name, Start: k.start, Age: age(k.start), Code: code(k.id, maps)}
	t.Left = !ofGo[name] && !exempt(name, t.Code)
	return t
}

// driven reports whether the CUDA driver is loaded. Which threads it starts has been seen on no
// device yet.
func driven(maps []mapping) bool {
	return slices.ContainsFunc(maps, func(m mapping) bool { return strings.HasPrefix(m.name, "libcuda.so") })
}

// exempt reports whether a thread of that name, in that library, is no finding. A thread that runs
// nothing but the C library's code is a helper of its timers or asynchronous input, or the kernel's.
func exempt(name, code string) bool {
	return code == "" || cudafd.DriverThread(name) || nvidia.MatchString(code) || pools.MatchString(code)
}

// mapping is a range of addresses with code.
type mapping struct {
	lo, hi uint64
	name   string
}

func executable() (out []mapping) {
	text, _ := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		var m mapping
		if len(f) < 6 || !strings.Contains(f[1], "x") {
			continue
		}
		if _, err := fmt.Sscanf(f[0], "%x-%x", &m.lo, &m.hi); err == nil {
			m.name = filepath.Base(f[5])
			out = append(out, m)
		}
	}
	return out
}

// code is the library, other than that of the C language, or the program that a waiting thread will
// return to: the innermost on its stack.
func code(id int, maps []mapping) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/syscall", id))
	f := strings.Fields(string(text)) // number, arguments, stack pointer, program counter
	if len(f) < 3 {
		return "" // it runs, or the system does not say
	}
	hexadecimal := func(s string) (n uint64) {
		n, _ = strconv.ParseUint(strings.TrimPrefix(s, "0x"), 16, 64)
		return n
	}
	sp, pc := hexadecimal(f[len(f)-2]), hexadecimal(f[len(f)-1])
	words := []uint64{pc}
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		return ""
	}
	defer mem.Close()
	stack := make([]byte, 16<<10)
	n, _ := mem.ReadAt(stack, int64(sp&^7)) //nolint:gosec // as far as it goes
	for at := 0; at+8 <= n; at += 8 {
		words = append(words, binary.LittleEndian.Uint64(stack[at:]))
	}
	for _, w := range words {
		for _, m := range maps {
			if w >= m.lo && w < m.hi && !basic.MatchString(m.name) {
				return m.name
			}
		}
	}
	return ""
}
