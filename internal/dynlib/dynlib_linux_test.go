//go:build linux && (amd64 || arm64)

package dynlib

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
)

// Every failure has its own reason, however the goroutines move between threads.
func TestOpenSaysWhy(t *testing.T) {
	var opens sync.WaitGroup
	for i := range 64 {
		opens.Go(func() {
			path := fmt.Sprintf("/no/lib%d.so", i)
			want := path + ": cannot open shared object file: No such file or directory"
			for range 200 {
				if _, err := Open(path); err == nil || err.Error() != want {
					t.Errorf("got %v, want %s", err, want)
					return
				}
				runtime.Gosched()
			}
		})
	}
	opens.Wait()
}
