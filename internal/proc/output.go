package proc

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"reflect"
	"time"
)

// An output copies what a family writes to a writer that is no file.
type output struct {
	r       *os.File
	w       io.Writer
	drained chan struct{}
	ended   chan struct{}
}

const (
	drainLimit = 2 * time.Second // for a writer that blocks
	endLimit   = time.Second     // for a pipe that a stranger holds
)

// files returns the command's descriptors from 0 up, and what closes those of them that were
// opened here.
func (f *Family) files(cmd *exec.Cmd) (files []*os.File, release func(), err error) {
	var opened []*os.File
	release = func() {
		for _, file := range opened {
			_ = file.Close()
		}
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	null := func(flag int) (*os.File, error) {
		file, err := os.OpenFile(os.DevNull, flag, 0)
		if err == nil {
			opened = append(opened, file)
		}
		return file, err
	}
	writer := func(w io.Writer) (*os.File, error) {
		if w == nil {
			return null(os.O_WRONLY)
		}
		if file, ok := w.(*os.File); ok {
			return file, nil
		}
		r, theirs, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		opened = append(opened, theirs)
		f.outputs = append(f.outputs, &output{r, w, make(chan struct{}), make(chan struct{})})
		return theirs, nil
	}
	in, ok := cmd.Stdin.(*os.File)
	if !ok {
		if in, err = null(os.O_RDONLY); err != nil {
			return nil, nil, err
		}
	}
	out, err := writer(cmd.Stdout)
	if err != nil {
		return nil, nil, err
	}
	errs := out
	if cmd.Stderr == nil || !same(cmd.Stdout, cmd.Stderr) {
		if errs, err = writer(cmd.Stderr); err != nil {
			return nil, nil, err
		}
	}
	return append([]*os.File{in, out, errs}, cmd.ExtraFiles...), release, nil
}

func same(a, b io.Writer) bool {
	return a != nil && b != nil && reflect.TypeOf(a).Comparable() && reflect.TypeOf(b).Comparable() && a == b
}

// copy copies until no process holds the pipe. A writer that fails does not stop it: the family
// would block.
func (o *output) copy() {
	defer close(o.ended)
	defer o.r.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := o.r.Read(buf)
		if n > 0 {
			_, _ = o.w.Write(buf[:n])
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			o.rest(buf)
		case err != nil:
			return
		}
	}
}

// rest copies what is in the pipe now, then says so.
func (o *output) rest(buf []byte) {
	select {
	case <-o.drained:
		return
	default:
	}
	_ = o.r.SetReadDeadline(time.Time{})
	for left := pending(o.r); left > 0; {
		n, err := o.r.Read(buf[:min(left, len(buf))])
		_, _ = o.w.Write(buf[:n])
		if left -= n; err != nil {
			break
		}
	}
	close(o.drained)
}

// drain returns when the writer has what is in the pipe now.
func (o *output) drain() {
	if o.r.SetReadDeadline(time.Now()) != nil {
		return
	}
	select {
	case <-o.drained:
	case <-o.ended:
	case <-time.After(drainLimit):
	}
}

// end returns when the copying has ended.
func (o *output) end() {
	select {
	case <-o.ended:
	case <-time.After(endLimit):
		_ = o.r.Close()
	}
}
