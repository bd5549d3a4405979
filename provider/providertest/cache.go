package providertest

import (
	"slices"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

var cachePromises = []promise{
	{"a cache is shared in its project only, and outlives its sandboxes", []need{needCache}, func(t *testing.T, h *harness) {
		h.removeCaches(t, "one", "two")
		spec := atoll.Spec{Project: "one", Cache: true}
		a, b := h.createSandbox(t, spec), h.createSandbox(t, spec)
		h.storeInCache(t, a, ".cache/kept", "kept")
		h.checkInCache(t, b, ".cache/kept", "kept")
		for _, sb := range []atoll.Sandbox{a, b} {
			if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
				t.Fatalf("Remove: %v", err)
			}
		}
		h.checkInCache(t, h.createSandbox(t, spec), ".cache/kept", "kept")
		h.checkNotInCache(t, h.createSandbox(t, atoll.Spec{Project: "two", Cache: true}), ".cache/kept")
		h.checkNotInCache(t, h.createSandbox(t, atoll.Spec{Project: "one"}), ".cache/kept")
	}},
	{"every directory of CacheDirs and CachePaths links to the cache", []need{needCache}, func(t *testing.T, h *harness) {
		h.removeCaches(t, "one")
		spec := atoll.Spec{Project: "one", Cache: true, CachePaths: []string{".cargo", "of the/suite"}}
		a, b := h.createSandbox(t, spec), h.createSandbox(t, spec)
		dirs := append(atoll.CacheDirs(), spec.CachePaths...)
		for _, dir := range dirs {
			h.storeInCache(t, a, dir+"/kept", dir)
		}
		for _, dir := range dirs {
			h.checkInCache(t, b, dir+"/kept", dir)
		}
	}},
	{"the cache leaves directories with files alone", []need{needCache, needDurable}, func(t *testing.T, h *harness) {
		h.removeCaches(t, "one")
		spec := atoll.Spec{Project: "one", Cache: true}
		sb := h.createSandbox(t, spec)
		h.runInHome(t, sb, `rm .npm .ccache .yarn && mkdir .npm && echo own > .npm/kept && echo own > .ccache && ln -s elsewhere .yarn && rm .gem && mkdir .gem`)
		for range 2 {
			if err := sb.Stop(h.newContext(t), 0); err != nil {
				t.Fatalf("Stop: %v", err)
			}
			if err := sb.Start(h.newContext(t)); err != nil {
				t.Fatalf("Start: %v", err)
			}
		}
		h.runInHome(t, sb, `test "$(cat .npm/kept)" = own && test ! -L .npm && test "$(cat .ccache)" = own && test "$(readlink .yarn)" = elsewhere`)
		h.storeInCache(t, sb, ".gem/kept", "kept") // the directory was empty
		h.checkInCache(t, h.createSandbox(t, spec), ".gem/kept", "kept")
	}},
	{"the cache does not follow links that programs left", []need{needCache, needDurable}, func(t *testing.T, h *harness) {
		h.removeCaches(t, "one")
		sb := h.createSandbox(t, atoll.Spec{Project: "one", Cache: true})
		h.runInHome(t, sb, `mkdir /work/other && rm -r .cargo && ln -s /work/other .cargo`)
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Fatalf("Start: %v", err)
		}
		h.runInHome(t, sb, `test -z "$(ls -A /work/other)"`)
	}},
	{"each user has a separate cache", []need{needCache, needUsers}, func(t *testing.T, h *harness) {
		h.removeCaches(t, "one")
		spec := func(user string) atoll.Spec {
			return atoll.Spec{Project: "one", Cache: true, User: user, Env: []string{"HOME=/work/home"}}
		}
		a, b, other := h.createSandbox(t, spec("1234:1234")), h.createSandbox(t, spec("1234:1234")), h.createSandbox(t, spec("2345:2345"))
		h.storeInCache(t, a, ".cache/kept", "kept")
		h.checkInCache(t, b, ".cache/kept", "kept")
		h.checkNotInCache(t, other, ".cache/kept")
		h.storeInCache(t, other, ".cache/kept", "other")
		h.checkInCache(t, a, ".cache/kept", "kept")
	}},
	{"Create refuses a cache for a user without a home directory", []need{needCache, needUsers}, func(t *testing.T, h *harness) {
		h.removeCaches(t, "one")
		h.wantRefused(t, atoll.Spec{Project: "one", Cache: true, User: "1234:1234", Env: []string{"HOME=/no/home"}}, atoll.ErrInvalid)
		if all, err := atoll.Volumes(h.newContext(t), h.p, "one"); err != nil || len(all) > 0 {
			t.Errorf("Volumes: %+v, %v; want none", all, err)
		}
	}},
	{"the cache is a volume of its project, and removing it empties the cache", []need{needCache}, func(t *testing.T, h *harness) {
		h.removeCaches(t, "one")
		spec := atoll.Spec{Project: "one", Cache: true}
		sb := h.createSandbox(t, spec)
		h.storeInCache(t, sb, ".cache/kept", "kept")
		if v := h.findVolume(t, "one", atoll.CacheVolume); !v.Cache || !v.InUse || v.Project != "one" || v.Sandbox != "" {
			t.Errorf("the volume is %+v, want a cache in use", v)
		}
		wantKind(t, "RemoveVolume while in use", atoll.RemoveVolume(h.newContext(t), h.p, "one", atoll.CacheVolume), atoll.ErrConflict)
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		if v := h.findVolume(t, "one", atoll.CacheVolume); !v.Cache || v.InUse {
			t.Errorf("the volume is %+v, want a cache that is not in use", v)
		}
		if err := atoll.RemoveVolume(h.newContext(t), h.p, "one", atoll.CacheVolume); err != nil {
			t.Errorf("RemoveVolume: %v", err)
		}
		h.checkNotInCache(t, h.createSandbox(t, spec), ".cache/kept")
		h.wantRefused(t, atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: atoll.CacheVolume, Target: "/work/m"}}}, atoll.ErrInvalid)
	}},
	{"a sandbox without a cache creates no cache volume", []need{needVolumes}, func(t *testing.T, h *harness) {
		h.plainSandbox(t)
		all, err := atoll.Volumes(h.newContext(t), h.p, "")
		if err != nil || slices.ContainsFunc(all, func(v atoll.Volume) bool { return v.Cache || v.Name == atoll.CacheVolume }) {
			t.Errorf("Volumes: %+v, %v; want no cache", all, err)
		}
	}},
}

// removeCaches removes the projects, with their caches and sandboxes, at the end of the subtest.
func (h *harness) removeCaches(t *testing.T, projects ...string) {
	t.Cleanup(func() {
		for _, p := range projects {
			if err := atoll.RemoveProject(h.newContext(t), h.p, p); err != nil {
				t.Errorf("RemoveProject: %v", err)
			}
		}
	})
}

// runInHome runs a script in the home directory and returns its output. It fails the test unless the
// script succeeds.
func (h *harness) runInHome(t *testing.T, sb atoll.Sandbox, script string, args ...string) string {
	t.Helper()
	return h.runForOutput(t, sb, programCommand(append([]string{"sh", "-c", `cd && ` + script, "sh"}, args...)...))
}

// storeInCache writes a file below the home directory.
func (h *harness) storeInCache(t *testing.T, sb atoll.Sandbox, name, text string) {
	t.Helper()
	h.runInHome(t, sb, `echo "$2" > "$1"`, name, text)
}

// checkInCache checks the content of a file below the home directory.
func (h *harness) checkInCache(t *testing.T, sb atoll.Sandbox, name, text string) {
	t.Helper()
	if got := h.runInHome(t, sb, `cat "$1"`, name); got != text {
		t.Errorf("%s holds %q, want %q", name, got, text)
	}
}

// checkNotInCache checks that a file below the home directory does not exist.
func (h *harness) checkNotInCache(t *testing.T, sb atoll.Sandbox, name string) {
	t.Helper()
	h.runInHome(t, sb, `test ! -e "$1"`, name)
}
