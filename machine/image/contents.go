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

// contents is what an image is made of, found out but not yet unpacked.
type contents struct {
	digest v1.Hash
	config *v1.ConfigFile
	layers []layer
	blobs  []string // what the store keeps of it as it was fetched

	// fetch starts to make the layers ready, if they are not at hand; the
	// function it returns waits for the end of that. It may be nil.
	fetch func(ctx context.Context) (wait func())
}

// A layer is a tar stream, perhaps compressed.
type layer struct {
	name   string  // its digest, for messages
	diffID v1.Hash // of the tar stream
	size   int64   // of what open gives
	// open blocks until the layer is at hand. What it gives is not checked
	// against anything yet.
	open func(ctx context.Context) (io.ReadCloser, error)
}

// Limits on what describes an image.
const (
	maxManifest = 4 << 20
	maxConfig   = 16 << 20
	maxLayers   = 512 // docker's is 127
)

// parseConfig reads an image's configuration and checks that it describes as
// many layers as there are.
func parseConfig(raw []byte, layers int) (*v1.ConfigFile, error) {
	config, err := v1.ParseConfigFile(bytes.NewReader(raw))
	if err != nil {
		return nil, damaged(err, "its configuration cannot be read")
	}
	if n := len(config.RootFS.DiffIDs); n != layers {
		return nil, damaged(nil, "it has %d layers and describes %d", layers, n)
	}
	if layers > maxLayers {
		return nil, tooBig("has %d layers, more than %d", layers, maxLayers)
	}
	return config, nil
}

// A manifest is one that has been fetched and checked against its digest.
type manifest struct {
	digest    v1.Hash
	mediaType types.MediaType
	raw       []byte
}

// choose follows m, which may be an index of manifests, to the manifest for the
// platform. get fetches another one.
func (s *Store) choose(m manifest, get func(v1.Hash) (manifest, error)) (manifest, *v1.Manifest, error) {
	for range 4 { // an index may hold an index, but nobody goes deeper
		if m.isIndex() {
			index, err := v1.ParseIndexManifest(bytes.NewReader(m.raw))
			if err != nil {
				return m, nil, damaged(err, "its index cannot be read")
			}
			d, err := s.pick(index.Manifests)
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
			return m, nil, damaged(nil, "it is in docker's first format, which is no longer read")
		}
		man, err := v1.ParseManifest(bytes.NewReader(m.raw))
		if err != nil {
			return m, nil, damaged(err, "its manifest cannot be read")
		}
		return m, man, checkManifest(man)
	}
	return m, nil, damaged(nil, "its index goes too deep")
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

// checkManifest checks that m describes an image that can be run, in sizes that
// can be added up.
func checkManifest(m *v1.Manifest) error {
	if m.Config.Digest == (v1.Hash{}) || m.Config.Size < 0 || m.Config.Size > maxConfig {
		return damaged(nil, "its manifest names no configuration that can be read")
	}
	if !m.Config.MediaType.IsConfig() {
		return damaged(nil, "it is a %s, which cannot be run", m.Config.MediaType)
	}
	total := m.Config.Size
	for _, l := range m.Layers {
		if l.Size < 0 || l.Size > math.MaxInt64-total || l.Digest == (v1.Hash{}) {
			return damaged(nil, "its manifest names a layer without digest or size")
		}
		total += l.Size
	}
	return nil
}

// fetchSize returns how much has to be fetched for the image that m, which is
// checked, describes.
func fetchSize(m *v1.Manifest) int64 {
	total := m.Config.Size
	for _, l := range m.Layers {
		total += l.Size
	}
	return total
}

// pick finds the manifest for the store's platform. Without a platform of its
// own, a manifest is taken when it is the only one.
func (s *Store) pick(list []v1.Descriptor) (v1.Descriptor, error) {
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
	return v1.Descriptor{}, missing("has no image for %s, only for %s", s.platform, clip(strings.Join(have, ", ")))
}

// An absence is something named that is not there.
type absence string

func missing(format string, args ...any) error { return absence(fmt.Sprintf(format, args...)) }

func (a absence) Error() string { return string(a) }

// A meter counts bytes. Its methods may be called at once.
type meter struct {
	fetched, toFetch   atomic.Int64
	unpacked, toUnpack atomic.Int64
}

func (m *meter) progress(ref string) atoll.Progress {
	if done, total := m.fetched.Load(), m.toFetch.Load(); done < total {
		return atoll.Progress{Phase: "pull", Item: ref, Done: done, Total: total}
	}
	if total := m.toUnpack.Load(); total > 0 {
		return atoll.Progress{Phase: "unpack", Item: ref, Done: min(m.unpacked.Load(), total), Total: total}
	}
	return atoll.Progress{}
}

// A countingReader adds what is read to a counter, until ctx ends: much that is
// compressed may stand for nothing.
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
