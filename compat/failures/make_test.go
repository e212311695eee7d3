package failures

import (
	"bytes"
	"context"
	"flag"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

var (
	set  = flag.Int("set", 0, "which set TestMake makes: 1, 2, …")
	out  = flag.String("out", "", "the folder into which TestMake writes logs")
	only = flag.String("only", "", "cases that contain this")
)

// seed decides which set a case belongs to, and how it is reported.
const seed = 20

// cases returns the names of one set: of each class half, drawn at random, and from set 3 on
// those that were written for it.
func cases(set int) (names []string) {
	all := slices.Concat(slices.Collect(maps.Keys(errorCases)), slices.Collect(maps.Keys(testCases)),
		slices.Collect(maps.Keys(projects)), slices.Collect(maps.Keys(served)))
	slices.Sort(all)
	if set >= 3 {
		return slices.DeleteFunc(all, func(name string) bool { return later(name) != set || withdrawn[name] != "" })
	}
	all = slices.DeleteFunc(all, func(name string) bool { return later(name) != 0 })
	if len(slices.Compact(slices.Clone(all))) != len(all) {
		panic("two cases have one name")
	}
	byClass := map[string][]string{}
	for _, name := range all {
		class, _, _ := strings.Cut(name, "--")
		byClass[class] = append(byClass[class], name)
	}
	for _, class := range slices.Sorted(maps.Keys(byClass)) {
		list := byClass[class]
		r := rand.New(rand.NewPCG(seed, uint64(len(list))))
		r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		half := len(list) / 2
		if set == 1 {
			names = append(names, list[:half]...)
		} else {
			names = append(names, list[half:]...)
		}
	}
	names = slices.DeleteFunc(names, func(name string) bool { return withdrawn[name] != "" })
	slices.Sort(names)
	return names
}

// later returns the set that a case was written for, 0 for those that are drawn.
func later(name string) int {
	_, cause, _ := strings.Cut(name, "--")
	n, _, _ := strings.Cut(cause, "-")
	set, _ := strconv.Atoi(n)
	if len(n) != 1 {
		return 0
	}
	return set
}

// withdrawn are cases that turned out to have another cause than their name says.
var withdrawn = map[string]string{
	"engine--own-shutdown":  "a shutdown that panics leaves device memory behind: it is a leak too",
	"infra--disk-go-cache":  "the go command does not say that its cache is full",
	"infra--net-pip":        "a machine's pip may be set up to ask no index",
	"infra--mirror-503-pip": "as above",
	"engine--3-fork":        "shared memory of another program was found beside it",
}

// TestCases checks that the sets have no case in common.
func TestCases(t *testing.T) {
	one, two := cases(1), cases(2)
	for _, name := range one {
		if slices.Contains(two, name) {
			t.Errorf("%s is in both", name)
		}
	}
	if len(one) < 150 || len(two) < 150 {
		t.Errorf("sets of %d and %d cases", len(one), len(two))
	}
}

// draw returns n of a list, the same ones for the same case.
func draw(name string, list []string, n int) []string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	r := rand.New(rand.NewPCG(seed, h.Sum64()))
	list = slices.Sorted(slices.Values(list))
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list[:n]
}

// TestMake makes the logs of a set that are missing. It needs root, a C++ compiler, Java, Node,
// pytest, and both servers of scripts/install-servers.
func TestMake(t *testing.T) {
	if os.Getenv("ENGINETEST_LONG") == "" || *out == "" {
		t.Skip("ENGINETEST_LONG=1 go test . -run TestMake -set 1 -out DIR makes logs")
	}
	if err := os.MkdirAll(*out, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, name := range cases(*set) {
		if strings.Contains(name, *only) {
			t.Run(name, func(t *testing.T) { makeLogs(t, name) })
		}
	}
}

func makeLogs(t *testing.T, name string) {
	noise := draw(name, slices.Collect(maps.Keys(noises)), 2)
	write := func(style string, log func() []byte) {
		file := filepath.Join(*out, name+"--"+style+".log")
		if _, err := os.Stat(file); err == nil {
			return
		}
		text := clean(log())
		if bytes.Contains(text, []byte("harmless")) || len(text) == 0 || t.Failed() {
			t.Errorf("%s: the fault cannot be planted here:\n%s", style, text)
			return
		}
		if err := os.WriteFile(file, text, 0o666); err != nil {
			t.Error(err)
		}
	}
	switch {
	case errorCases[name] != nil:
		for i, style := range draw(name, slices.Collect(maps.Keys(styles)), 2) {
			write(style, func() []byte { return plant(t, name, style, noise[i], "true") })
		}
	case testCases[name] != nil:
		write("text", func() []byte { return plant(t, name, "own", noise[0], "true") })
		if _, ok := expectations[name]; !ok {
			write("recorded", func() []byte { return plant(t, name, "own", noise[1], "test2json") })
		}
	case served[name] != "":
		write("served", func() []byte { return runServed(t, served[name]) })
	default:
		write("project", func() []byte { return runProject(t, projects[name]) })
	}
}

// plant runs TestFault in a child and returns its output.
func plant(t *testing.T, name, style, noise, v string) []byte {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, "-test.run=^TestFault$", "-test.v="+v, "-test.timeout=100s")
	cmd.Env = append(os.Environ(), faultEnv+"="+name+" "+style+" "+noise, "ENGINETEST_VERDICTS=")
	cmd.Dir = t.TempDir()
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	text, err := cmd.CombinedOutput()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	if err == nil {
		t.Errorf("%s does not fail", name)
	}
	return append(text, "FAIL\texample.com/llm\t1.0s\n"...)
}

var resolvers = regexp.MustCompile(`\b[\d.]+:53\b`)

// clean takes this machine's folders and its name server out of a log.
func clean(log []byte) []byte {
	_, file, _, _ := runtime.Caller(0)
	here := filepath.Dir(file)
	home, _ := os.UserHomeDir()
	log = resolvers.ReplaceAll(log, []byte("198.51.100.53:53"))
	r := strings.NewReplacer(here, "/src/llm", filepath.Dir(filepath.Dir(here)), "/src/enginetest", home, "/home/ci", os.TempDir(), "/tmp")
	return []byte(r.Replace(string(log)))
}
