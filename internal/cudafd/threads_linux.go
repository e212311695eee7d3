package cudafd

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
)

// The calls in which a thread waits for descriptors, by their numbers on this processor.
var waits = map[string]map[int64]string{
	"amd64": {0: "read", 7: "poll", 271: "poll", 232: "epoll", 281: "epoll", 441: "epoll"},
	"arm64": {63: "read", 73: "poll", 22: "epoll", 441: "epoll"},
}[runtime.GOARCH]

// driverThread is how the driver names its threads: "cuda-EvtHandlr", "cuda00001400006".
var driverThread = regexp.MustCompile(`^cuda(-|\d{4})`)

// DriverThread reports whether the driver names its threads like this.
func DriverThread(name string) bool { return driverThread.MatchString(name) }

// most entries of a poll that are believed.
const mostPolled = 4096

// waitedFor lists the descriptors that the driver's threads wait for, each with the name of the
// thread: "cuda-EvtHandlr". It reads what each thread's current call is (/proc/self/task/N/syscall)
// and, for a poll, the array that the call was given.
func waitedFor() map[string]string {
	out := map[string]string{}
	mem, err := os.Open("/proc/self/mem") // a thread may end meanwhile: then this is an error and no fault
	if err != nil {
		return out
	}
	defer mem.Close()
	tasks, _ := filepath.Glob("/proc/self/task/*")
	for _, task := range tasks {
		name, _ := os.ReadFile(filepath.Join(task, "comm"))
		thread := strings.TrimSpace(string(name))
		if !driverThread.MatchString(thread) {
			continue
		}
		text, _ := os.ReadFile(filepath.Join(task, "syscall"))
		f := strings.Fields(string(text))
		if len(f) < 3 {
			continue // it runs, or the system does not say
		}
		number, err := strconv.ParseInt(f[0], 10, 64)
		if err != nil {
			continue
		}
		switch first, second := hexadecimal(f[1]), hexadecimal(f[2]); waits[number] {
		case "read", "epoll":
			out[strconv.FormatUint(first, 10)] = thread
		case "poll":
			for _, fd := range polled(mem, first, second) {
				out[fd] = thread
			}
		}
	}
	return out
}

func hexadecimal(s string) uint64 {
	n, _ := strconv.ParseUint(strings.TrimPrefix(s, "0x"), 16, 64)
	return n
}

// polled reads an array of struct pollfd.
func polled(mem *os.File, address, n uint64) (fds []string) {
	const size = 8 // int fd; short events, revents
	if n > mostPolled || address > 1<<62 {
		return nil
	}
	buf := make([]byte, n*size)
	if _, err := mem.ReadAt(buf, int64(address)); err != nil { //nolint:gosec // below 1<<62
		return nil
	}
	for i := range n {
		if fd := int32(binary.NativeEndian.Uint32(buf[i*size:])); fd >= 0 { //nolint:gosec // as C has it
			fds = append(fds, strconv.Itoa(int(fd)))
		}
	}
	return fds
}
