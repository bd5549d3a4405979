//go:build linux

package native_test

import (
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/native"
)

// With the option Nested, programs make sandboxes of their own, with a /proc, and what was refused before still is.
func TestNested(t *testing.T) {
	testenv.Need(t, testenv.Program("bwrap", "bubblewrap"))
	l := newLab(t, func(o *native.Options) { o.Nested = true })
	if probe := atoll.ProbeProvider(l.Context(), l.Provider); !strings.Contains(strings.Join(probe.Notes, "\n"), "native.nested is on") {
		t.Errorf("the probe does not say so: %q", probe.Notes)
	}
	sb := l.NewSandbox(atoll.Spec{})
	got := l.Sh(sb, "bwrap --ro-bind / / --proc /proc --dev /dev --tmpfs /tmp --unshare-all --uid 1000 --die-with-parent sh -c 'id -u; ls -d /proc/[0-9]* | wc -l; ls -A /tmp'")
	if lines := strings.Fields(got); len(lines) != 2 || lines[0] != "1000" || len(lines[1]) > 1 {
		t.Errorf("in a sandbox inside: %q", got)
	}
	if got := l.Sh(sb, "unshare -Urmn sh -c 'mount -t tmpfs none /mnt && echo x > /mnt/x && cat /mnt/x; ip link 2>/dev/null | grep -c : || true'"); !strings.HasPrefix(got, "x") {
		t.Errorf("in namespaces inside: %q", got)
	}
	for _, script := range []string{
		"mount -o remount,rw /sys", "echo 0 > /proc/sys/vm/swappiness", "mknod /tmp/null c 1 3",
		"unshare -Urm sh -c 'mknod /tmp/null c 1 3'", "unshare -Urm sh -c 'mount -t ext4 /dev/vda /mnt'", "unshare -Urm sh -c 'umount /sys'",
		"unshare -Ur sh -c 'echo 0 > /proc/sys/vm/swappiness'", "unshare -Ur dmesg",
	} {
		l.FailSh(sb, script)
	}
	if got := l.Sh(sb, "cat /proc/sys/user/max_user_namespaces"); got != "256" {
		t.Errorf("max_user_namespaces: %s", got)
	}
	if got := l.Sh(sb, "setpriv --reuid 65534 --clear-groups ls /dev/.nested 2>&1 || true"); !strings.Contains(got, "ermission") && l.Info().Caps.Users {
		t.Errorf("another user inside sees %q", got)
	}
}
