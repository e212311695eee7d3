package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A module that knows nothing of this one is bundled, and its tests run where there is no Go.
func TestBundle(t *testing.T) {
	dir := module(t, map[string]string{
		"testdata/model":        "weights",
		"sub/notests.go":        "package sub\n",
		"sub/deep/testdata/key": "7",
		"sub/deep/deep_test.go": `package deep

import (
	"os"
	"os/exec"
	"testing"
)

func TestFiles(t *testing.T) {
	for _, name := range []string{"testdata/key", "../../testdata/model"} {
		if _, err := os.ReadFile(name); err != nil {
			t.Error(err)
		}
	}
	if path, err := exec.LookPath("go"); err == nil {
		t.Error("there is Go: ", path)
	}
}
`,
	})
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skipf("run.sh needs bash: %v", err)
	}
	code, stdout, stderr := command("", "bundle")
	require.Equal(t, exitDone, code, stderr)
	assert.Contains(t, stdout, "dist/test-bundle.tar.gz")
	assert.Contains(t, stderr, "example.com/demo/sub: no tests, left out")
	require.NoError(t, os.Rename("dist", "elsewhere"))
	require.NoError(t, os.RemoveAll("sub"))
	require.NoError(t, exec.Command("tar", "-C", dir, "-xzf", "elsewhere/test-bundle.tar.gz").Run())
	// The command in the bundle is this test binary, which must not run its tests again.
	require.NoError(t, os.WriteFile("test-bundle/enginetest", []byte("#!/bin/sh\necho no GPUs\n"), 0o755))
	goDir := filepath.Dir(must2(exec.LookPath("go")))
	cmd := exec.Command("test-bundle/run.sh", "logs")
	cmd.Env = append(os.Environ(), "PATH="+goDir+":/usr/bin:/bin")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	assert.Contains(t, string(out), "| sub-deep | 1 | 0 | 0 |")
}

func TestBundleRefuses(t *testing.T) {
	module(t, map[string]string{"a.go": "package a\n", "broken/b_test.go": "package b\n\nfunc TestB(\n"})
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"bundle", "."}, "no package with tests among: ."},
		{[]string{"bundle", "./broken"}, "broken"},
		{[]string{"bundle", "--out", "src", "."}, `its name must contain "bundle"`},
	} {
		code, _, stderr := command("", c.args...)
		assert.Equal(t, exitFailed, code)
		assert.Contains(t, stderr, c.want)
	}
	assert.NoDirExists(t, "dist/test-bundle", "what cannot be built replaces nothing")
}

func must2(s string, err error) string {
	if err != nil {
		panic(err)
	}
	return s
}
