//go:build linux

package gvisor_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// A sandbox has its volume as long as it exists, however eagerly others remove the volume.
func TestVolumeRemovedWhileUsersCome(t *testing.T) {
	l := newLab(t)
	t.Cleanup(func() { _ = atoll.RemoveVolume(context.Background(), l, "", "cache") }) // as a rule it is gone
	spec := atoll.Spec{NoStart: true, Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "cache", Target: "/cache"}}}
	done := make(chan struct{})
	var removers sync.WaitGroup
	for range 2 {
		removers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				err := atoll.RemoveVolume(context.Background(), l, "", "cache")
				if k := atoll.KindOf(err); err != nil && k != atoll.ErrNotExist && k != atoll.ErrConflict {
					t.Error(err)
				}
			}
		})
	}
	for range 100 {
		sb, err := l.Create(l.Context(), &spec)
		l.Must("create", err)
		for range 3 {
			if err := atoll.WriteFile(l.Context(), sb, "/cache/file", nil, 0o644); err != nil {
				t.Errorf("write to the volume: %v", err)
			}
		}
		l.Must("remove", sb.Remove(l.Context(), atoll.RemoveVolumes()))
	}
	close(done)
	removers.Wait()
}

// A start reports a volume that was deleted by hand, and does not make it anew: the loss of
// its content would go unnoticed.
func TestVolumeThatVanished(t *testing.T) {
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{Name: "web", Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "cache", Target: "/cache"}}})
	l.Sh(sb, "echo kept > /cache/file; echo kept > file")
	l.Must("stop", sb.Stop(l.Context(), 0))
	for target, volume := range map[string]string{"/cache": "cache", "/work": "data-" + sb.ID()} {
		path := filepath.Join(l.opts.Dir, "volumes", "default", volume)
		l.Must("move", os.Rename(path, path+".away"))
		supervisedtest.WantKind(t, "start", sb.Start(l.Context()), atoll.ErrNotExist, path, target, "restore it")
		l.Must("move back", os.Rename(path+".away", path))
	}
	l.Must("start", sb.Start(l.Context()))
	if got := l.Sh(sb, "cat /cache/file file"); got != "kept\nkept" {
		t.Errorf("the volumes hold %q", got)
	}
	l.RemoveSandbox(sb)
	l.Must("remove the volume", l.RemoveVolume(l.Context(), "default", "cache"))
}

// A sandbox that was made when it could still mount another's data volume starts again.
func TestMountOfADataVolume(t *testing.T) {
	l := newLab(t)
	t.Cleanup(func() { _ = atoll.RemoveVolume(context.Background(), l, "", "cache") })
	other := l.NewSandbox(atoll.Spec{NoStart: true})
	l.Must("write", atoll.WriteFile(l.Context(), other, "file", []byte("x"), 0o644))
	sb := l.NewSandbox(atoll.Spec{NoStart: true, Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "cache", Target: "/other"}}})
	path := filepath.Join(l.opts.Dir, "records", sb.ID()+".json")
	record, err := os.ReadFile(path)
	l.Must("read the record", err)
	record = bytes.Replace(record, []byte(`"cache"`), []byte(`"data-`+other.ID()+`"`), 1)
	l.Must("change the record", os.WriteFile(path, record, 0o600))
	l.Must("start", sb.Start(l.Context()))
	if out, err := atoll.Output(l.Context(), sb, &atoll.Command{Args: []string{"cat", "/other/file"}}); string(out) != "x" {
		t.Errorf("cat: %q, %v", out, err)
	}
}

// A mount has its target, through links as they are inside and in other mounts, or an error
// says what is wrong with it.
func TestPlacesOfMounts(t *testing.T) {
	dir := t.TempDir()
	sub, file := filepath.Join(dir, "sub"), filepath.Join(dir, "file")
	l := newLab(t)
	t.Cleanup(func() { _ = atoll.RemoveVolume(context.Background(), l, "", "cache") }) // after the sandbox
	l.Must("mkdir", os.Mkdir(sub, 0o755))
	l.Must("write", os.WriteFile(file, []byte("given"), 0o644))
	l.Must("symlink", os.Symlink("/etc", filepath.Join(sub, "abs")))
	bind := func(source, target string) atoll.Mount {
		return atoll.Mount{Type: atoll.MountBind, Source: source, Target: target}
	}
	sb := l.NewSandbox(atoll.Spec{Mounts: []atoll.Mount{
		bind(file, "/usr/bin/deeper/down/file"), bind(file, "/bin/file"), bind(file, "/usr/share/tmp/file"), bind(file, "/data/made"), bind(dir, "/data"),
		bind(file, "/data/sub/abs/file"), bind(file, "/etc/hosts"), bind(sub, "/usr/src/sub"),
		{Type: atoll.MountTmpfs, Target: "/usr/share/tmp"},
		{Type: atoll.MountVolume, Source: "cache", Target: "/usr/share/cache"},
	}})
	for range 2 {
		for _, name := range []string{"/usr/bin/deeper/down/file", "/usr/bin/file", "/usr/share/tmp/file", "/data/file", "/data/made", "/etc/file", "/etc/hosts"} {
			if got := l.Sh(sb, "cat "+name); got != "given" {
				t.Errorf("%s: %q", name, got)
			}
		}
		l.Sh(sb, "echo x > /usr/bin/new; echo x >> /usr/share/cache/file; ls /usr/src/sub; env true")
		l.Must("stop", sb.Stop(l.Context(), 0))
		l.Must("start", sb.Start(l.Context()))
	}
	for _, tt := range []struct {
		mounts []atoll.Mount
		says   []string
	}{
		{[]atoll.Mount{bind(file, "/bin")}, []string{"cannot mount /bin", file, "/usr/bin"}},
		{[]atoll.Mount{bind(dir, "/etc/passwd")}, []string{dir, "/etc/passwd"}},
		{[]atoll.Mount{bind(dir, "/data"), bind(sub, "/data/file")}, []string{sub, "/data/file"}},
		{[]atoll.Mount{bind(dir, "/data"), bind(sub, "/data/file/below")}, []string{"/data/file is not a directory"}},
		{[]atoll.Mount{{Type: atoll.MountTmpfs, Target: "/etc/passwd"}}, []string{"tmpfs", "/etc/passwd"}},
		{[]atoll.Mount{{Type: atoll.MountVolume, Source: "cache", Target: "/etc/passwd"}}, []string{"cache", "/etc/passwd"}},
		{[]atoll.Mount{bind(file, "/work")}, []string{file, "/work"}},
	} {
		_, err := l.Create(l.Context(), &atoll.Spec{Mounts: tt.mounts})
		supervisedtest.WantKind(t, "create", err, atoll.ErrInvalid, tt.says...)
	}
	_, err := l.Create(l.Context(), &atoll.Spec{Workdir: "/x/", Mounts: []atoll.Mount{bind(file, "/x")}})
	supervisedtest.WantKind(t, "create", err, atoll.ErrInvalid, file, "/x")
}

// A sandbox that shares a volume for writing with a live one gets a warning, for they do not see
// each other's locks.
func TestSharedVolumeWarns(t *testing.T) {
	var log bytes.Buffer
	l := newLab(t, func(o *gvisor.Options) {
		o.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	t.Cleanup(func() { l.Must("remove volume", atoll.RemoveVolume(context.Background(), l, "", "data")) })
	spec := func(name string, readOnly bool) atoll.Spec {
		return atoll.Spec{Name: name, Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "data", Target: "/data", ReadOnly: readOnly}}}
	}
	l.NewSandbox(spec("one", false))
	l.NewSandbox(spec("reader", true))
	if log.Len() > 0 {
		t.Errorf("a warning for one writer: %s", log.String())
	}
	l.NewSandbox(spec("two", false))
	if !strings.Contains(log.String(), "volume data: sandbox one writes to it, too") {
		t.Errorf("the warning for two writers: %q", log.String())
	}
}
