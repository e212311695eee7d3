//go:build unix

package checkpoint

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Opening a FIFO waits for its writer, which never comes.
func TestPipesAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.safetensors")
	require.NoError(t, unix.Mkfifo(path, 0o600))
	_, err := OpenFile(path)
	require.ErrorContains(t, err, "not a regular file: got prw-------")
	_, err = ReadConfig(path)
	require.ErrorContains(t, err, "not a regular file")
}
