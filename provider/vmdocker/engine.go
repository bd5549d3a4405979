package vmdocker

import (
	"cmp"
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/retry"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/provider/docker"
)

// An engine is the Docker Engine of one machine, from its start to its end.
type engine struct {
	project string
	machine atoll.Sandbox
	started time.Time
	docker  *docker.Provider
}

// Close disconnects from the engine, which keeps running.
func (e *engine) Close() error { return e.docker.Close() }

// engineOptions returns the options of the docker.Provider for a project's machine.
func (p *Provider) engineOptions(project string, machine atoll.Sandbox) docker.Options {
	return docker.Options{
		Dir: filepath.Join(p.opts.Dir, "engines", project), Guest: p.opts.Guest, Image: p.opts.Image, Fetch: p.opts.Fetch, AllowNetworkOn: true, SlowFactor: p.opts.Slow, Log: p.log,
		Dial: func(ctx context.Context) (net.Conn, error) { return dialEngine(ctx, project, machine) },
	}
}

// dialEngine connects to the engine of a machine. If the machine has ended or is gone, the
// error is ErrUnavailable, because that says nothing about the engine's sandboxes. Kinds:
// ErrUnavailable.
func dialEngine(ctx context.Context, project string, machine atoll.Sandbox) (net.Conn, error) {
	conn, err := atoll.Dial(ctx, machine, int(vm.PortDocker))
	if kind := atoll.KindOf(err); kind == atoll.ErrStopped || kind == atoll.ErrNotFound {
		return nil, atoll.E("dial", project, atoll.ErrUnavailable, err)
	}
	return conn, err
}

// machineName is the name of the machine in each project.
const machineName = "engine"

// findMachine finds the machine of a project. Kinds: ErrNotFound.
func (p *Provider) findMachine(ctx context.Context, project string) (atoll.Sandbox, atoll.Status, error) {
	sb, err := atoll.Resolve(ctx, p.opts.Machines, project, machineName)
	if err != nil {
		return nil, atoll.Status{}, err
	}
	st, err := sb.Status(ctx)
	return sb, st, err
}

// runningEngine returns the engine of a project's machine and the machine's status. The engine
// is nil if the machine does not run.
func (p *Provider) runningEngine(ctx context.Context, project string) (*engine, atoll.Status, error) {
	sb, st, err := p.findMachine(ctx, project)
	if err != nil && atoll.KindOf(err) != atoll.ErrNotFound {
		return nil, st, err
	}
	if err == nil && st.State == atoll.StateRunning {
		e, err := p.openEngine(project, sb, st)
		return e, st, err
	}
	p.dropEngine(project, "")
	return nil, st, nil
}

// openEngine returns the engine of a running machine.
func (p *Provider) openEngine(project string, sb atoll.Sandbox, st atoll.Status) (*engine, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, atoll.Errorf("open", project, atoll.ErrUnavailable, "the provider is closed")
	}
	old := p.engines[project]
	if old != nil && old.machine.ID() == st.ID {
		return old, nil
	}
	d, err := docker.New(p.engineOptions(project, sb))
	if err != nil {
		return nil, err
	}
	e := &engine{project, sb, st.Started, d}
	p.engines[project] = e
	if old != nil {
		go old.Close()
	}
	return e, nil
}

// dropEngine disconnects from the engine of a machine that has ended. An empty machine means
// any machine of the project.
func (p *Provider) dropEngine(project, machine string) {
	p.mu.Lock()
	e := p.engines[project]
	if e != nil && (machine == "" || e.machine.ID() == machine) {
		delete(p.engines, project)
	} else {
		e = nil
	}
	p.mu.Unlock()
	if e != nil {
		_ = e.Close() // calls in progress fail, as the machine is gone
	}
}

// The timeouts and intervals of engines on hardware; slowFactor multiplies the timeouts.
const (
	readyTimeout    = time.Minute // after it, the machine is started again
	readyInterval   = time.Second
	pingTimeout     = 3 * time.Second
	machineInterval = 50 * time.Millisecond // between checks of a machine that other programs change
)

// ensureEngine returns the engine of a project. It starts the machine if that does not run, and
// starts it again if its engine does not answer. Concurrent calls are safe.
func (p *Provider) ensureEngine(ctx context.Context, project string) (*engine, error) {
	e, _, err := p.runningEngine(ctx, project)
	if err != nil {
		return nil, err
	}
	slow := p.slowFactor(ctx)
	if e != nil && e.pingEngine(ctx, slow*pingTimeout) == nil && p.finishRemovals(ctx, e) == nil {
		return e, nil
	}
	unlock, err := p.boots.Lock(ctx, project)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return p.bootEngine(ctx, project)
}

// bootEngine does what it takes until the engine of a project answers. If the engine of a
// machine that ran before does not answer, it starts the machine again, once. It returns an error
// at once if no further attempt can help, as when a program is not installed.
func (p *Provider) bootEngine(ctx context.Context, project string) (*engine, error) {
	ready := func() time.Duration { return p.slowFactor(ctx) * cmp.Or(p.opts.ready, readyTimeout) }
	last := errors.New("its machine does not run yet")
	begun := time.Now()
	var first *engine // the first one that does not answer
	for end, again := begun.Add(ready()), false; ; {
		begin := time.Now()
		e, pause, err := p.advanceBoot(ctx, project)
		if err == nil && e != nil {
			return e, nil
		}
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err == nil:
			end = end.Add(time.Since(begin)) // the machine's bundle may have had to be built
		case retry.IsPermanent(err) || atoll.KindOf(err) != atoll.ErrUnavailable && atoll.KindOf(err) != atoll.ErrConflict && atoll.KindOf(err) != atoll.ErrTimeout:
			return nil, err
		default:
			last = err
		}
		if first == nil && e != nil {
			first, end = e, time.Now().Add(ready())
		}
		if time.Now().After(end) {
			if again || first == nil || e == first && e.started.After(begun) {
				return nil, atoll.Errorf("start", project, atoll.ErrTimeout, "the Docker Engine of project %s did not answer within %s: %w; see %s",
					project, ready(), last, p.opts.Config.ConsoleLog(project))
			}
			if e == first { // otherwise another program has just started the machine again
				p.log.Warn("restart", "project", project, "machine", e.machine.ID(), "err", last)
				if err := e.machine.Stop(ctx, atoll.DefaultStopGrace); err != nil && atoll.KindOf(err) != atoll.ErrNotFound {
					return nil, err
				}
			}
			end, again = time.Now().Add(ready()), true
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// advanceBoot does the next step until the engine of a project answers, and returns how long to
// wait before the one after that. It replaces a machine that has ended, because the bundle or
// the size may have changed; the machine's files are on its data disk.
func (p *Provider) advanceBoot(ctx context.Context, project string) (*engine, time.Duration, error) {
	sb, st, err := p.findMachine(ctx, project)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		_, err := p.opts.Machines.Create(ctx, p.machineSpec(project))
		if atoll.KindOf(err) == atoll.ErrAlreadyExists { // by another program
			err = nil
		}
		return nil, machineInterval, err
	}
	if err != nil {
		return nil, machineInterval, err
	}
	switch st.State {
	case atoll.StateRunning:
		e, err := p.openEngine(project, sb, st)
		if err == nil {
			defer p.keepBusy(e)()
			err = e.pingEngine(ctx, p.slowFactor(ctx)*pingTimeout)
		}
		if err == nil {
			err = p.finishRemovals(ctx, e)
		}
		return e, readyInterval, err
	case atoll.StatePaused:
		return nil, 0, atoll.Resume(ctx, sb)
	case atoll.StateCreating:
		return nil, machineInterval, nil
	}
	p.dropEngine(project, sb.ID())
	err = sb.Remove(ctx, atoll.RemoveVolumes())
	return nil, 0, err
}

// machineSpec returns the spec of a project's machine.
func (p *Provider) machineSpec(project string) *atoll.Spec {
	idle := atoll.Duration(p.idle)
	if idle == 0 {
		idle = atoll.Never
	}
	return &atoll.Spec{
		Name: machineName, Project: project, Image: p.opts.Bundle, IdleStop: idle, Network: atoll.Network{Mode: atoll.NetworkOn},
		Resources: p.machineSize(),
	}
}

// machineSize returns the size of each machine, as far as Machines can limit it.
func (p *Provider) machineSize() atoll.Resources {
	r := atoll.Resources{Processes: atoll.Unlimited}
	caps := p.opts.Machines.Info().Caps
	if caps.MemoryLimit {
		r.CPUs, r.Memory = float64(p.opts.Config.CPUCount), atoll.Bytes(p.opts.Config.MemoryMB)<<20
	}
	if caps.DiskLimit {
		r.Disk = p.opts.Disk
	}
	return r
}

// slowFactor returns by which factor machines are slower than hardware, at least 1.
func (p *Provider) slowFactor(ctx context.Context) time.Duration {
	return time.Duration(max(p.opts.Slow(ctx), 1))
}

// pingEngine returns nil if the engine answers within that time.
func (e *engine) pingEngine(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	err := e.docker.Ping(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return atoll.Errorf("ping", e.project, atoll.ErrUnavailable, "the Docker Engine of project %s does not answer: start a sandbox, which starts its machine again if it must", e.project)
	}
	return err
}

// withEngine calls fn with the engine of a project. Until fn returns, the machine does not stop
// for being idle.
func (p *Provider) withEngine(ctx context.Context, project string, fn func(context.Context, *engine) error) error {
	e, err := p.ensureEngine(ctx, project)
	if err != nil {
		return err
	}
	defer p.keepBusy(e)()
	return fn(ctx, e)
}

// withEngineRetry is like withEngine, for an fn that leaves nothing behind if it fails: if the
// machine has just ended, it calls fn again with the engine of the next one.
func (p *Provider) withEngineRetry(ctx context.Context, project string, fn func(context.Context, *engine) error) error {
	var last *engine
	once := func(ctx context.Context, e *engine) error {
		last = e
		return fn(ctx, e)
	}
	err := p.withEngine(ctx, project, once)
	if err != nil && last != nil && ctx.Err() == nil && last.hasEnded(ctx) {
		err = p.withEngine(ctx, project, once)
	}
	return err
}

// hasEnded reports whether the engine's machine has ended.
func (e *engine) hasEnded(ctx context.Context) bool {
	st, err := e.machine.Status(ctx)
	return atoll.KindOf(err) == atoll.ErrNotFound || err == nil && st.State != atoll.StateRunning
}

// keepBusy keeps the machine from stopping for being idle, until end is called. It looks at a
// file of the machine now and then: that counts as use, and a connection to the engine does
// not.
func (p *Provider) keepBusy(e *engine) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	every := time.Second
	if p.idle > 0 {
		every = min(every, p.idle/10)
	}
	look := func() { _, _ = atoll.Files(e.machine).Stat(ctx, atoll.DefaultWorkdir) } // the machine may have ended
	look()
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(every):
				look()
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// listSandboxes asks the engine for its sandboxes, or only the one with that id.
func (e *engine) listSandboxes(ctx context.Context, id *string) (list []atoll.Status, err error) {
	if id == nil {
		list, err = e.docker.List(ctx, atoll.Filter{})
	} else {
		var st atoll.Status
		if st, err = e.docker.Sandbox(*id).Status(ctx); err == nil {
			list = append(list, st)
		} else if atoll.KindOf(err) == atoll.ErrNotFound {
			err = nil
		}
	}
	for i, st := range list {
		list[i] = e.ownStatus(st)
	}
	return list, err
}

// withPings calls fn, which waits for the engine, and cancels it if the engine does not answer
// pings: a read-only call must not wait for ever. Kinds: ErrUnavailable, and those of fn.
func (p *Provider) withPings(ctx context.Context, e *engine, fn func(context.Context) error) error {
	inner, cancel := context.WithCancelCause(ctx)
	var minding sync.WaitGroup
	minding.Go(func() {
		for {
			select {
			case <-inner.Done():
				return
			case <-time.After(pingTimeout):
			}
			if err := e.pingEngine(inner, p.slowFactor(inner)*pingTimeout); err != nil {
				cancel(err)
			}
		}
	})
	defer minding.Wait()
	defer cancel(nil)
	err := fn(inner)
	if cause := context.Cause(inner); err != nil && cause != nil && ctx.Err() == nil {
		return cause
	}
	return err
}

// ownStatus converts the engine's status of a sandbox into one of this provider.
func (e *engine) ownStatus(st atoll.Status) atoll.Status {
	st.Provider, st.Spec.Provider, st.Caps = Name, Name, engineCaps(st.Caps)
	if st.State == atoll.StateFailed && st.Started.Before(e.started) && !st.Stopped.Before(e.started) { // the starting engine found the sandbox dead
		st.State, st.Reason, st.Exit = atoll.StateStopped, reasonMachineEnded, nil
	}
	return st
}

const reasonMachineEnded = "its machine has ended"

// asleepStatus returns the status of a sandbox whose machine does not run; m is the machine's
// status, which is empty if there is none.
func asleepStatus(st, m atoll.Status) atoll.Status {
	if st.State == atoll.StateRunning || st.State == atoll.StatePaused || st.State == atoll.StateCreating {
		st.State, st.Ready, st.Reason, st.Stopped = atoll.StateStopped, false, reasonMachineEnded, m.Stopped
	}
	return st
}
