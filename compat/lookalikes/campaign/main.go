// Command campaign runs the look-alikes many times in every mode and prints how often leakcheck
// raised an alarm. First it plants a leak in each of them, once, which must all be found.
//
//	go run ./campaign -runs 10000
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// mode is one way to run the tests.
type mode struct {
	name    string
	race    bool
	args    []string
	env     []string
	repeats int // of each test by one -test.count
}

var modes = []mode{
	{name: "plain", repeats: 1},
	{name: "-race", race: true, repeats: 1},
	{name: "-shuffle=on", args: []string{"-test.shuffle=on"}, repeats: 1},
	{name: "-cpu 1,2,8", args: []string{"-test.cpu=1,2,8"}, repeats: 3},
	{name: "-race -cpu 1,2,8 -shuffle=on", race: true, args: []string{"-test.cpu=1,2,8", "-test.shuffle=on"}, repeats: 3},
	{name: "GOGC=off", env: []string{"GOGC=off"}, repeats: 1},
	{name: "GOGC=1", env: []string{"GOGC=1"}, repeats: 1},
	{name: "GOMEMLIMIT=16MiB", env: []string{"GOMEMLIMIT=16MiB"}, repeats: 1},
	{name: "t.Parallel", args: []string{"-lookalikes.parallel", "-test.parallel=8"}, repeats: 1},
	{name: "t.Parallel, -race", race: true, args: []string{"-lookalikes.parallel", "-test.parallel=8"}, repeats: 1},
}

func main() {
	runs := flag.Int("runs", 10_000, "clean runs in all, at least")
	flag.Parse()
	if err := campaign(*runs); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func campaign(runs int) error {
	dir, err := os.MkdirTemp("", "campaign-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binaries := map[bool]string{false: filepath.Join(dir, "plain.test"), true: filepath.Join(dir, "race.test")}
	for race, path := range binaries {
		cmd := exec.Command("go", "test", "-c", "-race="+strconv.FormatBool(race), "-o", path, ".")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", cmd, err, out)
		}
	}
	planted := run(binaries[false], mode{args: []string{"-lookalikes.leak"}}, 1)
	if planted.passed > 0 || planted.failed == 0 {
		return fmt.Errorf("with a leak planted in each look-alike, %d fail and %d pass\n%s", planted.failed, planted.passed, planted.output)
	}
	fmt.Printf("%d look-alikes; with a leak planted in each, %d alarms\n\n", planted.failed, planted.failed)
	fmt.Printf("%-30s %9s %7s %9s\n", "mode", "clean runs", "alarms", "time")
	total, start := result{}, time.Now()
	perCount := 0
	for _, m := range modes {
		perCount += m.repeats * planted.failed
	}
	count := (runs + perCount - 1) / perCount
	for _, m := range modes {
		began := time.Now()
		r := run(binaries[m.race], m, count)
		fmt.Printf("%-30s %9d %7d %9s\n", m.name, r.passed+r.failed, r.failed, time.Since(began).Round(time.Second/10))
		total.passed, total.failed = total.passed+r.passed, total.failed+r.failed
		if r.failed > 0 || r.err != nil {
			total.err = errors.Join(total.err, fmt.Errorf("%s: %d alarms, %v\n%s", m.name, r.failed, r.err, r.output))
		}
	}
	fmt.Printf("%-30s %9d %7d %9s\n", "all", total.passed+total.failed, total.failed, time.Since(start).Round(time.Second))
	return total.err
}

type result struct {
	passed, failed int
	output         []byte // of what failed
	err            error
}

func run(binary string, m mode, count int) (r result) {
	cmd := exec.Command(binary, append(m.args, "-test.v", "-test.skip=OneFinding", "-test.count="+strconv.Itoa(count))...)
	cmd.Env = append(os.Environ(), m.env...)
	var out []byte
	out, r.err = cmd.CombinedOutput()
	var test []byte // the output since the last one began
	for line := range bytes.Lines(out) {
		switch {
		case bytes.HasPrefix(line, []byte("=== RUN")) && !bytes.Contains(line, []byte("/")):
			test = nil
		case bytes.HasPrefix(line, []byte("--- PASS: ")):
			r.passed++
			test = nil
		case bytes.HasPrefix(line, []byte("--- FAIL: ")):
			r.failed++
			r.output = append(append(r.output, test...), line...)
			test = nil
		}
		test = append(test, line...)
	}
	if r.failed == 0 && r.err != nil {
		r.output = out[max(0, len(out)-4<<10):]
	}
	return r
}
