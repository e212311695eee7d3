package llm

// Fault is an injected failure: data, so that it crosses process boundaries with the Config. It
// strikes once on each rank that it names.
type Fault struct {
	Point  FaultPoint
	Rank   int // of the device that it strikes, below TensorParallel; -1 every one
	After  int // passes of the point on that device that go well first
	Action FaultAction
	Text   string // of the error or panic
}

// FaultPoint is a place where a Fault can strike.
type FaultPoint string

// The fault points.
const (
	FaultLoad     FaultPoint = "load"     // while weights are loaded
	FaultAllocate FaultPoint = "allocate" // a device allocation
	FaultProfile  FaultPoint = "profile"  // the profiling forward pass of Open
	FaultForward  FaultPoint = "forward"  // a step's forward pass
	FaultSample   FaultPoint = "sample"   // rank 0 only
	FaultDraft    FaultPoint = "draft"    // tokens are proposed: each forward pass of a draft model
	FaultOutput   FaultPoint = "output"   // detokenization and stop checks; rank 0 only
	FaultShutdown FaultPoint = "shutdown" // a release step, of Sleep too
)

// FaultAction is what happens when a Fault strikes.
type FaultAction string

// The fault actions.
const (
	ActError FaultAction = "error"
	ActPanic FaultAction = "panic"
	// until the engine is shut down; in Open and in Shutdown, until their context ends
	ActHang FaultAction = "hang"
	ActOOM  FaultAction = "out_of_memory" // the error of a failed allocation
	ActExit FaultAction = "exit"          // the process: os.Exit(1)
	ActKill FaultAction = "kill"          // the process: SIGKILL
)

// FaultReport reports whether a Fault of the Config struck: a test whose fault never fired has
// tested nothing.
type FaultReport struct {
	Fault  Fault
	Passes int // times its point was passed, on the ranks that it names
	Fired  int // on how many of them it struck
}
