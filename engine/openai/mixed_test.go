package openai

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
)

// attacks are what hostile clients do. None of them may be answered with success.
var attacks = []struct{ name, path, body string }{
	{"sequences", "/v1/completions", `{"prompt": [` + strings.Repeat("[5],", 19) +
		`[5]], "n": 16384, "max_tokens": 4}`},
	{"prompts", "/v1/completions", `{"prompt": [` + strings.Repeat("[5],", 100_000) + `[5]]}`},
	{"stop strings", "/v1/completions", `{"prompt": "a", "stop": [` + strings.Repeat(`"a",`, 100_000) + `"a"]}`},
	{"bad words", "/v1/completions", `{"prompt": "a", "bad_words": ["` + strings.Repeat("lighthouse", 50_000) + `"]}`},
	{"a long prompt", "/v1/completions", `{"prompt": ` + quoted(15_900_000) + `}`},
	{"a long message", "/v1/chat/completions", `{"messages": [{"role": "user", "content": ` + quoted(4_000_000) +
		`}]}`},
	{"no end", "/v1/completions", `{"prompt": "a"`},
	{"a field that is unknown", "/v1/completions", `{"prompt": "a", "x": 1}`},
}

// attack makes one request of a hostile client. It reports a success, which there should not be.
func attack(ctx context.Context, client *http.Client, url string) error {
	switch i := rand.IntN(len(attacks) + 3); i {
	case len(attacks): // half-closes
		return raw(ctx, url, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 33\r\n\r\n"+`{"prompt": "a","max_tokens": 900}`, true)
	case len(attacks) + 1: // sends a chunk that is none
		return raw(ctx, url, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", false)
	case len(attacks) + 2: // another site's page
		r, _ := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions",
			strings.NewReader(`{"prompt": "a"}`))
		r.Header.Set("Content-Type", "text/plain")
		return refusedBy(client, r)
	default:
		a := attacks[i]
		r, _ := http.NewRequestWithContext(ctx, http.MethodPost, url+a.path, strings.NewReader(a.body))
		r.Header.Set("Content-Type", "application/json")
		return refusedBy(client, r)
	}
}

func refusedBy(client *http.Client, r *http.Request) error {
	resp, err := client.Do(r)
	if err != nil {
		return nil // the server closed while the body was on its way
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	if resp.StatusCode < 400 || resp.StatusCode >= 500 {
		return fmt.Errorf("status %d: %.200s", resp.StatusCode, text)
	}
	return nil
}

// raw sends bytes and reads what comes; a success without content would be a lie.
func raw(ctx context.Context, url, request string, halfClose bool) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		return nil
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	_, _ = io.WriteString(c, request)
	if halfClose {
		_ = c.(*net.TCPConn).CloseWrite()
	} else {
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	}
	text, _ := io.ReadAll(io.LimitReader(c, 4096))
	if strings.HasPrefix(string(text), "HTTP/1.1 200") && strings.Contains(string(text), "Content-Length: 0") {
		return fmt.Errorf("an empty success: %.200s", text)
	}
	return nil
}

// load is what a group of clients did.
type load struct {
	tokens, failed, attacks, broken atomic.Int64
	first                           atomic.Value // failure
}

func (l *load) fail(n *atomic.Int64, err error) {
	n.Add(1)
	l.first.CompareAndSwap(nil, err.Error())
}

// run lets good and hostile clients work until each good one has made its requests, or, when that
// number is 0, until the context ends.
func (l *load) run(ctx context.Context, url string, good, hostile, requests int) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: good + hostile}}
	defer client.CloseIdleConnections()
	var all, goods sync.WaitGroup
	for range hostile {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := attack(ctx, client, url); err != nil && ctx.Err() == nil {
					l.fail(&l.broken, err)
				}
				l.attacks.Add(1)
				select {
				case <-time.After(rand.N(200 * time.Millisecond)):
				case <-ctx.Done():
				}
			}
		})
	}
	for range good {
		goods.Go(func() {
			for n := 0; ctx.Err() == nil && (requests == 0 || n < requests); n++ {
				const tokens = 24
				r, _ := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions",
					strings.NewReader(`{"prompt": "The lighthouse", "max_tokens": 24, "ignore_eos": true}`))
				r.Header.Set("Content-Type", "application/json")
				resp, err := client.Do(r)
				if err == nil {
					var text []byte
					text, err = io.ReadAll(resp.Body)
					resp.Body.Close()
					if err == nil && resp.StatusCode != http.StatusOK {
						err = fmt.Errorf("status %d: %.200s", resp.StatusCode, text)
					}
				}
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					l.fail(&l.failed, err)
				} else {
					l.tokens.Add(tokens)
				}
			}
		})
	}
	goods.Wait()
	stop()
	all.Wait()
}

func mixedServer(t *testing.T) (*engine.Engine, *Server, string) {
	e, err := engine.Open(t.Context(), engine.Config{Model: fixtures.Bundled()})
	require.NoError(t, err)
	s := Handler(e, Options{})
	web := httptest.NewServer(s)
	t.Cleanup(func() {
		assert.NoError(t, e.Shutdown(context.Background()))
		web.Close()
	})
	return e, s, web.URL
}

// TestMixedLoad: while a fifth of the clients attack at random, no request of the others fails, and
// nothing of the attacks stays.
func TestMixedLoad(t *testing.T) {
	e, s, url := mixedServer(t)
	var l load
	l.run(t.Context(), url, 8, 2, 5)
	assert.Zero(t, l.failed.Load()+l.broken.Load(), l.first.Load())
	assert.EqualValues(t, 8*5*24, l.tokens.Load())
	assert.Positive(t, l.attacks.Load())
	require.Eventually(t, func() bool {
		st := e.Stats()
		return st.Running+st.Waiting == 0 && st.KVBlocksUsed == 0 && s.bodies.Load() == 0 && len(s.large) == 0
	}, time.Minute, time.Millisecond)
}

// TestMixedLoadKeepsItsSpeed: 160 clients alone and with 40 hostile ones, in turns. The others keep
// four fifths of their tokens per second, and the process goes back to its size.
func TestMixedLoadKeepsItsSpeed(t *testing.T) {
	if os.Getenv("ENGINETEST_LONG") == "" {
		t.Skip("ENGINETEST_LONG is not set: it takes a minute and an idle machine")
	}
	_, _, url := mixedServer(t)
	measure := func(hostile int, d time.Duration) (rate float64) {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		var l load
		began := time.Now()
		l.run(ctx, url, 160, hostile, 0)
		rate = float64(l.tokens.Load()) / time.Since(began).Seconds()
		assert.Zero(t, l.failed.Load()+l.broken.Load(), l.first.Load())
		t.Logf("160 clients and %d hostile ones: %.0f tokens per second, %d attacks", hostile, rate, l.attacks.Load())
		return rate
	}
	measure(0, 5*time.Second)
	debug.FreeOSMemory()
	before := rss(t)
	var alone, mixed float64
	for range 3 {
		alone += measure(0, 10*time.Second)
		mixed += measure(40, 20*time.Second)
	}
	debug.FreeOSMemory()
	after := rss(t)
	t.Logf("%.0f %% of the speed; resident before %d MiB, after %d MiB", 100*mixed/alone, before>>20, after>>20)
	assert.Greater(t, mixed/alone, 0.8)
	assert.Less(t, after-before, int64(64<<20), "resident bytes that stay")
}

// rss is the resident size of this process.
func rss(t *testing.T) int64 {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip("no /proc: ", err)
	}
	var size, resident int64
	_, err = fmt.Sscan(string(data), &size, &resident)
	require.NoError(t, err)
	return resident * int64(os.Getpagesize())
}
