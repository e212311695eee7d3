package chat

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func frozenClock() time.Time { return time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC) }

type goldenCase struct {
	Name     string
	Template string
	File     string
	Chat     string // of a case with a file
	Tools    bool
	Prompt   bool
	Want     *string
	Fails    string

	vars *Dict
}

func readGolden(tb testing.TB) (cases []goldenCase) {
	tb.Helper()
	data, err := os.ReadFile("testdata/golden.json")
	require.NoError(tb, err)
	var golden struct{ Cases []goldenCase }
	require.NoError(tb, json.Unmarshal(data, &golden))
	all, err := DecodeJSON(data)
	require.NoError(tb, err)
	field := func(v any, key string) any {
		x, ok := v.(*Dict).Get(key)
		require.True(tb, ok, key)
		return x
	}
	for _, c := range golden.Cases {
		c.vars = field(all, "vars").(*Dict)
		if c.File != "" {
			source, err := os.ReadFile(filepath.Join("testdata/families", c.File))
			require.NoError(tb, err)
			c.Template = string(source)
			c.vars = newDict("messages", field(field(all, "chats"), c.Chat), "tools", nil, "documents", nil,
				"add_generation_prompt", c.Prompt,
				"bos_token", "<s>", "eos_token", "</s>")
			if c.Tools {
				c.vars.Set("tools", field(all, "tools"))
			}
		}
		cases = append(cases, c)
	}
	return cases
}

// unsupported are the cases that Jinja renders and this package refuses, each with what it says.
var unsupported = map[string]string{
	"feature 61": "'**' before an argument",
	"feature 62": "formatting with %",
	"feature 63": `the filter "format"`,
	"feature 65": `the filter "groupby"`,
}

// TestEqualToTransformers: the same text as transformers prints, or an error where it fails.
func TestEqualToTransformers(t *testing.T) {
	cases := readGolden(t)
	require.Greater(t, len(cases), 200)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			var got string
			tmpl, err := Parse(c.Name, c.Template)
			if err == nil {
				got, err = tmpl.Render(t.Context(), c.vars, frozenClock)
			}
			var e *Error
			if what, ok := unsupported[c.Name]; ok {
				require.ErrorAs(t, err, &e)
				assert.Equal(t, Unsupported, e.Kind)
				assert.Contains(t, err.Error(), what+" is not supported")
				return
			}
			if c.Want == nil {
				assert.Error(t, err, "transformers says: %s", c.Fails)
				return
			}
			require.NoError(t, err, c.Template)
			assert.Equal(t, *c.Want, got, c.Template)
		})
	}
}

// TestOrderOfKeys: a template sees an object's keys in the order of the request.
func TestOrderOfKeys(t *testing.T) {
	const in = `{"z": 1, "a": {"y": [], "b": null}}`
	v, err := DecodeJSON([]byte(in))
	require.NoError(t, err)
	tmpl, err := Parse("t", "{{ v | tojson }}")
	require.NoError(t, err)
	got, err := tmpl.Render(t.Context(), newDict("v", v), nil)
	require.NoError(t, err)
	if got != in { // order and separators too
		t.Errorf("got %s, want %s", got, in)
	}
}
