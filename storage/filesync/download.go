package filesync

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// An object is one that a pull needs, or part of it.
type object struct {
	key      string
	from, to int64 // the bytes that are needed
	files    int   // that need it, and have not had it
	order    int

	ready chan struct{} // closed when the following is there; nil before anybody asked for it
	spool *spool
	sum   SHA256 // of the bytes that are needed
	err   error
}

// need notes what a file needs.
func (p *pull) need(f *File) {
	p.done.TotalFiles++
	if !f.regular() {
		return
	}
	p.done.TotalBytes += f.Size
	p.fetched(f)
}

// fetched has the object of a file downloaded.
func (p *pull) fetched(f *File) {
	if !f.regular() || f.Size == 0 {
		return
	}
	key := p.r.keyOf(p.number, f)
	o := p.objects[key]
	if o == nil {
		o = &object{key: key, from: f.Offset, to: f.Offset + f.Size, order: len(p.objects)}
		p.objects[key] = o
	}
	o.from, o.to, o.files = min(o.from, f.Offset), max(o.to, f.Offset+f.Size), o.files+1
}

// loaders is how many objects are downloaded at once, ahead of their use; ahead is how
// many bytes may lie here that have not been used, when there is a choice.
const (
	loaders = 8
	ahead   = 256 << 20
)

// A loader downloads the objects in the order in which they are needed.
type loader struct {
	p      *pull
	ctx    context.Context
	cancel context.CancelFunc
	order  []*object
	next   int   // to be asked for
	held   int64 // bytes asked for and not done with
	slots  chan struct{}
}

func (p *pull) loader(ctx context.Context) *loader {
	l := &loader{p: p, order: make([]*object, len(p.objects)), slots: make(chan struct{}, loaders)}
	l.ctx, l.cancel = context.WithCancel(ctx)
	for _, o := range p.objects {
		l.order[o.order] = o
	}
	return l
}

// fetch asks for objects ahead, and for all up to one.
func (l *loader) fetch(upTo *object) {
	for l.next < len(l.order) && (l.next <= upTo.order || l.held < ahead && l.next <= upTo.order+2*loaders) {
		o := l.order[l.next]
		l.next++
		l.held += o.to - o.from
		o.ready = make(chan struct{})
		go func() {
			defer close(o.ready)
			select {
			case l.slots <- struct{}{}:
				defer func() { <-l.slots }()
				o.err = l.load(o)
			case <-l.ctx.Done():
				o.err = l.ctx.Err()
			}
		}()
	}
}

func (l *loader) load(o *object) error {
	body, _, err := l.p.r.bucket.Get(l.ctx, o.key, o.from, o.to-o.from)
	if err != nil {
		return err
	}
	defer body.Close()
	s, err := l.p.r.spool()
	if err != nil {
		return err
	}
	hash := sha256.New() // here, where many come at once
	if err := transfer(io.MultiWriter(s, hash), body); err != nil {
		s.Close()
		return err
	}
	o.spool, o.sum = s, SHA256(hash.Sum(nil))
	return nil
}

// holds checks that bytes are those of a file.
func (o *object) holds(f *File, bytes io.ReadSeeker) error {
	sum := o.sum
	if f.SHA256 == (SHA256{}) || o.from != f.Offset || o.to != f.Offset+f.Size {
		d := newDigest()
		if err := transfer(d, bytes); err != nil {
			return err
		}
		is := *f
		if d.into(&is); !is.sameBytes(f) {
			return &badBytes{fmt.Sprintf("its bytes in the bucket are not its own: %d of them with the MD5 %s", is.Size, is.Checksum)}
		}
		_, err := bytes.Seek(0, io.SeekStart)
		return err
	}
	if sum != f.SHA256 {
		return &badBytes{fmt.Sprintf("its bytes in the bucket are not its own: they have the SHA-256 %s", sum)}
	}
	return nil
}

// badBytes is why a file cannot be had although the bucket answers.
type badBytes struct{ text string }

func (b *badBytes) Error() string { return b.text }

// open returns the bytes of a file, which are its: their checksum was looked at. They
// are there until done.
func (l *loader) open(f *File) (body io.Reader, done func(), err error) {
	if f.Size == 0 {
		return strings.NewReader(""), func() {}, nil
	}
	o := l.p.objects[l.p.r.keyOf(l.p.number, f)]
	l.fetch(o)
	<-o.ready
	if kind := atoll.KindOf(o.err); kind == atoll.ErrNotExist || kind == atoll.ErrInvalid {
		return nil, nil, &badBytes{"its bytes are not in the bucket: " + o.err.Error()}
	}
	if o.err != nil {
		return nil, nil, o.err
	}
	done = func() { l.used(o) }
	bytes := io.NewSectionReader(o.spool, f.Offset-o.from, f.Size)
	if err := o.holds(f, bytes); err != nil {
		done()
		return nil, nil, err
	}
	return bytes, done, nil
}

// used notes that a file has had its bytes of an object, which goes with the last.
func (l *loader) used(o *object) {
	if o.files--; o.files > 0 {
		return
	}
	l.held -= o.to - o.from
	o.spool.Close()
	o.spool = nil
}

// close ends all downloads, and drops what came.
func (l *loader) close() {
	l.cancel()
	for _, o := range l.order[:l.next] {
		<-o.ready
		if o.spool != nil {
			o.spool.Close()
		}
	}
}
