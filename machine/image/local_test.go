//go:build linux

package image

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	. "github.com/seed46cd37a8/atoll/internal/testing/testimage"
)

// TestNestedIndex has a layout whose one entry is an index for two platforms,
// as buildx writes it.
func TestNestedIndex(t *testing.T) {
	mine := simpleImage(t, "mine")
	inner := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: simpleImage(t, "theirs"), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}},
		mutate.IndexAddendum{Add: mine, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}},
		mutate.IndexAddendum{Add: simpleImage(t, "proof"), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"}}})
	dir := t.TempDir()
	if _, err := layout.Write(dir, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: inner})); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, Options{})
	if img := mustGet(t, s, dir); img.Digest != digestOf(t, mine) {
		t.Errorf("Get = %s, want %s", img.Digest, digestOf(t, mine))
	}

	deep := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: mine})
	for range 6 {
		deep = mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: deep})
	}
	dir = t.TempDir()
	if _, err := layout.Write(dir, deep); err != nil {
		t.Fatal(err)
	}
	_, err := openStore(t, Options{}).Get(t.Context(), dir, nil)
	wantKind(t, "an index of an index of ...", err, atoll.ErrInvalid, "too deep")
}

// TestDamagedLayout has damaged layouts.
func TestDamagedLayout(t *testing.T) {
	img := simpleImage(t, "x")
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	blob := func(h v1.Hash) string { return filepath.Join("blobs", h.Algorithm, h.Hex) }
	manifest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), "outside")
	raw, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(outside, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string]func(dir string) error{
		"manifest changed": func(dir string) error { return appendTo(filepath.Join(dir, blob(manifest))) },
		"manifest missing": func(dir string) error { return os.Remove(filepath.Join(dir, blob(manifest))) },
		"config changed":   func(dir string) error { return appendTo(filepath.Join(dir, blob(m.Config.Digest))) },
		"layer changed":    func(dir string) error { return appendTo(filepath.Join(dir, blob(m.Layers[0].Digest))) },
		"layer missing":    func(dir string) error { return os.Remove(filepath.Join(dir, blob(m.Layers[0].Digest))) },
		"index is no JSON": func(dir string) error { return os.WriteFile(filepath.Join(dir, "index.json"), []byte("{"), 0o600) },
		"index is a pipe":  func(dir string) error { return replaceByPipe(filepath.Join(dir, "index.json")) },
		"config is a pipe": func(dir string) error { return replaceByPipe(filepath.Join(dir, blob(m.Config.Digest))) },
		"layer is a pipe":  func(dir string) error { return replaceByPipe(filepath.Join(dir, blob(m.Layers[0].Digest))) },
		"index is endless": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "index.json")), os.Symlink("/dev/zero", filepath.Join(dir, "index.json")))
		},
		"index is too large": func(dir string) error { return os.Truncate(filepath.Join(dir, "index.json"), maxManifest+1) },
		"a link leads out": func(dir string) error {
			path := filepath.Join(dir, blob(m.Config.Digest))
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.Symlink(outside, path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l, err := layout.Write(dir, empty.Index)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.AppendImage(img); err != nil {
				t.Fatal(err)
			}
			if err := damage(dir); err != nil {
				t.Fatal(err)
			}
			_, err = openStore(t, Options{}).Get(t.Context(), dir, nil)
			wantKind(t, "Get", err, atoll.ErrInvalid, "damaged")
		})
	}
}

// replaceByPipe puts a pipe without a writer in the place of a file.
func replaceByPipe(path string) error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) }

// appendTo adds a line end to a file, with which JSON is still the same.
func appendTo(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o600)
}

// TestArchives has docker archives of all kinds.
func TestArchives(t *testing.T) {
	layer := Tar(t, File("f", 0, "x"))
	digest, _, err := v1.SHA256(strings.NewReader(string(layer)))
	if err != nil {
		t.Fatal(err)
	}
	config := func(layers int) Entry {
		ids := strings.TrimSuffix(strings.Repeat(fmt.Sprintf("%q,", digest), layers), ",")
		return File("c.json", 0, fmt.Sprintf(`{"os":"linux","architecture":%q,"rootfs":{"type":"layers","diff_ids":[%s]}}`, runtime.GOARCH, ids))
	}
	manifest := func(layers ...string) Entry {
		return File("manifest.json", 0, fmt.Sprintf(`[{"Config":"c.json","RepoTags":["app:1"],"Layers":["%s"]}]`, strings.Join(layers, `","`)))
	}
	body := File("one/layer.tar", 0, string(layer))
	for _, tt := range []struct {
		name    string
		members entries
		message string // "": it is fine
	}{
		{"plain", entries{config(1), body, manifest("one/layer.tar")}, ""},
		{"compressed layers", entries{config(1), File("one/layer.tar", 0, string(gzipBytes(t, layer))), manifest("one/layer.tar")}, ""},
		{"equal layers are links", entries{config(3), body, Symlink("two/layer.tar", "../one/layer.tar"), Link("three/layer.tar", "two/layer.tar"),
			manifest("one/layer.tar", "two/layer.tar", "three/layer.tar")}, ""},
		{"links in a circle", entries{config(1), Symlink("a", "b"), Symlink("b", "a"), manifest("a")}, "too many links"},
		{"a link to the outside", entries{config(1), Symlink("a", "../../../../etc/passwd"), manifest("a")}, "lacks"},
		{"a layer is missing", entries{config(1), manifest("nothing")}, "lacks"},
		{"the configuration is missing", entries{body, manifest("one/layer.tar")}, "lacks"},
		{"the configuration tells of other layers", entries{config(2), body, manifest("one/layer.tar")}, "has 1 layers and describes 2"},
		{"no manifest", entries{body}, "lacks"},
		{"a manifest that is no JSON", entries{File("manifest.json", 0, "[")}, "manifest.json"},
		{"a configuration that is no JSON", entries{File("c.json", 0, "["), body, manifest("one/layer.tar")}, "configuration"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.tar")
			if err := os.WriteFile(path, Tar(t, tt.members...), 0o600); err != nil {
				t.Fatal(err)
			}
			img, err := openStore(t, Options{}).Get(t.Context(), path, nil)
			if tt.message != "" {
				wantKind(t, "Get", err, atoll.ErrInvalid, tt.message)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := listTree(t, img.Root); got["f"] != "x" {
				t.Errorf("root holds %v", got)
			}
		})
	}
}

// TestArchiveNames has an archive of empty members with long names.
func TestArchiveNames(t *testing.T) {
	var list entries
	for i := range maxMemberNames>>20 + 1 {
		list = append(list, File(fmt.Sprint(i)+strings.Repeat("n", 1<<20-100), 0, ""))
	}
	path := filepath.Join(t.TempDir(), "save.tar")
	if err := os.WriteFile(path, Tar(t, list...), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := openStore(t, Options{}).Get(t.Context(), path, nil)
	wantKind(t, "Get", err, atoll.ErrExhausted, "bytes of names")
}
