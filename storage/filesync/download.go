package filesync

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// An object is a range of a bucket's object that a pull needs.
type object struct {
	key      string
	from, to int64 // the needed range
	files    int   // number of files that still need it
	order    int

	ready chan struct{} // closed when the fields below are set; nil before the download is requested
	spool *spool
	sum   SHA256 // of the needed bytes
	err   error
}

// addDownload counts a file that the pull writes, and requests its object.
func (p *pull) addDownload(f *File) {
	p.done.TotalFiles++
	if !f.isRegular() {
		return
	}
	p.done.TotalBytes += f.Size
	p.needObject(f)
}

// needObject adds the object of a file to the downloads.
func (p *pull) needObject(f *File) {
	if !f.isRegular() || f.Size == 0 {
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

// maxDownloads is the number of objects downloaded at once, ahead of their use.
// maxAhead bounds the bytes that are downloaded and not used yet, as far as the order
// of use permits.
const (
	maxDownloads = 8
	maxAhead     = 256 << 20
)

// A loader downloads objects in the order of their use.
type loader struct {
	p      *pull
	ctx    context.Context
	cancel context.CancelFunc
	order  []*object
	next   int   // index of the next object to request
	held   int64 // bytes requested and not released
	slots  chan struct{}
}

func (p *pull) newLoader(ctx context.Context) *loader {
	l := &loader{p: p, order: make([]*object, len(p.objects)), slots: make(chan struct{}, maxDownloads)}
	l.ctx, l.cancel = context.WithCancel(ctx)
	for _, o := range p.objects {
		l.order[o.order] = o
	}
	return l
}

// startDownloads starts the downloads of all objects up to upTo, and of some ahead.
func (l *loader) startDownloads(upTo *object) {
	for l.next < len(l.order) && (l.next <= upTo.order || l.held < maxAhead && l.next <= upTo.order+2*maxDownloads) {
		o := l.order[l.next]
		l.next++
		l.held += o.to - o.from
		o.ready = make(chan struct{})
		go func() {
			defer close(o.ready)
			select {
			case l.slots <- struct{}{}:
				defer func() { <-l.slots }()
				o.err = l.downloadObject(o)
			case <-l.ctx.Done():
				o.err = l.ctx.Err()
			}
		}()
	}
}

func (l *loader) downloadObject(o *object) error {
	body, err := l.p.r.openObject(l.ctx, o.key, o.from, o.to-o.from)
	if err != nil {
		return err
	}
	defer body.Close()
	s, err := l.p.r.newSpool()
	if err != nil {
		return err
	}
	hash := sha256.New() // hash now, in parallel with other downloads
	if err := copyBytes(io.MultiWriter(s, hash), body); err != nil {
		s.Close()
		return err
	}
	o.spool, o.sum = s, SHA256(hash.Sum(nil))
	return nil
}

// verifyFile returns an error unless the bytes match a file's entry.
func (o *object) verifyFile(f *File, bytes io.ReadSeeker) error {
	sum := o.sum
	if f.SHA256 == (SHA256{}) || o.from != f.Offset || o.to != f.Offset+f.Size {
		d := newDigest()
		if err := copyBytes(d, bytes); err != nil {
			return err
		}
		is := *f
		if d.fillFile(&is); !is.sameBytes(f) {
			return &contentError{fmt.Sprintf("content in the bucket is damaged: %d bytes with MD5 %s", is.Size, is.Checksum)}
		}
		_, err := bytes.Seek(0, io.SeekStart)
		return err
	}
	if sum != f.SHA256 {
		return &contentError{fmt.Sprintf("content in the bucket is damaged: its SHA-256 is %s", sum)}
	}
	return nil
}

// A contentError tells why a file's content is unusable although the bucket answers.
type contentError struct{ text string }

func (b *contentError) Error() string { return b.text }

// openFile returns the bytes of a file after it has verified their checksum. They are
// available until done is called.
func (l *loader) openFile(f *File) (body io.Reader, done func(), err error) {
	if f.Size == 0 {
		return strings.NewReader(""), func() {}, nil
	}
	o := l.p.objects[l.p.r.keyOf(l.p.number, f)]
	l.startDownloads(o)
	<-o.ready
	if kind := atoll.KindOf(o.err); kind == atoll.ErrNotExist || kind == atoll.ErrInvalid {
		return nil, nil, &contentError{"content is missing in the bucket: " + o.err.Error()}
	}
	if o.err != nil {
		return nil, nil, o.err
	}
	done = func() { l.releaseObject(o) }
	bytes := io.NewSectionReader(o.spool, f.Offset-o.from, f.Size)
	if err := o.verifyFile(f, bytes); err != nil {
		done()
		return nil, nil, err
	}
	return bytes, done, nil
}

// releaseObject drops an object after the last file that needs it has been written.
func (l *loader) releaseObject(o *object) {
	if o.files--; o.files > 0 {
		return
	}
	l.held -= o.to - o.from
	o.spool.Close()
	o.spool = nil
}

// closeDownloads cancels all downloads and removes their files.
func (l *loader) closeDownloads() {
	l.cancel()
	for _, o := range l.order[:l.next] {
		<-o.ready
		if o.spool != nil {
			o.spool.Close()
		}
	}
}
