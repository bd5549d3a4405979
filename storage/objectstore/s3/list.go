package s3

import (
	"context"
	"fmt"
	"iter"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// deletes is how many objects a service removes at once.
const deletes = 1000

// List asks for a thousand at a time.
func (b *Bucket) List(ctx context.Context, prefix string) iter.Seq2[objectstore.Object, error] {
	return func(yield func(objectstore.Object, error) bool) {
		in := &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: &prefix, EncodingType: types.EncodingTypeUrl}
		last := ""
		for {
			out, err := b.client.ListObjectsV2(ctx, in)
			if err != nil {
				yield(objectstore.Object{}, b.fail(ctx, "list", prefix, err))
				return
			}
			for _, c := range out.Contents {
				o, err := b.listed(c, out.EncodingType)
				if err == nil && o.Key <= last {
					err = atoll.Errorf("", "", atoll.ErrUnsupported, "%s does not list keys in their order: %q after %q", b.where(), o.Key, last)
				}
				if err != nil {
					yield(objectstore.Object{}, b.fail(ctx, "list", prefix, err))
					return
				}
				last = o.Key
				if objectstore.CheckKey(o.Key) != nil || !strings.HasPrefix(o.Key, prefix) {
					continue
				}
				if !yield(o, nil) {
					return
				}
			}
			if !aws.ToBool(out.IsTruncated) {
				return
			}
			next := aws.ToString(out.NextContinuationToken)
			if next == "" || next == aws.ToString(in.ContinuationToken) {
				yield(objectstore.Object{}, b.fail(ctx, "list", prefix, errNotS3))
				return
			}
			in.ContinuationToken = &next
		}
	}
}

func (b *Bucket) listed(c types.Object, encoding types.EncodingType) (objectstore.Object, error) {
	key := aws.ToString(c.Key)
	if encoding == types.EncodingTypeUrl {
		var err error
		if key, err = url.QueryUnescape(key); err != nil {
			return objectstore.Object{}, fmt.Errorf("%w: %w", errNotS3, err)
		}
	}
	return objectstore.Object{Key: key, Size: aws.ToInt64(c.Size), Tag: tagOf(c.ETag), Modified: aws.ToTime(c.LastModified)}, nil
}

// Delete removes up to a thousand objects with one request.
func (b *Bucket) Delete(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		if err := objectstore.CheckKey(key); err != nil {
			return atoll.E("delete", b.String()+"/"+key, atoll.ErrInvalid, err)
		}
	}
	if len(keys) == 1 { // which every service knows
		_, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.name, Key: &keys[0]})
		if err != nil && codeOf(err) != "NoSuchKey" {
			return b.fail(ctx, "delete", keys[0], err)
		}
		return nil
	}
	for some := range slices.Chunk(keys, deletes) {
		if err := b.deleteSome(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

// deleteSome asks again for those that the service could not remove just then.
func (b *Bucket) deleteSome(ctx context.Context, keys []string) error {
	for attempt := 1; ; attempt++ {
		in := &s3.DeleteObjectsInput{Bucket: &b.name, Delete: &types.Delete{Quiet: aws.Bool(true)}}
		for _, key := range keys {
			in.Delete.Objects = append(in.Delete.Objects, types.ObjectIdentifier{Key: &key})
		}
		out, err := b.client.DeleteObjects(ctx, in)
		if err != nil {
			return b.fail(ctx, "delete", "", err)
		}
		if keys, err = failures(out.Errors); len(keys) == 0 && err == nil {
			return nil
		}
		key := ""
		if len(keys) > 0 {
			key = keys[0]
		}
		if err := b.fail(ctx, "delete", key, err); atoll.KindOf(err) != atoll.ErrUnavailable || attempt >= b.opts.Attempts {
			return err
		}
		select {
		case <-time.After(backoff(attempt, b.opts.Backoff)):
		case <-ctx.Done():
			return b.fail(ctx, "delete", key, ctx.Err())
		}
	}
}

// failures are the keys that could not be removed, and the error that counts: one
// that will not go away, if there is one.
func failures(all []types.Error) (keys []string, err error) {
	for _, e := range all {
		if aws.ToString(e.Code) == "NoSuchKey" {
			continue
		}
		keys = append(keys, aws.ToString(e.Key))
		this := &smithy.GenericAPIError{Code: aws.ToString(e.Code), Message: aws.ToString(e.Message)}
		if err == nil || !busy(this.Code) {
			err = this
		}
	}
	return keys, err
}
