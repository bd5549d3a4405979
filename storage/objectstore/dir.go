package objectstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// stripes is how many locks a Dir has: each is that of some of the keys.
const stripes = 64

// A Dir is a bucket that is a directory of this machine, for its owner only. An
// object is a file that has its bytes and, behind them, its tag. Many programs may
// have one open at once, on a system that has flock(2); on others, one program, once.
// No link in it leads out of it.
type Dir struct {
	root  *os.Root
	url   string
	swept atomic.Int64 // when leftovers were last looked for, in seconds
	local [stripes]chan struct{}
}

// OpenDir opens the directory, which is made if only it is missing, and not what it
// is in: a disk that is not mounted is no empty bucket. Close it.
func OpenDir(name string) (*Dir, error) {
	name, err := filepath.Abs(name)
	if err != nil {
		return nil, atoll.E("open bucket", name, atoll.ErrInvalid, err)
	}
	where := (&url.URL{Scheme: "file", Path: path.Join("/", filepath.ToSlash(name))}).String()
	if err := os.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, atoll.E("open bucket", where, kindOf(err), err)
	}
	root, err := os.OpenRoot(name)
	if info, statErr := os.Stat(name); statErr == nil && !info.IsDir() {
		return nil, atoll.Errorf("open bucket", where, atoll.ErrInvalid, "it is no directory")
	}
	if err != nil {
		return nil, atoll.E("open bucket", where, kindOf(err), err)
	}
	d := &Dir{root: root, url: where}
	for i := range d.local {
		d.local[i] = make(chan struct{}, 1)
	}
	d.tidy()
	return d, nil
}

// String is the directory's URL.
func (d *Dir) String() string { return d.url }

// Put writes the object beside its place, waits until it is on the disk, and moves it
// there.
func (d *Dir) Put(ctx context.Context, key string, r io.ReadSeeker, size int64, when Condition) (Object, error) {
	if err := CheckPut(key, size, when); err != nil {
		return Object{}, d.fail("put", key, atoll.ErrInvalid, err)
	}
	temp, err := d.temporary()
	if err != nil {
		return Object{}, d.fail("put", key, kindOf(err), err)
	}
	defer temp.discard()
	o := Object{Key: key, Size: size, Tag: newTag()}
	if err := temp.write(ctx, r, o); err != nil {
		return Object{}, d.fail("put", key, kindOf(err), err)
	}
	info, err := temp.file.Stat()
	if err == nil {
		o.Modified = info.ModTime()
		err = d.commit(ctx, temp, key, when)
	}
	if err != nil {
		return Object{}, d.fail("put", key, kindOf(err), err)
	}
	if time.Since(time.Unix(d.swept.Load(), 0)) > time.Hour {
		d.tidy()
	}
	return o, nil
}

// commit moves a file to the place of key, if the condition holds.
func (d *Dir) commit(ctx context.Context, temp *temporary, key string, when Condition) error {
	unlock, err := d.lock(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	if when != (Condition{}) {
		if err := d.check(key, when); err != nil {
			return err
		}
	}
	place := objectPath(key)
	for range 1000 { // a Delete elsewhere removes directories that are empty
		if err = d.root.MkdirAll(path.Dir(place), 0o700); err == nil || errors.Is(err, fs.ErrNotExist) {
			if err = d.root.Rename(temp.name, place); !errors.Is(err, fs.ErrNotExist) {
				break
			}
		}
		if _, gone := d.root.Lstat(temp.name); gone != nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return cmp.Or(ctx.Err(), err)
	}
	temp.name = "" // it is the object now
	unlock()
	return d.sync(path.Dir(place))
}

// check sees whether a condition holds. The caller has the lock of key.
func (d *Dir) check(key string, when Condition) error {
	file, o, err := d.open(key)
	switch {
	case errors.Is(err, fs.ErrNotExist) && when.Absent:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return atoll.Errorf("", "", atoll.ErrConflict, "there is no such object any more")
	case err != nil:
		return err
	}
	file.Close()
	switch {
	case when.Absent:
		return atoll.Errorf("", "", atoll.ErrConflict, "there is an object of that key")
	case when.Tag != o.Tag:
		return atoll.Errorf("", "", atoll.ErrConflict, "the object has been changed")
	}
	return nil
}

// Get reads the file as it is when it is called: writing the object anew makes
// another one.
func (d *Dir) Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, Object, error) {
	if err := CheckKey(key); err != nil {
		return nil, Object{}, d.fail("get", key, atoll.ErrInvalid, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, Object{}, d.fail("get", key, kindOf(err), err)
	}
	file, o, err := d.open(key)
	if err != nil {
		return nil, Object{}, d.fail("get", key, kindOf(err), err)
	}
	if offset < 0 || offset > o.Size {
		file.Close()
		return nil, Object{}, d.fail("get", key, atoll.ErrInvalid, fmt.Errorf("offset %d: the object has %d bytes", offset, o.Size))
	}
	left := o.Size - offset
	if length >= 0 {
		left = min(left, length)
	}
	return &dirReader{ctx, d, key, file, offset, left}, o, nil
}

// A dirReader reads some bytes of an object.
type dirReader struct {
	ctx          context.Context
	dir          *Dir
	key          string
	file         *os.File
	offset, left int64
}

func (r *dirReader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, r.dir.fail("get", r.key, kindOf(err), err)
	}
	if r.left == 0 {
		return 0, io.EOF
	}
	n, err := r.file.ReadAt(b[:min(int64(len(b)), r.left)], r.offset)
	r.offset += int64(n)
	r.left -= int64(n)
	switch {
	case err == nil || n > 0 && err == io.EOF:
		return n, nil
	case err == io.EOF:
		err = io.ErrUnexpectedEOF
	}
	return n, r.dir.fail("get", r.key, kindOf(err), err)
}

func (r *dirReader) Close() error { return r.file.Close() }

// Stat reads what is behind the bytes.
func (d *Dir) Stat(ctx context.Context, key string) (Object, error) {
	if err := CheckKey(key); err != nil {
		return Object{}, d.fail("stat", key, atoll.ErrInvalid, err)
	}
	err := ctx.Err()
	if err == nil {
		var file *os.File
		var o Object
		if file, o, err = d.open(key); err == nil {
			file.Close()
			return o, nil
		}
	}
	return Object{}, d.fail("stat", key, kindOf(err), err)
}

// open opens the file of an object.
func (d *Dir) open(key string) (*os.File, Object, error) {
	return openObject(d.root, objectPath(key), key)
}

// Delete removes the files, and directories that are empty then.
func (d *Dir) Delete(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		if err := CheckKey(key); err != nil {
			return d.fail("delete", key, atoll.ErrInvalid, err)
		}
	}
	changed := map[string]bool{}
	for _, key := range keys {
		dir, err := d.remove(ctx, key)
		if err != nil {
			return d.fail("delete", key, kindOf(err), err)
		}
		if dir != "" {
			changed[dir] = true
		}
	}
	for dir := range changed {
		if err := d.syncOne(dir); err != nil {
			return d.fail("delete", "", kindOf(err), err)
		}
	}
	return nil
}

// remove removes the file of key, and returns the directory that has changed.
func (d *Dir) remove(ctx context.Context, key string) (string, error) {
	place := objectPath(key)
	if _, err := d.root.Lstat(place); errors.Is(err, fs.ErrNotExist) {
		return "", ctx.Err()
	}
	unlock, err := d.lock(ctx, key)
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := d.root.Remove(place); err != nil {
		return "", unlessGone(err)
	}
	dir := path.Dir(place)
	for dir != "." && d.root.Remove(dir) == nil {
		dir = path.Dir(dir)
	}
	return dir, nil
}

// Close lets go of the directory.
func (d *Dir) Close() error { return d.root.Close() }

// lock takes the lock that key shares with others. The function that it returns may
// be called twice.
func (d *Dir) lock(ctx context.Context, key string) (unlock func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h := fnv.New32a()
	h.Write([]byte(key))
	n := h.Sum32() % stripes
	select {
	case d.local[n] <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	file, err := d.lockFile(ctx, fmt.Sprintf("%s/%02x", lockDir, n))
	if err != nil {
		<-d.local[n]
		return nil, err
	}
	held := true
	return func() {
		if held {
			held = false
			unlockFile(file)
			<-d.local[n]
		}
	}, nil
}

// lockFile waits for a lock that other programs may have. The kernel's own waiting
// knows no contexts.
func (d *Dir) lockFile(ctx context.Context, name string) (*os.File, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		file, err := d.create(name, 0)
		if err != nil {
			return nil, err
		}
		if err = tryLock(file); err == nil {
			return file, nil
		}
		file.Close()
		if !errors.Is(err, fsutil.ErrLocked) && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// create opens a file of ours, in a directory of ours, and makes both.
func (d *Dir) create(name string, flags int) (*os.File, error) {
	flags |= os.O_RDWR | os.O_CREATE | nonblock
	file, err := d.root.OpenFile(name, flags, 0o600)
	if !errors.Is(err, fs.ErrNotExist) {
		return file, err
	}
	if err := d.root.Mkdir(path.Dir(name), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return d.root.OpenFile(name, flags, 0o600)
}

// sync waits until what was moved into dir is on disk, and with it the directories
// above, of which any may be as new.
func (d *Dir) sync(dir string) error {
	for ; ; dir = path.Dir(dir) {
		if err := d.syncOne(dir); err != nil || dir == "." {
			return err
		}
	}
}

func (d *Dir) syncOne(dir string) error {
	f, err := d.root.Open(dir)
	if err != nil {
		return unlessGone(err) // by a Delete
	}
	return cmp.Or(syncDir(f), f.Close())
}

// fail is an error of a method.
func (d *Dir) fail(op, key string, kind atoll.Kind, err error) error {
	if key == "" {
		return atoll.E(op, d.url, kind, err)
	}
	return atoll.E(op, d.url+"/"+key, kind, err)
}

// kindOf is the kind of an error of the file system.
func kindOf(err error) atoll.Kind {
	switch {
	case fsutil.IsFull(err), errors.Is(err, syscall.EFBIG):
		return atoll.ErrExhausted
	case errors.Is(err, syscall.EROFS):
		return atoll.ErrDenied
	case errors.Is(err, syscall.ENOTDIR):
		return atoll.ErrInvalid
	case errors.Is(err, os.ErrClosed), errors.Is(err, syscall.EIO), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return atoll.ErrUnavailable
	}
	return atoll.KindOf(err)
}

func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func newTag() string {
	var b [tagSize / 2]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
