package offload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/enginetest/enginetest/engine/internal/cpu"
	"github.com/enginetest/enginetest/ledger"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const size = 64

func key(i int) (k Key) {
	k[0], k[1] = byte(i), byte(i>>8)
	return k
}

// contents is what the block of a key holds.
func contents(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, size) }

func newHost(t require.TestingT, blocks int) (*Host, *ledger.Ledger) {
	l := ledger.New(false)
	h, err := NewHost(cpu.NewAllocator(cpu.AllocatorConfig{Device: "host", Ledger: l}), int64(blocks*size+size/2), size)
	require.NoError(t, err)
	return h, l
}

func put(t require.TestingT, h *Host, i int) {
	require.NoError(t, h.Store(context.Background(), key(i), func(dst []byte) error {
		copy(dst, contents(i))
		return nil
	}))
}

func get(h *Host, i int) ([]byte, error) {
	var out []byte
	err := h.Load(context.Background(), key(i), func(src []byte) error { out = bytes.Clone(src); return nil })
	return out, err
}

func TestHostKeepsTheLastUsed(t *testing.T) {
	h, l := newHost(t, 3)
	require.Equal(t, []string{"kv_offload 192 B on host (mapped)"}, []string{l.Holdings()[0].String()})
	for i := range 3 {
		put(t, h, i)
	}
	assert.True(t, h.Has(key(0)), "a use")
	put(t, h, 3)
	for i, want := range []bool{true, false, true, true} {
		assert.Equal(t, want, h.Has(key(i)), i)
	}
	for _, i := range []int{0, 2, 3} {
		got, err := get(h, i)
		require.NoError(t, err)
		assert.Equal(t, contents(i), got)
	}
	_, err := get(h, 1)
	assert.ErrorIs(t, err, ErrGone)
	used, capacity := h.Usage()
	assert.Equal(t, []int{3, 3}, []int{used, capacity})
	require.NoError(t, h.Reset())
	assert.False(t, h.Has(key(0)))
	require.NoError(t, h.Close())
	assert.Empty(t, l.Holdings())
}

func TestHostKeepsNothingOfAFailedStore(t *testing.T) {
	h, _ := newHost(t, 1)
	boom := errors.New("boom")
	assert.ErrorIs(t, h.Store(t.Context(), key(1), func([]byte) error { return boom }), boom)
	assert.False(t, h.Has(key(1)))
	put(t, h, 2) // the slot is free
	require.NoError(t, h.Close())
}

func TestHostIsNotEvictedInATransfer(t *testing.T) {
	h, _ := newHost(t, 1)
	put(t, h, 1)
	err := h.Load(t.Context(), key(1), func(src []byte) error {
		assert.ErrorIs(t, h.Store(t.Context(), key(2), nil), ErrFull)
		assert.ErrorContains(t, h.Reset(), "1 of 1 blocks of host memory are in a transfer")
		assert.ErrorContains(t, h.Close(), "in a transfer")
		assert.Equal(t, contents(1), src)
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, h.Store(t.Context(), key(2), func([]byte) error {
		assert.False(t, h.Has(key(2)), "not before it is whole")
		assert.ErrorIs(t, h.Load(t.Context(), key(2), nil), ErrGone)
		assert.NoError(t, h.Store(t.Context(), key(2), nil), "it is on its way")
		return nil
	}))
	require.NoError(t, h.Close())
}

func TestHostTooSmall(t *testing.T) {
	_, err := NewHost(cpu.NewAllocator(cpu.AllocatorConfig{}), size-1, size)
	assert.EqualError(t, err, "offload: 63 bytes of host memory hold no KV block, which has 64")
}

// The memory has no name that a killed process could leave behind: its line in the list of mappings
// has no file.
func TestHostHasNoFile(t *testing.T) {
	h, _ := newHost(t, 3)
	defer func() { require.NoError(t, h.Close()) }()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip("cannot list mappings: ", err)
	}
	at := uint64(uintptr(unsafe.Pointer(&h.memory[0])))
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		if n, _ := fmt.Sscanf(line, "%x-%x", &from, &to); n == 2 && from <= at && at < to {
			assert.Equal(t, []string{"rw-p", "00000000", "00:00", "0"}, strings.Fields(line)[1:],
				"private, no device, no inode, no path")
			return
		}
	}
	t.Errorf("no mapping has %x", at)
}

// Whatever the order of stores, loads and their ends: no slot has two users, what is loaded is what
// was stored, and the counts add up.
func TestHostIndex(t *testing.T) {
	type flight struct {
		key    int
		mem    []byte
		finish chan error
		result chan error
	}
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.IntRange(1, 5).Draw(t, "slots")
		h, l := newHost(t, slots)
		var stores, loads []*flight
		begin := func(store bool, k int) (*flight, error) {
			f := &flight{key: k, finish: make(chan error), result: make(chan error, 1)}
			in := make(chan struct{})
			hold := func(mem []byte) error {
				f.mem = mem
				if store {
					copy(mem, contents(k))
				}
				close(in)
				return <-f.finish
			}
			go func() {
				if store {
					f.result <- h.Store(context.Background(), key(k), hold)
				} else {
					f.result <- h.Load(context.Background(), key(k), hold)
				}
			}()
			select {
			case <-in:
				return f, nil
			case err := <-f.result:
				return nil, err
			}
		}
		end := func(list *[]*flight, err error) {
			if len(*list) == 0 {
				return
			}
			i := rapid.IntRange(0, len(*list)-1).Draw(t, "flight")
			f := (*list)[i]
			*list = append((*list)[:i:i], (*list)[i+1:]...)
			f.finish <- err
			if got := <-f.result; !errors.Is(got, err) {
				t.Fatalf("a transfer that ended with %v gave %v", err, got)
			}
		}
		id := rapid.IntRange(0, 7)
		t.Repeat(map[string]func(*rapid.T){
			"store": func(t *rapid.T) {
				k := id.Draw(t, "key")
				f, err := begin(true, k)
				switch {
				case f != nil:
					stores = append(stores, f)
				case errors.Is(err, ErrFull):
					if busy := len(stores) + len(loads); busy < slots {
						t.Fatalf("full with %d of %d slots in a transfer", busy, slots)
					}
				case err != nil:
					t.Fatal(err)
				}
			},
			"load": func(t *rapid.T) {
				k := id.Draw(t, "key")
				had := h.Has(key(k))
				f, err := begin(false, k)
				if had != (f != nil) || f == nil && !errors.Is(err, ErrGone) {
					t.Fatalf("Has said %v, Load gave %v", had, err)
				}
				if f != nil {
					loads = append(loads, f)
				}
			},
			"end a store":  func(*rapid.T) { end(&stores, nil) },
			"fail a store": func(*rapid.T) { end(&stores, errors.New("boom")) },
			"end a load":   func(*rapid.T) { end(&loads, nil) },
			"reset": func(t *rapid.T) {
				if err := h.Reset(); (err == nil) != (len(stores)+len(loads) == 0) {
					t.Fatalf("reset with %d transfers: %v", len(stores)+len(loads), err)
				}
			},
			"": func(t *rapid.T) {
				seen := map[int]bool{}
				for _, s := range h.free {
					seen[s] = true
				}
				ready := 0
				for k, e := range h.index {
					if e.key != k || seen[e.slot] {
						t.Fatalf("slot %d has two users", e.slot)
					}
					seen[e.slot] = true
					if e.place != nil {
						ready++
						if !bytes.Equal(h.bytes(e), contents(int(k[0]))) {
							t.Fatalf("block %d holds something else", k[0])
						}
					}
				}
				used, capacity := h.Usage()
				if len(seen) != slots || capacity != slots || used != ready || len(h.index) != ready+len(stores) {
					t.Fatalf("%d slots: %d known, capacity %d, %d used, %d ready, %d in the index, %d stores", slots,
						len(seen), capacity, used, ready, len(h.index), len(stores))
				}
				for _, f := range append(append([]*flight(nil), stores...), loads...) {
					if e := h.index[key(f.key)]; e == nil || &h.bytes(e)[0] != &f.mem[0] ||
						!bytes.Equal(f.mem, contents(f.key)) {
						t.Fatalf("the block %d of a transfer was handed out", f.key)
					}
				}
			},
		})
		for len(stores)+len(loads) > 0 {
			end(&stores, nil)
			end(&loads, nil)
		}
		require.NoError(t, h.Close())
		require.Empty(t, l.Holdings())
	})
}
