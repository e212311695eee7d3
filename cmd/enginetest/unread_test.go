package main

import (
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Clients that have sent no whole request do not hold up the end, and nothing that they were owed
// is lost.
func TestServeEndsWithoutWholeRequests(t *testing.T) {
	s := start(t)
	for why, sent := range map[string]string{
		"a load balancer's probe":  "",
		"its header is on its way": "POST /v1/completions HTTP/1.1\r\nHost: x\r\n",
		"its body is on its way":   "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		require.NoError(t, err, why)
		defer c.Close()
		_, err = c.Write([]byte(sent))
		require.NoError(t, err, why)
	}
	code := s.status("/health") // all of them were accepted before
	assert.Equal(t, 200, code)
	s.signal(syscall.SIGTERM)
	s.exit(exitDone)
	assert.NotContains(t, s.stderr.String(), "cut off")
}
