//go:build linux

package gvisor_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// A sandbox that is made has its volume as long as it is there, however eagerly
// others remove it.
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
		sb, err := l.Create(l.ctx(), &spec)
		l.must("create", err)
		for range 3 {
			if err := atoll.WriteFile(l.ctx(), sb, "/cache/file", nil, 0o644); err != nil {
				t.Errorf("write to the volume: %v", err)
			}
		}
		l.must("remove", sb.Remove(l.ctx(), atoll.RemoveVolumes()))
	}
	close(done)
	removers.Wait()
}

// A volume that was taken away by hand is missed by its name, and not made anew:
// what was in it would be forgotten in silence.
func TestVolumeThatVanished(t *testing.T) {
	l := newLab(t)
	sb := l.create(atoll.Spec{Name: "web", Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "cache", Target: "/cache"}}})
	l.sh(sb, "echo kept > /cache/file; echo kept > file")
	l.must("stop", sb.Stop(l.ctx(), 0))
	for target, volume := range map[string]string{"/cache": "cache", "/work": "data-" + sb.ID()} {
		path := filepath.Join(l.opts.Dir, "volumes", "default", volume)
		l.must("move", os.Rename(path, path+".away"))
		wantKind(t, "start", sb.Start(l.ctx()), atoll.ErrNotExist, path, target, "put it back")
		l.must("move back", os.Rename(path+".away", path))
	}
	l.must("start", sb.Start(l.ctx()))
	if got := l.sh(sb, "cat /cache/file file"); got != "kept\nkept" {
		t.Errorf("the volumes hold %q", got)
	}
	l.remove(sb)
	l.must("remove the volume", l.RemoveVolume(l.ctx(), "default", "cache"))
}

// A sandbox that was made when it could still have another's data volume starts
// again.
func TestMountOfADataVolume(t *testing.T) {
	l := newLab(t)
	t.Cleanup(func() { _ = atoll.RemoveVolume(context.Background(), l, "", "cache") })
	other := l.create(atoll.Spec{NoStart: true})
	l.must("write", atoll.WriteFile(l.ctx(), other, "file", []byte("x"), 0o644))
	sb := l.create(atoll.Spec{NoStart: true, Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "cache", Target: "/other"}}})
	path := filepath.Join(l.opts.Dir, "records", sb.ID()+".json")
	record, err := os.ReadFile(path)
	l.must("read the record", err)
	record = bytes.Replace(record, []byte(`"cache"`), []byte(`"data-`+other.ID()+`"`), 1)
	l.must("change the record", os.WriteFile(path, record, 0o600))
	l.must("start", sb.Start(l.ctx()))
	if out, err := atoll.Output(l.ctx(), sb, &atoll.Command{Args: []string{"cat", "/other/file"}}); string(out) != "x" {
		t.Errorf("cat: %q, %v", out, err)
	}
}
