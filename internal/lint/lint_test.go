package lint

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var want = regexp.MustCompile("// want `([^`]*)`")

// Each planted weakness is found by its check and no other, and nothing is found in its sound twins.
// compat/vet runs the same files through analysistest.
func TestChecks(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles what the corpus imports")
	}
	units, err := Load(t.Context(), ".", corpus(t)...)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(units), len(Checks()))
	for _, u := range units {
		t.Run(strings.TrimPrefix(u.Path, module+"internal/lint/testdata/src/"), func(t *testing.T) {
			wants := map[string]*regexp.Regexp{}
			for _, f := range u.Files {
				for _, group := range f.Comments {
					for _, c := range group.List {
						if m := want.FindStringSubmatch(c.Text); m != nil {
							at := u.Fset.Position(c.Pos())
							wants[fmt.Sprintf("%s:%d", filepath.Base(at.Filename), at.Line)] = regexp.MustCompile(m[1])
						}
					}
				}
			}
			for _, c := range Checks() {
				for _, f := range c.Run(u) {
					at := u.Fset.Position(f.Pos)
					line := fmt.Sprintf("%s:%d", filepath.Base(at.Filename), at.Line)
					if assert.Contains(t, wants, line, f.Message) {
						assert.Regexp(t, wants[line], f.Message)
					}
					delete(wants, line)
				}
			}
			assert.Empty(t, wants, "not found")
		})
	}
}

func corpus(t *testing.T) (patterns []string) {
	t.Helper()
	files, err := filepath.Glob("testdata/src/[a-z]*/a_test.go")
	require.NoError(t, err)
	more, err := filepath.Glob("testdata/src/exit/*/a_test.go")
	require.NoError(t, err)
	for _, f := range append(files, more...) {
		patterns = append(patterns, "./"+filepath.ToSlash(filepath.Dir(f)))
	}
	return patterns
}

// The tests of a unit have their lines, and the package that they belong to is the tested one.
func TestTests(t *testing.T) {
	units, err := Load(t.Context(), ".", "./testdata/src/fail")
	require.NoError(t, err)
	require.Len(t, units, 1)
	var names []string
	for _, test := range units[0].Tests() {
		assert.Equal(t, module+"internal/lint/testdata/src/fail", test.Package)
		assert.Positive(t, test.Line)
		names = append(names, test.Name)
	}
	assert.Equal(t, []string{"TestNothing", "TestBlank", "TestShadow", "TestChecks", "TestEmpty"}, names)
}

// What does not compile is an error with the compiler's words, not an empty list.
func TestLoadFails(t *testing.T) {
	_, err := Load(t.Context(), ".", "./testdata/src/nowhere")
	require.ErrorContains(t, err, "nowhere")
}
