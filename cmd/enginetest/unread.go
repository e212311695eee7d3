package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
)

// unread are a server's connections without a whole request: new ones, and those whose request is
// still on its way. When the server ends nothing is owed to them, and net/http would wait for each:
// five seconds for a new one, a load balancer's probe perhaps, for the others without end.
type unread struct {
	mu    sync.Mutex
	conns map[net.Conn]bool
	over  bool
}

type connKey struct{}

// watch has the server close what is unread when its Shutdown begins.
func (u *unread) watch(s *http.Server) {
	u.conns = map[net.Conn]bool{}
	s.ConnState = func(c net.Conn, state http.ConnState) {
		u.set(c, state == http.StateNew || state == http.StateActive)
	}
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, c)
	}
	next := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _ := r.Context().Value(connKey{}).(net.Conn)
		whole := func() { u.set(c, false) }
		if r.Body == http.NoBody {
			whole()
		}
		r.Body = &body{r.Body, whole}
		next.ServeHTTP(w, r)
	})
	s.RegisterOnShutdown(u.close)
}

func (u *unread) set(c net.Conn, reading bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !reading {
		delete(u.conns, c)
		return
	}
	u.conns[c] = true
	if u.over {
		_ = c.Close()
	}
}

func (u *unread) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over = true
	for c := range u.conns {
		_ = c.Close()
	}
}

// body tells when it has been read to its end.
type body struct {
	io.ReadCloser
	whole func()
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.whole()
	}
	return n, err
}
