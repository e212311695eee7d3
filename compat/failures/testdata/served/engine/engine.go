// Package engine is a small inference server with defects that are switched on by name.
package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Pool is the pool of KV blocks.
type Pool struct {
	mu   sync.Mutex
	free []int
	use  map[int]int
}

// NewPool returns a pool of n blocks.
func NewPool(n int) *Pool {
	p := &Pool{use: map[int]int{}}
	for i := range n {
		p.free = append(p.free, i)
	}
	return p
}

// Take takes a block. It never returns those of finished requests.
func (p *Pool) Take() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) == 0 {
		return 0, fmt.Errorf("kv pool: no space left: 0 of %d blocks are free, 0 requests run", len(p.use))
	}
	b := p.free[0]
	p.free = p.free[1:]
	p.use[b]++
	return b, nil
}

// Steal waits for a block with the lock held.
func (p *Pool) Steal() int {
	p.mu.Lock()
	b, _ := p.Take()
	return b
}

// Count is not synchronized.
func (p *Pool) Count() int { return len(p.use) }

// Mark is not synchronized either.
func (p *Pool) Mark(b int) { p.use[b] = b }

// Server is one engine that answers on a port.
type Server struct {
	Defect string
	Spill  string
	l      net.Listener
	pool   *Pool
	files  []*os.File
	weight map[string][]float32
}

// Serve listens and answers until the process ends.
func (s *Server) Serve(addr string) error {
	switch s.Defect {
	case "telemetry":
		log.Printf("WARN telemetry is off: Post \"https://telemetry.example.com/v1\": dial tcp: lookup telemetry.example.com: no such host")
	case "other-port":
		host, port, _ := net.SplitHostPort(addr)
		n, _ := net.LookupPort("tcp", port)
		addr = fmt.Sprintf("%s:%d", host, n+1)
	case "silent":
		select {}
	case "config":
		if _, err := os.ReadFile(filepath.Join(s.Spill, "config.jsn")); err != nil {
			return fmt.Errorf("load the model: %w", err)
		}
	case "heads":
		return errors.New("load the model: 14 heads cannot be split over 4 ranks")
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	s.l, s.pool = l, NewPool(16)
	log.Printf("served: listening on %s", l.Addr())
	return http.Serve(l, s) //nolint:gosec // a test
}

// Stop forgets the listener.
func (s *Server) Stop() { s.l = nil }

func (s *Server) fail(w http.ResponseWriter, code int, err error) {
	log.Printf("ERROR request failed: %v", err)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": err.Error(), "code": code}})
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		return
	}
	switch s.Defect {
	case "telemetry", "nil":
		go func() { s.weight["lm_head"][3]++ }()
		time.Sleep(time.Second)
	case "nan":
		go panic(fmt.Sprintf("sampler: logits of row %d are NaN", 3))
		time.Sleep(time.Second)
	case "exit":
		log.Print("FATAL: block table of request 7 is corrupt")
		os.Exit(3)
	case "retry-oom":
		log.Print("WARN CUDA out of memory, retrying with batch size 4")
		_ = syscall.Kill(os.Getpid(), syscall.SIGSEGV)
		time.Sleep(time.Second)
	case "fds":
		for range 100 {
			f, err := os.Open("/proc/self/maps")
			if err != nil {
				s.fail(w, 500, err)
				return
			}
			s.files = append(s.files, f)
		}
	case "spill":
		if err := os.WriteFile(filepath.Join(s.Spill, "block-3"), make([]byte, 1<<20), 0o600); err != nil {
			s.fail(w, 500, fmt.Errorf("spill: %w", err))
			return
		}
	case "pool":
		for range 20 {
			if _, err := s.pool.Take(); err != nil {
				s.fail(w, 500, err)
				return
			}
		}
	case "upstream":
		resp, err := http.Get("http://127.0.0.1:1/v1/worker")
		if err != nil {
			s.fail(w, 502, fmt.Errorf("worker 0: %w", err))
			return
		}
		_ = resp.Body.Close()
	case "cut":
		w.Header().Set("Content-Length", "900")
		_, _ = io.WriteString(w, `{"choices":[{"text":"The`)
		return
	case "hang":
		time.Sleep(time.Minute)
	case "worker":
		cmd := exec.Command("sh", "-c", "echo 'worker: rank 1 lost its peer' >&2; kill -ABRT $$")
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			s.fail(w, 500, fmt.Errorf("worker 1: %w", err))
			return
		}
	}
	_, _ = io.WriteString(w, `{"choices":[{"text":"The lighthouse","token_ids":[5,9,11]}]}`)
}

// URL builds the address of an endpoint, wrongly.
func URL(host, port, path string) string { return "http://" + host + port + path }

// Endpoint makes every address https.
func Endpoint(addr, path string) string {
	return "https://" + strings.TrimPrefix(addr, "http://") + path
}

// Worker writes the script of a worker and runs it; the file is not executable.
func Worker(dir string) error {
	file := filepath.Join(dir, "worker")
	if err := os.WriteFile(file, []byte("#!/bin/sh\nexit 0\n"), 0o600); err != nil {
		return err
	}
	return exec.Command(file).Run()
}

// Map maps the weights of a model that has none.
func Map(f *os.File) ([]byte, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b, err := syscall.Mmap(int(f.Fd()), 0, int(st.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	return b, os.NewSyscallError("mmap", err)
}

// Batch allocates for a count that has overflowed.
func Batch(n int32) []float32 { return make([]float32, int(n*n)) }

// Pipe writes to a worker that has ended.
func Pipe() error {
	cmd := exec.Command("true")
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	time.Sleep(200 * time.Millisecond)
	_, err = in.Write([]byte("step 1\n"))
	if err != nil {
		return fmt.Errorf("send step 1 to worker 0: %w", err)
	}
	return cmd.Wait()
}

// Watch kills its worker by mistake.
func Watch() error {
	cmd := exec.Command("sleep", "30")
	if err := cmd.Start(); err != nil {
		return err
	}
	log.Printf("supervisor: pid %d has no slot, killing it", cmd.Process.Pid)
	_ = cmd.Process.Kill()
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("worker 0: %w", err)
	}
	return nil
}

// Background starts what nothing stops.
func Background() {
	go func() {
		for {
			time.Sleep(time.Hour)
		}
	}()
}

// Close closes twice.
func Close() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	_ = l.Close()
	return l.Close()
}

// Reload fails twice, for a reason of its own and one of the log's.
func Reload(logs string) error {
	return errors.Join(
		os.WriteFile(filepath.Join(logs, "served.log"), make([]byte, 1<<20), 0o600),
		fmt.Errorf("reload: block %d is freed twice", 7))
}
