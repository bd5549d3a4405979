package docker

import (
	"slices"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"github.com/seed46cd37a8/atoll"
)

// adaptMounts rejects paths that Podman would parse as options.
func TestAdaptMounts(t *testing.T) {
	for _, tt := range []struct {
		name   string
		podman bool
		mount  mount.Mount
		binds  []string
		mounts int
		kind   atoll.Kind
	}{
		{name: "docker", mount: mount.Mount{Type: mount.TypeBind, Source: "/a:b", Target: "/c,d"}, mounts: 1},
		{name: "a volume", podman: true, mount: mount.Mount{Type: mount.TypeVolume, Source: "v", Target: "/v"}, binds: []string{"v:/v:rw,nocopy"}},
		{name: "a directory, read-only", podman: true, mount: mount.Mount{Type: mount.TypeBind, Source: "/a,b", Target: "/c", ReadOnly: true}, binds: []string{"/a,b:/c:ro"}},
		{name: "a tmpfs", podman: true, mount: mount.Mount{Type: mount.TypeTmpfs, Target: "/a:b"}, mounts: 1},
		{name: "a source with a colon", podman: true, mount: mount.Mount{Type: mount.TypeBind, Source: "/a:/etc", Target: "/c"}, kind: atoll.ErrUnsupported},
		{name: "a target with a colon", podman: true, mount: mount.Mount{Type: mount.TypeVolume, Source: "v", Target: "/c:U"}, kind: atoll.ErrUnsupported},
		{name: "a tmpfs with a comma", podman: true, mount: mount.Mount{Type: mount.TypeTmpfs, Target: "/c,tmpfs-size=1"}, kind: atoll.ErrUnsupported},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := &container.HostConfig{Mounts: []mount.Mount{tt.mount}}
			if err := (engineInfo{podman: tt.podman}).adaptMounts(h); atoll.KindOf(err) != tt.kind {
				t.Fatalf("error %v, want kind %q", err, tt.kind)
			}
			if tt.kind == "" && (!slices.Equal(h.Binds, tt.binds) || len(h.Mounts) != tt.mounts) {
				t.Errorf("binds %q and mounts %+v, want %q and %d", h.Binds, h.Mounts, tt.binds, tt.mounts)
			}
		})
	}
}

// supportedCaps removes the caps that the engine lacks.
func TestSupportedCaps(t *testing.T) {
	all := engineInfo{memory: true, cpu: true, pids: true, cgroups: true}
	if got := all.supportedCaps(info.Caps); got != info.Caps {
		t.Errorf("with a full engine, the caps are %+v", got)
	}
	got := engineInfo{podman: true}.supportedCaps(info.Caps)
	if got.MemoryLimit || got.CPULimit || got.ProcessLimit || got.Pause || got.Usage || got.GPU || !got.Volumes {
		t.Errorf("with a rootless Podman without cgroups, the caps are %+v", got)
	}
}
