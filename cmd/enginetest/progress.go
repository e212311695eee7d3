package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

const (
	progressAfter = 500 * time.Millisecond // short work shows none
	progressEvery = 100 * time.Millisecond
	progressWidth = 30
)

// showProgress draws a bar on w until stop is called, when w is a terminal and the work is long; in
// a pipe it draws nothing.
func showProgress(w io.Writer, read func() (done, total int64)) (stop func()) {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return func() {}
	}
	quit, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		drawProgress(file, read, quit)
	}()
	return func() { close(quit); <-gone }
}

func drawProgress(w io.Writer, read func() (done, total int64), quit <-chan struct{}) {
	start, drawn := time.Now(), false
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-quit:
			if drawn {
				fmt.Fprint(w, "\r\x1b[K")
			}
			return
		case <-tick.C:
		}
		if time.Since(start) < progressAfter {
			continue
		}
		done, total := read()
		full := int(progressWidth * min(done, total) / max(total, 1))
		rate := float64(done) / time.Since(start).Seconds()
		fmt.Fprintf(w, "\r\x1b[K[%s%s] %d/%d tokens  %.0f tok/s", strings.Repeat("█", full),
			strings.Repeat("░", progressWidth-full), done, total, rate)
		drawn = true
	}
}
