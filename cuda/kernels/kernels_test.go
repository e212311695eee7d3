package kernels

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestImagesAreOfTheseSources: whoever changes a source has to run the build script.
func TestImagesAreOfTheseSources(t *testing.T) {
	files, err := filepath.Glob("*.cu")
	require.NoError(t, err)
	slices.Sort(files)
	h := sha256.New()
	for _, f := range append(append([]string{"device.h"}, files...), "build") {
		data, err := os.ReadFile(f)
		require.NoError(t, err)
		h.Write(data)
	}
	want, err := os.ReadFile("SOURCE.sha256")
	require.NoError(t, err)
	require.Equal(t, strings.TrimSpace(string(want)), hex.EncodeToString(h.Sum(nil)),
		"the images are not built from these sources: run cuda/kernels/build (it needs clang-19 and ptxas)")
}

func TestImage(t *testing.T) {
	for _, c := range []struct {
		major, minor int
		name, begin  string
	}{
		{9, 0, "kernels.sm_90.cubin", "\x7fELF"},
		{8, 0, "kernels.sm_80.cubin", "\x7fELF"},
		{8, 6, "kernels.sm_80.cubin", "\x7fELF"},
		{8, 9, "kernels.sm_80.cubin", "\x7fELF"},
		{10, 0, "kernels.sm_80.ptx", "//"},
	} {
		name, image, err := Image(c.major, c.minor)
		require.NoError(t, err)
		require.Equal(t, c.name, name)
		require.Equal(t, c.begin, strings.TrimLeft(string(image[:16]), "\n")[:len(c.begin)])
	}
	_, _, err := Image(7, 5)
	require.ErrorContains(t, err, "compute capability 7.5, want at least 8.0")
}
