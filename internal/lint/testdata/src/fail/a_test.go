package fail

import "testing"

func TestNothing(t *testing.T) { // want `TestNothing never uses its \*testing.T`
	work()
}

func TestBlank(_ *testing.T) { // want `TestBlank never uses its \*testing.T`
	work()
}

func TestShadow(t *testing.T) { // want `TestShadow never uses its \*testing.T`
	for t := range 2 {
		_ = t
	}
}

func TestChecks(tt *testing.T) {
	if work() != 1 {
		tt.Error("not 1")
	}
}

func TestEmpty(t *testing.T) {}

func Testing(n int) { work() }

func work() int { return 1 }
