package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// markName is where an object says which write it is of, so that a writer who has not
// heard whether it was done finds out.
const markName = "atoll-write"

// restarts is how often an object is sent because others were writing it when its parts
// were put together, or when it was to be put to its place.
const restarts = 3

// Put sends small objects whole, others in parts.
func (b *Bucket) Put(ctx context.Context, key string, r io.ReadSeeker, size int64, when objectstore.Condition) (objectstore.Object, error) {
	if err := objectstore.CheckPut(key, size, when); err != nil {
		return objectstore.Object{}, atoll.E("put", b.String()+"/"+key, atoll.ErrInvalid, err)
	}
	src, err := newSource(ctx, r, size)
	if err != nil {
		return objectstore.Object{}, b.fail(ctx, "put", key, err)
	}
	defer src.close()
	mark := atoll.NewID()
	var tag string
	send, parts := b.putWhole, size > b.opts.PartSize || b.inParts && size > 0
	if parts {
		if err := b.precheck(ctx, key, when); err != nil {
			return objectstore.Object{}, b.fail(ctx, "put", key, err)
		}
		send = b.putParts
	}
	for range restarts {
		tag, err = send(ctx, key, src, when, mark)
		if b.outrun(ctx, key, err) {
			err = atoll.Errorf("", "", atoll.ErrConflict, "somebody else writes the object, again and again")
		} else if !parts || codeOf(err) != codeBusy {
			break
		}
	}
	if code := codeOf(err); code == codeBusy || code == codeChanged || code == codeNoUpload {
		// It may be in its own way: what was done is asked for again when the answer
		// was lost.
		if mine, ok := b.written(ctx, key, mark); ok {
			return mine, nil
		}
	}
	if when.Tag != "" && codeOf(err) == "NoSuchKey" {
		err = atoll.Errorf("", "", atoll.ErrConflict, "there is no such object any more")
	}
	if err != nil {
		return objectstore.Object{}, b.fail(ctx, "put", key, err)
	}
	if tag == "" {
		return objectstore.Object{}, b.fail(ctx, "put", key, errNotS3)
	}
	return objectstore.Object{Key: key, Size: size, Tag: tag}, nil
}

func (b *Bucket) putWhole(ctx context.Context, key string, src *source, when objectstore.Condition, mark string) (tag string, err error) {
	in := &s3.PutObjectInput{Bucket: &b.name, Key: &key, Body: src.window(0, src.size), ContentLength: &src.size}
	in.IfNoneMatch, in.IfMatch = conditions(when)
	if when != (objectstore.Condition{}) {
		in.Metadata = map[string]string{markName: mark}
	}
	out, err := b.client.PutObject(ctx, in)
	if err != nil {
		return "", err
	}
	return tagOf(out.ETag), nil
}

// precheck saves sending what would be refused at its end. What it cannot tell, the
// service will.
func (b *Bucket) precheck(ctx context.Context, key string, when objectstore.Condition) error {
	if when == (objectstore.Condition{}) {
		return nil
	}
	out, err := b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.name, Key: &key})
	switch {
	case err != nil && statusOf(err) != http.StatusNotFound:
		return nil
	case err == nil && when.Absent:
		return atoll.Errorf("", "", atoll.ErrConflict, "there is an object of that key")
	case err != nil && when.Tag != "":
		return atoll.Errorf("", "", atoll.ErrConflict, "there is no such object any more")
	case err == nil && tagOf(out.ETag) != when.Tag:
		return atoll.Errorf("", "", atoll.ErrConflict, "the object has been changed")
	}
	return nil
}

// outrun reports whether err, of a write, says that another one was quicker: services that
// keep objects in directories may find what that has put there, and take it for one.
func (b *Bucket) outrun(ctx context.Context, key string, err error) bool {
	if codeOf(err) != codeInTheWay {
		return false
	}
	_, err = b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.name, Key: &key})
	return err == nil
}

// written reports whether the object is the one that was written with mark.
func (b *Bucket) written(ctx context.Context, key, mark string) (objectstore.Object, bool) {
	out, err := b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.name, Key: &key})
	if err != nil {
		return objectstore.Object{}, false
	}
	for name, value := range out.Metadata { // some services change the case of names
		if strings.EqualFold(name, markName) && value == mark {
			return headed(key, out), true
		}
	}
	return objectstore.Object{}, false
}

// conditions are the headers of a condition.
func conditions(when objectstore.Condition) (noneMatch, match *string) {
	switch {
	case when.Absent:
		return aws.String("*"), nil
	case when.Tag != "":
		return nil, aws.String(`"` + when.Tag + `"`)
	}
	return nil, nil
}

// tagOf is an ETag without quotes: not all services have them in lists.
func tagOf(etag *string) string { return strings.Trim(aws.ToString(etag), `"`) }

// A source is the reader of a Put, of which many windows may be read at once.
type source struct {
	ctx         context.Context
	start, size int64

	mu     sync.Mutex
	r      io.ReadSeeker // nil when the Put is over
	at     int64         // where it stands, -1 where nobody knows
	failed error
}

// newSource sees that r has size bytes from where it stands.
func newSource(ctx context.Context, r io.ReadSeeker, size int64) (*source, error) {
	start, err := r.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, &readerError{err}
	}
	end, err := r.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, &readerError{err}
	}
	if end-start != size {
		return nil, &readerError{objectstore.ErrSize(end-start, size)}
	}
	return &source{ctx: ctx, start: start, size: size, r: r, at: -1}, nil
}

// read reads what is at offset. Once it has failed it always does.
func (s *source) read(p []byte, offset int64) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.failed != nil:
		return 0, s.failed
	case s.ctx.Err() != nil: // nothing more is to be sent
		return 0, s.ctx.Err()
	case s.r == nil:
		return 0, errors.New("read after the end of the write")
	}
	want := s.start + offset
	if s.at != want {
		if _, err := s.r.Seek(want, io.SeekStart); err != nil {
			s.failed = &readerError{err}
			return 0, s.failed
		}
	}
	n, err := s.r.Read(p)
	s.at = want + int64(n)
	if ended := s.ctx.Err(); ended != nil {
		return 0, ended
	}
	if n > 0 {
		return n, nil // an error comes again
	}
	if err == io.EOF {
		err = objectstore.ErrSize(offset, s.size)
	}
	if err != nil {
		s.failed = &readerError{err}
		err = s.failed
	}
	return 0, err
}

// close keeps requests that are still being given up from reading.
func (s *source) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.r = nil
}

// window is a part of it.
func (s *source) window(offset, size int64) io.ReadSeeker { return &window{s, offset, size, 0} }

type window struct {
	src               *source
	offset, size, pos int64
}

func (w *window) Read(p []byte) (int, error) {
	left := w.size - w.pos
	if left <= 0 {
		return 0, io.EOF
	}
	n, err := w.src.read(p[:min(int64(len(p)), left)], w.offset+w.pos)
	w.pos += int64(n)
	return n, err
}

func (w *window) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += w.pos
	case io.SeekEnd:
		offset += w.size
	}
	if offset < 0 {
		return 0, fmt.Errorf("seek to %d", offset)
	}
	w.pos = offset
	return offset, nil
}
