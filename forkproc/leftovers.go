package forkproc

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/enginetest/enginetest/internal/proc"
)

// A leftover is a finding with all that Accept's patterns are matched with besides its name and
// text.
type leftover struct {
	Leftover
	also []string
}

func (c *child) leftovers(before snapshot, survivors []proc.Process, status Status) []Leftover {
	var all []leftover
	for _, p := range survivors {
		name := filepath.Base(strings.Fields(p.Command + " ?")[0])
		found := Leftover{Kind: leftoverProcess, Name: name, PID: p.PID, Text: p.String() + ", killed now"}
		all = append(all, leftover{found, []string{p.Command}})
	}
	files := c.lasting(c.newFiles(before))
	if others := c.overlapping(); len(others) > 0 {
		for i := range files {
			files[i].Text += "; it may be of another child that ran at the same time: " + strings.Join(others, ", ")
		}
	}
	all = append(all, files...)
	if status == StatusPassed || status == StatusSkipped { // a process that dies cannot clean its temporary folder
		all = append(all, c.tempFiles()...)
	}
	var left []Leftover
	for _, l := range all {
		if c.cfg.accepts(l) {
			continue
		}
		c.acceptable = append(c.acceptable, strconv.Quote(l.Name))
		left = append(left, l.Leftover)
	}
	return left
}

// lasting leaves out what goes in a moment: another program's process has just ended, and the program
// removes what it left.
func (c *child) lasting(files []leftover) []leftover {
	for pause := 10 * time.Millisecond; pause < 640*time.Millisecond; pause *= 2 {
		if !slices.ContainsFunc(files, func(l leftover) bool { return filepath.IsAbs(l.Name) && !c.cfg.accepts(l) }) {
			break
		}
		time.Sleep(pause)
		files = slices.DeleteFunc(files, func(l leftover) bool {
			_, err := os.Lstat(l.Name)
			return filepath.IsAbs(l.Name) && errors.Is(err, os.ErrNotExist)
		})
	}
	return files
}

// accepts matches with * for any text, as patterns here are for paths and command lines alike.
func (c *config) accepts(l leftover) bool {
	for _, pattern := range c.accept {
		re, err := regexp.Compile("^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") + "$")
		if err != nil {
			continue // not possible after QuoteMeta
		}
		if slices.ContainsFunc(append(l.also, l.Name, l.Text), re.MatchString) {
			return true
		}
	}
	return false
}

// running are the children of this process, so that a leftover whose maker cannot be known is not
// blamed on one of several.
var running = struct {
	sync.Mutex
	children map[*child]bool
}{children: map[*child]bool{}}

func (c *child) enter() (leave func()) {
	running.Lock()
	defer running.Unlock()
	c.others = map[string]bool{}
	for o := range running.children {
		o.others[c.replay.root.name] = true
		c.others[o.replay.root.name] = true
	}
	running.children[c] = true
	return func() {
		running.Lock()
		defer running.Unlock()
		delete(running.children, c)
	}
}

func (c *child) overlapping() []string {
	running.Lock()
	defer running.Unlock()
	return sorted(c.others)
}
