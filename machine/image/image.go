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

// An Image is one that is unpacked, with what its configuration says about
// running it.
type Image struct {
	// Ref is the name it was asked for by, in full ("docker.io/library/python:3.11-slim").
	Ref string `json:"ref,omitempty"`
	// Digest is that of the manifest for one platform. For an image from a
	// docker archive, which has none, it is that of the configuration (docker's
	// image id); for a plain directory it is empty.
	Digest string `json:"digest"`
	// Root is the directory that holds the root file system. It is shared and
	// must not be written to.
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
	Used     time.Time   `json:"used,omitzero"` // when it was last got or held
}

// A record is what the store writes down about an image.
type record struct {
	Image
	Blobs []string `json:"blobs,omitempty"` // of the configuration and layers, as fetched
}

// Hold keeps the image from being removed, by any process, until the file that
// it returns is closed. The file may be inherited by another process, which
// then holds the image too. Many may hold one image. Kinds: ErrNotExist when
// the image was removed since Get: get it again.
func (im *Image) Hold() (*os.File, error) {
	if im.Digest == "" { // a directory of the user's, which is never removed
		f, err := os.Open(im.Root)
		if err != nil {
			return nil, atoll.E("hold", im.Ref, atoll.KindOf(err), err)
		}
		return f, nil
	}
	path := filepath.Join(filepath.Dir(im.Root), lockName)
	f, err := tryLock(path, lockShared)
	for err == fsutil.ErrLocked { // for the moment in which a Prune decides about it
		time.Sleep(time.Millisecond)
		f, err = tryLock(path, lockShared)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, atoll.Errorf("hold", im.Ref, atoll.ErrNotExist, "image %s was removed", im.Digest)
	}
	if err != nil {
		return nil, atoll.E("hold", im.Ref, atoll.KindOf(err), err)
	}
	touch(path)
	return f, nil
}

// Names in the directory of an image.
const (
	recordName = "image.json"
	lockName   = "lock" // its modification time is that of the last use
	rootName   = "root"
)

// touch notes that the image whose lock file is at path is used now. It is a
// hint for Prune: one that cannot be written down is no failure.
func touch(path string) {
	now := time.Now()
	os.Chtimes(path, now, now)
}

// lookup finds the image with digest h among those unpacked. It is
// fs.ErrNotExist if there is none, and if its record is damaged.
func (s *Store) lookup(h v1.Hash) (*record, error) {
	dir := s.path(rootsDir, file(h))
	b, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		return nil, s.storage(err)
	}
	var rec record
	if err := json.Unmarshal(b, &rec); err != nil || rec.Digest != h.String() {
		return nil, &fs.PathError{Op: "understand", Path: filepath.Join(dir, recordName), Err: fs.ErrNotExist}
	}
	fi, err := os.Stat(filepath.Join(dir, lockName))
	if err != nil {
		return nil, s.storage(err)
	}
	rec.Root, rec.Used = filepath.Join(dir, rootName), fi.ModTime()
	return &rec, nil
}

// cached finds the image that r names without asking anyone, or nil.
func (s *Store) cached(r reference) (*Image, error) {
	rec, h, err := s.find(r)
	if rec == nil {
		return nil, err
	}
	touch(s.path(rootsDir, file(h), lockName))
	rec.Ref = r.text
	return &rec.Image, nil
}

// find finds the image that r names, if it is unpacked, and by which digest.
func (s *Store) find(r reference) (*record, v1.Hash, error) {
	for _, h := range []v1.Hash{r.digest, s.resolved(r.text)} {
		rec, err := s.lookup(h)
		if err == nil {
			return rec, h, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, v1.Hash{}, err
		}
	}
	return nil, v1.Hash{}, nil
}

// Digest is that of the image which Get of ref would return now if it need not
// ask anyone; "" for one that is read from a path. It does not count as a use.
// Kinds: ErrInvalid, ErrNotExist (it is not kept).
func (s *Store) Digest(ref string) (string, error) {
	r, err := parse(ref)
	if err != nil {
		return "", atoll.E("image", ref, atoll.ErrInvalid, err)
	}
	if r.kind != fromRegistry && r.kind != fromStore {
		return "", nil
	}
	rec, _, err := s.find(r)
	if err != nil {
		return "", err
	}
	if rec == nil {
		return "", atoll.Errorf("image", ref, atoll.ErrNotExist, "no such image in %s", s.dir)
	}
	return rec.Digest, nil
}

// A tag is the record of what a reference was found to mean.
type tag struct {
	Ref      string `json:"ref"`
	Platform string `json:"platform"`
	Digest   string `json:"digest"`
}

func (s *Store) tagPath(ref, platform string) string {
	sum := sha256.Sum256([]byte(ref + "\x00" + platform))
	return s.path(refsDir, hex.EncodeToString(sum[:16]))
}

// resolved returns the digest that ref meant when it was last asked for, else
// the zero Hash.
func (s *Store) resolved(ref string) v1.Hash {
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

// setTag writes down that ref means the image with digest h.
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

// Tag gives the image that ref names in the store another name, which is taken
// from the image that had it. Names below LocalPrefix are never pulled. It
// fetches nothing. Kinds: ErrInvalid, ErrNotExist.
func (s *Store) Tag(ctx context.Context, ref, as string) error {
	from, err := parse(ref)
	if err != nil {
		return atoll.E("tag", ref, atoll.ErrInvalid, err)
	}
	to, err := parse(as)
	if err != nil {
		return atoll.E("tag", as, atoll.ErrInvalid, err)
	}
	if to.path != "" || to.digest != (v1.Hash{}) {
		return atoll.Errorf("tag", as, atoll.ErrInvalid, "use a name with a tag, such as %sbase:1", LocalPrefix)
	}
	img, err := s.cached(from)
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
		return atoll.Errorf("tag", ref, atoll.ErrInvalid, "a directory that is used in place cannot be given a name")
	}
	if err := s.setTag(to.text, h); err != nil {
		return s.storage(err)
	}
	return nil
}

// List returns the images of the store, one for each name that they have,
// sorted by name. One without a name has its digest as Ref.
func (s *Store) List(ctx context.Context) ([]Image, error) {
	recs, err := s.records()
	if err != nil {
		return nil, err
	}
	tags, err := s.tags()
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

// records returns all images by digest. One that cannot be read is left out: it
// counts as missing.
func (s *Store) records() (map[string]*record, error) {
	entries, err := os.ReadDir(s.path(rootsDir))
	if err != nil {
		return nil, s.storage(err)
	}
	recs := map[string]*record{}
	for _, e := range entries {
		algorithm, sum, _ := strings.Cut(e.Name(), "-")
		h, err := v1.NewHash(algorithm + ":" + sum)
		if err != nil {
			continue
		}
		if rec, err := s.lookup(h); err == nil {
			recs[h.String()] = rec
		}
	}
	return recs, nil
}

// tags returns what all references mean, by the path of the file that says so.
func (s *Store) tags() (map[string]tag, error) {
	entries, err := os.ReadDir(s.path(refsDir))
	if err != nil {
		return nil, s.storage(err)
	}
	tags := map[string]tag{}
	for _, e := range entries {
		path := s.path(refsDir, e.Name())
		if t, err := readTag(path); err == nil {
			tags[path] = t
		}
	}
	return tags, nil
}
