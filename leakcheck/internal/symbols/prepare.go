package symbols

import (
	"context"
	"os"
	"path/filepath"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"
)

// loaded is set once names have been loaded: nothing is left to prepare.
var loaded atomic.Bool

// prepared is a companion that is made while a check still waits.
var prepared preparation

type preparation struct {
	mu    sync.Mutex
	users int
	build *build // nil: none is under way
}

type build struct {
	cancel context.CancelFunc
	done   chan struct{}
	path   string
	err    error
}

// Prepare starts making what [Load] needs, which takes most of its time. stop ends that, unless
// Load has taken it over, and returns when nothing of it is left.
func Prepare() (stop func()) {
	inBubble := time.Now().Year() < 2010 // of testing/synctest, whose channels no one outside may use
	if loaded.Load() || inBubble || !stripped("/proc/self/exe") {
		return func() {}
	}
	prepared.mu.Lock()
	defer prepared.mu.Unlock()
	if prepared.users++; prepared.build == nil {
		prepared.build = start("/proc/self/exe")
	}
	return prepared.leave
}

func start(self string) *build {
	ctx, cancel := context.WithCancel(context.Background())
	b := &build{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(b.done)
		pprof.SetGoroutineLabels(ctx) // it belongs to no scope
		b.path, b.err = companion(ctx, self)
	}()
	return b
}

// leave ends a build that no one waits for any more.
func (p *preparation) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users--; p.users > 0 || p.build == nil {
		return
	}
	p.build.cancel()
	<-p.build.done
	if p.build.err == nil {
		os.RemoveAll(filepath.Dir(p.build.path))
	}
	p.build = nil
}

// take returns the companion that has been prepared, or makes one.
func (p *preparation) take(self string) (path string, err error) {
	p.mu.Lock()
	b := p.build
	p.build = nil
	p.mu.Unlock()
	if b == nil {
		return companion(context.Background(), self)
	}
	<-b.done
	b.cancel()
	return b.path, b.err
}
