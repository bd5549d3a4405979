package testimage_test

import (
	"archive/tar"
	"io"
	"slices"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
)

func TestServe(t *testing.T) {
	r := testimage.Serve(t)
	img := testimage.Program(t, "package main\nfunc main() { println(42) }\n")
	ref, err := name.ParseReference(r.Push("team/program:1", img))
	if err != nil {
		t.Fatal(err)
	}
	pulled, err := remote.Image(ref)
	if err != nil {
		t.Fatal(err)
	}
	if got := entryNames(t, pulled); !slices.Contains(got, "program") {
		t.Errorf("image holds %q, want program among them", got)
	}
	if gets := r.Gets(); !slices.Contains(gets, "manifests/1") {
		t.Errorf("Gets() = %q, want manifests/1 among them", gets)
	}
}

func TestBusybox(t *testing.T) {
	if got := entryNames(t, testimage.Busybox(t)); !slices.Contains(got, "bin/sh") {
		t.Errorf("image holds %q, want bin/sh among them", got)
	}
}

// entryNames returns the names of all entries in the layers of img.
func entryNames(t *testing.T, img v1.Image) []string {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range layers {
		rc, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		defer rc.Close()
		for tr := tar.NewReader(rc); ; {
			hdr, err := tr.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, hdr.Name)
		}
	}
	return names
}
