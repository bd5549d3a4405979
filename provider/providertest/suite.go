// Package providertest tests that providers keep the promises of package atoll. It has one
// conformance suite, injected faults, a model and benchmarks, the same for leaves, layers and
// clients. It is for tests only; third parties run it too.
//
// The whole conformance test of a provider:
//
//	func TestConformance(t *testing.T) {
//		providertest.Run(t, func(t *testing.T) atoll.Provider {
//			p, err := mine.New(mine.Options{Dir: t.TempDir()})
//			if err != nil {
//				t.Fatal(err)
//			}
//			return p
//		})
//	}
//
// The provider's Caps and the Options decide which promises apply. The options tell the suite how to
// do things that no method of a provider does, such as to kill a sandbox. The suite skips a
// promise that does not apply, with a reason. Group truth checks that the Caps are true.
package providertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// A group is a set of promises about one subject.
type group struct {
	name     string
	promises []promise
}

// A promise is one subtest. Its name states the promise as a sentence.
type promise struct {
	name  string
	needs []need
	check func(t *testing.T, h *harness)
}

// A need is a precondition of a promise. It returns the reason why a provider does not meet it, or "".
type need func(c atoll.Info, cfg *config) string

// newCapNeed returns the need for a cap.
func newCapNeed(name string, has func(atoll.Caps) bool) need {
	return func(i atoll.Info, _ *config) string {
		if has(i.Caps) {
			return ""
		}
		return i.Name + " has no cap " + name
	}
}

var (
	needTTY           = newCapNeed("tty", func(c atoll.Caps) bool { return c.TTY })
	needFiles         = newCapNeed("files", func(c atoll.Caps) bool { return c.Files })
	needDial          = newCapNeed("dial", func(c atoll.Caps) bool { return c.Dial })
	needExtend        = newCapNeed("extend", func(c atoll.Caps) bool { return c.Extend })
	needPause         = newCapNeed("pause", func(c atoll.Caps) bool { return c.Pause })
	needSnapshot      = newCapNeed("snapshot", func(c atoll.Caps) bool { return c.Snapshot })
	needDurableCmd    = newCapNeed("durable_exec", func(c atoll.Caps) bool { return c.DurableExec })
	needUsage         = newCapNeed("usage", func(c atoll.Caps) bool { return c.Usage })
	needUsers         = newCapNeed("users", func(c atoll.Caps) bool { return c.Users })
	needImages        = newCapNeed("images", func(c atoll.Caps) bool { return c.Images })
	needStore         = newCapNeed("image_store", func(c atoll.Caps) bool { return c.ImageStore })
	needBind          = newCapNeed("bind_mounts", func(c atoll.Caps) bool { return c.BindMounts })
	needVolumes       = newCapNeed("volumes", func(c atoll.Caps) bool { return c.Volumes })
	needLocks         = newCapNeed("volume_locks", func(c atoll.Caps) bool { return c.VolumeLocks })
	needWorkspaces    = newCapNeed("workspaces", func(c atoll.Caps) bool { return c.Workspaces })
	needSessions      = newCapNeed("sessions", func(c atoll.Caps) bool { return c.Sessions })
	needTmpfs         = newCapNeed("tmpfs", func(c atoll.Caps) bool { return c.Tmpfs })
	needReadOnly      = newCapNeed("read_only_root", func(c atoll.Caps) bool { return c.ReadOnlyRoot })
	needMemory        = newCapNeed("memory_limit", func(c atoll.Caps) bool { return c.MemoryLimit })
	needCPU           = newCapNeed("cpu_limit", func(c atoll.Caps) bool { return c.CPULimit })
	needProcs         = newCapNeed("process_limit", func(c atoll.Caps) bool { return c.ProcessLimit })
	needDisk          = newCapNeed("disk_limit", func(c atoll.Caps) bool { return c.DiskLimit })
	needDiskWatch     = newCapNeed("disk_watch", func(c atoll.Caps) bool { return c.DiskWatch })
	needNoNet         = newCapNeed("network_none", func(c atoll.Caps) bool { return c.NetworkNone })
	needNet           = newCapNeed("network_on", func(c atoll.Caps) bool { return c.NetworkOn })
	needEgress        = newCapNeed("egress", func(c atoll.Caps) bool { return c.Egress })
	needNamed         = newCapNeed("network_named", func(c atoll.Caps) bool { return c.NetworkNamed })
	needRefusals      = newCapNeed("refusals", func(c atoll.Caps) bool { return c.Refusals })
	needNetworkLog    = newCapNeed("network_log", func(c atoll.Caps) bool { return c.NetworkLog })
	needNetworkUpdate = newCapNeed("network_update", func(c atoll.Caps) bool { return c.NetworkUpdate })
	needPublish       = newCapNeed("publish", func(c atoll.Caps) bool { return c.Publish })
	needCache         = newCapNeed("cache", func(c atoll.Caps) bool { return c.Cache })
	needIdleStop      = newCapNeed("idle_stop", func(c atoll.Caps) bool { return c.IdleStop })
	needSurvives      = newCapNeed("survives", func(c atoll.Caps) bool { return c.Survives })
	needReattach      = newCapNeed("reattach", func(c atoll.Caps) bool { return c.Reattach })
	needRestart       = newCapNeed("restart", func(c atoll.Caps) bool { return c.Restart })
	needDurable       = newCapNeed("durable", func(c atoll.Caps) bool { return c.Durable != atoll.DurableNone })
)

// needFlock is for promises that run flock, which busybox lacks.
func needFlock(i atoll.Info, cfg *config) string {
	if i.Caps.Images && cfg.debian == nil {
		return "the option Debian is not given, and busybox has no flock"
	}
	return ""
}

// newOptionNeed returns the need for an Option.
func newOptionNeed(name string, given func(*config) bool) need {
	return func(_ atoll.Info, cfg *config) string {
		if given(cfg) {
			return ""
		}
		return "the option " + name + " is not given"
	}
}

var (
	needPullable  = newOptionNeed("PullableImage", func(c *config) bool { return c.pullable != "" })
	needSource    = newOptionNeed("ImageSource", func(c *config) bool { return c.source != nil })
	needMoving    = newOptionNeed("MovingImage", func(c *config) bool { return c.moving != nil })
	needDebian    = newOptionNeed("Debian", func(c *config) bool { return c.debian != nil })
	needNetwork   = newOptionNeed("Network", func(c *config) bool { return c.network != nil })
	needRepo      = newOptionNeed("Repository", func(c *config) bool { return c.repo != nil })
	needElsewhere = newOptionNeed("OtherProcess", func(c *config) bool { return c.elsewhere != nil })
	needCrash     = newOptionNeed("CrashSandbox", func(c *config) bool { return c.crash != nil })
	needSteps     = newOptionNeed("FailSteps", func(c *config) bool { return c.steps != nil })
)

// needIsolation requires isolation from the host, and files and processes of its own.
func needIsolation(i atoll.Info, _ *config) string {
	if !seesHost(i) {
		return ""
	}
	return i.Name + " claims no isolation, or none but a profile"
}

// seesHost reports whether the processes of sandboxes see the paths of the host.
func seesHost(i atoll.Info) bool {
	return i.Isolation == atoll.IsolationNone || i.Isolation == atoll.IsolationProfile
}

// listGroups returns all groups in the order in which they run.
func listGroups() []group {
	return []group{
		{"create", createPromises},
		{"expiry", expiryPromises},
		{"exec", execPromises},
		{"output", outputPromises},
		{"time", timePromises},
		{"tree", treePromises},
		{"tty", ttyPromises},
		{"files", filePromises},
		{"edit", editPromises},
		{"sub", subPromises},
		{"volumes", volumePromises},
		{"workspaces", workspacePromises},
		{"sessions", sessionPromises},
		{"images", imagePromises},
		{"debian", debianPromises},
		{"restart", restartPromises},
		{"crash", crashPromises},
		{"watch", watchPromises},
		{"remove", removePromises},
		{"errors", errorPromises},
		{"caps", capsPromises},
		{"limits", limitPromises},
		{"isolation", wallPromises},
		{"escape", escapePromises},
		{"exhaustion", exhaustionPromises},
		{"network", slices.Concat(networkPromises, refusalPromises, netLogPromises)},
		{"named", namedPromises},
		{"cache", cachePromises},
		{"dial", dialPromises},
		{"pause", pausePromises},
		{"snapshot", snapshotPromises},
		{"registry", registryPromises},
		{"faults", faultPromises},
		{"steps", stepPromises},
		{patienceGroup, patiencePromises},
	}
}

// Run checks that the providers that open returns keep the promises of package atoll. Each subtest
// opens a provider and closes it. open may register cleanups, which run before the suite looks for
// leaks. Subtests run one after the other unless Parallel says otherwise, because the suite looks for
// leaks in the whole test process: no other test may run at the same time.
func Run(t *testing.T, open func(t *testing.T) atoll.Provider, opts ...Option) {
	cfg := newConfig(opts)
	known, names := map[string]bool{}, map[string]bool{}
	for _, g := range listGroups() {
		names[g.name] = true
		for _, p := range g.promises {
			known[g.name+"/"+p.name] = true
		}
	}
	for name := range cfg.except {
		if !known[name] {
			t.Errorf("Except(%q): no such subtest", name)
		}
	}
	for _, name := range wirePromises {
		if !known[name] {
			t.Errorf("wirePromises has %q: no such subtest", name)
		}
	}
	for _, name := range cfg.wire {
		if !groupOnWire(name) {
			t.Errorf("WireOnly(%q): no such group, or none of its promises is about the wire", name)
		}
	}
	for _, name := range slices.Concat(cfg.only, slices.Collect(maps.Keys(cfg.beside)), slices.Collect(maps.Keys(cfg.without))) {
		if !names[name] {
			t.Errorf("%q: no such group", name)
		}
	}
	for _, name := range []string{"faults", "steps"} {
		if cfg.beside[name] > 0 {
			t.Fatalf("Parallel(%q): its promises look for leaks themselves", name)
		}
	}
	for _, g := range listGroups() {
		if len(cfg.only) > 0 && !slices.Contains(cfg.only, g.name) {
			if cfg.rest != "" {
				t.Run(g.name, func(t *testing.T) { t.Skip(cfg.rest) })
			}
			continue
		}
		if reason, ok := cfg.without[g.name]; ok {
			t.Run(g.name, func(t *testing.T) { t.Skip(reason) })
			continue
		}
		if slices.Contains(cfg.wire, g.name) {
			g.promises = slices.DeleteFunc(slices.Clone(g.promises), func(p promise) bool { return !onWire(g.name, p.name) })
		}
		t.Run(g.name, func(t *testing.T) { g.runPromises(t, open, cfg) })
	}
}

// runPromises runs each promise of the group as a subtest.
func (g group) runPromises(t *testing.T, open func(t *testing.T) atoll.Provider, cfg *config) {
	own := func(t *testing.T, c *census) *harness {
		h := &harness{cfg: cfg, census: c, p: open(t)}
		t.Cleanup(func() { h.closeAndCheck(t) })
		return h
	}
	run := func(p promise, prepare func(t *testing.T) *harness) {
		t.Run(p.name, func(t *testing.T) {
			t.Attr("promise", g.name+"/"+p.name) // for a table of the environments that keep it
			if reason, ok := cfg.except[g.name+"/"+p.name]; ok {
				t.Skipf("excepted: %s", reason)
			}
			p.checkPromise(t, prepare(t))
		})
	}
	parallel := cfg.beside[g.name]
	if g.name == patienceGroup {
		parallel = len(g.promises)
	}
	switch {
	case parallel > 0:
		c := checkLeaks(t, cfg)
		var all sync.WaitGroup
		slots := make(chan struct{}, parallel)
		for _, p := range g.promises {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				run(p, func(t *testing.T) *harness { return own(t, c) })
			})
		}
		all.Wait()
	case slices.Contains(cfg.shared, g.name):
		c := &sharedHarness{h: own(t, checkLeaks(t, cfg))}
		for _, p := range g.promises {
			run(p, c.lendHarness)
		}
	default:
		for _, p := range g.promises {
			run(p, func(t *testing.T) *harness { return own(t, checkLeaks(t, cfg)) }) // the cleanup of checkLeaks runs last
		}
	}
}

// checkPromise checks the promise, or skips the subtest if a need is not met.
func (p promise) checkPromise(t *testing.T, h *harness) {
	for _, need := range p.needs {
		if reason := need(h.p.Info(), h.cfg); reason != "" {
			t.Skip(reason)
		}
	}
	p.check(t, h)
}

// closeAndCheck removes the subtest's sandboxes and volumes, checks that none is left, and closes the
// providers.
func (h *harness) closeAndCheck(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), h.longLimit())
	defer cancel()
	h.census.recordProcesses()
	for _, id := range h.created {
		h.removeSandbox(ctx, t, id)
	}
	for _, name := range h.volumes {
		h.removeVolume(t, atoll.DefaultProject, name)
	}
	for _, p := range h.openProviders() {
		if err := retryFor(h.shortLimit(), func() error { return checkEmpty(ctx, p, h.sharedFrom.sandboxID()) }); err != nil {
			t.Errorf("after the subtest: %v", err)
		}
		all, _ := p.List(ctx, atoll.Filter{})
		for _, st := range all {
			if st.ID != h.sharedFrom.sandboxID() {
				h.removeSandbox(ctx, t, st.ID)
			}
		}
	}
	all := h.reopened
	if h.sharedFrom == nil {
		all = append(all, h.p)
	}
	for _, p := range all {
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}

// checkEmpty returns an error if p has a sandbox or a volume. It ignores the sandboxes with the ids in
// except, and their volumes.
func checkEmpty(ctx context.Context, p atoll.Provider, except ...string) error {
	all, err := p.List(ctx, atoll.Filter{})
	for _, st := range all {
		if slices.Contains(except, st.ID) {
			continue
		}
		err = errors.Join(err, fmt.Errorf("sandbox %s (%q, %s) is left", st.ID, st.Spec.Name, st.State))
	}
	volumes, verr := atoll.Volumes(ctx, p, "")
	if atoll.KindOf(verr) != atoll.ErrUnsupported {
		err = errors.Join(err, verr)
	}
	for _, v := range volumes {
		if v.Sandbox != "" && slices.Contains(except, v.Sandbox) {
			continue
		}
		err = errors.Join(err, fmt.Errorf("volume %s of project %s is left", v.Name, v.Project))
	}
	return err
}

// removeSandbox removes a sandbox through the first provider value that still works.
func (h *harness) removeSandbox(ctx context.Context, t *testing.T, id string) {
	t.Helper()
	var err error
	for _, p := range h.openProviders() {
		var sb atoll.Sandbox
		if sb, err = p.Get(ctx, id); err == nil {
			err = sb.Remove(ctx, atoll.RemoveVolumes())
		}
		if err == nil || atoll.KindOf(err) == atoll.ErrNotFound {
			return
		}
	}
	if err != nil {
		t.Errorf("removing sandbox %s: %v", id, err)
	}
}

// openProviders returns the provider values that are open.
func (h *harness) openProviders() []atoll.Provider {
	if h.closed {
		return h.reopened
	}
	return append([]atoll.Provider{h.p}, h.reopened...)
}

// shortLimit returns the time limit of a quick operation, longLimit that of a slow one. Both grow with
// the slowness of the backend and of this machine.
func (c *config) shortLimit() time.Duration { return c.scaleLimit(5 * time.Second) }
func (c *config) longLimit() time.Duration  { return c.scaleLimit(60 * time.Second) }

func (c *config) scaleLimit(limit time.Duration) time.Duration {
	return time.Duration(float64(limit) * c.slow * testenv.Slowness())
}
