// Package kinds has one test of each kind. Each prints that it ran, and the command that runs it again.
package kinds

import (
	"flag"
	"fmt"
	"regexp"
	"testing"

	"github.com/stretchr/testify/suite"

	"github.com/enginetest/enginetest/internal/repro"
)

func ran(name string) {
	fmt.Printf("\nran %s\nagain: %s\n", name, repro.Command(repro.Package(), name))
}

func TestTable(t *testing.T) {
	for _, name := range []string{"plain", "it's (x|y)", "a/b c", "$HOME", "dup", "dup"} {
		t.Run(name, func(t *testing.T) { ran(t.Name()) })
	}
}

func BenchmarkSpeed(b *testing.B) {
	for _, n := range []int{1, 2} {
		b.Run(fmt.Sprint("n=", n), func(b *testing.B) {
			ran(b.Name())
			for b.Loop() {
			}
		})
	}
}

func FuzzSeeds(f *testing.F) {
	f.Add(1)
	f.Fuzz(func(t *testing.T, _ int) { ran(t.Name()) })
}

type engines struct{ suite.Suite }

func TestEngines(t *testing.T) { suite.Run(t, new(engines)) }

func (s *engines) TestStarts() { ran(s.T().Name()) }
func (s *engines) TestStops()  { ran(s.T().Name()) }

// focus and TestSpecs stand for Ginkgo: a flag chooses specs by their full text, under one test function.
var focus = flag.String("ginkgo.focus", "", "")

func TestSpecs(*testing.T) {
	for _, text := range []string{"An engine that sleeps wakes up", "Test engines wake up"} {
		if regexp.MustCompile(*focus).MatchString(text) {
			ran(text)
		}
	}
}
