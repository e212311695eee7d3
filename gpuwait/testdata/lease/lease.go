// Package lease is the body of the two test packages below it.
package lease

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/gpuwait/gpuwaittest"
)

// Span notes when this package had the GPU: under a lease in "leased", and then, as a control, without one in "unleased", where both overlap.
func Span(t *testing.T, name string) {
	dir := os.Getenv("LEASE_SPANS")
	if dir == "" {
		t.Skip("run by TestLeaseAcrossPackages only")
	}
	for _, phase := range []string{"leased", "unleased"} {
		meet(t, dir, phase, name)
		for i := range 5 {
			note(t, dir, phase, name, i)
		}
	}
}

// meet waits for the other package, so that both are in the same phase at the same time.
func meet(t *testing.T, dir, phase, name string) {
	other := map[string]string{"a": "b", "b": "a"}[name]
	if err := os.WriteFile(filepath.Join(dir, phase+"-"+name), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, phase+"-"+other)); err == nil {
			return
		}
	}
	t.Fatal("the other package never came: they did not run side by side")
}

func note(t *testing.T, dir, phase, name string, i int) {
	if phase == "leased" {
		src := gpuwaittest.New(gpuwaittest.Device{Total: 1 << 30})
		l, err := gpuwait.AcquireContext(t.Context(), 1, gpuwait.From(src), gpuwait.Devices("all"), gpuwait.As(t.Name()+"/"+name))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Release()
	}
	from := time.Now().UnixNano()
	if phase == "leased" {
		time.Sleep(20 * time.Millisecond) // long enough for the other to come in between, if it could
	} else {
		meet(t, dir, fmt.Sprint("inside", i), name) // nothing keeps it out
	}
	line := fmt.Sprintf("%s %d %d\n", name, from, time.Now().UnixNano())
	f, err := os.OpenFile(filepath.Join(dir, phase), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(line); err != nil {
		t.Fatal(err)
	}
}
