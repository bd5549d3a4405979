package supervised

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/cgroup"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/statedir"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// slowStart is the time after which a start no longer keeps others waiting.
const slowStart = 2 * time.Second

// launchSupervisor starts a supervisor for the sandbox and waits until the sandbox runs. On
// success rec has the status that the supervisor wrote. The caller holds the sandbox's
// lock.
func (p *Provider) launchSupervisor(ctx context.Context, rec *statedir.Record) error {
	helper, err := p.opts.Backend.Helper()
	if err != nil {
		return err
	}
	if err := p.checkMountSources(&rec.Status); err != nil {
		return err
	}
	if err := p.checkStep("image in use"); err != nil {
		return err
	}
	held, err := p.opts.Backend.Hold(ctx, rec)
	if err != nil {
		return err
	}
	defer held.Close() // may be nil; the supervisor has it open as long as it lives
	leave, err := p.starts.joinQueue(ctx)
	if err != nil {
		return err
	}
	defer leave()
	defer p.spare.scheduleRefill(spareDelay)
	if held == nil { // a spare supervisor started before it could inherit the image's lock
		err := p.launchSpare(ctx, rec)
		if !errors.Is(err, errNoSupervisor) {
			return err
		}
	}
	proc, err := p.startSupervisor(ctx, helper, held, rec)
	if err != nil {
		return err
	}
	return p.runJob(ctx, proc, rec)
}

// errNoSupervisor says that there was no supervisor, or that it ended without an answer.
var errNoSupervisor = errors.New("no answer")

// runJob gives the supervisor its job and waits until the sandbox runs. If the supervisor
// fails, runJob ends and reaps it.
func (p *Provider) runJob(ctx context.Context, proc *supervisorProcess, rec *statedir.Record) error {
	id, group := rec.Status.ID, p.sandboxCgroup(rec)
	data, err := p.encodeJob(p.newJob(ctx, rec))
	if err != nil {
		proc.killAndReap()
		return atoll.E("start", id, atoll.ErrInternal, errors.Join(err, group.Remove()))
	}
	var reply *supervisor.Reply
	if err = p.checkStep("order"); err == nil {
		reply, err = proc.exchangeJob(ctx, data)
	}
	if err == nil && reply.Err() == nil {
		proc.detachProcess()
		rec.Status = reply.Status
		return nil
	}
	proc.killAndReap()
	_ = group.Remove() // otherwise the removal of the sandbox removes it
	switch {
	case ctx.Err() != nil: // most likely why the supervisor gave up
		return ctx.Err()
	case err == nil:
		return reply.Err()
	}
	return atoll.Errorf("start", id, atoll.ErrInternal, "supervisor process died: %w; see %s", err, filepath.Join(p.dir.Sandbox(id), supervisor.LogName))
}

// newJob returns the supervisor's job for the sandbox, without the data for its engine.
func (p *Provider) newJob(ctx context.Context, rec *statedir.Record) *supervisor.Job {
	st := &rec.Status
	job := &supervisor.Job{
		Spec: st.Spec, Caps: st.Caps, Record: *rec,
		State: string(p.dir), Dir: p.dir.Sandbox(st.ID), Run: rec.Run, Mounts: p.jobMounts(st),
	}
	job.Secrets, job.SecretProgram = p.readSecrets(ctx, rec), p.findSecretProgram(rec)
	job.Fail = p.plannedFailure()
	job.Spec.Resources = job.Spec.Resources.WithDefaults()
	job.Spec.IdleStop = cmp.Or(job.Spec.IdleStop, atoll.DefaultIdleStop)
	if st.Spec.Snapshot != "" {
		job.Snapshot = p.dir.Snapshot(st.Spec.Snapshot)
	}
	return job
}

// encodeJob adds the data for the engine to a job, and returns it as JSON.
func (p *Provider) encodeJob(job *supervisor.Job) ([]byte, error) {
	engineData, err := p.opts.Backend.Job(job)
	if err != nil {
		return nil, err
	}
	if job.Engine, err = json.Marshal(engineData); err != nil {
		return nil, err
	}
	return json.Marshal(job)
}

// plannedFailure returns the name of the first supervisor step that a test wants to fail;
// "" for none. It calls the test's hook for each step ahead of time.
func (p *Provider) plannedFailure() string {
	for _, name := range p.opts.Steps {
		if p.checkStep("supervisor: "+name) != nil {
			return name
		}
	}
	return ""
}

func pathExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// jobMounts returns the host directories that the sandbox mounts, parents before what is
// mounted below them. A provider without volumes has the work directory inside the sandbox.
func (p *Provider) jobMounts(st *atoll.Status) []supervisor.Mount {
	var mounts []supervisor.Mount
	spec := &st.Spec
	data := st.Caps.Volumes && !slices.ContainsFunc(spec.Mounts, func(m atoll.Mount) bool { // an explicit mount takes the place of the data volume
		return path.Clean(m.Target) == atoll.DefaultWorkdir
	})
	if data {
		mounts = append(mounts, supervisor.Mount{Source: p.dir.Volume(spec.Project, statedir.DataVolume(spec.ID)), Target: atoll.DefaultWorkdir})
	}
	for _, m := range spec.Mounts {
		mount := supervisor.Mount{Source: m.Source, Target: path.Clean(m.Target), ReadOnly: m.ReadOnly, Bind: m.Type == atoll.MountBind, Size: m.Size}
		if m.Type == atoll.MountVolume {
			mount.Source = p.dir.Volume(spec.Project, m.Source)
		}
		mounts = append(mounts, mount)
	}
	slices.SortStableFunc(mounts, func(a, b supervisor.Mount) int { return strings.Compare(a.Target, b.Target) })
	return mounts
}

// A supervisorProcess is a supervisor that was started and has not been detached yet.
type supervisorProcess struct {
	cmd  *exec.Cmd
	conn supervisor.Conn // to it
}

// spawnSupervisor executes the helper as supervisor: in a session of its own, with nothing
// on its standard streams, in the cgroup at path, and on Linux in namespaces of its own.
// The process inherits held, which may be nil.
func (p *Provider) spawnSupervisor(helper, path string, held *os.File, args ...string) (*supervisorProcess, error) {
	group := cgroup.Open(cgroup.Root).Group(path)
	dir, err := group.Dir()
	if err != nil {
		return nil, err
	}
	defer dir.Close() // may be nil

	cmd := exec.Command(helper)
	cmd.Args = append([]string{p.opts.Supervisor, path}, args...)
	cmd.Env = []string{} // nothing of the caller's environment leaks into the sandbox
	cmd.Dir = "/"
	cmd.SysProcAttr = supervisorAttr(dir, p.opts.SubIDs)
	conn, err := supervisor.Start(cmd, held)
	if err != nil {
		return nil, err
	}
	s := &supervisorProcess{cmd, conn}
	err = errors.Join(cgroup.Protect(cmd.Process.Pid), p.opts.SubIDs.mapProcess(cmd.Process.Pid))
	if err == nil && dir == nil { // cgroup v1: the process is not cloned into its group
		err = group.Join(cmd.Process.Pid) // while it starts up: it gets its job afterwards
	}
	if err != nil {
		s.killAndReap()
		return nil, err
	}
	return s, nil
}

// cgroupLimits returns the limits of the sandbox's cgroup, as far as this machine enforces them.
func (p *Provider) cgroupLimits(rec *statedir.Record) cgroup.Limits {
	return p.opts.Backend.Limits(keepEnforced(rec.Status.Spec.Resources.WithDefaults(), p.opts.Info.Caps))
}

// cgroupPath returns the path of the sandbox's cgroup; "" where none can be made.
func (p *Provider) cgroupPath(id string) string {
	if p.opts.Cgroups == "" {
		return ""
	}
	return path.Join(p.opts.Cgroups, p.opts.Cgroup+id)
}

// sandboxCgroup returns the cgroup that the sandbox's record names.
func (p *Provider) sandboxCgroup(rec *statedir.Record) cgroup.Group {
	return cgroup.Open(cgroup.Root).Group(rec.Cgroup)
}

// checkAlive returns an error if the supervisor has ended unasked.
func (s *supervisorProcess) checkAlive() error {
	if s.conn.HungUp() {
		return errors.New("the supervisor process has died")
	}
	return nil
}

// exchangeJob sends the job and waits for the reply. It returns errNoSupervisor if none
// comes. When ctx ends, it tells the supervisor, which takes back what it has done, unless
// the sandbox is just ready.
func (s *supervisorProcess) exchangeJob(ctx context.Context, job []byte) (*supervisor.Reply, error) {
	done := make(chan struct{})
	defer close(done)
	stop := context.AfterFunc(ctx, func() {
		_ = s.conn.CloseWrite() // the supervisor shall give up; its answer can still be read
		select {
		case <-done:
		case <-time.After(supervisorGrace): // it had enough time to undo its steps
			_ = s.cmd.Process.Kill()
		}
	})
	defer stop()
	var reply supervisor.Reply
	_, err := s.conn.Write(job)
	if err == nil {
		err = json.NewDecoder(s.conn).Decode(&reply)
	}
	switch {
	case errors.Is(err, io.EOF):
		return nil, errNoSupervisor
	case err != nil:
		return nil, fmt.Errorf("%w (%w)", errNoSupervisor, err)
	}
	return &reply, nil
}

// killAndReap ends the supervisor, and with it all that it started, and reaps it.
func (s *supervisorProcess) killAndReap() {
	s.conn.Close()
	done := make(chan struct{})
	go func() { defer close(done); _ = s.cmd.Wait() }()
	select {
	case <-done: // it ends by itself once it has answered or the connection is closed
	case <-time.After(supervisorGrace):
		_ = s.cmd.Process.Kill()
		<-done
	}
}

// supervisorGrace is the time that a supervisor which lost its provider gets to clean up.
const supervisorGrace = 5 * time.Second

// detachProcess lets the supervisor run by itself. If it ends while this process still
// runs, it is reaped.
func (s *supervisorProcess) detachProcess() {
	s.conn.Close()
	go func() { _ = s.cmd.Wait() }()
}

// spawnError returns the error of a supervisor that could not be started; if sandboxes do
// not work here at all, it says why and how to fix that.
func (p *Provider) spawnError(ctx context.Context, id string, err error) error {
	if probe := p.opts.Backend.Probe(ctx); !probe.OK {
		return atoll.Errorf("start", id, atoll.ErrUnavailable, "%s; %s", probe.Reason, probe.Fix)
	}
	return atoll.E("start", id, atoll.ErrUnavailable, err)
}
