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
	// packed is the size, in bytes, up to which files share objects.
	packed = 256 << 10
	// packSize is how many bytes an object of many files has, at least, before another is begun.
	packSize = 8 << 20
	// packers is how many such objects are uploaded at once.
	packers = 4
)

// load finds out what is in a file, and uploads it if the bucket does not have it.
func (p *push) load(ctx context.Context, s *slot) error {
	f := &s.file
	body, fi, err := p.fs.Read(ctx, f.Path, 0)
	if err == nil {
		f.Modified, f.Nanos = fi.Modified.Unix(), int64(fi.Modified.Nanosecond())
		if fi.Size <= packed && f.Size <= packed {
			err = p.loadSmall(ctx, s, body)
		} else {
			err = p.loadLarge(ctx, s, body)
		}
		body.Close()
	}
	return p.unread(ctx, s, err)
}

// A bucketError is one of the bucket's, or of ours: not the file's.
type bucketError struct{ error }

// unread decides what an error of a file means: all others can be pushed.
func (p *push) unread(ctx context.Context, s *slot, err error) error {
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
	case atoll.ErrNotExist, atoll.ErrInvalid: // gone, or no file any more
		s.gone = true
		return nil
	case atoll.ErrStopped, atoll.ErrNotFound, atoll.ErrUnavailable, atoll.ErrTimeout, atoll.ErrUnsupported:
		return err
	}
	p.problem(s.file.Path, err)
	if s.before == nil {
		s.gone = true
		return nil
	}
	s.file = *s.before
	return nil
}

// digest hashes what is written.
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

// buffers are those that bytes are copied through.
var buffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// transfer is io.Copy with one of them.
func transfer(w io.Writer, r io.Reader) error {
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

// into puts down what it has seen.
func (d *digest) into(f *File) {
	f.Size, f.Checksum, f.SHA256 = d.n, MD5(d.md5.Sum(nil)), SHA256(d.sha.Sum(nil))
}

// has reports whether the version before has these bytes, and takes them from there.
func (p *push) has(s *slot) bool {
	if s.file.Size == 0 {
		return true
	}
	if b := s.before; b != nil && b.regular() && b.SHA256 == s.file.SHA256 && b.sameBytes(&s.file) && b.Object != "" {
		s.file.take(b)
		return true
	}
	if at, ok := p.large[s.file.SHA256]; ok {
		s.file.Object, s.file.Offset = at.object, at.offset
		return true
	}
	return false
}

func (p *push) loadSmall(ctx context.Context, s *slot, body io.Reader) error {
	b, err := io.ReadAll(io.LimitReader(body, packed+1))
	if err != nil {
		return err
	}
	if len(b) > packed { // it has grown
		return p.loadLarge(ctx, s, io.MultiReader(bytes.NewReader(b), body))
	}
	d := newDigest()
	d.Write(b)
	d.into(&s.file)
	if p.has(s) {
		return nil
	}
	at, err := p.packer.add(b)
	if err != nil {
		return bucketError{err}
	}
	s.file.Object, s.file.Offset = at.object, at.offset
	return nil
}

func (p *push) loadLarge(ctx context.Context, s *slot, body io.Reader) error {
	file, err := p.r.spool()
	if err != nil {
		return bucketError{err}
	}
	defer file.Close()
	d := newDigest()
	if _, err := io.Copy(io.MultiWriter(&ours{w: file}, d), &limited{body, p.r.opts.MaxBytes}); err != nil {
		return err
	}
	d.into(&s.file)
	if p.has(s) {
		return nil
	}
	name := p.packer.name()
	if err := p.upload(ctx, name, file, d.n); err != nil {
		return bucketError{err}
	}
	s.file.Object, s.file.Offset = name, 0
	p.sent(d.n)
	return nil
}

// upload writes an object, from its beginning.
func (p *push) upload(ctx context.Context, name string, file *spool, size int64) error {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err := p.r.bucket.Put(ctx, p.r.objectKey(name), file, size, objectstore.Condition{})
	p.r.opts.step("object")
	return err
}

// ours marks errors of a file of ours.
type ours struct{ w io.Writer }

func (o *ours) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if err != nil {
		err = bucketError{err}
	}
	return n, err
}

// limited fails when a file grows for ever.
type limited struct {
	r    io.Reader
	left int64
}

func (b *limited) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return n, atoll.Errorf("push", "", atoll.ErrExhausted, "it has more bytes than a version may have")
	}
	return n, err
}

// A packer puts small files into objects.
type packer struct {
	p     *push
	ctx   context.Context // ends with the first upload that fails
	loads *errgroup.Group // uploads
	n     atomic.Int64    // objects that have names

	mu   sync.Mutex
	file *spool // the object that is filled; nil before its first file
	at   place  // where the next file comes
}

func newPacker(ctx context.Context, p *push) *packer {
	k := &packer{p: p}
	k.loads, k.ctx = errgroup.WithContext(ctx)
	k.loads.SetLimit(packers)
	return k
}

// name draws the name of the next object.
func (k *packer) name() string { return k.p.id + "/" + strconv.FormatInt(k.n.Add(1)-1, 10) }

// sent counts a file that travels.
func (p *push) sent(bytes int64) {
	p.count(func(st *Stats) { st.FilesUploaded++; st.BytesTransferred += bytes })
}

// add puts a file into an object, and returns where.
func (k *packer) add(b []byte) (place, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.file == nil {
		file, err := k.p.r.spool()
		if err != nil {
			return place{}, err
		}
		k.file, k.at = file, place{k.name(), 0}
	}
	at := k.at
	if _, err := k.file.Write(b); err != nil {
		return at, err
	}
	k.at.offset += int64(len(b))
	k.p.sent(int64(len(b)))
	if k.at.offset >= packSize {
		k.upload()
	}
	return at, nil
}

// flush uploads what is left.
func (k *packer) flush() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.file != nil {
		k.upload()
	}
}

// upload hands the object over; it waits while as many as may are on their way.
func (k *packer) upload() {
	file, at := k.file, k.at
	k.file = nil
	k.loads.Go(func() error {
		defer file.Close()
		return k.p.upload(k.ctx, at.object, file, at.offset)
	})
}

// close drops what was not uploaded.
func (k *packer) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.file != nil {
		k.file.Close()
		k.file = nil
	}
}
