package vmdocker

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/docker"
	"github.com/seed46cd37a8/atoll/vm"
)

// An engine is that of one machine, from its start to its end.
type engine struct {
	project string
	machine atoll.Sandbox
	started time.Time
	docker  *docker.Provider
}

// Close lets go of the engine, which goes on.
func (e *engine) Close() error { return e.docker.Close() }

// engineOptions are those of the engine of a project's machine.
func (p *Provider) engineOptions(project string, machine atoll.Sandbox) docker.Options {
	return docker.Options{
		Dir: filepath.Join(p.opts.Dir, "engines", project), Guest: p.opts.Guest, Image: p.opts.Image, Fetch: p.opts.Fetch, Online: true, Log: p.log,
		Dial: func(ctx context.Context) (net.Conn, error) { return atoll.Dial(ctx, machine, int(vm.PortDocker)) },
	}
}

// machineName is that of the machine of each project.
const machineName = "engine"

// machine finds the machine of a project. Kinds: ErrNotFound.
func (p *Provider) machine(ctx context.Context, project string) (atoll.Sandbox, atoll.Status, error) {
	sb, err := atoll.Resolve(ctx, p.opts.Machines, project, machineName)
	if err != nil {
		return nil, atoll.Status{}, err
	}
	st, err := sb.Status(ctx)
	return sb, st, err
}

// running returns the engine of a project's machine, or nil if that does not run, and what
// is known of the machine.
func (p *Provider) running(ctx context.Context, project string) (*engine, atoll.Status, error) {
	sb, st, err := p.machine(ctx, project)
	if err != nil && atoll.KindOf(err) != atoll.ErrNotFound {
		return nil, st, err
	}
	if err == nil && st.State == atoll.StateRunning {
		e, err := p.engine(project, sb, st)
		return e, st, err
	}
	p.drop(project, "")
	return nil, st, nil
}

// engine returns the engine of a machine that runs.
func (p *Provider) engine(project string, sb atoll.Sandbox, st atoll.Status) (*engine, error) {
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

// drop lets go of the engine of a machine that has ended: that one, or any if machine
// is "".
func (p *Provider) drop(project, machine string) {
	p.mu.Lock()
	e := p.engines[project]
	if e != nil && (machine == "" || e.machine.ID() == machine) {
		delete(p.engines, project)
	} else {
		e = nil
	}
	p.mu.Unlock()
	if e != nil {
		_ = e.Close() // what it is asked meanwhile fails, as its machine is not there
	}
}

// How long an engine may take to answer, where nothing is emulated.
const (
	readyTime  = time.Minute
	readyPause = time.Second
	pingTime   = 3 * time.Second
	turnPause  = 50 * time.Millisecond // between looks at a machine that others change
)

// up returns the engine of a project, whose machine is started if it does not run. Many
// may ask at once.
func (p *Provider) up(ctx context.Context, project string) (*engine, error) {
	e, _, err := p.running(ctx, project)
	if err != nil {
		return nil, err
	}
	slow := time.Duration(max(p.opts.Slow(ctx), 1))
	if e != nil && e.ping(ctx, slow*pingTime) == nil {
		return e, nil
	}
	unlock, err := p.boots.Lock(ctx, project)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var last error
	for end := time.Now().Add(slow * readyTime); ; {
		e, pause, err := p.turn(ctx, project, slow)
		if err == nil && e != nil {
			return e, nil
		}
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil && atoll.KindOf(err) != atoll.ErrUnavailable && atoll.KindOf(err) != atoll.ErrConflict && atoll.KindOf(err) != atoll.ErrTimeout:
			return nil, err
		case err != nil:
			last = err
		}
		if time.Now().After(end) {
			return nil, atoll.Errorf("start", project, atoll.ErrTimeout, "the Docker Engine of project %s did not answer within %s: %w; see %s",
				project, slow*readyTime, last, p.opts.Config.ConsoleLog(project))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// turn does what is next to do until the engine of a project answers, and says how long to
// wait before the next turn. A machine that has ended is made anew: what it keeps is on
// its data disk, and what it boots or how large it is may have changed.
func (p *Provider) turn(ctx context.Context, project string, slow time.Duration) (*engine, time.Duration, error) {
	sb, st, err := p.machine(ctx, project)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		_, err := p.opts.Machines.Create(ctx, p.machineSpec(project))
		if atoll.KindOf(err) == atoll.ErrAlreadyExists { // by another program
			err = nil
		}
		return nil, turnPause, err
	}
	if err != nil {
		return nil, turnPause, err
	}
	switch st.State {
	case atoll.StateRunning:
		e, err := p.engine(project, sb, st)
		if err == nil {
			defer p.note(e)()
			err = e.ping(ctx, slow*pingTime)
		}
		return e, readyPause, err
	case atoll.StatePaused:
		return nil, 0, atoll.Resume(ctx, sb)
	case atoll.StateCreating:
		return nil, turnPause, nil
	}
	p.drop(project, sb.ID())
	err = sb.Remove(ctx, atoll.RemoveVolumes())
	return nil, 0, err
}

// machineSpec is what the machine of a project is made from.
func (p *Provider) machineSpec(project string) *atoll.Spec {
	idle := atoll.Duration(p.idle)
	if idle == 0 {
		idle = atoll.Never
	}
	return &atoll.Spec{
		Name: machineName, Project: project, Image: p.opts.Bundle, IdleStop: idle, Network: atoll.Network{Mode: atoll.NetworkOn},
		Resources: atoll.Resources{
			CPUs: float64(p.opts.Config.CPUCount), Memory: atoll.Bytes(p.opts.Config.MemoryMB) << 20, Disk: p.opts.Disk, Processes: atoll.Unlimited,
		},
	}
}

// ping returns nil if the engine answers within so long.
func (e *engine) ping(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	err := e.docker.Ping(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return atoll.Errorf("ping", e.project, atoll.ErrUnavailable, "the Docker Engine does not answer")
	}
	return err
}

// using calls fn with the engine of a project, whose machine does not stop for being idle
// meanwhile.
func (p *Provider) using(ctx context.Context, project string, fn func(context.Context, *engine) error) error {
	e, err := p.up(ctx, project)
	if err != nil {
		return err
	}
	defer p.note(e)()
	return fn(ctx, e)
}

// twice is using for what leaves nothing when it fails: if the machine was just about to
// stop, fn is called again, with the next one.
func (p *Provider) twice(ctx context.Context, project string, fn func(context.Context, *engine) error) error {
	var last *engine
	once := func(ctx context.Context, e *engine) error {
		last = e
		return fn(ctx, e)
	}
	err := p.using(ctx, project, once)
	if err != nil && last != nil && ctx.Err() == nil && last.ended(ctx) {
		err = p.using(ctx, project, once)
	}
	return err
}

// ended reports whether the engine's machine has.
func (e *engine) ended(ctx context.Context) bool {
	st, err := e.machine.Status(ctx)
	return atoll.KindOf(err) == atoll.ErrNotFound || err == nil && st.State != atoll.StateRunning
}

// note notes that the engine is in use, until end is called: a look at a file of its
// machine is use, which connections to the engine are not.
func (p *Provider) note(e *engine) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	every := time.Second
	if p.idle > 0 {
		every = min(every, p.idle/10)
	}
	look := func() { _, _ = atoll.Files(e.machine).Stat(ctx, atoll.DefaultWorkdir) } // it may have ended
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

// seen is what an engine says of a sandbox, as this provider does.
func (e *engine) seen(st atoll.Status) atoll.Status {
	st.Provider, st.Spec.Provider, st.Caps = Name, Name, caps(st.Caps)
	if st.State == atoll.StateFailed && st.Started.Before(e.started) && !st.Stopped.Before(e.started) { // its engine found it dead when it was started
		st.State, st.Reason, st.Exit = atoll.StateStopped, reasonAsleep, nil
	}
	return st
}

const reasonAsleep = "its machine has ended"

// asleep is what is left of a sandbox whose machine m, of which there may be none, does
// not run.
func asleep(st, m atoll.Status) atoll.Status {
	if st.State == atoll.StateRunning || st.State == atoll.StatePaused || st.State == atoll.StateCreating {
		st.State, st.Ready, st.Reason, st.Stopped = atoll.StateStopped, false, reasonAsleep, m.Stopped
	}
	return st
}
