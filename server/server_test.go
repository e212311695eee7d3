package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server"
)

// long is for what must not hang; nothing is measured with it.
const long = 90 * time.Second

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), long)
	t.Cleanup(cancel)
	return ctx
}

// started starts a server, and stops it with the test.
func started(t *testing.T, o server.Opener) *server.Server {
	t.Helper()
	s, err := o.With(server.For(t)).Start(within(t))
	require.NoError(t, err)
	t.Cleanup(func() { s.Stop(within(t)) })
	return s
}

func ask(t *testing.T, s *server.Server, prompt string) string {
	t.Helper()
	outs, err := s.Generate(within(t), llm.Request{Prompt: prompt})
	require.NoError(t, err)
	require.Len(t, outs, 1)
	require.Len(t, outs[0].Completions, 1)
	return outs[0].Completions[0].Text
}

func TestLife(t *testing.T) {
	dir := t.TempDir()
	s, err := stubServer("-print", "hello").With(server.LogDir(dir)).Start(within(t))
	require.NoError(t, err)
	require.Equal(t, "stub-model", s.Model())
	require.Equal(t, "ABC", ask(t, s, "abc"))
	require.Len(t, s.PIDs(), 1)
	require.NoError(t, s.Err())
	report := s.Stop(within(t))
	t.Logf("\n%s", report)
	require.NoError(t, report.Err())
	require.Empty(t, s.PIDs())
	require.Error(t, s.Err(), "it has exited")
	log, err := os.ReadFile(s.LogFile())
	require.NoError(t, err)
	require.Contains(t, string(log), "hello\n")
	require.Equal(t, dir, filepath.Dir(s.LogFile()))
	_, err = net.Dial("tcp", strings.TrimPrefix(s.URL(), "http://"))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.Equal(t, report, s.Stop(within(t)), "a second call has no effect")
	_, err = s.Generate(within(t), llm.Request{Prompt: "late"})
	require.ErrorIs(t, err, llm.ErrStopped)
	require.NotEmpty(t, s.ShutdownReport().Phases)
}

func TestDeadAtStart(t *testing.T) {
	for _, c := range []struct {
		name, flag string
		check      func(t *testing.T, e *server.ExitError)
	}{
		{"exit code", "-die=7", func(t *testing.T, e *server.ExitError) {
			require.Equal(t, 7, e.Code)
			require.Zero(t, e.Signal)
		}},
		{"signal", "-kill", func(t *testing.T, e *server.ExitError) {
			require.Equal(t, syscall.SIGKILL, e.Signal)
			require.Empty(t, e.OOM, "no OOM killer was at work")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := stubServer(c.flag, "-print", "loading m.gguf").Start(within(t))
			var exit *server.ExitError
			require.ErrorAs(t, err, &exit)
			c.check(t, exit)
			require.False(t, exit.Ready)
			require.Positive(t, exit.PID)
			require.ErrorContains(t, err, "loading m.gguf", "the last lines are in the message")
			require.NotContains(t, err.Error(), "left behind")
			t.Logf("what a developer sees:\n%v", err)
		})
	}
	t.Run("no such command", func(t *testing.T) {
		_, err := server.Command("no-such-server-anywhere").Start(within(t))
		require.ErrorContains(t, err, "executable file not found")
	})
}

func TestNotReady(t *testing.T) {
	// start returns up as soon as the server has printed n lines.
	start := func(t *testing.T, o server.Opener, n int) *server.NotReadyError {
		ctx, giveUp := context.WithCancelCause(within(t))
		_, err := o.With(server.ReadyFunc(func(_ context.Context, s *server.Server) error {
			if len(s.Log()) >= n {
				giveUp(errors.New("the test's patience"))
			}
			return errors.New("not yet")
		})).Start(ctx)
		var late *server.NotReadyError
		require.ErrorAs(t, err, &late)
		t.Logf("what a developer sees:\n%v", err)
		return late
	}
	t.Run("silent", func(t *testing.T) {
		late := start(t, stubServer("-hang"), 0)
		require.ErrorContains(t, late, "it has printed nothing")
		require.ErrorContains(t, late.Cause, "the test's patience")
		require.ErrorContains(t, late.Last, "not yet")
	})
	t.Run("with progress", func(t *testing.T) {
		late := start(t, stubServer("-hang", "-repeat", "still loading").With(server.StallTimeout(long)), 20)
		require.ErrorContains(t, late.Cause, "the test's patience")
		require.ErrorContains(t, late, "still loading")
	})
	t.Run("stalled", func(t *testing.T) {
		for stall := 200 * time.Millisecond; ; stall *= 2 { // more, when the server needed longer for its first line
			late := start(t, stubServer("-hang", "-print", "downloading 40%").With(server.StallTimeout(stall)), 99)
			require.ErrorContains(t, late, "server.StallTimeout is "+stall.String())
			if len(late.Lines) > 0 {
				require.ErrorContains(t, late, "downloading 40%")
				break
			}
			require.Less(t, stall, long)
		}
	})
}

func TestReady(t *testing.T) {
	for name, o := range map[string]server.Option{
		"HTTP": server.ReadyHTTP("/v1/models"), "TCP": server.ReadyTCP(), "log": server.ReadyLog(`listening on`),
		"function": server.ReadyFunc(func(ctx context.Context, s *server.Server) error {
			if len(s.Log()) == 0 {
				return errors.New("not yet")
			}
			return nil
		}),
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, "A", ask(t, started(t, stubServer().With(o)), "a"))
		})
	}
	t.Run("503 while loading", func(t *testing.T) {
		require.Equal(t, "A", ask(t, started(t, stubServer("-slow")), "a"))
	})
	t.Run("a port of its own", func(t *testing.T) {
		exe, err := os.Executable()
		require.NoError(t, err)
		s := started(t, server.Command(exe, "-port", "0").With(server.Env(stubEnv+"=1", "GORACE=atexit_sleep_ms=0"),
			server.ReadyLog(`listening on (\S+)`)))
		require.Equal(t, "A", ask(t, s, "a"))
	})
}

func TestDeathInRequest(t *testing.T) {
	s := started(t, stubServer("-crash-on", "a"))
	_, err := s.Generate(within(t), llm.Request{Prompt: "a"})
	var exit *server.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 3, exit.Code)
	require.True(t, exit.Ready)
	require.ErrorContains(t, err, "assertion failed: kv != NULL")
	report := s.Stop(within(t))
	require.ErrorContains(t, report.Err(), "exited with code 3", "a crash that the test overlooked is in the report")
}

func TestConnectionIsCutOff(t *testing.T) {
	s := started(t, stubServer())
	_, err := s.Generate(within(t), llm.Request{Prompt: "cut off"})
	require.ErrorIs(t, err, io.EOF)
	var exit *server.ExitError
	require.NotErrorAs(t, err, &exit, "the server lives")
	require.NoError(t, s.Stop(within(t)).Err())
}

func TestStop(t *testing.T) {
	t.Run("a server that ignores the signal", func(t *testing.T) {
		s := started(t, stubServer("-deaf").With(server.Grace(200*time.Millisecond)))
		err := s.Stop(within(t)).Err()
		require.ErrorContains(t, err, "did not end on SIGTERM within")
		require.ErrorContains(t, err, "server.Grace")
		require.Empty(t, s.PIDs())
	})
	t.Run("exit code", func(t *testing.T) {
		require.ErrorContains(t, started(t, stubServer("-code", "4")).Stop(within(t)).Err(),
			"it exited with code 4 after SIGTERM; server.ExitCode accepts")
		require.NoError(t, started(t, stubServer("-code", "4").With(server.ExitCode(4))).Stop(within(t)).Err())
		require.NoError(t, started(t, stubServer("-code", "143")).Stop(within(t)).Err(), "the shell's code for SIGTERM")
	})
	t.Run("another signal", func(t *testing.T) {
		require.NoError(t, started(t, stubServer("-deaf").With(server.StopSignal(syscall.SIGINT))).Stop(within(t)).Err(), "SIGINT ends it")
	})
	t.Run("a request in flight", func(t *testing.T) {
		s := started(t, stubServer())
		failed := make(chan error, 1)
		go func() {
			_, err := s.Generate(context.Background(), llm.Request{Prompt: "hang"})
			failed <- err
		}()
		waitRunning(t, s.URL(), 1)
		require.NoError(t, s.Stop(within(t)).Err())
		require.ErrorIs(t, <-failed, llm.ErrStopped)
	})
}

func TestOrphans(t *testing.T) {
	for name, spawn := range map[string]string{
		"own session":         "setsid sleep 300",
		"double fork":         "(setsid sleep 300 &) & exit",
		"cleared environment": "env -i setsid sleep 300",
		"deaf":                `setsid sh -c 'trap "" TERM; sleep 300; sleep 300'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := started(t, stubServer("-spawn", spawn).With(server.Grace(time.Second)))
			require.Eventually(t, func() bool { return len(s.PIDs()) > 1 }, long, time.Millisecond)
			err := s.Stop(within(t)).Err()
			require.ErrorContains(t, err, "sleep 300")
			require.ErrorContains(t, err, "outlived the command")
			require.Empty(t, s.PIDs())
			t.Logf("what a developer sees:\n%v", err)
		})
	}
}

func TestLeftovers(t *testing.T) {
	if _, err := os.Stat("/dev/shm"); err != nil {
		t.Skipf("no shared memory to look at: %v", err)
	}
	t.Run("temporary file", func(t *testing.T) {
		err := started(t, stubServer("-leave", "tmp")).Stop(within(t)).Err()
		require.ErrorContains(t, err,
			`temporary file $TMPDIR/cache.bin (100 bytes) is left, removed now; to accept: server.Allow("cache.bin")`)
		require.NoError(t, started(t, stubServer("-leave", "tmp").With(server.Allow("cache.*"))).Stop(within(t)).Err())
	})
	t.Run("shared memory", func(t *testing.T) {
		s := started(t, stubServer("-leave", "shm"))
		path := "/dev/shm/et-stub-" + itoa(s.PIDs()[0])
		t.Cleanup(func() { _ = os.Remove(path) })
		require.ErrorContains(t, s.Stop(within(t)).Err(), "shared memory "+path+" is left")
	})
	t.Run("socket", func(t *testing.T) {
		require.ErrorContains(t, started(t, stubServer("-leave", "socket")).Stop(within(t)).Err(),
			"unix socket $TMPDIR/s.sock")
	})
	t.Run("nothing, after a kill", func(t *testing.T) {
		s := started(t, stubServer("-leave", "tmp", "-deaf").With(server.Grace(100*time.Millisecond)))
		require.NotContains(t, s.Stop(within(t)).Err().Error(), "cache.bin", "a killed server cannot remove its files")
	})
}

func TestPortTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, taken, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	exe, err := os.Executable()
	require.NoError(t, err)
	// The first life listens on a port that another program has; the next ones take theirs.
	once := filepath.Join(t.TempDir(), "once")
	script := `if [ -e "$1" ]; then exec "$2" -port "$3"; fi; touch "$1"; exec "$2" -port "$4"`
	o := server.Command("sh", "-c", script, "sh", once, exe, server.Port,
		taken).With(server.Env(stubEnv+"=1", "GORACE=atexit_sleep_ms=0"))
	s := started(t, o)
	require.Equal(t, "A", ask(t, s, "a"))

	_, err = server.Command(exe, "-port", taken).With(server.Env(stubEnv+"=1", "GORACE=atexit_sleep_ms=0"),
		server.ReadyFunc(func(context.Context, *server.Server) error {
			return errors.New("never")
		})).Start(within(t))
	require.ErrorContains(t, err, "address already in use", "a port that the test chose is not retried")
}

// A program that answers on the server's port before the server does is not the server.
func TestAnotherProgramAnswers(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"data":[{"id":"other"}]}`)
	}))
	defer other.Close()
	exe, err := os.Executable()
	require.NoError(t, err)
	port := other.Listener.Addr().(*net.TCPAddr).Port
	announce := server.ReadyLog(`announced on (\S+)`)
	o := server.Command(exe, "-hang", "-print", "announced on 127.0.0.1:"+itoa(port)).With(server.Env(stubEnv+"=1"),
		announce)
	for stall := 200 * time.Millisecond; ; stall *= 2 { // more, when the server needed longer for its line
		_, err = o.With(server.StallTimeout(stall)).Start(within(t))
		var late *server.NotReadyError
		require.ErrorAs(t, err, &late)
		if !strings.Contains(late.Last.Error(), "no such line yet") {
			require.ErrorContains(t, late.Last, "what answers there is another program")
			break
		}
		require.Less(t, stall, long)
	}
	s, err := o.With(server.AnyListener()).Start(within(t))
	require.NoError(t, err)
	require.Equal(t, "other", s.Model())
	require.ErrorContains(t, s.Stop(within(t)).Err(), "still answering on 127.0.0.1")
}

func TestSecrets(t *testing.T) {
	const key, token, chosen = "sk-very-secret-1", "hf_very_secret_2", "pw3"
	var out strings.Builder
	o := stubServer("-print", key+" "+token+" "+chosen+" max_tokens=128000", "-api-key", key).With(
		server.Env("HF_TOKEN="+token,
			"MAX_TOKENS=128000"), server.Secret(chosen), server.Log(&out), server.LogDir(t.TempDir()))
	s, err := o.Start(within(t))
	require.NoError(t, err)
	require.Equal(t, "A", ask(t, s, "a"), "the key is sent")
	require.NoError(t, s.Stop(within(t)).Err())
	log, err := os.ReadFile(s.LogFile())
	require.NoError(t, err)
	_, dead := o.With(server.ReadyLog("never printed")).Start(cancelled(t))
	for name, text := range map[string]string{
		"log": string(log), "stream": out.String(), "exit": s.Err().Error(),
		"error": dead.Error(),
	} {
		for _, secret := range []string{key, token, chosen} {
			require.NotContains(t, text, secret, name)
		}
	}
	require.Contains(t, out.String(), "[masked] [masked] [masked] max_tokens=128000")
}

// cancelled is a context that ends soon.
func cancelled(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func TestStream(t *testing.T) {
	s := started(t, stubServer())
	text := ""
	for d, err := range s.Stream(within(t), llm.Request{Prompt: "x"}) {
		require.NoError(t, err)
		text += d.Text
	}
	require.Equal(t, "abc", text)
	var last error
	for _, err := range s.Stream(within(t), llm.Request{Prompt: "cut"}) {
		last = err
	}
	require.ErrorIs(t, last, io.ErrUnexpectedEOF, "a stream that is cut is no end")
	for range s.Stream(within(t), llm.Request{Prompt: "x"}) {
		break
	}
	require.NoError(t, s.Stop(within(t)).Err())
}

func TestUnsupported(t *testing.T) {
	s := started(t, stubServer())
	ctx := within(t)
	for verb, err := range map[string]error{
		"sleep": s.Sleep(ctx, 1), "wake": s.Wake(ctx), "prefix cache reset": s.ResetPrefixCache(ctx), "unload": s.Unload(ctx), "pull": s.Pull(ctx, "m"),
	} {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorIs(t, err, llm.ErrUnsupported)
		require.ErrorContains(t, err, "openai has no "+verb)
	}
	_, err := s.Generate(ctx, llm.Request{Prompt: "a", Sampling: llm.SamplingParams{NoRepeatNGramSize: 2}})
	require.ErrorContains(t, err, "openai has no parameter NoRepeatNGramSize")
}
