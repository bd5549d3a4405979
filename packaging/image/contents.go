package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user is the user of the server in its container: a number, which shows a cluster that it
// is not root.
const user = 65532

// stateDir is the state directory of the server, on a volume that is mounted there.
const stateDir = "/var/lib/atoll"

// source is the URL of the source code.
const source = "https://github.com/seed46cd37a8/atoll"

// imageOf makes the image for one platform from its programs, and returns its annotations.
// The guest has a layer of its own, which stays the same if only the server has changed.
func imageOf(programs map[string]string, platform *v1.Platform, version string) (v1.Image, map[string]string, error) {
	about, made, err := programOrigin(programs["atoll-server"], version)
	if err != nil {
		return nil, nil, err
	}
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: platform.OS, Architecture: platform.Architecture, Created: v1.Time{Time: made}, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: []string{"/atoll"}, Cmd: []string{"serve"}, User: fmt.Sprintf("%d:%d", user, user),
			Env: []string{"ATOLL_STATE_DIR=" + stateDir}, WorkingDir: "/", Labels: about,
		},
	})
	if err != nil {
		return nil, nil, err
	}
	image = mutate.ConfigMediaType(mutate.MediaType(image, types.OCIManifestSchema1), types.OCIConfigJSON)
	dirs := []*tar.Header{
		{Name: "tmp/", Mode: 0o1777}, {Name: "var/", Mode: 0o755}, {Name: "var/lib/", Mode: 0o755}, {Name: stateDir[1:] + "/", Mode: 0o700, Uid: user, Gid: user},
	}
	for _, files := range []struct {
		program, name string
		dirs          []*tar.Header
	}{
		{"atoll-guest", "atoll-guest", dirs}, {"atoll-dagger", "atoll-dagger", nil}, {"atoll-modal", "atoll-modal", nil},
		{"atoll-kubernetes", "atoll-kubernetes", nil}, {"atoll-server", "atoll", nil}, // it needs no client
	} {
		layer, err := layerOf(programs[files.program], files.name, files.dirs)
		if err != nil {
			return nil, nil, err
		}
		if image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: made}, CreatedBy: files.name}}); err != nil {
			return nil, nil, err
		}
	}
	return mutate.Annotations(image, about).(v1.Image), about, nil
}

// programOrigin returns the origin of a program as annotations, and the time of its commit;
// 1970 if unknown.
func programOrigin(program, version string) (map[string]string, time.Time, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, time.Time{}, err
	}
	made := time.Unix(0, 0).UTC()
	const key = "org.opencontainers.image."
	about := map[string]string{
		key + "title": "atoll", key + "source": source, key + "licenses": "Apache-2.0", key + "version": cmp.Or(version, info.Main.Version, "(devel)"),
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			about[key+"revision"] = s.Value
		case "vcs.time":
			if at, err := time.Parse(time.RFC3339, s.Value); err == nil {
				made = at.UTC()
			}
		}
	}
	about[key+"created"] = made.Format(time.RFC3339)
	return about, made, nil
}

// layerOf returns a layer with directories and a program. All belong to root unless the
// header says otherwise, and have a time of 1970.
func layerOf(path, name string, dirs []*tar.Header) (v1.Layer, error) {
	program, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var stream bytes.Buffer
	w := tar.NewWriter(&stream)
	for _, h := range dirs {
		h.Typeflag, h.ModTime = tar.TypeDir, time.Unix(0, 0)
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o555, Size: int64(len(program)), ModTime: time.Unix(0, 0)}); err != nil {
		return nil, err
	}
	if _, err := w.Write(program); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(stream.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}
