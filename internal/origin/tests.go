package origin

import (
	"bytes"
	"runtime"
	"strconv"
)

// otherTests counts the tests whose goroutines are there, without the caller's and those that it is
// a subtest of: paused are those that wait in Parallel.
func otherTests() (paused, others int) {
	type test struct {
		parent int64
		runs   bool // a test
		waits  bool
	}
	all := map[int64]test{}
	var self int64
	for i, block := range bytes.Split(allStacks(), []byte("\n\n")) {
		head, frames, _ := bytes.Cut(block, []byte("\n"))
		id := goroutineID(head)
		if i == 0 {
			self = id
		}
		t := test{runs: calls(frames, "testing.tRunner("), waits: calls(frames, "testing.(*T).Parallel(")}
		if _, creator, ok := bytes.Cut(frames, []byte("\ncreated by ")); ok {
			line, _, _ := bytes.Cut(creator, []byte("\n"))
			if at := bytes.LastIndex(line, []byte(" in goroutine ")); at >= 0 {
				t.parent, _ = strconv.ParseInt(string(line[at+len(" in goroutine "):]), 10, 64)
			}
		}
		all[id] = t
	}
	ancestors := map[int64]bool{}
	for id := self; id != 0 && !ancestors[id]; id = all[id].parent {
		ancestors[id] = true
	}
	for id, t := range all {
		switch {
		case !t.runs || ancestors[id]:
		case t.waits:
			paused++
		default:
			others++
		}
	}
	return paused, others
}

// calls reports whether a function is among the frames.
func calls(frames []byte, function string) bool {
	return bytes.HasPrefix(frames, []byte(function)) || bytes.Contains(frames, []byte("\n"+function))
}

// goroutineID reads "goroutine 20 [running]:".
func goroutineID(head []byte) int64 {
	rest, _ := bytes.CutPrefix(head, []byte("goroutine "))
	number, _, _ := bytes.Cut(rest, []byte(" "))
	id, _ := strconv.ParseInt(string(number), 10, 64)
	return id
}

func allStacks() []byte {
	for size := 64 << 10; ; size *= 2 {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, true); n < size {
			return buf[:n]
		}
	}
}
