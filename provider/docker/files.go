package docker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/internal/lazyfs"
	"github.com/seed46cd37a8/atoll/provider/internal/guestconn"
)

// Files implements atoll.Filer. The guest serves the files. While the sandbox is stopped or
// paused, a caretaker serves those on its volumes.
func (s *sandbox) Files() atoll.FS {
	return lazyfs.FS(func(ctx context.Context, op string, names []string, fn func(context.Context, atoll.FS) error) error {
		inside, err := s.p.reachGuest(ctx, op, s.id)
		if err == nil {
			err = s.p.withPauseCheck(ctx, op, s.id, func(ctx context.Context) error { return fn(ctx, atoll.Files(inside)) })
			if consumesInput(op) || !errors.Is(err, errPaused) {
				return s.explainError(ctx, op, err)
			}
		}
		if errors.Is(err, atoll.ErrStopped) {
			inside, err = s.p.reachCaretaker(ctx, op, s.id, names)
		}
		if err != nil {
			return err
		}
		return s.explainError(ctx, op, fn(ctx, atoll.Files(inside)))
	})
}

// consumesInput reports whether op reads input that it cannot read twice.
func consumesInput(op string) bool { return op == "write" || op == "unpack" }

// caretakerIdleStop is the time after which an unused caretaker ends.
const caretakerIdleStop = 10 * time.Second

// reachCaretaker returns the volumes of a stopped sandbox, served by a caretaker: a guest in a
// container with nothing else of the sandbox. The caretaker ends by itself when unused, and the
// engine removes its container.
func (p *Provider) reachCaretaker(ctx context.Context, op, id string, names []string) (atoll.Sandbox, error) {
	lock, err := p.acquireLock(ctx, op, id)
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	r, err := p.findRecord(ctx, op, id)
	if err != nil {
		return nil, err
	}
	if r.plain {
		return nil, noFilesError(op, id)
	}
	if r.State == atoll.StateRunning {
		return p.reachGuest(ctx, op, id) // it was started meanwhile
	}
	within := !slices.ContainsFunc(names, func(name string) bool { return !isOnVolume(&r.Spec, name) })
	switch runErr := requireRunning(op, &r.Status); {
	case within:
	case errors.Is(runErr, errPaused):
		return nil, runErr
	default:
		return nil, atoll.Errorf(op, id, atoll.ErrStopped, "sandbox is stopped: only its work directory and volumes can be reached")
	}
	return p.reachInside(ctx, op, caretakerKey(id), func(ctx context.Context) (guestconn.Connection, error) {
		return p.connectCaretaker(ctx, op, r)
	})
}

func caretakerKey(id string) string { return "caretaker-" + id }

// isOnVolume reports whether the name is on a volume of the sandbox, or on a mounted directory
// of the engine's machine.
func isOnVolume(spec *atoll.Spec, name string) bool {
	return dirfs.Within(persistentDirs(spec), spec.Workdir, name)
}

// connectCaretaker connects to the caretaker of the sandbox. It starts one unless another
// program has.
func (p *Provider) connectCaretaker(ctx context.Context, op string, r *record) (guestconn.Connection, error) {
	name := p.names.caretakerName(r.ID)
	if g, err := p.connectGuest(ctx, name, r.ID); err == nil {
		return g, nil
	}
	p.dropContainer(name) // it does not answer any more
	spec := *r.Spec.Clone()
	spec.Cmd, spec.TTY, spec.OpenStdin, spec.IdleStop = nil, nil, false, atoll.Duration(caretakerIdleStop)
	spec.Network, spec.Ports, spec.Resources.GPUs, spec.Cache = atoll.Network{}, nil, "", false
	c := &creation{p: p, spec: &spec, image: &image{id: r.imageID, user: r.user}} // plain is false: the caretaker is a guest
	config, err := c.containerConfig()
	if err != nil {
		return nil, err
	}
	config.Labels = map[string]string{labelAtoll: "true", labelOwner: string(p.names)}
	host, err := c.hostConfig(ctx)
	if err != nil {
		return nil, p.wrapError(ctx, op, r.ID, err)
	}
	host.AutoRemove = true
	err = p.runToEnd(ctx, func(ctx context.Context) error {
		made, err := p.engine.ContainerCreate(ctx, client.ContainerCreateOptions{Name: name, Config: config, HostConfig: host})
		if err != nil {
			return err
		}
		if err = p.checkTargets(ctx, &spec, &record{Status: r.Status, container: made.ID, imageID: r.imageID}); err == nil {
			_, err = p.engine.ContainerStart(ctx, made.ID, client.ContainerStartOptions{})
		}
		if err != nil {
			p.dropContainer(made.ID)
		}
		return err
	})
	if err != nil {
		return nil, p.wrapError(ctx, op, r.ID, p.containerError(ctx, &spec, err))
	}
	g, err := p.connectGuest(ctx, name, r.ID)
	if err != nil {
		p.dropContainer(name)
		return nil, atoll.Errorf(op, r.ID, atoll.ErrUnavailable, "cannot reach its volumes: %w", err)
	}
	return g, nil
}

// dismissCaretaker ends the caretaker of a sandbox, if there is one.
func (p *Provider) dismissCaretaker(id string) {
	p.connections.Disconnect(caretakerKey(id))
	p.dropContainer(p.names.caretakerName(id))
}

var _ atoll.Filer = (*sandbox)(nil)
