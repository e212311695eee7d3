package chat

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/fixtures"
)

// oneOperation is how many steps a single operation can be charged, at 8 bytes a step.
const oneOperation = 2*maxBytes/8 + maxItems

// endsAfter is a context that ends after its Err has been asked a number of times.
type endsAfter struct {
	context.Context
	left int
}

func (c *endsAfter) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestRenderStopsWithItsContext: a template that runs for long asks for the end of its context
// every this many steps, and stops there.
func TestRenderStopsWithItsContext(t *testing.T) {
	for _, source := range []string{
		"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
		"{% set x = 'a' * 9999999 %}{% for i in range(99999) %}{% set y = x | upper %}{% endfor %}",
	} {
		tmpl, err := Parse("t", source)
		require.NoError(t, err)
		r := &run{ctx: &endsAfter{t.Context(), 2}, now: time.Now}
		_, err = tmpl.render(r, newDict())
		require.ErrorIs(t, err, context.Canceled)
		assert.Less(t, r.steps, maxSteps, "the context ended it, not the bound")
	}
}

// TestRefusals: what cannot be rendered is an error that names it, with the line.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		source string
		kind   Kind
		want   string
	}{
		{"a\n{{ x | groupby('y') }}", Unsupported, `t:2: the filter "groupby" is not supported`},
		{"{% if 0 %}{{ x | nosuch }}{% endif %}", Unsupported, `the filter "nosuch"`},
		{"{{ x is escaped }}", Unsupported, `the test "escaped"`},
		{"\n\n{% include 'a' %}", Unsupported, "t:3: the statement {% include %}"},
		{"{% import 'a' as b %}", Unsupported, "{% import %}"},
		{"{% for x in y recursive %}{% endfor %}", Unsupported, "a recursive loop"},
		{"{{ x.encode() }}", Unsupported, "the method .encode()"},
		{"{{ x.format(1) }}", Unsupported, "the method .format()"},
		{"{{ f(*x) }}", Unsupported, "'*' before an argument"},
		{"{{ {1: 2} }}", Unsupported, "a dict key that is no text"},
		{"{% macro m() %}{{ varargs }}{% endmacro %}", Unsupported, "'varargs' in a macro"},
		{"{{ 99999999999999999999 }}", Unsupported, "an integer beyond 64 bits"},
		{"{{ 9223372036854775807 + 1 }}", Unsupported, "an integer beyond 64 bits"},
		{"{{ [1]|map('upper') }}", Unsupported, "printing a generator"},
		{"{{ strftime_now('%Q') }}", Unsupported, "strftime's %Q"},
		{"{{ x | tojson(default=1) }}", Unsupported, `the argument "default" of the filter "tojson"`},
		{"{% foo %}", Syntax, "unknown statement {% foo %}"},
		{"{% if x %}", Syntax, "the template ends without {% elif %} or {% else %} or {% endif %}"},
		{"{% endif %}", Syntax, "unknown statement {% endif %}"},
		{"{{ x", Syntax, "a tag does not end: no '}}'"},
		{"{# x", Syntax, "{# has no #}"},
		{"{% raw %}", Syntax, "no {% endraw %}"},
		{"{{ (1 }}", Syntax, "'}' without '{'"},
		{"{{ 1 2 }}", Syntax, "unexpected '2', want the end of the tag"},
		{"{{ }}", Syntax, "want an expression"},
		{"{{ ? }}", Syntax, `unexpected character '?'`},
		{"{% break %}", Syntax, "outside of a loop"},
		{"{% set 1 = 2 %}", Syntax, "cannot be assigned to"},
		{
			"{{ raise_exception('roles must alternate') }}", Raised,
			"the template refused the conversation: roles must alternate",
		},
		{"{{ messages[0].role.x.y }}", Runtime, "has no attribute"},
		{"{{ [].append(1) }}", Runtime, "'.append()' changes a list"},
		{"{% set x.y = 1 %}", Runtime, "it is not a namespace"},
		{"{{ [1] < [2] }}", Unsupported, "ordering lists"},
		{strings.Repeat("{% if 1 %}", 200), Bound, "nests deeper"},
		{"{{ " + strings.Repeat("(", 5000) + "1" + strings.Repeat(")", 5000) + " }}", Bound, "nests deeper"},
		{"{{ " + strings.Repeat("not ", 5000) + "1 }}", Bound, "nests deeper"},
		{"{{ " + strings.Repeat("-", 5000) + "1 }}", Bound, "nests deeper"},
		{"{{ " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + " }}", Bound, "nests deeper"},
		{"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", Bound, "calls of macros nest deeper"},
		{"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", Bound, "it does not end"},
		{"{% for a in range(99999999) %}{% endfor %}", Bound, "a range has more than 100000 items"},
		{"{{ 'aaaaaaaa' * 999999999 }}", Bound, "a repetition"},
		{"{{ [1] * 999999999999 }}", Bound, "a repetition"},
		{
			"{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
			Bound, "a text has more than",
		},
		{
			"{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", Bound,
			"a list has more than",
		},
		{
			"{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
			Bound, "it does not end",
		},
		{"{% set x = 'a' * 9999 %}{% for i in range(9999) %}{{ x }}{% endfor %}", Bound, "it prints more than"},
		{
			"{% set x = 'a' * 9999999 %}{% for i in range(99999) %}{% set y = x | upper %}{% endfor %}", Bound,
			"it does not end",
		},
		{"{{ ('a' * 9999999).replace('a', 'bb' * 999999) }}", Bound, "a repetition"},
		{"{{ 'a' | indent(99999999999) }}", Bound, "a repetition"},
		{"{{ 2 ** 99999999 }}", Unsupported, "an integer beyond 64 bits"},
		{strings.Repeat("x", maxSource+1), Bound, "at most 1048576"},
		{"{{ s[,0] }}", Syntax, "unexpected ',', want an index"},
		{"{{ 0 ** -1 }}", Runtime, "zero to a negative power"},
		{"{{ 10.0 ** 400 }}", Runtime, "too large"},
		{"{{ (-8) ** 0.5 }}", Unsupported, "a complex number"},
		{"{{ 0.0 ** -0.5 }}", Runtime, "zero to a negative power"},
		{
			"{% macro m() %}{{ m()" + strings.Repeat("+1", 100_000) + " }}{% endmacro %}{{ m() }}", Bound,
			"chains more than 1000",
		},
		{"{{ x" + strings.Repeat(".a", 100_000) + " }}", Bound, "chains more than 1000"},
		{"{{ x" + strings.Repeat("|e", 100_000) + " }}", Bound, "chains more than 1000"},
		{"{{ x" + strings.Repeat(" and x", 100_000) + " }}", Bound, "chains more than 1000"},
		{"{{ x" + strings.Repeat(" if x", 100_000) + " }}", Bound, "chains more than 1000"},
		{"{% set ns = namespace(s=[1]) %}{% for i in range(99999) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s == ns.s }}", Bound, "values that are compared nest deeper"},
		{"{% set x = 'a' * 9999999 %}{{ [x, x, x] }}", Bound, "a text has more than"},
		{"{{ [[[[messages]]]] | tojson(indent=' ' * 9999999) }}", Bound, "tojson's indent has 9999999 bytes"},
	} {
		name := c.source
		if len(name) > 60 {
			name = name[:60]
		}
		t.Run(name, func(t *testing.T) {
			vars := newDict("messages", []any{newDict("role", "user")})
			tmpl, err := Parse("t", c.source)
			r := &run{ctx: t.Context(), now: time.Now}
			if err == nil {
				_, err = tmpl.render(r, vars)
			}
			var e *Error
			require.ErrorAs(t, err, &e)
			assert.Contains(t, err.Error(), c.want)
			assert.Equal(t, c.kind, e.Kind)
			assert.LessOrEqual(t, r.steps, maxSteps+oneOperation)
			assert.LessOrEqual(t, r.made, 64*maxSteps+2*maxBytes)
		})
	}
}

// TestConcurrently: a template is shared by all requests.
func TestConcurrently(t *testing.T) {
	tmpl, err := Parse("t",
		"{% set ns = namespace(n=0) %}{% for i in range(100) %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}")
	require.NoError(t, err)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			got, err := tmpl.Render(t.Context(), newDict("x", int64(i)), nil)
			assert.NoError(t, err)
			assert.Equal(t, (&run{ctx: t.Context()}).str(int64(100*i)), got)
		})
	}
	wg.Wait()
}

func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return dir
}

// newDict makes a Dict of keys and values in turn.
func newDict(pairs ...any) *Dict {
	d := &Dict{}
	for i := 0; i+1 < len(pairs); i += 2 {
		d.Set(pairs[i].(string), pairs[i+1])
	}
	return d
}

func user(text string) []any { return []any{newDict("role", "user", "content", text)} }

func TestLoad(t *testing.T) {
	config := func(template string) string {
		return `{"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "unk_token": null, "chat_template": ` + template + `}`
	}
	for _, c := range []struct {
		name  string
		files map[string]string
		conv  Conversation
		want  string
		err   string
	}{
		{name: "text", files: map[string]string{"tokenizer_config.json": config(`"{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ unk_token }}"`)}, want: "<s>hi</s>"},
		{name: "a file goes first", files: map[string]string{
			"tokenizer_config.json": config(`"a"`),
			"chat_template.jinja":   "b{{ bos_token }}",
		}, want: "b<s>"},
		{name: "a list", files: map[string]string{"tokenizer_config.json": config(`[{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]`)}, want: "d"},
		{
			name: "tools take tool_use", files: map[string]string{"tokenizer_config.json": config(`[{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t{{ tools | length }}"}]`)},
			conv: Conversation{Tools: []any{&Dict{}}}, want: "t1",
		},
		{
			name: "by name", files: map[string]string{
				"tokenizer_config.json":               config(`"d"`),
				"additional_chat_templates/rag.jinja": "rag",
			},
			conv: Conversation{Template: "rag"}, want: "rag",
		},
		{
			name: "no such name", files: map[string]string{"tokenizer_config.json": config(`"d"`)},
			conv: Conversation{Template: "rag"}, err: `no chat template named "rag": there are default`,
		},
		{name: "nothing", files: nil, err: "neither tokenizer_config.json nor chat_template.jinja"},
		{name: "null", files: map[string]string{"tokenizer_config.json": config(`null`)}, err: "no chat template"},
		{
			name: "a number", files: map[string]string{"tokenizer_config.json": config(`1`)},
			err: "neither a text nor a list",
		},
		{name: "not JSON", files: map[string]string{"tokenizer_config.json": `{`}, err: "unexpected end of JSON"},
		{
			name: "unsupported", files: map[string]string{"tokenizer_config.json": config(`"{% include 'x' %}"`)},
			err: "the statement {% include %} is not supported",
		},
		{
			name: "an unsupported one that nobody asks for", want: "d",
			files: map[string]string{"tokenizer_config.json": config(`[{"name": "default", "template": "d"}, {"name": "odd", "template": "{% foo %}"}]`)},
		},
		{
			name: "extra variables", files: map[string]string{"tokenizer_config.json": config(`"{{ thinking }}{{ bos_token }}{{ add_generation_prompt }}"`)},
			conv: Conversation{Extra: newDict("thinking", false, "bos_token", "!"), AddGenerationPrompt: true},
			want: "False!True",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.conv.Messages = user("hi")
			ts, err := Load(write(t, c.files))
			var got string
			if err == nil {
				got, err = ts.Render(t.Context(), c.conv)
			}
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
		})
	}
}

func TestBundled(t *testing.T) {
	ts, err := Load(fixtures.Bundled())
	require.NoError(t, err)
	got, err := ts.Render(t.Context(), Conversation{Messages: user("What is 12+30?"), AddGenerationPrompt: true})
	require.NoError(t, err)
	assert.Equal(t, "Q: What is 12+30?\nA:", got)
}

func TestDecodeJSON(t *testing.T) {
	for in, want := range map[string]string{
		`{"a": 1`: "EOF", `1 2`: "more than one", `[99999999999999999999]`: "beyond 64 bits",
		strings.Repeat("[", 500): "nests deeper", `{"a": }`: "invalid character '}'|missing value",
	} {
		_, err := DecodeJSON([]byte(in))
		require.Error(t, err, in)
		assert.Regexp(t, want, err.Error(), in)
	}
	v, err := DecodeJSON([]byte(`{"a": 1, "b": 2, "a": [1.0, 2e3, true, null, "x"]}`))
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "b"}, v.(*Dict).Keys())
	a, _ := v.(*Dict).Get("a")
	assert.Equal(t, []any{1.0, 2e3, true, nil, "x"}, a)
}

// FuzzTemplate: whatever a template says, it ends, in a text or in an Error, within its bounds.
func FuzzTemplate(f *testing.F) {
	for _, c := range readGolden(f) {
		f.Add(c.Template)
	}
	vars, err := DecodeJSON([]byte(`{"messages": [{"role": "user", "content": "hi"}], "s": "text", "n": 3, "d": {"a": [1, 2.5, null]}, "none": null}`))
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, source string) {
		tmpl, err := Parse("fuzz", source)
		var out string
		if err == nil {
			out, err = tmpl.Render(t.Context(), vars.(*Dict), frozenClock)
		}
		var e *Error
		if err != nil && (!errors.As(err, &e) || e.Line < 1) {
			t.Fatalf("not an Error with a line: %v", err)
		}
		if len(out) > maxBytes {
			t.Fatalf("%d bytes", len(out))
		}
	})
}

// FuzzDecodeJSON: a value that is read is printed as the same JSON.
func FuzzDecodeJSON(f *testing.F) {
	f.Add([]byte(`{"z": [1, 2.5, null, true, "é\u2028\ud83d\ude00"], "a": {}}`))
	tmpl, err := Parse("t", "{{ v | tojson }}")
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := DecodeJSON(data)
		if err != nil {
			return
		}
		out, err := tmpl.Render(t.Context(), newDict("v", v), nil)
		if err != nil {
			return
		}
		var a, b any
		require.NoError(t, json.Unmarshal(data, &a))
		require.NoError(t, json.Unmarshal([]byte(out), &b))
		require.Equal(t, a, b)
	})
}
