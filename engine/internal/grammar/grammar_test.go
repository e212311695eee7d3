package grammar

import (
	"maps"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine/internal/tokenizer"
	"github.com/enginetest/enginetest/fixtures"
)

const testLimit = 8 << 20

// bytesOnly is a vocabulary with a token per byte, and some of several bytes.
func bytesOnly(more ...string) *Vocabulary {
	return NewVocabulary(256+len(more), func(id int32) (string, bool) {
		if id < 256 {
			return string([]byte{byte(id)}), true
		}
		return more[id-256], true
	})
}

func bundled(tb testing.TB) (*Vocabulary, *tokenizer.Tokenizer) {
	tb.Helper()
	tok, err := tokenizer.Load(filepath.Join(fixtures.Bundled(), "tokenizer.json"))
	require.NoError(tb, err)
	return NewVocabulary(tok.VocabSize(), tok.Bytes), tok
}

// matches reports whether a grammar takes a text, byte by byte, to its end.
func matches(t *testing.T, g *Grammar, text string) bool {
	t.Helper()
	m := g.Matcher()
	var output []int32
	for i := range len(text) {
		mask, err := m.Mask(output)
		require.NoError(t, err)
		if !mask.Has(int32(text[i])) {
			return false
		}
		output = append(output, int32(text[i]))
	}
	may, _, err := m.Ends(output)
	require.NoError(t, err)
	return may
}

func TestEBNF(t *testing.T) {
	for _, c := range []struct {
		grammar  string
		yes, not []string
	}{
		{`root ::= "yes" | "no"`, []string{"yes", "no"}, []string{"", "y", "yesno", "maybe"}},
		{`root ::= [a-c]+ "!"{2}`, []string{"a!!", "abccba!!"}, []string{"!!", "d!!", "a!", "a!!!"}},
		{"root ::= item*   # a list\nitem ::= \"(\" root \")\"\n", []string{"", "()", "(()())()"}, []string{"(", ")(", "(()"}},
		{"root ::= a\n   | b\na ::= \"x\" a | \"x\"\nb ::= [^x\\n]", []string{"x", "xxxx", "y", "ü"}, []string{"xy", "\n"}},
		{`root ::= ("a" | "b"?){2,3} [\x41-\u0043]`, []string{"abB", "A", "bbbC"}, []string{"abab", "aaaaA"}},
		{`root ::= "\"\\\n" . "é"`, []string{"\"\\\n→é", "\"\\\nxé"}, []string{"\"\\\nxe"}},
		{"root::=e\ne::=t (\"+\" t)*\nt::=[0-9]{1,2}|\"(\" e \")\"", []string{"1+(22+3)", "7"}, []string{"1+", "123", "(1"}},
	} {
		g, err := EBNF(c.grammar, bytesOnly(), testLimit)
		require.NoError(t, err, c.grammar)
		for _, s := range c.yes {
			assert.True(t, matches(t, g, s), "%s: %q", c.grammar, s)
		}
		for _, s := range c.not {
			assert.False(t, matches(t, g, s), "%s: %q", c.grammar, s)
		}
	}
}

func TestRefusals(t *testing.T) {
	v := bytesOnly()
	ebnf := func(s string) error { _, err := EBNF(s, v, testLimit); return err }
	regex := func(s string) error { _, err := Regex(s, v, testLimit); return err }
	schema := func(s string) error { _, err := JSONSchema(s, v, testLimit); return err }
	choice := func(s string) error { _, err := Choice(strings.Fields(s), v, testLimit); return err }
	for _, c := range []struct {
		compile    func(string) error
		text, want string
	}{
		{ebnf, ``, `grammar: EBNF: line 1: rule "root" is not defined`},
		{ebnf, "root ::= \"a\"\nroot ::= \"b\"", `line 2: rule "root" is defined twice`},
		{ebnf, "root ::=\n  item", `line 2: rule "item" is not defined`},
		{ebnf, `root ::= "a`, "has no end"},
		{ebnf, `root ::= [b-a]`, "ends before it begins"},
		{ebnf, `root ::= ("a"`, "want )"},
		{ebnf, `root ::= "a"{3,2}`, "want {n}"},
		{ebnf, `root ::= "a"{99999}`, "at most 10000"},
		{ebnf, `root ::= "\q"`, `unknown escape \q`},
		{ebnf, `start: "a"`, "want ::="},
		{ebnf, `root ::= root "a" | "a"`, "left recursion"},
		{ebnf, "root ::= a\na ::= \"x\"? b\nb ::= a \"y\" | \"z\"", "left recursion"},
		{ebnf, `root ::= "a" root`, "nothing matches it"},
		{ebnf, "root ::= " + strings.Repeat("(", 200), "groups in each other"},
		{regex, `a(`, "missing closing"},
		{regex, `(?=a)b`, "invalid or unsupported Perl syntax"},
		{regex, `a\bb`, `\b in this place: unsupported`},
		{regex, `a^b`, "in this place: unsupported"},
		{regex, `(a{1000}){1000}`, "invalid repeat count"},
		{choice, "", "no text"},
		{schema, `{`, "not JSON"},
		{schema, `1`, "must be an object or a boolean"},
		{schema, `false`, "nothing matches it"},
		{schema, `{"type": "text"}`, `grammar: JSON schema: #/type: unknown type "text"`},
		{schema, `{"properties": {"a": {"not": {}}}}`, `JSON schema: #/properties/a/not: keyword "not" is not supported; supported: $ref, `},
		{schema, `{"patternProperties": {}}`, `#/patternProperties: keyword "patternProperties" is not supported; supported: $ref, `},
		{schema, `{"type": "array", "uniqueItems": true}`, "#/uniqueItems: only supported with a maxItems of at most 1"},
		{schema, `{"type": "number", "multipleOf": 0.5}`, "#/multipleOf: is 0.5, only 1 of an integer"},
		{schema, `{"type": "string", "format": "color"}`, `#/format: format "color" is not supported; supported: date, date-time, `},
		{schema, `{"type": "string", "pattern": "a", "minLength": 3}`, "beside a length"},
		{schema, `{"type": "string", "pattern": "(?<!a)b"}`, "#/pattern"},
		{schema, `{"type": "integer", "minimum": 1e999999999}`, "too large"},
		{schema, `{"type": "number", "minimum": 0.1, "maximum": 0.2}`, "without a whole number"},
		{schema, `{"allOf": [{}, {}]}`, "#/allOf: more than one schema"},
		{schema, `{"anyOf": [{"type": "null"}], "required": ["a"]}`, "required beside anyOf"},
		{schema, `{"oneOf": [{"type": "integer"}, {"type": "number"}]}`, "exclude each other"},
		{schema, `{"$ref": "other.json"}`, "into the same document"},
		{schema, `{"$ref": "#/$defs/a"}`, "points to nothing"},
		{schema, `{"$ref": "#"}`, "nothing matches it"},
		{schema, `{"properties": {"a": {"$ref": "#"}}, "required": ["a"]}`, "nothing matches it"},
		{schema, `{"type": "string", "minLength": 20000}`, "at most 10000 is supported"},
		{schema, `{"type": "object", "minProperties": 2}`, "#/minProperties"},
		{schema, strings.Repeat(`{"items":`, 300) + "{}" + strings.Repeat("}", 300), "nested too deeply"},
	} {
		err := c.compile(c.text)
		require.Error(t, err, c.text)
		assert.ErrorContains(t, err, c.want)
		var typed *Error
		assert.ErrorAs(t, err, &typed)
	}
}

// Regex agrees with the standard library on what a whole text matches: what is drawn matches, and
// what the library rejects cannot be drawn.
func TestRegex(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	v := bytesOnly()
	for _, pattern := range []string{
		`a*b+c?`, `[a-f]{2,4}|x`, `(?i)straße`, `^\d{3}-\w+$`, `[^a-z\n]{1,3}`, `.{0,3}é`, `(a|b(c|d)*)+`, `\p{Greek}{1,2}`,
		`[\x{10000}-\x{10FFFF}]{1,2}`, `(?s).{1,2}`, `[^\x{80}-\x{10FFFF}]`, `a{0}b`, ``,
	} {
		g, err := Regex(pattern, v, testLimit)
		require.NoError(t, err, pattern)
		want := regexp.MustCompile(`^(?:` + pattern + `)$`)
		for range 100 {
			text := draw(t, g, random, 200)
			assert.Regexp(t, want, text, "%s: %q", pattern, text)
			wrong := []byte(text)
			if len(wrong) > 0 {
				wrong[random.IntN(len(wrong))] = byte(random.IntN(128))
			}
			if !want.Match(wrong) {
				assert.False(t, matches(t, g, string(wrong)), "%s: %q", pattern, wrong)
			}
		}
	}
}

// draw follows a grammar at random until it ends; out of patience, on the shortest way.
func draw(t *testing.T, g *Grammar, random *rand.Rand, patience int) string {
	t.Helper()
	m, v := g.Matcher(), g.vocabulary
	var output []int32
	var text strings.Builder
	for range patience {
		mask, err := m.Mask(output)
		require.NoError(t, err)
		if mask.Ends && (mask.Count == 0 || random.IntN(4) == 0) {
			return text.String()
		}
		require.Positive(t, mask.Count, "nothing can follow %q", text.String())
		id := pick(mask, random)
		if ids := v.closers(mask); len(ids) > 0 && random.IntN(3) == 0 {
			id = ids[random.IntN(len(ids))]
		}
		output = append(output, id)
		text.WriteString(v.texts[id])
	}
	require.NoError(t, m.advance(output))
	for _, c := range shortest(t, g.table, m.at) {
		mask, err := m.Mask(output)
		require.NoError(t, err)
		for id := range int32(v.size) {
			if v.texts[id] == string([]byte{c}) {
				require.True(t, mask.Has(id), "%q behind %q", c, text.String())
				output = append(output, id)
				break
			}
		}
		text.WriteByte(c)
	}
	may, _, err := m.Ends(output)
	require.NoError(t, err)
	require.True(t, may, "%q", text.String())
	return text.String()
}

// shortest is a short text that leads to an end: what leads out of nesting is tried first.
func shortest(t *testing.T, table *table, from *state) []byte {
	t.Helper()
	type step struct {
		at   *state
		char byte
		back int
	}
	level := func(s *state) int {
		least := 0
		for i, c := range s.configs {
			if n := c.stack.levels(); i == 0 || n < least {
				least = n
			}
		}
		return least
	}
	steps, seen := []step{{at: from}}, map[*state]bool{from: true}
	todo := map[int][]int{level(from): {0}} // steps by level
	for len(steps) < 50_000 {
		least := slices.Min(slices.Collect(maps.Keys(todo)))
		i := todo[least][0]
		if todo[least] = todo[least][1:]; len(todo[least]) == 0 {
			delete(todo, least)
		}
		if steps[i].at.accepts {
			var text []byte
			for k := i; k > 0; k = steps[k].back {
				text = append(text, steps[k].char)
			}
			slices.Reverse(text)
			return text
		}
		for _, c := range table.sample {
			next, err := table.step(steps[i].at, c)
			require.NoError(t, err)
			if next != deadState && !seen[next] {
				seen[next] = true
				steps = append(steps, step{next, c, i})
				todo[level(next)] = append(todo[level(next)], len(steps)-1)
			}
		}
		require.NotEmpty(t, todo, "no end can be reached")
	}
	require.Fail(t, "no end has been found")
	return nil
}

// closers are the tokens of a mask that help a text to end.
func (v *Vocabulary) closers(mask *Mask) (ids []int32) {
	for id := range int32(v.size) {
		if len(v.texts[id]) == 1 && strings.Contains(`"}]1`, v.texts[id]) && mask.Has(id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// pick draws one token of a mask.
func pick(mask *Mask, random *rand.Rand) int32 {
	k := random.IntN(mask.Count)
	for id := int32(0); ; id++ {
		if mask.Has(id) {
			if k == 0 {
				return id
			}
			k--
		}
	}
}

// A mask has exactly the tokens whose bytes the automaton takes, one by one.
func TestMaskIsExact(t *testing.T) {
	v, _ := bundled(t)
	random := rand.New(rand.NewPCG(3, 4))
	g, err := JSONSchema(`{"type": "object", "properties": {"name": {"type": "string"}, "of": {"$ref": "#"}, "n": {"type": "integer"}}, "required": ["name"]}`, v, testLimit)
	require.NoError(t, err)
	for range 20 {
		m := g.Matcher()
		var output []int32
		for range 40 {
			mask, err := m.Mask(output)
			require.NoError(t, err)
			for id := range int32(v.size) {
				s, want := m.at, v.texts[id] != ""
				for i := range len(v.texts[id]) {
					s, err = g.table.step(s, v.texts[id][i])
					require.NoError(t, err)
					if s == deadState {
						want = false
						break
					}
				}
				require.Equal(t, want, mask.Has(id), "%q", v.texts[id])
			}
			if mask.Count == 0 {
				break
			}
			output = append(output, pick(mask, random))
		}
	}
}

// Forgetting states in the middle of an output changes nothing, and bounds the memory.
func TestTableForgets(t *testing.T) {
	v := bytesOnly(`":`, `{"`, "abc")
	const schema = `{"type": "object", "additionalProperties": {"anyOf": [{"$ref": "#"}, {"type": "integer"}]}}`
	large, err := JSONSchema(schema, v, testLimit)
	require.NoError(t, err)
	const limit = 20_000
	small, err := JSONSchema(schema, v, limit)
	require.NoError(t, err)
	for seed := range uint64(20) {
		want := draw(t, large, rand.New(rand.NewPCG(seed, 5)), 100)
		assert.Equal(t, want, draw(t, small, rand.New(rand.NewPCG(seed, 5)), 100))
	}
	assert.Greater(t, small.table.generation.Load(), int64(5), "it forgot")
	assert.Equal(t, int64(1), large.table.generation.Load())
	assert.Less(t, small.table.held(), int64(10*limit))
	assert.Less(t, small.Bytes(), large.Bytes())
}

// A list that is written by recursion on the right needs no stack, so its states are few.
func TestRightRecursionIsFlat(t *testing.T) {
	g, err := EBNF("root ::= \"a\" root | \"b\"", bytesOnly(), testLimit)
	require.NoError(t, err)
	assert.True(t, matches(t, g, strings.Repeat("a", 5000)+"b"))
	assert.Less(t, len(g.table.states), 10)
}

func TestTooAmbiguous(t *testing.T) {
	const grammar = "root ::= s \"!\"\ns ::= \"x\" s \"y\" | \"x\" s \"z\" | \"x\""
	g, err := EBNF(grammar, bytesOnly(), 1<<30)
	require.NoError(t, err)
	m := g.Matcher()
	var output []int32
	for range 100 {
		if _, err = m.Mask(output); err != nil {
			break
		}
		output = append(output, 'x')
	}
	assert.ErrorContains(t, err, "too ambiguous")
}

func TestTokensWithEqualTexts(t *testing.T) {
	v := bytesOnly("ab", "a", "ab", "")
	g, err := Choice([]string{"ab", "abc"}, v, testLimit)
	require.NoError(t, err)
	mask, err := g.Matcher().Mask(nil)
	require.NoError(t, err)
	assert.Equal(t, 4, mask.Count, "a, ab, a and ab again; never the empty one")
	for _, id := range []int32{'a', 256, 257, 258} {
		assert.True(t, mask.Has(id))
	}
	_, err = g.Matcher().Mask([]int32{'z'})
	assert.ErrorContains(t, err, `token 122 ("z"), number 1 of the output, does not match`)
}

func TestConcurrentUse(t *testing.T) {
	v, _ := bundled(t)
	g, err := JSONObject(v, 200_000)
	require.NoError(t, err)
	want := draw(t, g, rand.New(rand.NewPCG(1, 1)), 50)
	for range 8 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, want, draw(t, g, rand.New(rand.NewPCG(1, 1)), 50))
		})
	}
}

func FuzzCompile(f *testing.F) {
	f.Add("root ::= [a-z]+ (\"x\" | root)")
	f.Add(`{"type": "object", "properties": {"a": {"$ref": "#"}}}`)
	f.Add(`(a|b)*[^c]{1,3}`)
	v := bytesOnly()
	f.Fuzz(func(t *testing.T, text string) {
		for _, compile := range []func(string, *Vocabulary, int64) (*Grammar, error){EBNF, Regex, JSONSchema} {
			g, err := compile(text, v, testLimit)
			if err != nil {
				continue
			}
			if mask, err := g.Matcher().Mask(nil); err == nil && !mask.Ends && mask.Count == 0 {
				t.Errorf("%q: nothing can begin", text)
			}
		}
	})
}
