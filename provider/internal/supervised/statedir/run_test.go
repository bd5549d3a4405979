//go:build linux

package statedir

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

const stranger = 54321

// A level is a directory with a mode and an owner, 0 for this user; with a target it is a
// link.
type level struct {
	path   string
	mode   fs.FileMode
	uid    int
	target string
}

func makeLevels(t *testing.T, base string, levels []level) {
	t.Helper()
	for _, l := range levels {
		path := filepath.Join(base, l.path)
		if l.target != "" {
			must(t, "link", os.Symlink(filepath.Join(base, l.target), path))
			continue
		}
		must(t, "mkdir", os.Mkdir(path, 0o700))
		must(t, "chmod", os.Chmod(path, l.mode))
		if l.uid != 0 {
			must(t, "chown", os.Chown(path, l.uid, l.uid))
		}
	}
}

// A user who can write to a run directory, or to one above it in which it can be replaced,
// would control the sandboxes: nothing is made there.
func TestRunDirectoryOfOthers(t *testing.T) {
	const sticky = fs.ModeSticky | 0o777
	d := openDir(t)
	hash := d.ShortName()
	for _, tt := range []struct {
		name   string
		levels []level
		run    string // below the first level, which stands for /tmp
		says   string // "" when all is well
	}{
		{"fresh", nil, "atoll/" + hash, ""},
		{"ours", []level{{"tmp/atoll", 0o700, 0, ""}, {"tmp/atoll/" + hash, 0o755, 0, ""}}, "atoll/" + hash, ""},
		{"given to us", []level{{"tmp/mine", 0o755, 0, ""}}, "mine", ""},
		{"given, and not there", nil, "a/b/c", ""},
		{"in one of others", []level{{"tmp/theirs", 0o755, stranger, ""}}, "theirs/mine", ""},

		{"base of another", []level{{"tmp/atoll", 0o755, stranger, ""}}, "atoll/" + hash, "tmp/atoll belongs to user 54321"},
		{"base for everyone", []level{{"tmp/atoll", 0o777, 0, ""}}, "atoll/" + hash, "tmp/atoll is writable by others"},
		{"base for everyone, sticky", []level{{"tmp/atoll", sticky, 0, ""}}, "atoll/" + hash, "tmp/atoll is writable by others"},
		{"base for the group", []level{{"tmp/atoll", 0o770, 0, ""}}, "atoll/" + hash, "tmp/atoll is writable by others"},
		{"base of another for everyone", []level{{"tmp/atoll", 0o777, stranger, ""}}, "atoll/" + hash, "tmp/atoll belongs to user 54321"},
		{"base is a link", []level{{"tmp/real", 0o700, 0, ""}, {"tmp/atoll", 0, 0, "tmp/real"}}, "atoll/" + hash, "tmp/atoll is not a directory"},
		{"base is a link to nothing", []level{{"tmp/atoll", 0, 0, "tmp/nothing"}}, "atoll/" + hash, "tmp/atoll is not a directory"},
		{"run of another", []level{{"tmp/atoll", 0o700, 0, ""}, {"tmp/atoll/" + hash, 0o700, stranger, ""}}, "atoll/" + hash, hash + " belongs to user 54321"},
		{"run for everyone", []level{{"tmp/atoll", 0o700, 0, ""}, {"tmp/atoll/" + hash, 0o777, 0, ""}}, "atoll/" + hash, hash + " is writable by others"},
		{"run is a link", []level{{"tmp/real", 0o700, 0, ""}, {"tmp/atoll", 0o700, 0, ""}, {"tmp/atoll/" + hash, 0, 0, "tmp/real"}}, "atoll/" + hash, hash + " is not a directory"},
		{"given, of another", []level{{"tmp/mine", 0o700, stranger, ""}}, "mine", "tmp/mine belongs to user 54321"},
		{"given, a link", []level{{"tmp/real", 0o700, 0, ""}, {"tmp/mine", 0, 0, "tmp/real"}}, "mine", "tmp/mine is not a directory"},
		{"given, below one for everyone", []level{{"tmp/all", 0o777, 0, ""}}, "all/mine", "tmp/all is writable by everyone"},
		{"given, far below one for everyone", []level{{"tmp/all", 0o777, 0, ""}, {"tmp/all/a", 0o755, 0, ""}}, "all/a/b/mine", "tmp/all is writable by everyone"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, l := range tt.levels {
				if l.uid != 0 {
					testenv.Need(t, testenv.Root)
				}
			}
			base := t.TempDir()
			makeLevels(t, base, append([]level{{"tmp", sticky, 0, ""}}, tt.levels...))
			before := listTree(t, base)
			id := atoll.NewID()
			path, err := d.MakeRun(filepath.Join(base, "tmp", tt.run), id)
			if tt.says == "" {
				must(t, "make", err)
				info, err := os.Lstat(path)
				if err != nil || info.Mode() != fs.ModeDir|0o700 || filepath.Base(path) != id {
					t.Errorf("made %s: %v, %v", path, info, err)
				}
				return
			}
			wantErr(t, "make", err, fs.ErrPermission)
			for _, says := range []string{tt.says, "XDG_RUNTIME_DIR"} {
				if err != nil && !strings.Contains(err.Error(), says) {
					t.Errorf("%q does not say %q", err, says)
				}
			}
			if after := listTree(t, base); after != before {
				t.Errorf("there was %s\nand now is %s", before, after)
			}
		})
	}
}

// listTree lists all names in the tree.
func listTree(t *testing.T, dir string) string {
	t.Helper()
	var list []string
	must(t, "walk", filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		list = append(list, strings.TrimPrefix(path, dir))
		return err
	}))
	return strings.Join(list, " ")
}

// MakeRun deletes the former content of a sandbox's run directory.
func TestMakeRunEmpties(t *testing.T) {
	d, run, id := openDir(t), filepath.Join(t.TempDir(), "run"), atoll.NewID()
	for range 2 {
		path, err := d.MakeRun(run, id)
		must(t, "make", err)
		if got := listNames(t, path); got != "" {
			t.Errorf("it holds %s", got)
		}
		must(t, "write", os.WriteFile(filepath.Join(path, "state"), nil, 0o600))
	}
}

// RemoveRun leaves a run directory alone that belongs to others by now.
func TestRemoveRun(t *testing.T) {
	testenv.Need(t, testenv.Root)
	for _, tt := range []struct {
		name  string
		do    func(run string) error
		stays bool
	}{
		{"ours", func(string) error { return nil }, false},
		{"of another", func(run string) error { return os.Chown(run, stranger, stranger) }, true},
		{"for everyone", func(run string) error { return os.Chmod(run, 0o777) }, true},
		{"a link", func(run string) error {
			if err := os.Rename(run, run+".moved"); err != nil {
				return err
			}
			return os.Symlink(run+".moved", run)
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, id := openDir(t), atoll.NewID()
			path, err := d.MakeRun(filepath.Join(t.TempDir(), "run"), id)
			must(t, "make", err)
			must(t, "mkdir", os.Mkdir(filepath.Join(path, "disk"), 0o700))
			must(t, "change", tt.do(filepath.Dir(path)))
			must(t, "remove", RemoveRun(path))
			must(t, "remove again", RemoveRun(path))
			if got := pathExists(path); got != tt.stays {
				t.Errorf("it is there: %v, want %v", got, tt.stays)
			}
		})
	}
	must(t, "remove nothing", RemoveRun(filepath.Join(t.TempDir(), "a", "b")))
}

// TidyRun removes default run directories that are empty, and leaves configured ones.
func TestTidyRun(t *testing.T) {
	d := openDir(t)
	base := t.TempDir()
	made, given := filepath.Join(base, "atoll", d.ShortName()), filepath.Join(base, "given")
	for _, run := range []string{made, given} {
		path, err := d.MakeRun(run, atoll.NewID())
		must(t, "make", err)
		d.TidyRun(run)
		if !pathExists(path) {
			t.Errorf("%s was removed and is not empty", run)
		}
		must(t, "remove", RemoveRun(path))
		d.TidyRun(run)
	}
	if got := listNames(t, base); got != "given" {
		t.Errorf("left: %s, want what was given", got)
	}
}

// The default is the first directory that this user can have alone.
func TestDefaultRun(t *testing.T) {
	d := openDir(t)
	tmp := t.TempDir()
	xdg, err := os.MkdirTemp("/tmp", "") // short, and for this user alone
	must(t, "mkdir", err)
	t.Cleanup(func() { _ = os.Remove(xdg) })
	long := filepath.Join(tmp, strings.Repeat("x", maxRuntimeDir))
	must(t, "mkdir", os.Mkdir(long, 0o700))
	t.Setenv("TMPDIR", tmp)
	uid := os.Geteuid()
	other := filepath.Join(tmp, "atoll-"+strconv.Itoa(uid))
	switch {
	case uid == 0:
		other = "/run/atoll"
	case isOwnDir("/run/user/" + strconv.Itoa(uid)):
		other = "/run/user/" + strconv.Itoa(uid) + "/atoll"
	}
	open := filepath.Join(tmp, "open")
	makeLevels(t, tmp, []level{{"open", 0o777, 0, ""}})
	for _, tt := range []struct{ xdg, want string }{
		{xdg, filepath.Join(xdg, "atoll")},
		{"", other},
		{"relative", other},
		{filepath.Join(tmp, "nothing"), other},
		{open, other},
		{long, other},
	} {
		t.Setenv("XDG_RUNTIME_DIR", tt.xdg)
		if got, want := d.DefaultRun(), filepath.Join(tt.want, d.ShortName()); got != want {
			t.Errorf("with XDG_RUNTIME_DIR=%s: %s, want %s", tt.xdg, got, want)
		}
	}
	if again := Dir(string(d) + "2"); again.ShortName() == d.ShortName() {
		t.Error("two state directories have one run directory")
	}
}

// It holds sockets, whose paths must be short.
func TestDefaultRunIsShort(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("TMPDIR", "")
	d := Dir("/" + strings.Repeat("long/", 100))
	socket := filepath.Join(d.DefaultRun(), atoll.NewID(), "runsc-"+atoll.NewID()+".sock")
	if len(socket) > 107 {
		t.Errorf("%s has %d bytes, want 107 at most", socket, len(socket))
	}
}
