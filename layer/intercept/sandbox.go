package intercept

import (
	"context"
	"net"
	"time"

	"github.com/seed46cd37a8/atoll"
)

type sandbox struct {
	atoll.SandboxLayer
	layer
}

// newCall returns a call on the sandbox.
func (s *sandbox) newCall(op string, arg any) *Call {
	return &Call{Op: op, Sandbox: s.ID(), Arg: arg, On: s.Sandbox}
}

// wrapProcess returns a process with its calls intercepted.
func (s *sandbox) wrapProcess(p atoll.Process) atoll.Process {
	if s.depth < Processes {
		return p
	}
	return &process{atoll.ProcessLayer{Process: p}, s}
}

// Status implements atoll.Sandbox.
func (s *sandbox) Status(ctx context.Context) (atoll.Status, error) {
	return invokeFunc(ctx, s.f, s.newCall("Sandbox.Status", nil), s.Sandbox.Status)
}

// Start implements atoll.Sandbox.
func (s *sandbox) Start(ctx context.Context) error {
	return s.f(ctx, s.newCall("Sandbox.Start", nil), s.Sandbox.Start)
}

// Stop implements atoll.Sandbox.
func (s *sandbox) Stop(ctx context.Context, grace time.Duration) error {
	return s.f(ctx, s.newCall("Sandbox.Stop", grace), func(ctx context.Context) error { return s.Sandbox.Stop(ctx, grace) })
}

// Remove implements atoll.Sandbox.
func (s *sandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	return s.f(ctx, s.newCall("Sandbox.Remove", atoll.ApplyRemoveOptions(opts...)), func(ctx context.Context) error { return s.Sandbox.Remove(ctx, opts...) })
}

// Exec implements atoll.Sandbox.
func (s *sandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	c := s.newCall("Sandbox.Exec", cmd)
	p, err := invokeFunc(ctx, s.f, c, func(ctx context.Context) (atoll.Process, error) {
		p, err := s.Sandbox.Exec(ctx, cmd)
		if err == nil {
			c.Process = p.ID()
		}
		return p, err
	})
	if err != nil {
		return nil, err
	}
	return s.wrapProcess(p), nil
}

// Process implements atoll.Sandbox.
func (s *sandbox) Process(ctx context.Context, id string) (atoll.Process, error) {
	c := s.newCall("Sandbox.Process", nil)
	c.Process = id
	p, err := invokeFunc(ctx, s.f, c, func(ctx context.Context) (atoll.Process, error) { return s.Sandbox.Process(ctx, id) })
	if err != nil {
		return nil, err
	}
	return s.wrapProcess(p), nil
}

// Files implements atoll.Filer.
func (s *sandbox) Files() atoll.FS {
	fs := atoll.Files(s.Sandbox)
	if s.depth < All {
		return fs
	}
	return &files{fs: fs, sandbox: s}
}

// Dial implements atoll.Dialer. The call ends when the connection is established.
func (s *sandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	return invokeFunc(ctx, s.f, s.newCall("Sandbox.Dial", port), func(ctx context.Context) (net.Conn, error) { return atoll.Dial(ctx, s.Sandbox, port) })
}

// Pause implements atoll.Pauser.
func (s *sandbox) Pause(ctx context.Context) error {
	return s.f(ctx, s.newCall("Sandbox.Pause", nil), func(ctx context.Context) error { return atoll.Pause(ctx, s.Sandbox) })
}

// Resume implements atoll.Pauser.
func (s *sandbox) Resume(ctx context.Context) error {
	return s.f(ctx, s.newCall("Sandbox.Resume", nil), func(ctx context.Context) error { return atoll.Resume(ctx, s.Sandbox) })
}

// Extend implements atoll.Extender.
func (s *sandbox) Extend(ctx context.Context, ttl atoll.Duration) error {
	return s.f(ctx, s.newCall("Sandbox.Extend", ttl), func(ctx context.Context) error { return atoll.Extend(ctx, s.Sandbox, ttl) })
}

// Snapshot implements atoll.Snapshotter.
func (s *sandbox) Snapshot(ctx context.Context, opts ...atoll.SnapshotOption) (atoll.Snapshot, error) {
	c := s.newCall("Sandbox.Snapshot", atoll.ApplySnapshotOptions(opts...))
	return invokeFunc(ctx, s.f, c, func(ctx context.Context) (atoll.Snapshot, error) { return atoll.TakeSnapshot(ctx, s.Sandbox, opts...) })
}

// Usage implements atoll.Meter.
func (s *sandbox) Usage(ctx context.Context) (atoll.Usage, error) {
	return invokeFunc(ctx, s.f, s.newCall("Sandbox.Usage", nil), func(ctx context.Context) (atoll.Usage, error) { return atoll.UsageOf(ctx, s.Sandbox) })
}

// Refusals implements atoll.Refuser.
func (s *sandbox) Refusals(ctx context.Context) (atoll.Refusals, error) {
	return invokeFunc(ctx, s.f, s.newCall("Sandbox.Refusals", nil), func(ctx context.Context) (atoll.Refusals, error) { return atoll.RefusalsOf(ctx, s.Sandbox) })
}

// NetworkLog implements atoll.NetworkLogger.
func (s *sandbox) NetworkLog(ctx context.Context, after int64, wait time.Duration) (atoll.NetworkLog, error) {
	return invokeFunc(ctx, s.f, s.newCall("Sandbox.NetworkLog", after), func(ctx context.Context) (atoll.NetworkLog, error) {
		return atoll.NetworkLogOf(ctx, s.Sandbox, after, wait)
	})
}

// UpdateNetwork implements atoll.NetworkUpdater.
func (s *sandbox) UpdateNetwork(ctx context.Context, change atoll.NetworkChange) error {
	return s.f(ctx, s.newCall("Sandbox.UpdateNetwork", change), func(ctx context.Context) error { return atoll.UpdateNetwork(ctx, s.Sandbox, change) })
}

// Processes implements atoll.ProcessLister.
func (s *sandbox) Processes(ctx context.Context) ([]atoll.ProcessStatus, error) {
	return invokeFunc(ctx, s.f, s.newCall("Sandbox.Processes", nil), func(ctx context.Context) ([]atoll.ProcessStatus, error) { return atoll.Processes(ctx, s.Sandbox) })
}

type process struct {
	atoll.ProcessLayer
	sandbox *sandbox
}

// newCall returns a call on the process.
func (p *process) newCall(op string, arg any) *Call {
	c := p.sandbox.newCall(op, arg)
	c.Process = p.ID()
	return c
}

// Wait implements atoll.Process.
func (p *process) Wait(ctx context.Context) (atoll.Exit, error) {
	return invokeFunc(ctx, p.sandbox.f, p.newCall("Process.Wait", nil), p.Process.Wait)
}

// Signal implements atoll.Process.
func (p *process) Signal(ctx context.Context, sig atoll.Signal) error {
	return p.sandbox.f(ctx, p.newCall("Process.Signal", sig), func(ctx context.Context) error { return p.Process.Signal(ctx, sig) })
}

// Attach implements atoll.Process.
func (p *process) Attach(ctx context.Context, a *atoll.Attachment) error {
	return p.sandbox.f(ctx, p.newCall("Process.Attach", a), func(ctx context.Context) error { return p.Process.Attach(ctx, a) })
}

// Resize implements atoll.Resizer.
func (p *process) Resize(ctx context.Context, size atoll.Size) error {
	return p.sandbox.f(ctx, p.newCall("Process.Resize", size), func(ctx context.Context) error { return atoll.Resize(ctx, p.Process, size) })
}

var (
	_ atoll.Filer          = (*sandbox)(nil)
	_ atoll.Dialer         = (*sandbox)(nil)
	_ atoll.Pauser         = (*sandbox)(nil)
	_ atoll.Extender       = (*sandbox)(nil)
	_ atoll.Snapshotter    = (*sandbox)(nil)
	_ atoll.Meter          = (*sandbox)(nil)
	_ atoll.Refuser        = (*sandbox)(nil)
	_ atoll.NetworkLogger  = (*sandbox)(nil)
	_ atoll.NetworkUpdater = (*sandbox)(nil)
	_ atoll.ProcessLister  = (*sandbox)(nil)
	_ atoll.Resizer        = (*process)(nil)
)
