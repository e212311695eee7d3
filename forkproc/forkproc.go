package forkproc

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/enginetest/enginetest/internal/proc"
	"github.com/enginetest/enginetest/internal/testlog"
)

// Run runs body in a process of its own and repeats in t what happens there: output while it comes,
// subtests of any depth with their results, skips, attributes, artifacts. It fails t when the child
// fails, dies, leaves something behind, or gives no result. It must be called from the goroutine of
// the test.
//
// The child is a second run of this test binary that selects t by name. It runs the code above Run
// again, in t, in the tests around t and in TestMain; code below Run is for the parent only. A
// failed or skipped child ends t, as FailNow and SkipNow do.
func Run(t *testing.T, body func(t *testing.T), opts ...Option) Outcome {
	t.Helper()
	return run(t, body, opts).Outcome
}

func run(t *testing.T, body func(t *testing.T), opts []Option) result {
	t.Helper()
	cfg := newConfig(opts)
	call, prior := nextCall(t)
	if s, last := self.place(t.Name()); s != nil {
		if call <= len(s.Prior) {
			return s.Prior[call-1]
		}
		runHere(t, body, last)
	}
	if why := inline(); why != "" {
		return runInline(t, body, cfg, why)
	}
	if why := proc.Unseen(); why != "" {
		t.Logf("forkproc: %s", why)
	}
	deadline, _ := t.Deadline()
	c, err := newChild(t.Name(), t.Name(), deadline, cfg)
	if err != nil {
		t.Fatalf("forkproc: %v", err)
	}
	c.t = t
	c.route.Steps = self.extend(step{t.Name(), prior})
	o := c.run(context.Background(), func() { c.replay.play(t, c.replay.root) })
	r := result{o, c.value}
	remember(t, r)
	c.report(&r.Outcome)
	return r
}

// Main runs the tests of a package that needs TestMain:
//
//	func TestMain(m *testing.M) { forkproc.Main(m, func() { setUpOnceInTheParent() }) }
//
// The set-up functions run in the root process only; a child, which runs TestMain too, goes
// straight to its test. Without Main a child repeats whatever TestMain does, and a parent that
// touches a device there has done so before Run. The child of a Func ends in Main.
func Main(m *testing.M, setUp ...func()) {
	if self != nil && self.Call != nil {
		self.Call.serve()
	}
	if !InChild() {
		for _, f := range setUp {
			f()
		}
	}
	os.Exit(m.Run())
}

// InChild reports whether this process was started by Run or by a Func.
func InChild() bool { return self != nil }

// child is one Run or Call seen from the parent.
type child struct {
	name   string
	t      *testing.T // nil for a Call
	value  []byte     // what the body or the function returned, in JSON
	cfg    *config
	cmd    *exec.Cmd
	route  route
	limits limits
	facts  facts
	replay *replay
	pid    int // of the test binary; a wrapper has another
	logs   string
	tmp    string // the child's TMPDIR; it is its own, so what is left in it is its own too
	start  time.Time

	witness      *witness
	unattributed []Leftover
	acceptable   []string // the patterns that would accept the leftovers, quoted
}

// Files of this package in the child's temporary folder.
const (
	ownFiles    = ".forkproc-"
	testLogName = ownFiles + "testlog"
	routeName   = ownFiles + "route"
	valueName   = ownFiles + "value"
)

// newChild prepares a child that runs test, none if it is empty.
func newChild(name, test string, deadline time.Time, cfg *config) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{name: name, cfg: cfg, route: route{Exe: exe}}
	c.facts.wrapper = strings.Join(cfg.wrap, " ")
	if c.limits, err = newLimits(time.Now(), deadline, cfg.timeout, cfg.grace); err != nil {
		return nil, err
	}
	if c.tmp, err = os.MkdirTemp("", "forkproc"); err != nil {
		return nil, err
	}
	log := ""
	if f := flagValue("test.testlogfile"); f != "" {
		c.logs = filepath.Join(c.tmp, testLogName)
		log = c.logs
	}
	argv := append(append([]string{}, cfg.wrap...), exe)
	argv = append(argv, childArgs(os.Args[1:], test, c.limits.child, log, cfg.args)...)
	c.cmd = exec.Command(argv[0], argv[1:]...)
	c.cmd.Dir = startDir
	c.cmd.Env = childEnv(append(cfg.env, envTest+"="+name, envRoute+"="+filepath.Join(c.tmp, routeName)), c.tmp)
	c.replay = newReplay(name, &c.facts, cfg.expect != nil)
	return c, nil
}

// childEnv is the parent's environment with what every child needs, then what the options say.
func childEnv(vars []string, tmp string) []string {
	env := os.Environ()
	set := func(name, item string) {
		old, _ := syscall.Getenv(name)
		key, _, _ := strings.Cut(item, "=")
		if strings.Contains(old, key+"=") {
			return // the user's own setting
		}
		sep := ","
		if name == "GORACE" {
			sep = " "
		}
		env = append(env, name+"="+strings.TrimPrefix(old+sep+item, sep))
	}
	set("GORACE", "atexit_sleep_ms=0")  // a race build sleeps one second at its end
	set("GODEBUG", "tracebacklabels=1") // whose goroutine it is, in the stacks of a timeout
	env = append(env, "TMPDIR="+tmp, "PWD="+startDir, testlog.Env+"="+map[bool]string{
		true:  "1",
		false: "0",
	}[testlog.Wanted()])
	return append(env, vars...)
}

// leaveRoute writes the route to the child where the child will look for it. It may be long:
// outcomes are in it.
func (c *child) leaveRoute(notes *os.File) error {
	c.route.Notes = proc.Inode(int(notes.Fd()))
	b, err := json.Marshal(c.route)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.tmp, routeName), b, 0o600)
}

// run starts the child, lets play take what it prints, and returns when it is dead and so is all
// that it started.
func (c *child) run(ctx context.Context, play func()) Outcome {
	defer os.RemoveAll(c.tmp)
	c.witness = newWitness()
	defer c.witness.close()
	c.route.Blind = c.witness.blind()
	c.start = time.Now()
	before := c.snapshot()
	outR, outW, err := os.Pipe()
	if err != nil {
		return c.notStarted(err)
	}
	defer outR.Close()
	defer outW.Close()
	noteR, noteW, err := os.Pipe()
	if err != nil {
		return c.notStarted(err)
	}
	defer noteR.Close()
	defer noteW.Close()
	if err := c.leaveRoute(noteW); err != nil {
		return c.notStarted(err)
	}
	c.cmd.Stdout, c.cmd.Stderr = outW, outW
	c.cmd.ExtraFiles = append([]*os.File{noteW}, c.cfg.files...)
	f, err := proc.Start(c.cmd)
	if err != nil {
		return c.notStarted(err)
	}
	_ = outW.Close()
	_ = noteW.Close()
	c.pid = f.Leader()
	c.witness.follow(f)

	defer f.Kill() // should repeating the child's tests end this goroutine

	notes, streamed, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	hello := make(chan int, 1)
	var survivors []proc.Process
	go func() { defer close(notes); c.readNotes(noteR, hello) }()
	go func() { defer close(streamed); _ = readStream(outR, c.replay.handle) }()
	go func() {
		defer close(over)
		survivors = c.watch(ctx, f, hello, outR, noteR, streamed, notes)
		c.facts.running = c.replay.running()
		c.replay.finish()
	}()
	play()
	<-over

	c.facts.setExit(f.Exit())
	for _, m := range c.replay.moves {
		moveContent(m.from, m.to)
	}
	if c.logs != "" {
		repeatTestLog(c.logs)
	}
	c.takeValue()
	o := c.outcome()
	o.Leftovers = c.leftovers(before, survivors, o.Status)
	o.Unattributed = c.unattributed
	o.Duration = time.Since(c.start)
	return o
}
