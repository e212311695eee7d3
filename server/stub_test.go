package server_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/enginetest/enginetest/server"
)

// The stub is this test binary as a server with faults, so that no test needs a build.
const stubEnv = "SERVER_TEST_STUB"

// campaign is what this binary does as the test process of a campaign, where there are any.
var campaign func(args []string)

const campaignEnv = "SERVER_TEST_CAMPAIGN"

func TestMain(m *testing.M) {
	if os.Getenv(stubEnv) != "" {
		stub(os.Args[1:])
	}
	if os.Getenv(hostEnv) != "" {
		host(os.Args[1:])
	}
	if campaign != nil && os.Getenv(campaignEnv) != "" {
		campaign(os.Args[1:])
	}
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

// The host is this test binary as the test process of a server: it starts the stub with flags,
// prints the processes, and stays.
const hostEnv = "SERVER_TEST_HOST"

func host(flags []string) {
	_ = os.Unsetenv(hostEnv)
	s, err := stubServer(flags...).Start(context.Background())
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for len(s.PIDs()) < 3 { // the stub, its shell and what that has started
		time.Sleep(time.Millisecond)
	}
	fmt.Println(strings.Trim(fmt.Sprint(s.PIDs()), "[]"))
	select {}
}

// stubServer starts the stub with flags.
func stubServer(flags ...string) server.Opener {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return server.Command(exe, append([]string{"-port", server.Port}, flags...)...).With(server.Name("stub"),
		server.Env(stubEnv+"=1", "GORACE=atexit_sleep_ms=0"))
}

type stubFlags struct {
	port                        int
	die                         int
	kill, hang, deaf, slow      bool
	print, repeat, spawn, leave string
	every                       time.Duration
	crash                       string
	code                        int
	key                         string
	stamp                       bool
}

func stub(args []string) {
	var f stubFlags
	fs := flag.NewFlagSet("stub", flag.ExitOnError)
	fs.IntVar(&f.port, "port", 0, "")
	fs.IntVar(&f.die, "die", 0, "exit at once with this code")
	fs.BoolVar(&f.kill, "kill", false, "SIGKILL itself at once")
	fs.BoolVar(&f.hang, "hang", false, "never listen")
	fs.BoolVar(&f.deaf, "deaf", false, "ignore SIGTERM")
	fs.BoolVar(&f.slow, "slow", false, "answer health with 503 first")
	fs.StringVar(&f.print, "print", "", "print at the start")
	fs.StringVar(&f.repeat, "repeat", "", "print again and again")
	fs.DurationVar(&f.every, "every", 20*time.Millisecond, "pause between -repeat")
	fs.StringVar(&f.spawn, "spawn", "", "a shell command to start")
	fs.StringVar(&f.leave, "leave", "", "what to leave behind: shm, tmp, socket")
	fs.StringVar(&f.crash, "crash-on", "", "exit with code 3 on this prompt")
	fs.IntVar(&f.code, "code", 0, "exit code after SIGTERM")
	fs.StringVar(&f.key, "api-key", "", "")
	fs.BoolVar(&f.stamp, "stamp", false, "print the time before -die")
	_ = fs.Parse(args)
	if f.print != "" {
		fmt.Println(f.print)
	}
	if f.spawn != "" {
		c := exec.Command("sh", "-c", f.spawn)
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := c.Start(); err != nil {
			fmt.Println(err)
		}
	}
	if f.repeat != "" {
		go func() {
			for {
				fmt.Println(f.repeat)
				time.Sleep(f.every)
			}
		}()
	}
	switch {
	case f.kill:
		self, _ := os.FindProcess(os.Getpid())
		_ = self.Kill()
		select {}
	case f.die != 0:
		fmt.Fprintln(os.Stderr, "fatal: no such model: m.gguf")
		if f.stamp {
			fmt.Println("exit at", time.Now().UnixNano())
		}
		os.Exit(f.die)
	case f.hang:
		select {}
	}
	os.Exit(f.serve())
}

func (f *stubFlags) serve() int {
	signals, interrupts := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	signal.Notify(interrupts, syscall.SIGINT) // which a shell's background jobs ignore
	go func() { <-interrupts; os.Exit(130) }()
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", f.port))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	f.litter()
	var running, asked atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) {
		if f.slow && asked.Add(1) < 4 {
			http.Error(w, `{"error":{"message":"Loading model","code":503}}`, http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"data":[{"id":"stub-model"}]}`)
	})
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "# TYPE x gauge\nvllm:num_requests_running{m=\"a b\"} %d\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.25\n", running.Load())
	})
	mux.HandleFunc("POST /reset_prefix_cache", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Println("prefix cache reset")
	})
	mux.HandleFunc("/api/version", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/api/ps", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") })
	mux.HandleFunc("/api/pull", func(w http.ResponseWriter, r *http.Request) {
		for i := range 3 {
			fmt.Fprintf(w, `{"status":"pulling","total":10,"completed":%d}`+"\n", i)
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done() // stalls
	})
	mux.HandleFunc("/v1/completions", func(w http.ResponseWriter, r *http.Request) {
		if f.key != "" && r.Header.Get("Authorization") != "Bearer "+f.key {
			http.Error(w, `{"error":{"message":"no key","type":"auth"}}`, http.StatusUnauthorized)
			return
		}
		var body struct {
			Prompt string
			Stream bool
		}
		_ = json.NewDecoder(r.Body).Decode(&body)
		if f.crash != "" && body.Prompt == f.crash {
			fmt.Fprintln(os.Stderr, "assertion failed: kv != NULL")
			os.Exit(3)
		}
		running.Add(1)
		defer running.Add(-1)
		switch {
		case body.Prompt == "cut off": // the server lives on
			panic(http.ErrAbortHandler)
		case body.Prompt == "hang":
			<-r.Context().Done()
		case body.Stream:
			for _, text := range []string{"a", "b", "c"} {
				fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"text\":%q}]}\n\n", text)
				w.(http.Flusher).Flush()
			}
			if body.Prompt != "cut" {
				fmt.Fprint(w, "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n")
			}
		default:
			fmt.Fprintf(w, `{"choices":[{"index":0,"text":%q,"finish_reason":"stop"}]}`, strings.ToUpper(body.Prompt))
		}
	})
	fmt.Println("listening on", l.Addr())
	go func() { _ = http.Serve(l, mux) }()
	for range signals {
		if !f.deaf {
			return f.code
		}
	}
	return 0
}

// litter leaves something behind.
func (f *stubFlags) litter() {
	name := strings.TrimSuffix(fmt.Sprintf("et-stub-%d-%s", os.Getpid(), f.print), "-")
	switch f.leave {
	case "tmp":
		_ = os.WriteFile(filepath.Join(os.TempDir(), "cache.bin"), make([]byte, 100), 0o600)
	case "shm":
		shm, err := os.Create("/dev/shm/" + name) // stays open, as a mapping would
		if err != nil {
			fmt.Println(err)
		}
		kept = append(kept, shm)
	case "socket":
		l, err := net.Listen("unix", filepath.Join(os.TempDir(), "s.sock"))
		if err != nil {
			fmt.Println(err)
		}
		kept = append(kept, l)
	}
}

var kept []any
