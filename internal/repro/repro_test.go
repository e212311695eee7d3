package repro

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCommand(t *testing.T) {
	assert.Equal(t, "github.com/enginetest/enginetest/internal/repro", Package())
	assert.Equal(t, "go test "+flags()+"example.com/llm -run '^TestA$/^b\\(1\\)$' -count=1",
		Command("example.com/llm", "TestA/b(1)"))
}

// The command finds the test that it is for, whatever its name is.
func TestCommandInAShell(t *testing.T) {
	for _, name := range []string{"it's", "a b", `$HOME "q" \`, "(x|y)*", "[0]"} {
		t.Run(name, func(t *testing.T) {
			out, err := exec.Command("sh", "-c", "printf '%s\n' "+strings.TrimPrefix(Command("p", t.Name()),
				"go test ")).Output()
			require.NoError(t, err)
			words := strings.Split(strings.TrimSpace(string(out)), "\n")
			pattern := strings.Split(words[len(words)-2], "/")
			require.Regexp(t, pattern[len(pattern)-1], t.Name()[strings.LastIndex(t.Name(), "/")+1:])
		})
	}
}
