//go:build linux

package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// An Image is an unpacked image, with the part of its configuration that says how to
// run it.
type Image struct {
	// Ref is the full name by which the caller asked for it ("docker.io/library/python:3.11-slim").
	Ref string `json:"ref,omitempty"`
	// Digest is the digest of the manifest for one platform. An image from a
	// docker archive has no manifest and gets the digest of its configuration (docker's
	// image id); a plain directory has none.
	Digest string `json:"digest"`
	// Root is the directory that holds the root file system. Sandboxes share it: do
	// not write to it.
	Root string `json:"root,omitempty"`

	Env        []string `json:"env,omitempty"` // "KEY=value"
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	User       string   `json:"user,omitempty"`
	Workdir    string   `json:"workdir,omitempty"`
	Ports      []string `json:"ports,omitempty"` // exposed: "80/tcp", sorted

	Platform string      `json:"platform,omitempty"` // "linux/amd64"
	Size     atoll.Bytes `json:"size,omitempty"`     // of the unpacked files
	Unpacked time.Time   `json:"unpacked,omitzero"`
	Used     time.Time   `json:"used,omitzero"` // time of the last Get or Hold
}

// A record is the store's file about an image.
type record struct {
	Image
	Blobs []string `json:"blobs,omitempty"` // of the configuration and layers, as fetched
}

// Hold prevents any process from removing the image until the returned file is
// closed. A process that inherits the file holds the image too. Any number of
// processes may hold one image. Kinds: ErrNotExist if the image was removed since
// Get: get it again.
func (im *Image) Hold() (*os.File, error) {
	if im.Digest == "" { // a directory of the user, which the store never removes
		f, err := os.Open(im.Root)
		if err != nil {
			return nil, atoll.E("hold", im.Ref, atoll.KindOf(err), err)
		}
		return f, nil
	}
	path := filepath.Join(filepath.Dir(im.Root), lockName)
	f, err := tryLock(path, lockShared)
	for err == fsutil.ErrLocked { // for the moment in which Prune decides about the image
		time.Sleep(time.Millisecond)
		f, err = tryLock(path, lockShared)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, atoll.Errorf("hold", im.Ref, atoll.ErrNotExist, "image %s was removed", im.Digest)
	}
	if err != nil {
		return nil, atoll.E("hold", im.Ref, atoll.KindOf(err), err)
	}
	markUsed(path)
	return f, nil
}

// Names in the directory of an image.
const (
	recordName = "image.json"
	lockName   = "lock" // its modification time records the last use
	rootName   = "root"
)

// markUsed records now as the last use of the image whose lock file is at path. It is
// a hint for Prune: a failure to record it does not matter.
func markUsed(path string) {
	now := time.Now()
	os.Chtimes(path, now, now)
}

// readRecord returns the record of the unpacked image with digest h. The error is
// fs.ErrNotExist if there is no such image, or if its record is damaged.
func (s *Store) readRecord(h v1.Hash) (*record, error) {
	dir := s.storePath(rootsDir, digestName(h))
	b, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		return nil, s.storeError(err)
	}
	var rec record
	if err := json.Unmarshal(b, &rec); err != nil || rec.Digest != h.String() {
		return nil, &fs.PathError{Op: "understand", Path: filepath.Join(dir, recordName), Err: fs.ErrNotExist}
	}
	fi, err := os.Stat(filepath.Join(dir, lockName))
	if err != nil {
		return nil, s.storeError(err)
	}
	rec.Root, rec.Used = filepath.Join(dir, rootName), fi.ModTime()
	return &rec, nil
}

// cachedImage returns the image that r names if the store has it, else nil. It makes
// no request, and counts as a use.
func (s *Store) cachedImage(r reference) (*Image, error) {
	rec, h, err := s.findImage(r)
	if rec == nil {
		return nil, err
	}
	markUsed(s.storePath(rootsDir, digestName(h), lockName))
	rec.Ref = r.text
	return &rec.Image, nil
}

// findImage returns the record and the digest of the image that r names; a nil record
// if it is not unpacked.
func (s *Store) findImage(r reference) (*record, v1.Hash, error) {
	for _, h := range []v1.Hash{r.digest, s.taggedDigest(r.text)} {
		rec, err := s.readRecord(h)
		if err == nil {
			return rec, h, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, v1.Hash{}, err
		}
	}
	return nil, v1.Hash{}, nil
}

// Digest returns the digest of the image that Get of ref would return now without
// asking a registry; "" for an image that is read from a path. It does not count as a
// use. Kinds: ErrInvalid, ErrNotExist (the store does not have it).
func (s *Store) Digest(ref string) (string, error) {
	r, err := parseReference(ref)
	if err != nil {
		return "", atoll.E("image", ref, atoll.ErrInvalid, err)
	}
	if r.kind != fromRegistry && r.kind != fromStore {
		return "", nil
	}
	rec, _, err := s.findImage(r)
	if err != nil {
		return "", err
	}
	if rec == nil {
		return "", atoll.Errorf("image", ref, atoll.ErrNotExist, "no such image in %s", s.dir)
	}
	return rec.Digest, nil
}

// A tag is the store's file about a reference: the digest that it resolved to.
type tag struct {
	Ref      string `json:"ref"`
	Platform string `json:"platform"`
	Digest   string `json:"digest"`
}

func (s *Store) tagPath(ref, platform string) string {
	sum := sha256.Sum256([]byte(ref + "\x00" + platform))
	return s.storePath(refsDir, hex.EncodeToString(sum[:16]))
}

// taggedDigest returns the digest that ref last resolved to, else the zero Hash.
func (s *Store) taggedDigest(ref string) v1.Hash {
	t, err := readTag(s.tagPath(ref, s.platform.String()))
	if err != nil {
		return v1.Hash{}
	}
	h, err := v1.NewHash(t.Digest)
	if err != nil {
		return v1.Hash{}
	}
	return h
}

func readTag(path string) (tag, error) {
	var t tag
	b, err := os.ReadFile(path)
	if err != nil {
		return t, err
	}
	return t, json.Unmarshal(b, &t)
}

// setTag records that ref means the image with digest h.
func (s *Store) setTag(ref string, h v1.Hash) error {
	t := tag{Ref: ref, Platform: s.platform.String(), Digest: h.String()}
	b, err := json.Marshal(t)
	if err != nil {
		return err
	}
	temp, err := s.tempName()
	if err != nil {
		return err
	}
	if err := os.WriteFile(temp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, s.tagPath(ref, t.Platform))
}

// Tag gives the image that ref names in the store another name, and takes that name
// from the image that had it. Get never pulls names below LocalPrefix. Tag fetches
// nothing. Kinds: ErrInvalid, ErrNotExist.
func (s *Store) Tag(ctx context.Context, ref, as string) error {
	from, err := parseReference(ref)
	if err != nil {
		return atoll.E("tag", ref, atoll.ErrInvalid, err)
	}
	to, err := parseReference(as)
	if err != nil {
		return atoll.E("tag", as, atoll.ErrInvalid, err)
	}
	if to.path != "" || to.digest != (v1.Hash{}) {
		return atoll.Errorf("tag", as, atoll.ErrInvalid, "use a name with a tag, such as %sbase:1", LocalPrefix)
	}
	img, err := s.cachedImage(from)
	if from.kind == fromLayout || from.kind == fromArchive {
		img, err = s.Get(ctx, ref, nil)
	}
	if err != nil {
		return err
	}
	if img == nil {
		return atoll.Errorf("tag", ref, atoll.ErrNotExist, "no such image in %s", s.dir)
	}
	h, err := v1.NewHash(img.Digest)
	if err != nil {
		return atoll.Errorf("tag", ref, atoll.ErrInvalid, "cannot tag a directory that is used in place")
	}
	if err := s.setTag(to.text, h); err != nil {
		return s.storeError(err)
	}
	return nil
}

// List returns the images of the store, once for each of their names, sorted by name.
// An image without a name has its digest as Ref.
func (s *Store) List(ctx context.Context) ([]Image, error) {
	recs, err := s.readRecords()
	if err != nil {
		return nil, err
	}
	tags, err := s.readTags()
	if err != nil {
		return nil, err
	}
	var list []Image
	for digest, rec := range recs {
		named := false
		for _, t := range tags {
			if t.Digest == digest {
				named = true
				rec.Ref = t.Ref
				list = append(list, rec.Image)
			}
		}
		if !named {
			rec.Ref = digest
			list = append(list, rec.Image)
		}
	}
	slices.SortFunc(list, func(a, b Image) int { return strings.Compare(a.Ref+a.Platform, b.Ref+b.Platform) })
	return list, nil
}

// readRecords returns the records of all images by digest. It omits an image whose
// record cannot be read, which counts as missing.
func (s *Store) readRecords() (map[string]*record, error) {
	entries, err := os.ReadDir(s.storePath(rootsDir))
	if err != nil {
		return nil, s.storeError(err)
	}
	recs := map[string]*record{}
	for _, e := range entries {
		algorithm, sum, _ := strings.Cut(e.Name(), "-")
		h, err := v1.NewHash(algorithm + ":" + sum)
		if err != nil {
			continue
		}
		if rec, err := s.readRecord(h); err == nil {
			recs[h.String()] = rec
		}
	}
	return recs, nil
}

// readTags returns all tags by the path of their file.
func (s *Store) readTags() (map[string]tag, error) {
	entries, err := os.ReadDir(s.storePath(refsDir))
	if err != nil {
		return nil, s.storeError(err)
	}
	tags := map[string]tag{}
	for _, e := range entries {
		path := s.storePath(refsDir, e.Name())
		if t, err := readTag(path); err == nil {
			tags[path] = t
		}
	}
	return tags, nil
}
