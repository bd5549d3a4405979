//go:build linux

package statedir

import (
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// makeRecord makes a sandbox with everything that it can have on disk.
func makeRecord(t *testing.T, d Dir, name string) *Record {
	t.Helper()
	id := makeUnlocked(t, d)
	run := filepath.Join(t.TempDir(), "run")
	path, err := d.MakeRun(run, id)
	must(t, "make run directory", err)
	must(t, "claim", d.ClaimName("p", name, id))
	for _, dir := range []string{d.Volume("p", DataVolume(id)), d.NewSnapshot(id, atoll.NewID()), filepath.Join(path, "disk")} {
		must(t, "mkdir", os.MkdirAll(filepath.Join(dir, "below"), 0o755))
	}
	r := &Record{Run: path, Status: atoll.Status{ID: id, Spec: atoll.Spec{ID: id, Name: name, Project: "p"}}}
	must(t, "write", d.Write(r))
	return r
}

// listRemains lists what is left of the sandbox.
func listRemains(t *testing.T, d Dir, r *Record) string {
	t.Helper()
	id, project, name := r.Status.ID, r.Status.Spec.Project, r.Status.Spec.Name
	var all []string
	for _, part := range []struct{ what, path string }{
		{"directory", d.Sandbox(id)}, {"record", d.Record(id)}, {"volume", d.Volume(project, DataVolume(id))}, {"run", r.Run},
	} {
		if pathExists(part.path) {
			all = append(all, part.what)
		}
	}
	if owner, err := d.NameOwner(project, name); err == nil && owner == id {
		all = append(all, "name")
	}
	unfinished, err := d.listUnfinished()
	must(t, "list snapshots", err)
	if len(unfinished[id]) > 0 {
		all = append(all, "snapshot")
	}
	return strings.Join(all, " ")
}

func TestOpen(t *testing.T) {
	d := openDir(t)
	if _, err := Open(string(d)); err != nil {
		t.Errorf("open again: %v", err)
	}
	for _, sub := range []string{"sandboxes", "records", "names", "volumes", "snapshots"} {
		info, err := os.Stat(filepath.Join(string(d), sub))
		if err != nil || info.Mode() != fs.ModeDir|0o700 {
			t.Errorf("%s: %v, %v, want it for its owner only", sub, info.Mode(), err)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	must(t, "write", os.WriteFile(file, nil, 0o600))
	_, err := Open(file)
	wantErr(t, "open a file", err, unix.ENOTDIR)
}

// A user who can write records could make their reader do anything.
func TestOpenOfAnother(t *testing.T) {
	for _, sub := range []string{"", "records", "volumes"} {
		t.Run("directory "+sub, func(t *testing.T) {
			dir := string(openDir(t))
			path := filepath.Join(dir, sub)
			must(t, "chmod", os.Chmod(path, 0o770))
			_, err := Open(dir)
			wantErr(t, "open what a group can write to", err, fs.ErrPermission)
			must(t, "chmod", os.Chmod(path, 0o755))
			_, err = Open(dir)
			must(t, "open what others can read", err)
			if os.Geteuid() != 0 {
				return
			}
			must(t, "chown", os.Chown(path, 54321, 54321))
			_, err = Open(dir)
			wantErr(t, "open another user's", err, fs.ErrPermission)
			if !strings.Contains(err.Error(), path+" belongs to user 54321") {
				t.Errorf("%q does not say why", err)
			}
		})
	}
}

func TestRecord(t *testing.T) {
	d := openDir(t)
	id := atoll.NewID()
	_, err := d.Read(id)
	wantErr(t, "read nothing", err, fs.ErrNotExist)
	want := &Record{
		Status: atoll.Status{ID: id, State: atoll.StateRunning}, Image: "/image", Env: []string{"A=1"},
		Supervisor: Identity{PID: 7, Start: "8", Boot: "9"}, Cgroup: "/atoll-x", Removing: &atoll.RemoveOptions{Volumes: true},
	}
	must(t, "write", d.Write(want))
	if got, err := d.Read(id); !reflect.DeepEqual(got, want) || err != nil {
		t.Errorf("read %+v, %v, want %+v", got, err, want)
	}
}

// Of a sandbox whose record is damaged, everything that carries its id is known, and it can
// be removed by its id. Other sandboxes are not affected.
func TestDamagedRecord(t *testing.T) {
	for _, tt := range []struct{ name, content, says string }{
		{"empty, after a power cut", "", "unexpected end of JSON"},
		{"half", `{"status":{"id"`, "unexpected end of JSON"},
		{"of zeros", "\x00\x00\x00", "invalid character"},
		{"of no sandbox", "null", "belongs to another sandbox"},
		{"of another sandbox", `{"status":{"id":"` + atoll.NewID() + `"}}`, "belongs to another sandbox"},
		{"with a name that leads elsewhere", `{"status":{"id":"ID","spec":{"project":"../.."}}}`, "is not valid"},
		{"with the run directory of another", `{"status":{"id":"ID"},"run":"/precious"}`, "/precious: not the sandbox's run directory"},
		{"with no run directory", `{"status":{"id":"ID"},"run":"ID"}`, "not the sandbox's run directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := openDir(t)
			r, other := makeRecord(t, d, "web"), makeRecord(t, d, "other")
			want := listRemains(t, d, other)
			content := strings.ReplaceAll(tt.content, "ID", r.Status.ID)
			must(t, "damage", os.WriteFile(d.Record(r.Status.ID), []byte(content), 0o600))
			got, err := d.Read(r.Status.ID)
			must(t, "read", err)
			st := &got.Status
			if !got.Damaged || st.State != atoll.StateFailed || !strings.Contains(st.Reason, tt.says) || time.Since(st.Created) > testenv.Scale(time.Minute) {
				t.Errorf("read %+v", got)
			}
			if st.ID != r.Status.ID || st.Spec.ID != st.ID || st.Spec.Project != "p" || st.Spec.Name != "web" {
				t.Errorf("it is sandbox %s, named %s, of project %s", st.Spec.ID, st.Spec.Name, st.Spec.Project)
			}
			got.Run = r.Run // the provider knows it
			must(t, "delete", d.Delete(got, atoll.RemoveOptions{Volumes: true}))
			if got := listRemains(t, d, r); got != "" {
				t.Errorf("left: %s", got)
			}
			if got := listRemains(t, d, other); got != want {
				t.Errorf("of another sandbox: %s, want %s", got, want)
			}
		})
	}
}

// A record that nobody may read is like a damaged one; a temporary error says nothing about
// the record.
func TestUnreadable(t *testing.T) {
	for err, want := range map[error]bool{
		unix.EACCES: true, unix.EIO: true, unix.EMFILE: false, unix.ENOMEM: false, unix.ENOENT: false, nil: false,
	} {
		if got := isUnreadable(err); got != want {
			t.Errorf("unreadable(%v) = %v, want %v", err, got, want)
		}
	}
}

// The lists contain sandboxes, but not directories that are being made or removed.
func TestLists(t *testing.T) {
	d := openDir(t)
	a, b := makeUnlocked(t, d), makeRecord(t, d, "b").Status.ID
	for _, name := range []string{newPrefix + atoll.NewID(), trashPrefix + atoll.NewID(), markPrefix + atoll.NewID(), "README", strings.ToUpper(atoll.NewID())} {
		must(t, "mkdir", os.Mkdir(d.Sandbox(name), 0o700))
	}
	for _, name := range []string{b + ".json.tmp", "x.json", a} {
		must(t, "write", os.WriteFile(filepath.Join(filepath.Dir(d.Record(a)), name), nil, 0o600))
	}
	dirs, err := d.Dirs()
	if len(dirs) != 2 || err != nil {
		t.Errorf("directories %v, %v, want those of %s and %s", dirs, err, a, b)
	}
	if ids, err := d.IDs(); len(ids) != 1 || ids[0] != b || err != nil {
		t.Errorf("records %v, %v, want that of %s", ids, err, b)
	}
}

// A name belongs to one sandbox, which has a directory or a record.
func TestClaim(t *testing.T) {
	d := openDir(t)
	a, b := makeUnlocked(t, d), makeUnlocked(t, d)
	must(t, "claim", d.ClaimName("p", "web", a))
	must(t, "claim again", d.ClaimName("p", "web", a))
	wantErr(t, "claim for another", d.ClaimName("p", "web", b), fs.ErrExist)
	must(t, "claim in another project", d.ClaimName("q", "web", b))
	if owner, err := d.NameOwner("p", "web"); owner != a || err != nil {
		t.Errorf("owner %s, %v, want %s", owner, err, a)
	}
	must(t, "release for another", d.ReleaseName("p", "web", b))
	wantErr(t, "claim for another", d.ClaimName("p", "web", b), fs.ErrExist)

	// A record alone holds the name, until that is removed as well.
	must(t, "write", d.Write(&Record{Status: atoll.Status{ID: a}}))
	must(t, "discard", discardDir(d.Sandbox(a)))
	wantErr(t, "claim for another", d.ClaimName("p", "web", b), fs.ErrExist)
	must(t, "remove", os.Remove(d.Record(a)))
	must(t, "claim from one that has gone", d.ClaimName("p", "web", b))
	must(t, "cut the power", os.WriteFile(d.namePath("p", "web"), nil, 0o600))
	must(t, "claim what stands for nothing", d.ClaimName("p", "web", b))
	must(t, "release for the one that has gone", d.ReleaseName("p", "web", a))
	if owner, err := d.NameOwner("p", "web"); owner != b || err != nil {
		t.Errorf("owner %s, %v, want %s", owner, err, b)
	}
	must(t, "release", d.ReleaseName("p", "web", b))
	must(t, "release again", d.ReleaseName("p", "web", b))
	_, err := d.NameOwner("p", "web")
	wantErr(t, "owner", err, fs.ErrNotExist)
}

// One of many concurrent claims of a name succeeds.
func TestClaimRace(t *testing.T) {
	d := openDir(t)
	var work sync.WaitGroup
	won := make(chan string, 20)
	for range cap(won) {
		id := makeUnlocked(t, d)
		work.Go(func() {
			if d.ClaimName("p", "web", id) == nil {
				won <- id
			}
		})
	}
	work.Wait()
	if owner, err := d.NameOwner("p", "web"); len(won) != 1 || err != nil || owner != <-won {
		t.Errorf("%d have got the name, which stands for %s (%v)", len(won), owner, err)
	}
}

func TestDelete(t *testing.T) {
	for _, tt := range []struct {
		name string
		opts atoll.RemoveOptions
		want string
	}{
		{"all", atoll.RemoveOptions{Volumes: true}, ""},
		{"but the volume", atoll.RemoveOptions{}, "volume"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := openDir(t)
			r, other := makeRecord(t, d, "web"), makeRecord(t, d, "other")
			want := listRemains(t, d, other)
			must(t, "delete", d.Delete(r, tt.opts))
			if got := listRemains(t, d, r); got != tt.want {
				t.Errorf("left: %s, want %s", got, tt.want)
			}
			must(t, "delete again", d.Delete(r, tt.opts))
			if got := listRemains(t, d, other); got != want {
				t.Errorf("of another sandbox: %s, want %s", got, want)
			}
		})
	}
}

// The next deletion finishes an interrupted one, with the options of the first.
func TestDeleteResumed(t *testing.T) {
	testenv.Need(t, testenv.Root) // for a directory that cannot be removed
	d := openDir(t)
	r := makeRecord(t, d, "web")
	stuck := filepath.Join(r.Run, "disk")
	must(t, "mount", unix.Mount("atoll-test", stuck, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(stuck, unix.MNT_DETACH) })
	wantErr(t, "delete", d.Delete(r, atoll.RemoveOptions{Volumes: true}), unix.EBUSY)

	again, err := d.Read(r.Status.ID)
	must(t, "read", err)
	if again.Removing == nil || !again.Removing.Volumes {
		t.Fatalf("the record does not say that it is being removed: %+v", again.Removing)
	}
	must(t, "unmount", unix.Unmount(stuck, 0))
	must(t, "delete", d.Delete(again, atoll.RemoveOptions{}))
	if got := listRemains(t, d, r); got != "" {
		t.Errorf("left: %s", got)
	}
}

// A second deletion may delete more than the first, never less.
func TestDeleteTakesMore(t *testing.T) {
	d := openDir(t)
	r := makeRecord(t, d, "web")
	r.Removing = &atoll.RemoveOptions{}
	must(t, "write", d.Write(r))
	must(t, "delete", d.Delete(r, atoll.RemoveOptions{Volumes: true}))
	if got := listRemains(t, d, r); got != "" {
		t.Errorf("left: %s", got)
	}
}

// Deleting works on a full disk.
func TestDeleteOnFullDisk(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := t.TempDir()
	must(t, "mount", unix.Mount("atoll-test", dir, "tmpfs", 0, "size=256k"))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	d, err := Open(filepath.Join(dir, "state"))
	must(t, "open", err)
	r := makeRecord(t, d, "web")
	big := filepath.Join(d.Volume("p", DataVolume(r.Status.ID)), "big")
	wantErr(t, "fill the disk", os.WriteFile(big, make([]byte, 1<<20), 0o600), unix.ENOSPC)
	wantErr(t, "write a record", d.Write(r), unix.ENOSPC)
	if _, err := d.Read(r.Status.ID); err != nil {
		t.Errorf("the record that could not be replaced: %v", err)
	}
	must(t, "delete", d.Delete(r, atoll.RemoveOptions{Volumes: true}))
	if got := listRemains(t, d, r) + listNames(t, string(d), "sandboxes") + listNames(t, string(d), "records"); got != "" {
		t.Errorf("left: %s", got)
	}
}

// A discarded directory is out of sight at once, even if it cannot be emptied; EmptyTrash
// empties it as soon as that is possible.
func TestTrash(t *testing.T) {
	testenv.Need(t, testenv.Root)
	d := openDir(t)
	id := makeUnlocked(t, d)
	stuck := filepath.Join(d.Sandbox(id), "rootfs")
	must(t, "mkdir", os.Mkdir(stuck, 0o700))
	must(t, "mount", unix.Mount("atoll-test", stuck, "tmpfs", 0, ""))
	wantErr(t, "discard", discardDir(d.Sandbox(id)), unix.EBUSY)
	l, err := d.Make(id) // the id is free
	must(t, "make", err)
	l.Release()

	trashed, err := d.listPrefixed("sandboxes", trashPrefix)
	if len(trashed) != 1 || err != nil {
		t.Fatalf("trash: %v, %v", trashed, err)
	}
	wantErr(t, "empty", d.EmptyTrash(), unix.EBUSY)
	must(t, "unmount", unix.Unmount(filepath.Join(trashed[0], "rootfs"), 0))
	must(t, "empty", d.EmptyTrash())
	if got := listNames(t, string(d), "sandboxes"); got != id {
		t.Errorf("sandboxes: %s, want %s", got, id)
	}
	must(t, "discard what is not there", discardDir(d.Sandbox(atoll.NewID())))
}

// A directory that is just being made is not trash, unless its maker has died.
func TestTrashOfCreations(t *testing.T) {
	d := openDir(t)
	dying, empty, rest := d.Sandbox(newPrefix+"dying"), d.Sandbox(newPrefix+"empty"), d.Sandbox(newPrefix+"rest")
	for _, dir := range []string{dying, empty, rest, filepath.Join(rest, "root")} { // rest is of a removal that was killed
		must(t, "mkdir", os.Mkdir(dir, 0o700))
	}
	l, err := fsutil.TryLock(filepath.Join(dying, "lock"))
	must(t, "lock", err)
	must(t, "empty", d.EmptyTrash())
	if got := listNames(t, string(d), "sandboxes"); got != filepath.Base(dying) {
		t.Errorf("left: %s, want the one whose maker lives", got)
	}
	l.Release()
	must(t, "empty", d.EmptyTrash())
	if got := listNames(t, string(d), "sandboxes"); got != "" {
		t.Errorf("left: %s", got)
	}
}

// A sweep at any moment does not keep others from making a sandbox.
func TestMakeUnderSweeps(t *testing.T) {
	d := openDir(t)
	stop := make(chan struct{})
	var sweeps sync.WaitGroup
	sweeps.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if err := d.EmptyTrash(); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for range 300 {
		l, err := d.Make(atoll.NewID())
		if err != nil {
			t.Errorf("make: %v", err)
		}
		l.Release()
	}
	close(stop)
	sweeps.Wait()
	if dirs, err := d.Dirs(); len(dirs) != 300 || err != nil {
		t.Errorf("%d sandboxes, %v, want 300", len(dirs), err)
	}
}

// DropNames frees a project's names, except those of existing sandboxes.
func TestDropNames(t *testing.T) {
	d := openDir(t)
	r, other := makeRecord(t, d, "web"), makeUnlocked(t, d)
	must(t, "claim", d.ClaimName("q", "web", other))
	must(t, "claim", d.ClaimName("p", "old", atoll.NewID()))
	must(t, "interrupted", os.WriteFile(d.namePath("p", "new")+fsutil.Temporary, nil, 0o600))
	must(t, "drop", d.DropNames("p"))
	if got := listNames(t, string(d), "names", "p"); got != "web" {
		t.Errorf("names %s, want that of the sandbox", got)
	}
	must(t, "delete", d.Delete(r, atoll.RemoveOptions{}))
	must(t, "drop", d.DropNames("p"))
	must(t, "drop again", d.DropNames("p"))
	if got := listNames(t, string(d), "names"); got != "q" {
		t.Errorf("names of %s, want q", got)
	}
}
