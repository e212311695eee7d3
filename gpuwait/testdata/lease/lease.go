// Package lease is the body of the two test packages below it.
package lease

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/enginetest/enginetest/gpuwait"
)

// Span meets the other package, takes the GPU (unless LEASE_NONE says not to, which must overlap) and writes when it had it.
func Span(t *testing.T, name string) {
	dir := os.Getenv("LEASE_SPANS")
	if dir == "" {
		t.Skip("run by TestLeaseAcrossPackages only")
	}
	here, there := filepath.Join(dir, "ready-"+name), filepath.Join(dir, "ready-"+map[string]string{"a": "b", "b": "a"}[name])
	if err := os.WriteFile(here, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(there); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the other package never came: they did not run side by side")
		}
	}
	for range 5 {
		var done func()
		if os.Getenv("LEASE_NONE") == "" {
			l, err := gpuwait.AcquireContext(t.Context(), 1, gpuwait.Devices("GPU-00000000-0000-0000-0000-000000000001"), gpuwait.As(t.Name()+"/"+name))
			if err != nil {
				t.Fatal(err)
			}
			done = l.Release
		}
		from := time.Now().UnixNano()
		time.Sleep(20 * time.Millisecond)
		line := fmt.Sprintf("%s %d %d\n", name, from, time.Now().UnixNano())
		f, err := os.OpenFile(filepath.Join(dir, "spans"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteString(line)
		f.Close()
		if done != nil {
			done()
		}
	}
}
