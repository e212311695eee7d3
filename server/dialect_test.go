package server_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/server"
)

// dialects are the servers that no test here can install. Scripts with their commands' names run
// `enginetest serve`, which has vLLM's paths: what their adapters send is understood there, and what
// they read is what it answers.
var dialects = []struct {
	column, program, script string
	protocol                server.Protocol
	opener                  server.Opener
}{
	{"vLLM", "vllm", `shift 2; exec enginetest serve "$@"`, server.ProtocolVLLM, server.VLLM("m")},
	{
		"SGLang", "python3", `[ "$2" = sglang.launch_server ] && exec enginetest serve "$5" "$6" "$7" "$8"`,
		server.ProtocolSGLang, server.SGLang("m"),
	},
}

func TestDialects(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: starts real servers")
	}
	for _, d := range dialects {
		t.Run(d.column, func(t *testing.T) {
			inPath(t, enginetestDir(t))
			dir := t.TempDir()
			inPath(t, dir)
			script := []byte("#!/bin/sh\n" + d.script + "\n")
			require.NoError(t, os.WriteFile(filepath.Join(dir, d.program), script, 0o700))
			s := started(t, d.opener)
			require.Equal(t, d.protocol, s.Protocol())
			ran := runSuite(t, &suite{Server: s, dialect: true})
			require.NoError(t, s.Stop(within(t)).Err())
			t.Logf("the table of docs/servers.md: %v", ran)
			for verb, cell := range ran {
				want := documented(t, d.column, verb, notRun)
				if cell == "yes" {
					require.Equal(t, "dialect", want, "docs/servers.md: %s of %s", verb, d.column)
				} else {
					require.Contains(t, []string{"lacks", notRun}, want, "docs/servers.md: %s of %s: %s", verb, d.column, cell)
				}
			}
		})
	}
}
