package suites

import (
	"testing"

	"guard"

	"github.com/enginetest/enginetest/leakcheck"
	"github.com/stretchr/testify/require"
	"github.com/stretchr/testify/suite"
)

type engines struct {
	suite.Suite
	leaks *leakcheck.Guarded
	own   *guard.Engine
}

func (s *engines) SetupTest() {
	s.leaks = leakcheck.Guard(s.T())
	s.own = guard.Open()
	s.leaks.Track("the suite's own", s.own)
}

func (s *engines) TearDownTest() { s.own.Close(); s.own = nil }

func (s *engines) TestClean() {
	e := guard.Open()
	s.leaks.Track("engine", e)
	s.T().Cleanup(e.Close)
	s.Positive(e.Use())
}

func (s *engines) TestClean_subtest() {
	s.Run("sub", func() {
		leaks := leakcheck.Guard(s.T())
		e := guard.Open()
		leaks.Track("engine", e)
		s.T().Cleanup(e.Close)
	})
}

func (s *engines) TestSkip() {
	e := guard.Open()
	defer e.Close()
	s.leaks.Track("engine", e)
	if e.Use() > 0 {
		s.T().Skip("not on this machine")
	}
	e.Use()
}

func (s *engines) TestFail() {
	e := guard.Open()
	defer e.Close()
	s.leaks.Track("engine", e)
	s.Require().Negative(e.Use())
	e.Use()
}

func (s *engines) TestLeak() {
	e := guard.Open()
	s.leaks.Track("engine", e)
	s.T().Cleanup(e.Close)
	guard.Keep(e)
}

func TestSuite(t *testing.T) { suite.Run(t, new(engines)) }

func TestFail_require(t *testing.T) {
	leaks := leakcheck.Guard(t)
	e := guard.Open()
	defer e.Close()
	leaks.Track("engine", e)
	require.Zero(t, e.Use(), "an answer")
	e.Use()
}
