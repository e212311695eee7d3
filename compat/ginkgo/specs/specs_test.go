package specs

import (
	"testing"

	"github.com/enginetest/enginetest/leakcheck"
	"github.com/onsi/ginkgo/v2"
)

func TestSpecs(t *testing.T) {
	ginkgo.RunSpecs(t, "engines")
}

var _ = ginkgo.Describe("guard", func() {
	var leaks *leakcheck.Guarded
	ginkgo.BeforeEach(func() { leaks = leakcheck.Guard(ginkgo.GinkgoT()) })

	ginkgo.It("Clean: DeferCleanup", func() {
		e := Open()
		leaks.Track("engine", e)
		ginkgo.DeferCleanup(e.Close)
	})
	ginkgo.It("Clean: many", func() {
		for range 20 {
			e := Open()
			leaks.Track("engine", e)
			ginkgo.GinkgoT().Cleanup(e.Close)
			ginkgo.DeferCleanup(func() { e.Use() })
		}
	})
	ginkgo.It("Skip: deferred", func() {
		e := Open()
		defer e.Close()
		leaks.Track("engine", e)
		if e.Use() > 0 {
			ginkgo.Skip("not on this machine")
		}
		e.Use()
	})
	ginkgo.It("Fail: deferred", func() {
		e := Open()
		defer e.Close()
		leaks.Track("engine", e)
		if e.Use() > 0 {
			ginkgo.Fail("wrong answer")
		}
		e.Use()
	})
	ginkgo.It("Leak: global", func() {
		e := Open()
		leaks.Track("engine", e)
		ginkgo.DeferCleanup(e.Close)
		Keep(e)
	})
})
