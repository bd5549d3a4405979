//go:build linux

package sentry

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/hostroot"
	"github.com/seed46cd37a8/atoll/provider/internal/hostroot/hostroottest"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

func TestMountTargetsInHostRoot(t *testing.T) {
	hostroottest.InMounts(t, func() error {
		dir := t.TempDir()
		if err := hostroottest.MountExtras(t); err != nil {
			return err
		}
		if err := hostroot.LayOut(dir, hostroot.Options{}); err != nil {
			return err
		}
		checkWritable(t, dir, "usr", "usr/local/bin")
		return nil
	})
}

// newTestEngine returns the engine for a job, of which nothing runs.
func newTestEngine(j *supervisor.Job) *engine {
	return &engine{sandbox: &supervisor.Sandbox{Job: j}, job: &job{Job: j}}
}

// checkWritable checks that files can be made in directories of the root that
// hostroot.LayOut made at dir, and that nothing else has changed.
func checkWritable(t *testing.T, dir string, names ...string) {
	t.Helper()
	e := newTestEngine(&supervisor.Job{Spec: atoll.Spec{ID: atoll.NewID(), Workdir: atoll.DefaultWorkdir}})
	for _, name := range names {
		e.job.Mounts = append(e.job.Mounts, supervisor.Mount{Source: t.TempDir(), Target: "/" + name + "/made/here"})
	}
	before, err := os.Stat(filepath.Join(dir, names[0]))
	if err = errors.Join(err, e.prepareMountTargets(dir)); err != nil {
		t.Error(err)
		return
	}
	for _, name := range names {
		if err := os.MkdirAll(filepath.Join(dir, name, "made/here"), 0o755); err != nil {
			t.Error(err)
		}
	}
	if after, err := os.Stat(filepath.Join(dir, names[0])); err != nil || after.Mode() != before.Mode() {
		t.Errorf("/%s is %v, %v; was %v", names[0], after, err, before.Mode())
	}
	shows := hostroottest.Shows()
	shows["usr/upper"], shows["usr/work"] = false, false
	hostroottest.CheckView(t, dir, shows)
}

// In a user namespace, no overlay can lie on a directory with mounts that the machine made
// below it.
func TestMountTargetsInUserNamespace(t *testing.T) {
	hostroottest.InUserNamespace(t, func(dir string) {
		if err := hostroot.LayOut(dir, hostroot.Options{}); err != nil {
			t.Fatal(err)
		}
		checkWritable(t, dir, "usr/local/bin")
		e := newTestEngine(&supervisor.Job{Mounts: []supervisor.Mount{{Source: dir, Target: "/usr/none"}}})
		if err := e.prepareMountTargets(dir); atoll.KindOf(err) != atoll.ErrUnsupported || !strings.Contains(err.Error(), " /usr,") {
			t.Errorf("a target above a covered mount: %v, want unsupported, with /usr in it", err)
		}
	})
}
