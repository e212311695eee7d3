package bundle

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// archive packs a folder into folder.tar.gz, under its own name.
func archive(folder string) (err error) {
	f, err := os.Create(folder + ".tar.gz")
	if err != nil {
		return err
	}
	zip := gzip.NewWriter(f)
	out := tar.NewWriter(zip)
	defer func() { err = errors.Join(err, out.Close(), zip.Close(), f.Close()) }()
	return filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return pack(out, folder, path, d)
	})
}

func pack(out *tar.Writer, folder, path string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	link := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if link, err = os.Readlink(path); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(filepath.Dir(folder), path)
	if err != nil {
		return err
	}
	h.Name, h.Uid, h.Gid, h.Uname, h.Gname = filepath.ToSlash(rel), 0, 0, "", ""
	if err := out.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
		return err
	}
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = io.Copy(out, in)
	return err
}
