//go:build !linux || !cgo

package gpuwait_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/gpuwait"
)

func cudaHold() error { return errors.ErrUnsupported }

func TestNVMLIsNotInThisBuild(t *testing.T) {
	_, err := gpuwait.OpenNVML("")
	require.ErrorIs(t, err, gpuwait.ErrCannotMeasure)
	require.ErrorContains(t, err, "needs linux and CGO_ENABLED=1")
}
