package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

func TestStore(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "volumes"))
	if err != nil {
		t.Fatal(err)
	}
	id := atoll.NewID()
	for _, v := range [][2]string{{"b", "cache"}, {"a", "cache"}, {"a", DataName(id)}, {"a", "cache"}, {"a", "data-x"}} {
		if err := s.Make(v[0], v[1]); err != nil || !s.Has(v[0], v[1]) {
			t.Errorf("Make(%s, %s): %v", v[0], v[1], err)
		}
	}
	if err := os.WriteFile(filepath.Join(s.Path("a", "cache"), "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	sealed := filepath.Join(s.Path("a", "cache"), "sealed")
	if err := os.MkdirAll(filepath.Join(sealed, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(sealed, 0); err != nil {
		t.Fatal(err)
	}
	all, err := s.List("")
	if err != nil {
		t.Fatal(err)
	}
	var names string
	for _, v := range all {
		names += v.Project + "/" + v.Name + " "
		if (v.Sandbox == id) != (v.Name == DataName(id)) || time.Since(v.Created).Abs() > testenv.Scale(time.Minute) {
			t.Errorf("volume %+v", v)
		}
	}
	if want := "a/cache a/" + DataName(id) + " a/data-x b/cache "; names != want {
		t.Errorf("List: %s, want %s", names, want)
	}
	if of, err := s.List("b"); err != nil || len(of) != 1 {
		t.Errorf("List(b): %+v, %v", of, err)
	}
	if err := s.Remove("a", "cache", nil); err != nil {
		t.Error(err)
	}
	for _, v := range [][2]string{{"a", "cache"}, {"a", "../b"}, {"..", "volumes"}, {"none", "x"}, {"", ""}} {
		if err := s.Remove(v[0], v[1], nil); !errors.Is(err, atoll.ErrNotExist) {
			t.Errorf("Remove(%q, %q): %v, want ErrNotExist", v[0], v[1], err)
		}
	}
	if err := s.Make("a", "../x"); !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("Make: %v, want ErrInvalid", err)
	}
	if err := s.Remove("b", "cache", nil); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(s.Path("b", "")); err == nil {
		t.Error("the directory of a project without volumes is left")
	}
}

// A sandbox cannot mount a data volume, however its id is spelled.
func TestMountable(t *testing.T) {
	id := atoll.NewID()
	for source, want := range map[string]atoll.Kind{
		"cache": "", "data": "", "data-": "", "data-x": "", id: "",
		DataName(id): atoll.ErrInvalid, DataName(strings.ToUpper(id)): atoll.ErrInvalid,
		DataName(id[:8] + "-" + id[8:12] + "-" + id[12:16] + "-" + id[16:20] + "-" + id[20:]): atoll.ErrInvalid,
	} {
		err := CheckMounts(&atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: source, Target: "/work/v"}}})
		if got := atoll.KindOf(err); got != want {
			t.Errorf("%s: %v (%q), want %q", source, err, got, want)
		}
	}
	if err := CheckMounts(&atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: DataName(id)}}}); err != nil {
		t.Errorf("a bind mount: %v", err)
	}
}

func openStore(t *testing.T) Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "volumes"))
	mustSucceed(t, err)
	return s
}

func mustSucceed(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Remove fails if the volume is in use, or if used fails.
func TestRemoveInUse(t *testing.T) {
	s := openStore(t)
	mustSucceed(t, s.Make("p", "v"))
	unknown := atoll.Errorf("list", "", atoll.ErrInternal, "disk on fire")
	for _, tt := range []struct {
		used bool
		err  error
		want atoll.Kind
	}{{true, nil, atoll.ErrConflict}, {false, unknown, atoll.ErrInternal}, {false, nil, ""}} {
		err := s.Remove("p", "v", func() (bool, error) { return tt.used, tt.err })
		if atoll.KindOf(err) != tt.want || tt.err != nil && !errors.Is(err, tt.err) || s.Has("p", "v") != (tt.want != "") {
			t.Errorf("used %v, %v: %v, want %q; it exists: %v", tt.used, tt.err, err, tt.want, s.Has("p", "v"))
		}
	}
}

// A caller that registers as a user before Make has a volume that stays, whatever others remove.
func TestMakeAndRemoveAtOnce(t *testing.T) {
	s := openStore(t)
	var mu sync.Mutex
	used := 0
	count := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		used += n
	}
	users, removers := sync.WaitGroup{}, sync.WaitGroup{}
	done := make(chan struct{})
	for range 2 {
		removers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				err := s.Remove("p", "v", func() (bool, error) {
					mu.Lock()
					defer mu.Unlock()
					return used > 0, nil
				})
				if k := atoll.KindOf(err); err != nil && k != atoll.ErrNotExist && k != atoll.ErrConflict {
					t.Error(err)
				}
			}
		})
		users.Go(func() {
			for i := range 300 {
				count(1)
				if err := s.Make("p", "v"); err != nil {
					t.Error(err)
				}
				name := filepath.Join(s.Path("p", "v"), fmt.Sprintf("%p-%d", &i, i))
				if err := os.WriteFile(name, nil, 0o644); err != nil {
					t.Error(err)
				}
				if _, err := os.Stat(name); err != nil {
					t.Error(err)
				}
				count(-1)
			}
		})
	}
	users.Wait()
	close(done)
	removers.Wait()
}

// Other callers see a volume that is being removed as a whole or not at all.
func TestRemovedAtOnce(t *testing.T) {
	s := openStore(t)
	mustSucceed(t, s.Make("p", "v"))
	const files = 500
	for i := range files {
		mustSucceed(t, os.WriteFile(filepath.Join(s.Path("p", "v"), fmt.Sprint(i)), nil, 0o644))
	}
	removed := make(chan error, 1)
	go func() { removed <- s.Remove("p", "v", nil) }()
	for s.Has("p", "v") {
		for i := range files {
			if _, err := os.Lstat(filepath.Join(s.Path("p", "v"), fmt.Sprint(i))); errors.Is(err, fs.ErrNotExist) && s.Has("p", "v") {
				t.Fatalf("file %d is gone, and the volume is not", i)
			}
		}
	}
	mustSucceed(t, <-removed)
}

// An interrupted removal leaves no volume, and EmptyTrash finishes it.
func TestEmptyTrash(t *testing.T) {
	s := openStore(t)
	mustSucceed(t, s.Make("p", "v"))
	mustSucceed(t, s.Make("p", "w"))
	left := s.Path("p", trashPrefix+"x")
	mustSucceed(t, os.Rename(s.Path("p", "v"), left))
	if list, err := s.List(""); len(list) != 1 || list[0].Name != "w" || err != nil {
		t.Errorf("List: %+v, %v, want w", list, err)
	}
	mustSucceed(t, s.EmptyTrash())
	if _, err := os.Lstat(left); !errors.Is(err, fs.ErrNotExist) || !s.Has("p", "w") {
		t.Errorf("the trash: %v, want only the trash removed", err)
	}
}

// The work directory and volumes are on volumes, other mounts are not.
func TestDirs(t *testing.T) {
	spec := &atoll.Spec{Mounts: []atoll.Mount{
		{Type: atoll.MountVolume, Source: "data", Target: "/data"}, {Type: atoll.MountTmpfs, Target: "/tmp"}, {Type: atoll.MountBind, Source: "/src", Target: "/src"},
	}}
	if got := MountedDirs(spec); !slices.Equal(got, []string{atoll.DefaultWorkdir, "/data"}) {
		t.Errorf("Dirs: %q", got)
	}
}

// A prepared directory becomes a volume, and never replaces one.
func TestMakeFrom(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "volumes"))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "prepared")
	if err := s.Prepare(dir); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(dir)
	if err == nil {
		err = s.MakeFrom(dir, "p", "v")
	}
	if err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(s.Path("p", "v"))
	if err != nil || !os.SameFile(before, after) || after.Mode().Perm() != 0o755 {
		t.Errorf("the volume is %v, %v, want the prepared directory", after, err)
	}
	if err := s.Prepare(dir); err != nil {
		t.Fatal(err)
	}
	if err := s.MakeFrom(dir, "p", "v"); atoll.KindOf(err) != atoll.ErrAlreadyExists {
		t.Errorf("once more: %v, want ErrAlreadyExists", err)
	}
	if all, err := s.List(""); err != nil || len(all) != 1 {
		t.Errorf("volumes: %+v, %v", all, err)
	}
}
