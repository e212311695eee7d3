// Package cudatest tests code that uses CUDA on machines without a GPU: a stand-in for
// libcuda.so.1, built with the system's C compiler.
//
//	stub := cudatest.New(t, 1, 1<<30)              // one device of 1 GiB; skips when there is no C compiler
//	d, err := cuda.Open(cuda.Library(stub.Path))
//	stub.Fail("cuMemAlloc_v2", 3, 2)               // the third allocation from now finds no memory
//
// Its memory is host memory and really holds data; its kernels do nothing, except fill32(u64 p, u32
// value, u32 n) and crash(), which leaves an illegal address behind. Threads, contexts, what
// outlives a context and what does not, follow the real driver. There is one machine per process:
// tests that use it cannot run in parallel.
//
// For another process set ENGINETEST_LIBCUDA to the path, and STUB_DEVICES, STUB_MEMORY (bytes) and
// STUB_FAIL (call:nth:code,…).
package cudatest

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"unsafe"
)

//go:embed stub/*.c
var sources embed.FS

// TB is what New needs of a *testing.T.
type TB interface {
	Helper()
	Cleanup(func())
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// Hang is a code for Fail: the call does not return until Resume.
const Hang = -1

// ErrNoCompiler says that the stub cannot be built here.
var ErrNoCompiler = errors.New("cudatest: no C compiler (cc) to build the stand-in for libcuda with")

// Build compiles the stand-in once per version of its source, into the user's cache directory, and
// returns its path.
func Build() (string, error) {
	if runtime.GOOS != "linux" {
		return "", fmt.Errorf("%w: it is for Linux", ErrNoCompiler)
	}
	sum := sha256.New()
	if err := eachSource(func(_ string, text []byte) error { _, err := sum.Write(text); return err }); err != nil {
		return "", err
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	dir = filepath.Join(dir, "enginetest")
	path := filepath.Join(dir, "libcuda-stub-"+hex.EncodeToString(sum.Sum(nil)[:8])+".so")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		return "", ErrNoCompiler
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(dir, "build")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	src, out := filepath.Join(work, "libcuda.c"), filepath.Join(work, "libcuda.so")
	err = eachSource(func(name string, text []byte) error {
		return os.WriteFile(filepath.Join(work, name), text, 0o600)
	})
	if err != nil {
		return "", err
	}
	cmd := exec.Command(cc, "-shared", "-fPIC", "-O1", "-g", "-fvisibility=hidden", "-pthread", "-o", out, src)
	if log, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cudatest: %v: %w\n%s", cmd, err, log)
	}
	return path, os.Rename(out, path) // at once: others may be building the same
}

func eachSource(do func(name string, text []byte) error) error {
	entries, err := sources.ReadDir("stub")
	if err != nil {
		return err
	}
	for _, e := range entries {
		text, err := sources.ReadFile("stub/" + e.Name())
		if err != nil {
			return err
		}
		if err := do(e.Name(), text); err != nil {
			return err
		}
	}
	return nil
}

// Stub is the machine of this process.
type Stub struct {
	Path string // for cuda.Library
	lib  uintptr
}

// New builds and loads the stand-in and sets it up: this many devices with this many bytes each.
// When the test ends, a fault of Fail that has not happened is an error: the test did not test it.
// Without a C compiler the test is skipped.
func New(t TB, devices int, bytes int64) *Stub {
	t.Helper()
	path, err := Build()
	if errors.Is(err, ErrNoCompiler) {
		t.Skipf("%v", err)
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	s := &Stub{Path: path}
	if s.lib, err = open(path); err != nil {
		t.Fatalf("cudatest: %v", err)
	}
	s.Reset(devices, bytes)
	t.Cleanup(func() {
		s.Resume()
		if n := s.Pending(); n > 0 {
			t.Errorf("cudatest: %d faults of Stub.Fail never happened: the test did not reach the calls that should fail", n)
		}
	})
	return s
}

// Reset makes the machine anew: nothing allocated, no contexts, no faults. Workers that are still
// open are lost.
func (s *Stub) Reset(devices int, bytes int64) {
	s.call("stub_configure", uintptr(devices), uintptr(bytes))
}

// Fail makes the nth call from now (1 is the next) of a driver function, named as the driver
// exports it, return code, or hang. Codes that are fatal to a context (700, 719, 999, …) are so
// here, and those that deny the process another context (700, 719, …) do.
func (s *Stub) Fail(call string, nth, code int) {
	b := append([]byte(call), 0)
	s.call("stub_fail", uintptr(unsafe.Pointer(&b[0])), uintptr(nth), uintptr(code))
}

// FailOn is Fail, for calls on threads whose current context is of this device.
func (s *Stub) FailOn(device int, call string, nth, code int) {
	b := append([]byte(call), 0)
	s.call("stub_fail_on", uintptr(unsafe.Pointer(&b[0])), uintptr(nth), uintptr(code), uintptr(device))
}

// Pending is the number of faults that have not happened yet.
func (s *Stub) Pending() int { return int(int32(s.call("stub_pending"))) }

// Forgive takes back the faults that have not happened yet.
func (s *Stub) Forgive() { s.call("stub_forgive") }

// Resume lets every call that hangs go on.
func (s *Stub) Resume() { s.call("stub_resume") }

// Lose takes a device away: every call that needs it fails with 999.
func (s *Stub) Lose(device int) { s.call("stub_lose", uintptr(device)) }

// Used is the device memory that is allocated, in bytes, whoever can still free it.
func (s *Stub) Used(device int) int64 { return int64(s.call("stub_used", uintptr(device))) }

// Objects is the number of streams, modules, blocks and so on that have not been given back.
func (s *Stub) Objects(device int) int { return int(int32(s.call("stub_objects", uintptr(device)))) }

// Active reports whether the device's primary context exists.
func (s *Stub) Active(device int) bool { return int32(s.call("stub_active", uintptr(device))) != 0 }

// Calls counts the calls of one driver function, or of all with "".
func (s *Stub) Calls(call string) int {
	b := append([]byte(call), 0)
	return int(s.call("stub_calls", uintptr(unsafe.Pointer(&b[0]))))
}
