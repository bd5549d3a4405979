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

// markName is the metadata key of a write's random mark. A writer that lost the answer
// finds out by it whether its write succeeded.
const markName = "atoll-write"

// maxRestarts is the number of attempts to write an object while other writers
// interfere as it is completed.
const maxRestarts = 3

// Put sends small objects in one request and larger ones in parts.
func (b *Bucket) Put(ctx context.Context, key string, r io.ReadSeeker, size int64, when objectstore.Condition) (objectstore.Object, error) {
	if err := objectstore.CheckPut(key, size, when); err != nil {
		return objectstore.Object{}, atoll.E("put", b.String()+"/"+key, atoll.ErrInvalid, err)
	}
	src, err := newSource(ctx, r, size)
	if err != nil {
		return objectstore.Object{}, b.wrapError(ctx, "put", key, err)
	}
	defer src.closeReader()
	mark := atoll.NewID()
	var tag string
	send, parts := b.putWhole, size > b.opts.PartSize || b.inParts && size > 0
	if parts {
		if err := b.checkCondition(ctx, key, when); err != nil {
			return objectstore.Object{}, b.wrapError(ctx, "put", key, err)
		}
		send = b.putParts
	}
	for range maxRestarts {
		tag, err = send(ctx, key, src, when, mark)
		if b.lostRace(ctx, key, err) {
			err = atoll.Errorf("", "", atoll.ErrConflict, "another client keeps writing the object")
		} else if !parts || codeOf(err) != codeBusy {
			break
		}
	}
	if code := codeOf(err); code == codeBusy || code == codeChanged || code == codeNoUpload {
		// The conflict may be with this very write: the SDK repeats a request when its
		// answer was lost.
		if mine, ok := b.findWrite(ctx, key, mark); ok {
			return mine, nil
		}
	}
	if when.Tag != "" && codeOf(err) == "NoSuchKey" {
		err = atoll.Errorf("", "", atoll.ErrConflict, "the object no longer exists")
	}
	if err != nil {
		return objectstore.Object{}, b.wrapError(ctx, "put", key, err)
	}
	if tag == "" {
		return objectstore.Object{}, b.wrapError(ctx, "put", key, errNotS3)
	}
	return objectstore.Object{Key: key, Size: size, Tag: tag}, nil
}

func (b *Bucket) putWhole(ctx context.Context, key string, src *source, when objectstore.Condition, mark string) (tag string, err error) {
	in := &s3.PutObjectInput{Bucket: &b.name, Key: &key, Body: src.newWindow(0, src.size), ContentLength: &src.size}
	in.IfNoneMatch, in.IfMatch = conditionHeaders(when)
	if when != (objectstore.Condition{}) {
		in.Metadata = map[string]string{markName: mark}
	}
	out, err := b.client.PutObject(ctx, in)
	if err != nil {
		return "", err
	}
	return tagOf(out.ETag), nil
}

// checkCondition spares the upload of an object whose condition doesn't hold already. If it
// cannot tell, the service decides.
func (b *Bucket) checkCondition(ctx context.Context, key string, when objectstore.Condition) error {
	if when == (objectstore.Condition{}) {
		return nil
	}
	out, err := b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.name, Key: &key})
	switch {
	case err != nil && statusOf(err) != http.StatusNotFound:
		return nil
	case err == nil && when.Absent:
		return atoll.Errorf("", "", atoll.ErrConflict, "an object with this key exists")
	case err != nil && when.Tag != "":
		return atoll.Errorf("", "", atoll.ErrConflict, "the object no longer exists")
	case err == nil && tagOf(out.ETag) != when.Tag:
		return atoll.Errorf("", "", atoll.ErrConflict, "the object has changed since it was read")
	}
	return nil
}

// lostRace reports whether a write failed with err because another write was quicker:
// services that keep objects in directories may mistake the other write's directory for
// an object.
func (b *Bucket) lostRace(ctx context.Context, key string, err error) bool {
	if codeOf(err) != codeInTheWay {
		return false
	}
	_, err = b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.name, Key: &key})
	return err == nil
}

// findWrite returns the object if the write with this mark made it.
func (b *Bucket) findWrite(ctx context.Context, key, mark string) (objectstore.Object, bool) {
	out, err := b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.name, Key: &key})
	if err != nil {
		return objectstore.Object{}, false
	}
	for name, value := range out.Metadata { // some services change the case of names
		if strings.EqualFold(name, markName) && value == mark {
			return headObject(key, out), true
		}
	}
	return objectstore.Object{}, false
}

// conditionHeaders returns the values of If-None-Match and If-Match.
func conditionHeaders(when objectstore.Condition) (noneMatch, match *string) {
	switch {
	case when.Absent:
		return aws.String("*"), nil
	case when.Tag != "":
		return nil, aws.String(`"` + when.Tag + `"`)
	}
	return nil, nil
}

// tagOf returns an ETag without quotes, which not all services put into lists.
func tagOf(etag *string) string { return strings.Trim(aws.ToString(etag), `"`) }

// A source reads the reader of a Put through several windows at once.
type source struct {
	ctx         context.Context
	start, size int64

	mu     sync.Mutex
	r      io.ReadSeeker // nil after the Put has ended
	at     int64         // its position, -1 if unknown
	failed error
}

// newSource returns an error unless r has size bytes from its current position.
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

// readAt reads at offset. After an error of the reader it always fails.
func (s *source) readAt(p []byte, offset int64) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.failed != nil:
		return 0, s.failed
	case s.ctx.Err() != nil: // the request was given up
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
		return n, nil // a persistent error occurs again
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

// closeReader makes further reads of requests that are still ending fail.
func (s *source) closeReader() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.r = nil
}

// newWindow returns a reader of size bytes from offset.
func (s *source) newWindow(offset, size int64) io.ReadSeeker { return &window{s, offset, size, 0} }

type window struct {
	src               *source
	offset, size, pos int64
}

func (w *window) Read(p []byte) (int, error) {
	left := w.size - w.pos
	if left <= 0 {
		return 0, io.EOF
	}
	n, err := w.src.readAt(p[:min(int64(len(p)), left)], w.offset+w.pos)
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
