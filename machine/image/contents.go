//go:build linux

package image

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"sync/atomic"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/seed46cd37a8/atoll"
)

// contents describes an image before it is unpacked.
type contents struct {
	digest v1.Hash
	config *v1.ConfigFile
	layers []layer
	blobs  []string // digests of its blobs in the store

	// fetch starts to fetch the layers that the store does not have; the function
	// it returns waits for the end of that. It may be nil.
	fetch func(ctx context.Context) (wait func())
}

// A layer is a tar stream, perhaps compressed.
type layer struct {
	name   string  // its digest, for messages
	diffID v1.Hash // of the tar stream
	size   int64   // of the stream from open
	// open blocks until the layer is available. The stream is not yet checked
	// against diffID.
	open func(ctx context.Context) (io.ReadCloser, error)
}

// Limits on the metadata of an image.
const (
	maxManifest = 4 << 20
	maxConfig   = 16 << 20
	maxLayers   = 512 // docker's limit is 127
)

// parseConfig parses an image's configuration and checks that it describes the given
// number of layers.
func parseConfig(raw []byte, layers int) (*v1.ConfigFile, error) {
	config, err := v1.ParseConfigFile(bytes.NewReader(raw))
	if err != nil {
		return nil, newDamageError(err, "its configuration cannot be read")
	}
	if n := len(config.RootFS.DiffIDs); n != layers {
		return nil, newDamageError(nil, "it has %d layers and describes %d", layers, n)
	}
	if layers > maxLayers {
		return nil, newLimitError("has %d layers, more than %d", layers, maxLayers)
	}
	return config, nil
}

// A manifest is a manifest or index that was fetched and checked against its digest.
type manifest struct {
	digest    v1.Hash
	mediaType types.MediaType
	raw       []byte
}

// resolveManifest follows m, which may be an index of manifests, to the manifest for
// the store's platform. get fetches a manifest.
func (s *Store) resolveManifest(m manifest, get func(v1.Hash) (manifest, error)) (manifest, *v1.Manifest, error) {
	for range 4 { // an index may hold an index, but nobody goes deeper
		if m.isIndex() {
			index, err := v1.ParseIndexManifest(bytes.NewReader(m.raw))
			if err != nil {
				return m, nil, newDamageError(err, "its index cannot be read")
			}
			d, err := s.selectPlatform(index.Manifests)
			if err != nil {
				return m, nil, err
			}
			if m, err = get(d.Digest); err != nil {
				return m, nil, err
			}
			if m.mediaType == "" {
				m.mediaType = d.MediaType
			}
			continue
		}
		if m.mediaType == types.DockerManifestSchema1 || m.mediaType == types.DockerManifestSchema1Signed {
			return m, nil, newDamageError(nil, "its manifest has docker's schema 1, which is not supported")
		}
		man, err := v1.ParseManifest(bytes.NewReader(m.raw))
		if err != nil {
			return m, nil, newDamageError(err, "its manifest cannot be read")
		}
		return m, man, checkManifest(man)
	}
	return m, nil, newDamageError(nil, "its indexes are nested too deeply")
}

func (m manifest) isIndex() bool {
	if m.mediaType != "" {
		return m.mediaType.IsIndex()
	}
	var shape struct {
		Manifests json.RawMessage `json:"manifests"`
	}
	return json.Unmarshal(m.raw, &shape) == nil && shape.Manifests != nil
}

// checkManifest checks that m describes a runnable image, and that the sum of its
// sizes does not overflow.
func checkManifest(m *v1.Manifest) error {
	if m.Config.Digest == (v1.Hash{}) || m.Config.Size < 0 || m.Config.Size > maxConfig {
		return newDamageError(nil, "its manifest has no valid configuration")
	}
	if !m.Config.MediaType.IsConfig() {
		return newDamageError(nil, "its media type is %s, not that of an image", m.Config.MediaType)
	}
	total := m.Config.Size
	for _, l := range m.Layers {
		if l.Size < 0 || l.Size > math.MaxInt64-total || l.Digest == (v1.Hash{}) {
			return newDamageError(nil, "its manifest names a layer without digest or size")
		}
		total += l.Size
	}
	return nil
}

// fetchSize returns the number of bytes to fetch for the image of m, which has passed
// checkManifest.
func fetchSize(m *v1.Manifest) int64 {
	total := m.Config.Size
	for _, l := range m.Layers {
		total += l.Size
	}
	return total
}

// selectPlatform returns the manifest for the store's platform. It also accepts a
// manifest without a platform if it is the only one.
func (s *Store) selectPlatform(list []v1.Descriptor) (v1.Descriptor, error) {
	var have []string
	for _, d := range list {
		if d.Platform != nil && d.Platform.Satisfies(s.platform) {
			return d, nil
		}
		if d.Platform != nil && d.Platform.OS != "unknown" { // attestations
			have = append(have, d.Platform.String())
		}
	}
	if len(list) == 1 && list[0].Platform == nil {
		return list[0], nil
	}
	return v1.Descriptor{}, newNotFoundError("has no image for %s, only for %s", s.platform, clipText(strings.Join(have, ", ")))
}

// A notFoundError says that an image or tag does not exist.
type notFoundError string

func newNotFoundError(format string, args ...any) error {
	return notFoundError(fmt.Sprintf(format, args...))
}

func (a notFoundError) Error() string { return string(a) }

// A meter counts the bytes of a pull. Its methods are safe for concurrent use.
type meter struct {
	fetched, toFetch   atomic.Int64
	unpacked, toUnpack atomic.Int64
}

func (m *meter) currentProgress(ref string) atoll.Progress {
	if done, total := m.fetched.Load(), m.toFetch.Load(); done < total {
		return atoll.Progress{Phase: "pull", Item: ref, Done: done, Total: total}
	}
	if total := m.toUnpack.Load(); total > 0 {
		return atoll.Progress{Phase: "unpack", Item: ref, Done: min(m.unpacked.Load(), total), Total: total}
	}
	return atoll.Progress{}
}

// A countingReader adds the bytes it reads to a counter, and fails when ctx has ended:
// a decompressor may read much input before it returns anything.
type countingReader struct {
	ctx context.Context
	r   io.Reader
	n   *atomic.Int64
}

func (c countingReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}
