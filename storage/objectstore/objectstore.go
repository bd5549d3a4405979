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

// A Bucket holds objects by key; CheckKey says what a key is. All methods may be
// called at once, from many programs.
//
// An object is written as a whole: a reader has the old one or the new one, and
// after a Put that returned nil everyone has the new one. What was cut short is in
// no list, and is removed by the bucket later, or by Sweep.
//
// Kinds, of all methods: ErrInvalid (a key that is none, settings that do not fit the
// service), ErrDenied, ErrUnavailable (it cannot be reached, or says that it is busy,
// after retries), ErrExhausted (it is full, or the object too large), ErrNotExist
// (also: there is no such bucket), ErrUnsupported, ErrInternal (what is stored is
// damaged). When a context ends, its error is in the chain.
type Bucket interface {
	// Get reads length bytes from offset, or less when the object ends before; a
	// negative length means to its end. The caller closes the reader, which ctx bounds,
	// too. A Read that fails has not had the end: what is cut short is no io.EOF. The
	// Object is that of the bytes. An offset behind the end is ErrInvalid. ErrNotExist.
	Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, Object, error)

	// Put stores size bytes from r, from where it stands. It may read them more than
	// once, in any order; r stays the caller's, and is not used when Put has returned. A
	// reader that has fewer or more bytes is ErrInvalid, and one that fails, its error;
	// nothing is stored then. A condition that does not hold is ErrConflict. When the
	// answer was lost, Put may return an error although the object is there.
	Put(ctx context.Context, key string, r io.ReadSeeker, size int64, when Condition) (Object, error)

	// Stat describes the object. ErrNotExist.
	Stat(ctx context.Context, key string) (Object, error)

	// List yields the objects whose keys begin with prefix, which need not end at a
	// slash, sorted by the bytes of their keys. An error is the last pair. It asks as it
	// goes: what is written meanwhile may be yielded or not. What others have stored
	// under names that are no keys is left out.
	List(ctx context.Context, prefix string) iter.Seq2[Object, error]

	// Delete removes objects. A key that is not there is no error. When it fails,
	// some may have been removed.
	Delete(ctx context.Context, keys ...string) error

	// String is its URL, without credentials: "s3://name", "file:///path".
	String() string
}

// An Object is what a bucket says of one.
type Object struct {
	Key      string
	Size     int64
	Tag      string    // another one for other bytes; opaque, and no checksum
	Modified time.Time // by the clock of the bucket; zero from a Put that is not told
}

// A Condition is what must hold for a Put. The zero value asks for nothing; both at
// once is ErrInvalid. Of many who write one key at once on conditions that hold, one
// succeeds.
type Condition struct {
	Absent bool   // there is no object of that key
	Tag    string // the object of that key has this Tag
}
