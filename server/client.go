package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/enginetest/enginetest/internal/backoff"
)

// client sends the requests of one server. It knows which of them are in flight, and can end them.
type client struct {
	name, base, key string
	http            *http.Client
	died            func() error // an ExitError, when the server is dead

	life context.Context // of all requests
	end  context.CancelCauseFunc

	mu       sync.Mutex
	inFlight int
}

const maxAnswer = 256 << 20 // bytes of an answer that is read as a whole

func newClient(name, base, key string) *client {
	c := &client{
		name: name, base: base, key: key,
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
	}
	c.life, c.end = context.WithCancelCause(context.Background())
	c.died = func() error { return nil }
	return c
}

// answer is the body of an answer; closing it ends the request.
type answer struct {
	io.ReadCloser
	once sync.Once
	end  func()
}

func (a *answer) Close() error {
	err := a.ReadCloser.Close()
	a.once.Do(a.end)
	return err
}

// send sends a request and returns an answer that is a success. The caller closes its body.
func (c *client) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var content io.Reader
	switch b := body.(type) {
	case nil:
	case io.Reader:
		content = b
	default:
		text, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("server: %s: %s %s: %w", c.name, method, path, err)
		}
		content = bytes.NewReader(text)
	}
	inner, cancel := context.WithCancelCause(ctx)
	unlink := context.AfterFunc(c.life, func() { cancel(context.Cause(c.life)) })
	c.count(1)
	end := func() {
		unlink()
		cancel(nil)
		c.count(-1)
	}
	res, err := c.roundTrip(inner, method, path, content)
	if err != nil {
		err = c.explain(ctx, method+" "+path, err)
		end()
		return nil, err
	}
	res.Body = &answer{ReadCloser: res.Body, end: end}
	if res.StatusCode >= 300 {
		defer res.Body.Close()
		return nil, c.refused(res, method+" "+path)
	}
	return res, nil
}

func (c *client) roundTrip(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	// A server may close an idle connection while a request is on its way: cpp-httplib does after 100
	// requests or 5 seconds. This entry, of which nothing is sent, has the transport send it again.
	req.Header["Idempotency-Key"] = nil
	return c.http.Do(req)
}

func (c *client) count(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight += n
}

// explain says why a request failed: the server was stopped, the caller's context ended, or the
// server died.
func (c *client) explain(ctx context.Context, request string, err error) error {
	if c.life.Err() != nil {
		return context.Cause(c.life)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("server: %s: %s: %w", c.name, request, context.Cause(ctx))
	}
	if exit := c.died(); exit != nil {
		return fmt.Errorf("%w\nduring %s: %w", exit, request, err)
	}
	return fmt.Errorf("server: %s: %s: %w", c.name, request, err)
}

// refused reads the errors of OpenAI's API, Ollama's and FastAPI's.
func (c *client) refused(res *http.Response, request string) error {
	b, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	return apiError(c.name, request, res.StatusCode, b)
}

func apiError(name, request string, status int, b []byte) *APIError {
	e := &APIError{Name: name, Request: request, Status: status, Message: strings.TrimSpace(string(b))}
	var outer struct {
		Error  json.RawMessage
		Detail json.RawMessage
	}
	if json.Unmarshal(b, &outer) != nil {
		return e
	}
	var inner struct {
		Code    any
		Type    string
		Message string
	}
	var text string
	switch {
	case json.Unmarshal(outer.Error, &text) == nil:
		e.Message = text
	case json.Unmarshal(outer.Error, &inner) == nil:
		e.Message, e.Code = inner.Message, inner.Type
		if code, ok := inner.Code.(string); ok {
			e.Code = code
		}
	case len(outer.Detail) > 0:
		e.Message = string(outer.Detail)
	}
	return e
}

// call sends a request and decodes the answer into out, when that is not nil.
func (c *client) call(ctx context.Context, method, path string, body, out any) error {
	res, err := c.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return c.explain(ctx, method+" "+path, err)
	}
	if out == nil {
		return nil
	}
	if text, ok := out.(*string); ok {
		*text = string(b)
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("server: %s: %s %s: the answer is no JSON that fits: %w: %.200s", c.name, method, path, err,
			b)
	}
	return nil
}

func (c *client) post(ctx context.Context, path string, body, out any) error {
	return c.call(ctx, http.MethodPost, path, body, out)
}

func (c *client) get(ctx context.Context, path string, out any) error {
	return c.call(ctx, http.MethodGet, path, nil, out)
}

// health asks whether a path answers with a good status.
func (c *client) health(ctx context.Context, path string, good func(status int) bool) error {
	if c.base == "" {
		return errors.New("it has no address yet: its command has no server.Port, and no log line has announced one")
	}
	res, err := c.roundTrip(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if good(res.StatusCode) {
		return nil
	}
	b, _ := io.ReadAll(io.LimitReader(res.Body, 2<<10))
	return apiError(c.name, "GET "+path, res.StatusCode, b)
}

// close ends all requests, now and later, with cause. It returns how many were in flight.
func (c *client) close(cause error) int {
	c.mu.Lock()
	n := c.inFlight
	c.mu.Unlock()
	c.end(cause)
	c.http.CloseIdleConnections()
	return n
}

// wait returns when no request is in flight, after d at the latest: cancelled requests return at
// once, so it does not matter that the time for the whole stop may be over.
func (c *client) wait(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), d, fmt.Errorf("waited %s", d))
	defer cancel()
	for looks := backoff.New(100*time.Microsecond, 10*time.Millisecond); ; {
		c.mu.Lock()
		n := c.inFlight
		c.mu.Unlock()
		if n == 0 {
			c.http.CloseIdleConnections()
			return nil
		}
		if cause := looks.Wait(ctx); cause != nil {
			return fmt.Errorf("%d requests of this test have not returned: %w; a stream that is not read to its end is one",
				n, cause)
		}
	}
}

// modelName is the name in requests, for servers that ask for one.
func (s *Server) modelName(ctx context.Context) (string, error) {
	if s.model != "" {
		return s.model, nil
	}
	var list struct{ Data []struct{ ID string } }
	if err := s.client.get(ctx, "/v1/models", &list); err != nil {
		return "", fmt.Errorf("%w\nno model's name: server.Model sets it", err)
	}
	if len(list.Data) == 0 {
		return "", fmt.Errorf("server: %s lists no models: server.Model sets the name", s.cfg.name)
	}
	return cmp.Or(list.Data[0].ID, "default"), nil
}
