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

// Source is what a checkpoint was when it was opened. Its weights are told by the size and time of
// the files: reading all of them would take as long as loading them.
type Source struct {
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

// SourceOf looks at an open checkpoint.
func SourceOf(ckpt *checkpoint.Checkpoint) (Source, error) {
	s := Source{dir: ckpt.Dir, config: ckpt.Config}
	for _, m := range ckpt.Mappings() {
		info, err := os.Stat(m.File)
		if err != nil {
			return s, &checkpoint.Error{File: m.File, Reason: "cannot stat", Err: err}
		}
		s.files = append(s.files, version{m.File, info.Size(), info.ModTime()})
	}
	return s, nil
}

// Reopen opens the checkpoint again, which must not have changed: a *checkpoint.Error says how it
// did.
func (s Source) Reopen() (*checkpoint.Checkpoint, error) {
	ckpt, err := checkpoint.Open(s.dir)
	if err != nil {
		return nil, err
	}
	if s.config.Head == checkpoint.NoHead {
		ckpt.UsePooling(s.config.Pooling, s.config.UsePooler)
	}
	now, err := SourceOf(ckpt)
	if err == nil {
		err = s.same(now)
	}
	if err != nil {
		return nil, errors.Join(err, ckpt.Close())
	}
	return ckpt, nil
}

// same says how a checkpoint differs from what it was.
func (s Source) same(now Source) error {
	const changed = "changed since it was first loaded"
	if !reflect.DeepEqual(s.config, now.config) {
		return &checkpoint.Error{File: s.dir, Field: "config.json", Reason: changed}
	}
	if len(s.files) != len(now.files) {
		return &checkpoint.Error{
			File: s.dir, Reason: changed, Got: fmt.Sprint(len(now.files), " files"),
			Want: fmt.Sprint(len(s.files)),
		}
	}
	for i, was := range s.files {
		if is := now.files[i]; is.path != was.path || is.bytes != was.bytes || !is.modified.Equal(was.modified) {
			return &checkpoint.Error{File: is.path, Reason: changed, Got: is.String(), Want: was.String()}
		}
	}
	return nil
}
