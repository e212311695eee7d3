package gotest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestParse(t *testing.T) {
	for line, want := range map[string]struct{ json, retry, packages string }{
		"go test": {"go test -json .", "go test -json -run=^A$ -count=1 p", "."},
		"go test -race ./...": {
			"go test -json -race ./...", "go test -json -race -run=^A$ -count=1 p", "./...",
		},
		"go -C x test -run TestB -count 3 -tags=a ./a ./b -args -v x": {
			"go -C x test -json -run TestB -count 3 -tags=a ./a ./b -args -v x",
			"go -C x test -json -tags=a -run=^A$ -count=1 p -args -v x", "./a ./b",
		},
		"go test -json -v ./a -timeout 5m": {
			"go test -json -v -timeout 5m ./a", "go test -json -v -timeout 5m -run=^A$ -count=1 p", "./a",
		},
	} {
		c := Parse(strings.Fields(line))
		assert.True(t, c.Go)
		assert.Equal(t, want.json, strings.Join(c.JSON(nil), " "))
		assert.Equal(t, want.retry, strings.Join(c.Retry("p", "-run=^A$"), " "))
		assert.Equal(t, want.packages, strings.Join(c.Packages, " "))
	}
	assert.Equal(t, "TestB", Parse(strings.Fields("go test -run TestB .")).Flag("run"))
	assert.Equal(t, "go -C x list -tags=a -f F ./...",
		strings.Join(Parse(strings.Fields("go -C x test -tags a ./...")).List("F"), " "))
	other := Parse([]string{"./llm.test", "-test.v"})
	assert.False(t, other.Go)
	assert.Equal(t, []string{"./llm.test", "-test.v"}, other.JSON(nil))
}
