package symbols

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func companions(t *testing.T) []string {
	found, err := filepath.Glob(filepath.Join(os.TempDir(), "leakcheck-companion-*"))
	require.NoError(t, err)
	return found
}

// TestPrepare: what is prepared and not used leaves nothing, whether it was ready or not; what is
// used is what would have been made.
func TestPrepare(t *testing.T) {
	if testing.Short() {
		t.Skip("links this test twice")
	}
	if !stripped("/proc/self/exe") {
		t.Skip("this binary has symbols")
	}
	t.Setenv("TMPDIR", t.TempDir())
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	Prepare()()
	assert.Empty(t, companions(t), "stopped at once")

	stop, other := Prepare(), Prepare()
	stop()
	prepared.mu.Lock()
	b := prepared.build
	prepared.mu.Unlock()
	require.NotNil(t, b, "another check still needs it")
	<-b.done
	assert.NoError(t, b.err)
	assert.Len(t, companions(t), 1)
	other()
	assert.Empty(t, companions(t), "stopped when it was ready")

	defer Prepare()()
	n := LoadFrom(Sources{NoOwn: true})
	assert.Equal(t, "companion dwarf", n.Source, n.Why)
	assert.Empty(t, companions(t), "used")
}
