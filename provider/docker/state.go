package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
)

// A record has the engine's data about a sandbox.
type record struct {
	atoll.Status
	container string // its id; a rebuilt sandbox has another container
	pid       int    // of the first process, on the engine's machine; 0 if it does not run
	imageID   string
	user      string   // of the image
	env       []string // of the container
	idle      bool     // it stopped because it was idle
	plain     bool     // it has no guest
}

// findRecord asks the engine for a sandbox. Kinds: ErrNotFound, ErrUnavailable.
func (p *Provider) findRecord(ctx context.Context, op, id string) (*record, error) {
	found, err := p.engine.ContainerInspect(ctx, p.names.sandboxName(id), client.ContainerInspectOptions{})
	if err == nil && found.Container.State != nil && found.Container.State.Status == container.StateDead { // for an instant before it is gone
		found, err = p.engine.ContainerInspect(ctx, p.names.sandboxName(id), client.ContainerInspectOptions{})
	}
	if cerrdefs.IsNotFound(err) {
		return nil, atoll.E(op, id, atoll.ErrNotFound, nil) // the engine's text is about containers
	}
	if err != nil {
		return nil, p.wrapError(ctx, op, id, err)
	}
	c := &found.Container
	if c.State == nil || !p.names.ownsContainer(id, c) {
		return nil, atoll.E(op, id, atoll.ErrNotFound, nil) // the container of another server
	}
	engine, err := p.engineInfo(ctx)
	if err != nil {
		return nil, p.wrapError(ctx, op, id, err)
	}
	r, err := p.decodeRecord(id, c, engine)
	if err == nil {
		err = p.wrapError(ctx, op, id, p.applyMarkers(ctx, r))
	}
	removing := c.State.Status == container.StateRemoving // the engine no longer reads its log
	if err == nil && !removing && !r.plain && r.State == atoll.StateStopped && c.State.ExitCode == guestStoppedCode {
		report, err := p.readReport(ctx, c.ID)
		if cerrdefs.IsConflict(err) {
			return r, nil // the engine has just begun to remove it
		}
		if err != nil {
			return nil, p.wrapError(ctx, op, id, err)
		}
		if report.Main != nil {
			r.Exit = report.Main
		}
		r.Reason, r.idle = report.Reason, report.Idle
	}
	return r, err
}

// guestStoppedCode is the exit code of a guest that was asked to stop, whatever the exit code of
// the main process.
const guestStoppedCode = 143

func (p *Provider) decodeRecord(id string, c *container.InspectResponse, engine engineInfo) (*record, error) {
	r := &record{
		container: c.ID, pid: c.State.Pid, imageID: c.Image, user: c.Config.Labels[labelUser],
		env: c.Config.Env, plain: c.Config.Labels[labelPlain] == "true",
	}
	st := &r.Status
	st.ID, st.Provider, st.Image = id, info.Name, c.Config.Labels[labelImage]
	st.Caps = engine.supportedCaps(p.opts.caps(r.plain))
	if err := json.Unmarshal([]byte(c.Config.Labels[labelSpec]), &st.Spec); err != nil {
		st.Spec = atoll.Spec{ID: id, Provider: info.Name, Project: c.Config.Labels[labelProject]}
		st.State, st.Reason = atoll.StateFailed, "its labels are damaged: remove it"
		return r, nil
	}
	st.Spec.Provider = info.Name
	st.Created = parseTime(c.Created)
	if st.Spec.TTL > 0 {
		st.Expires = st.Created.Add(time.Duration(st.Spec.TTL))
	}
	st.Started = parseTime(c.State.StartedAt)
	st.State = stateOf(st, c.State)
	st.Ready = st.State == atoll.StateRunning
	if c.NetworkSettings != nil && (st.State == atoll.StateRunning || st.State == atoll.StatePaused) { // Podman also reports the ports of stopped containers
		st.Ports, st.Address = publishedPorts(c.NetworkSettings.Ports)
	}
	if st.State == atoll.StateStopped || st.State == atoll.StateFailed {
		st.Stopped = parseTime(c.State.FinishedAt)
	}
	return r, nil
}

// stateOf converts the engine's state, and sets the exit and the reason in st.
func stateOf(st *atoll.Status, s *container.State) atoll.State {
	switch s.Status {
	case container.StateRunning, container.StateRestarting:
		return atoll.StateRunning
	case container.StatePaused:
		return atoll.StatePaused
	case container.StateCreated:
		return newState(st)
	case container.StateDead:
		st.Reason = "the engine could not remove it: remove it again"
		return atoll.StateFailed
	case container.StateRemoving: // it has ended, or never ran
		if st.Started.IsZero() {
			return newState(st)
		}
	}
	if st.Started.IsZero() {
		return atoll.StateCreated
	}
	exit := atoll.Exit{Code: s.ExitCode}
	if n := atoll.Signal(s.ExitCode - 128); st.Caps.ExitSignal && (n == atoll.SIGKILL || n == atoll.SIGTERM) {
		exit.Signal = n
	}
	if s.OOMKilled {
		exit.Reason = "out of memory: the sandbox used more than " + st.Spec.Resources.WithDefaults().Memory.String()
	}
	if len(st.Spec.Cmd) > 0 {
		st.Exit = &exit
	}
	if exit.State() == atoll.StateStopped {
		return atoll.StateStopped
	}
	st.Reason = exit.Reason
	if st.Reason == "" {
		st.Reason = fmt.Sprintf("its main process exited with code %d", exit.Code)
	}
	return atoll.StateFailed
}

// newState returns the state of a sandbox that never ran.
func newState(st *atoll.Status) atoll.State {
	if st.Spec.NoStart {
		return atoll.StateCreated
	}
	return atoll.StateCreating
}

// parseTime parses a time of the engine. Year 1 and invalid texts become the zero time.
func parseTime(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || t.Year() <= 1 {
		return time.Time{}
	}
	return t
}
