package guestproc_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/guestproc"
)

// A shelf is a sandbox with one file.
type shelf struct {
	atoll.Sandbox
	err error // what asking for it comes to
}

func (s shelf) Files() atoll.FS { return one{err: s.err} }

type one struct {
	atoll.FS
	err error
}

func (f one) Stat(context.Context, string) (atoll.FileInfo, error) {
	return atoll.FileInfo{Name: "it"}, f.err
}

// Files are those of the guest, of the caretaker while there is none, and of nobody who
// has gone meanwhile.
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
		{name: "an error of the file", guest: atoll.Errorf("", "", atoll.ErrNotExist, "none"), ends: stopped, want: atoll.ErrNotExist},
	} {
		var asked []string
		s := guestproc.Sandbox{
			Inside: func(context.Context, string) (atoll.Sandbox, error) { return shelf{err: tt.guest}, tt.inside },
			Caretaker: func(_ context.Context, _ string, names []string) (atoll.Sandbox, error) {
				asked = names
				return shelf{}, tt.caretaker
			},
			Ends: func(context.Context, string) error { return tt.ends },
		}
		info, err := s.Files().Stat(t.Context(), "/work/it")
		if atoll.KindOf(err) != tt.want || err == nil && info.Name != "it" {
			t.Errorf("%s: %+v, %v; want %q", tt.name, info, err, tt.want)
		}
		if tt.asked != slices.Equal(asked, []string{"/work/it"}) {
			t.Errorf("%s: the caretaker is asked for %q", tt.name, asked)
		}
	}
}

func TestAtRest(t *testing.T) {
	spec := &atoll.Spec{Workdir: "/work", Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "data", Target: "/data"}, {Type: atoll.MountTmpfs, Target: "/tmp"}}}
	for name, rests := range map[string]bool{"/work": true, "/data/a/b": true, "a": true, "/database": false, "/tmp/a": false, "/etc/passwd": false, "../etc": false, "/data/../etc": false} {
		if err := guestproc.AtRest("stat", "s", spec, []string{"/work", name}); (err == nil) != rests || err != nil && !errors.Is(err, atoll.ErrStopped) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
