package guest

import (
	"fmt"
	"testing"
)

func TestGroupMounts(t *testing.T) {
	for text, want := range map[string]string{
		"0::/init.scope\n": "cgroup2 /sys/fs/cgroup \n",
		"3:memory:/a\n2:cpu,cpuacct:/\n1:name=systemd:/user\n0::/\n": "tmpfs /sys/fs/cgroup mode=0755\ncgroup /sys/fs/cgroup/memory memory\n" +
			"cgroup /sys/fs/cgroup/cpu,cpuacct cpu,cpuacct\ncgroup /sys/fs/cgroup/systemd none,name=systemd\ncgroup2 /sys/fs/cgroup/unified \n",
	} {
		got := ""
		for _, m := range groupMounts(text) {
			got += fmt.Sprintln(m.kind, m.target, m.data)
		}
		if got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
