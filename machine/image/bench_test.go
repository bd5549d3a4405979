//go:build linux

package image

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	. "github.com/seed46cd37a8/atoll/internal/testing/testimage"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// distributionLayer is a layer as of a small distribution: 5,000 files in 500
// directories, 100 MiB that compress to about a half.
func distributionLayer(b *testing.B) v1.Layer {
	b.Helper()
	random := rand.NewChaCha8([32]byte{1})
	list := entries{}
	for i := range 5000 {
		body := make([]byte, 20<<10)
		random.Read(body[:len(body)/2])
		list = append(list, File(fmt.Sprintf("usr/share/d%d/e%d/f%d", i/100, i/10, i), 0o644, string(body)))
	}
	return Layer(b, list...)
}

// BenchmarkGetCached measures the cost of an image for each creation of a sandbox.
func BenchmarkGetCached(b *testing.B) {
	r := Serve(b)
	s := openStore(b, Options{})
	ref := r.Push("app:1", simpleImage(b, "x"))
	mustGet(b, s, ref)
	b.ReportAllocs()
	for b.Loop() {
		img, err := s.Get(context.Background(), ref, nil)
		if err != nil {
			b.Fatal(err)
		}
		hold, err := img.Hold()
		if err != nil {
			b.Fatal(err)
		}
		hold.Close()
	}
}

// BenchmarkOpen measures the cost of the store for each command that creates a sandbox.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		s, err := Open(dir, Options{})
		if err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
}

// BenchmarkUnpack unpacks 100 MiB in 5,000 files from a gzipped layer, without
// the wait for the disk at the end.
func BenchmarkUnpack(b *testing.B) {
	l := distributionLayer(b)
	diffID, err := l.DiffID()
	if err != nil {
		b.Fatal(err)
	}
	rc, err := l.Compressed()
	if err != nil {
		b.Fatal(err)
	}
	packed, err := io.ReadAll(rc)
	if err != nil {
		b.Fatal(err)
	}
	s := &Store{log: slog.New(slog.DiscardHandler), owners: canChown(), opts: Options{Limit: DefaultLimit}}
	c := &contents{layers: []layer{{name: "layer", diffID: diffID, size: int64(len(packed)), open: func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(packed)), nil }}}}
	b.SetBytes(5000 * 20 << 10)
	for b.Loop() {
		dir := b.TempDir()
		if _, err := s.unpackLayers(context.Background(), c, dir, &meter{}); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := fsutil.RemoveAll(dir); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkGet pulls the same from a registry on the loopback interface, the
// wait for the disk included.
func BenchmarkGet(b *testing.B) {
	r := Serve(b)
	ref := r.Push("app:1", New(b, v1.Config{}, distributionLayer(b)))
	s := openStore(b, Options{})
	b.SetBytes(5000 * 20 << 10)
	for b.Loop() {
		mustGet(b, s, ref)
		b.StopTimer()
		if _, err := s.Prune(b.Context(), PruneOptions{Unused: -1}); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkGetArchive gets an unpacked image from a docker archive, which Get reads
// each time.
func BenchmarkGetArchive(b *testing.B) {
	path := filepath.Join(b.TempDir(), "a.tar")
	tag, err := name.NewTag("app:1")
	if err != nil {
		b.Fatal(err)
	}
	if err := tarball.WriteToFile(path, tag, simpleImage(b, "x")); err != nil {
		b.Fatal(err)
	}
	s := openStore(b, Options{})
	for b.Loop() {
		mustGet(b, s, path)
	}
}
