package shutdown_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures/fault"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/runner"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// 5. SIGTERM and SIGINT to a program that serves: idle, while it loads, under ten streams.

// program is what this test binary does instead of testing when envProgram is set: it streams, and
// upon a signal drains and proves itself gone.
type program struct {
	Core    engine.Core
	Devices int
	Hang    bool // in the load
	Streams int
	Tokens  int           // of each
	Again   bool          // each is followed by another, until it is refused
	Drain   time.Duration // at most
}

const envProgram = "SHUTDOWN_PROGRAM"

// serve is the program's main.
func serve(text string) (code int) {
	var p program
	err := json.Unmarshal([]byte(text), &p)
	if err == nil {
		err = p.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (p program) run() error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	life, end := context.WithCancel(context.Background())
	drain, abort := context.WithCancel(context.Background())
	go func() {
		<-signals
		end()
		<-signals
		abort()
	}()
	cfg := mode{core: p.Core, devices: p.Devices}.config()
	if p.Hang {
		cfg.Faults = on(cfg, fault.Hang(llm.FaultLoad, 0))
		time.AfterFunc(100*time.Millisecond, func() { fmt.Println("loading") })
	}
	f, err := runner.Open(life, func(ctx context.Context) (*engine.Engine, error) { return engine.Open(ctx, cfg) })
	if left := (*runner.Error)(nil); errors.As(err, &left) || err != nil && !errors.Is(err, context.Canceled) {
		return err
	} else if err != nil {
		fmt.Println("the load was cancelled")
		return nil
	}
	e := f.Engine().(*engine.Engine)
	var finished, aborted atomic.Int32
	var streams, begun sync.WaitGroup
	begun.Add(p.Streams)
	for range p.Streams {
		streams.Go(func() {
			n, err := 0, error(nil)
			for round := 0; err == nil && (round == 0 || p.Again); round++ {
				for _, err = range e.Stream(context.Background(), some(p.Tokens)) {
					if n++; n == 1 {
						begun.Done()
					}
				}
			}
			if err == nil {
				finished.Add(1)
			} else if errors.Is(err, llm.ErrStopped) {
				aborted.Add(1)
			}
		})
	}
	begun.Wait()
	fmt.Println("serving")
	<-life.Done()
	time.AfterFunc(p.Drain, abort)
	drained := make(chan error, 1)
	go func() { drained <- e.Drain(drain) }()
	for e.State() == engine.Running {
		time.Sleep(100 * time.Microsecond)
	}
	_, refused := e.Generate(context.Background(), some(1))
	fmt.Println("draining")
	<-drained
	streams.Wait()
	e = nil
	if err := f.Close(context.Background()).Err(); err != nil {
		return err
	}
	fmt.Printf("finished %d, aborted %d, new work refused %v\n", finished.Load(), aborted.Load(),
		errors.Is(refused, llm.ErrStopped))
	return nil
}

// started is a program that runs.
type started struct {
	*exec.Cmd
	t   *testing.T
	out *bufio.Reader
	err *strings.Builder
}

func (p program) start(t *testing.T) *started {
	t.Helper()
	text, err := json.Marshal(p)
	require.NoError(t, err)
	s := &started{Cmd: exec.Command(os.Args[0]), t: t, err: &strings.Builder{}}
	s.Env = append(os.Environ(), envProgram+"="+string(text))
	s.Stderr = s.err
	out, err := s.StdoutPipe()
	require.NoError(t, err)
	s.out = bufio.NewReader(out)
	require.NoError(t, s.Start())
	return s
}

// says waits for a line.
func (s *started) says(want string) {
	s.t.Helper()
	line, err := s.out.ReadString('\n')
	if !assert.Equal(s.t, want, strings.TrimSuffix(line, "\n")) || err != nil {
		_ = s.Process.Kill()
		_ = s.Wait()
		s.t.Fatal(err, s.err.String())
	}
}

// ends waits for its last words and a good end.
func (s *started) ends(want string) {
	s.t.Helper()
	rest, _ := io.ReadAll(s.out)
	assert.NoError(s.t, s.Wait(), s.err.String())
	assert.Regexp(s.t, want, string(rest))
}

func TestSignals(t *testing.T) {
	both := []os.Signal{syscall.SIGTERM, os.Interrupt}
	for _, tc := range []struct {
		name    string
		p       program
		ready   string
		signals []os.Signal
		twice   bool
		want    string
	}{
		{
			"signal: idle",
			program{Drain: 5 * time.Minute},
			"serving", both, false,
			"^draining\nfinished 0, aborted 0, new work refused true\n$",
		},
		{"signal: while it loads", program{Hang: true}, "loading", both, false, "^the load was cancelled\n$"},
		{
			"signal: 10 streams finish",
			program{Streams: 10, Tokens: 100, Drain: 5 * time.Minute},
			"serving", both, false,
			"^draining\nfinished 10, aborted 0, new work refused true\n$",
		},
		{
			"signal: a short drain aborts the rest",
			program{Streams: 10, Tokens: 450, Again: true, Drain: 5 * time.Millisecond},
			"serving", both[:1], false,
			"^draining\nfinished 0, aborted 10, new work refused true\n$",
		},
		{
			"signal: a second one aborts",
			program{Streams: 10, Tokens: 450, Again: true, Drain: 10 * time.Minute},
			"serving", both[:1], true,
			`^finished \d+, aborted [1-9]\d*, new work refused true\n$`,
		},
	} {
		for _, m := range modes {
			if m.fork {
				continue // the program is a process of its own anyway
			}
			in(t, m, tc.name, func(t *testing.T, _ engine.Config) {
				for _, sig := range tc.signals {
					p := tc.p
					p.Core, p.Devices = m.core, m.devices
					s := p.start(t)
					s.says(tc.ready)
					require.NoError(t, s.Process.Signal(sig))
					if tc.twice {
						s.says("draining")
						require.NoError(t, s.Process.Signal(sig))
					}
					s.ends(tc.want)
				}
			})
		}
	}
}
