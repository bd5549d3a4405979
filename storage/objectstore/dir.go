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

// lockCount is the number of locks of a Dir; each guards a share of the keys.
const lockCount = 64

// A Dir is a bucket in a directory of this machine, for its owner only. An object is a
// file that holds its bytes and then its tag. On systems with flock(2) many programs
// may have one open at once; on others only one program, once. Links in the directory
// cannot lead out of it.
type Dir struct {
	root  *os.Root
	url   string
	swept atomic.Int64 // when tidy last removed leftovers, in Unix seconds
	local [lockCount]chan struct{}
}

// OpenDir opens the directory. It creates the directory itself, but not its parent: the
// mount point of a missing disk must not look like an empty bucket. The caller closes
// it.
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
		return nil, atoll.Errorf("open bucket", where, atoll.ErrInvalid, "not a directory")
	}
	if err != nil {
		return nil, atoll.E("open bucket", where, kindOf(err), err)
	}
	d := &Dir{root: root, url: where}
	for i := range d.local {
		d.local[i] = make(chan struct{}, 1)
	}
	d.removeLeftovers()
	return d, nil
}

// String returns the directory's URL.
func (d *Dir) String() string { return d.url }

// Put writes a temporary file, waits until it is on disk, and moves it to the object's
// path.
func (d *Dir) Put(ctx context.Context, key string, r io.ReadSeeker, size int64, when Condition) (Object, error) {
	if err := CheckPut(key, size, when); err != nil {
		return Object{}, d.wrapError("put", key, atoll.ErrInvalid, err)
	}
	temp, err := d.newTempFile()
	if err != nil {
		return Object{}, d.wrapError("put", key, kindOf(err), err)
	}
	defer temp.discardFile()
	o := Object{Key: key, Size: size, Tag: newTag()}
	if err := temp.writeObject(ctx, r, o); err != nil {
		return Object{}, d.wrapError("put", key, kindOf(err), err)
	}
	info, err := temp.file.Stat()
	if err == nil {
		o.Modified = info.ModTime()
		err = d.commitObject(ctx, temp, key, when)
	}
	if err != nil {
		return Object{}, d.wrapError("put", key, kindOf(err), err)
	}
	if time.Since(time.Unix(d.swept.Load(), 0)) > time.Hour {
		d.removeLeftovers()
	}
	return o, nil
}

// commitObject moves a temporary file to the path of key, if the condition holds.
func (d *Dir) commitObject(ctx context.Context, temp *tempFile, key string, when Condition) error {
	unlock, err := d.lockKey(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	if when != (Condition{}) {
		if err := d.checkCondition(key, when); err != nil {
			return err
		}
	}
	place := objectPath(key)
	for range 1000 { // a concurrent Delete removes empty directories
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
	temp.name = "" // the file is the object now
	unlock()
	return d.syncPath(path.Dir(place))
}

// checkCondition returns ErrConflict if the condition doesn't hold. The caller holds
// the lock of key.
func (d *Dir) checkCondition(key string, when Condition) error {
	file, o, err := d.openKey(key)
	switch {
	case errors.Is(err, fs.ErrNotExist) && when.Absent:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return atoll.Errorf("", "", atoll.ErrConflict, "the object no longer exists")
	case err != nil:
		return err
	}
	file.Close()
	switch {
	case when.Absent:
		return atoll.Errorf("", "", atoll.ErrConflict, "an object with this key exists")
	case when.Tag != o.Tag:
		return atoll.Errorf("", "", atoll.ErrConflict, "the object has changed since it was read")
	}
	return nil
}

// Get reads the file that exists at the time of the call; a later Put makes another
// file.
func (d *Dir) Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, Object, error) {
	if err := CheckKey(key); err != nil {
		return nil, Object{}, d.wrapError("get", key, atoll.ErrInvalid, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, Object{}, d.wrapError("get", key, kindOf(err), err)
	}
	file, o, err := d.openKey(key)
	if err != nil {
		return nil, Object{}, d.wrapError("get", key, kindOf(err), err)
	}
	if offset < 0 || offset > o.Size {
		file.Close()
		return nil, Object{}, d.wrapError("get", key, atoll.ErrInvalid, fmt.Errorf("offset %d beyond the end of the object (%d bytes)", offset, o.Size))
	}
	left := o.Size - offset
	if length >= 0 {
		left = min(left, length)
	}
	return &dirReader{ctx, d, key, file, offset, left}, o, nil
}

// A dirReader reads a range of an object.
type dirReader struct {
	ctx          context.Context
	dir          *Dir
	key          string
	file         *os.File
	offset, left int64
}

func (r *dirReader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, r.dir.wrapError("get", r.key, kindOf(err), err)
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
	return n, r.dir.wrapError("get", r.key, kindOf(err), err)
}

func (r *dirReader) Close() error { return r.file.Close() }

// Stat reads the tag from the end of the file.
func (d *Dir) Stat(ctx context.Context, key string) (Object, error) {
	if err := CheckKey(key); err != nil {
		return Object{}, d.wrapError("stat", key, atoll.ErrInvalid, err)
	}
	err := ctx.Err()
	if err == nil {
		var file *os.File
		var o Object
		if file, o, err = d.openKey(key); err == nil {
			file.Close()
			return o, nil
		}
	}
	return Object{}, d.wrapError("stat", key, kindOf(err), err)
}

// openKey opens the file of the object with this key.
func (d *Dir) openKey(key string) (*os.File, Object, error) {
	return openObject(d.root, objectPath(key), key)
}

// Delete removes the files, and the directories that become empty.
func (d *Dir) Delete(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		if err := CheckKey(key); err != nil {
			return d.wrapError("delete", key, atoll.ErrInvalid, err)
		}
	}
	changed := map[string]bool{}
	for _, key := range keys {
		dir, err := d.removeKey(ctx, key)
		if err != nil {
			return d.wrapError("delete", key, kindOf(err), err)
		}
		if dir != "" {
			changed[dir] = true
		}
	}
	for dir := range changed {
		if err := d.syncDirectory(dir); err != nil {
			return d.wrapError("delete", "", kindOf(err), err)
		}
	}
	return nil
}

// removeKey removes the file of key and returns the directory that has changed, "" if
// there was no file.
func (d *Dir) removeKey(ctx context.Context, key string) (string, error) {
	place := objectPath(key)
	if _, err := d.root.Lstat(place); errors.Is(err, fs.ErrNotExist) {
		return "", ctx.Err()
	}
	unlock, err := d.lockKey(ctx, key)
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := d.root.Remove(place); err != nil {
		return "", ignoreNotExist(err)
	}
	dir := path.Dir(place)
	for dir != "." && d.root.Remove(dir) == nil {
		dir = path.Dir(dir)
	}
	return dir, nil
}

// Close closes the directory.
func (d *Dir) Close() error { return d.root.Close() }

// lockKey takes the lock that key shares with others. The returned function may be
// called twice.
func (d *Dir) lockKey(ctx context.Context, key string) (unlock func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h := fnv.New32a()
	h.Write([]byte(key))
	n := h.Sum32() % lockCount
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

// lockFile waits for a lock that other programs may hold. It polls, since flock(2)
// doesn't end with a context.
func (d *Dir) lockFile(ctx context.Context, name string) (*os.File, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		file, err := d.createFile(name, 0)
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

// createFile opens or creates a file in lockDir or tempDir, and creates that directory
// if needed.
func (d *Dir) createFile(name string, flags int) (*os.File, error) {
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

// syncPath waits until dir and the directories above it are on disk, since any of them
// may be new.
func (d *Dir) syncPath(dir string) error {
	for ; ; dir = path.Dir(dir) {
		if err := d.syncDirectory(dir); err != nil || dir == "." {
			return err
		}
	}
}

func (d *Dir) syncDirectory(dir string) error {
	f, err := d.root.Open(dir)
	if err != nil {
		return ignoreNotExist(err) // a Delete removed it
	}
	return cmp.Or(syncDir(f), f.Close())
}

// wrapError returns the error of a method, with the URL of the object.
func (d *Dir) wrapError(op, key string, kind atoll.Kind, err error) error {
	if key == "" {
		return atoll.E(op, d.url, kind, err)
	}
	return atoll.E(op, d.url+"/"+key, kind, err)
}

// kindOf returns the kind of an error of the file system.
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

func ignoreNotExist(err error) error {
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
