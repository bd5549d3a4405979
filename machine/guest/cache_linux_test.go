package guest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll/internal/userdb"
)

// homeAndCache returns a home directory, which the environment names, with what
// the script makes in it, and a cache.
func homeAndCache(t *testing.T, make func(home string)) (home, cache string) {
	t.Helper()
	home, cache = t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	if make != nil {
		make(home)
	}
	return home, cache
}

func mkdir(t *testing.T, name ...string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(name...), 0o755); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, name ...string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(name...), []byte("own"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, to string, name ...string) {
	t.Helper()
	if err := os.Symlink(to, filepath.Join(name...)); err != nil {
		t.Fatal(err)
	}
}

func TestLinkCaches(t *testing.T) {
	outside := t.TempDir()
	home, cache := homeAndCache(t, func(home string) {
		mkdir(t, home, "empty")
		mkdir(t, home, "full")
		write(t, home, "full", "file")
		write(t, home, "file")
		link(t, "nowhere", home, "link")
		link(t, outside, home, "away")
		link(t, "full", home, "beside")
	})
	apt := filepath.Join(t.TempDir(), "apt")
	mkdir(t, apt)
	names := []string{"absent", "away/x", "beside/x", "deep/er", "empty", "file", "file/x", "full", "link", apt, apt + "-not"}
	for range 2 { // and the second time nothing is to be done
		if err := LinkCaches(cache, names); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		filepath.Join(home, "absent"):  filepath.Join(cache, "absent"),
		filepath.Join(home, "deep/er"): filepath.Join(cache, "deep/er"),
		filepath.Join(home, "full/x"):  filepath.Join(cache, "beside/x"),
		filepath.Join(home, "empty"):   filepath.Join(cache, "empty"),
		filepath.Join(home, "link"):    "nowhere",
		apt:                            filepath.Join(cache, apt),
	} {
		if got, err := os.Readlink(name); got != want {
			t.Errorf("%s leads to %q, %v; want %q", name, got, err, want)
		}
	}
	for _, name := range []string{"full/file", "file"} {
		if got, err := os.ReadFile(filepath.Join(home, name)); string(got) != "own" {
			t.Errorf("%s holds %q, %v", name, got, err)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside of the home directory there is %v, %v", left, err)
	}
	if _, err := os.Lstat(apt + "-not"); err == nil {
		t.Errorf("%s-not was made", apt)
	}
}

// Links that other sandboxes have left in the cache lead nowhere.
func TestLinkCachesInHostileCache(t *testing.T) {
	_, cache := homeAndCache(t, nil)
	outside := t.TempDir()
	link(t, outside, cache, ".npm")
	write(t, cache, ".gem")
	for _, name := range []string{".npm/x", ".gem"} {
		if err := LinkCaches(cache, []string{name}); err == nil || !strings.Contains(err.Error(), "remove the volume .cache") {
			t.Errorf("%s: %v, want what to do", name, err)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside of the cache there is %v, %v", left, err)
	}
}

func TestLinkCachesWithoutHome(t *testing.T) {
	_, cache := homeAndCache(t, nil)
	file := filepath.Join(t.TempDir(), "file")
	write(t, file)
	for _, home := range []string{"", "relative", filepath.Join(file, "home")} {
		t.Setenv("HOME", home)
		if err := LinkCaches(cache, []string{".npm"}); err == nil || !strings.Contains(err.Error(), "home directory") {
			t.Errorf("HOME=%q: %v", home, err)
		}
	}
}

func TestOwnCache(t *testing.T) {
	cache, outside := t.TempDir(), t.TempDir()
	me := userdb.User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	for range 2 {
		own, err := ownCache(cache, me)
		if err != nil || own != filepath.Join(cache, strconv.Itoa(os.Getuid())) {
			t.Fatalf("%q, %v", own, err)
		}
		info, err := os.Stat(own)
		if err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%v, %v; want a directory for nobody else", info, err)
		}
	}
	link(t, outside, cache, "4321")
	if own, err := ownCache(cache, userdb.User{UID: 4321, GID: 4321}); err == nil || !strings.Contains(err.Error(), "remove the volume .cache") {
		t.Errorf("%q, %v; want what to do", own, err)
	}
}
