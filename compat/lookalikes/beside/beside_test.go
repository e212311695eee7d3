package beside

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/enginetest/enginetest/leakcheck"
	"go.uber.org/goleak"
)

// answer is what a tool said of one planted leak.
type answer struct {
	Found  bool // the planted leak is in its report
	Blamed bool // the neighbour is
	Took   time.Duration
}

var tools = []struct {
	name  string
	judge func(run func()) string // runs the test, and returns the report; "" when nothing was found
}{
	{"leakcheck", func(run func()) string {
		s := leakcheck.NewScope("test")
		e := &engine{weights: make([]byte, 4096)}
		ref := leakcheck.Track("engine", e)
		planted = e
		s.Do(run)
		planted = nil
		var out []string
		for _, err := range []error{s.Gone(context.Background()), ref.Released(context.Background())} {
			if err != nil {
				out = append(out, err.Error())
			}
		}
		return strings.Join(out, "\n")
	}},
	{"goleak", func(run func()) string {
		before := goleak.IgnoreCurrent()
		planted = &engine{weights: make([]byte, 4096)}
		run()
		if err := goleak.Find(before); err != nil {
			return err.Error()
		}
		return ""
	}},
	{"leak profile", func(run func()) string {
		planted = &engine{weights: make([]byte, 4096)}
		run()
		planted = nil
		var b bytes.Buffer
		p := pprof.Lookup("goroutineleak")
		if p == nil {
			return ""
		}
		time.Sleep(10 * time.Millisecond) // until the goroutine waits
		for range 2 {                     // the second pass finds what waits for a mutex
			b.Reset()
			_ = p.WriteTo(&b, 2)
		}
		var leaked []string
		for g := range strings.SplitSeq(b.String(), "\n\n") {
			if head, _, _ := strings.Cut(g, "\n"); strings.Contains(head, "(leaked)") {
				leaked = append(leaked, g)
			}
		}
		return strings.Join(leaked, "\n\n")
	}},
}

var planted *engine

var (
	table    = flag.Bool("table", false, "run TestTable, which takes a minute")
	tool     = flag.Int("tool", -1, "the tool of a child process")
	leak     = flag.Int("leak", 0, "the case of a child process")
	parallel = flag.Bool("parallel", false, "whether a child process has a neighbour")

	begun, there, over = make(chan bool), make(chan bool), make(chan bool)
)

func neighbour(stop chan bool) { <-stop }

// TestNeighbour runs in parallel with TestChild, and starts a goroutine meanwhile.
func TestNeighbour(t *testing.T) {
	if !*parallel {
		t.Skip("only in a child process")
	}
	t.Parallel()
	stop := make(chan bool)
	defer close(stop)
	<-begun
	if start := func() { go neighbour(stop) }; *tool == 0 {
		leakcheck.NewScope("neighbour").Do(start) // as each test has that uses leakcheck
	} else {
		start()
	}
	close(there)
	<-over
}

// TestChild plants one leak and prints a tool's answer.
func TestChild(t *testing.T) {
	if *tool < 0 {
		t.Skip("only in a child process")
	}
	if *parallel {
		t.Parallel()
	}
	defer close(over)
	startPool()
	start := time.Now()
	report := tools[*tool].judge(func() {
		if *parallel {
			close(begun)
			<-there
		}
		cases[*leak].plant(planted)
		time.Sleep(3 * time.Millisecond)
	})
	a := answer{Took: time.Since(start), Blamed: strings.Contains(report, "beside.neighbour")}
	if cases[*leak].goroutine {
		a.Found = slices.ContainsFunc([]string{"beside.plant", "beside.startPool", "persistConn"}, func(fn string) bool {
			return strings.Contains(report, fn)
		})
	} else {
		a.Found = strings.Contains(report, "*beside.engine")
	}
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\nanswer %s\n", text)
}

// count is one row of the table.
type count struct {
	references, goroutines, parallel, blamed int
	took                                     []time.Duration
	missed                                   []string
}

func TestTable(t *testing.T) {
	if !*table {
		t.Skip("runs 120 processes: use -table")
	}
	bin := filepath.Join(t.TempDir(), "beside.test")
	build := exec.Command("go", "test", "-c", "-o", bin, ".")
	build.Env = append(os.Environ(), "GOEXPERIMENT=goroutineleakprofile")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, out)
	}
	goroutines := 0
	for _, c := range cases {
		if c.goroutine {
			goroutines++
		}
	}
	references := len(cases) - goroutines
	var b, missed strings.Builder
	fmt.Fprintf(&b, "\n%-13s %11s %11s %12s %14s %13s\n", "", "goroutines", "references", "median time", "under Parallel", "blames others")
	for i := range tools {
		c := measure(t, bin, i)
		slices.Sort(c.took)
		fmt.Fprintf(&b, "%-13s %8d/%d %9d/%d %12s %11d/%d %10d/%d\n", tools[i].name, c.goroutines, goroutines, c.references, references,
			c.took[len(c.took)/2].Round(time.Millisecond), c.parallel, goroutines, c.blamed, len(cases))
		fmt.Fprintf(&missed, "%s misses %s\n", tools[i].name, strings.Join(c.missed, ", "))
		if i == 0 && (c.goroutines < goroutines || c.references < references || c.blamed > 0) {
			t.Errorf("leakcheck missed %v, and blamed a neighbour %d times", c.missed, c.blamed)
		}
	}
	t.Log(b.String() + "\n" + missed.String())
}

// measure plants each leak twice, alone and beside a neighbour.
func measure(t *testing.T, bin string, tool int) (out count) {
	for k, c := range cases {
		alone, beside := ask(t, bin, tool, k, false), ask(t, bin, tool, k, true)
		out.took = append(out.took, alone.Took)
		switch {
		case !alone.Found && (c.goroutine || tool == 0):
			out.missed = append(out.missed, c.name)
		case alone.Found && c.goroutine:
			out.goroutines++
		case alone.Found:
			out.references++
		}
		if beside.Found && c.goroutine {
			out.parallel++
		}
		if beside.Blamed {
			out.blamed++
		}
	}
	return out
}

func ask(t *testing.T, bin string, tool, k int, parallel bool) (a answer) {
	t.Helper()
	cmd := exec.Command(bin, "-test.parallel=2", "-test.run=Child|Neighbour", fmt.Sprintf("-tool=%d", tool),
		fmt.Sprintf("-leak=%d", k), fmt.Sprintf("-parallel=%t", parallel))
	out, err := cmd.CombinedOutput()
	_, text, _ := strings.Cut(string(out), "\nanswer ")
	text, _, _ = strings.Cut(text, "\n")
	if err := errors.Join(err, json.Unmarshal([]byte(text), &a)); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return a
}
