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

// cleanupTimeout bounds the removal of parts, also when the caller's context has ended.
const cleanupTimeout = 30 * time.Second

// putParts uploads the object in parts. If it returns an error, it has removed them.
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
			_ = b.abortUpload(ctx, key, upload.UploadId, ctx.Err() != nil || statusOf(err) == 0) // if this fails, Sweep does
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
	in.IfNoneMatch, in.IfMatch = conditionHeaders(when)
	out, err := b.client.CompleteMultipartUpload(ctx, in, func(o *s3.Options) {
		o.Retryer = noBusy{o.Retryer} // retrying alone doesn't help: putParts has to send the parts again
	})
	if err != nil {
		return "", err
	}
	return tagOf(out.ETag), nil
}

// noBusy is a Retryer that doesn't retry requests that conflict with another writer.
type noBusy struct{ aws.Retryer }

func (r noBusy) IsErrorRetryable(err error) bool {
	return codeOf(err) != codeBusy && r.Retryer.IsErrorRetryable(err)
}

// sendParts uploads all parts, several at once, and waits for every request: a part
// that arrives after the upload was aborted would stay.
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
					Body: src.newWindow(offset, n), ContentLength: &n,
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

// partSize returns the size of an object's parts, at least size, so that there are at
// most maxParts of them.
func partSize(size, total int64) int64 {
	const unit = 1 << 20
	least := (total + maxParts - 1) / maxParts
	return max(size, (least+unit-1)/unit*unit)
}

// abortUpload removes the parts of an object. If a request was not answered, the
// service may still be storing its part: abortUpload then repeats until the service no
// longer knows the upload.
func (b *Bucket) abortUpload(ctx context.Context, key string, upload *string, unanswered bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	for pause := 20 * time.Millisecond; ; pause *= 2 {
		_, err := b.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &b.name, Key: &key, UploadId: upload})
		if codeOf(err) == codeNoUpload {
			return nil
		}
		if !unanswered || pause > time.Second { // a busy service may answer anything
			return err
		}
		time.Sleep(pause)
	}
}

// Sweep removes the parts of uploads below prefix that began more than age ago and were
// never completed.
func (b *Bucket) Sweep(ctx context.Context, prefix string, age time.Duration) error {
	before := time.Now().Add(-age)
	in := &s3.ListMultipartUploadsInput{Bucket: &b.name, Prefix: &prefix}
	for {
		out, err := b.client.ListMultipartUploads(ctx, in)
		if codeOf(err) == codeNoUpload {
			return nil // some services report an empty list like this
		}
		if err != nil {
			return b.wrapError(ctx, "sweep", prefix, err)
		}
		slices.SortFunc(out.Uploads, func(x, y types.MultipartUpload) int {
			return cmp.Compare(aws.ToString(x.Key), aws.ToString(y.Key))
		})
		for _, u := range out.Uploads {
			if u.Initiated == nil || !u.Initiated.Before(before) {
				continue
			}
			if err := b.abortUpload(ctx, aws.ToString(u.Key), u.UploadId, false); err != nil {
				return b.wrapError(ctx, "sweep", aws.ToString(u.Key), err)
			}
		}
		if !aws.ToBool(out.IsTruncated) || aws.ToString(out.NextKeyMarker) == "" {
			return nil
		}
		in.KeyMarker, in.UploadIdMarker = out.NextKeyMarker, out.NextUploadIdMarker
	}
}
