package failures

import (
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"syscall"
)

func pemOf(der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}) }

var grown [][]byte

// init makes the test binary a small program of its own: FAILURES_SELF says what it does.
func init() {
	what := os.Getenv("FAILURES_SELF")
	if what == "" {
		return
	}
	var err error
	switch what {
	case "grow":
		for {
			b := make([]byte, 16<<20)
			for i := range b {
				b[i] = byte(i)
			}
			grown = append(grown, b)
		}
	case "mmap":
		_, err = syscall.Mmap(-1, 0, 1<<33, syscall.PROT_READ, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		err = os.NewSyscallError("mmap", err)
	case "get":
		_, err = http.Get("https://models.example.com/tiny/config.json") //nolint:bodyclose // there is none
	case "dial":
		_, err = net.Dial("tcp", "10.20.30.40:6443")
	default:
		_, err = http.Get(what) //nolint:bodyclose,gosec,noctx // there is none
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
