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

// deleteBatch is the most objects that one request may delete.
const deleteBatch = 1000

// List requests pages of a thousand objects.
func (b *Bucket) List(ctx context.Context, prefix string) iter.Seq2[objectstore.Object, error] {
	return func(yield func(objectstore.Object, error) bool) {
		in := &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: &prefix, EncodingType: types.EncodingTypeUrl}
		last := ""
		for {
			out, err := b.client.ListObjectsV2(ctx, in)
			if err != nil {
				yield(objectstore.Object{}, b.wrapError(ctx, "list", prefix, err))
				return
			}
			for _, c := range out.Contents {
				o, err := b.listObject(c, out.EncodingType)
				if err == nil && o.Key <= last {
					err = atoll.Errorf("", "", atoll.ErrUnsupported, "%s does not list keys in byte order: %q after %q", b.serviceName(), o.Key, last)
				}
				if err != nil {
					yield(objectstore.Object{}, b.wrapError(ctx, "list", prefix, err))
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
				yield(objectstore.Object{}, b.wrapError(ctx, "list", prefix, errNotS3))
				return
			}
			in.ContinuationToken = &next
		}
	}
}

// Folders implements objectstore.FolderLister, with a request for each thousand.
func (b *Bucket) Folders(ctx context.Context, prefix string) (names []string, err error) {
	in := &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: &prefix, Delimiter: aws.String("/"), EncodingType: types.EncodingTypeUrl}
	for {
		out, err := b.client.ListObjectsV2(ctx, in)
		if err != nil {
			return nil, b.wrapError(ctx, "list", prefix, err)
		}
		for _, c := range out.CommonPrefixes {
			key := aws.ToString(c.Prefix)
			if out.EncodingType == types.EncodingTypeUrl {
				if key, err = url.QueryUnescape(key); err != nil {
					return nil, b.wrapError(ctx, "list", prefix, fmt.Errorf("%w: %w", errNotS3, err))
				}
			}
			if name, ok := strings.CutPrefix(key, prefix); ok {
				names = append(names, strings.TrimSuffix(name, "/"))
			}
		}
		if !aws.ToBool(out.IsTruncated) {
			slices.Sort(names)
			return names, nil
		}
		next := aws.ToString(out.NextContinuationToken)
		if next == "" || next == aws.ToString(in.ContinuationToken) {
			return nil, b.wrapError(ctx, "list", prefix, errNotS3)
		}
		in.ContinuationToken = &next
	}
}

var _ objectstore.FolderLister = (*Bucket)(nil)

func (b *Bucket) listObject(c types.Object, encoding types.EncodingType) (objectstore.Object, error) {
	key := aws.ToString(c.Key)
	if encoding == types.EncodingTypeUrl {
		var err error
		if key, err = url.QueryUnescape(key); err != nil {
			return objectstore.Object{}, fmt.Errorf("%w: %w", errNotS3, err)
		}
	}
	return objectstore.Object{Key: key, Size: aws.ToInt64(c.Size), Tag: tagOf(c.ETag), Modified: aws.ToTime(c.LastModified)}, nil
}

// Delete removes up to a thousand objects per request.
func (b *Bucket) Delete(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		if err := objectstore.CheckKey(key); err != nil {
			return atoll.E("delete", b.String()+"/"+key, atoll.ErrInvalid, err)
		}
	}
	if len(keys) == 1 { // which every service supports
		_, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.name, Key: &keys[0]})
		if err != nil && codeOf(err) != "NoSuchKey" {
			return b.wrapError(ctx, "delete", keys[0], err)
		}
		return nil
	}
	for some := range slices.Chunk(keys, deleteBatch) {
		if err := b.deleteBatchOf(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

// deleteBatchOf removes up to deleteBatch objects. It repeats the request for keys that
// failed with a transient error.
func (b *Bucket) deleteBatchOf(ctx context.Context, keys []string) error {
	for attempt := 1; ; attempt++ {
		in := &s3.DeleteObjectsInput{Bucket: &b.name, Delete: &types.Delete{Quiet: aws.Bool(true)}}
		for _, key := range keys {
			in.Delete.Objects = append(in.Delete.Objects, types.ObjectIdentifier{Key: &key})
		}
		out, err := b.client.DeleteObjects(ctx, in)
		if err != nil {
			return b.wrapError(ctx, "delete", "", err)
		}
		if keys, err = deleteFailures(out.Errors); len(keys) == 0 && err == nil {
			return nil
		}
		key := ""
		if len(keys) > 0 {
			key = keys[0]
		}
		if err := b.wrapError(ctx, "delete", key, err); atoll.KindOf(err) != atoll.ErrUnavailable || attempt >= b.opts.Attempts {
			return err
		}
		select {
		case <-time.After(backoffDelay(attempt, b.opts.Backoff)):
		case <-ctx.Done():
			return b.wrapError(ctx, "delete", key, ctx.Err())
		}
	}
}

// deleteFailures returns the keys that the service didn't remove, and the error to
// report: a permanent one, if there is any.
func deleteFailures(all []types.Error) (keys []string, err error) {
	for _, e := range all {
		if aws.ToString(e.Code) == "NoSuchKey" {
			continue
		}
		keys = append(keys, aws.ToString(e.Key))
		this := &smithy.GenericAPIError{Code: aws.ToString(e.Code), Message: aws.ToString(e.Message)}
		if err == nil || !isTransient(this.Code) {
			err = this
		}
	}
	return keys, err
}
