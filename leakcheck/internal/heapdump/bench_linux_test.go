package heapdump

import (
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// twig is a node of a tree of small objects, half of them without pointers.
type twig struct {
	left, right *twig
	payload     *[7]uint64
	_           [2]uint64
}

var trees []*twig

// plantTree builds a tree of about that many bytes whose nodes are scattered over the heap.
func plantTree(size int) []*twig {
	nodes := make([]*twig, size/112)
	for i := range nodes {
		nodes[i] = &twig{payload: new([7]uint64)}
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	for i := 1; i < len(nodes); i++ {
		if p := nodes[(i-1)/2]; i%2 == 1 {
			p.left = nodes[i]
		} else {
			p.right = nodes[i]
		}
	}
	return nodes
}

// BenchmarkSteps is what the steps of an explanation cost, in seconds of processor time too: the
// machine's other work does not change that so much. The first three are what none can do without.
//
//	go test ./leakcheck/internal/heapdump -run '^$' -bench Steps -benchtime 3x
func BenchmarkSteps(b *testing.B) {
	trees = plantTree(200 << 20)
	defer func() { trees = nil }()
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	path := filepath.Join(b.TempDir(), "dump")
	step := func(name string, f func()) {
		b.Run(name, func(b *testing.B) {
			before := processorTime()
			for b.Loop() {
				f()
			}
			b.ReportMetric((processorTime()-before)/float64(b.N), "cpu-s/op")
		})
	}
	step("collect garbage", runtime.GC)
	step("write the dump", func() {
		f, err := os.Create(path)
		require.NoError(b, err)
		debug.WriteHeapDump(f.Fd())
		require.NoError(b, f.Close())
	})
	step("read the dump", func() {
		f, err := os.Open(path)
		require.NoError(b, err)
		_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, make([]byte, 1<<20))
		require.NoError(b, err)
		require.NoError(b, f.Close())
	})
	text, err := os.ReadFile(path)
	require.NoError(b, err)
	step("index the dump", func() {
		_, err := Parse(text)
		require.NoError(b, err)
	})
	text = nil
	step("Take", func() {
		d, err := Take()
		require.NoError(b, err)
		require.NoError(b, d.Close())
	})
	d, err := Take()
	require.NoError(b, err)
	defer d.Close()
	far := d.Find(address(trees[len(trees)-1]))
	for _, one := range []bool{false, true} {
		step(map[bool]string{false: "search everything", true: "search everything, one by one"}[one], func() {
			s := NewSearch(d, 1)
			s.Postpone = func(int, uint64) bool { return false }
			s.Root(0, 0, address(trees[0]))
			spread := s.spread
			if one {
				spread = s.spreadSlowly
			}
			require.Zero(b, s.run([]int{far}, 1, spread))
		})
	}
}

func processorTime() float64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
}
