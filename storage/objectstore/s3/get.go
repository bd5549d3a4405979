package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// Get resumes where it was when the connection breaks, as long as the object is
// unchanged.
func (b *Bucket) Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, objectstore.Object, error) {
	err := objectstore.CheckKey(key)
	if err == nil && offset < 0 {
		err = fmt.Errorf("offset %d is negative", offset)
	}
	if err != nil {
		return nil, objectstore.Object{}, atoll.E("get", b.String()+"/"+key, atoll.ErrInvalid, err)
	}
	r := &reader{ctx: ctx, b: b, offset: offset}
	if length != 0 { // an HTTP range cannot be empty
		if r.body, r.left, r.object, err = b.getRange(ctx, key, offset, length); err == nil {
			return r, r.object, nil
		}
		if statusOf(err) != http.StatusRequestedRangeNotSatisfiable {
			return nil, objectstore.Object{}, b.wrapError(ctx, "get", key, err)
		}
	}
	// The caller asked for no bytes, or the object ends before offset.
	r.body = http.NoBody
	if r.object, err = b.Stat(ctx, key); err != nil {
		return nil, objectstore.Object{}, err
	}
	if offset > r.object.Size {
		return nil, objectstore.Object{}, atoll.Errorf("get", b.String()+"/"+key, atoll.ErrInvalid,
			"offset %d beyond the end of the object (%d bytes)", offset, r.object.Size)
	}
	return r, r.object, nil
}

// getRange makes one request for a range, and returns its body and length.
func (b *Bucket) getRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, int64, objectstore.Object, error) {
	in := &s3.GetObjectInput{Bucket: &b.name, Key: &key}
	ranged := offset > 0 || length >= 0
	switch last := offset + length - 1; {
	case length >= 0 && last >= 0: // otherwise the end overflows
		in.Range = aws.String(fmt.Sprintf("bytes=%d-%d", offset, last))
	case ranged:
		in.Range = aws.String(fmt.Sprintf("bytes=%d-", offset))
	}
	out, err := b.client.GetObject(ctx, in)
	if err != nil {
		return nil, 0, objectstore.Object{}, err
	}
	n, total := aws.ToInt64(out.ContentLength), aws.ToInt64(out.ContentLength)
	tag := tagOf(out.ETag)
	switch {
	case tag == "" || out.ContentLength == nil:
		err = errNotS3 // without a length the end cannot be detected
	case ranged:
		var first, last int64
		_, err = fmt.Sscanf(aws.ToString(out.ContentRange), "bytes %d-%d/%d", &first, &last, &total)
		if err != nil || first != offset || last-first+1 != n {
			err = atoll.Errorf("", "", atoll.ErrUnsupported, "%s sent another range of the object than requested (%q)", b.serviceName(), aws.ToString(out.ContentRange))
		}
	}
	if err != nil {
		out.Body.Close()
		return nil, 0, objectstore.Object{}, err
	}
	return out.Body, n, objectstore.Object{Key: key, Size: total, Tag: tag, Modified: aws.ToTime(out.LastModified)}, nil
}

// A reader reads the bytes of one object, reconnecting when a connection breaks.
type reader struct {
	ctx      context.Context
	b        *Bucket
	object   objectstore.Object
	offset   int64
	body     io.ReadCloser
	left     int64
	failures int // since the last successful read
	failed   error
}

func (r *reader) Read(p []byte) (int, error) {
	for {
		switch {
		case r.failed != nil:
			return 0, r.failed
		case r.left == 0:
			return 0, io.EOF
		case len(p) == 0:
			return 0, nil
		}
		n, err := r.body.Read(p[:min(int64(len(p)), r.left)])
		r.left -= int64(n)
		r.offset += int64(n)
		if n > 0 {
			r.failures = 0
			return n, nil // a persistent error occurs again
		}
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			r.failed = r.resumeRead(err)
		}
	}
}

// resumeRead requests the rest of the object after err. It returns nil, or the error
// that ends the read.
func (r *reader) resumeRead(err error) error {
	r.body.Close()
	r.body = http.NoBody
	key := r.object.Key
	r.failures++
	if r.ctx.Err() != nil || r.failures >= r.b.opts.Attempts {
		return r.cutError(err)
	}
	select {
	case <-time.After(backoffDelay(r.failures, r.b.opts.Backoff)):
	case <-r.ctx.Done():
		return r.cutError(err)
	}
	body, n, o, err := r.b.getRange(r.ctx, key, r.offset, r.left)
	switch {
	case err == nil && o.Tag == r.object.Tag && n == r.left:
		r.body = body
		return nil
	case err == nil:
		body.Close()
	case statusOf(err) != http.StatusRequestedRangeNotSatisfiable: // 416: the object is shorter now
		return r.b.wrapError(r.ctx, "get", key, err) // the client has already retried
	}
	return atoll.Errorf("get", r.b.String()+"/"+key, atoll.ErrUnavailable, "the object was replaced while it was read: read it again")
}

// cutError returns the error of a body that ended too early.
func (r *reader) cutError(err error) error {
	if ended := r.ctx.Err(); ended != nil {
		return r.b.wrapError(r.ctx, "get", r.object.Key, ended)
	}
	return atoll.E("get", r.b.String()+"/"+r.object.Key, atoll.ErrUnavailable,
		fmt.Errorf("connection lost with %d bytes left: %w", r.left, err))
}

func (r *reader) Close() error {
	r.failed = errors.New("read after close")
	return r.body.Close()
}

// Stat describes the object.
func (b *Bucket) Stat(ctx context.Context, key string) (objectstore.Object, error) {
	if err := objectstore.CheckKey(key); err != nil {
		return objectstore.Object{}, atoll.E("stat", b.String()+"/"+key, atoll.ErrInvalid, err)
	}
	out, err := b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.name, Key: &key})
	if err != nil {
		return objectstore.Object{}, b.wrapError(ctx, "stat", key, err)
	}
	o := headObject(key, out)
	if o.Tag == "" || out.ContentLength == nil {
		return objectstore.Object{}, b.wrapError(ctx, "stat", key, errNotS3)
	}
	return o, nil
}

func headObject(key string, out *s3.HeadObjectOutput) objectstore.Object {
	return objectstore.Object{
		Key: key, Size: aws.ToInt64(out.ContentLength), Tag: tagOf(out.ETag), Modified: aws.ToTime(out.LastModified),
	}
}
