package forkproc

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

func TestReadStream(t *testing.T) {
	long := strings.Repeat("x", maxLine+10)
	for _, c := range []struct {
		in   string
		want []string
		why  string
	}{
		{"a\n\nb\n", []string{"text |a", "text |", "text |b"}, "plain lines, an empty one too"},
		{"a", []string{"text |a"}, "the last line without an end"},
		{"\x16=== RUN   TestA\n", []string{"run TestA|"}, "a frame"},
		{"=== RUN   TestA\n", []string{"text |=== RUN   TestA"}, "the same without its mark is text"},
		{
			"no newline\x16--- PASS: TestA (0.01s)\n",
			[]string{"text |no newline", "pass TestA|"},
			"a frame after unfinished output",
		},
		{"a \x16 b\n", []string{"text |a \x16 b"}, "a mark that begins no frame"},
		{
			"\x16--- FAIL: TestA/b_(1) (12.50s)\n\x16FAIL\n",
			[]string{"fail TestA/b_(1)|", "fail |"},
			"a name with brackets; the end of the run",
		},
		{"\x16=== ATTR  TestA key a value\n", []string{"attr TestA|key=a value"}, "an attribute"},
		{"\x16=== ARTIFACTS TestA /a folder\n", []string{"artifacts TestA|/a folder"}, "a folder with a space"},
		{
			"\x16=== NEW   TestA\n\x16--- MAYBE: TestA (1s)\n\x16--- PASS: TestA\n",
			[]string{
				"text |=== NEW   TestA", "text |--- MAYBE: TestA (1s)",
				"text |--- PASS: TestA",
			},
			"what this release does not print is text",
		},
		{
			"\x16testing: race detected outside of test execution\n",
			[]string{"text |testing: race detected outside of test execution"},
			"framed text",
		},
		{
			long + "\n",
			[]string{"text |" + long[:maxLine], "text |" + long[maxLine:]},
			"a line without an end comes in pieces",
		},
	} {
		for _, r := range []io.Reader{strings.NewReader(c.in), iotest.OneByteReader(strings.NewReader(c.in))} {
			var got []string
			require.NoError(t, readStream(r, func(e event) { got = append(got, show(e)) }), c.why)
			require.Equal(t, c.want, got, c.why)
		}
	}
	require.Error(t, readStream(iotest.ErrReader(errors.New("x")), func(event) {}))
}

func show(e event) string {
	s := fmt.Sprintf("%s %s|%s", e.kind, e.name, e.text)
	if e.key != "" {
		s += e.key + "=" + e.value
	}
	return s
}

func FuzzReadStream(f *testing.F) {
	f.Add("\x16=== RUN   TestA\ntext\x16--- PASS: TestA (0.00s)\n\x16PASS\n")
	f.Fuzz(func(t *testing.T, in string) {
		n := 0
		if err := readStream(strings.NewReader(in), func(e event) {
			n += len(e.text) + len(e.name) + len(e.key) + len(e.value)
		}); err != nil {
			t.Fatal(err)
		}
		if n > len(in) {
			t.Fatalf("%d bytes out of %d", n, len(in))
		}
	})
}
