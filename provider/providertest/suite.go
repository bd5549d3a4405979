// Package providertest holds providers to the promises of package atoll: one
// conformance suite, faults, a model and benchmarks, the same for leaves,
// layers and clients. It is for tests only; third parties run it too.
//
// A provider's whole test for the contract:
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
// Which promises apply follows from the provider's Caps, and from the Options:
// those tell how to do what no call of a provider does, such as to kill a
// sandbox. A promise that does not apply is skipped and says so, and group truth
// checks that the Caps are true.
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

// A group is a set of promises about one thing.
type group struct {
	name     string
	promises []promise
}

// A promise is one subtest; its name is the promise as a sentence.
type promise struct {
	name  string
	needs []need
	check func(t *testing.T, h *harness)
}

// A need is something a promise presupposes. It returns why a provider does
// not have it, or "".
type need func(c atoll.Info, cfg *config) string

// capability is the need for a Cap.
func capability(name string, has func(atoll.Caps) bool) need {
	return func(i atoll.Info, _ *config) string {
		if has(i.Caps) {
			return ""
		}
		return i.Name + " has no cap " + name
	}
}

var (
	needTTY      = capability("tty", func(c atoll.Caps) bool { return c.TTY })
	needFiles    = capability("files", func(c atoll.Caps) bool { return c.Files })
	needDial     = capability("dial", func(c atoll.Caps) bool { return c.Dial })
	needExtend   = capability("extend", func(c atoll.Caps) bool { return c.Extend })
	needPause    = capability("pause", func(c atoll.Caps) bool { return c.Pause })
	needSnapshot = capability("snapshot", func(c atoll.Caps) bool { return c.Snapshot })
	needUsage    = capability("usage", func(c atoll.Caps) bool { return c.Usage })
	needUsers    = capability("users", func(c atoll.Caps) bool { return c.Users })
	needImages   = capability("images", func(c atoll.Caps) bool { return c.Images })
	needStore    = capability("image_store", func(c atoll.Caps) bool { return c.ImageStore })
	needBind     = capability("bind_mounts", func(c atoll.Caps) bool { return c.BindMounts })
	needVolumes  = capability("volumes", func(c atoll.Caps) bool { return c.Volumes })
	needSpaces   = capability("workspaces", func(c atoll.Caps) bool { return c.Workspaces })
	needSessions = capability("sessions", func(c atoll.Caps) bool { return c.Sessions })
	needTmpfs    = capability("tmpfs", func(c atoll.Caps) bool { return c.Tmpfs })
	needReadOnly = capability("read_only_root", func(c atoll.Caps) bool { return c.ReadOnlyRoot })
	needMemory   = capability("memory_limit", func(c atoll.Caps) bool { return c.MemoryLimit })
	needCPU      = capability("cpu_limit", func(c atoll.Caps) bool { return c.CPULimit })
	needProcs    = capability("process_limit", func(c atoll.Caps) bool { return c.ProcessLimit })
	needDisk     = capability("disk_limit", func(c atoll.Caps) bool { return c.DiskLimit })
	needNoNet    = capability("network_none", func(c atoll.Caps) bool { return c.NetworkNone })
	needNet      = capability("network_on", func(c atoll.Caps) bool { return c.NetworkOn })
	needEgress   = capability("egress", func(c atoll.Caps) bool { return c.Egress })
	needNamed    = capability("network_named", func(c atoll.Caps) bool { return c.NetworkNamed })
	needPublish  = capability("publish", func(c atoll.Caps) bool { return c.Publish })
	needCache    = capability("cache", func(c atoll.Caps) bool { return c.Cache })
	needIdleStop = capability("idle_stop", func(c atoll.Caps) bool { return c.IdleStop })
	needSurvives = capability("survives", func(c atoll.Caps) bool { return c.Survives })
	needReattach = capability("reattach", func(c atoll.Caps) bool { return c.Reattach })
	needRestart  = capability("restart", func(c atoll.Caps) bool { return c.Restart })
	needDurable  = capability("durable", func(c atoll.Caps) bool { return c.Durable != atoll.DurableNone })
)

// option is the need for an Option.
func option(name string, given func(*config) bool) need {
	return func(_ atoll.Info, cfg *config) string {
		if given(cfg) {
			return ""
		}
		return "the option " + name + " is not given"
	}
}

var (
	needPullable  = option("Pullable", func(c *config) bool { return c.pullable != "" })
	needSource    = option("Source", func(c *config) bool { return c.source != nil })
	needDebian    = option("Debian", func(c *config) bool { return c.debian != nil })
	needNetwork   = option("Network", func(c *config) bool { return c.network != nil })
	needRepo      = option("Repository", func(c *config) bool { return c.repo != nil })
	needElsewhere = option("Elsewhere", func(c *config) bool { return c.elsewhere != nil })
	needCrash     = option("Crash", func(c *config) bool { return c.crash != nil })
	needSteps     = option("Steps", func(c *config) bool { return c.steps != nil })
)

// needWalls is the need for isolation from the host.
func needWalls(i atoll.Info, _ *config) string {
	if i.Isolation != atoll.IsolationNone {
		return ""
	}
	return i.Name + " claims no isolation"
}

func groups() []group {
	return []group{
		{"birth", birth}, {"expiry", expiry}, {"exec", execs}, {"output", output}, {"time", times}, {"tree", tree}, {"tty", ttys},
		{"files", files}, {"sub", subs}, {"volumes", volumes}, {"workspaces", workspaces}, {"sessions", sessions}, {"images", images}, {"debian", debians}, {"memory", memory}, {"crash", crashes}, {"watch", watches}, {"death", death},
		{"errors", errs}, {"truth", truth}, {"limits", limits}, {"walls", walls}, {"escape", escapees}, {"siege", sieges}, {"network", network},
		{"named", named}, {"cache", caches}, {"dial", dials}, {"pause", pauses}, {"snapshot", snapshots},
		{"ledger", ledgers}, {"faults", faults}, {"steps", steps}, {patient, patience},
	}
}

// Run checks that the providers that open makes keep the promises of package
// atoll. Every subtest opens its own and closes it; open may register
// cleanups, which run before the suite looks for leaks. Subtests run one after
// the other unless Beside says otherwise, because leaks are those of the whole test
// process: nothing else may run beside them.
func Run(t *testing.T, open func(t *testing.T) atoll.Provider, opts ...Option) {
	cfg := newConfig(opts)
	known, names := map[string]bool{}, map[string]bool{}
	for _, g := range groups() {
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
	for _, name := range wire {
		if !known[name] {
			t.Errorf("wire has %q: no such subtest", name)
		}
	}
	for _, name := range cfg.wire {
		if !groupOnWire(name) {
			t.Errorf("Wire(%q): no such group, or none of its promises is about the wire", name)
		}
	}
	for _, name := range slices.Concat(cfg.only, slices.Collect(maps.Keys(cfg.beside)), slices.Collect(maps.Keys(cfg.without))) {
		if !names[name] {
			t.Errorf("%q: no such group", name)
		}
	}
	for _, name := range []string{"faults", "steps"} {
		if cfg.beside[name] > 0 {
			t.Fatalf("Beside(%q): its promises look for leaks themselves", name)
		}
	}
	for _, g := range groups() {
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
		t.Run(g.name, func(t *testing.T) { g.run(t, open, cfg) })
	}
}

func (g group) run(t *testing.T, open func(t *testing.T) atoll.Provider, cfg *config) {
	own := func(t *testing.T, kin *census) *harness {
		h := &harness{cfg: cfg, kin: kin, p: open(t)}
		t.Cleanup(func() { h.close(t) })
		return h
	}
	keep := func(p promise, prepare func(t *testing.T) *harness) {
		t.Run(p.name, func(t *testing.T) {
			t.Attr("promise", g.name+"/"+p.name) // for a table of the places that keep it
			if reason, ok := cfg.except[g.name+"/"+p.name]; ok {
				t.Skipf("excepted: %s", reason)
			}
			p.run(t, prepare(t))
		})
	}
	abreast := cfg.beside[g.name]
	if g.name == patient {
		abreast = len(g.promises)
	}
	switch {
	case abreast > 0:
		kin := checkLeaks(t, cfg)
		var all sync.WaitGroup
		at := make(chan struct{}, abreast) // full while as many are kept as may be
		for _, p := range g.promises {
			at <- struct{}{}
			all.Go(func() {
				defer func() { <-at }()
				keep(p, func(t *testing.T) *harness { return own(t, kin) })
			})
		}
		all.Wait()
	case slices.Contains(cfg.shared, g.name):
		c := &common{h: own(t, checkLeaks(t, cfg))}
		for _, p := range g.promises {
			keep(p, c.lend)
		}
	default:
		for _, p := range g.promises {
			keep(p, func(t *testing.T) *harness { return own(t, checkLeaks(t, cfg)) }) // its cleanup runs last
		}
	}
}

func (p promise) run(t *testing.T, h *harness) {
	for _, need := range p.needs {
		if reason := need(h.p.Info(), h.cfg); reason != "" {
			t.Skip(reason)
		}
	}
	p.check(t, h)
}

// close checks the floor: after each subtest, nothing is left.
func (h *harness) close(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), h.long())
	defer cancel()
	h.kin.take()
	for _, id := range h.made {
		h.remove(ctx, t, id)
	}
	for _, name := range h.volumes {
		h.removeVolume(t, atoll.DefaultProject, name)
	}
	for _, p := range h.values() {
		if err := eventually(h.short(), func() error { return empty(ctx, p, h.common.id()) }); err != nil {
			t.Errorf("after the subtest: %v", err)
		}
		all, _ := p.List(ctx, atoll.Filter{})
		for _, st := range all {
			if st.ID != h.common.id() {
				h.remove(ctx, t, st.ID)
			}
		}
	}
	all := h.opened
	if h.common == nil {
		all = append(all, h.p)
	}
	for _, p := range all {
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}

// empty is an error when p has a sandbox or a volume, but those of one sandbox.
func empty(ctx context.Context, p atoll.Provider, but ...string) error {
	all, err := p.List(ctx, atoll.Filter{})
	for _, st := range all {
		if slices.Contains(but, st.ID) {
			continue
		}
		err = errors.Join(err, fmt.Errorf("sandbox %s (%q, %s) is left", st.ID, st.Spec.Name, st.State))
	}
	volumes, verr := atoll.Volumes(ctx, p, "")
	if atoll.KindOf(verr) != atoll.ErrUnsupported {
		err = errors.Join(err, verr)
	}
	for _, v := range volumes {
		if v.Sandbox != "" && slices.Contains(but, v.Sandbox) {
			continue
		}
		err = errors.Join(err, fmt.Errorf("volume %s of project %s is left", v.Name, v.Project))
	}
	return err
}

// remove deletes a sandbox through the first provider value that still works.
func (h *harness) remove(ctx context.Context, t *testing.T, id string) {
	t.Helper()
	var err error
	for _, p := range h.values() {
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

// values lists the provider values that are open.
func (h *harness) values() []atoll.Provider {
	if h.closed {
		return h.opened
	}
	return append([]atoll.Provider{h.p}, h.opened...)
}

// short is the limit for something quick, long that for something slow. Both grow with the slowness of the
// backend and of this machine.
func (c *config) short() time.Duration { return c.scaleLimit(5 * time.Second) }
func (c *config) long() time.Duration  { return c.scaleLimit(60 * time.Second) }

func (c *config) scaleLimit(limit time.Duration) time.Duration {
	return time.Duration(float64(limit) * c.slow * testenv.Slowness())
}
