package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/internal/testlog"
	"github.com/enginetest/enginetest/verdict"
)

// sample is a report with one of everything that the page draws.
func sample(t *testing.T) *Report {
	t.Helper()
	memory, err := json.Marshal(gpuwait.Report{Ending: "timeout", Devices: []gpuwait.DeviceReport{{
		Device: gpuwait.Device{UUID: "GPU-1a2b", Name: "NVIDIA H200"}, Memory: gpuwait.Memory{
			Total: 140 << 30,
			Used:  8 << 30,
		}, Bounded: true, Target: 1 << 30,
		History: []gpuwait.Point{
			{After: 0, Used: 40 << 30},
			{After: time.Second, Used: 60 << 30},
			{After: 2 * time.Second, Used: 8 << 30},
		},
		Holders: []gpuwait.Process{{
			Holder:  gpuwait.Holder{PID: 4711, Bytes: 8 << 30, Known: true},
			Command: "llm.test -test.run <x>", Test: "TestLoad",
		}},
	}}})
	require.NoError(t, err)
	const teardown = `{"name":"llm","took_ns":1500000000,"steps":[{"name":"shutdown","took_ns":1200000000,"budget_ns":40000000000,"detail":"released"},
		{"name":"host","took_ns":0,"skipped":"not on this system"},{"name":"references","took_ns":300000000,"error":{"message":"leakcheck: <llm.Engine> is reachable"}}]}`
	attach := func(kind, data string) string {
		var compact bytes.Buffer
		require.NoError(t, json.Compact(&compact, []byte(data)))
		return fmt.Sprintf("    enginetest-attach: {\"kind\":%q,\"data\":%s}\n", kind, compact.String())
	}
	s := newStream()
	leak := verdict.Verdict{
		Class: verdict.ClassLeak, Source: "leakcheck",
		Message: "llm.Engine is reachable from llm.cache", Repro: "go test ./llm -run '^TestLeak$'",
	}
	s.test("TestLeak", "fail", leak.Line()+"\n", attach(testlog.KindTeardown, teardown),
		attach(testlog.KindMemory, string(memory)), "    a_test.go:3: <script>alert(1)</script>\n")
	s.test("TestDisk", "fail", "    a_test.go:9: write x: no space left on device\n")
	s.test("TestWant", "fail", "    a_test.go:12: got 3, want 4\n")
	s.test("TestSkip", "skip", "    a_test.go:12: needs 2 GPUs, there is 1\n")
	s.test("TestFine", "pass", attach(testlog.KindTeardown, teardown))
	var c Collector
	require.NoError(t, c.Read(bytes.NewReader(s.add("fail", "", "Elapsed", 3.0).Bytes()), Source{Name: "run.json"}))
	r := c.Report()
	r.Name, r.Commit = "nightly", "0123abc"
	r.Compare(nil)
	return r
}

func TestHTML(t *testing.T) {
	r := sample(t)
	leak := find(t, r, "TestLeak")
	require.Len(t, leak.Memory, 1)
	assert.Equal(t, int64(60<<30), leak.Memory[0].Peak)
	assert.Equal(t, []Holder{{PID: 4711, Bytes: 8 << 30, Command: "llm.test -test.run <x>", Note: "TestLoad"}},
		leak.Memory[0].Holders)
	require.Len(t, leak.Teardowns, 1)
	assert.Equal(t, "leakcheck: <llm.Engine> is reachable", leak.Teardowns[0].Steps[2].Error)
	var out bytes.Buffer
	require.NoError(t, r.WriteHTML(&out))
	html := out.String()
	// output is text, and no network
	for _, never := range []string{"<script>alert", "ZgotmplZ", `src="`, `href="h`, `href="/`} {
		assert.False(t, strings.Contains(html, never), never) //nolint:testifylint // it would print the page
	}
	for _, want := range []string{
		"peak 60.0 GiB", "at most 1.0 GiB", "pid", "4711", "not checked", "after 2s: 8.0 GiB",
		"needs 2 GPUs",
	} {
		assert.True(t, strings.Contains(html, want), want) //nolint:testifylint // it would print the page
	}
}

// many is a report of n tests with one failure in a hundred.
func many(n int) string {
	s := newStream()
	for i := range n {
		name := fmt.Sprintf("TestNumber%05d", i)
		if i%100 == 0 {
			s.test(name, "fail", strings.Repeat("    a_test.go:3: a line of output that has nothing to say\n", 30),
				"    a_test.go:9: got 3, want 4\n")
		} else {
			s.test(name, "pass", "=== RUN   "+name+"\n", "    a_test.go:3: fine\n", "--- PASS: "+name+" (0.50s)\n")
		}
	}
	return s.add("fail", "", "Elapsed", 3.0).String()
}

func TestPageStaysSmall(t *testing.T) {
	n := 10_000
	if testing.Short() {
		n = 1_000
	}
	in := many(n)
	began := time.Now()
	r := read(t, in)
	var out bytes.Buffer
	require.NoError(t, r.WriteHTML(&out))
	t.Logf("%d tests, %d KiB of events: a page of %d KiB after %v", n, len(in)>>10, out.Len()>>10, time.Since(began))
	assert.Less(t, out.Len(), 5<<20)
	assert.Equal(t, n, r.Counts.Tests)
}

func BenchmarkReport(b *testing.B) {
	for _, n := range []int{100, 1_000, 10_000, 100_000} {
		in := many(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				var c Collector
				if err := c.Read(strings.NewReader(in), Source{}); err != nil {
					b.Fatal(err)
				}
				var out bytes.Buffer
				if err := c.Report().WriteHTML(&out); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(out.Len()), "page-bytes")
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/test")
		})
	}
}

// probe drives the page as a person would and puts what it saw into the title.
const probe = `<script>
addEventListener('load', () => setTimeout(async () => {
  const bad = [], must = (ok, what) => { if (!ok) bad.push(what); }, cards = () => [...document.querySelectorAll('.failure')].filter(c => !c.hidden).length;
  must(document.documentElement.dataset.ready === 'true', 'the script ran');
  must(cards() === 3, 'three failures');
  const infra = document.querySelector('button[data-class=infra]');
  infra.click(); must(cards() === 1 && infra.getAttribute('aria-pressed') === 'true', 'filtered by class'); infra.click(); must(cards() === 3, 'filter off');
  document.dispatchEvent(new KeyboardEvent('keydown', {key: '/', bubbles: true}));
  const search = document.getElementById('search'); must(document.activeElement === search, 'the slash key focuses the search');
  search.value = 'want 4'; search.dispatchEvent(new Event('input')); must(cards() === 1, 'filtered by text'); search.value = ''; search.dispatchEvent(new Event('input'));
  const copy = document.querySelector('.copy'); copy.click();
  for (let i = 0; i < 500 && copy.textContent !== 'Copied'; i++) await new Promise(r => setTimeout(r, 100));
  must(copy.textContent === 'Copied', 'copied');
  for (const e of document.querySelectorAll('svg, button, input, pre')) must(e.getAttribute('aria-label') || e.textContent.trim(), 'a label for ' + e.outerHTML.slice(0, 80));
  for (const id of new Set([...document.querySelectorAll('[id]')].map(e => e.id))) must(document.querySelectorAll('#' + id).length === 1, 'id twice: ' + id);
  must(document.documentElement.scrollWidth <= innerWidth + 1, 'no sideways scroll: ' + document.documentElement.scrollWidth + ' > ' + innerWidth);
  const rgb = getComputedStyle(document.body).backgroundColor;
  document.title = 'probe: ' + (bad.length ? bad.join('; ') : 'ok ' + rgb);
}, 50));
</script>`

// TestBrowser opens the page in Chromium: light, dark and narrow.
func TestBrowser(t *testing.T) {
	chromium := browser(t)
	var out bytes.Buffer
	require.NoError(t, sample(t).WriteHTML(&out))
	html := strings.Replace(out.String(), "</body>", probe+"</body>", 1)
	file := filepath.Join(t.TempDir(), "page.html")
	require.NoError(t, os.WriteFile(file, []byte(html), 0o600))
	for name, c := range map[string]struct {
		size string
		dark bool
		want string
	}{
		"light":  {"1200,900", false, "ok rgb(255, 255, 255)"},
		"dark":   {"1200,900", true, "ok rgb(15, 19, 24)"},
		"narrow": {"500,900", false, "ok rgb(255, 255, 255)"},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"--window-size=" + c.size, "--virtual-time-budget=60000", "--dump-dom"}
			if c.dark {
				args = append(args, "--blink-settings=preferredColorScheme=0")
			}
			dom := chromium(t, append(args, "file://"+file)...)
			_, title, _ := strings.Cut(dom, "<title>")
			title, _, _ = strings.Cut(title, "</title>")
			assert.Equal(t, "probe: "+c.want, title)
			if dir := os.Getenv("ENGINETEST_SCREENSHOTS"); dir != "" {
				shot := append(args[:1:1], "--screenshot="+filepath.Join(dir, "report-"+name+".png"))
				shot = append(append(shot, args[3:]...), "file://"+file)
				chromium(t, shot...)
			}
		})
	}
}

// The page asks nothing of any server but for itself.
func TestBrowserNeedsNoNetwork(t *testing.T) {
	chromium := browser(t)
	var out bytes.Buffer
	require.NoError(t, sample(t).WriteHTML(&out))
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/page" {
			_, _ = w.Write(out.Bytes())
			return
		}
		if r.URL.Path != "/favicon.ico" { // the browser's own idea
			asked = append(asked, r.URL.Path)
		}
		http.NotFound(w, r)
	}))
	defer server.Close()
	dom := chromium(t, "--virtual-time-budget=5000", "--dump-dom", server.URL+"/page")
	assert.Contains(t, dom, `data-ready="true"`)
	assert.Empty(t, asked)
}

func browser(t *testing.T) func(t *testing.T, args ...string) string {
	t.Helper()
	if os.Getenv("ENGINETEST_LONG") == "" {
		t.Skip("a browser takes seconds: ENGINETEST_LONG=1 runs this")
	}
	exe, err := exec.LookPath("chromium")
	if err != nil {
		t.Skipf("no chromium on this machine (apt-get install chromium): %v", err)
	}
	if runtime.GOOS != "linux" {
		t.Skip("the flags are those of Debian's chromium")
	}
	return func(t *testing.T, args ...string) string {
		t.Helper()
		base := []string{
			"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
			"--user-data-dir=" + t.TempDir(),
		}
		cmd := exec.CommandContext(t.Context(), exe, append(base, args...)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		require.NoError(t, err, stderr.String())
		return string(out)
	}
}
