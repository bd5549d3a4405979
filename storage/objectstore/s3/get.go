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

// Get reads on where it was when the connection breaks, as long as the object is the
// same.
func (b *Bucket) Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, objectstore.Object, error) {
	err := objectstore.CheckKey(key)
	if err == nil && offset < 0 {
		err = fmt.Errorf("offset %d: may not be negative", offset)
	}
	if err != nil {
		return nil, objectstore.Object{}, atoll.E("get", b.String()+"/"+key, atoll.ErrInvalid, err)
	}
	r := &reader{ctx: ctx, b: b, offset: offset}
	if length != 0 { // no range says nothing
		if r.body, r.left, r.object, err = b.get(ctx, key, offset, length); err == nil {
			return r, r.object, nil
		}
		if statusOf(err) != http.StatusRequestedRangeNotSatisfiable {
			return nil, objectstore.Object{}, b.fail(ctx, "get", key, err)
		}
	}
	// None of its bytes are asked for; or there are none there.
	r.body = http.NoBody
	if r.object, err = b.Stat(ctx, key); err != nil {
		return nil, objectstore.Object{}, err
	}
	if offset > r.object.Size {
		return nil, objectstore.Object{}, atoll.Errorf("get", b.String()+"/"+key, atoll.ErrInvalid,
			"offset %d: the object has %d bytes", offset, r.object.Size)
	}
	return r, r.object, nil
}

// get asks once for some bytes, and returns how many there are.
func (b *Bucket) get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, int64, objectstore.Object, error) {
	in := &s3.GetObjectInput{Bucket: &b.name, Key: &key}
	ranged := offset > 0 || length >= 0
	switch last := offset + length - 1; {
	case length >= 0 && last >= 0: // else more than there can be
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
		err = errNotS3 // where its end is could not be told
	case ranged:
		var first, last int64
		_, err = fmt.Sscanf(aws.ToString(out.ContentRange), "bytes %d-%d/%d", &first, &last, &total)
		if err != nil || first != offset || last-first+1 != n {
			err = atoll.Errorf("", "", atoll.ErrUnsupported, "asked for a part of the object, %s sends another (%q)", b.where(), aws.ToString(out.ContentRange))
		}
	}
	if err != nil {
		out.Body.Close()
		return nil, 0, objectstore.Object{}, err
	}
	return out.Body, n, objectstore.Object{Key: key, Size: total, Tag: tag, Modified: aws.ToTime(out.LastModified)}, nil
}

// A reader reads the bytes of one object, over several connections if it must.
type reader struct {
	ctx      context.Context
	b        *Bucket
	object   objectstore.Object
	offset   int64
	body     io.ReadCloser
	left     int64
	failures int // since something was read
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
			return n, nil // an error comes again
		}
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			r.failed = r.again(err)
		}
	}
}

// again asks for what is left after err, and returns nil, or why that cannot be had.
func (r *reader) again(err error) error {
	r.body.Close()
	r.body = http.NoBody
	key := r.object.Key
	r.failures++
	if r.ctx.Err() != nil || r.failures >= r.b.opts.Attempts {
		return r.cut(err)
	}
	select {
	case <-time.After(backoff(r.failures, r.b.opts.Backoff)):
	case <-r.ctx.Done():
		return r.cut(err)
	}
	body, n, o, err := r.b.get(r.ctx, key, r.offset, r.left)
	switch {
	case err == nil && o.Tag == r.object.Tag && n == r.left:
		r.body = body
		return nil
	case err == nil:
		body.Close()
	case statusOf(err) != http.StatusRequestedRangeNotSatisfiable: // as of one that is shorter
		return r.b.fail(r.ctx, "get", key, err) // tried often enough
	}
	return atoll.Errorf("get", r.b.String()+"/"+key, atoll.ErrUnavailable, "the object was written anew while it was read: read it again")
}

// cut is the error of a body that ends too early.
func (r *reader) cut(err error) error {
	if ended := r.ctx.Err(); ended != nil {
		return r.b.fail(r.ctx, "get", r.object.Key, ended)
	}
	return atoll.E("get", r.b.String()+"/"+r.object.Key, atoll.ErrUnavailable,
		fmt.Errorf("the connection broke with %d bytes left: %w", r.left, err))
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
		return objectstore.Object{}, b.fail(ctx, "stat", key, err)
	}
	o := headed(key, out)
	if o.Tag == "" || out.ContentLength == nil {
		return objectstore.Object{}, b.fail(ctx, "stat", key, errNotS3)
	}
	return o, nil
}

func headed(key string, out *s3.HeadObjectOutput) objectstore.Object {
	return objectstore.Object{
		Key: key, Size: aws.ToInt64(out.ContentLength), Tag: tagOf(out.ETag), Modified: aws.ToTime(out.LastModified),
	}
}
