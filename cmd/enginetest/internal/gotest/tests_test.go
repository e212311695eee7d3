package gotest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTests(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a_test.go")
	require.NoError(t, os.WriteFile(name, []byte(`package a

func TestMain(m *testing.M) {}
func TestB(t *testing.T) {}
func TestA(t *testing.T) {}
func Test(t *testing.T) {}
func Testing(t *testing.T) {}
func TestHelper(t *testing.T, n int) {}
func (s suite) TestMethod(t *testing.T) {}
func FuzzA(f *testing.F) {}
func Example_whole() {}
func Examples() {}
func BenchmarkA(b *testing.B) {}
`), 0o600))
	for args, want := range map[string][]string{
		"":           {"Example_whole", "FuzzA", "Test", "TestA", "TestB"},
		"-run=A$/x":  {"FuzzA", "TestA"},
		"-run=^$":    nil,
		"-run=[A-B]": {"FuzzA", "TestA", "TestB"},
	} {
		c := Parse([]string{"go", "test", args})
		got, err := c.Tests([]string{name})
		require.NoError(t, err)
		assert.Equal(t, want, got, args)
	}
	_, err := Parse([]string{"go", "test", "-run=("}).Tests([]string{name})
	require.Error(t, err)
	_, err = Parse([]string{"go", "test"}).Tests([]string{name + ".gone"})
	require.Error(t, err)
}
