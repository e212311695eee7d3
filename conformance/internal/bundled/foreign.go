package bundled

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/enginetest/enginetest/conformance"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/internal/gguf"
	"github.com/enginetest/enginetest/server"
)

// Foreign is a server of another project, with the bundled model.
type Foreign struct {
	Name    string
	Program string // that must be in PATH
	open    func(gguf, dir string) server.Opener
	options []conformance.Option
	lazy    bool // loads the model with its first request
}

// ForeignServers are those that the suite is run against: scripts/install-servers installs them.
var ForeignServers = []Foreign{
	{
		Name: "llama-server", Program: "llama-server",
		open: func(model, _ string) server.Opener {
			return server.LlamaCpp(model, "--parallel", "4", "--ctx-size", "4096", "--threads", "1", "--threads-batch",
				"1",
				"--cache-ram", "0")
		},
		options: []conformance.Option{
			conformance.Tolerance(0.25), conformance.Draws(3000),
			conformance.Limit(5 * time.Minute),
		},
	},
	{
		Name: "Ollama", Program: "ollama", lazy: true,
		open: func(model, dir string) server.Opener {
			return oneThread(server.Ollama(model).With(server.Env("OLLAMA_MODELS="+filepath.Join(dir, "models"),
				"HOME="+dir),
				server.ModelTemplate(ollamaTemplate)))
		},
		options: []conformance.Option{
			conformance.Tolerance(0.25), conformance.Draws(3000),
			conformance.Limit(5 * time.Minute),
		},
	},
}

// ollamaTemplate is the bundled model's chat template in Ollama's language.
const ollamaTemplate = `{{ range .Messages }}{{ if eq .Role "user" }}Q: {{ .Content }}
A:{{ else if eq .Role "assistant" }} {{ .Content }}<|eos|>
{{ end }}{{ end }}`

// oneThread has Ollama compute with one thread: its threads wait for each other in loops, which takes
// minutes on a machine that is busy.
func oneThread(open server.Opener) server.Opener {
	return func(ctx context.Context) (*server.Server, error) {
		s, err := open(ctx)
		if err != nil {
			return nil, err
		}
		body := fmt.Sprintf(`{"model":%q,"from":%q,"parameters":{"num_thread":1},"stream":false}`, s.Model(), s.Model())
		if err := post(ctx, s.URL()+"/api/create", body); err != nil {
			stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			return nil, errors.Join(err, s.Stop(stopping).Err())
		}
		return s, nil
	}
}

func post(ctx context.Context, url, body string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // no connection is left
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("POST %s: %s", url, res.Status)
	}
	return nil
}

// Installed reports whether the program is there.
func (f Foreign) Installed() bool {
	_, err := exec.LookPath(f.Program)
	return err == nil
}

// Open returns the server with the bundled model, which it writes to dir, and options for the
// suite.
func (f Foreign) Open(dir string) (server.Opener, []conformance.Option, error) {
	model := filepath.Join(dir, "bundled.gguf")
	if err := gguf.Write(model, fixtures.Bundled()); err != nil {
		return nil, nil, err
	}
	opts := append(ServerOptions(), f.options...)
	opts = append(opts, conformance.MustNotStart("no model", f.open(filepath.Join(dir, "missing.gguf"), dir)))
	if f.lazy {
		return f.open(model, dir), opts, nil
	}
	data, err := os.ReadFile(model)
	if err != nil {
		return nil, nil, err
	}
	half := filepath.Join(dir, "half.gguf")
	if err := os.WriteFile(half, data[:len(data)/2], 0o600); err != nil {
		return nil, nil, err
	}
	return f.open(model, dir), append(opts, conformance.MustNotStart("half a model", f.open(half, dir))), nil
}
