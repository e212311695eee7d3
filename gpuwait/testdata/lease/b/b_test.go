// Package b is one of two packages that want the same GPU while go test runs them side by side.
package b

import (
	"testing"

	"github.com/enginetest/enginetest/gpuwait/testdata/lease"
)

func TestExclusive(t *testing.T) { lease.Span(t, "b") }
