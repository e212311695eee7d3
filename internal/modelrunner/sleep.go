package modelrunner

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"time"

	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/ledger"
)

// hostDevice is where the ledger has what is kept while the runner sleeps.
const hostDevice = "host"

// Sleep implements [Sleeper]. On this device the weights are the mapped files of the checkpoint. Kept on the host, they stay mapped: the ledger
// moves them from the device to "host", nothing is copied, and replacing or removing the files does not matter. Not kept, they are unmapped.
func (r *CPU) Sleep(keep bool) error {
	if r.model != nil {
		r.model = &model{Config: r.Config} // no way into memory that is gone
	}
	r.kv, r.blocks, r.work, r.rope = nil, 0, workspace{}, ropeTable{}
	err := r.parts.Release(func(p Part) bool { return !p.file || !keep })
	if keep && r.files != nil {
		r.files.enter(r.alloc.Ledger(), hostDevice)
	}
	return err
}

// WakeWeights implements [Sleeper]. Files that Sleep did not keep are opened again; a *checkpoint.Error when they are not what they were.
func (r *CPU) WakeWeights() (err error) {
	if r.work.x != nil {
		return nil
	}
	if err := r.releaseStale(); err != nil {
		return err
	}
	had, kept := r.parts.Len(), r.files != nil
	woken := false
	defer func() { // after a panic too
		if !woken {
			err = errors.Join(err, r.undoWake(had, kept))
		}
	}()
	if !kept {
		if err := r.reopen(); err != nil {
			return err
		}
	}
	r.files.enter(r.alloc.Ledger(), r.alloc.Device())
	if err := r.load(); err != nil {
		return err
	}
	woken = true
	return nil
}

// undoWake releases the parts after the first so many: what a wake that failed had taken. The KV cache, when it is awake, stays.
func (r *CPU) undoWake(had int, kept bool) error {
	r.model = &model{Config: r.source.config}
	r.work, r.rope = workspace{}, ropeTable{}
	err := r.parts.ReleaseFrom(had)
	if kept {
		r.files.enter(r.alloc.Ledger(), hostDevice)
	}
	return err
}

// releaseStale tries once more to release what Sleep could not.
func (r *CPU) releaseStale() error { return r.parts.Release(func(p Part) bool { return p.stale }) }

// reopen opens the checkpoint again, which must not have changed.
func (r *CPU) reopen() error {
	ckpt, err := checkpoint.Open(r.source.dir)
	if err != nil {
		return err
	}
	r.adopt(ckpt)
	now, err := sourceOf(ckpt)
	if err != nil {
		return err
	}
	return r.source.same(now)
}

// files is the open checkpoint, whose mapped files are in the ledger.
type files struct {
	ckpt *checkpoint.Checkpoint
	ids  []ledger.ID
}

// adopt makes a checkpoint the runner's, and enters its mapped files in the ledger.
func (r *CPU) adopt(ckpt *checkpoint.Checkpoint) {
	f := &files{ckpt: ckpt}
	p := Part{Owner: "weights", file: true}
	for _, m := range ckpt.Mappings() {
		p.Bytes += m.Bytes
	}
	f.enter(r.alloc.Ledger(), r.alloc.Device())
	p.Release = func() error {
		err := ckpt.Close()
		r.files = nil
		return errors.Join(err, f.strike(r.alloc.Ledger()))
	}
	r.files = f
	r.parts.Add(p)
}

// enter puts the files in the ledger as a device's, and nobody else's.
func (f *files) enter(l *ledger.Ledger, device string) {
	_ = f.strike(l) // its own ids, which are live
	for _, m := range f.ckpt.Mappings() {
		f.ids = append(f.ids, l.Add(ledger.Holding{Owner: "weights", Kind: "file", Device: device, Bytes: m.Bytes, Addr: m.Addr}))
	}
}

func (f *files) strike(l *ledger.Ledger) (err error) {
	for _, id := range f.ids {
		err = errors.Join(err, l.Remove(id))
	}
	f.ids = nil
	return err
}

// source is what a checkpoint was when it was opened. Its weights are told by the size and time of the files: reading all of them would take
// as long as loading them.
type source struct {
	dir    string
	config checkpoint.Config
	files  []version
}

type version struct {
	path     string
	bytes    int64
	modified time.Time
}

func (v version) String() string {
	return fmt.Sprintf("%s of %s", ledger.FormatBytes(v.bytes), v.modified.Format("2006-01-02 15:04:05.000000000"))
}

func sourceOf(ckpt *checkpoint.Checkpoint) (source, error) {
	s := source{dir: ckpt.Dir, config: ckpt.Config}
	for _, m := range ckpt.Mappings() {
		info, err := os.Stat(m.File)
		if err != nil {
			return s, &checkpoint.Error{File: m.File, Reason: "cannot stat", Err: err}
		}
		s.files = append(s.files, version{m.File, info.Size(), info.ModTime()})
	}
	return s, nil
}

// same says how a checkpoint differs from what it was.
func (s source) same(now source) error {
	const changed = "changed since it was first loaded"
	if !reflect.DeepEqual(s.config, now.config) {
		return &checkpoint.Error{File: s.dir, Field: "config.json", Reason: changed}
	}
	if len(s.files) != len(now.files) {
		return &checkpoint.Error{File: s.dir, Reason: changed, Got: fmt.Sprint(len(now.files), " files"), Want: fmt.Sprint(len(s.files))}
	}
	for i, was := range s.files {
		if is := now.files[i]; is.path != was.path || is.bytes != was.bytes || !is.modified.Equal(was.modified) {
			return &checkpoint.Error{File: is.path, Reason: changed, Got: is.String(), Want: was.String()}
		}
	}
	return nil
}
