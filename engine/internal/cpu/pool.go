package cpu

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// Pool is a set of threads, and the tier of kernels that they run. The caller of Run is one of the
// threads; the others are goroutines that spin for a moment after each Run, then sleep. A Pool is
// safe for concurrent use.
type Pool struct {
	k       *kernels
	tier    Tier
	threads int
	scratch scratch

	job     atomic.Pointer[job]
	workers []worker
	closed  atomic.Bool
	wg      sync.WaitGroup
}

type worker struct {
	asleep atomic.Bool
	wake   chan struct{} // capacity 1
}

// A job is one Run. Who takes a part of it counts it in next, who is done with it in done; the
// caller takes parts too, so that a job ends even when no worker gets a processor, and a worker
// that comes late finds nothing to take.
type job struct {
	body     func(lo, hi int)
	n, grain int
	parts    int64
	next     atomic.Int64
	done     atomic.Int64
	waiting  atomic.Bool
	finished chan struct{} // set before waiting
	failure  atomic.Pointer[Panic]
}

// Panic is what Run panics with when the body panicked, on whichever thread.
type Panic struct {
	Value any
	Stack []byte // of the thread that panicked
}

func (p *Panic) Error() string {
	return fmt.Sprintf("%v\n\nin a thread of the CPU device:\n%s", p.Value, p.Stack)
}

// Unwrap returns the body's panic value when it is an error.
func (p *Panic) Unwrap() error { err, _ := p.Value.(error); return err }

// NewPool starts a pool of this many threads, 0 for GOMAXPROCS, with the kernels of [Detect]. The
// error is a *[TierError].
func NewPool(threads int) (*Pool, error) {
	t, err := Detect()
	if err != nil {
		return nil, err
	}
	return NewPoolTier(threads, t)
}

// NewPoolTier is NewPool with the kernels of the given tier.
func NewPoolTier(threads int, t Tier) (*Pool, error) {
	if err := supported(t); err != nil {
		return nil, err
	}
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	p := &Pool{k: kernelsOf(t), tier: t, threads: threads, workers: make([]worker, threads-1)}
	p.wg.Add(len(p.workers))
	for i := range p.workers {
		w := &p.workers[i]
		w.wake = make(chan struct{}, 1)
		go p.work(w)
	}
	return p, nil
}

// Threads is the number of threads, the caller of Run among them.
func (p *Pool) Threads() int { return p.threads }

// Tier is the tier of the pool's kernels.
func (p *Pool) Tier() Tier { return p.tier }

// Close ends the workers and returns when they are gone. Afterwards Run still works, on its caller
// alone. Close can be called twice.
func (p *Pool) Close() {
	p.closed.Store(true)
	p.wakeUp(len(p.workers))
	p.wg.Wait()
	p.scratch.drop()
}

// Run calls body(lo, hi) for parts of [0, n), each of at most grain, on several threads at once,
// and returns when all are done. A panic of body ends the Run: what others have begun is waited
// for, the rest is skipped, and Run panics with a *[Panic] (with body's own value when the caller
// worked alone).
func (p *Pool) Run(n, grain int, body func(lo, hi int)) {
	if n <= 0 {
		return
	}
	grain = max(grain, 1)
	if n <= grain || len(p.workers) == 0 || p.closed.Load() {
		for lo := 0; lo < n; lo += grain {
			body(lo, min(lo+grain, n))
		}
		return
	}
	j := &job{body: body, n: n, grain: grain, parts: int64((n + grain - 1) / grain)}
	p.job.Store(j)
	p.wakeUp(int(min(j.parts-1, int64(len(p.workers)))))
	j.takeParts()
	p.job.CompareAndSwap(j, nil)
	j.wait()
	if f := j.failure.Load(); f != nil {
		panic(f)
	}
}

func (p *Pool) wakeUp(n int) {
	for i := range p.workers {
		if n == 0 {
			return
		}
		w := &p.workers[i]
		n--
		if w.asleep.Load() && w.asleep.CompareAndSwap(true, false) {
			w.wake <- struct{}{}
		}
	}
}

func (p *Pool) work(w *worker) {
	defer p.wg.Done()
	for !p.closed.Load() {
		if !p.await() {
			w.asleep.Store(true)
			// looked at after asleep is set: whoever publishes a job later sees it
			if p.pending() == nil && !p.closed.Load() {
				<-w.wake
			} else if !w.asleep.CompareAndSwap(true, false) {
				<-w.wake // someone is waking us already: take the token
			}
			continue
		}
		if j := p.pending(); j != nil {
			j.takeParts()
		}
	}
}

// pending is a job that still has parts to take, or nil.
func (p *Pool) pending() *job {
	if j := p.job.Load(); j != nil && j.next.Load() < j.parts {
		return j
	}
	return nil
}

// spinFor is how long an idle worker looks for work before it sleeps: longer than the gap between
// two kernels of a forward pass.
const spinFor = 50 * time.Microsecond

// await spins until a job is pending, and gives up after spinFor; at once when there are more
// threads than processors to run them.
func (p *Pool) await() bool {
	if p.pending() != nil {
		return true
	}
	if p.threads > runtime.GOMAXPROCS(0) {
		return false
	}
	start := time.Now()
	for time.Since(start) < spinFor {
		for range 16 {
			if p.pending() != nil || p.closed.Load() {
				return true
			}
			pause()
		}
	}
	return false
}

func (j *job) takeParts() {
	for {
		i := j.next.Add(1) - 1
		if i >= j.parts {
			return
		}
		j.part(int(i))
	}
}

func (j *job) part(i int) {
	defer func() {
		if v := recover(); v != nil {
			j.failure.CompareAndSwap(nil, &Panic{Value: v, Stack: debug.Stack()})
		}
		if j.done.Add(1) == j.parts && j.waiting.Load() {
			j.finished <- struct{}{}
		}
	}()
	if j.failure.Load() == nil {
		j.body(i*j.grain, min((i+1)*j.grain, j.n))
	}
}

// wait spins until the parts that others took are done, and sleeps when that takes long.
func (j *job) wait() {
	start := time.Now()
	for time.Since(start) < spinFor {
		for range 16 {
			if j.done.Load() == j.parts {
				return
			}
			pause()
		}
	}
	j.finished = make(chan struct{}, 1)
	j.waiting.Store(true)
	if j.done.Load() != j.parts {
		<-j.finished
	}
}

// scratch keeps the working buffers of the kernels between calls.
type scratch struct {
	mu   sync.Mutex
	free [][]float32
}

func (s *scratch) get(n int) []float32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.free) - 1; i >= 0; i-- {
		if b := s.free[i]; cap(b) >= n {
			s.free = append(s.free[:i], s.free[i+1:]...)
			return b[:n]
		}
	}
	return make([]float32, n)
}

// put keeps the buffer unless enough are kept.
func (s *scratch) put(b []float32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) >= 64 {
		s.free = s.free[1:]
	}
	s.free = append(s.free, b)
}

func (s *scratch) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = nil
}
