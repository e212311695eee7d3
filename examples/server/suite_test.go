package server_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/suite"

	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server"
)

// serverSuite is a testify suite with one server for all of its tests.
type serverSuite struct {
	suite.Suite
	server *server.Server
}

func TestSuite(t *testing.T) {
	needsServer(t)
	suite.Run(t, new(serverSuite))
}

func (s *serverSuite) SetupSuite() {
	var err error
	s.server, err = open().With(server.For(s.T())).Start(context.Background())
	s.Require().NoError(err)
}

func (s *serverSuite) TearDownSuite() {
	s.NoError(s.server.Stop(context.Background()).Err())
}

func (s *serverSuite) TestSum() {
	outs, err := s.server.Generate(s.T().Context(), llm.Request{Prompt: "2+3="})
	s.Require().NoError(err)
	s.NotEmpty(outs[0].Completions[0].Text)
}

func (s *serverSuite) TestStream() {
	for d, err := range s.server.Stream(s.T().Context(), llm.Request{Prompt: "The lighthouse"}) {
		s.Require().NoError(err)
		s.Zero(d.Index)
	}
}
