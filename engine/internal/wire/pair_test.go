//go:build linux

package wire

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPair(t *testing.T) {
	here, file, err := Pair()
	require.NoError(t, err)
	there, err := FromFile(file)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	in, out := []int32{1, 2, 3}, []int32(nil)
	require.NoError(t, there.Send(&in))
	require.NoError(t, here.Recv(&out))
	assert.Equal(t, in, out)

	// A side that reads nothing does not hold the other for ever.
	here.Stall = 20 * time.Millisecond
	big := make([]byte, 8<<20)
	assert.ErrorContains(t, here.Send(&big), "i/o timeout")
	require.NoError(t, here.Close())
	require.NoError(t, there.Close())
}
