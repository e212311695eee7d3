package lookalikes

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/rpc"
	"net/url"
	"strings"
	"testing"
	"time"
)

// handler answers with an engine.
func handler(e *engine) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/generate", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, e.generate(r.FormValue("prompt")))
	})
	mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		for i := 0; i < 1000 && r.Context().Err() == nil; i++ {
			fmt.Fprintf(w, "data: %s\n\n", e.generate("token"))
			w.(http.Flusher).Flush()
		}
	})
	return mux
}

func get(t *testing.T, c *http.Client, url string) {
	t.Helper()
	r, err := c.Get(url)
	ok(t, err)
	_, err = io.Copy(io.Discard, r.Body)
	ok(t, err)
	ok(t, r.Body.Close())
}

func TestHTTPServer(t *testing.T) {
	s := httptest.NewServer(handler(guarded(t)))
	t.Cleanup(s.Close)
	get(t, s.Client(), s.URL+"/generate?prompt=x")
}

func TestHTTPDefaultClient(t *testing.T) {
	s := httptest.NewServer(handler(guarded(t)))
	t.Cleanup(s.Close)
	get(t, http.DefaultClient, s.URL+"/generate?prompt=x")
	http.DefaultClient.CloseIdleConnections()
}

func TestHTTPS(t *testing.T) {
	s := httptest.NewTLSServer(handler(guarded(t)))
	t.Cleanup(s.Close)
	get(t, s.Client(), s.URL+"/generate?prompt=x")
}

func TestHTTP2(t *testing.T) {
	s := httptest.NewUnstartedServer(handler(guarded(t)))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	for range 3 {
		get(t, s.Client(), s.URL+"/generate?prompt=x")
	}
}

func TestHTTPStreamAbandoned(t *testing.T) {
	s := httptest.NewServer(handler(guarded(t)))
	t.Cleanup(s.Close)
	r, err := s.Client().Get(s.URL + "/stream")
	ok(t, err)
	_, err = bufio.NewReader(r.Body).ReadString('\n')
	ok(t, err)
	ok(t, r.Body.Close())
}

func TestHTTPStreamCancelled(t *testing.T) {
	s := httptest.NewServer(handler(guarded(t)))
	t.Cleanup(s.Close)
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/stream", nil)
	ok(t, err)
	answer, err := s.Client().Do(r)
	ok(t, err)
	cancel()
	_, _ = io.Copy(io.Discard, answer.Body)
	ok(t, answer.Body.Close())
}

func TestHTTPTimeout(t *testing.T) {
	e := guarded(t)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_ = e.generate("slow")
		<-r.Context().Done()
	}))
	t.Cleanup(s.Close)
	c := s.Client()
	c.Timeout = 2 * time.Millisecond
	if r, err := c.Get(s.URL); err == nil {
		t.Fatal(r.Status)
	}
}

func TestHTTPShutdown(t *testing.T) {
	e := guarded(t)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	s := &http.Server{Handler: handler(e), ReadHeaderTimeout: time.Minute, BaseContext: func(net.Listener) context.Context {
		return context.WithValue(context.Background(), e, e)
	}}
	s.RegisterOnShutdown(func() { _ = e.generate("bye") })
	done := make(chan error)
	go func() { done <- s.Serve(lis) }()
	c := &http.Client{Transport: &http.Transport{}}
	get(t, c, "http://"+lis.Addr().String()+"/generate?prompt=x")
	c.CloseIdleConnections()
	ok(t, s.Shutdown(t.Context()))
	<-done
}

func TestHTTPReverseProxy(t *testing.T) {
	back := httptest.NewServer(handler(guarded(t)))
	t.Cleanup(back.Close)
	u, err := url.Parse(back.URL)
	ok(t, err)
	proxy := httputil.NewSingleHostReverseProxy(u)
	transport := &http.Transport{}
	proxy.Transport = transport
	front := httptest.NewServer(proxy)
	t.Cleanup(front.Close)
	get(t, front.Client(), front.URL+"/generate?prompt=x")
	transport.CloseIdleConnections()
}

func TestHTTPRecorder(t *testing.T) {
	e := guarded(t)
	w := httptest.NewRecorder()
	handler(e).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/generate", strings.NewReader("prompt=x")))
}

func TestHTTPTimeoutHandler(t *testing.T) {
	e := guarded(t)
	s := httptest.NewServer(http.TimeoutHandler(handler(e), time.Minute, "late"))
	t.Cleanup(s.Close)
	get(t, s.Client(), s.URL+"/generate?prompt=x")
}

func TestHTTPHijacked(t *testing.T) {
	e := guarded(t)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n%s", e.generate("")[:2])
		_ = conn.Close()
	}))
	t.Cleanup(s.Close)
	get(t, s.Client(), s.URL)
}

// Generator is served by net/rpc.
type Generator struct{ e *engine }

// Generate answers a prompt.
func (g *Generator) Generate(prompt string, out *string) error {
	*out = g.e.generate(prompt)
	return nil
}

func TestRPC(t *testing.T) {
	e := guarded(t)
	s := rpc.NewServer()
	ok(t, s.Register(&Generator{e}))
	here, there := net.Pipe()
	done := make(chan bool)
	go func() { s.ServeConn(there); close(done) }()
	c := rpc.NewClient(here)
	var out string
	ok(t, c.Call("Generator.Generate", "x", &out))
	ok(t, c.Close())
	<-done
}

func TestTCPEcho(t *testing.T) {
	e := guarded(t)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	done := make(chan bool)
	go func() {
		defer close(done)
		conn, err := lis.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprintln(conn, e.generate("x"))
	}()
	conn, err := net.Dial("tcp", lis.Addr().String())
	ok(t, err)
	_, err = io.Copy(io.Discard, conn)
	ok(t, err)
	ok(t, conn.Close())
	ok(t, lis.Close())
	<-done
}
