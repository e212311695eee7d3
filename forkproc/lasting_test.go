package forkproc

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// What another program removes a moment later is not blamed; what stays is.
func TestLasting(t *testing.T) {
	dir := t.TempDir()
	stays := filepath.Join(dir, "stays")
	require.NoError(t, os.WriteFile(stays, nil, 0o600))
	named := func(names ...string) (out []leftover) {
		for _, n := range names {
			out = append(out, leftover{Leftover: Leftover{Name: n}})
		}
		return out
	}
	c := &child{cfg: &config{}}
	require.Equal(t, named(stays, "shm 7"), c.lasting(named(stays, filepath.Join(dir, "went"), "shm 7")))
	require.Empty(t, c.lasting(named(filepath.Join(dir, "went"))))
}
