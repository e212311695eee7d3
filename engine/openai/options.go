package openai

import (
	"cmp"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/enginetest/enginetest/engine"
)

// Options say who may use a server and how much a request may ask for. The zero value of every
// field is a usable default. A request beyond a bound is refused with a message that names the
// bound; what all requests hold together is bounded by the engine (MaxWaitingSeqs and
// MaxWaitingBytes of [engine.Config]), which refuses with status 429.
type Options struct {
	Name string // the model's name in the API; "" is the base name of the checkpoint's folder

	// other names for the model: NAME, or NAME=PATH to show a path
	LoRA []string
	// what /version answers; "" is the version of this module
	Version string

	// /v1 and what changes the server's state want it as "Authorization: Bearer KEY"; "" wants none
	APIKey string
	// names in the Host header besides those of this machine, for servers on a loopback address;
	// "*" is any
	AllowedHosts   []string
	AllowedOrigins []string // web pages that may use the server; none by default

	MaxBody     int64 // bytes of one request's body; 0 is 16 MiB
	MaxBodies   int64 // bytes of all bodies being read, besides 64 KiB each; 0 is 64 MiB
	MaxPrompts  int   // prompts of one request; 0 is 1024
	MaxSeqs     int   // prompts × n of one request; 0 is 2048
	MaxStop     int   // stop strings of one request; 0 is 64
	MaxBadWords int   // bad words of one request; 0 is 256

	ReadTimeout  time.Duration // for a request's body to arrive; 0 is 30 s
	WriteTimeout time.Duration // for a client to take an answer, or one event of a stream; 0 is 1 min

	Latency Latency // delays of tokens
	Faults  bool    // a request may ask for a fault with [FaultHeader]

	// ClientOf names the client of a request: clients share the engine evenly. nil takes each
	// network connection for a client.
	ClientOf func(*http.Request) string
}

func (o Options) withDefaults() Options {
	o.MaxBody = cmp.Or(o.MaxBody, 16<<20)
	o.MaxBodies = cmp.Or(o.MaxBodies, 64<<20)
	o.MaxPrompts = cmp.Or(o.MaxPrompts, 1024)
	o.MaxSeqs = cmp.Or(o.MaxSeqs, 2048)
	o.MaxStop = cmp.Or(o.MaxStop, 64)
	o.MaxBadWords = cmp.Or(o.MaxBadWords, 256)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, 30*time.Second)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, time.Minute)
	if o.Version == "" {
		o.Version = buildVersion()
	}
	if o.ClientOf == nil {
		o.ClientOf = connectionOf
	}
	return o
}

// Check reports an option that is out of range.
func (o Options) Check() error {
	if err := o.Latency.Check(); err != nil {
		return err
	}
	return checkLoRA(o.LoRA, o.Name)
}

// connectionOf names a client by its connection; "" when it has no address of its own.
func connectionOf(r *http.Request) string {
	if _, _, err := net.SplitHostPort(r.RemoteAddr); err != nil {
		return "" // a unix socket's
	}
	return r.RemoteAddr
}

// Handler serves an engine that is open, for a server in the same process:
//
//	web := httptest.NewServer(openai.Handler(e, openai.Options{}))
//
// What the engine's checkpoint lacks for an endpoint, its tokenizer or chat template, is the answer
// to requests that need it. The caller shuts the engine down.
func Handler(e *engine.Engine, o Options) *Server {
	o.Name = cmp.Or(o.Name, filepath.Base(filepath.Clean(e.Config().Model)))
	s := New(o)
	if s.broken = o.Check(); s.broken != nil {
		return s
	}
	if _, err := s.SetModel(e); err != nil {
		s.broken = err
	}
	return s
}
