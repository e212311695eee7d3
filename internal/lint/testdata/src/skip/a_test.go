package skip

import "testing"

const none = "  "

func TestBare(t *testing.T) {
	t.Skip() // want `Skip does not say why`
}

func TestEmpty(t *testing.T) {
	t.Skip(none) // want `Skip does not say why`
}

func TestNow(test *testing.T) {
	test.SkipNow() // want `SkipNow does not say why`
}

func helper(tb testing.TB) {
	tb.Skipf("") // want `Skipf does not say why`
}

func TestReason(t *testing.T) {
	t.Skip("needs a GPU")
}

func TestFormat(t *testing.T) {
	helper(t)
	t.Skipf("needs %d GPUs", 2)
}

func TestComputed(t *testing.T) {
	t.Skip(why())
}

func why() string { return "" }

type iterator struct{}

func (iterator) Skip() {}

func TestOther(t *testing.T) {
	t.Log("reads")
	iterator{}.Skip()
}

func TestAccepted(t *testing.T) {
	// audit:ignore skip-reason this line is here to be skipped
	t.Skip()
}

func TestNotAccepted(t *testing.T) {
	// audit:ignore skip-reason
	t.Skip() // want `Skip does not say why`
}
