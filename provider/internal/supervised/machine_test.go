//go:build linux

package supervised

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Each way in which machines deny namespaces has its own remedy.
func TestNamespaceFix(t *testing.T) {
	const (
		limit    = "/proc/sys/user/max_user_namespaces"
		debian   = "/proc/sys/kernel/unprivileged_userns_clone"
		apparmor = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
	)
	open := map[string]string{limit: "15000", debian: "1", apparmor: "0"}
	for _, tt := range []struct {
		name     string
		m        hostFacts
		settings map[string]string
		err      error
		want     string
	}{
		{"root in docker without its capabilities", hostFacts{root: true, container: true}, open, unix.EPERM, "--cap-add SYS_ADMIN"},
		{"no namespaces", hostFacts{}, map[string]string{limit: "0"}, unix.ENOSPC, "sysctl -w user.max_user_namespaces="},
		{"Debian of old", hostFacts{}, map[string]string{limit: "15000", debian: "0"}, unix.EPERM, "sysctl -w kernel.unprivileged_userns_clone=1"},
		{"Ubuntu 24.04", hostFacts{}, map[string]string{limit: "15000", apparmor: "1"}, unix.EACCES, "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"},
		{"a user in docker", hostFacts{container: true}, open, unix.EPERM, "--security-opt seccomp=unconfined"},
		{"denied by something else", hostFacts{}, open, fmt.Errorf("fork/exec: %w", unix.EPERM), "denied on this machine: run as root"},
		{"another failure", hostFacts{}, nil, unix.EINVAL, "run as root"},
		{"another failure of root", hostFacts{root: true, admin: true}, open, unix.EINVAL, "another provider"},
	} {
		tt.m.setting = func(path string) string { return tt.settings[path] }
		if got := tt.m.namespaceFix(tt.err); !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q in it", tt.name, got, tt.want)
		}
	}
}
