package gpuwait_test

import (
	"testing"

	"github.com/enginetest/enginetest/gpuwait"
)

var _ gpuwait.TB = testing.TB(nil)
