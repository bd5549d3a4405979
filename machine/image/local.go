//go:build linux

package image

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
)

// Annotations of a layout's index that name an image.
const (
	refNameAnnotation   = "org.opencontainers.image.ref.name"
	imageNameAnnotation = "io.containerd.image.name"
)

// openLayout returns the contents of an image in an OCI image layout.
func (s *Store) openLayout(r reference) (*contents, error) {
	raw, err := readSmall(filepath.Join(r.path, "index.json"), maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, atoll.Errorf("image", r.text, atoll.ErrNotExist, "no OCI image layout at %s", r.path)
	}
	if err != nil {
		return nil, readError(r, err)
	}
	index := new(v1.IndexManifest)
	if err := json.Unmarshal(raw, index); err != nil {
		return nil, newDamageError(err, "its index.json cannot be read")
	}
	top, err := s.pickTag(r, index.Manifests)
	if err != nil {
		return nil, err
	}
	get := func(h v1.Hash) (manifest, error) {
		raw, err := readBlob(r.path, h, maxManifest)
		return manifest{digest: h, raw: raw}, err
	}
	m, err := get(top.Digest)
	if err != nil {
		return nil, err
	}
	m.mediaType = top.MediaType
	m, man, err := s.resolveManifest(m, get)
	if err != nil {
		return nil, err
	}
	rawConfig, err := readBlob(r.path, man.Config.Digest, maxConfig)
	if err != nil {
		return nil, err
	}
	config, err := parseConfig(rawConfig, len(man.Layers))
	if err != nil {
		return nil, err
	}
	c := &contents{digest: m.digest, config: config}
	for i, l := range man.Layers {
		c.layers = append(c.layers, layer{
			name: l.Digest.String(), diffID: config.RootFS.DiffIDs[i], size: l.Size,
			open: func(context.Context) (io.ReadCloser, error) {
				return openLayoutBlob(r.path, l.Digest)
			},
		})
	}
	return c, nil
}

// pickTag returns the manifest with r's tag in a layout's index; without a tag, the
// only manifest, or the one for the platform.
func (s *Store) pickTag(r reference, list []v1.Descriptor) (v1.Descriptor, error) {
	if r.tag == "" {
		if len(list) == 1 {
			return list[0], nil
		}
		return s.selectPlatform(list)
	}
	var tagged []v1.Descriptor
	for _, d := range list {
		if d.Annotations[refNameAnnotation] == r.tag || d.Annotations[imageNameAnnotation] == r.tag {
			tagged = append(tagged, d)
		}
	}
	switch len(tagged) {
	case 0:
		return v1.Descriptor{}, newNotFoundError("has no tag %q", r.tag)
	case 1:
		return tagged[0], nil
	}
	return s.selectPlatform(tagged)
}

// readBlob returns a blob of a layout after a check against its digest.
func readBlob(dir string, h v1.Hash, limit int64) ([]byte, error) {
	f, err := openLayoutBlob(dir, h)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	hash, err := v1.Hasher(h.Algorithm)
	if err != nil {
		return nil, newDamageError(err, "digest %s", h)
	}
	raw, err := io.ReadAll(io.TeeReader(io.LimitReader(f, limit), hash))
	if err != nil {
		return nil, newDamageError(err, "blob %s cannot be read", h)
	}
	if got := fmt.Sprintf("%x", hash.Sum(nil)); got != h.Hex {
		return nil, newDamageError(nil, "blob %s has digest %s", h, got)
	}
	return raw, nil
}

// openLayoutBlob opens a blob of a layout. It follows no link out of the layout.
func openLayoutBlob(dir string, h v1.Hash) (*os.File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, newDamageError(err, "blob %s cannot be read", h)
	}
	defer root.Close()
	f, err := openRegular(root.OpenFile, filepath.Join("blobs", h.Algorithm, h.Hex))
	if err != nil {
		return nil, newDamageError(err, "blob %s cannot be read", h)
	}
	return f, nil
}

// openRegular opens a file with open, such as os.OpenFile, and refuses all but regular
// files, such as pipes, where a read could block.
func openRegular(open func(string, int, fs.FileMode) (*os.File, error), name string) (*os.File, error) {
	f, err := open(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		f.Close()
		return nil, cmp.Or(err, newDamageError(nil, "%s is not a regular file", name))
	}
	return f, nil
}

// openArchive returns the contents of an image in a file that docker save wrote.
func (s *Store) openArchive(r reference) (*contents, error) {
	fi, err := os.Stat(r.path)
	if err != nil {
		return nil, readError(r, err)
	}
	if !fi.Mode().IsRegular() {
		return nil, atoll.Errorf("image", r.text, atoll.ErrInvalid, "%s is not a file that docker save wrote", r.path)
	}
	a, err := scanArchive(r.path)
	if err != nil {
		return nil, err
	}
	raw, err := a.readMember("manifest.json", maxManifest)
	if err != nil {
		return nil, err
	}
	var list []archiveManifest
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, newDamageError(err, "its manifest.json cannot be read")
	}
	d, err := pickArchived(r, list)
	if err != nil {
		return nil, err
	}
	if raw, err = a.readMember(d.Config, maxConfig); err != nil {
		return nil, err
	}
	config, err := parseConfig(raw, len(d.Layers))
	if err != nil {
		return nil, err
	}
	digest, _, err := v1.SHA256(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	c := &contents{digest: digest, config: config}
	for i, name := range d.Layers {
		m, err := a.findMember(name)
		if err != nil {
			return nil, err
		}
		c.layers = append(c.layers, layer{
			name: name, diffID: config.RootFS.DiffIDs[i], size: m.size,
			open: func(context.Context) (io.ReadCloser, error) { return a.openMember(m) },
		})
	}
	return c, nil
}

// An archiveManifest describes one image in the manifest.json of a docker archive.
type archiveManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// pickArchived returns the image with r's tag, or the only image.
func pickArchived(r reference, list []archiveManifest) (*archiveManifest, error) {
	if r.tag == "" {
		if len(list) != 1 {
			return nil, newDamageError(nil, "it holds %d images: add :NAME for one of them", len(list))
		}
		return &list[0], nil
	}
	want, err := parseRemote(r.tag)
	if err != nil {
		return nil, atoll.E("image", r.text, atoll.ErrInvalid, err)
	}
	for i, d := range list {
		for _, tag := range d.RepoTags {
			if have, err := parseRemote(tag); err == nil && have.text == want.text {
				return &list[i], nil
			}
		}
	}
	return nil, newNotFoundError("does not hold %s", r.tag)
}

func readError(r reference, err error) error {
	if bad := (*damageError)(nil); errors.As(err, &bad) {
		return err
	}
	return atoll.E("image", r.text, atoll.KindOf(err), err)
}

// readSmall returns the content of a regular file. More than limit bytes are an error.
func readSmall(name string, limit int64) ([]byte, error) {
	f, err := openRegular(os.OpenFile, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(raw)) > limit {
		err = newDamageError(nil, "%s is larger than %d bytes", name, limit)
	}
	return raw, err
}
