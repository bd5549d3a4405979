//go:build linux

package docker_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/provider/docker"
)

// If a program has left a link on the way to a mount's target, Start fails: the link may lead to
// the guest's program.
func TestMountLinksOfProgram(t *testing.T) { checkNoLinkFollowed(t, openForTest(t)) }

func checkNoLinkFollowed(t *testing.T, p atoll.Provider) {
	t.Helper()
	t.Cleanup(func() {
		if err := atoll.RemoveProject(context.WithoutCancel(t.Context()), p, "linked"); err != nil {
			t.Error(err)
		}
	})
	for _, tt := range []struct{ target, script string }{
		{"/work/a/m", "mv /work/a /work/b && mkdir /work/a && ln -s /.atoll /work/a/m"},
		{"/work/a/m", "mv /work/a /work/b && ln -s /etc /work/a"},
		{"/opt/a/m", "mv /opt/a /opt/b && mkdir /opt/a && ln -s ../../.atoll /opt/a/m"},
		{"/opt/a", "mv /opt /other && mkdir /opt && ln -s /work/l /opt/a && ln -s /.atoll /work/l"},
	} {
		sb, err := p.Create(t.Context(), &atoll.Spec{
			Project: "linked", Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "v", Target: tt.target}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err = sb.Stop(t.Context(), 0); err == nil {
			err = sb.Start(t.Context())
		}
		if err != nil {
			t.Errorf("%s: Start without links: %v", tt.target, err)
		}
		runShell(t, sb, tt.script)
		if err := sb.Stop(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		wantKind(t, tt.script, sb.Start(t.Context()), atoll.ErrInvalid, tt.target, "is a link")
		if strings.HasPrefix(tt.target, "/work") {
			_, err := atoll.ReadFile(t.Context(), sb, "f")
			wantKind(t, tt.script, err, atoll.ErrInvalid, "is a link")
		}
	}
}

// Create fails if the image has such a link, or a link at a mount point of Atoll's.
func TestMountLinksOfImage(t *testing.T) {
	p := openForTest(t)
	checkNoImageLinkFollowed(t, p, serveRegistry(t))
}

func checkNoImageLinkFollowed(t *testing.T, p *docker.Provider, reg *testimage.Registry) {
	t.Helper()
	for i, tt := range []struct{ name, target string }{{".data", "/.atoll"}, {"work", "/etc"}, {".atoll", "/work"}, {"data", "/.atoll"}} {
		img, err := mutate.AppendLayers(testimage.Busybox(t), testimage.Layer(t, testimage.Symlink(tt.name, tt.target)))
		if err != nil {
			t.Fatal(err)
		}
		spec := &atoll.Spec{Image: reg.Push(fmt.Sprintf("linked:%d", i), img), Project: "linked"}
		if tt.name == "data" {
			spec.Mounts = []atoll.Mount{{Type: atoll.MountVolume, Source: "v", Target: "/data"}}
		}
		_, err = p.Create(t.Context(), spec)
		wantKind(t, "Create with a link "+tt.name, err, atoll.ErrInvalid, "/"+tt.name, "is a link")
	}
	if all, err := p.Volumes(t.Context(), "linked"); err != nil || len(all) > 0 {
		t.Errorf("Volumes: %+v, %v; want none", all, err)
	}
}

// A mount follows links of an image or a program that are not on a volume and do not lead to the
// guest.
func TestMountFollowsSafeLinks(t *testing.T) {
	p := openForTest(t)
	t.Cleanup(func() {
		if err := p.RemoveProject(context.WithoutCancel(t.Context()), "linked"); err != nil {
			t.Error(err)
		}
	})
	sb, err := p.Create(t.Context(), &atoll.Spec{
		Project: "linked", Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "v", Target: "/opt/a/m"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	runShell(t, sb, "echo kept > /opt/a/m/f && mv /opt/a /opt/b && ln -s b /opt/a")
	if err = sb.Stop(t.Context(), 0); err == nil {
		err = sb.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := runShell(t, sb, "cat /opt/b/m/f"); got != "kept" {
		t.Errorf("the file holds %q", got)
	}
}

// The work directory belongs to the sandbox's user, even if mounts are below it.
func TestWorkdirWithMounts(t *testing.T) {
	p := openForTest(t)
	t.Cleanup(func() {
		if err := p.RemoveProject(context.WithoutCancel(t.Context()), "mounted"); err != nil {
			t.Error(err)
		}
	})
	sb, err := p.Create(t.Context(), &atoll.Spec{Project: "mounted", User: "1234:2345", Mounts: []atoll.Mount{
		{Type: atoll.MountVolume, Source: "v", Target: "/work/a/v"},
		{Type: atoll.MountTmpfs, Target: "/work/t"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	runShell(t, sb, "echo > f")
	if got := runShell(t, sb, "stat -c %u:%g /work"); got != "1234:2345" {
		t.Errorf("the owner of the work directory is %s", got)
	}
}
