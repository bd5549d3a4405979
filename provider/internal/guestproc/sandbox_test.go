package guestproc_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/guestproc"
)

// A fakeSandbox is a sandbox with one file.
type fakeSandbox struct {
	atoll.Sandbox
	err error // returned by Stat
}

func (s fakeSandbox) Files() atoll.FS { return fakeFS{err: s.err} }

type fakeFS struct {
	atoll.FS
	err error
}

func (f fakeFS) Stat(context.Context, string) (atoll.FileInfo, error) {
	return atoll.FileInfo{Name: "it"}, f.err
}

// The guest serves files, or the caretaker while the sandbox is stopped. If the guest goes away during
// a call, the call returns the error of AwaitStop.
func TestFiles(t *testing.T) {
	stopped := atoll.Errorf("", "", atoll.ErrStopped, "stopped")
	gone := atoll.Errorf("", "", atoll.ErrUnavailable, "gone")
	for _, tt := range []struct {
		name                           string
		inside, guest, caretaker, ends error
		want                           atoll.Kind
		asked                          bool
	}{
		{name: "running"},
		{name: "stopped", inside: stopped, asked: true},
		{name: "stopped, and not at rest", inside: stopped, caretaker: stopped, want: atoll.ErrStopped, asked: true},
		{name: "out of reach", inside: gone, want: atoll.ErrUnavailable},
		{name: "it ends meanwhile", guest: gone, ends: stopped, want: atoll.ErrStopped},
		{name: "the guest goes, and it does not end", guest: gone, want: atoll.ErrUnavailable},
		{name: "its run is gone, and it has been started again", guest: atoll.Errorf("", "", atoll.ErrNotFound, "no run"), want: atoll.ErrStopped},
		{name: "an error of the file", guest: atoll.Errorf("", "", atoll.ErrNotExist, "none"), ends: stopped, want: atoll.ErrNotExist},
	} {
		var asked []string
		s := guestproc.Sandbox{
			Inside: func(context.Context, string) (atoll.Sandbox, error) { return fakeSandbox{err: tt.guest}, tt.inside },
			Caretaker: func(_ context.Context, _ string, names []string) (atoll.Sandbox, error) {
				asked = names
				return fakeSandbox{}, tt.caretaker
			},
			AwaitStop: func(context.Context, string) error { return tt.ends },
		}
		info, err := s.Files().Stat(t.Context(), "/work/it")
		if atoll.KindOf(err) != tt.want || err == nil && info.Name != "it" {
			t.Errorf("%s: %+v, %v; want %q", tt.name, info, err, tt.want)
		}
		if tt.asked != slices.Equal(asked, []string{"/work/it"}) {
			t.Errorf("%s: the caretaker got %q", tt.name, asked)
		}
	}
}

func TestAtRest(t *testing.T) {
	spec := &atoll.Spec{Workdir: "/work", Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "data", Target: "/data"}, {Type: atoll.MountTmpfs, Target: "/tmp"}}}
	for name, rests := range map[string]bool{"/work": true, "/data/a/b": true, "a": true, "/database": false, "/tmp/a": false, "/etc/passwd": false, "../etc": false, "/data/../etc": false} {
		if err := guestproc.CheckOnVolumes("stat", "s", spec, []string{"/work", name}); (err == nil) != rests || err != nil && !errors.Is(err, atoll.ErrStopped) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
