package server

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Placeholders in the arguments and variables of a [Command].
const (
	Port    = "{port}"    // the port that the server is told to listen on
	TempDir = "{tempdir}" // the folder for temporary files that only this server has; TMPDIR is set to it
)

// An Opener starts a server and waits until it is ready. It is what a fixture's Start takes:
//
//	r := runner.Start(t, server.LlamaCpp("model.gguf"))
//
// Without a fixture, call [Opener.Start], and [Server.Stop] in the end.
type Opener func(ctx context.Context) (*Server, error)

// Start starts the server and waits until it is ready, at most until ctx ends, or for 5 minutes
// when ctx has no deadline. The error is an [ExitError] when the server died and a [NotReadyError]
// when it took too long; nothing is left of it then, or the error lists what is.
func (o Opener) Start(ctx context.Context) (*Server, error) { return o(ctx) }

// With returns an Opener with more options. Later options win.
func (o Opener) With(opts ...Option) Opener {
	return func(ctx context.Context) (*Server, error) {
		inner, _ := ctx.Value(optionsKey{}).([]Option)
		return o(context.WithValue(ctx, optionsKey{}, slices.Concat(opts, inner)))
	}
}

type optionsKey struct{}

// opener makes an Opener of a configuration, which is copied for each start.
func opener(base config) Opener {
	return func(ctx context.Context) (*Server, error) {
		cfg := base
		cfg.command = slices.Clone(base.command)
		cfg.env = slices.Clone(base.env)
		opts, _ := ctx.Value(optionsKey{}).([]Option)
		for _, o := range opts {
			o.apply(&cfg)
		}
		return start(context.WithValue(ctx, optionsKey{}, nil), &cfg)
	}
}

// Command is any program that serves inference over HTTP. Write [Port] where it takes its port. It
// is ready when GET /health answers with a status below 500, which includes 404; it is asked over
// OpenAI's API. Options change both.
//
//	server.Command("my-server", "--listen", "127.0.0.1:"+server.Port).With(server.ReadyLog(`listening on`))
func Command(name string, args ...string) Opener {
	return opener(config{name: base(name), command: append([]string{name}, args...), api: openAI})
}

// LlamaCpp is llama.cpp's llama-server with a GGUF file, found in PATH. It is told to listen on a
// port of its own, to serve metrics, and where it may save its slots, without which it cannot reset
// its prefix cache.
func LlamaCpp(model string, args ...string) Opener {
	command := []string{
		"llama-server", "--model", model, "--host", "127.0.0.1", "--port", Port, "--metrics",
		"--slot-save-path", TempDir,
	}
	return opener(config{name: "llama-server", command: append(command, args...), api: llamaCpp})
}

// VLLM is `vllm serve` with a model, found in PATH. VLLM_SERVER_DEV_MODE is set: without it vLLM
// neither sleeps nor resets its prefix cache.
func VLLM(model string, args ...string) Opener {
	command := []string{"vllm", "serve", model, "--host", "127.0.0.1", "--port", Port}
	return opener(config{
		name: "vllm", command: append(command, args...), env: []string{"VLLM_SERVER_DEV_MODE=1"},
		api: vLLM,
	})
}

// SGLang is `python3 -m sglang.launch_server` with a model.
func SGLang(model string, args ...string) Opener {
	command := []string{
		"python3", "-m", "sglang.launch_server", "--model-path", model, "--host", "127.0.0.1", "--port", Port, "--enable-metrics",
	}
	return opener(config{name: "sglang", command: append(command, args...), api: sgLang})
}

// Enginetest is this module's own `enginetest serve`, found in PATH, with the bundled model unless
// the arguments name another.
func Enginetest(args ...string) Opener {
	command := []string{"enginetest", "serve", "--host", "127.0.0.1", "--port", Port}
	return opener(config{name: "enginetest", command: append(command, args...), api: enginetest})
}

// Ollama is `ollama serve`, found in PATH, asked for one model: the name of one that it has, or the
// path of a GGUF file, which is then loaded into a store that only this server has. With a name,
// the store is the user's own (OLLAMA_MODELS).
func Ollama(model string, args ...string) Opener {
	return opener(config{
		name:    "ollama",
		command: append([]string{"ollama", "serve"}, args...),
		env:     []string{"OLLAMA_HOST=127.0.0.1:" + Port},
		api:     ollama,
		model:   model,
	})
}

// expand replaces the placeholders in the command and the environment.
func (c *config) expand(port int, tmp string) (command, env []string) {
	r := strings.NewReplacer(Port, strconv.Itoa(port), TempDir, tmp)
	for _, a := range c.command {
		command = append(command, r.Replace(a))
	}
	for _, kv := range c.env {
		env = append(env, r.Replace(kv))
	}
	return command, env
}

// wantsPort reports whether the command is told a port.
func (c *config) wantsPort() bool {
	return slices.ContainsFunc(slices.Concat(c.command, c.env), func(s string) bool {
		return strings.Contains(s, Port)
	})
}

// environment is the server's: the test process's, then what the options set. The last of two
// values wins.
func environment(own, more []string) []string {
	set := map[string]string{}
	for _, kv := range slices.Concat(own, more) {
		k, v, _ := strings.Cut(kv, "=")
		set[k] = v
	}
	var env []string
	for _, k := range slices.Sorted(maps.Keys(set)) {
		env = append(env, k+"="+set[k])
	}
	return env
}
