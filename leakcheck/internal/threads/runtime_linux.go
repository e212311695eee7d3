package threads

import (
	"encoding/binary"
	"os"
	"reflect"
	"sync"

	"github.com/enginetest/enginetest/leakcheck/internal/symbols"
)

// machines reads the runtime's descriptors of its threads (runtime.m), which are chained.
type machines struct {
	mem                 *os.File
	procid, extra, link uint64 // offsets of fields
	size                uint64
}

// known are the variables that may be the chain's head (runtime.allm): there are others that hold
// the descriptor of an idle thread, further down in the chain.
var known struct {
	sync.Mutex
	heads []uint64
}

// openMachines returns nil where the runtime's layout is not known.
func openMachines() *machines {
	if !symbols.Sane() {
		return nil
	}
	t := symbols.LoadTypes().Named("runtime.m")
	if t == nil || t.Kind() != reflect.Struct {
		return nil
	}
	procid, a := t.FieldByName("procid")
	extra, b := t.FieldByName("isextra")
	link, c := t.FieldByName("alllink")
	if !a || !b || !c || procid.Type.Size() != 8 || extra.Type.Size() != 1 || link.Type.Kind() != reflect.Pointer {
		return nil
	}
	mem, err := os.Open("/proc/self/mem") // reads what is not mapped as an error
	if err != nil {
		return nil
	}
	return &machines{
		mem: mem, procid: uint64(procid.Offset), extra: uint64(extra.Offset), link: uint64(link.Offset),
		size: uint64(max(procid.Offset, extra.Offset, link.Offset)) + 8,
	}
}

func (m *machines) close() { m.mem.Close() }

func (m *machines) read(a, n uint64) []byte {
	b := make([]byte, n)
	if k, err := m.mem.ReadAt(b, int64(a)); err != nil || k < int(n) { //nolint:gosec // an address
		return nil
	}
	return b
}

// most descriptors in a chain that is believed.
const most = 100_000

// walk follows a chain of descriptors down to that of the main thread. ids are the threads that the
// runtime started or that it found; unborn says that one has not begun to run yet.
func (m *machines) walk(head uint64) (ids []int, unborn, ok bool) {
	for n := 0; head != 0 && n < most; n++ {
		b := m.read(head, m.size)
		if head%8 != 0 || b == nil {
			return nil, false, false
		}
		id := binary.LittleEndian.Uint64(b[m.procid:])
		switch extra := b[m.extra]; {
		case extra > 1 || id > 1<<31:
			return nil, false, false
		case extra == 1: // for calls from C: the thread is C's
		case id == 0:
			unborn = true
		default:
			ids = append(ids, int(id))
		}
		if head = binary.LittleEndian.Uint64(b[m.link:]); head == 0 {
			return ids, unborn, id == uint64(os.Getpid()) // the main thread came first
		}
	}
	return nil, false, false
}

// all returns the threads of all chains that hang on a known variable; with search, the variables
// are looked for again.
func (m *machines) all(search bool) (ids map[int]bool, unborn, ok bool) {
	known.Lock()
	defer known.Unlock()
	if search || len(known.heads) == 0 {
		known.heads = m.variables()
	}
	ids = map[int]bool{}
	for _, v := range known.heads {
		b := m.read(v, 8)
		if b == nil {
			continue
		}
		list, young, found := m.walk(binary.LittleEndian.Uint64(b))
		for _, id := range list {
			ids[id] = true
		}
		unborn, ok = unborn || young, ok || found
	}
	return ids, unborn, ok
}

// variables lists the runtime's variables that hold a chain.
func (m *machines) variables() (heads []uint64) {
	lo, hi := symbols.Variables()
	words := m.read(lo, hi-lo)
	for at := 0; at+8 <= len(words); at += 8 {
		w := binary.LittleEndian.Uint64(words[at:])
		if w == 0 || w%8 != 0 || w >= 1<<47 {
			continue
		}
		if _, _, ok := m.walk(w); ok {
			heads = append(heads, lo+uint64(at))
		}
	}
	return heads
}
