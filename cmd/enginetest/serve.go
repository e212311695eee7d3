package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/engine/openai"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/spf13/cobra"
)

// serveOptions are what serve is told.
type serveOptions struct {
	engine  engine.Config
	api     openai.Options
	host    string
	port    int
	uds     string // path of a unix socket; "": host and port
	tlsCert string
	tlsKey  string
	timeout time.Duration // for running requests to finish
}

func serveCommand() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve [--model DIR] [--host H] [--port N | --uds PATH] [--shutdown-timeout D] …",
		Short: "Serve a checkpoint over OpenAI's API; without --model, the bundled one",
		Long: `Serve a Hugging Face checkpoint over OpenAI's API: completions, chat completions with the checkpoint's template, streams, models, /health and
/metrics. Without --model, the bundled checkpoint. When it is ready it prints one line to standard output:
  {"address":"127.0.0.1:40123","url":"http://127.0.0.1:40123","model":"bundled","pid":4711}

The first SIGTERM or SIGINT drains: /health and new work get 503, running requests may finish for --shutdown-timeout and are aborted then. A second
signal aborts at once. While the model is loading, a signal cancels the load. The exit code is 0 when everything finished and was given back,
and 1 when requests were aborted, when the engine failed, or when the shutdown found something left.`,
		Args: noArguments(": a checkpoint's flag is --model"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.uds != "" && (cmd.Flags().Changed("host") || cmd.Flags().Changed("port")) {
				return usagef("give --uds or --host and --port, not both")
			}
			if o.timeout < 0 {
				return usagef("--shutdown-timeout is %s, must be at least 0", o.timeout)
			}
			if o.port < 0 || o.port > 65535 {
				return usagef("--port is %d, must be in [0, 65535]", o.port)
			}
			if (o.tlsCert == "") != (o.tlsKey == "") {
				return usagef("--tls-cert and --tls-key go together")
			}
			if o.host == "" && cmd.Flags().Changed("host") {
				return usagef(`--host is "", must be an address; 0.0.0.0 or :: is every interface of this machine`)
			}
			if o.engine.Model == "" {
				o.engine.Model, o.api.Name = fixtures.Bundled(), cmp.Or(o.api.Name, "bundled")
			}
			o.api.Name = cmp.Or(o.api.Name, filepath.Base(filepath.Clean(o.engine.Model)))
			if err := o.api.Check(); err != nil {
				return usagef("%w", err)
			}
			return serve(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.host, "host", "127.0.0.1", "address to listen on")
	f.IntVar(&o.port, "port", 8000, "port to listen on; 0 takes a free one")
	f.StringVar(&o.uds, "uds", "", "path of a unix socket to listen on instead")
	f.StringVar(&o.api.Name, "served-model-name", "", "the model's name in the API (default: the folder's)")
	f.StringVar(&o.api.APIKey, "api-key", os.Getenv("ENGINETEST_API_KEY"),
		"what /v1 wants as a bearer token (default: $ENGINETEST_API_KEY, or none)")
	f.Lookup("api-key").DefValue = "" // it is no text for a help page
	f.StringVar(&o.tlsCert, "tls-cert", "", "file of a certificate; with --tls-key, the server speaks HTTPS")
	f.StringVar(&o.tlsKey, "tls-key", "", "file of the certificate's key")
	f.StringSliceVar(&o.api.AllowedHosts, "allowed-hosts", nil,
		"names in the Host header besides this machine's, on a loopback address; * is any")
	f.StringSliceVar(&o.api.AllowedOrigins, "allowed-origins", nil,
		"web pages that may use the server from a browser (default: none)")
	f.IntVar(&o.api.MaxPrompts, "max-prompts", 0, "prompts of one request (default 1024)")
	f.IntVar(&o.api.MaxSeqs, "max-seqs", 0, "prompts times n of one request (default 2048)")
	f.StringSliceVar(&o.api.LoRA, "lora-modules", nil, "other names for the model, NAME or NAME=PATH; they change no token")
	f.DurationVar(&o.api.Latency.FirstToken, "time-to-first-token", 0, "send the first token no earlier than this")
	f.DurationVar(&o.api.Latency.InterToken, "inter-token-latency", 0, "send later tokens no earlier than this after the one before")
	f.Float64Var(&o.api.Latency.Jitter, "latency-jitter", 0, "change each of these delays by at most this share, 0 to 1")
	f.Uint64Var(&o.api.Latency.Seed, "latency-seed", 0, "what the changes follow from, with the number of the request")
	f.BoolVar(&o.api.Faults, "enable-faults", false, "a request may ask for a fault with the header "+openai.FaultHeader)
	f.DurationVar(&o.timeout, "shutdown-timeout", 30*time.Second,
		"for running requests to finish after a signal; 0 aborts them at once")
	engineFlags(f, &o.engine)
	return cmd
}

// The parts of the shutdown that have bounds of their own, behind --shutdown-timeout.
const (
	idleTimeout     = 2 * time.Minute // between two requests of a connection
	handlersTimeout = 5 * time.Second // for handlers to write what they have
	releaseTimeout  = 30 * time.Second
)

// serve runs the server until ctx ends, which is the first signal, or until the engine fails.
func serve(ctx context.Context, o serveOptions, stdout, stderr io.Writer) (err error) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	l, err := listen(ctx, o)
	if err != nil {
		return err
	}
	handler := openai.New(o.api)
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: idleTimeout}
	new(unread).watch(server)
	served := make(chan error, 1)
	go func() { served <- o.serveOn(server, l) }()
	defer func() { err = errors.Join(err, closeServer(server, served)) }()

	e, err := engine.Open(ctx, o.engine)
	if err != nil {
		if ctx.Err() != nil && onlyCancelled(err) {
			fmt.Fprintln(stderr, "enginetest: signal while loading: the load is cancelled, everything is released")
			return nil
		}
		return err
	}
	defer func() { err = errors.Join(err, release(ctx, e, stderr)) }()
	chatError, err := handler.SetModel(e)
	if err != nil {
		return err
	}
	if chatError != nil {
		fmt.Fprintln(stderr, "enginetest: no chat:", chatError)
	}
	if err := announce(stdout, l.Addr(), o); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-e.Done():
		handler.Drain()
		return e.Err()
	case err := <-served:
		served <- err
		return err
	}
	handler.Drain()
	var finish func(context.Context) error
	if o.api.Latency != (openai.Latency{}) {
		finish = handler.Finish
	}
	return drain(e, finish, o.timeout, signals, stderr)
}

// serveOn serves until the server is shut down.
func (o *serveOptions) serveOn(s *http.Server, l net.Listener) error {
	if o.tlsCert != "" {
		return s.ServeTLS(l, o.tlsCert, o.tlsKey)
	}
	return s.Serve(l)
}

// drain lets the running requests finish until the timeout, or until another signal. finish waits
// for answers that are sent later than the engine has them; nil: there are none.
func drain(e *engine.Engine, finish func(context.Context) error, timeout time.Duration, signals <-chan os.Signal,
	stderr io.Writer,
) error {
	st := e.Stats()
	fmt.Fprintf(stderr, "enginetest: draining for at most %s: %d sequences run, %d wait; another signal aborts them\n",
		timeout, st.Running, st.Waiting)
	ctx, cancel := context.WithTimeoutCause(context.Background(), timeout,
		fmt.Errorf("--shutdown-timeout %s is over", timeout))
	defer cancel()
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	over := make(chan struct{})
	defer close(over)
	go func() {
		for n := 0; ; n++ {
			select {
			case s := <-signals:
				if n > 0 { // the first one is what began the drain
					abort(fmt.Errorf("a second signal (%s)", s))
					return
				}
			case <-over:
				return
			}
		}
	}()
	if err := e.Drain(ctx); err != nil || finish == nil {
		return err
	}
	return finish(ctx)
}

// release shuts the engine down and prints what it reports. A failed engine is released too.
func release(ctx context.Context, e *engine.Engine, stderr io.Writer) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	err := e.Shutdown(ctx)
	fmt.Fprint(stderr, e.ShutdownReport())
	return err
}

// closeServer waits until every handler has written its answer. It runs after the engine's release,
// which ends what handlers wait for.
func closeServer(server *http.Server, served <-chan error) error {
	ctx, cancel := context.WithTimeout(context.Background(), handlersTimeout)
	defer cancel()
	err := server.Shutdown(ctx)
	if err != nil {
		err = fmt.Errorf("clients that did not read their answers for %s were cut off: %w", handlersTimeout,
			errors.Join(err, server.Close()))
	}
	if serveErr := <-served; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	return err
}

// onlyCancelled reports whether an Open failed of nothing but its context.
func onlyCancelled(err error) bool {
	var leak *engine.LeakError
	return errors.Is(err, context.Canceled) && !errors.As(err, &leak)
}

// announce prints where the server is, for the program that started it.
func announce(w io.Writer, addr net.Addr, o serveOptions) error {
	line := struct {
		Address string `json:"address"`
		URL     string `json:"url,omitempty"`
		Model   string `json:"model"`
		PID     int    `json:"pid"`
	}{Address: addr.String(), Model: o.api.Name, PID: os.Getpid()}
	if addr.Network() != "unix" {
		line.URL = "http://" + addr.String()
		if o.tlsCert != "" {
			line.URL = "https://" + addr.String()
		}
	}
	return json.NewEncoder(w).Encode(line)
}

// listen opens the address. A unix socket that a dead server left is replaced; one that answers is
// not.
func listen(ctx context.Context, o serveOptions) (net.Listener, error) {
	var lc net.ListenConfig
	if o.uds == "" {
		return lc.Listen(ctx, "tcp", net.JoinHostPort(o.host, strconv.Itoa(o.port)))
	}
	l, err := lc.Listen(ctx, "unix", o.uds)
	if errors.Is(err, syscall.EINVAL) {
		return nil, usagef("--uds has %d bytes, more than the path of a socket can have (107 on Linux): %w", len(o.uds),
			err)
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	if info, statErr := os.Lstat(o.uds); statErr == nil && info.Mode().Type() != os.ModeSocket {
		return nil, usagef("--uds is %s, must be free or a dead server's socket: something else is there (%s)", o.uds,
			info.Mode())
	}
	var d net.Dialer
	c, dialErr := d.DialContext(ctx, "unix", o.uds)
	if dialErr == nil {
		_ = c.Close()
		return nil, fmt.Errorf("--uds %s: a server answers there: %w", o.uds, err)
	}
	if !errors.Is(dialErr, syscall.ECONNREFUSED) {
		return nil, err
	}
	if err := os.Remove(o.uds); err != nil {
		return nil, err
	}
	return lc.Listen(ctx, "unix", o.uds)
}
