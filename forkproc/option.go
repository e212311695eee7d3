package forkproc

import (
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// An Option changes how Run starts or judges a child.
type Option func(*config)

type config struct {
	env       []string
	wrap      []string
	args      []string
	files     []*os.File
	timeout   time.Duration
	waitDelay time.Duration
	grace     time.Duration // 0: by the deadline
	accept    []string
	keepQuiet bool // leftovers are in the outcome only; for tests of this package
	expect    *Expectation
	output    io.Writer // of a Call
}

func newConfig(opts []Option) *config {
	c := &config{waitDelay: 500 * time.Millisecond}
	for _, o := range opts {
		o(c)
	}
	return c
}

// Env adds variables ("NAME=value") to the child's environment, which is otherwise the parent's.
func Env(vars ...string) Option {
	return func(c *config) { c.env = append(c.env, vars...) }
}

// VisibleDevices sets the child's CUDA_VISIBLE_DEVICES: UUIDs ("GPU-…", "MIG-…") or indices.
// Indices are made to mean what NVML means by them (CUDA_DEVICE_ORDER=PCI_BUS_ID). Without
// arguments the child sees no device.
func VisibleDevices(devices ...string) Option {
	vars := []string{"CUDA_VISIBLE_DEVICES=" + strings.Join(devices, ",")}
	for _, d := range devices {
		if _, err := strconv.Atoi(d); err == nil {
			vars = append(vars, "CUDA_DEVICE_ORDER=PCI_BUS_ID")
			break
		}
	}
	return Env(vars...)
}

// Wrap runs the child under another program: Wrap("compute-sanitizer", "--tool", "memcheck"). The
// program must start the command line that follows its own arguments, hand on file descriptors, and
// end with its exit code.
func Wrap(prefix ...string) Option {
	return func(c *config) { c.wrap = prefix }
}

// Args adds arguments to the child's command line; a later flag wins: Args("-test.parallel=4").
func Args(args ...string) Option {
	return func(c *config) { c.args = append(c.args, args...) }
}

// Timeout limits the child to d, or to what the deadline of the test leaves when that is less.
func Timeout(d time.Duration) Option {
	return func(c *config) { c.timeout = d }
}

// WaitDelay is how long processes that the child started may outlive it before they are named and
// killed; 500 ms by default.
func WaitDelay(d time.Duration) Option {
	return func(c *config) { c.waitDelay = d }
}

// Files are inherited by the child and by what it starts, as descriptors 4, 5 and so on: an flock
// on one of them is held until the last of these processes is dead, even when the parent dies
// before.
func Files(files ...*os.File) Option {
	return func(c *config) { c.files = append(c.files, files...) }
}

// Accept names leftovers that are no failure, with * for any text: by path, by the name of a file
// in the child's temporary folder, by program or command line, or by the whole text of the finding.
// Accept("/dev/shm/nccl-*", "nvidia-cuda-mps*").
func Accept(patterns ...string) Option {
	return func(c *config) { c.accept = append(c.accept, patterns...) }
}

// Output is where a Func's child prints, stdout and stderr alike. By default its last lines are in
// the outcome only. Run has no use for it: it prints in its test.
func Output(w io.Writer) Option {
	return func(c *config) { c.output = w }
}

// Expect makes a death the wanted result: the test fails unless the child ends as e says, and Run
// returns the outcome. Results of subtests are then in the outcome only.
func Expect(e Expectation) Option {
	return func(c *config) { c.expect = &e }
}
