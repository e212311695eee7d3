package origin

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// inDuring is the thread of a call that the main thread made.
var inDuring int

func init() { runtime.LockOSThread() } // the main goroutine to the main thread

func TestMain(m *testing.M) {
	runtime.UnlockOSThread()
	if unix.Gettid() != os.Getpid() {
		panic("TestMain is not on the main thread")
	}
	new(Forks).During(func() { inDuring = unix.Gettid() })
	os.Exit(m.Run())
}

// The main thread inherits children of other threads: no call stays there.
func TestForksOfTheMainThread(t *testing.T) {
	assert.NotZero(t, inDuring)
	assert.NotEqual(t, os.Getpid(), inDuring)
}

// Each call is told the child that it started, and none that others started meanwhile.
func TestForks(t *testing.T) {
	var calls sync.WaitGroup
	var all [16]Forks
	var started [16]int
	for i := range all {
		calls.Go(func() {
			all[i].During(func() {
				c := exec.Command("sleep", "600")
				if !assert.NoError(t, c.Start()) {
					return
				}
				started[i] = c.Process.Pid
				t.Cleanup(func() { c.Process.Kill(); c.Wait() })
				beside := exec.Command("true") // in a goroutine of its own: not told
				done := make(chan error)
				go func() { done <- beside.Run() }()
				assert.NoError(t, <-done)
				runtime.Gosched()
			})
		})
	}
	calls.Wait()
	for i := range all {
		list := all[i].List()
		require.Len(t, list, 1)
		assert.Equal(t, started[i], list[0].PID)
	}
}

// A goroutine that ends by Goexit or a panic leaves its evidence too.
func TestForksOfACallThatDoesNotReturn(t *testing.T) {
	var f Forks
	done := make(chan bool)
	go func() {
		defer close(done)
		f.During(func() {
			c := exec.Command("sleep", "600")
			assert.NoError(t, c.Start())
			t.Cleanup(func() { c.Process.Kill(); c.Wait() })
			runtime.Goexit()
		})
	}()
	<-done
	assert.Len(t, f.List(), 1)
}

func TestMakers(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "old")
	require.NoError(t, os.WriteFile(old, nil, 0o600))
	m := Watch(dir)
	defer m.Close()
	if err := m.Err(dir); err != nil {
		t.Skip(err)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600))
	require.NoError(t, exec.Command("touch", filepath.Join(dir, "theirs"), filepath.Join(dir, "both")).Run())
	require.NoError(t, os.Mkdir(filepath.Join(dir, "folder"), 0o700))
	require.NoError(t, os.Rename(old, filepath.Join(dir, "renamed")))
	require.NoError(t, os.Remove(filepath.Join(dir, "both")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "both"), nil, 0o600))
	for name, mine := range map[string]bool{"mine": true, "theirs": false, "folder": true, "renamed": true, "both": true} {
		pid, known := m.Of(dir, name)
		assert.True(t, known, name)
		assert.Equal(t, mine, pid == os.Getpid(), "%s: %d", name, pid)
	}
	_, known := m.Of(dir, "old")
	assert.False(t, known)

	later := Watch(dir)
	_, known = later.Of(dir, "mine")
	assert.False(t, known, "it is older than the watch")
	later.Close()
	later.Close()
	_, known = m.Of(dir, "mine")
	assert.True(t, known, "the first watch goes on")
}

// What the kernel had to drop is not known, and neither is what came before it.
func TestMakersAfterAnOverflow(t *testing.T) {
	dir := t.TempDir()
	m := Watch(dir)
	defer m.Close()
	if err := m.Err(dir); err != nil {
		t.Skip(err)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600))
	_, known := m.Of(dir, "mine")
	require.True(t, known)
	overflow := make([]byte, 24) // as the kernel writes it, when its queue is full
	binary.NativeEndian.PutUint32(overflow, 24)
	binary.NativeEndian.PutUint64(overflow[8:], unix.FAN_Q_OVERFLOW)
	_, ok := parseEvent(overflow, m.folders[0].note)
	require.True(t, ok)
	_, known = m.Of(dir, "mine")
	assert.False(t, known)
	again := Watch(dir)
	defer again.Close()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "later"), nil, 0o600))
	_, known = again.Of(dir, "later")
	assert.True(t, known)
}

func TestWatchOfNoFolder(t *testing.T) {
	m := Watch("/no/such/folder")
	defer m.Close()
	require.Error(t, m.Err("/no/such/folder"))
	_, known := m.Of("/no/such/folder", "x")
	require.False(t, known)
	require.ErrorIs(t, m.Err("/elsewhere"), errNotWatched)
}

func alone(t *testing.T) (now, still bool) {
	f, known := Alone(t)
	require.True(t, known)
	return f(), f()
}

func TestAloneInATestThatIsNotParallel(t *testing.T) {
	now, still := alone(t)
	assert.True(t, now && still)
	t.Run("subtest", func(t *testing.T) {
		now, _ := alone(t)
		assert.True(t, now)
	})
	_, known := Alone(struct{}{})
	assert.False(t, known)
}

// Whatever the order in which parallel tests begin, one that is not the only one is never told so.
func TestAloneInParallel(t *testing.T) {
	for range 20 {
		t.Run("group", func(t *testing.T) {
			var first sync.Mutex
			busy := 0 // those that run now
			for range 3 {
				t.Run("test", func(t *testing.T) {
					t.Parallel()
					f, known := Alone(t)
					require.True(t, known)
					first.Lock()
					busy++
					others := busy > 1
					first.Unlock()
					time.Sleep(time.Millisecond)
					first.Lock()
					others = others || busy > 1
					busy--
					first.Unlock()
					if others {
						assert.False(t, f())
					}
				})
			}
		})
	}
}

func TestTempDir(t *testing.T) {
	t.Run("subtest", func(t *testing.T) {
		assert.Empty(t, TempDir(t))
		dir := t.TempDir()
		assert.Equal(t, filepath.Dir(dir), TempDir(t))
		assert.True(t, OfGo(TempDir(t)))
		assert.False(t, OfGo(dir))
	})
	assert.Empty(t, TempDir(nil))
}

func BenchmarkAlone(b *testing.B) {
	f, known := Alone(b)
	if !known || !f() {
		b.Fatal("benchmarks run one at a time")
	}
}
