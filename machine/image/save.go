//go:build linux

package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/seed46cd37a8/atoll/internal/tartree"
)

// Save returns im, an image from Get, as an archive like those of docker save, with the
// given name and one layer. Its bytes are the same each time. Save holds the image until
// the stream is closed. Files that not even their owner may read require root. Kinds:
// ErrNotExist (the image was removed: get it again); Read returns the errors of reading
// its files.
func (s *Store) Save(ctx context.Context, im *Image, name string) (io.ReadCloser, error) {
	held, err := im.Hold()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.CloseWithError(s.writeArchive(ctx, w, im, name))
	}()
	return &saveStream{r, func() error {
		cancel()
		r.Close()
		<-done
		return held.Close()
	}}, nil
}

// A saveStream is an archive that a goroutine writes while it is being read.
type saveStream struct {
	io.Reader
	close func() error
}

func (s *saveStream) Close() error { return s.close() }

// savedEpoch is the time of files without one, instead of the current time.
var savedEpoch = time.Unix(1704067200, 0) // 2024-01-01

// writeArchive writes the image to w. It reads the files twice, as a tar header has the
// length of the content that follows.
func (s *Store) writeArchive(ctx context.Context, w io.Writer, im *Image, name string) error {
	layer := func(w io.Writer) error {
		tw := tar.NewWriter(w)
		err := tartree.Write(ctx, tw, im.Root, tartree.Options{Owners: s.owners, Made: savedEpoch})
		return errors.Join(err, tw.Close())
	}
	sum, size := sha256.New(), counter(0)
	if err := layer(io.MultiWriter(sum, &size)); err != nil {
		return err
	}
	diff := v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", sum.Sum(nil))}
	config := v1.ConfigFile{
		OS: "linux", Architecture: runtime.GOARCH, Created: v1.Time{Time: savedEpoch},
		RootFS:  v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{diff}},
		History: []v1.History{{Created: v1.Time{Time: savedEpoch}, CreatedBy: im.Ref, Comment: im.Digest}},
		Config:  v1.Config{Env: im.Env, Entrypoint: im.Entrypoint, Cmd: im.Cmd, User: im.User, WorkingDir: im.Workdir, ExposedPorts: map[string]struct{}{}},
	}
	if _, arch, ok := strings.Cut(im.Platform, "/"); ok {
		config.Architecture, config.Variant, _ = strings.Cut(arch, "/")
	}
	for _, port := range im.Ports {
		config.Config.ExposedPorts[port] = struct{}{}
	}
	rawConfig, err := json.Marshal(config)
	if err != nil {
		return err
	}
	configName := fmt.Sprintf("%x.json", sha256.Sum256(rawConfig))
	layerName := diff.Hex + "/layer.tar"
	rawManifest, err := json.Marshal([]archiveManifest{{Config: configName, RepoTags: []string{name}, Layers: []string{layerName}}})
	if err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	add := func(name string, size int64, write func(io.Writer) error) error {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, ModTime: savedEpoch}); err != nil {
			return err
		}
		return write(tw)
	}
	text := func(text []byte) func(io.Writer) error {
		return func(w io.Writer) error {
			_, err := w.Write(text)
			return err
		}
	}
	return errors.Join(
		add(configName, int64(len(rawConfig)), text(rawConfig)),
		add(layerName, int64(size), layer),
		add("manifest.json", int64(len(rawManifest)), text(rawManifest)),
		tw.Close(),
	)
}

// A counter counts the bytes written to it.
type counter int64

func (c *counter) Write(b []byte) (int, error) {
	*c += counter(len(b))
	return len(b), nil
}
