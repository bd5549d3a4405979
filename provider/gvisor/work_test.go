//go:build linux

package gvisor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// xattrProgram sets (FILE NAME VALUE) or prints (FILE NAME) an extended
// attribute.
func xattrProgram(args []string) error {
	if len(args) == 3 {
		return unix.Setxattr(args[0], args[1], []byte(args[2]), 0)
	}
	var value [100]byte
	n, err := unix.Getxattr(args[0], args[1], value[:])
	if err == nil {
		fmt.Println(string(value[:n]))
	}
	return err
}

// makeWork is a script that leaves traces of every kind in the root file system.
const makeWork = `set -e
umask 022
mkdir -p /root/dir/empty /opt/app/bin /tmp/t
echo text > /root/dir/file
ln /root/dir/file /root/dir/hard; ln /root/dir/file /opt/app/elsewhere
ln -s dir/file /root/soft; ln -s /nowhere /root/dangling
printf '#!/bin/sh\necho ran\n' > /opt/app/bin/tool; chmod 755 /opt/app/bin/tool
: > /root/private; chmod 600 /root/private
: > /root/setuid; chmod 4755 /root/setuid
mkdir /root/sticky; chmod 1777 /root/sticky
: > /root/none; chmod 0 /root/none
: > /root/owned; chown 12:34 /root/owned; chown -h 56:78 /root/dangling
mkfifo /root/fifo
: > "/root/two words"; : > '/root/new
line'; : > /root/-dash; : > /root/umlaut-ü
touch -d '2001-02-03 04:05:06' /root/old
truncate -s 10M /root/sparse; echo end >> /root/sparse
echo tmp > /tmp/t/file
if test -d /etc/ssl; then rm -r /etc/ssl; mkdir /etc/ssl; echo new > /etc/ssl/only; fi
for f in /usr/bin/yes /bin/yes; do rm -f $f; done
rm -rf /usr/share/doc
echo changed >> /etc/profile
mv /opt/app/bin /opt/app/moved
`

// seeWork is a script that prints all of them. The size of a directory does not matter.
const seeWork = `
find /root /opt /tmp /etc ! -type d -exec stat -c '%n|%F|%a|%u:%g|%s|%h' {} + | sort
find /root /opt /tmp /etc -type d -exec stat -c '%n|%F|%a|%u:%g|%h' {} + | sort
stat -c %Y /root/old
test -e /usr/share/doc && echo doc; test -e /usr/bin/yes && echo yes
readlink /root/soft /root/dangling
cat /root/dir/hard /opt/app/elsewhere /tmp/t/file /etc/profile; /opt/app/moved/tool
tail -c 4 /root/sparse
true`

// A clean stop saves every kind of file of the root file system, whatever it was there
// before.
func TestStopKeepsFiles(t *testing.T) {
	images := map[string]string{"host": ""}
	if os.Geteuid() == 0 { // others cannot keep owners
		images["image"] = testimage.Serve(t).Push("busybox:1", testimage.Busybox(t))
	}
	for name, ref := range images {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			spec := atoll.Spec{Image: ref, Mounts: []atoll.Mount{supervisedtest.ProgramMount(t)}}
			script := makeWork
			if ref != "" {
				script = "mkdir -p /etc /opt; touch /etc/profile\n" + script
			}
			if !l.Info().Caps.Users {
				script = strings.ReplaceAll(script, "chown", ": chown")
			}
			sb := l.NewSandbox(spec)
			l.Sh(sb, script)
			xattr := func(args ...string) string {
				out, err := atoll.Output(l.Context(), sb, supervisedtest.ProgramCommand("xattr", args...))
				l.Must("xattr", err)
				return strings.TrimSpace(string(out))
			}
			xattr("/root/dir/file", "user.colour", "blue")
			want := l.Sh(sb, seeWork)
			for range 2 { // the second time from the files that the first has saved
				l.Must("stop", sb.Stop(l.Context(), -1))
				l.Must("start", sb.Start(l.Context()))
				if got := l.Sh(sb, seeWork); got != want {
					t.Errorf("after stop and start:\n%s", diffLines(want, got))
				}
				if got := xattr("/root/dir/file", "user.colour"); got != "blue" {
					t.Errorf("extended attribute: %q", got)
				}
			}
			l.Sh(sb, "echo x >> /root/dir/hard; grep -q x /opt/app/elsewhere") // one file still
		})
	}
}

// diffLines lists the lines that only one of the texts has.
func diffLines(want, got string) string {
	var out []string
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for _, line := range w {
		if !slices.Contains(g, line) {
			out = append(out, "- "+line)
		}
	}
	for _, line := range g {
		if !slices.Contains(w, line) {
			out = append(out, "+ "+line)
		}
	}
	return strings.Join(out, "\n")
}

// Much work takes time to save, but is saved, even if it does not fit into memory.
func TestStopKeepsMuchWork(t *testing.T) {
	size := 200
	if testing.Short() {
		size = 20
	}
	l := newLab(t, func(o *gvisor.Options) { o.Dir = filepath.Join(testenv.DiskDir(t), "state") })
	var spec atoll.Spec
	if l.Info().Caps.MemoryLimit {
		spec.Resources.Memory = 128 << 20
	}
	sb := l.NewSandbox(spec)
	sum := l.Sh(sb, fmt.Sprintf("head -c %d /dev/urandom > /root/big; truncate -s 100G /root/hole; i=0; while [ $i -lt 2000 ]; do echo $i > /root/f$i; i=$((i+1)); done; md5sum /root/big", size<<20))
	begun := time.Now()
	l.Must("stop", sb.Stop(l.Context(), 0))
	stopped := time.Now()
	l.Must("start", sb.Start(l.Context()))
	t.Logf("%d MiB and 2000 files: stop %v, start %v", size, stopped.Sub(begun).Round(time.Millisecond), time.Since(stopped).Round(time.Millisecond))
	if got := l.Sh(sb, "md5sum /root/big"); got != sum {
		t.Errorf("%s, want %s", got, sum)
	}
	if got := l.Sh(sb, "stat -c %s /root/hole"); got != "107374182400" {
		t.Errorf("the file without data has %s bytes", got)
	}
	if got := l.Sh(sb, "cat /root/f[0-9]* | wc -l"); got != "2000" {
		t.Errorf("%s small files", got)
	}
}

// A snapshot holds the files of that moment, for any number of sandboxes, each apart from
// the others and from the first one, which continues. gVisor ends processes that Exec
// started, daemons too, in sandboxes that start from the snapshot.
func TestSnapshotForks(t *testing.T) {
	images := map[string]string{"host": "", "image": testimage.Serve(t).Push("busybox:1", testimage.Busybox(t))}
	for name, ref := range images {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			sb := l.NewSandbox(atoll.Spec{Image: ref})
			l.Sh(sb, "echo common > /root/file; echo tmp > /tmp/file; echo work > /work/file")
			// A snapshot of a sandbox that was stopped before works like one of a fresh sandbox.
			l.Must("stop", sb.Stop(l.Context(), 0))
			l.Must("start", sb.Start(l.Context()))
			l.Sh(sb, `setsid sh -c 'n=0; while :; do n=$((n+1)); echo $n > /root/beat; sleep 0.02; done' < /dev/null > /dev/null 2>&1 &`)
			p, err := sb.Exec(l.Context(), &atoll.Command{Args: []string{"sleep", "1000"}})
			l.Must("exec", err)
			snap, err := atoll.TakeSnapshot(l.Context(), sb)
			l.Must("snapshot", err)
			t.Cleanup(func() { l.Must("remove snapshot", atoll.RemoveSnapshot(context.Background(), l, snap.ID)) })
			if snap.Size < 1<<16 || snap.Version != gvisor.Version() || snap.Sandbox != sb.ID() {
				t.Errorf("snapshot %+v", snap)
			}
			all := []atoll.Sandbox{sb}
			for range 3 {
				all = append(all, l.NewSandbox(atoll.Spec{Snapshot: snap.ID}))
			}
			for i, sb := range all {
				if got := l.Sh(sb, "cat /root/file /tmp/file; echo "+fmt.Sprint(i)+" > /root/file"); got != "common\ntmp" {
					t.Errorf("sandbox %d: %q", i, got)
				}
				_, err := sb.Process(l.Context(), p.ID())
				count := l.Sh(sb, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c '[s]leep 1000' || true")
				if i == 0 && (err != nil || count == "0") {
					t.Errorf("the first: %s of its programs run (%v)", count, err)
				}
				if i > 0 && (atoll.KindOf(err) != atoll.ErrNotExist || count != "0") {
					t.Errorf("sandbox %d: %s programs of the first run (%v)", i, count, err)
				}
				if data, err := atoll.ReadFile(l.Context(), sb, "/work/file"); err != nil || string(data) != "work\n" {
					t.Errorf("sandbox %d: the file of the data volume is %q, %v", i, data, err)
				}
			}
			for i, sb := range all {
				if got := l.Sh(sb, "cat /root/file"); got != fmt.Sprint(i) {
					t.Errorf("sandbox %d: %q", i, got)
				}
			}
			before := l.Sh(sb, "cat /root/beat")
			l.Poll(func() error {
				if l.Sh(sb, "cat /root/beat") == before {
					return errors.New("the first one's daemon stands still")
				}
				return nil
			})
			// A restored sandbox is like any other.
			l.Must("stop", all[1].Stop(l.Context(), 0))
			l.Must("start", all[1].Start(l.Context()))
			if got := l.Sh(all[1], "cat /root/file"); got != "1" {
				t.Errorf("restored, stopped and started: %q", got)
			}
		})
	}
}

// A spec to which a snapshot cannot be restored is refused, with the reason.
func TestSnapshotThatDoesNotFit(t *testing.T) {
	l := newLab(t)
	volume := []atoll.Mount{{Type: atoll.MountVolume, Source: "data", Target: "/data"}}
	t.Cleanup(func() { l.Must("remove volume", atoll.RemoveVolume(context.Background(), l, "", "data")) })
	sb := l.NewSandbox(atoll.Spec{Mounts: volume})
	snap, err := atoll.TakeSnapshot(l.Context(), sb)
	l.Must("snapshot", err)
	for name, spec := range map[string]atoll.Spec{
		"without its mounts":    {},
		"with another mount":    {Mounts: []atoll.Mount{volume[0], {Type: atoll.MountTmpfs, Target: "/more"}}},
		"with a read-only root": {Mounts: volume, ReadOnlyRoot: true},
		"read-only mount":       {Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "data", Target: "/data", ReadOnly: true}}},
	} {
		spec.Snapshot = snap.ID
		_, err := l.Create(l.Context(), &spec)
		supervisedtest.WantKind(t, name, err, atoll.ErrInvalid, "snapshot")
	}
	l.RemoveSandbox(l.NewSandbox(atoll.Spec{Snapshot: snap.ID, Mounts: volume}))

	path := filepath.Join(l.opts.Dir, "snapshots", snap.ID, "snapshot.json")
	data, err := os.ReadFile(path)
	l.Must("read", err)
	var r map[string]map[string]any
	l.Must("read", json.Unmarshal(data, &r))
	r["snapshot"]["version"] = "v0.0.0-of-another-day"
	data, err = json.Marshal(r)
	l.Must("marshal", err)
	l.Must("forge", os.WriteFile(path, data, 0o600))
	_, err = l.Create(l.Context(), &atoll.Spec{Snapshot: snap.ID, Mounts: volume})
	supervisedtest.WantKind(t, "of another version", err, atoll.ErrUnsupported, "v0.0.0-of-another-day", snap.Version)
	_, err = l.Create(l.Context(), &atoll.Spec{Snapshot: atoll.NewID()})
	supervisedtest.WantKind(t, "unknown", err, atoll.ErrNotExist)
	l.Must("remove snapshot", atoll.RemoveSnapshot(l.Context(), l, snap.ID))
}

// All users inside can read what all users on the machine can, whatever the umask of the
// sandbox's maker.
func TestHostFilesAreReadable(t *testing.T) {
	testenv.Need(t, testenv.Root)
	l := newLab(t, func(o *gvisor.Options) { o.Spare = false })
	old := unix.Umask(0o077)
	sb, err := l.Create(l.Context(), &atoll.Spec{User: "1000:1000"})
	unix.Umask(old)
	l.Must("create", err)
	t.Cleanup(func() { l.RemoveSandbox(sb) })
	if got := l.Sh(sb, `for f in /etc /etc/passwd /etc/group /etc/hosts /etc/nsswitch.conf /etc/ld.so.cache /etc/profile /etc/ssl /etc/ssl/certs /usr /tmp; do test ! -e $f || test -r $f || echo $f; done`); got != "" {
		t.Errorf("unreadable files:\n%s", got)
	}
}
