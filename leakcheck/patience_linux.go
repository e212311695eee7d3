package leakcheck

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// starved adds up how long the threads of this process have waited for a processor; 0 where the
// kernel does not say.
func starved() (sum time.Duration) {
	files, _ := filepath.Glob("/proc/self/task/*/schedstat")
	for _, f := range files {
		text, _ := os.ReadFile(f) // a thread may just have ended
		var ran, waited int64
		if n, _ := fmt.Sscan(string(text), &ran, &waited); n == 2 {
			sum += time.Duration(waited)
		}
	}
	return sum
}
