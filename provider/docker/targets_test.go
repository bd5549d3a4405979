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

// A link that a program has left where a volume is mounted is not followed: what it
// leads to may be the guest's program.
func TestMountFollowsNoLink(t *testing.T) { mountsFollowNoLink(t, opened(t)) }

func mountsFollowNoLink(t *testing.T, p atoll.Provider) {
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
		run(t, sb, tt.script)
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

// Nor is one that an image has where a volume is mounted, one of ours or of the spec.
func TestMountFollowsNoLinkOfImage(t *testing.T) {
	p := opened(t)
	mountsFollowNoLinkOfImage(t, p, serve(t))
}

func mountsFollowNoLinkOfImage(t *testing.T, p *docker.Provider, reg *testimage.Registry) {
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

// Links that lead elsewhere are followed, where they are not on a volume: those of
// an image are like them.
func TestMountFollowsOtherLinks(t *testing.T) {
	p := opened(t)
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
	run(t, sb, "echo kept > /opt/a/m/f && mv /opt/a /opt/b && ln -s b /opt/a")
	if err = sb.Stop(t.Context(), 0); err == nil {
		err = sb.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := run(t, sb, "cat /opt/b/m/f"); got != "kept" {
		t.Errorf("the file holds %q", got)
	}
}

// The work directory is the user's who works there, whatever is mounted in it.
func TestWorkdirWithMounts(t *testing.T) {
	p := opened(t)
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
	run(t, sb, "echo > f")
	if got := run(t, sb, "stat -c %u:%g /work"); got != "1234:2345" {
		t.Errorf("the work directory is %s's", got)
	}
}
