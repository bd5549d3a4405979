//go:build linux

package gvisor_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
)

// Files and the programs inside see the same, whatever is mounted below the work directory,
// and wherever links lead.
func TestFilesAgreeWithInside(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "conf")
	if err := os.WriteFile(conf, []byte("of the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	l := newLab(t)
	t.Cleanup(func() { l.Must("remove volume", atoll.RemoveVolume(context.Background(), l, "", "cache")) })
	sb := l.NewSandbox(atoll.Spec{Mounts: []atoll.Mount{
		{Type: atoll.MountTmpfs, Target: "/work/tmp"},
		{Type: atoll.MountVolume, Source: "cache", Target: "/work/deep/cache"},
		{Type: atoll.MountBind, Source: conf, Target: "/work/conf"},
	}})
	l.Sh(sb, "ln -s tmp t; ln -s deep/cache c; ln -s /etc e; ln -s ../conf tmp/up; echo > plain")
	mounted := map[string]bool{"conf": true, "tmp/up": true} // a file that cannot be replaced
	for _, name := range []string{
		"plain", "tmp/file", "deep/cache/file", "conf", "deep/file", "t/file", "c/file", "e/file", "tmp/up", "/etc/file", "/work/tmp/../c/x",
	} {
		if !mounted[name] {
			l.Must("write "+name, atoll.WriteFile(l.Context(), sb, name, []byte("from outside to "+name), 0))
			if got := l.Run(sb, &atoll.Command{Args: []string{"cat", name}}); got != "from outside to "+name {
				t.Errorf("%s is inside: %q", name, got)
			}
		}
		l.Sh(sb, "echo from inside to "+name+" > "+name)
		if got, err := atoll.ReadFile(l.Context(), sb, name); string(got) != "from inside to "+name+"\n" || err != nil {
			t.Errorf("%s is outside: %q, %v", name, got, err)
		}
	}
	list, err := atoll.Files(sb).List(l.Context(), "/work", true)
	l.Must("list", err)
	var names []string
	for _, info := range list {
		names = append(names, info.Path)
	}
	if got, want := strings.Join(names, "\n"), l.Sh(sb, "find /work -mindepth 1 | LC_ALL=C sort"); got != want {
		t.Errorf("the list:\n%s", diffLines(want, got))
	}
	if data, err := os.ReadFile(conf); string(data) != "from inside to tmp/up\n" || err != nil {
		t.Errorf("the file of the host: %q, %v", data, err)
	}

	l.Must("stop", sb.Stop(l.Context(), 0))
	for name, want := range map[string]atoll.Kind{
		"plain": "", "deep/cache/file": "", "deep/file": "", "tmp/file": atoll.ErrStopped, "conf": atoll.ErrStopped, "t/file": atoll.ErrStopped, "/etc/file": atoll.ErrStopped,
	} {
		_, err := atoll.ReadFile(l.Context(), sb, name)
		supervisedtest.WantKind(t, "read "+name+" while stopped", err, want)
	}
}

// Files that are made in a stopped sandbox belong to its user.
func TestFilesOfAStoppedUser(t *testing.T) {
	testenv.Need(t, testenv.Root)
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{User: "1234:4321"})
	l.Must("stop", sb.Stop(l.Context(), 0))
	l.Must("write", atoll.WriteFile(l.Context(), sb, "dir/file", []byte("x"), 0))
	l.Must("start", sb.Start(l.Context()))
	if got := l.Sh(sb, "stat -c %u:%g dir dir/file | uniq; echo more >> dir/file; rm -r dir"); got != "1234:4321" {
		t.Errorf("owners: %s", got)
	}
}

// Files written to the work directory before the first start belong to the user who then
// works there.
func TestFilesBeforeTheFirstStart(t *testing.T) {
	testenv.Need(t, testenv.Root) // others have no users
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{User: "1000:1000", NoStart: true})
	l.Must("write", atoll.WriteFile(l.Context(), sb, "dir/file", []byte("a\n"), 0o644))
	l.Must("start", sb.Start(l.Context()))
	if got := l.Sh(sb, "echo b >> dir/file; touch dir/new; cat dir/file"); got != "a\nb" {
		t.Errorf("the file holds %q", got)
	}
}

// A tree with more files than the sentry may have descriptors for can be written and read.
func TestManyFiles(t *testing.T) {
	l := newLab(t)
	var descriptors unix.Rlimit
	l.Must("getrlimit", unix.Getrlimit(unix.RLIMIT_NOFILE, &descriptors))
	n := min(descriptors.Max, 20_000) * 6 / 10 // each of those that the sentry remembers has two descriptors
	sb := l.NewSandbox(atoll.Spec{})
	out := l.Sh(sb, fmt.Sprintf("mkdir many && cd many && seq %d | xargs -n 500 touch && for i in 1 2; do find . -type f -size 0 | wc -l; done", n))
	if want := fmt.Sprintf("%d\n%[1]d", n); out != want {
		t.Errorf("%q, want %q", out, want)
	}
}
