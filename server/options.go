package server

import (
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// An Option changes how a server is started, asked or stopped.
type Option interface{ apply(*config) }

// An AttachOption is one that makes sense for a server that is not started here, too.
type AttachOption interface {
	Option
	attached()
}

type option func(*config)

func (o option) apply(c *config) { o(c) }

type attachOption func(*config)

func (o attachOption) apply(c *config) { o(c) }
func (o attachOption) attached()       {}

type config struct {
	name    string // in messages
	command []string
	env     []string
	dir     string
	api     *api
	model   string

	template string // of a GGUF file's chats, for Ollama
	apiKey   string
	ready    []check
	stall    time.Duration // of a start
	grace    time.Duration
	signal   syscall.Signal
	codes    []int
	secrets  []string
	allow    []string
	foreign  bool // the listener may be a process that is not the server's
	log      io.Writer
	logDir   string
	url      string // of a server that is not started here
}

const (
	defaultStart = 5 * time.Minute // vLLM's handshake limit
	defaultGrace = 10 * time.Second
	shownLines   = 20 // in a message
)

// Name sets what messages call the server.
func Name(name string) AttachOption { return attachOption(func(c *config) { c.name = name }) }

// Model sets the model's name in requests. By default it is the first that the server lists.
func Model(name string) AttachOption { return attachOption(func(c *config) { c.model = name }) }

// ModelTemplate sets the chat template, in Ollama's language, of the GGUF file that [Ollama] loads.
// Ollama does not run the file's own.
func ModelTemplate(text string) Option { return option(func(c *config) { c.template = text }) }

// APIKey sends a key with each request, and masks it. A key in the arguments (--api-key) is found
// without it.
func APIKey(key string) AttachOption {
	return attachOption(func(c *config) { c.apiKey, c.secrets = key, append(c.secrets, key) })
}

// Speaks sets the protocol.
func Speaks(p Protocol) AttachOption { return attachOption(func(c *config) { c.api = apis[p] }) }

// Env adds variables ("NAME=value") to the environment, which is otherwise that of the test
// process, with TMPDIR set to a folder of the server's own. Placeholders are replaced.
func Env(vars ...string) Option { return option(func(c *config) { c.env = append(c.env, vars...) }) }

// Devices makes GPUs visible to the server, by UUID or index, as a lease of package gpuwait names
// them.
func Devices(ids ...string) Option { return Env("CUDA_VISIBLE_DEVICES=" + strings.Join(ids, ",")) }

// Dir sets the working directory.
func Dir(dir string) Option { return option(func(c *config) { c.dir = dir }) }

// Grace is how long the server may take to end after the signal (default 10 s). What is left then
// is killed, and that is reported.
func Grace(d time.Duration) Option { return option(func(c *config) { c.grace = d }) }

// StopSignal is the signal that asks the server to end (default SIGTERM).
func StopSignal(sig syscall.Signal) Option { return option(func(c *config) { c.signal = sig }) }

// ExitCode accepts exit codes after a stop, besides 0 and the code of a process that the signal
// ended.
func ExitCode(codes ...int) Option {
	return option(func(c *config) { c.codes = append(c.codes, codes...) })
}

// StallTimeout ends a start in which the server prints nothing for so long, and a [Server.Pull]
// without progress (default one minute), while the rest of the time is still left. A server that
// reports the progress of a download is not ended. By default a start that is silent is only
// reported.
func StallTimeout(d time.Duration) AttachOption { return attachOption(func(c *config) { c.stall = d }) }

// Secret masks values in logs, command lines and errors. The values of variables and flags whose
// names say that they are secret (token, key, password, …) are masked anyway.
func Secret(values ...string) Option {
	return option(func(c *config) { c.secrets = append(c.secrets, values...) })
}

// Allow accepts what a server leaves behind: a path, or a pattern of path.Match, of shared memory,
// a socket or a file. A temporary file's path is relative to the server's folder. The failure names
// what to write.
func Allow(patterns ...string) Option {
	return option(func(c *config) { c.allow = append(c.allow, patterns...) })
}

// AnyListener lets a process that is not the server's listen on its port, as a container engine's
// proxy does. Otherwise that is taken for another program, which came first, and its answers do not
// count.
func AnyListener() Option { return option(func(c *config) { c.foreign = true }) }

// Log writes what the server prints to w, masked, line by line.
func Log(w io.Writer) Option { return option(func(c *config) { c.log = w }) }

// LogDir writes the whole log to a file in dir.
func LogDir(dir string) Option { return option(func(c *config) { c.logDir = dir }) }

// TB is the part of testing.TB that [For] uses.
type TB interface{ Name() string }

var _ TB = testing.TB(nil)

// For binds the server's output to a test: the whole log is a file in t.ArtifactDir(), and under -v
// the test prints it.
func For(t TB) Option {
	return option(func(c *config) {
		if a, ok := t.(interface{ ArtifactDir() string }); ok {
			c.logDir = a.ArtifactDir()
		}
		if o, ok := t.(interface{ Output() io.Writer }); ok && testing.Testing() && testing.Verbose() {
			c.log = o.Output()
		}
	})
}

func base(name string) string { return filepath.Base(name) }
