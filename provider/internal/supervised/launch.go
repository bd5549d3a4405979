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

// launch starts a keeper for the sandbox and waits until the sandbox runs. On
// success rec is what the keeper wrote. The caller holds the sandbox's lock.
func (p *Provider) launch(ctx context.Context, rec *statedir.Record) error {
	helper, err := p.opts.Backend.Helper()
	if err != nil {
		return err
	}
	if err := p.present(&rec.Status); err != nil {
		return err
	}
	if err := p.step("image in use"); err != nil {
		return err
	}
	held, err := p.opts.Backend.Hold(ctx, rec)
	if err != nil {
		return err
	}
	defer held.Close() // may be nil; the keeper has it as long as it lives
	defer p.spare.refill(spareDelay)
	if held == nil { // an image's lock is inherited when the keeper is started
		err := p.launchSpare(ctx, rec)
		if !errors.Is(err, errNoKeeper) {
			return err
		}
	}
	k, err := p.begin(ctx, helper, held, rec)
	if err != nil {
		return err
	}
	return p.order(ctx, k, rec)
}

// errNoKeeper says that there was no keeper, or not for long.
var errNoKeeper = errors.New("no answer")

// order gives the keeper its job and waits until that is done. A keeper that
// cannot do it has ended afterwards.
func (p *Provider) order(ctx context.Context, k *spawned, rec *statedir.Record) error {
	id, group := rec.Status.ID, p.group(rec)
	data, err := p.job(rec)
	if err != nil {
		k.kill()
		return atoll.E("start", id, atoll.ErrInternal, errors.Join(err, group.Remove()))
	}
	var reply *supervisor.Reply
	if err = p.step("order"); err == nil {
		reply, err = k.ask(ctx, data)
	}
	if err == nil && reply.Err() == nil {
		k.detach()
		rec.Status = reply.Status
		return nil
	}
	k.kill()
	_ = group.Remove() // also done by whoever removes the sandbox
	switch {
	case ctx.Err() != nil: // most likely why the keeper gave up
		return ctx.Err()
	case err == nil:
		return reply.Err()
	}
	return atoll.Errorf("start", id, atoll.ErrInternal, "keeper died: %w; see %s", err, filepath.Join(p.dir.Sandbox(id), supervisor.LogName))
}

// job describes the sandbox for its keeper.
func (p *Provider) job(rec *statedir.Record) ([]byte, error) {
	st := &rec.Status
	job := &supervisor.Job{
		Spec: st.Spec, Caps: st.Caps, Record: *rec,
		State: string(p.dir), Dir: p.dir.Sandbox(st.ID), Run: rec.Run, Mounts: p.jobMounts(st),
	}
	job.Fail = p.failing()
	job.Spec.Resources = job.Spec.Resources.WithDefaults()
	job.Spec.IdleStop = cmp.Or(job.Spec.IdleStop, atoll.DefaultIdleStop)
	if st.Spec.Snapshot != "" {
		job.Snapshot = p.dir.Snapshot(st.Spec.Snapshot)
	}
	besides, err := p.opts.Backend.Job(job)
	if err != nil {
		return nil, err
	}
	if job.Engine, err = json.Marshal(besides); err != nil {
		return nil, err
	}
	return json.Marshal(job)
}

// failing names the step of the keeper that a test lets fail: the first, as
// each is asked for ahead.
func (p *Provider) failing() string {
	for _, name := range p.opts.Steps {
		if p.step("keeper: "+name) != nil {
			return name
		}
	}
	return ""
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// jobMounts are the directories of the host that the sandbox sees, parents
// before what is mounted below them. One without volumes has its work directory inside.
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
		k := supervisor.Mount{Source: m.Source, Target: path.Clean(m.Target), ReadOnly: m.ReadOnly, Size: m.Size}
		if m.Type == atoll.MountVolume {
			k.Source = p.dir.Volume(spec.Project, m.Source)
		}
		mounts = append(mounts, k)
	}
	slices.SortStableFunc(mounts, func(a, b supervisor.Mount) int { return strings.Compare(a.Target, b.Target) })
	return mounts
}

// A spawned keeper, before it is on its own.
type spawned struct {
	cmd  *exec.Cmd
	conn supervisor.Line // to it
}

// spawn executes the helper as keeper: in a session of its own, with nothing on
// its standard streams, in the cgroup at path, and on Linux in namespaces of its
// own. It inherits held, which may be nil.
func (p *Provider) spawn(helper, path string, held *os.File, args ...string) (*spawned, error) {
	group := cgroup.Open(cgroup.Root).Group(path)
	dir, err := group.Dir()
	if err != nil {
		return nil, err
	}
	defer dir.Close() // may be nil

	cmd := exec.Command(helper)
	cmd.Args = append([]string{p.opts.Keeper, path}, args...)
	cmd.Env = []string{} // nothing of the caller's environment goes in
	cmd.Dir = "/"
	cmd.SysProcAttr = keeperAttr(dir)
	conn, err := supervisor.Start(cmd, held)
	if err != nil {
		return nil, err
	}
	s := &spawned{cmd, conn}
	err = cgroup.Protect(cmd.Process.Pid)
	if err == nil && dir == nil {
		err = group.Join(cmd.Process.Pid) // while it starts up: it gets its job only after that
	}
	if err != nil {
		s.kill()
		return nil, err
	}
	return s, nil
}

// limits are those of the sandbox's cgroup.
func (p *Provider) limits(rec *statedir.Record) cgroup.Limits {
	return p.opts.Backend.Limits(rec.Status.Spec.Resources.WithDefaults())
}

// cgroup is the path of the sandbox's cgroup, "" where none can be made.
func (p *Provider) cgroup(id string) string {
	if !p.opts.Cgroups {
		return ""
	}
	return "/" + p.opts.Cgroup + id
}

// group is the sandbox's cgroup.
func (p *Provider) group(rec *statedir.Record) cgroup.Group {
	return cgroup.Open(cgroup.Root).Group(rec.Cgroup)
}

// alive fails if the keeper has ended, although nobody asked it to.
func (s *spawned) alive() error {
	if s.conn.HungUp() {
		return errors.New("it has died")
	}
	return nil
}

// ask sends the job and waits for the reply. It is errNoKeeper when none comes.
// When ctx ends it tells the keeper, which takes back what it has done, unless
// the sandbox is just there.
func (s *spawned) ask(ctx context.Context, job []byte) (*supervisor.Reply, error) {
	done := make(chan struct{})
	defer close(done)
	stop := context.AfterFunc(ctx, func() {
		_ = s.conn.CloseWrite() // no sandbox is wanted any more; an answer can still be read
		select {
		case <-done:
		case <-time.After(keeperGrace): // it had its time to take all back
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
		return nil, errNoKeeper
	case err != nil:
		return nil, fmt.Errorf("%w (%w)", errNoKeeper, err)
	}
	return &reply, nil
}

// kill ends the keeper, and with it all that it started, and reaps it.
func (s *spawned) kill() {
	s.conn.Close()
	done := make(chan struct{})
	go func() { defer close(done); _ = s.cmd.Wait() }()
	select {
	case <-done: // it ends by itself once it has answered or lost us
	case <-time.After(keeperGrace):
		_ = s.cmd.Process.Kill()
		<-done
	}
}

// keeperGrace is how long a keeper that lost its provider may take to clean up.
const keeperGrace = 5 * time.Second

// detach lets the keeper go on by itself; it is reaped when it ends while we
// still run.
func (s *spawned) detach() {
	s.conn.Close()
	go func() { _ = s.cmd.Wait() }()
}

// spawnError says what keeps a keeper from being started.
func (p *Provider) spawnError(ctx context.Context, id string, err error) error {
	if probe := p.opts.Backend.Probe(ctx); !probe.OK {
		return atoll.Errorf("start", id, atoll.ErrUnavailable, "%s; %s", probe.Reason, probe.Fix)
	}
	return atoll.E("start", id, atoll.ErrUnavailable, err)
}
