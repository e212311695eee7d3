//go:build linux

package proc

import (
	"os/exec"
	"testing"
)

// The difference of the two is what a family costs.
func BenchmarkFamily(b *testing.B) {
	b.Run("os-exec", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("family", func(b *testing.B) {
		for b.Loop() {
			f, err := Start(exec.Command("true"))
			if err != nil {
				b.Fatal(err)
			}
			f.Stop(b.Context(), StopOptions{Grace: hang})
		}
	})
}
