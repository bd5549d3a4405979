//go:build linux

package supervisedtest

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// CheckReadOnlyMount checks that a read-only mount is read-only for programs inside and for Files.
func (l *Lab) CheckReadOnlyMount() {
	l.T.Helper()
	dir := l.T.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("as it was"), 0o666); err != nil {
		l.T.Fatal(err)
	}
	sb := l.NewSandbox(atoll.Spec{Mounts: []atoll.Mount{
		{Type: atoll.MountBind, Source: dir, Target: "/shared", ReadOnly: true},
		{Type: atoll.MountBind, Source: filepath.Join(dir, "file"), Target: "/single", ReadOnly: true},
	}})
	for _, script := range []string{
		"echo x > /shared/file", "echo x >> /single", "rm /shared/file", "touch /shared/new", "mv /shared/file /shared/moved",
		"chmod 0 /shared/file", "mount -o remount,rw /shared", "ln /shared/file /shared/link",
	} {
		l.FailSh(sb, script)
	}
	for _, name := range []string{"/shared/file", "/shared/new"} {
		WantKind(l.T, "write "+name, atoll.WriteFile(l.Context(), sb, name, []byte("x"), 0), atoll.ErrDenied)
	}
	if err := atoll.Files(sb).Remove(l.Context(), "/shared/file", false); atoll.KindOf(err) != atoll.ErrDenied {
		l.T.Errorf("remove: %v", err)
	}
	if got := l.Sh(sb, "cat /shared/file /single"); got != "as it wasas it was" {
		l.T.Errorf("inside: %q", got)
	}
	if got := strings.Join(ListDir(l.T, dir), " "); got != "file" {
		l.T.Errorf("on the host: %s", got)
	}
}
