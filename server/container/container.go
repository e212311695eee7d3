// Package container runs inference servers in containers as engines under test:
//
//	r := harness.Start(t, container.Image("vllm/vllm-openai:v0.10.0", "--model", "Qwen/Qwen3-0.6B").
//		With(container.GPUs(), container.Client(server.Speaks(server.ProtocolVLLM))))
//
// It is a module of its own, because it links testcontainers-go. What server does for a command it
// does for a container: a start that notices a death, the last lines in every failure, the
// processes that the server has on this machine, and a stop that names what outlives the container.
package container

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/testcontainers/testcontainers-go"

	"github.com/enginetest/enginetest/server"
)

// An Opener starts a container and waits until its server is ready. It is what a fixture's Start
// takes.
type Opener func(ctx context.Context) (*Server, error)

// Image is a server in a container of an image, with the arguments of its entry point. In them
// [server.Port] stands for the port that it is to listen on.
func Image(ref string, args ...string) Opener {
	return func(ctx context.Context) (*Server, error) {
		cfg := &config{image: ref, args: slices.Clone(args), port: defaultPort, env: map[string]string{}}
		opts, _ := ctx.Value(optionsKey{}).([]Option)
		for _, o := range opts {
			o(cfg)
		}
		return start(context.WithValue(ctx, optionsKey{}, nil), cfg)
	}
}

// Start starts the container and waits until its server is ready, at most until ctx ends, or for 5
// minutes when ctx has no deadline. The error is a [server.ExitError] when the container ended and
// a [server.NotReadyError] when it took too long; the container is removed then.
func (o Opener) Start(ctx context.Context) (*Server, error) { return o(ctx) }

// With returns an Opener with more options. Later options win.
func (o Opener) With(opts ...Option) Opener {
	return func(ctx context.Context) (*Server, error) {
		inner, _ := ctx.Value(optionsKey{}).([]Option)
		return o(context.WithValue(ctx, optionsKey{}, slices.Concat(opts, inner)))
	}
}

type optionsKey struct{}

// An Option changes how a container is started, asked or stopped.
type Option func(*config)

type config struct {
	image       string
	args        []string
	port        int
	env         map[string]string
	gpus        []string // nil: none; empty: all
	hostNetwork bool
	client      []server.AttachOption
	customize   []func(*testcontainers.ContainerRequest)
	grace       time.Duration
	codes       []int
	secrets     []string
	log         io.Writer
	logDir      string
}

const (
	defaultPort  = 8000 // vLLM's
	defaultStart = 5 * time.Minute
	defaultGrace = 10 * time.Second
)

// Port is the port that the server listens on in the container (default 8000). It is published on a
// free port of the loopback address.
func Port(port int) Option { return func(c *config) { c.port = port } }

// HostNetwork lets the container use the machine's network. The server must take its port from the
// arguments: [server.Port] stands for a free one.
func HostNetwork() Option { return func(c *config) { c.hostNetwork = true } }

// Env adds a variable to the container's environment.
func Env(name, value string) Option { return func(c *config) { c.env[name] = value } }

// GPUs gives the container NVIDIA GPUs, by UUID or index, as a lease of package gpuwait names them;
// all of them without arguments.
func GPUs(ids ...string) Option { return func(c *config) { c.gpus = append([]string{}, ids...) } }

// Client sets how the server is asked: its protocol, model and key.
func Client(opts ...server.AttachOption) Option {
	return func(c *config) { c.client = append(c.client, opts...) }
}

// Customize changes the request to testcontainers-go, after everything else: mounts, shared memory,
// a registry's login, an image that is built.
func Customize(f func(*testcontainers.ContainerRequest)) Option {
	return func(c *config) { c.customize = append(c.customize, f) }
}

// Grace is how long the container may take to end after the signal (default 10 s), in whole
// seconds. What is left then is killed, and that is reported.
func Grace(d time.Duration) Option { return func(c *config) { c.grace = d } }

// ExitCode accepts exit codes after a stop, besides 0 and 143.
func ExitCode(codes ...int) Option { return func(c *config) { c.codes = append(c.codes, codes...) } }

// Secret masks values in logs, command lines and errors. The values of variables and flags whose
// names say that they are secret are masked anyway.
func Secret(values ...string) Option {
	return func(c *config) { c.secrets = append(c.secrets, values...) }
}

// Log writes what the server prints to w, masked, line by line.
func Log(w io.Writer) Option { return func(c *config) { c.log = w } }

// LogDir writes the whole log to a file in dir.
func LogDir(dir string) Option { return func(c *config) { c.logDir = dir } }
