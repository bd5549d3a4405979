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

// The foot of an object's file, behind the object's bytes, is magic and the tag. A file
// without it is damaged, incomplete or not an object.
const (
	magic     = "\natoll-object-1 "
	tagSize   = 32
	footSize  = len(magic) + tagSize
	abandoned = 24 * time.Hour // age of a temporary file that counts as left behind, where locks don't work
)

// openObject opens the file name in dir, which holds the object with this key.
func openObject(dir *os.Root, name, key string) (_ *os.File, o Object, err error) {
	file, err := dir.OpenFile(name, os.O_RDONLY|nonblock, 0) // opening a pipe must not block
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
			"file %s is damaged or no object; remove it", file.Name())
	}
	return file, Object{Key: key, Size: size, Tag: text, Modified: info.ModTime()}, nil
}

// A tempFile is a file that becomes an object. Its writer holds a lock on it: an
// unlocked file was left by a writer that was killed.
type tempFile struct {
	dir  *Dir
	name string // "" after the file has become an object
	file *os.File
}

func (d *Dir) newTempFile() (*tempFile, error) {
	for {
		name := path.Join(tempDir, atoll.NewID())
		file, err := d.createFile(name, os.O_EXCL)
		if err != nil {
			return nil, err
		}
		if err = tryLock(file); err == nil {
			return &tempFile{d, name, file}, nil
		}
		file.Close()
		if !errors.Is(err, fsutil.ErrLocked) && !errors.Is(err, fs.ErrNotExist) { // tidy took it for a leftover
			return nil, errors.Join(err, d.root.Remove(name))
		}
	}
}

// writeObject writes o.Size bytes of r, which must not have more, and the foot.
func (t *tempFile) writeObject(ctx context.Context, r io.Reader, o Object) error {
	if err := t.writeBytes(ctx, r, o.Size); err != nil {
		return err
	}
	if _, err := io.WriteString(t.file, magic+o.Tag); err != nil {
		return err
	}
	return t.file.Sync()
}

// writeBytes writes that many bytes of r, which must not have more.
func (t *tempFile) writeBytes(ctx context.Context, r io.Reader, size int64) error {
	in := &ctxReader{ctx: ctx, r: r}
	n, err := io.Copy(t.file, io.LimitReader(in, size))
	if err != nil {
		return err
	}
	if n == size {
		var more [1]byte
		extra, err := io.ReadFull(in, more[:])
		if err != nil && err != io.EOF {
			return err
		}
		n += int64(extra)
	}
	if n != size {
		return ErrSize(n, size)
	}
	return nil
}

// ErrSize is the error of a Put whose reader doesn't have the declared size: it has
// fewer bytes, or at least one more.
func ErrSize(has, said int64) error {
	if has > said {
		return atoll.Errorf("", "", atoll.ErrInvalid, "the reader has more than the declared %d bytes", said)
	}
	return atoll.Errorf("", "", atoll.ErrInvalid, "the reader has %d bytes instead of the declared %d", has, said)
}

// discardFile closes the file and removes it, unless it has become an object.
func (t *tempFile) discardFile() {
	if t.name != "" {
		_ = t.dir.root.Remove(t.name) // if this fails, tidy removes it
	}
	_ = t.file.Close()
}

// A ctxReader fails once its context has ended.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (b *ctxReader) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	return b.r.Read(p)
}

// removeLeftovers removes the files of writers that were killed. It ignores errors; the
// next call tries again.
func (d *Dir) removeLeftovers() {
	d.swept.Store(time.Now().Unix())
	dir, err := d.root.Open(tempDir)
	if err != nil {
		return
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(1000)
		for _, name := range names {
			_ = d.removeLeftover(path.Join(tempDir, name))
		}
		if err != nil || len(names) == 0 {
			return
		}
	}
}

func (d *Dir) removeLeftover(name string) error {
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
		return fmt.Errorf("%s may be in use", name)
	}
	if err := tryLock(file); err != nil {
		return err // its writer is alive
	}
	return d.root.Remove(name)
}
