package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/served/engine"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv("SERVED_ADDR"); addr != "" {
		if os.Getenv("SERVED_FEW_FILES") != "" {
			_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 40, Max: 40})
		}
		s := &engine.Server{Defect: os.Getenv("SERVED_DEFECT"), Spill: os.Getenv("SERVED_SPILL")}
		log.Fatalf("served: %v", s.Serve(addr))
	}
	os.Exit(m.Run())
}

func unused(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// start starts a server and waits until it is healthy.
func start(t *testing.T, defect string, env ...string) string {
	t.Helper()
	return startAt(t, unused(t), defect, env...)
}

func startAt(t *testing.T, addr, defect string, env ...string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), append(env, "SERVED_ADDR="+addr, "SERVED_DEFECT="+defect)...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended; ended <- nil })
	var err error
	for range 40 {
		var r *http.Response
		if r, err = http.Get("http://" + addr + "/health"); err == nil {
			_ = r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return addr
			}
			err = fmt.Errorf("GET %s: %s", r.Request.URL, r.Status)
		}
		select {
		case err := <-ended:
			ended <- nil
			t.Fatalf("the server ended while it started: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	t.Fatalf("the server was not ready after 2s: %v", err)
	return ""
}

// ask asks for a completion.
func ask(ctx context.Context, addr string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/v1/completions", bytes.NewReader([]byte(`{"prompt":"The"}`)))
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", fmt.Errorf("read the answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("POST %s: %s: %s", r.URL, resp.Status, strings.TrimSpace(string(b)))
	}
	var a struct{ Choices []struct{ Text string } }
	if err := json.Unmarshal(b, &a); err != nil {
		return "", err
	}
	return a.Choices[0].Text, nil
}

// full mounts a file system that has room for 64 KiB.
func full(t *testing.T) string {
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		panic("harmless: " + err.Error())
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}
