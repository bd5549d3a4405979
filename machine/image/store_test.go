//go:build linux

package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	. "github.com/seed46cd37a8/atoll/internal/testing/testimage"
)

// openStore opens a store in a directory of the test's own, without
// credentials, and with short waits between attempts. At the test's end nothing
// half-done may be in it.
func openStore(t testing.TB, opts Options) *Store {
	t.Helper()
	return openStoreIn(t, t.TempDir(), opts)
}

func openStoreIn(t testing.TB, dir string, opts Options) *Store {
	t.Helper()
	t.Setenv("DOCKER_CONFIG", filepath.Join(dir, "no-docker-config"))
	s, err := Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	s.backoff = time.Millisecond
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		nothingHalfDone(t, dir)
		if err := fsutil.RemoveAll(s.storePath(rootsDir)); err != nil {
			t.Error(err)
		}
	})
	return s
}

func nothingHalfDone(t testing.TB, dir string) {
	t.Helper()
	locks, err := os.ReadDir(filepath.Join(dir, locksDir))
	if err != nil || len(locks) > 0 {
		t.Errorf("left in %s: %v, %v", locksDir, locks, err)
	}
	temps, err := os.ReadDir(filepath.Join(dir, tempsDir))
	if err != nil {
		t.Error(err)
	}
	for _, e := range temps {
		path := filepath.Join(dir, tempsDir, e.Name())
		if l, err := tryLock(path, lockExclusive); err == nil { // else another Store is at work there
			l.Close()
			t.Errorf("left: %s", path)
		}
	}
}

// noLeaks checks that no goroutine is left when all that the test opens after
// it is closed.
func noLeaks(t *testing.T) {
	now := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		if err := testenv.AwaitGoroutines(now); err != nil {
			t.Error("goroutines are left:", err)
		}
	})
}

func mustGet(t testing.TB, s *Store, ref string) *Image {
	t.Helper()
	img, err := s.Get(t.Context(), ref, nil)
	if err != nil {
		t.Fatalf("Get(%q): %v", ref, err)
	}
	return img
}

func wantKind(t testing.TB, what string, err error, kind atoll.Kind, parts ...string) {
	t.Helper()
	if err == nil || atoll.KindOf(err) != kind {
		t.Errorf("%s: got %v (kind %q), want kind %q", what, err, atoll.KindOf(err), kind)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s: got %q, want %q in it", what, err, part)
		}
	}
}

func digestOf(t testing.TB, img interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	h, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

func simpleImage(t testing.TB, body string) v1.Image {
	t.Helper()
	return New(t, v1.Config{}, Layer(t, File("f", 0o644, body)))
}

func TestGetFromRegistry(t *testing.T) {
	noLeaks(t)
	r := Serve(t)
	src := New(t, v1.Config{
		Env: []string{"A=1"}, Entrypoint: []string{"/bin/e"}, Cmd: []string{"c", "d"}, User: "me", WorkingDir: "/w",
		ExposedPorts: map[string]struct{}{"80/tcp": {}, "53/udp": {}},
	}, Layer(t, File("etc/motd", 0o644, "hi")), Layer(t, File("etc/other", 0o600, "ho")))
	ref := r.Push("team/app:1", src)

	dir := t.TempDir()
	s := openStoreIn(t, dir, Options{})
	var reports []atoll.Progress
	got, err := s.Get(t.Context(), ref, func(p atoll.Progress) { reports = append(reports, p) })
	if err != nil {
		t.Fatal(err)
	}
	if got.Ref != ref || got.Digest != digestOf(t, src) || got.Platform != "linux/"+runtime.GOARCH || got.Size != 4 ||
		!slices.Equal(got.Env, []string{"A=1"}) || !slices.Equal(got.Entrypoint, []string{"/bin/e"}) || !slices.Equal(got.Cmd, []string{"c", "d"}) ||
		got.User != "me" || got.Workdir != "/w" || !slices.Equal(got.Ports, []string{"53/udp", "80/tcp"}) {
		t.Errorf("Get = %+v", got)
	}
	want := map[string]string{"etc": "dir", "etc/motd": "hi", "etc/other": "ho"}
	if l := listTree(t, got.Root); !maps.Equal(l, want) {
		t.Errorf("root holds %v, want %v", l, want)
	}
	if n := len(reports); n == 0 || reports[n-1].Phase != "unpack" || reports[n-1].Done != reports[n-1].Total || reports[n-1].Total == 0 || reports[n-1].Item != ref {
		t.Errorf("reports = %+v, want the last one to be the end of unpack", reports)
	}

	asked := len(r.Gets())
	again := mustGet(t, s, ref)
	byDigest := mustGet(t, s, r.Host+"/team/app@"+got.Digest)
	bare := mustGet(t, s, got.Digest)
	other := mustGet(t, openStoreIn(t, dir, Options{Pull: atoll.PullNever}), ref)
	for _, img := range []*Image{again, byDigest, bare, other} {
		if img.Root != got.Root || img.Digest != got.Digest {
			t.Errorf("second Get = %+v, want the same image", img)
		}
	}
	if n := len(r.Gets()); n != asked {
		t.Errorf("the registry was asked %d times more for what was there: %q", n-asked, r.Gets()[asked:])
	}
	for _, sub := range []string{blobsDir, rootsDir, refsDir, tempsDir} {
		if fi, err := os.Stat(filepath.Join(dir, sub)); err != nil || fi.Mode().Perm() != 0o700 {
			t.Errorf("%s: mode %v, %v, want 0700: setuid programs of images must be out of reach", sub, fi.Mode(), err)
		}
	}
}

func TestBusyboxRuns(t *testing.T) {
	r := Serve(t)
	img := mustGet(t, openStore(t, Options{}), r.Push("busybox", Busybox(t)))
	fi, err := os.Stat(filepath.Join(img.Root, "bin/sh"))
	if err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("bin/sh: %v, %v", fi, err)
	}
	box, err := os.Stat(filepath.Join(img.Root, "bin/busybox"))
	if err != nil || !os.SameFile(fi, box) {
		t.Errorf("bin/sh is not bin/busybox: %v", err)
	}
}

func TestPolicies(t *testing.T) {
	r := Serve(t)
	ref := r.Push("app:1", simpleImage(t, "old"))
	s := openStore(t, Options{})
	old := mustGet(t, s, ref)
	r.Push("app:1", simpleImage(t, "new"))

	if img := mustGet(t, s, ref); img.Digest != old.Digest {
		t.Errorf("missing: got another image although one was there")
	}
	img, err := s.GetBy(t.Context(), atoll.PullAlways, ref, nil)
	if err != nil || img.Digest == old.Digest {
		t.Errorf("Pull = %+v, %v, want the new image", img, err)
	}
	if now := mustGet(t, s, ref); now.Digest != img.Digest {
		t.Errorf("after Pull: got %s, want %s", now.Digest, img.Digest)
	}
	if _, err := os.Stat(filepath.Join(old.Root, "f")); err != nil {
		t.Errorf("the old image is gone: %v", err)
	}
	asked := len(r.Gets())
	if _, err := s.GetBy(t.Context(), atoll.PullAlways, ref, nil); err != nil {
		t.Fatal(err)
	}
	if gets := r.Gets()[asked:]; slices.ContainsFunc(gets, func(g string) bool { return strings.HasPrefix(g, "blobs/") }) {
		t.Errorf("pulling what is there fetched %q", gets)
	}
	asked = len(r.Gets())
	if _, err := s.GetBy(t.Context(), atoll.PullAlways, r.Host+"/app@"+img.Digest, nil); err != nil || len(r.Gets()) != asked {
		t.Errorf("a digest was pulled again: %v, %q", err, r.Gets()[asked:])
	}

	never := openStore(t, Options{Pull: atoll.PullNever})
	_, err = never.Get(t.Context(), ref, nil)
	wantKind(t, "never", err, atoll.ErrNotExist, "never")
	if _, err := Open(t.TempDir(), Options{Pull: "sometimes"}); atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("Open with a policy that is none: %v", err)
	}
}

func TestNeverPulled(t *testing.T) {
	s := openStore(t, Options{Transport: noTransport{t}})
	for _, ref := range []string{"atoll-local/x", "atoll-local/x:2", "sha256:" + strings.Repeat("ab", 32)} {
		_, err := s.Get(t.Context(), ref, nil)
		wantKind(t, ref, err, atoll.ErrNotExist, "never pulled")
	}
}

func TestTag(t *testing.T) {
	r := Serve(t)
	s := openStore(t, Options{})
	ref := r.Push("app:1", simpleImage(t, "x"))
	_, err := s.Get(t.Context(), "atoll-local/mine", nil)
	wantKind(t, "before", err, atoll.ErrNotExist)
	wantKind(t, "tag of nothing", s.Tag(t.Context(), ref, "atoll-local/mine"), atoll.ErrNotExist)
	img := mustGet(t, s, ref)
	if err := s.Tag(t.Context(), ref, "atoll-local/mine"); err != nil {
		t.Fatal(err)
	}
	if got := mustGet(t, s, "atoll-local/mine:latest"); got.Digest != img.Digest || got.Ref != "atoll-local/mine:latest" {
		t.Errorf("Get = %+v, want %s", got, img.Digest)
	}
	wantKind(t, "a digest as tag", s.Tag(t.Context(), ref, img.Digest), atoll.ErrInvalid)
	wantKind(t, "a path as tag", s.Tag(t.Context(), ref, "/tmp"), atoll.ErrInvalid)
	wantKind(t, "a bad tag", s.Tag(t.Context(), ref, "Bad Name"), atoll.ErrInvalid)
	wantKind(t, "a directory tagged", s.Tag(t.Context(), "dir:/", "atoll-local/d"), atoll.ErrNotExist)
}

func TestIndex(t *testing.T) {
	r := Serve(t)
	mine := simpleImage(t, "mine")
	theirs := NewFor(t, v1.Platform{OS: "linux", Architecture: "s390x"}, v1.Config{}, Layer(t, File("f", 0, "theirs")))
	other := mutate.IndexAddendum{Add: theirs, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}}
	index := mutate.AppendManifests(empty.Index, other,
		mutate.IndexAddendum{Add: mine, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH, Variant: "v8"}}})
	ref := r.PushIndex("multi:1", index)
	only := r.PushIndex("multi:2", mutate.AppendManifests(empty.Index, other))
	single := r.Push("multi:3", theirs)

	dir := t.TempDir()
	s := openStoreIn(t, dir, Options{})
	if img := mustGet(t, s, ref); img.Digest != digestOf(t, mine) {
		t.Errorf("Get = %s, want this machine's %s", img.Digest, digestOf(t, mine))
	}
	pinned := r.Host + "/multi@" + digestOf(t, index)
	mustGet(t, s, pinned)
	asked := len(r.Gets())
	if img := mustGet(t, s, pinned); img.Digest != digestOf(t, mine) || len(r.Gets()) != asked {
		t.Errorf("by the index's digest: got %s with %d requests", img.Digest, len(r.Gets())-asked)
	}
	foreign := openStoreIn(t, dir, Options{Platform: "linux/s390x"})
	if img := mustGet(t, foreign, ref); img.Digest != digestOf(t, theirs) || img.Platform != "linux/s390x" {
		t.Errorf("for s390x: Get = %+v", img)
	}
	_, err := s.Get(t.Context(), only, nil)
	wantKind(t, "another platform only", err, atoll.ErrNotExist, "linux/s390x", "linux/"+runtime.GOARCH)
	_, err = s.Get(t.Context(), single, nil)
	wantKind(t, "one manifest for another platform", err, atoll.ErrNotExist, "linux/s390x")
	if _, err := Open(t.TempDir(), Options{Platform: "linux"}); atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("Open with half a platform: %v", err)
	}
}

func TestCompressions(t *testing.T) {
	plain := Tar(t, File("f", 0, strings.Repeat("text ", 1000)))
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"f": strings.Repeat("text ", 1000)}
	for name, stream := range map[string][]byte{"gzip": plain, "zstd": z.EncodeAll(plain, nil)} {
		r := Serve(t)
		img := mustGet(t, openStore(t, Options{}), r.Push("app", New(t, v1.Config{}, LayerOf(t, stream))))
		if got := listTree(t, img.Root); !maps.Equal(got, want) {
			t.Errorf("%s: root holds %.50q", name, got)
		}
	}
}

func TestLocalSources(t *testing.T) {
	one, two := simpleImage(t, "one"), simpleImage(t, "two")
	base := t.TempDir()
	ociDir, archive, multi := filepath.Join(base, "oci:x"), filepath.Join(base, "one.tar"), filepath.Join(base, "two.tar")
	l, err := layout.Write(ociDir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	for tag, img := range map[string]v1.Image{"a": one, "b:c": two} {
		if err := l.AppendImage(img, layout.WithAnnotations(map[string]string{refNameAnnotation: tag})); err != nil {
			t.Fatal(err)
		}
	}
	tags := map[name.Tag]v1.Image{}
	for ref, img := range map[string]v1.Image{"one:1": one, "example.com:5000/two:2": two} {
		tag, err := name.NewTag(ref)
		if err != nil {
			t.Fatal(err)
		}
		tags[tag] = img
		if err := tarball.WriteToFile(archive, tag, one); err != nil {
			t.Fatal(err)
		}
	}
	if err := tarball.MultiWriteToFile(multi, tags); err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(base, "plain")
	if err := os.MkdirAll(plain, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(plain, "f"), []byte("one"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, Options{Transport: noTransport{t}})
	for _, tt := range []struct{ ref, want string }{
		{"oci:" + ociDir + ":a", "one"},
		{"oci:" + ociDir + ":b:c", "two"},
		{ociDir + ":a", "one"},
		{"docker-archive:" + archive, "one"},
		{archive, "one"},
		{"docker-archive:" + multi + ":one:1", "one"},
		{"docker-archive:" + multi + ":docker.io/library/one:1", "one"},
		{multi + ":example.com:5000/two:2", "two"},
		{"dir:" + plain, "one"},
		{plain, "one"},
	} {
		for range 2 {
			img := mustGet(t, s, tt.ref)
			if got := listTree(t, img.Root); got["f"] != tt.want {
				t.Errorf("%s: root holds %v, want f = %s", tt.ref, got, tt.want)
			}
			hold, err := img.Hold()
			if err != nil {
				t.Errorf("%s: Hold: %v", tt.ref, err)
				continue
			}
			hold.Close()
		}
	}
	if img := mustGet(t, s, plain); img.Root != plain || img.Digest != "" {
		t.Errorf("a directory: %+v, want it in place and without a digest", img)
	}
	// A layout's image is the same image as the registry's.
	if img := mustGet(t, s, digestOf(t, one)); img.Digest != digestOf(t, one) {
		t.Errorf("by digest: %+v", img)
	}
	for ref, kind := range map[string]atoll.Kind{
		"oci:" + base + "/nothing":                    atoll.ErrNotExist,
		"oci:" + plain:                                atoll.ErrNotExist,
		"oci:" + ociDir + ":z":                        atoll.ErrNotExist,
		"docker-archive:" + base + "/nothing.tar":     atoll.ErrNotExist,
		"docker-archive:" + multi:                     atoll.ErrInvalid, // which of the two?
		"docker-archive:" + multi + ":three":          atoll.ErrNotExist,
		"docker-archive:" + filepath.Join(plain, "f"): atoll.ErrInvalid,
		"docker-archive:" + plain:                     atoll.ErrInvalid,
		"dir:" + base + "/nothing":                    atoll.ErrNotExist,
		"dir:" + archive:                              atoll.ErrInvalid,
		base + "/nothing":                             atoll.ErrNotExist,
		"dir:relative":                                atoll.ErrInvalid,
		"oci:relative":                                atoll.ErrInvalid,
	} {
		_, err := s.Get(t.Context(), ref, nil)
		wantKind(t, ref, err, kind)
	}
}

// TestArchiveLies has an archive whose layer is not the one that its
// configuration, by whose digest it would be cached, describes.
func TestArchiveLies(t *testing.T) {
	img := simpleImage(t, "truth")
	config, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "a.tar")
	if err := os.WriteFile(path, Tar(t,
		File("manifest.json", 0, `[{"Config":"c.json","Layers":["l.tar"]}]`),
		File("c.json", 0, string(config)),
		File("l.tar", 0, string(Tar(t, File("f", 0, "lie"))))), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = openStore(t, Options{}).Get(t.Context(), path, nil)
	wantKind(t, "Get", err, atoll.ErrInvalid, "instead of")
}

func TestHoldAndPrune(t *testing.T) {
	r := Serve(t)
	dir := t.TempDir()
	s := openStoreIn(t, dir, Options{})
	held := mustGet(t, s, r.Push("held:1", simpleImage(t, "held")))
	idle := mustGet(t, s, r.Push("idle:1", simpleImage(t, "idle")))
	hold, err := held.Hold()
	if err != nil {
		t.Fatal(err)
	}
	second, err := held.Hold()
	if err != nil {
		t.Fatalf("a second Hold: %v", err)
	}
	second.Close()

	if p, err := s.Prune(t.Context(), PruneOptions{Unused: time.Hour}); err != nil || len(p.Images) > 0 || p.Bytes > 0 {
		t.Errorf("Prune of what is an hour old = %+v, %v, want nothing", p, err)
	}
	wantKind(t, "Remove of a held image", s.Remove(t.Context(), held.Ref, nil), atoll.ErrConflict)
	mustGet(t, openStoreIn(t, dir, Options{Pull: atoll.PullNever}), held.Ref)

	p, err := openStoreIn(t, dir, Options{}).Prune(t.Context(), PruneOptions{Unused: -time.Second})
	if err != nil || !slices.Equal(p.Images, []string{idle.Digest}) || p.Bytes <= idle.Size {
		t.Errorf("Prune = %+v, %v, want %s and what was fetched for it", p, err, idle.Digest)
	}
	if _, err := os.Stat(idle.Root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there: %v", idle.Root, err)
	}
	if _, err := idle.Hold(); atoll.KindOf(err) != atoll.ErrNotExist {
		t.Errorf("Hold of a pruned image: %v, want ErrNotExist", err)
	}
	if left, _ := os.ReadDir(s.storePath(blobsDir)); len(left) != 2 {
		t.Errorf("%d blobs left, want the two of the image that is held", len(left))
	}
	hold.Close()
	if err := s.Remove(t.Context(), held.Ref, nil); err != nil {
		t.Errorf("Remove: %v", err)
	}
	wantKind(t, "a second Remove", s.Remove(t.Context(), held.Ref, nil), atoll.ErrNotExist)
	mustGet(t, s, held.Ref) // pulls it again
}

// TestPruneChoice has an image that a user wants to stay, one whose name now
// means another, and one that is like neither.
func TestPruneChoice(t *testing.T) {
	r := Serve(t)
	s := openStore(t, Options{Pull: atoll.PullAlways})
	kept := mustGet(t, s, r.Push("kept:1", simpleImage(t, "kept")))
	old := mustGet(t, s, r.Push("moved:1", simpleImage(t, "old")))
	named := mustGet(t, s, r.Push("moved:1", simpleImage(t, "new")))
	wanted := errors.New("wanted")
	keep := func(digest string) error {
		if digest == kept.Digest {
			return wanted
		}
		return nil
	}
	if err := s.Remove(t.Context(), kept.Ref, keep); !errors.Is(err, wanted) {
		t.Errorf("Remove: got %v, want what keep says", err)
	}
	for _, tt := range []struct {
		opts PruneOptions
		want []string
	}{
		{PruneOptions{Unused: time.Hour, Keep: keep}, nil},
		{PruneOptions{Unused: time.Hour, Unnamed: true, Keep: keep}, nil},
		{PruneOptions{Unused: -time.Hour, Unnamed: true, Keep: keep}, []string{old.Digest}},
		{PruneOptions{Unused: -time.Hour, Unnamed: true, Keep: keep}, nil},
		{PruneOptions{Unused: -time.Hour, Keep: keep}, []string{named.Digest}},
		{PruneOptions{Unused: -time.Hour}, []string{kept.Digest}},
	} {
		if p, err := s.Prune(t.Context(), tt.opts); err != nil || !slices.Equal(p.Images, tt.want) {
			t.Errorf("Prune(%+v) = %+v, %v, want %v", tt.opts, p, err, tt.want)
		}
	}

	// One of several names is not the image.
	img := mustGet(t, s, r.Push("two:1", simpleImage(t, "two")))
	if err := s.Tag(t.Context(), img.Ref, "atoll-local/two:1"); err != nil {
		t.Fatal(err)
	}
	all := func(string) error { return wanted }
	if err := s.Remove(t.Context(), img.Ref, all); err != nil {
		t.Errorf("Remove of one of two names: %v", err)
	}
	if err := s.Remove(t.Context(), "atoll-local/two:1", all); !errors.Is(err, wanted) {
		t.Errorf("Remove of the last name: got %v, want what keep says", err)
	}
}

func TestListAndRemove(t *testing.T) {
	r := Serve(t)
	s := openStore(t, Options{})
	a := mustGet(t, s, r.Push("a:1", simpleImage(t, "a")))
	b := mustGet(t, s, r.Push("b:1", simpleImage(t, "b")))
	if err := s.Tag(t.Context(), a.Ref, "atoll-local/a:2"); err != nil {
		t.Fatal(err)
	}
	refs := func() []string {
		list, err := s.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var refs []string
		for _, img := range list {
			if img.Root == "" || img.Digest == "" || img.Used.IsZero() || img.Unpacked.IsZero() {
				t.Errorf("List has %+v", img)
			}
			refs = append(refs, img.Ref)
		}
		return refs
	}
	want := []string{a.Ref, "atoll-local/a:2", b.Ref}
	slices.Sort(want)
	if got := refs(); !slices.Equal(got, want) {
		t.Errorf("List = %q, want %q", got, want)
	}
	if err := s.Remove(t.Context(), a.Ref, nil); err != nil {
		t.Fatal(err)
	}
	mustGet(t, s, "atoll-local/a:2")
	if err := s.Remove(t.Context(), a.Digest, nil); err != nil {
		t.Fatal(err)
	}
	if got, want := refs(), []string{b.Ref}; !slices.Equal(got, want) {
		t.Errorf("List = %q, want %q", got, want)
	}
	wantKind(t, "Remove of a path", s.Remove(t.Context(), "/tmp", nil), atoll.ErrInvalid)
	wantKind(t, "Remove of no name", s.Remove(t.Context(), "No Name", nil), atoll.ErrInvalid)
}

// TestDamagedRecord has an image in the cache whose record is damaged: Get unpacks it
// again, and retains the directory while a process holds it.
func TestDamagedRecord(t *testing.T) {
	r := Serve(t)
	s := openStore(t, Options{})
	img := mustGet(t, s, r.Push("a:1", simpleImage(t, "a")))
	path := filepath.Join(filepath.Dir(img.Root), recordName)
	for _, damage := range []string{"", "{", "{}", "null"} {
		for _, hold := range []bool{true, false} {
			old, err := os.Open(img.Root)
			if err != nil {
				t.Fatal(err)
			}
			var held *os.File
			if hold {
				if held, err = img.Hold(); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(path, []byte(damage), 0o600); err != nil {
				t.Fatal(err)
			}
			again := mustGet(t, s, img.Ref)
			if again.Digest != img.Digest || again.Size != img.Size {
				t.Errorf("record %q, held: %v: it is %+v now", damage, hold, again)
			}
			if got := listTree(t, again.Root); got["f"] != "a" {
				t.Errorf("record %q, held: %v: root holds %v", damage, hold, got)
			}
			if left, err := old.Readdirnames(0); (len(left) > 0) != hold {
				t.Errorf("record %q, held: %v: the root that there was holds %q, %v", damage, hold, left, err)
			}
			old.Close()
			held.Close() // may be nil
		}
	}

	// An image that cannot be read just now does not count as missing.
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{img.Ref, img.Digest} {
		_, err := s.Get(t.Context(), ref, nil)
		wantKind(t, "Get of what cannot be read", err, atoll.ErrInternal, recordName)
	}
	if got := listTree(t, img.Root); got["f"] != "a" {
		t.Errorf("root holds %v", got)
	}
}

// TestSharedLayers has the same layer twice in an image, and in two images.
func TestSharedLayers(t *testing.T) {
	r := Serve(t)
	shared := Layer(t, File("base", 0, "base"))
	one := New(t, v1.Config{Cmd: []string{"1"}}, shared, shared)
	two := New(t, v1.Config{Cmd: []string{"2"}}, shared, Layer(t, File("f", 0, "2")))
	refs := []string{r.Push("app:1", one), r.Push("app:2", two)}
	s := openStore(t, Options{})
	var wg sync.WaitGroup
	for _, ref := range refs {
		wg.Go(func() {
			if _, err := s.Get(t.Context(), ref, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	n := 0
	for _, g := range r.Gets() {
		if g == "blobs/"+digestOf(t, shared) {
			n++
		}
	}
	if n != 1 {
		t.Errorf("the shared layer was fetched %d times, want once", n)
	}
}

func TestConcurrentGets(t *testing.T) {
	noLeaks(t)
	r := Serve(t)
	img := New(t, v1.Config{}, Layer(t, File("f", 0, "1")), Layer(t, File("g", 0, "2")))
	ref := r.Push("app:1", img)
	dir := t.TempDir()
	stores := []*Store{openStoreIn(t, dir, Options{}), openStoreIn(t, dir, Options{})} // as two processes would be
	var wg sync.WaitGroup
	roots := make([]string, 16)
	for i := range roots {
		wg.Go(func() {
			img, err := stores[i%2].Get(t.Context(), ref, nil)
			if err != nil {
				t.Error(err)
				return
			}
			roots[i] = img.Root
		})
	}
	wg.Wait()
	if len(slices.Compact(roots)) != 1 {
		t.Errorf("16 Gets gave %q, want one root", roots)
	}
	blobs := 0
	for _, g := range r.Gets() {
		if strings.HasPrefix(g, "blobs/") {
			blobs++
		}
	}
	if blobs != 3 { // a configuration, two layers
		t.Errorf("%d blobs were fetched, want each of 3 once: %q", blobs, r.Gets())
	}
}

func TestEveryContextEnds(t *testing.T) {
	s := openStore(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Get(ctx, "example.com/app", nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Get with an ended context: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	_, err = s.Get(t.Context(), "example.com/app", nil)
	wantKind(t, "Get after Close", err, atoll.ErrUnavailable)
	if _, err := s.Prune(t.Context(), PruneOptions{Unused: 0}); err != nil {
		t.Errorf("Prune of nothing after Close: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestParse(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	for ref, want := range map[string]string{
		"python:3.11-slim":                  "docker.io/library/python:3.11-slim",
		"python":                            "docker.io/library/python:latest",
		"team/app":                          "docker.io/team/app:latest",
		"docker.io/team/app:1":              "docker.io/team/app:1",
		"index.docker.io/library/python":    "docker.io/library/python:latest",
		"ghcr.io/team/app:1":                "ghcr.io/team/app:1",
		"localhost:5000/app":                "localhost:5000/app:latest",
		"localhost/app":                     "localhost/app:latest",
		"ghcr.io/team/app@" + digest:        "ghcr.io/team/app@" + digest,
		"ghcr.io/team/app:1@" + digest:      "ghcr.io/team/app@" + digest,
		"atoll-local/base":                  "atoll-local/base:latest",
		"atoll-local/team/base:1":           "atoll-local/team/base:1",
		digest:                              digest,
		"dir:/a/../b/":                      "dir:/b",
		"oci:/no/such/place":                "oci:/no/such/place",
		"docker-archive:/no/such/place.tar": "docker-archive:/no/such/place.tar",
		"/no/such/place":                    "dir:/no/such/place",
	} {
		r, err := parseReference(ref)
		if err != nil || r.text != want {
			t.Errorf("parse(%q) = %q, %v, want %q", ref, r.text, err, want)
		}
	}
	for _, ref := range []string{
		"", " ", "UPPER", "a b", "app:", ":tag", "app@sha256:abc", "sha256:abc", "https://ghcr.io/app", "docker://app",
		"app:tag:tag", "-x", "../x", "./x", "dir:", "oci:", "dir:x", "a//b", strings.Repeat("x", 300),
	} {
		if r, err := parseReference(ref); err == nil {
			t.Errorf("parse(%q) = %+v, want an error", ref, r)
		}
		_, err := openStore(t, Options{Transport: noTransport{t}}).Get(t.Context(), ref, nil)
		wantKind(t, fmt.Sprintf("Get(%q)", ref), err, atoll.ErrInvalid)
	}
}
