package heapdump

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestManySystemCalls takes dumps in a child whose goroutines return from system calls all the
// time. Without the ballast, Go 1.26 kills it ("dumpgs in STW - bad status") once in a few hundred
// dumps.
func TestManySystemCalls(t *testing.T) {
	if n, err := strconv.Atoi(os.Getenv("HEAPDUMP_CRASH")); err == nil {
		for range 4 {
			go func() {
				for {
					syscall.Syscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) // gives the processor away at the worst moment
				}
			}()
		}
		for range n {
			d, err := Take()
			if err != nil {
				t.Fatal(err)
			}
			d.Close()
		}
		return
	}
	const n = 50
	cmd := exec.Command(os.Args[0], "-test.run=^TestManySystemCalls$")
	cmd.Env = append(os.Environ(), "HEAPDUMP_CRASH="+strconv.Itoa(n))
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "dumpgs in STW") {
		t.Errorf("the runtime's crash was not avoided in %d dumps", n)
	} else if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
