package filesync

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"io"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

const (
	// maxPackedSize is the size, in bytes, up to which files share objects.
	maxPackedSize = 256 << 10
	// packSize is the minimum size in bytes of a shared object before another is begun.
	packSize = 8 << 20
	// maxPackUploads is the number of shared objects uploaded at once.
	maxPackUploads = 4
)

// loadFile reads a file, and uploads it if the bucket lacks its content.
func (p *push) loadFile(ctx context.Context, s *pendingEntry) error {
	f := &s.file
	if s.copy {
		return p.handleReadError(ctx, s, p.copyBefore(ctx, s))
	}
	body, fi, err := p.fs.Read(ctx, f.Path, 0)
	if err == nil {
		if f.Size != fi.Size || f.Modified != fi.Modified.Unix() || f.Nanos != int64(fi.Modified.Nanosecond()) {
			f.setTimes(&fi) // it has changed since the scan
		}
		if fi.Size <= maxPackedSize && f.Size <= maxPackedSize {
			err = p.loadSmall(ctx, s, body)
		} else {
			err = p.loadLarge(ctx, s, body)
		}
		body.Close()
	}
	if err == nil {
		if p.resolveMark(s); s.own != nil && !s.gone && p.needsCopy(&s.file) {
			err = p.copyBefore(ctx, s)
		}
	}
	return p.handleReadError(ctx, s, err)
}

// A bucketError is an error of the bucket or of a temporary file, not of the pushed
// file.
type bucketError struct{ error }

// handleReadError decides about a file that could not be read: usually the push goes on
// with the others.
func (p *push) handleReadError(ctx context.Context, s *pendingEntry, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := err.(bucketError); ok {
		return e.error
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	switch atoll.KindOf(err) {
	case atoll.ErrNotExist, atoll.ErrInvalid: // removed, or not a file any more
		s.gone = true
		return nil
	case atoll.ErrStopped, atoll.ErrNotFound, atoll.ErrUnavailable, atoll.ErrTimeout, atoll.ErrUnsupported:
		return err
	}
	p.addError(s.file.Path, err)
	if s.before == nil {
		s.gone = true
		return nil
	}
	s.file = *s.before
	if p.needsCopy(&s.file) {
		return unwrapBucket(p.copyBefore(ctx, s))
	}
	return nil
}

// unwrapBucket returns the error in a bucketError.
func unwrapBucket(err error) error {
	if e, ok := err.(bucketError); ok {
		return e.error
	}
	return err
}

// A digest hashes the bytes written to it.
type digest struct {
	n   int64
	md5 interface {
		io.Writer
		Sum([]byte) []byte
	}
	sha interface {
		io.Writer
		Sum([]byte) []byte
	}
}

// buffers holds buffers for copying.
var buffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// copyBytes is io.Copy with a pooled buffer.
func copyBytes(w io.Writer, r io.Reader) error {
	buffer := buffers.Get().(*[64 << 10]byte)
	defer buffers.Put(buffer)
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, buffer[:])
	return err
}

func newDigest() *digest { return &digest{md5: md5.New(), sha: sha256.New()} }

func (d *digest) Write(p []byte) (int, error) {
	d.n += int64(len(p))
	d.md5.Write(p)
	d.sha.Write(p)
	return len(p), nil
}

// fillFile sets the size and checksums of f.
func (d *digest) fillFile(f *File) {
	f.Size, f.Checksum, f.SHA256 = d.n, MD5(d.md5.Sum(nil)), SHA256(d.sha.Sum(nil))
}

// hasContent reports whether the bytes need no upload, and refers s to those of the
// latest version.
func (p *push) hasContent(s *pendingEntry) bool {
	if _, plain := p.plainKey(s.file.Path); s.isBase() || plain || s.file.Size == 0 {
		return s.isBase() || !plain
	}
	if b := s.before; b != nil && b.isRegular() && b.SHA256 == s.file.SHA256 && b.sameBytes(&s.file) && b.Object != "" {
		s.file.copyContent(b)
		return true
	}
	if at, ok := p.large[s.file.SHA256]; ok {
		s.file.Object, s.file.Offset = at.object, at.offset
		return true
	}
	return false
}

func (p *push) loadSmall(ctx context.Context, s *pendingEntry, body io.Reader) error {
	b, err := io.ReadAll(io.LimitReader(body, maxPackedSize+1))
	if err != nil {
		return err
	}
	if len(b) > maxPackedSize { // it has grown
		return p.loadLarge(ctx, s, io.MultiReader(bytes.NewReader(b), body))
	}
	d := newDigest()
	d.Write(b)
	d.fillFile(&s.file)
	if p.hasContent(s) {
		return nil
	}
	return p.storeContent(ctx, s, bytes.NewReader(b))
}

func (p *push) loadLarge(ctx context.Context, s *pendingEntry, body io.Reader) error {
	file, err := p.r.newSpool()
	if err != nil {
		return bucketError{err}
	}
	defer file.Close()
	d := newDigest()
	if _, err := io.Copy(io.MultiWriter(&spoolWriter{w: file}, d), &boundedReader{body, p.r.opts.MaxBytes}); err != nil {
		return err
	}
	d.fillFile(&s.file)
	if p.hasContent(s) {
		return nil
	}
	return p.storeContent(ctx, s, file)
}

// uploadObject writes an object from the start of the file.
func (p *push) uploadObject(ctx context.Context, name string, file io.ReadSeeker, size int64) error {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err := p.r.bucket.Put(ctx, p.r.objectKey(name), file, size, objectstore.Condition{})
	p.r.opts.step("object")
	return err
}

// spoolWriter marks errors of a temporary file.
type spoolWriter struct{ w io.Writer }

func (o *spoolWriter) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if err != nil {
		err = bucketError{err}
	}
	return n, err
}

// boundedReader fails when a file grows beyond the bound of a version.
type boundedReader struct {
	r    io.Reader
	left int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return n, atoll.Errorf("push", "", atoll.ErrExhausted, "file is larger than the limit of a version")
	}
	return n, err
}

// A packer packs small files into objects.
type packer struct {
	p     *push
	ctx   context.Context // ends with the first upload that fails
	loads *errgroup.Group // uploads
	n     atomic.Int64    // number of names given

	mu   sync.Mutex
	file *spool   // the current object; nil before its first file
	at   location // location of the next file
}

func newPacker(ctx context.Context, p *push) *packer {
	k := &packer{p: p}
	k.loads, k.ctx = errgroup.WithContext(ctx)
	k.loads.SetLimit(maxPackUploads)
	return k
}

// nextName returns the name of the next object.
func (k *packer) nextName() string { return k.p.id + "/" + strconv.FormatInt(k.n.Add(1)-1, 10) }

// countUpload counts an uploaded file.
func (p *push) countUpload(bytes int64) {
	p.updateStats(func(st *Stats) { st.FilesUploaded++; st.BytesTransferred += bytes })
}

// addFile packs a file and returns its location.
func (k *packer) addFile(b []byte) (location, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.file == nil {
		file, err := k.p.r.newSpool()
		if err != nil {
			return location{}, err
		}
		k.file, k.at = file, location{k.nextName(), 0}
	}
	at := k.at
	if _, err := k.file.Write(b); err != nil {
		return at, err
	}
	k.at.offset += int64(len(b))
	k.p.countUpload(int64(len(b)))
	if k.at.offset >= packSize {
		k.startUpload()
	}
	return at, nil
}

// flushObject uploads the last, partly filled object.
func (k *packer) flushObject() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.file != nil {
		k.startUpload()
	}
}

// startUpload uploads the current object in the background; it blocks while
// maxPackUploads are running.
func (k *packer) startUpload() {
	file, at := k.file, k.at
	k.file = nil
	k.loads.Go(func() error {
		defer file.Close()
		return k.p.uploadObject(k.ctx, at.object, file, at.offset)
	})
}

// discardObject removes an object that was not uploaded.
func (k *packer) discardObject() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.file != nil {
		k.file.Close()
		k.file = nil
	}
}
