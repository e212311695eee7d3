package retain

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"

	"github.com/enginetest/enginetest/leakcheck/internal/heapdump"
	"github.com/enginetest/enginetest/leakcheck/internal/symbols"
)

// findCleanup looks in the runtime's own memory for the record of a cleanup that refers to one of
// the objects, the first ones first. The record (runtime.specialCleanup, Go 1.25 to 1.27) is
// {next, offset, kind byte = 7, call, fn, arg, id}.
func findCleanup(d *heapdump.Dump, objects []int) (r root, top int, ok bool) {
	rank := map[uint64]int{} // address to index in objects
	for k, o := range objects {
		rank[d.Addr(o)] = k
		rank[d.Addr(o)+8] = k // behind a type header
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return root{}, 0, false
	}
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		return root{}, 0, false
	}
	defer mem.Close()
	best := len(objects)
	buf := make([]byte, 1<<20)
	for line := range strings.SplitSeq(string(maps), "\n") {
		f := strings.Fields(line)
		var lo, hi uint64
		if len(f) < 5 || !strings.HasPrefix(f[1], "rw") || f[4] != "0" { // only anonymous memory
			continue
		}
		if _, err := fmt.Sscanf(f[0], "%x-%x", &lo, &hi); err != nil || d.InHeap(lo) || hi-lo > 1<<30 {
			continue
		}
		for at := lo; at < hi; at += uint64(len(buf)) - 64 {
			m := buf[:min(uint64(len(buf)), hi-at)]
			n, _ := mem.ReadAt(m, int64(at))
			word := func(o int) uint64 { return binary.LittleEndian.Uint64(m[o:]) }
			for o := 24; o+24 <= n; o += 8 { // o is the record's call field
				if m[o-8] != 7 || word(o) == 0 {
					continue
				}
				for _, part := range []int{8, 16} {
					v := word(o + part)
					k, hit := rank[v]
					if !hit || k >= best {
						continue
					}
					fn := symbols.FuncAt(wordOf(d, word(o+8)))
					if fn == "" || own(fn) {
						// not a func value, so not such a record; or the tracker's own, perhaps one
						// that has been freed
						continue
					}
					best, top = k, objects[k]
					r = root{kind: "cleanup", slot: at + uint64(o+part), val: v, note: fn}
				}
			}
		}
	}
	return r, top, best < len(objects)
}

// wordOf reads a word of the dump, or of the process where the dump does not reach (constants).
func wordOf(d *heapdump.Dump, a uint64) uint64 {
	if w := d.Word(a); w != 0 {
		return w
	}
	if b := processMemory(a, 8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// processMemory reads this process's memory; nil for an address that is not mapped.
func processMemory(a, n uint64) []byte {
	mem, err := os.Open("/proc/self/mem")
	if err != nil || n > 1<<16 {
		return nil
	}
	defer mem.Close()
	b := make([]byte, n)
	if k, err := mem.ReadAt(b, int64(a)); err != nil || k < int(n) {
		return nil
	}
	return b
}
