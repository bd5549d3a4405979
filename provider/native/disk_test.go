//go:build linux

package native_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/native"
	"github.com/seed46cd37a8/atoll/provider/native/internal/quota/quotatest"
)

// Files that an earlier run left above the limit remain, and can be removed.
func TestDiskLimitAfterRestart(t *testing.T) {
	l := newLab(t)
	if !l.Info().Caps.DiskWatch {
		t.Skip("the file system of the state directory has quotas")
	}
	sb := l.NewSandbox(atoll.Spec{Resources: atoll.Resources{Disk: 8 << 20}})
	run := func(script string) atoll.Exit {
		t.Helper()
		res, err := atoll.Capture(l.Context(), sb, &atoll.Command{Args: []string{"sh", "-c", script}}, 1<<10)
		l.Must(script, err)
		return res.Exit
	}
	if exit := run("head -c 16m /dev/zero > /var/tmp/big; exec sleep 1000"); !strings.Contains(exit.Reason, "disk limit") {
		t.Errorf("16 MiB fit into 8 MiB: %+v", exit)
	}
	l.Must("stop", sb.Stop(l.Context(), 0))
	l.Must("start", sb.Start(l.Context()))
	if exit := run("head -c 500k /dev/zero > /var/tmp/little; exec sleep 1"); exit.Code != 0 {
		t.Errorf("a program that adds 0.5 MiB: %+v", exit)
	}
	if exit := run("head -c 16m /dev/zero > /var/tmp/more; exec sleep 1000"); !strings.Contains(exit.Reason, "disk limit") {
		t.Errorf("a program that adds 16 MiB: %+v", exit)
	}
	if exit := run("rm /var/tmp/*; exec sleep 1"); exit.Code != 0 {
		t.Errorf("a program that removes files: %+v", exit)
	}
}

// Files that the API writes count.
func TestDiskLimitOfFiles(t *testing.T) {
	l := newLab(t)
	if !l.Info().Caps.DiskWatch {
		t.Skip("the file system of the state directory has quotas")
	}
	sb := l.NewSandbox(atoll.Spec{Resources: atoll.Resources{Disk: 8 << 20}})
	var err error
	for begun := time.Now(); err == nil && time.Since(begun) < testenv.Scale(10*time.Second); {
		err = atoll.WriteFile(l.Context(), sb, "/var/tmp/"+atoll.NewID(), make([]byte, 1<<20), 0)
	}
	if !errors.Is(err, atoll.ErrExhausted) || !strings.Contains(err.Error(), "disk limit") {
		t.Errorf("files that the API writes: %v", err)
	}
	if _, err := atoll.Files(sb).List(l.Context(), "/var/tmp", false); err != nil {
		t.Errorf("list: %v", err)
	}
	l.Must("remove", atoll.Files(sb).Remove(l.Context(), "/var/tmp", true))
	l.Must("write", atoll.WriteFile(l.Context(), sb, "/var/tmp/small", []byte("x"), 0))
}

// Where the file system has project quotas, writes fail, and programs see the size of their disk.
func TestDiskQuota(t *testing.T) {
	top := quotatest.Mount(t)
	l := newLab(t, func(o *native.Options) { o.Dir = filepath.Join(top, "state") })
	if caps := l.Info().Caps; !caps.DiskLimit || caps.DiskWatch {
		t.Errorf("the caps are %+v", caps)
	}
	sb := l.NewSandbox(atoll.Spec{Resources: atoll.Resources{Disk: 32 << 20}})
	check := func(sb atoll.Sandbox) {
		t.Helper()
		const script = `head -c 16m /dev/zero > /var/tmp/a && head -c 64m /dev/zero > /work/b && ! head -c 32m /dev/zero > /root/c && rm /var/tmp/a /root/c && stat -f -c "%S %b" /`
		var size, blocks int64
		out := l.Sh(sb, script)
		if _, err := fmt.Sscan(out, &size, &blocks); err != nil || size*blocks != 32<<20 {
			t.Errorf("size of the disk: %q, %v", out, err)
		}
	}
	check(sb)
	l.Must("stop", sb.Stop(l.Context(), 0))
	l.Must("start", sb.Start(l.Context()))
	check(sb)
	neighbour := l.NewSandbox(atoll.Spec{})
	l.Sh(neighbour, "head -c 40m /dev/zero > /var/tmp/a")
	if !l.Info().Caps.Snapshot {
		return
	}
	l.Sh(sb, "head -c 16m /dev/zero > /var/tmp/a")
	snap, err := atoll.TakeSnapshot(l.Context(), sb)
	l.Must("snapshot", err)
	l.Sh(sb, "rm /var/tmp/a")
	copied := l.NewSandbox(atoll.Spec{Snapshot: snap.ID, Resources: atoll.Resources{Disk: 32 << 20}})
	if out := l.Sh(copied, "head -c 24m /dev/zero > /root/c || echo full"); out != "full" {
		t.Errorf("a sandbox from a snapshot of 16 MiB takes 24 MiB more: %q", out)
	}
}
