package connector

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// envWriter makes this test binary a process that is in the middle of a block of the segment at the
// path, until it is killed.
const envWriter = "CONNECTOR_TEST_WRITER"

func writeHalf(path string) {
	s, err := Open(context.Background(), options(path, 2))
	if err == nil {
		err = s.Store(context.Background(), key(0), fill(0))
	}
	if err == nil {
		err = s.Store(context.Background(), key(1), func(b []byte) error {
			copy(b, contents(1)[:size/2])
			fmt.Println("half")
			select {}
		})
	}
	fmt.Println(err)
	os.Exit(1)
}

// killInTheMiddle runs such a process, kills it, and reaps it.
func killInTheMiddle(t *testing.T, path string, meanwhile func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), envWriter+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "half\n", line)
	meanwhile()
	require.NoError(t, cmd.Process.Kill())
	require.EqualError(t, cmd.Wait(), "signal: killed")
}

// A writer that is killed in the middle of a block leaves a place, and no block.
func TestWriterIsKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv")
	s := open(t, path, 2)
	killInTheMiddle(t, path, func() {
		has(t, s, 3, 0)
		assert.Equal(t, uint64(writing), state(s.row(1).word.Load()), "it is in the middle of a block")
		put(t, s, 2)
		has(t, s, 3, 2) // the place of the block that is being written was not to be had
	})
	has(t, s, 3, 2)
	put(t, s, 1)
	has(t, s, 3, 1, 2)
	require.NoError(t, s.Close())
	require.NoFileExists(t, path)
}

// The next user with a dead writer's number finds its places empty, and not its own.
func TestNumberOfADeadWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv")
	s := open(t, path, 2)
	killInTheMiddle(t, path, func() {})
	b := open(t, path, 2)
	assert.Equal(t, 2, b.id)
	assert.Equal(t, uint64(empty), state(b.row(1).word.Load()))
	has(t, b, 2, 0)
	put(t, b, 1)
	has(t, s, 2, 0, 1)
	require.NoError(t, s.Close())
	require.NoError(t, b.Close())
}

// What a killed process left behind alone starts anew, and goes with its next user.
func TestOnlyUserIsKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv")
	killInTheMiddle(t, path, func() {})
	require.FileExists(t, path)
	other := filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(other, []byte("no segment"), 0o600))
	require.NoError(t, Remove(other))
	require.FileExists(t, other)
	require.NoError(t, Remove(path+".none"))
	require.NoError(t, Remove(path))
	require.NoFileExists(t, path)

	killInTheMiddle(t, path, func() { require.NoError(t, Remove(path)) })
	require.FileExists(t, path, "it was in use")
	s := open(t, path, 7)
	has(t, s, 2)
	_, room := s.Usage()
	assert.Equal(t, 7, room)
	require.NoError(t, s.Close())
	require.NoFileExists(t, path)
}
