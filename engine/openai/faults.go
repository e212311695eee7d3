package openai

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// FaultHeader is the header of a request that asks a server for a fault, when [Options.Faults]
// allows it. A fault is of this request only:
//
//	X-Enginetest-Fault: status=503   the answer is an error with this status, 400 to 599
//	X-Enginetest-Fault: hang         nothing is answered until the client leaves
//	X-Enginetest-Fault: hang=2s      nothing is answered for this long
//	X-Enginetest-Fault: cut=3        the connection ends after 3 events of a stream, or in the body
//	X-Enginetest-Fault: stall=3      nothing follows after 3 events of a stream, or after half the body
const FaultHeader = "X-Enginetest-Fault"

// fault is what a request asked for.
type fault struct {
	kind   string
	status int
	hang   time.Duration // 0: until the client leaves
	events int           // that are sent before
}

// readFault reads the header; nil without one.
func (s *Server) readFault(r *http.Request) (*fault, error) {
	text := r.Header.Get(FaultHeader)
	if text == "" {
		return nil, nil
	}
	if !s.options.Faults {
		return nil, invalid(FaultHeader, "faults_disabled", "this server injects no faults (Options.Faults, --enable-faults)")
	}
	kind, value, given := strings.Cut(text, "=")
	f := &fault{kind: kind}
	var err error
	switch {
	case kind == "status" && given:
		f.status, err = strconv.Atoi(value)
		if f.status < 400 || f.status > 599 {
			err = strconv.ErrRange
		}
	case kind == "hang" && given:
		f.hang, err = time.ParseDuration(value)
		if f.hang <= 0 {
			err = strconv.ErrRange
		}
	case kind == "hang":
	case (kind == "cut" || kind == "stall") && given:
		f.events, err = strconv.Atoi(value)
		if f.events < 0 {
			err = strconv.ErrRange
		}
	default:
		err = strconv.ErrSyntax
	}
	if err != nil {
		return nil, invalid(FaultHeader, "invalid_value", "is %q, must be status=400…599, hang, hang=DURATION, cut=N or stall=N", text)
	}
	return f, nil
}

// before does what a fault does before the request is looked at.
func (s *Server) before(f *fault, w *writer, r *http.Request) error {
	ctx, closed := r.Context(), s.closed()
	switch {
	case f == nil:
		return nil
	case f.kind == "status":
		return &apiError{
			status: f.status, kind: "injected_fault", code: "injected_fault",
			message: FaultHeader + ": " + f.kind + "=" + strconv.Itoa(f.status),
		}
	case f.kind == "hang" && f.hang > 0:
		return sleep(ctx, f.hang, closed)
	case f.kind == "hang":
		s.discardBody(w, r)
		halt(ctx, closed)
	}
	w.fault, w.faultCtx, w.closed = f, ctx, closed
	return nil
}

// discardBody reads a body to its end: net/http does not notice before that a client leaves.
func (s *Server) discardBody(w *writer, r *http.Request) {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(s.options.ReadTimeout)) // a writer without deadlines is a test's
	_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, s.options.MaxBody))
	_ = rc.SetReadDeadline(time.Time{})
}

// halt waits until the client leaves or the server is closed, and ends the connection.
func halt(ctx context.Context, closed <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-closed:
	}
	panic(http.ErrAbortHandler)
}

// write does what a fault does to a write: an event of a stream, or the body.
func (w *writer) write(p []byte) (int, error) {
	f := w.fault
	if f == nil || f.kind != "cut" && f.kind != "stall" {
		return w.ResponseWriter.Write(p)
	}
	if w.Header().Get("Content-Type") == eventStream {
		if w.writes < f.events {
			w.writes++
			return w.ResponseWriter.Write(p)
		}
		p = nil
	}
	_, _ = w.ResponseWriter.Write(p[:len(p)/2])
	_ = http.NewResponseController(w.ResponseWriter).Flush()
	if f.kind == "stall" {
		halt(w.faultCtx, w.closed)
	}
	panic(http.ErrAbortHandler)
}
