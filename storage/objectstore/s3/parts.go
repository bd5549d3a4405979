package s3

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// cleanup is how long it may take to remove parts, whatever became of who sent them.
const cleanup = 30 * time.Second

// putParts sends the object in parts. Unless it returns nil, it removes them.
func (b *Bucket) putParts(ctx context.Context, key string, src *source, when objectstore.Condition, mark string) (tag string, err error) {
	upload, err := b.client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{
		Bucket: &b.name, Key: &key, Metadata: map[string]string{markName: mark},
	})
	if err != nil {
		return "", err
	}
	if aws.ToString(upload.UploadId) == "" {
		return "", errNotS3
	}
	defer func() {
		if err != nil && codeOf(err) != codeNoUpload {
			_ = b.abort(ctx, key, upload.UploadId) // else Sweep does
		}
	}()
	parts, err := b.sendParts(ctx, key, upload.UploadId, src)
	if err != nil {
		return "", err
	}
	in := &s3.CompleteMultipartUploadInput{
		Bucket: &b.name, Key: &key, UploadId: upload.UploadId,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	}
	in.IfNoneMatch, in.IfMatch = conditions(when)
	out, err := b.client.CompleteMultipartUpload(ctx, in, func(o *s3.Options) {
		o.Retryer = noBusy{o.Retryer} // the parts have to be sent again then
	})
	if err != nil {
		return "", err
	}
	return tagOf(out.ETag), nil
}

// noBusy is a Retryer for what is not to be asked again while others write.
type noBusy struct{ aws.Retryer }

func (r noBusy) IsErrorRetryable(err error) bool {
	return codeOf(err) != codeBusy && r.Retryer.IsErrorRetryable(err)
}

// sendParts sends all parts, several at once, and returns when none is being sent
// any more: one that arrives when the others have been removed would stay.
func (b *Bucket) sendParts(ctx context.Context, key string, upload *string, src *source) ([]types.CompletedPart, error) {
	size := partSize(b.opts.PartSize, src.size)
	parts := make([]types.CompletedPart, (src.size+size-1)/size)
	failed, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	next := make(chan int)
	var all sync.WaitGroup
	for range min(b.opts.Concurrency, len(parts)) {
		all.Go(func() {
			for i := range next {
				offset := int64(i) * size
				n := min(size, src.size-offset)
				number := int32(i + 1)
				out, err := b.client.UploadPart(ctx, &s3.UploadPartInput{
					Bucket: &b.name, Key: &key, UploadId: upload, PartNumber: &number,
					Body: src.window(offset, n), ContentLength: &n,
				})
				if err != nil {
					stop(err)
					return
				}
				parts[i] = types.CompletedPart{PartNumber: &number, ETag: out.ETag}
			}
		})
	}
feed:
	for i := range parts {
		select {
		case next <- i:
		case <-failed.Done():
			break feed
		}
	}
	close(next)
	all.Wait()
	return parts, context.Cause(failed)
}

// partSize is that of an object's parts: no more of them than there may be.
func partSize(size, total int64) int64 {
	const unit = 1 << 20
	least := (total + maxParts - 1) / maxParts
	return max(size, (least+unit-1)/unit*unit)
}

// abort removes the parts of an object. The service may still be busy with one whose
// request was given up: so it is asked until it knows of none.
func (b *Bucket) abort(ctx context.Context, key string, upload *string) error {
	given := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	for pause := 20 * time.Millisecond; ; pause *= 2 {
		_, err := b.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &b.name, Key: &key, UploadId: upload})
		if codeOf(err) == codeNoUpload {
			return nil
		}
		if !given || pause > time.Second { // what it says while it is busy may be anything
			return err
		}
		time.Sleep(pause)
	}
}

// Sweep removes the parts of objects below prefix that were begun more than age ago
// and not put together.
func (b *Bucket) Sweep(ctx context.Context, prefix string, age time.Duration) error {
	before := time.Now().Add(-age)
	in := &s3.ListMultipartUploadsInput{Bucket: &b.name, Prefix: &prefix}
	for {
		out, err := b.client.ListMultipartUploads(ctx, in)
		if codeOf(err) == codeNoUpload {
			return nil // how some say that there are none
		}
		if err != nil {
			return b.fail(ctx, "sweep", prefix, err)
		}
		slices.SortFunc(out.Uploads, func(x, y types.MultipartUpload) int {
			return cmp.Compare(aws.ToString(x.Key), aws.ToString(y.Key))
		})
		for _, u := range out.Uploads {
			if u.Initiated == nil || !u.Initiated.Before(before) {
				continue
			}
			if err := b.abort(ctx, aws.ToString(u.Key), u.UploadId); err != nil {
				return b.fail(ctx, "sweep", aws.ToString(u.Key), err)
			}
		}
		if !aws.ToBool(out.IsTruncated) || aws.ToString(out.NextKeyMarker) == "" {
			return nil
		}
		in.KeyMarker, in.UploadIdMarker = out.NextKeyMarker, out.NextUploadIdMarker
	}
}
