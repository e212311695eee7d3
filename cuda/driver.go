package cuda

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"github.com/enginetest/enginetest/internal/cudafd"
	"github.com/enginetest/enginetest/internal/dynlib"
)

// Driver is the CUDA driver library of this process, initialised.
type Driver struct {
	path    string
	lib     uintptr
	fn      symbols
	version int
}

// Option changes how [Open] finds the driver.
type Option func(*openOptions)

type openOptions struct{ library string }

// Library makes Open load this file instead of the system's libcuda.so.1. The environment variable
// ENGINETEST_LIBCUDA does the same for a whole process; the option wins.
func Library(path string) Option { return func(o *openOptions) { o.library = path } }

// Open loads libcuda, checks that it has what this package calls, and initialises it (cuInit: up to
// 0.1 s the first time in a process, and +3.25 MiB of device memory until the process ends). It can
// be called any number of times; there is nothing to close: a driver stays in its process. Without
// a usable driver the error matches ErrNoDriver, with one that refuses to start it is an *Error.
func Open(opts ...Option) (*Driver, error) {
	o := openOptions{library: os.Getenv("ENGINETEST_LIBCUDA")}
	for _, opt := range opts {
		opt(&o)
	}
	paths := []string{o.library}
	if o.library == "" {
		paths = []string{"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"}
	}
	d := &Driver{}
	var first error
	for _, p := range paths {
		lib, err := dynlib.Open(p)
		if err == nil {
			d.lib, d.path = lib, p
			break
		}
		first = errors.Join(first, err)
	}
	if d.lib == 0 {
		why, _, _ := strings.Cut(first.Error(), "\n")
		return nil, fmt.Errorf("%w: %s", ErrNoDriver, why)
	}
	if err := d.fn.resolve(d.lib); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNoDriver, d.path, err)
	}
	var err error
	cudafd.Starting(func() { err = d.call(&d.fn.init, 0) })
	if err != nil {
		if v, set := os.LookupEnv("CUDA_VISIBLE_DEVICES"); set && errors.Is(err, codeNoDevice) {
			return nil, fmt.Errorf("%w (CUDA_VISIBLE_DEVICES=%q)", err, v)
		}
		return nil, err
	}
	var version int32
	if err := d.call(&d.fn.driverVersion, uintptr(unsafe.Pointer(&version))); err != nil {
		return nil, err
	}
	d.version = int(version)
	return d, nil
}

// Available says why CUDA cannot be used here: no library, a symbol missing, cuInit's error, no
// device. It is nil when there is a device. It initialises CUDA in this process.
func Available(opts ...Option) error {
	d, err := Open(opts...)
	if err != nil {
		return err
	}
	_, err = d.Device("0")
	return err
}

// Version is the CUDA version that the driver supports, as major, minor: 13, 0.
func (d *Driver) Version() (major, minor int) { return d.version / 1000, d.version % 1000 / 10 }

// Path is the library that was loaded.
func (d *Driver) Path() string { return d.path }

// call calls a function that needs no context.
//
// The pragma moves whatever a conversion in the argument list points to onto the heap and keeps it
// alive during the call. It does so only for conversions written in the call itself: a helper that
// returns a uintptr would hand over an address that moves when the stack grows.
//
//go:uintptrescapes
func (d *Driver) call(s *symbol, args ...uintptr) error {
	if s.addr == 0 {
		return d.failure(s, codeNotSupported)
	}
	if r := Code(int32(dynlib.Call(s.addr, args))); r != 0 {
		return d.failure(s, r)
	}
	return nil
}

// failure makes an *Error with the driver's words.
func (d *Driver) failure(s *symbol, c Code) *Error {
	e := &Error{Call: s.name, Code: c, Name: "CUDA_ERROR", Text: "the driver has no text for it"}
	if s.addr == 0 {
		e.Name, e.Text = "CUDA_ERROR_NOT_SUPPORTED", fmt.Sprintf("this driver (CUDA %d.%d) does not have the function",
			d.version/1000, d.version%1000/10)
		return e
	}
	if t := d.text(&d.fn.getErrorName, c); t != "" {
		e.Name = t
	}
	if t := d.text(&d.fn.getErrorString, c); t != "" {
		e.Text = t
	}
	return e
}

func (d *Driver) text(s *symbol, c Code) string {
	var p *byte
	if d.call0(s, uintptr(c), uintptr(unsafe.Pointer(&p))) != 0 || p == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}

// call0 is call without words for the result.
//
//go:uintptrescapes
func (d *Driver) call0(s *symbol, args ...uintptr) Code {
	return Code(int32(dynlib.Call(s.addr, args)))
}
