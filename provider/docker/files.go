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

// Files implements atoll.Filer: they are served by the guest. What is on volumes of a
// sandbox that is stopped or paused is served by a guest that is started for it.
func (s *sandbox) Files() atoll.FS {
	return lazyfs.FS(func(ctx context.Context, op string, names []string, fn func(context.Context, atoll.FS) error) error {
		inside, err := s.p.inside(ctx, op, s.id)
		if err == nil {
			err = s.p.unpaused(ctx, op, s.id, func(ctx context.Context) error { return fn(ctx, atoll.Files(inside)) })
			if consumes(op) || !errors.Is(err, errPaused) {
				return s.explain(ctx, op, err)
			}
		}
		if errors.Is(err, atoll.ErrStopped) {
			inside, err = s.p.caretaker(ctx, op, s.id, names)
		}
		if err != nil {
			return err
		}
		return s.explain(ctx, op, fn(ctx, atoll.Files(inside)))
	})
}

// consumes reports whether op reads something that it cannot read again.
func consumes(op string) bool { return op == "write" || op == "unpack" }

// caretakerTime is how long a caretaker stays when nobody needs it.
const caretakerTime = 10 * time.Second

// caretaker returns the volumes of a stopped sandbox, as a guest serves them whose
// container has nothing else of the sandbox. It ends, and goes, by itself.
func (p *Provider) caretaker(ctx context.Context, op, id string, names []string) (atoll.Sandbox, error) {
	lock, err := p.lock(ctx, op, id)
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	r, err := p.inspect(ctx, op, id)
	if err != nil {
		return nil, err
	}
	if r.plain {
		return nil, noFiles(op, id)
	}
	if r.State == atoll.StateRunning {
		return p.inside(ctx, op, id) // meanwhile
	}
	within := !slices.ContainsFunc(names, func(name string) bool { return !onVolume(&r.Spec, name) })
	switch why := mustRun(op, &r.Status); {
	case within:
	case errors.Is(why, errPaused):
		return nil, why
	default:
		return nil, atoll.Errorf(op, id, atoll.ErrStopped, "sandbox is stopped: only its work directory and volumes can be reached")
	}
	return p.reach(ctx, op, caretakerOf(id), func(ctx context.Context) (guestconn.Inside, error) {
		return p.hire(ctx, op, r)
	})
}

func caretakerOf(id string) string { return "caretaker-" + id }

// onVolume reports whether the name is on a volume of the sandbox, or on what else of
// the engine's machine it mounts.
func onVolume(spec *atoll.Spec, name string) bool {
	return dirfs.Within(volumeDirs(spec), spec.Workdir, name)
}

// hire connects to the caretaker of the sandbox, which it starts unless another
// program has.
func (p *Provider) hire(ctx context.Context, op string, r *record) (guestconn.Inside, error) {
	name := p.names.caretaker(r.ID)
	if g, err := p.connect(ctx, name, r.ID); err == nil {
		return g, nil
	}
	p.drop(name) // one that nobody reaches any more
	spec := *r.Spec.Clone()
	spec.Cmd, spec.TTY, spec.OpenStdin, spec.IdleStop = nil, nil, false, atoll.Duration(caretakerTime)
	spec.Network, spec.Ports, spec.Resources.GPUs, spec.Cache = atoll.Network{}, nil, "", false
	c := &creation{p: p, spec: &spec, image: &image{id: r.imageID, user: r.user}} // of a sandbox with a guest
	config, err := c.config()
	if err != nil {
		return nil, err
	}
	config.Labels = map[string]string{labelAtoll: "true", labelOwner: string(p.names)}
	host, err := c.host(ctx)
	if err != nil {
		return nil, p.failed(ctx, op, r.ID, err)
	}
	host.AutoRemove = true
	err = settled(ctx, func(ctx context.Context) error {
		made, err := p.engine.ContainerCreate(ctx, client.ContainerCreateOptions{Name: name, Config: config, HostConfig: host})
		if err != nil {
			return err
		}
		if err = p.targets(ctx, &spec, &record{Status: r.Status, container: made.ID, imageID: r.imageID}); err == nil {
			_, err = p.engine.ContainerStart(ctx, made.ID, client.ContainerStartOptions{})
		}
		if err != nil {
			p.drop(made.ID)
		}
		return err
	})
	if err != nil {
		return nil, p.failed(ctx, op, r.ID, p.refusal(ctx, &spec, err))
	}
	g, err := p.connect(ctx, name, r.ID)
	if err != nil {
		p.drop(name)
		return nil, atoll.Errorf(op, r.ID, atoll.ErrUnavailable, "its volumes cannot be reached: %w", err)
	}
	return g, nil
}

// fire ends the caretaker of a sandbox, if there is one: it uses its volumes.
func (p *Provider) fire(id string) {
	p.visits.Leave(caretakerOf(id))
	p.drop(p.names.caretaker(id))
}

var _ atoll.Filer = (*sandbox)(nil)
