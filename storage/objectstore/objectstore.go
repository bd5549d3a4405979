// Package objectstore is the part of object storage that Atoll needs: keys, whole objects
// and conditional writes. It doesn't interpret the objects.
//
// This package stores objects in a directory; package s3 uses services that speak S3.
// Package objectstoretest checks the promises of Bucket for both. Some services lack
// conditional writes: CheckConditions finds out.
package objectstore

import (
	"context"
	"io"
	"iter"
	"time"
)

// A Bucket holds objects by key; CheckKey tells which keys are valid. All methods may
// be called concurrently, from many programs.
//
// A write replaces the whole object: a reader sees the old or the new one, and after a
// Put that returned nil everyone sees the new one. No list shows interrupted writes;
// the bucket removes their remains later, or Sweep does.
//
// All methods return these kinds of errors: ErrInvalid (an invalid key, or settings
// that do not fit the service), ErrDenied, ErrUnavailable (the service is unreachable
// or still busy after retries), ErrExhausted (the bucket is full or the object too
// large), ErrNotExist (also: no such bucket), ErrUnsupported, ErrInternal (stored data
// is damaged). When a context ends, its error is in the chain.
type Bucket interface {
	// Get reads length bytes from offset, or fewer if the object ends before; a
	// negative length means up to its end. The caller closes the reader; ctx bounds its
	// reads, too. A Read returns io.EOF only at the end, never for a broken connection.
	// The returned Object belongs to these bytes. An offset beyond the end is
	// ErrInvalid; a missing object ErrNotExist.
	Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, Object, error)

	// Put stores size bytes of r, from its current position. It may read them more than
	// once, in any order; the caller keeps r, and Put doesn't use it after it has
	// returned. A reader with fewer or more bytes is ErrInvalid, and the error of a
	// failing reader is returned; both store nothing. A condition that does not hold is
	// ErrConflict. If the answer of the service is lost, Put may return an error
	// although the object is stored.
	Put(ctx context.Context, key string, r io.ReadSeeker, size int64, when Condition) (Object, error)

	// Stat describes the object; ErrNotExist if there is none.
	Stat(ctx context.Context, key string) (Object, error)

	// List yields the objects whose keys begin with prefix, sorted by the bytes of
	// their keys; the prefix need not end at a slash. An error is the last pair. List
	// requests pages as it goes, so objects written meanwhile may be missing. It omits
	// objects of other programs whose names are not valid keys.
	List(ctx context.Context, prefix string) iter.Seq2[Object, error]

	// Delete removes objects. A key without an object is not an error. When Delete
	// fails, it may have removed some.
	Delete(ctx context.Context, keys ...string) error

	// String returns the bucket's URL, without credentials: "s3://name",
	// "file:///path".
	String() string
}

// An Object describes an object of a bucket.
type Object struct {
	Key      string
	Size     int64
	Tag      string    // changes with the bytes; opaque, and no checksum
	Modified time.Time // by the clock of the bucket; zero after a Put if the service doesn't report it
}

// A Condition must hold for a Put to write. The zero value always holds; both fields at
// once are ErrInvalid. Of several concurrent Puts of one key whose conditions hold,
// exactly one succeeds.
type Condition struct {
	Absent bool   // the key has no object
	Tag    string // the object of the key has this Tag
}
