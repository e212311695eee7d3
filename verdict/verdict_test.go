package verdict

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/enginetest/enginetest/internal/testlog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type found struct{ list []Verdict }

func (f found) Error() string       { return "found" }
func (f found) Verdicts() []Verdict { return f.list }

type classed struct{ class Class }

func (c classed) Error() string { return "device 3 is lost\nmore" }
func (c classed) Class() Class  { return c.class }

func TestOf(t *testing.T) {
	leak := Verdict{Class: ClassLeak, Signature: "leak: goroutine a.loop", Source: "leakcheck"}
	infra := Verdict{Class: ClassInfra, Signature: "infra: device N is lost", Message: "device 3 is lost"}
	for name, c := range map[string]struct {
		err   error
		want  []Verdict
		class Class
	}{
		"nil":        {nil, nil, ""},
		"no class":   {errors.New("x"), nil, ""},
		"class only": {classed{ClassInfra}, []Verdict{infra}, ClassInfra},
		"wrapped":    {fmt.Errorf("teardown: %w", found{[]Verdict{leak}}), []Verdict{leak}, ClassLeak},
		"joined":     {errors.Join(classed{ClassInfra}, found{[]Verdict{leak}}), []Verdict{infra, leak}, ClassLeak},
		"twice":      {errors.Join(found{[]Verdict{leak}}, found{[]Verdict{leak}}), []Verdict{leak}, ClassLeak},
		"with a class": {
			fmt.Errorf("open: %w", With(ClassInfra, errors.New("device 3 is lost"))),
			[]Verdict{infra},
			ClassInfra,
		},
		"abstains":     {classed{}, nil, ""},
		"unknown kind": {found{[]Verdict{{Class: "x", Signature: "s"}}}, []Verdict{{Class: "x", Signature: "s"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, c.want, Of(c.err))
			assert.Equal(t, c.class, ClassOf(c.err))
		})
	}
}

func TestSignatureIsStable(t *testing.T) {
	for _, pair := range [][2]string{
		{"goroutine 34 at 0xc000123", "goroutine 7 at 0xdeadbeef"},
		{
			"GPU-8c2f1a30-1111-2222-3333-444455556666 holds 8.1 GiB after 2.5s",
			"GPU-00000000-aaaa-bbbb-cccc-ddddeeeeffff holds 12 GiB after 1m30s",
		},
		{"open /tmp/TestA1234/001/model.bin: no such file", "open /tmp/TestA98/002/model.bin: no such file"},
		{"one\ntwo", "one\nthree"},
	} {
		assert.Equal(t, Signature(ClassLeak, pair[0]), Signature(ClassLeak, pair[1]))
	}
	assert.NotEqual(t, Signature(ClassLeak, "a.loop"), Signature(ClassLeak, "b.loop"))
	assert.NotEqual(t, Signature(ClassLeak, "a"), Signature(ClassTest, "a"))
	assert.LessOrEqual(t, len(normalize(strings.Repeat("é", 1000))), maxSignature+len("…"))
}

func TestLine(t *testing.T) {
	want := Verdict{
		Class: ClassCapacity, Signature: "s", Source: "gpuwait", Message: "held\nby \"x\"", Resource: "GPU-1", Holder: "pid 7",
		Value: 9, Bound: 4, Unit: "bytes", Took: time.Second, Budget: time.Minute, Accept: "Delta", Repro: "go test", Details: json.RawMessage(`{"a":1}`),
	}
	got, ok := Parse("    " + want.Line() + "\n")
	require.True(t, ok)
	assert.Equal(t, want, got)
	assert.NotContains(t, want.Line(), "\n")
	assert.NotContains(t, Verdict{Class: ClassLeak, Details: json.RawMessage("{")}.Line(), "details",
		"details that are not JSON are left out")
	for _, bad := range []string{
		"", "enginetest-verdict: ", "enginetest-verdict: {",
		`enginetest-verdict: {"class":"x"}`, "x " + want.Line(),
	} {
		_, ok := Parse(bad)
		assert.False(t, ok, bad)
	}
}

func TestJSON(t *testing.T) {
	assert.JSONEq(t, `null`, string(JSON(nil)))
	assert.JSONEq(t, `{"message":"x"}`, string(JSON(errors.New("x"))))
	assert.JSONEq(t, `{"message":"found","verdicts":[{"class":"leak","signature":"s"}]}`,
		string(JSON(found{[]Verdict{{Class: ClassLeak, Signature: "s"}}})))
	assert.JSONEq(t, `{"message":"found"}`, string(JSON(found{[]Verdict{{
		Class:   ClassLeak,
		Details: json.RawMessage("{"),
	}}})))
}

// A fake that embeds a nil testing.TB has methods that panic.
func TestFakeTB(t *testing.T) {
	t.Setenv(testlog.Env, "1")
	fake := struct{ halfTB }{}
	Record(fake, Verdict{Class: ClassLeak, Message: "x"})
	testlog.Attach(fake, testlog.KindMemory, 1)
	testlog.Attr(fake, "a", "b")
}

type halfTB struct{ testing.TB }

func (halfTB) Helper() {}

// TestPlanted is what TestRecorded runs in a child.
func TestPlanted(t *testing.T) {
	if os.Getenv("ENGINETEST_PLANTED") == "" {
		t.Skip("a part of TestRecorded")
	}
	Record(t, Verdict{Class: ClassLeak, Signature: "leak: planted", Value: 7})
	testlog.Attr(t, "teardown.device memory", "1.2s\nand more")
	Measure(t, Bound{Name: "growth", Value: 1, Max: 2})
	Measure(t)
	Faults(t, Fault{Name: "error at forward", Fired: 1})
	t.Error("planted")
	t.Run("skips", func(t *testing.T) { Skip(t, Verdict{Class: ClassCapacity, Message: "needs 2 GPUs, there is 1"}) })
}

// A program that reads the output gets the verdicts; a person who runs go test, with -v or without,
// does not see them.
func TestRecorded(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	planted := func(v, env string) string {
		cmd := exec.Command(exe, "-test.run=^TestPlanted$", v)
		cmd.Env = append(os.Environ(), "ENGINETEST_PLANTED=1", testlog.Env+"="+env)
		out, err := cmd.Output()
		require.Error(t, err, "the planted test fails")
		return string(out)
	}
	for _, c := range []struct {
		v, env string
		want   bool
	}{
		{"-test.v=test2json", "", true},
		{"-test.v=true", "", false},
		{"-test.v=false", "", false},
		{"-test.v=true", "1", true},
		{"-test.v=test2json", "0", false},
	} {
		out := planted(c.v, c.env)
		var got []Class
		var kinds []string
		for line := range strings.Lines(out) {
			if v, ok := Parse(line); ok {
				got = append(got, v.Class)
			}
			if a, ok := testlog.ParseAttachment(line); ok {
				kinds = append(kinds, a.Kind+string(a.Data))
			}
		}
		var want []Class
		if c.want {
			want = []Class{ClassLeak, ClassCapacity}
			assert.Equal(t, []string{
				`bound[{"name":"growth","value":1,"max":2}]`,
				`fault[{"name":"error at forward","fired":1,"passes":0}]`,
			}, kinds)
			assert.Contains(t, out, "=== ATTR  TestPlanted teardown.device_memory 1.2s\n")
			assert.Contains(t, out, "=== ATTR  TestPlanted verdict.signature leak: planted")
		}
		assert.Equal(t, want, got, "%v\n%s", c, out)
		assert.Equal(t, c.want, strings.Contains(out, "verdict.class"))
		assert.Equal(t, c.want, strings.Contains(out, "teardown."))
	}
}
