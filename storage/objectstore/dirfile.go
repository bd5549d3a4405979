package objectstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// Behind the bytes of an object, its file has this and the tag. A file without it was
// not written by us, or not to its end.
const (
	magic     = "\natoll-object-1 "
	tagSize   = 32
	footSize  = len(magic) + tagSize
	abandoned = 24 * time.Hour // where nobody can tell whether a writer lives
)

// openObject opens the file name in dir, which is that of the object of key.
func openObject(dir *os.Root, name, key string) (_ *os.File, o Object, err error) {
	file, err := dir.OpenFile(name, os.O_RDONLY|nonblock, 0) // a pipe makes nobody wait
	if err != nil {
		return nil, o, err
	}
	defer func() {
		if err != nil {
			file.Close()
		}
	}()
	info, err := file.Stat()
	if err != nil {
		return nil, o, err
	}
	size := info.Size() - int64(footSize)
	var foot [footSize]byte
	if info.Mode().IsRegular() && size >= 0 {
		if _, err := file.ReadAt(foot[:], size); err != nil && err != io.EOF {
			return nil, o, err
		}
	}
	text, ok := strings.CutPrefix(string(foot[:]), magic)
	if !ok {
		return nil, o, atoll.Errorf("", "", atoll.ErrInternal,
			"the file %s is not one that was written here, or is damaged: remove it", file.Name())
	}
	return file, Object{Key: key, Size: size, Tag: text, Modified: info.ModTime()}, nil
}

// A temporary is a file that is to become an object. Who writes it has it locked: one
// that is not is left by a writer that was killed.
type temporary struct {
	dir  *Dir
	name string // "" when it has become one
	file *os.File
}

func (d *Dir) temporary() (*temporary, error) {
	for {
		name := path.Join(tempDir, atoll.NewID())
		file, err := d.create(name, os.O_EXCL)
		if err != nil {
			return nil, err
		}
		if err = tryLock(file); err == nil {
			return &temporary{d, name, file}, nil
		}
		file.Close()
		if !errors.Is(err, fsutil.ErrLocked) && !errors.Is(err, fs.ErrNotExist) { // taken for a leftover
			return nil, errors.Join(err, d.root.Remove(name))
		}
	}
}

// write writes an object with the bytes of r.
func (t *temporary) write(ctx context.Context, r io.Reader, o Object) error {
	in := &bounded{ctx: ctx, r: r}
	n, err := io.Copy(t.file, io.LimitReader(in, o.Size))
	if err != nil {
		return err
	}
	if n == o.Size {
		var more [1]byte
		extra, err := io.ReadFull(in, more[:])
		if err != nil && err != io.EOF {
			return err
		}
		n += int64(extra)
	}
	if n != o.Size {
		return ErrSize(n, o.Size)
	}
	if _, err := io.WriteString(t.file, magic+o.Tag); err != nil {
		return err
	}
	return t.file.Sync()
}

// ErrSize is the error of a Put whose reader has not the bytes that were said: it has
// less, or one more at least.
func ErrSize(has, said int64) error {
	if has > said {
		return atoll.Errorf("", "", atoll.ErrInvalid, "the reader has more than the %d bytes that were to be written", said)
	}
	return atoll.Errorf("", "", atoll.ErrInvalid, "the reader has %d bytes, not the %d that were to be written", has, said)
}

// discard removes the file, unless it is an object's.
func (t *temporary) discard() {
	if t.name != "" {
		_ = t.dir.root.Remove(t.name) // else the next who tidies up does
	}
	_ = t.file.Close()
}

// A bounded reader ends with a context.
type bounded struct {
	ctx context.Context
	r   io.Reader
}

func (b *bounded) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	return b.r.Read(p)
}

// tidy removes the files of writers that were killed. What fails is tried again
// later.
func (d *Dir) tidy() {
	d.swept.Store(time.Now().Unix())
	dir, err := d.root.Open(tempDir)
	if err != nil {
		return
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(1000)
		for _, name := range names {
			_ = d.tidyOne(path.Join(tempDir, name))
		}
		if err != nil || len(names) == 0 {
			return
		}
	}
}

func (d *Dir) tidyOne(name string) error {
	file, err := d.root.OpenFile(name, os.O_RDWR|nonblock, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !locksWork && time.Since(info.ModTime()) < abandoned {
		return fmt.Errorf("%s: may be in use", name)
	}
	if err := tryLock(file); err != nil {
		return err // somebody writes it
	}
	return d.root.Remove(name)
}
