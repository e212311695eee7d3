//go:build linux && (amd64 || arm64)

package gpuwait_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/internal/cudatest"
	"github.com/enginetest/enginetest/internal/procfs"
)

// TestSchedulesOnGPU plays 200 random lives of an engine on a real GPU, in this process and in
// others, beside a process that allocates and frees at random, and crashes. A leak of 16 MiB or
// more must be found and attributed, and no clean life may fail. It skips where there is no NVIDIA
// GPU.
func TestSchedulesOnGPU(t *testing.T) {
	src, err := gpuwait.OpenNVML("")
	if err != nil {
		t.Skip(err)
	}
	defer src.Close()
	all, err := src.Devices()
	require.NoError(t, err)
	visible, err := gpuwait.Visible(all, nil)
	require.NoError(t, err)
	playLives(t, &player{T: t, src: src, uuid: visible[0].UUID, most: 1024}, 200,
		uint64(time.Now().UnixNano())) //nolint:gosec // a time
}

// TestSchedulesOnStub plays a few on the stand-in for the driver, whose processes write down what
// they hold.
func TestSchedulesOnStub(t *testing.T) {
	t.Setenv("ENGINETEST_LIBCUDA", cudatest.New(t, 1, 16*gib).Path)
	t.Setenv("STUB_DEVICES", "1")
	t.Setenv("STUB_MEMORY", fmt.Sprint(16*gib))
	board := fileBoard(t.TempDir())
	t.Setenv("GPUWAIT_BOARD", string(board))
	lives := 25
	if testing.Short() {
		lives = 5
	}
	playLives(t, &player{T: t, src: board, uuid: "GPU-1", most: 64}, lives, 1)
}

func playLives(t *testing.T, p *player, lives int, seed uint64) {
	t.Helper()
	t.Logf("seed %d", seed)
	p.rng, p.count, p.here = rand.New(rand.NewPCG(seed, 2)), map[string]int{}, newBlocks(t)
	p.neighbour = p.begin("wild")
	start := time.Now()
	for i := range lives {
		p.life(i)
	}
	p.neighbour.kill()
	t.Logf("%d lives in %s: %v; the neighbour was restarted %d times", lives, time.Since(start).Round(time.Second),
		p.count, p.crashes)
}

// fileBoard is a GPU whose processes write down what they hold, each in a file of the folder.
type fileBoard string

func (b fileBoard) Devices() ([]gpuwait.Device, error) {
	return []gpuwait.Device{{UUID: "GPU-1", Vendor: gpuwait.NVIDIA}}, nil
}

func (b fileBoard) Memory(uuid string) (gpuwait.Memory, error) {
	m := gpuwait.Memory{Total: 80 * gib}
	holders, err := b.Holders(uuid)
	for _, h := range holders {
		m.Used += h.Bytes
	}
	return m, err
}

func (b fileBoard) Holders(string) (list []gpuwait.Holder, err error) {
	files, err := filepath.Glob(filepath.Join(string(b), "*"))
	for _, f := range files {
		h := gpuwait.Holder{Known: true}
		text, _ := os.ReadFile(f)
		_, numberErr := fmt.Sscan(filepath.Base(f), &h.PID)
		if _, sizeErr := fmt.Sscan(string(text), &h.Bytes); errors.Join(numberErr, sizeErr) != nil {
			continue // it is being written
		}
		if st, ok := procfs.StatOf(h.PID); ok && !st.Dead() && h.Bytes > 0 {
			list = append(list, h)
		}
	}
	return list, err
}

// writeDown is the other side of fileBoard.
func (b *blocks) writeDown() {
	dir := os.Getenv("GPUWAIT_BOARD")
	if dir == "" {
		return
	}
	var sum int64
	for _, m := range b.list {
		sum += m.Size()
	}
	file := filepath.Join(dir, fmt.Sprint(os.Getpid()))
	next := filepath.Join(dir, "next-"+fmt.Sprint(os.Getpid()))
	b.fail(os.WriteFile(next, fmt.Append(nil, sum), 0o600))
	b.fail(os.Rename(next, file))
}

// player plays lives.
type player struct {
	*testing.T
	src       gpuwait.Source
	uuid      string
	most      int64 // MiB of a block
	rng       *rand.Rand
	here      *blocks // of this process
	neighbour *gpuProcess
	crashes   int
	count     map[string]int
}

func (p *player) mib(from, to int64) int64 { return (from + p.rng.Int64N(to-from)) * mib }

// life is one life of an engine: clean, or with a leak.
func (p *player) life(i int) {
	if p.rng.IntN(10) == 0 {
		p.crashes++
		p.neighbour.kill()
		p.neighbour = p.begin("wild")
	}
	inProcess, leaks := p.rng.IntN(5) > 0, p.rng.IntN(2) == 0
	var pids []int
	family := func(pid int) bool { return pid == os.Getpid() || gpuwait.Descendants(pids...)(pid) }
	a, err := gpuwait.NewAccount(p.Context(), p.src, family, gpuwait.Devices(p.uuid))
	require.NoError(p, err)
	var e gpuEngine = p.here
	holder := os.Getpid()
	if !inProcess {
		child := p.begin("engine")
		defer child.kill()
		e, holder, pids = child, child.Process.Pid, []int{child.Process.Pid}
	}
	for range 1 + p.rng.IntN(4) {
		e.alloc(p.mib(2, p.most))
		p.pause()
	}
	a.Read()
	e.alloc(p.mib(16, p.most))
	p.pause()
	a.Read()
	var leaked int64
	if leaks {
		leaked = p.mib(16, p.most)
		e.alloc(leaked)
		e.keepLast()
	} else {
		e.end()
	}
	r, err := a.Returned(p.Context(), gpuwait.Timeout(5*time.Second), gpuwait.Patience(150*time.Millisecond))
	what := fmt.Sprintf("life %d: in this process %v, leaked %d MiB", i, inProcess, leaked/mib)
	p.count[fmt.Sprintf("leaks %v: %s", leaks, r.Devices[0].Verdict)]++
	if !leaks {
		require.NoError(p, err, what)
		return
	}
	var failed *gpuwait.AccountError
	require.ErrorAs(p, err, &failed, "%s: %s", what, r.Line())
	d := failed.Report.Devices[0]
	require.Equal(p, gpuwait.VerdictHeld, d.Verdict, "%s: %v", what, err)
	require.GreaterOrEqual(p, d.Bytes, leaked, "%s: %v", what, err)
	require.True(p, slices.ContainsFunc(d.Holders, func(h gpuwait.Process) bool {
		return h.PID == holder && h.Grew >= leaked
	}), "%s: not attributed to pid %d: %v", what, holder, err)
	e.end()
}

func (p *player) pause() { time.Sleep(time.Duration(p.rng.IntN(8)) * time.Millisecond) }

// gpuEngine is what has device memory: blocks of this process, or another process.
type gpuEngine interface {
	alloc(bytes int64)
	keepLast() // frees all but the last block
	end()      // frees all; another process ends
}

// blocks is device memory of this process.
type blocks struct {
	w    *cuda.Worker
	list []*cuda.Memory
	fail func(error)
}

func newBlocks(t *testing.T) *blocks {
	t.Helper()
	b, err := openBlocks(func(err error) { require.NoError(t, err) })
	require.NoError(t, err)
	t.Cleanup(func() {
		b.end()
		assert.NoError(t, b.w.Close(context.Background()))
	})
	return b
}

func openBlocks(fail func(error)) (*blocks, error) {
	d, err := cuda.Open()
	if err != nil {
		return nil, err
	}
	v, err := d.Device("0")
	if err != nil {
		return nil, err
	}
	w, err := cuda.NewWorker(v, cuda.Config{Name: "schedules"})
	return &blocks{w: w, fail: fail}, err
}

func (b *blocks) alloc(bytes int64) {
	b.fail(b.w.Do(func() error {
		m, err := b.w.Alloc("block", bytes)
		if err == nil {
			b.list = append(b.list, m)
		}
		return err
	}))
	b.writeDown()
}

func (b *blocks) free(n int) {
	b.fail(b.w.Do(func() error {
		for _, m := range b.list[:n] {
			if err := m.Free(); err != nil {
				return err
			}
		}
		return nil
	}))
	b.list = slices.Delete(b.list, 0, n)
	b.writeDown()
}

func (b *blocks) keepLast() { b.free(len(b.list) - 1) }
func (b *blocks) end()      { b.free(len(b.list)) }

// gpuProcess is blocks in another process, which does as it is told.
type gpuProcess struct {
	*exec.Cmd
	t   *testing.T
	in  io.WriteCloser
	out *bufio.Scanner
}

func (p *player) begin(role string) *gpuProcess {
	p.Helper()
	c := &gpuProcess{Cmd: exec.Command(os.Args[0]), t: p.T}
	c.Env = append(os.Environ(), "GPUWAIT_SCHEDULE="+role, fmt.Sprintf("GPUWAIT_SEED=%d %d", p.rng.Uint64(), p.most))
	c.Stderr = os.Stderr
	var err error
	c.in, err = c.StdinPipe()
	require.NoError(p, err)
	out, err := c.StdoutPipe()
	require.NoError(p, err)
	c.out = bufio.NewScanner(out)
	require.NoError(p, c.Start())
	p.Cleanup(c.kill)
	answer(p.T, c.out, "ready")
	return c
}

func (c *gpuProcess) order(what string) {
	_, err := fmt.Fprintln(c.in, what)
	require.NoError(c.t, err)
	answer(c.t, c.out, "done")
}

func (c *gpuProcess) alloc(bytes int64) { c.order(fmt.Sprint("alloc ", bytes)) }
func (c *gpuProcess) keepLast()         { c.order("keepLast") }

func (c *gpuProcess) end() {
	require.NoError(c.t, c.in.Close())
	require.NoError(c.t, c.Wait())
}

func (c *gpuProcess) kill() {
	if c.ProcessState == nil {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
}

// scheduleProcess is the body of a gpuProcess. A wild one allocates and frees on its own; any ends
// with its standard input.
func scheduleProcess(role string) error {
	b, err := openBlocks(func(err error) {
		if err != nil {
			panic(err)
		}
	})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if role == "wild" {
		go b.runWild()
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch what, n, _ := strings.Cut(in.Text(), " "); what {
		case "alloc":
			var bytes int64
			if _, err := fmt.Sscan(n, &bytes); err != nil {
				return err
			}
			b.alloc(bytes)
		case "keepLast":
			b.keepLast()
		}
		fmt.Println("done")
	}
	os.Exit(0) // as an engine that is killed: the driver cleans up
	return nil
}

// runWild holds up to 8 GiB.
func (b *blocks) runWild() {
	var seed uint64
	most := int64(1)
	_, _ = fmt.Sscan(os.Getenv("GPUWAIT_SEED"), &seed, &most)
	rng := rand.New(rand.NewPCG(seed, 3))
	for {
		if len(b.list) == 8 || len(b.list) > 0 && rng.IntN(2) == 0 {
			b.free(1 + rng.IntN(len(b.list)))
		} else {
			b.alloc((1 + rng.Int64N(most)) * mib)
		}
		time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
	}
}
