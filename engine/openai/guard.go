package openai

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// writer is a response with a time limit for each write. It knows whether the response has begun.
type writer struct {
	http.ResponseWriter
	timeout time.Duration
	begun   bool
	large   bool // the request's body was

	fault    *fault // of the answer; nil: none
	faultCtx context.Context
	closed   <-chan struct{} // the engine has ended
	writes   int
}

func (w *writer) WriteHeader(status int) {
	w.limit()
	w.begun = true
	w.ResponseWriter.WriteHeader(status)
}

func (w *writer) Write(p []byte) (int, error) {
	w.limit()
	w.begun = true
	return w.write(p)
}

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// limit begins the time limit of a write anew. A writer without deadlines is a test's. Nothing
// takes the deadline back: the connection's next answer sets its own.
func (w *writer) limit() {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(w.timeout))
}

// refusalPause is how long a client waits for the refusal of a large body. It cannot send another
// one in the meantime, so that one that sends nothing else costs the others little.
const refusalPause = 2 * time.Second

// pauseRefusal delays the refusal of a large body, while its client waits for it.
func (s *Server) pauseRefusal(w *writer, r *http.Request) {
	if !w.large || s.pause == 0 {
		return
	}
	select {
	case <-time.After(s.pause):
	case <-r.Context().Done():
	}
}

// recovered answers a request whose handler panicked. A response that has begun is cut off, so that
// it cannot be taken for a whole one.
func (w *writer) recovered(r *http.Request, v any) {
	if v == http.ErrAbortHandler { //nolint:errorlint // the value itself, as net/http has it
		panic(v)
	}
	slog.Error("openai: panic in a handler", "path", r.URL.Path, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	if w.begun {
		panic(http.ErrAbortHandler)
	}
	(&apiError{
		status: http.StatusInternalServerError, kind: "server_error", code: "internal_error",
		message: fmt.Sprintf("panic in the server: %v", v),
	}).write(w)
}

// allow refuses requests that their client may not make. origin is answered to a web page that may
// use the server.
func (s *Server) allow(r *http.Request) error {
	if !s.hostAllowed(r) {
		return &apiError{
			status: http.StatusMisdirectedRequest, kind: "invalid_request_error", code: "host_not_allowed",
			message: fmt.Sprintf("the Host header is %q, which is no name of this machine: a server on a loopback address takes others only when they are allowed (AllowedHosts, --allowed-hosts)", r.Host),
		}
	}
	control := controlPaths[r.URL.Path]
	if control {
		if err := s.sameOrigin(r); err != nil {
			return err
		}
	}
	guarded := control || poolingPaths[r.URL.Path] || strings.HasPrefix(r.URL.Path, "/v1/")
	if guarded && !s.keyAllowed(r) {
		return &apiError{
			status: http.StatusUnauthorized, kind: "invalid_request_error", code: "invalid_api_key",
			message: `the Authorization header is not "Bearer" and the server's API key`,
		}
	}
	return nil
}

// keyAllowed compares in constant time.
func (s *Server) keyAllowed(r *http.Request) bool {
	if s.options.APIKey == "" {
		return true
	}
	key, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	got, want := sha256.Sum256([]byte(key)), sha256.Sum256([]byte(s.options.APIKey))
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1
}

// hostAllowed refuses names that a foreign page could have pointed at a loopback address.
func (s *Server) hostAllowed(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok || !isLoopback(local.String()) {
		return true
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsLoopback() {
		return true
	}
	return slices.Contains(s.options.AllowedHosts, host) || slices.Contains(s.options.AllowedHosts, "*")
}

func isLoopback(addr string) bool {
	a, err := netip.ParseAddrPort(addr)
	return err == nil && a.Addr().Unmap().IsLoopback()
}

// crossOrigin answers the questions of browsers. done reports whether that was all.
func (s *Server) crossOrigin(w http.ResponseWriter, r *http.Request) (done bool) {
	origin := r.Header.Get("Origin")
	if len(s.options.AllowedOrigins) == 0 || origin == "" {
		return false
	}
	w.Header().Add("Vary", "Origin")
	if !s.originAllowed(origin) {
		return false
	}
	w.Header().Set("Access-Control-Allow-Origin", origin)
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	w.Header().Set("Access-Control-Allow-Methods", "GET, POST")
	w.Header().Set("Access-Control-Allow-Headers", "Authorization, Content-Type")
	w.WriteHeader(http.StatusNoContent)
	return true
}

func (s *Server) originAllowed(origin string) bool {
	return slices.Contains(s.options.AllowedOrigins, origin) || slices.Contains(s.options.AllowedOrigins, "*")
}

// checkJSON wants a body of JSON to say so: that is what a browser asks leave for before it sends a
// request to another site.
func checkJSON(r *http.Request) error {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err == nil && kind == "application/json" {
		return nil
	}
	return &apiError{
		status: http.StatusUnsupportedMediaType, kind: "invalid_request_error", code: "unsupported_media_type",
		message: fmt.Sprintf("the Content-Type is %q, must be application/json", r.Header.Get("Content-Type")),
	}
}
