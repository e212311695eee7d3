package leakcheck

import (
	"reflect"
	"time"
	"unsafe"
	"weak"

	"github.com/enginetest/enginetest/ledger"
)

// Option tunes a check.
type Option func(*config)

type config struct {
	allow    []*allowance
	patience time.Duration
	memory   []memoryOf
	noPaths  bool
	growth   *int64
	warmup   int
}

// defaultPatience is how long a check waits for something that is on its way out when the context
// sets no nearer end. Goroutines, cleanups and sockets that are really going take milliseconds.
const defaultPatience = time.Second

func configure(opts []Option) config {
	c := config{patience: defaultPatience}
	for _, o := range opts {
		o(&c)
	}
	return c
}

// Patience sets how long a check waits before it calls something leaked (default one second). The
// context can only shorten it. On Linux, time in which this process waits for a processor does not
// count, up to nine tenths of all: a busy machine can make it ten times as long.
func Patience(d time.Duration) Option {
	return func(c *config) { c.patience = d }
}

// WithoutPaths leaves the search for retention paths out: the verdict alone, at the cost of a few
// GCs.
func WithoutPaths() Option {
	return func(c *config) { c.noPaths = true }
}

// DeviceMemory names the device memory that goes with a tracked object: the bytes that rep lists
// for these owners (all owners when none is given) are part of the report. The reporter is held
// weakly.
func DeviceMemory(rep ledger.Reporter, owners ...string) Option {
	get := weakly(rep)
	return func(c *config) { c.memory = append(c.memory, memoryOf{get, owners}) }
}

type memoryOf struct {
	reporter func() ledger.Reporter // nil when the reporter is gone
	owners   []string
}

// weakly holds a reporter without keeping it alive: it may be the engine that is being watched.
// Only pointers can be held so; any other value is small and held as it is.
func weakly(rep ledger.Reporter) func() ledger.Reporter {
	v := reflect.ValueOf(rep)
	if !v.IsValid() || v.Kind() != reflect.Pointer || v.IsNil() {
		return func() ledger.Reporter { return rep }
	}
	typ, w := v.Type().Elem(), weak.Make((*byte)(v.UnsafePointer()))
	return func() ledger.Reporter {
		p := w.Value()
		if p == nil {
			return nil
		}
		r, _ := reflect.NewAt(typ, unsafe.Pointer(p)).Interface().(ledger.Reporter)
		return r
	}
}
