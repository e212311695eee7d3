package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/verdict"
)

// stream writes events as go test -json does.
type stream struct {
	bytes.Buffer
	at time.Time
}

func newStream() *stream { return &stream{at: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (s *stream) add(action, test string, fields ...any) *stream {
	e := map[string]any{"Time": s.at, "Action": action, "Package": "example.com/llm"}
	s.at = s.at.Add(time.Millisecond)
	if test != "" {
		e["Test"] = test
	}
	for i := 0; i < len(fields); i += 2 {
		e[fields[i].(string)] = fields[i+1]
	}
	line, _ := json.Marshal(e)
	s.Write(append(line, '\n'))
	return s
}

func (s *stream) test(name, end string, output ...string) *stream {
	s.add("run", name)
	for _, o := range output {
		s.add("output", name, "Output", o)
	}
	return s.add(end, name, "Elapsed", 0.5)
}

func read(t *testing.T, inputs ...string) *Report {
	t.Helper()
	var c Collector
	for i, in := range inputs {
		require.NoError(t, c.Read(strings.NewReader(in),
			Source{Name: fmt.Sprint("input", i), Package: "example.com/bin"}))
	}
	return c.Report()
}

func find(t *testing.T, r *Report, name string) *Test {
	t.Helper()
	for i := range r.Tests {
		if r.Tests[i].Name == name {
			return &r.Tests[i]
		}
	}
	require.Failf(t, "no such test", "%s in %+v", name, r.Tests)
	return nil
}

func TestRecordedVerdictWins(t *testing.T) {
	leak := verdict.Verdict{
		Class: verdict.ClassLeak, Signature: "leak: goroutine a.loop", Source: "leakcheck",
		Message: "goroutine a.loop", Repro: "go test ./x",
	}
	line := "    " + leak.Line() + "\n"
	s := newStream().test("TestA", "fail", "=== RUN   TestA\n", line[:20], line[20:],
		"    a_test.go:7: no space left on device\n", "--- FAIL: TestA (0.50s)\n")
	r := read(t, s.add("fail", "", "Elapsed", 1.0).String())
	a := find(t, r, "TestA")
	assert.Equal(t, verdict.ClassLeak, a.Class)
	assert.Equal(t, leak.Signature, a.Signature)
	assert.Equal(t, "go test ./x", a.Repro)
	assert.NotContains(t, a.Output, "enginetest-verdict", "the line is for programs")
	assert.Equal(t, ResultFail, r.Result)
	assert.Equal(t, map[verdict.Class]int{verdict.ClassLeak: 1}, r.Counts.ByClass)
}

// A product bug beside a failure of the machine is not excused by it.
func TestRecordedInfraExcusesNoBug(t *testing.T) {
	infra := verdict.Verdict{Class: verdict.ClassInfra, Message: "nvml"}.Line() + "\n"
	for _, bug := range []string{
		"panic: index out of range [1] with length 1\n\ngoroutine 7 [running]:\nexample.com/llm.Step()\n\t/src/llm/step.go:9 +0x1\n",
		"    a_test.go:9: got 3 tokens, want 4\n",
		"        \tError Trace:\ta_test.go:3\n        \tError:      \tNot equal: \n        \t            \texpected: 1\n",
		"    a_test.go:9: step: CUDA error 700: an illegal memory access was encountered\n",
	} {
		r := read(t, newStream().test("TestA", "fail", infra, bug).String())
		assert.NotContains(t, []verdict.Class{verdict.ClassInfra, verdict.ClassCapacity}, find(t, r, "TestA").Class,
			bug)
	}
	r := read(t, newStream().test("TestA", "fail", infra, "    a_test.go:9: cannot measure\n").String())
	assert.Equal(t, verdict.ClassInfra, find(t, r, "TestA").Class)
}

func TestParentsAreNotCountedTwice(t *testing.T) {
	s := newStream().add("run", "TestA").test("TestA/b", "fail", "    a_test.go:1: bad\n").add("output", "TestA",
		"Output", "--- FAIL: TestA (0.00s)\n").add("fail", "TestA")
	s.add("run", "TestB").test("TestB/c", "fail", "    a_test.go:1: bad\n").add("output", "TestB", "Output",
		"    a_test.go:5: own error\n").add("fail", "TestB")
	r := read(t, s.String())
	assert.True(t, find(t, r, "TestA").Parent)
	assert.False(t, find(t, r, "TestB").Parent)
	assert.Equal(t, 3, r.Counts.Failed)
}

func TestUnfinished(t *testing.T) {
	s := newStream().add("run", "TestA").add("output", "TestA", "Output", "=== RUN   TestA\n").add("output", "",
		"Output", "signal: segmentation fault (core dumped)\n").add("fail", "")
	r := read(t, s.String())
	a := find(t, r, "TestA")
	assert.Equal(t, StatusUnfinished, a.Status)
	assert.Equal(t, verdict.ClassEngine, a.Class)
	assert.Equal(t, 1, r.Counts.Failed, "the package is not counted as well")
}

func TestTextOfGoTest(t *testing.T) {
	r := read(t, `=== RUN   TestA
=== ATTR  TestA gpu.uuid GPU-1
    a_test.go:5: fine
--- PASS: TestA (0.10s)
=== RUN   TestB
=== RUN   TestB/sub
    a_test.go:9: got 1, want 2
--- FAIL: TestB (0.20s)
    --- FAIL: TestB/sub (0.20s)
=== RUN   TestC
    a_test.go:12: needs 2 GPUs, there is 1
--- SKIP: TestC (0.00s)
FAIL
FAIL	example.com/llm	0.412s
# example.com/broken
./x.go:3:5: undefined: y
FAIL	example.com/broken [build failed]
ok  	example.com/fine	(cached)
?   	example.com/none	[no test files]
FAIL
`)
	assert.Equal(t, "GPU-1", find(t, r, "TestA").Attributes["gpu.uuid"])
	assert.Equal(t, "got 1, want 2", find(t, r, "TestB/sub").Message)
	assert.Equal(t, "example.com/llm", find(t, r, "TestB/sub").Package)
	assert.Equal(t, verdict.ClassCapacity, find(t, r, "TestC").Class)
	broken := find(t, r, "")
	assert.Equal(t, "example.com/broken", broken.Package)
	assert.Equal(t, "./x.go:3:5: undefined: y", broken.Message)
	assert.Equal(t, 2, r.Counts.Failed)
	require.Len(t, r.Packages, 4)
}

func TestLogOfABundle(t *testing.T) {
	r := read(t, "\x16=== RUN   TestA\n\x16--- PASS: TestA (0.10s)\n\x16=== RUN   TestB\n    b_test.go:3: boom\n\x16--- FAIL: TestB (0.10s)\nFAIL\n")
	assert.Equal(t, "example.com/bin", find(t, r, "TestB").Package)
	assert.Equal(t, Counts{
		Tests: 2, Passed: 1, Failed: 1, ByClass: map[verdict.Class]int{verdict.ClassTest: 1},
		Triage: map[Triage]int{},
	}, r.Counts)
}

func TestBuildFailure(t *testing.T) {
	r := read(t, `{"ImportPath":"example.com/llm [example.com/llm.test]","Action":"build-output","Output":"# example.com/llm\n"}
{"ImportPath":"example.com/llm [example.com/llm.test]","Action":"build-output","Output":"./a.go:3:1: syntax error\n"}
{"ImportPath":"example.com/llm [example.com/llm.test]","Action":"build-fail"}
{"Action":"start","Package":"example.com/llm"}
{"Action":"fail","Package":"example.com/llm","Elapsed":0,"FailedBuild":"example.com/llm [example.com/llm.test]"}
`)
	assert.Equal(t, "./a.go:3:1: syntax error", find(t, r, "").Message)
	assert.Equal(t, verdict.ClassTest, find(t, r, "").Class)
	assert.Equal(t, ResultFail, r.Result)
}

func TestBadInput(t *testing.T) {
	var c Collector
	require.ErrorContains(t, c.Read(strings.NewReader(" \n"), Source{Name: "x"}), "x: it is empty")
	require.Error(t, c.Read(strings.NewReader("<testsuite><testcase"), Source{Name: "x"}))
	require.NoError(t, c.Read(strings.NewReader("{\"Action\":\"run\",\"Package\":\"p\",\"Test\":\"T\"}\n{broken\n"),
		Source{Name: "x"}))
	r := c.Report()
	assert.Equal(t, StatusUnfinished, find(t, r, "T").Status)
	assert.Equal(t, 1, r.Inputs[2].Problems)
	assert.Equal(t, ResultIncomplete,
		read(t, `{"Action":"start","Package":"p"}`+"\n"+`{"Action":"pass","Package":"p"}`+"\n").Result, "no test ran")
}

func TestJUnitRoundTrip(t *testing.T) {
	s := newStream().test("TestA", "pass").test("TestB", "fail", "    b_test.go:3: \x1b[31mgot\x1b[0m <1> \x00, want 2\n").test("TestC", "skip", "    c_test.go:1: no GPU here\n")
	first := read(t, s.add("fail", "", "Elapsed", 1.5).String())
	var out bytes.Buffer
	require.NoError(t, first.WriteJUnit(&out))
	require.NoError(t, xml.Unmarshal(out.Bytes(), &struct {
		XMLName xml.Name `xml:"testsuites"`
	}{}))
	assert.Contains(t, out.String(), `<property name="verdict.class" value="test"></property>`)
	second := read(t, out.String())
	assert.Equal(t, first.Counts, second.Counts)
	assert.Equal(t, "0.500", regexp.MustCompile(`name="TestA" time="([^"]*)"`).FindStringSubmatch(out.String())[1])
}

func TestJSONRoundTrip(t *testing.T) {
	first := read(t, newStream().test("TestA", "pass").test("TestB", "fail", "    b_test.go:3: bad\n").add("fail", "",
		"Elapsed", 1.5).String())
	var out bytes.Buffer
	require.NoError(t, first.WriteJSON(&out))
	again, err := ReadJSON(bytes.NewReader(out.Bytes()))
	require.NoError(t, err)
	assert.Equal(t, first.Tests, again.Tests)
	merged := read(t, out.String())
	assert.Equal(t, first.Tests, merged.Tests)
	assert.Equal(t, first.Counts, merged.Counts)
	_, err = ReadJSON(strings.NewReader(`{"schema":"other"}`))
	require.ErrorContains(t, err, `the schema is "other"`)
}

// Shards of a run, merged in any order, are the run: raw streams and reports alike.
func TestMergedShardsAreTheRun(t *testing.T) {
	one := newStream().test("TestA", "pass").test("TestB", "fail", "    b_test.go:3: bad\n").add("fail", "", "Elapsed",
		1.0).String()
	two := newStream().test("TestC", "pass").add("pass", "", "Elapsed", 2.0).String()
	a, b, whole := read(t, one, two), read(t, two, one), read(t,
		newStream().test("TestA", "pass").test("TestB", "fail", "    b_test.go:3: bad\n").test("TestC",
			"pass").add("fail", "", "Elapsed", 3.0).String())
	for _, merged := range []*Report{a, b} {
		assert.Equal(t, whole.Counts, merged.Counts)
		require.Len(t, merged.Packages, 1)
		assert.Equal(t, StatusFail, merged.Packages[0].Status)
		assert.Equal(t, whole.Packages[0].Elapsed, merged.Packages[0].Elapsed)
	}
}

// The scheduler ran a killed shard again: nothing is lost and nothing is there twice.
func TestShardThatWasKilled(t *testing.T) {
	killed := newStream().test("TestA", "pass").add("run", "TestB").String()
	again := newStream().test("TestA", "pass").test("TestB", "pass").add("pass", "", "Elapsed", 1.0).String()
	r := read(t, killed, again)
	assert.Equal(t, ResultPass, r.Result, r.Why)
	assert.Equal(t, 2, r.Counts.Tests)
	assert.Equal(t, []Attempt{{
		Status: StatusUnfinished, Class: verdict.ClassTest,
		Signature: find(t, r, "TestB").Attempts[0].Signature, Retried: true,
	}}, find(t, r, "TestB").Attempts)
}

func TestCountKeepsTheFailure(t *testing.T) {
	r := read(t, newStream().test("TestA", "pass").test("TestA", "fail", "    a_test.go:3: bad\n").test("TestA",
		"pass").String())
	a := find(t, r, "TestA")
	assert.Equal(t, StatusFail, a.Status)
	assert.Len(t, a.Attempts, 2)
	r.Compare(nil)
	assert.Equal(t, TriageFlaky, a.Triage)
}

func TestRetriesAreRecorded(t *testing.T) {
	var c Collector
	require.NoError(t, c.Read(strings.NewReader(newStream().test("TestA", "fail",
		"    a_test.go:3: CUDA out of memory\n").add("fail", "").String()), Source{Name: "1"}))
	c.Retrying(true)
	require.NoError(t, c.Read(strings.NewReader(newStream().test("TestA", "pass").add("pass", "").String()),
		Source{Name: "2"}))
	r := c.Report()
	assert.Equal(t, ResultPass, r.Result)
	assert.Equal(t, 1, r.Counts.Retried)
	assert.Equal(t, verdict.ClassCapacity, find(t, r, "TestA").Attempts[0].Class)
	var out bytes.Buffer
	require.NoError(t, r.WriteText(&out, TextOptions{}))
	assert.Contains(t, out.String(),
		"retried: example.com/llm.TestA: failed first (capacity: CUDA out of memory), then passed")
}

func TestPolicy(t *testing.T) {
	in := newStream().test("TestA", "pass").test("TestB", "skip", "    b_test.go:3: needs 2 GPUs, there is 1\n").test("TestC", "skip", "    c_test.go:3: not on weekends\n").add("pass", "").String()
	r := read(t, in)
	assert.Equal(t, ResultIncomplete, r.Result)
	assert.Equal(t, []string{"1 test skipped because the machine lacks something, at most 0 may be"}, r.Why)
	for _, p := range []Policy{
		{CapacitySkips: 1},
		{CapacitySkips: -1},
		{AllowSkip: []*regexp.Regexp{regexp.MustCompile(`llm\.TestB: needs 2`)}},
	} {
		r.Judge(p)
		assert.Equal(t, ResultPass, r.Result)
	}
	none := 0
	r.Judge(Policy{CapacitySkips: -1, MaxSkips: &none})
	assert.Equal(t, ResultIncomplete, r.Result)
}

func TestCompare(t *testing.T) {
	run := func(commit, end, message string) *Report {
		r := read(t, newStream().test("TestA", end, "    a_test.go:3: "+message+"\n").String())
		r.Commit = commit
		return r
	}
	for name, c := range map[string]struct {
		now     *Report
		history []*Report
		want    Triage
	}{
		"new":                 {run("b", "fail", "bad"), []*Report{run("a", "pass", "")}, TriageNew},
		"new without history": {run("b", "fail", "bad"), nil, TriageNew},
		"known": {
			run("b", "fail", "bad after 3s"),
			[]*Report{run("a", "fail", "bad after 5s")},
			TriageKnown,
		},
		"fails in another way": {run("b", "fail", "bad"), []*Report{run("a", "fail", "worse")}, TriageNew},
		"flaky":                {run("b", "fail", "bad"), []*Report{run("b", "pass", "")}, TriageFlaky},
		"flaky, passes now":    {run("b", "pass", ""), []*Report{run("b", "fail", "bad")}, TriageFlaky},
		"fixed":                {run("b", "pass", ""), []*Report{run("a", "fail", "bad")}, TriageFixed},
		"passes":               {run("b", "pass", ""), []*Report{run("a", "pass", "")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c.now.Compare(c.history)
			assert.Equal(t, c.want, find(t, c.now, "TestA").Triage)
		})
	}
}

func TestQuarantine(t *testing.T) {
	list, err := ReadQuarantine(strings.NewReader("# known\nTestA owner=ada expires=2026-06-30 the scheduler starves\nllm.TestGone owner=ada expires=2026-06-30\n"))
	require.NoError(t, err)
	r := read(t, newStream().test("TestA", "fail", "    a_test.go:3: bad\n").String())
	unused := r.Hold(list)
	require.Len(t, unused, 1)
	assert.Equal(t, "llm.TestGone", unused[0].Pattern)
	r.Judge(Policy{Now: time.Date(2026, 6, 30, 23, 0, 0, 0, time.UTC)})
	assert.Equal(t, ResultPass, r.Result)
	assert.Equal(t, 1, r.Counts.Held)
	r.Judge(Policy{Now: time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)})
	assert.Equal(t, ResultFail, r.Result, "it has expired")
	for _, bad := range []string{
		"TestA owner=ada", "TestA expires=2026-01-01", "TestA owner=ada expires=soon",
		"[ owner=a expires=2026-01-01",
	} {
		_, err := ReadQuarantine(strings.NewReader(bad))
		require.ErrorContains(t, err, "line 1", bad)
	}
}

func TestRepro(t *testing.T) {
	var c Collector
	c.Command([]string{"go", "test", "-race", "-tags", "cuda", "-run", "TestOther", "./...", "-args", "-race"})
	require.NoError(t, c.Read(strings.NewReader(newStream().test("TestA/it's (1)", "fail",
		"    a_test.go:3: bad\n").test("BenchmarkB", "fail").String()), Source{}))
	r := c.Report()
	assert.Equal(t, `go test -race -tags cuda example.com/llm '-run=^TestA$/^it'\''s \(1\)$' -count=1`, find(t, r, "TestA/it's (1)").Repro)
	assert.Equal(t, `go test -race -tags cuda example.com/llm '-run=^$' '-bench=^BenchmarkB$' -count=1`, find(t, r, "BenchmarkB").Repro)
}

func TestLongOutputKeepsBothEnds(t *testing.T) {
	s := newStream().add("run", "TestA").add("output", "TestA", "Output", "the begin\n")
	for range 5000 {
		s.add("output", "TestA", "Output", strings.Repeat("x", 60)+"\n")
	}
	a := find(t, read(t, s.add("output", "TestA", "Output", "    a_test.go:3: the end\n").add("fail", "TestA").String()), "TestA")
	assert.Contains(t, a.Output, "the begin")
	assert.Contains(t, a.Output, "bytes left out")
	assert.Equal(t, "the end", a.Message)
	assert.Less(t, len(a.Output), keepHead+keepTail+200)
}

func TestGitHub(t *testing.T) {
	r := read(t, newStream().test("TestA", "fail", "    a_test.go:3: 100% bad: ```x``` <b>\n").test("TestB", "fail", "    b_test.go:3: no space left on device\n").String())
	var notes, summary bytes.Buffer
	require.NoError(t, r.WriteAnnotations(&notes, func(string) string { return "llm" }))
	assert.Contains(t, notes.String(), "::error file=llm/a_test.go,line=3,title=test%3A example.com/llm.TestA::100%25 bad: ```x``` <b>%0Ato reproduce: go test")
	assert.Contains(t, notes.String(), "::warning file=llm/b_test.go,line=3,title=infra")
	require.NoError(t, r.WriteMarkdown(&summary))
	assert.Contains(t, summary.String(), "### ❌ fail: 2 tests, 0 passed, 2 failed, 0 skipped")
	assert.Contains(t, summary.String(), "````\n    a_test.go:3: 100% bad: ```x```", "no backtick in the output ends the block")
}

func TestReportNeverPanics(t *testing.T) {
	for _, in := range []string{"<", "<x", "{", "{}", "[]", "\x00\x01", "--- FAIL: ", "--- FAIL:  (s)", "=== ", "=== RUN ", "FAIL\t", "ok\t\t", "{\"Action\":\"output\",\"Test\":\"T\"}"} {
		var c Collector
		_ = c.Read(strings.NewReader(in), Source{Name: "x"})
		r := c.Report()
		var out bytes.Buffer
		require.NoError(t, r.WriteHTML(&out), in)
		require.NoError(t, r.WriteJUnit(&out), in)
		require.NoError(t, r.WriteText(&out, TextOptions{Color: true}), in)
	}
}
