package forkproc

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
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
	mine, unknown := c.newFiles(before)
	all = append(all, c.lasting(mine)...)
	for _, l := range c.lasting(unknown) {
		if !c.cfg.accepts(l) {
			c.unattributed = append(c.unattributed, l.Leftover)
		}
	}
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
