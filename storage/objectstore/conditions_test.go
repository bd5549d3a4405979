//go:build unix

package objectstore_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// A changed bucket breaks a promise of Put.
type changedBucket struct {
	objectstore.Bucket
	put func(b objectstore.Bucket, ctx context.Context, key string, r io.ReadSeeker, size int64, when objectstore.Condition) (objectstore.Object, error)
}

func (c changedBucket) Put(ctx context.Context, key string, r io.ReadSeeker, size int64, when objectstore.Condition) (objectstore.Object, error) {
	return c.put(c.Bucket, ctx, key, r, size, when)
}

// A parted bucket has another bucket for multipart uploads.
type partedBucket struct {
	objectstore.Bucket
	parts objectstore.Bucket
}

func (p partedBucket) InParts() objectstore.Bucket { return p.parts }

func TestCheckConditions(t *testing.T) {
	dir := openDir(t, t.TempDir())
	with := func(change func(*objectstore.Condition)) objectstore.Bucket {
		return changedBucket{dir, func(b objectstore.Bucket, ctx context.Context, key string, r io.ReadSeeker, size int64, when objectstore.Condition) (objectstore.Object, error) {
			change(&when)
			return b.Put(ctx, key, r, size, when)
		}}
	}
	unconditional := with(func(when *objectstore.Condition) { *when = objectstore.Condition{} })
	for what, tt := range map[string]struct {
		b    objectstore.Bucket
		says string // "" if the conditions hold
	}{
		"a good one":     {dir, ""},
		"no conditions":  {unconditional, "concurrent writes"},
		"no tags":        {with(func(when *objectstore.Condition) { when.Tag = "" }), "changed since"},
		"gone":           {with(func(when *objectstore.Condition) { when.Absent = when.Absent || when.Tag != ""; when.Tag = "" }), "refuses to write"},
		"the same tag":   {sameTag{dir}, "tag of an object"},
		"parts":          {partedBucket{dir, unconditional}, "multipart"},
		"good parts":     {partedBucket{dir, dir}, ""},
		"says, not does": {changedBucket{dir, claimWrite}, "what was written last"},
	} {
		t.Run(what, func(t *testing.T) {
			err := objectstore.CheckConditions(t.Context(), tt.b, "p/")
			if tt.says == "" && err != nil || tt.says != "" && (atoll.KindOf(err) != atoll.ErrUnsupported || !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("CheckConditions: %v, want something with %q", err, tt.says)
			}
			for o, err := range dir.List(t.Context(), "") {
				t.Errorf("it leaves %+v, %v", o, err)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantKind(t, "CheckConditions, cancelled", objectstore.CheckConditions(ctx, dir, ""), atoll.ErrUnavailable)
}

// claimWrite doesn't overwrite an object with a tag, and reports success.
func claimWrite(b objectstore.Bucket, ctx context.Context, key string, r io.ReadSeeker, size int64, when objectstore.Condition) (objectstore.Object, error) {
	if when.Tag == "" {
		return b.Put(ctx, key, r, size, when)
	}
	o, err := b.Stat(ctx, key)
	if err == nil && o.Tag == when.Tag {
		return o, nil
	}
	return o, atoll.ErrConflict
}

// A sameTag bucket gives all objects one tag.
type sameTag struct{ objectstore.Bucket }

func (s sameTag) Put(ctx context.Context, key string, r io.ReadSeeker, size int64, when objectstore.Condition) (objectstore.Object, error) {
	o, err := s.Bucket.Put(ctx, key, r, size, when)
	o.Tag = "same"
	return o, err
}

func TestCheckKey(t *testing.T) {
	for key, want := range map[string]bool{
		"a": true, "a/b": true, " ": true, "ü": true, ".a": true, "...": true, strings.Repeat("a", 255): true,
		strings.Repeat("aaa/", 255) + "bbbb": true,
		"":                                   false, "a/": false, "/a": false, "a//b": false, "a/./b": false, "..": false, "\t": false, "\xc3": false,
		strings.Repeat("a", 256): false, strings.Repeat("aaa/", 256) + "b": false,
	} {
		if err := objectstore.CheckKey(key); (err == nil) != want {
			t.Errorf("CheckKey(%.20q): %v", key, err)
		}
	}
}
