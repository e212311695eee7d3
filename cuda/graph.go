package cuda

import (
	"errors"
	"fmt"
	"unsafe"
)

// Graph is recorded device work.
type Graph struct {
	resource
	handle uintptr
}

// Capture records what fn queues on s, instead of doing it. Inside fn nothing may wait
// (Synchronize, copies without a stream), and nothing may be allocated or freed (ErrCapturing). The
// capture is ended whatever fn does; its own error comes first, then that of the driver, which says
// when something spoilt the capture.
func (s *Stream) Capture(owner string, fn func() error) (*Graph, error) {
	if err := s.enter("Stream.Capture"); err != nil {
		return nil, err
	}
	w := s.w
	if w.capturing {
		return nil, &MisuseError{"Stream.Capture", ErrCapturing, s.String()}
	}
	const threadLocal = 1 // other threads may allocate while this one captures
	if err := w.call(&w.d.fn.captureBegin, s.handle, threadLocal); err != nil {
		return nil, err
	}
	w.capturing = true
	fnErr := errors.New("cuda: Stream.Capture: the function did not return")
	var handle uintptr
	var err error
	func() {
		defer func() { // on panic too: a stream left capturing refuses everything
			w.capturing = false
			err = w.call(&w.d.fn.captureEnd, s.handle, w.result(0))
			handle = uintptr(w.out[0])
			if fnErr != nil && handle != 0 && err == nil {
				err = w.call(&w.d.fn.graphDestroy, handle)
			}
		}()
		fnErr = fn()
	}()
	if fnErr != nil || err != nil {
		return nil, errors.Join(fnErr, err)
	}
	g := &Graph{handle: handle}
	w.add(&g.resource, KindGraph, owner, 0, handle, func() error { return w.call(&w.d.fn.graphDestroy, handle) })
	return g, nil
}

// Nodes is how many kernels, copies and fills the graph has.
func (g *Graph) Nodes() (int, error) {
	if err := g.enter("Graph.Nodes"); err != nil {
		return 0, err
	}
	err := g.w.call(&g.w.d.fn.graphNodes, g.handle, 0, g.w.result(0))
	return int(g.w.out[0]), err
}

// Close destroys the graph. What was instantiated from it stays.
func (g *Graph) Close() error {
	if g == nil {
		return &MisuseError{"Graph.Close", ErrArguments, "nil graph"}
	}
	return g.free("Graph.Close")
}

// GraphExec is a graph that can be launched.
type GraphExec struct {
	resource
	handle uintptr
}

// Instantiate makes the graph launchable (0.3 ms for 100 nodes). The driver checks the memory of
// fills: when it has been freed it is ErrInvalidValue. Freed memory of copies and kernels passes
// (measured, driver 580), and is an illegal address in a launch at best.
func (g *Graph) Instantiate(owner string) (*GraphExec, error) {
	if err := g.enter("Graph.Instantiate"); err != nil {
		return nil, err
	}
	w := g.w
	if err := w.call(&w.d.fn.graphInst, w.result(0), g.handle, 0); err != nil {
		if errors.Is(err, ErrOutOfMemory) {
			return nil, w.noMemory(KindExec, owner, 0, err)
		}
		if errors.Is(err, ErrInvalidValue) {
			err = fmt.Errorf("%w (was memory that the graph fills freed?)", err)
		}
		return nil, err
	}
	x := &GraphExec{handle: uintptr(w.out[0])}
	w.add(&x.resource, KindExec, owner, 0, x.handle, func() error { return w.call(&w.d.fn.graphExecDestr, x.handle) })
	return x, nil
}

// Launch queues the whole graph on s (1.3 to 2.2 µs, whatever its size). That the memory in the
// graph is still live is not checked.
func (x *GraphExec) Launch(s *Stream) error {
	if err := x.enter("GraphExec.Launch"); err != nil {
		return err
	}
	stream, err := x.w.stream("GraphExec.Launch", s)
	if err != nil {
		return err
	}
	return x.w.call(&x.w.d.fn.graphLaunch, x.handle, stream)
}

// Upload does the work of the first launch ahead of it.
func (x *GraphExec) Upload(s *Stream) error {
	if err := x.enter("GraphExec.Upload"); err != nil {
		return err
	}
	stream, err := x.w.stream("GraphExec.Upload", s)
	if err != nil {
		return err
	}
	return x.w.call(&x.w.d.fn.graphUpload, x.handle, stream)
}

// updateResults are the names of CUgraphExecUpdateResult.
var updateResults = [...]string{
	"success", "error", "topology changed", "node type changed", "function changed", "parameters changed", "not supported",
	"unsupported function change", "attributes changed",
}

// Update sets in the instantiated graph the parameters of g, which has the same shape. When it has
// not, the error says what differs and matches ErrGraphExecUpdate; x is then as it was, and g has
// to be instantiated anew.
func (x *GraphExec) Update(g *Graph) error {
	const call = "GraphExec.Update"
	if err := x.enter(call); err != nil {
		return err
	}
	if g == nil {
		return &MisuseError{call, ErrArguments, "nil graph"}
	}
	w := x.w
	if err := w.use(call, &g.resource); err != nil {
		return err
	}
	var err error
	result := new(struct { // CUgraphExecUpdateResultInfo
		result    int32
		node, src uintptr
	})
	if w.d.fn.graphUpdate.addr != 0 {
		err = w.callWith(&w.d.fn.graphUpdate, x.handle, g.handle, uintptr(unsafe.Pointer(result)))
	} else { // before CUDA 12: the failing node and the result apart
		err = w.callWith(&w.d.fn.graphUpdateOld, x.handle, g.handle, uintptr(unsafe.Pointer(&result.node)),
			uintptr(unsafe.Pointer(&result.result)))
	}
	if err != nil && int(result.result) < len(updateResults) && result.result > 0 {
		return fmt.Errorf("%w (%s)", err, updateResults[result.result])
	}
	return err
}

// Close destroys the instantiated graph.
func (x *GraphExec) Close() error {
	if x == nil {
		return &MisuseError{"GraphExec.Close", ErrArguments, "nil graph"}
	}
	return x.free("GraphExec.Close")
}
