package modal

import (
	"context"
	"errors"
	"net/netip"
	"path"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/steps"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
	"github.com/seed46cd37a8/atoll/provider/modal/settings"
)

// Create implements atoll.Provider.
func (p *Provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	spec, err := spec.MadeBy("modal")
	if err != nil {
		return nil, err
	}
	if err := p.checkSupport(spec); err != nil {
		return nil, err
	}
	if err := volume.Mountable(spec); err != nil {
		return nil, err
	}
	if err := p.open(ctx, "create"); err != nil {
		return nil, err
	}
	release, err := p.locks.Lock(ctx, spec.ID)
	if err != nil {
		return nil, err
	}
	defer release()
	c := &creation{p: p, spec: spec}
	if err := c.runSteps(ctx); err != nil {
		c.undoSteps()
		return nil, p.wrapError(ctx, "create", spec.ID, err)
	}
	p.sweeper.Rouse() // it may have an expiry
	return p.newHandle(spec.ID), nil
}

// minMemory is the least memory that Modal gives a sandbox.
const minMemory = 128 << 20

// checkSupport returns an error if the provider does not support what the spec asks for. Kinds:
// ErrUnsupported, ErrInvalid.
func (p *Provider) checkSupport(spec *atoll.Spec) error {
	caps, r := p.opts.caps(), spec.Resources
	for _, wish := range []struct {
		asked bool
		what  string
	}{
		{spec.Network.Mode == atoll.NetworkNamed, "networks by name"},
		{spec.Network.Mode == atoll.NetworkOn && len(spec.Network.Allow) > 0, "network.allow with network mode on: Modal decides what sandboxes may reach"},
		{spec.Publishes() && !caps.Publish, "published ports without tunnels, which are public: set modal.tunnels"},
		{choosesHostPort(spec), "chosen host ports: Modal assigns them"},
		{hasMount(spec, atoll.MountBind), "bind mounts"},
		{hasMount(spec, atoll.MountTmpfs), "tmpfs mounts"},
		{hasMount(spec, atoll.MountVolume) && p.opts.Ephemeral, "volumes, as modal.ephemeral is set"},
		{spec.ReadOnlyRoot, "a read-only root"},
		{spec.Cache, "a cache"},
		{spec.Workspace != (atoll.WorkspaceRef{}), "a workspace"},
		{r.Disk > 0, "a disk limit"},
		{r.Processes > 0, "a process limit"},
	} {
		if wish.asked {
			return atoll.Errorf("create", spec.Name, atoll.ErrUnsupported, "the modal provider has no support for %s", wish.what)
		}
	}
	if spec.Image != "" {
		if _, err := name.ParseReference(spec.Image); err != nil {
			return atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "image: %w", err)
		}
	}
	if r.Memory > 0 && r.Memory < minMemory {
		return atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "memory %s: the minimum at Modal is %s", r.Memory, atoll.Bytes(minMemory))
	}
	for _, m := range spec.Mounts {
		if settings.OverGuest(m.Target) {
			return atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "mount %s: the path is reserved for Atoll's program; mount it elsewhere", m.Target)
		}
		if slices.ContainsFunc(p.opts.Buckets, func(b Bucket) bool { return b.Path == path.Clean(m.Target) }) {
			return atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "mount %s: a bucket of modal.buckets is mounted there", m.Target)
		}
	}
	if spec.Network.Mode == atoll.NetworkEgress {
		_, err := allowedNetworks(spec)
		return err
	}
	return nil
}

func choosesHostPort(spec *atoll.Spec) bool {
	for _, port := range spec.Ports {
		if port.Publish && port.HostPort != 0 {
			return true
		}
	}
	return false
}

func hasMount(spec *atoll.Spec, kind atoll.MountType) bool {
	for _, m := range spec.Mounts {
		if m.Type == kind {
			return true
		}
	}
	return false
}

// allowedNetworks returns the networks that a sandbox may reach. Kinds: ErrUnsupported.
func allowedNetworks(spec *atoll.Spec) (list []string, err error) {
	for _, word := range spec.Network.Allow {
		if prefix, err := netip.ParsePrefix(word); err == nil {
			list = append(list, prefix.Masked().String())
			continue
		}
		addr, err := netip.ParseAddr(word)
		if err != nil {
			return nil, atoll.Errorf("create", spec.Name, atoll.ErrUnsupported, "network.allow %q: the modal provider has no host names there; use networks like 192.0.2.0/24", word)
		}
		list = append(list, netip.PrefixFrom(addr, addr.BitLen()).String())
	}
	return list, nil
}

// A creation is the creation of one sandbox. If it fails, undoSteps deletes what it has created
// so far.
type creation struct {
	p    *Provider
	spec *atoll.Spec
	r    *record // once it exists
	made []madeVolume
}

func (c *creation) runSteps(ctx context.Context) error {
	return steps.Take(ctx, c.p.opts.step,
		steps.Step{Name: "record", Do: c.writeRecord},
		steps.Step{Name: "name", Do: c.claimName},
		steps.Step{Name: "volumes", Do: c.createVolumes},
		steps.Step{Name: "life", Do: c.startSandbox},
		steps.Step{Name: "made", Do: c.finishRecord},
	)
}

// undoSteps deletes what the creation has made, last things first.
func (c *creation) undoSteps() {
	if c.r == nil {
		return
	}
	err := runCleanup(func(ctx context.Context) error {
		err := c.p.dropSandbox(ctx, c.r)
		for i := len(c.made) - 1; i >= 0; i-- {
			err = errors.Join(err, c.made[i].undoCreate(ctx, c.p, c.r.note.CreationID))
		}
		return err
	})
	if err != nil {
		c.p.opts.Log.Error("create: undo", "sandbox", c.spec.ID, "err", err)
	}
}

// writeRecord creates the record of a sandbox that is being created. Kinds: ErrAlreadyExists.
func (c *creation) writeRecord(ctx context.Context) error {
	now := time.Now().UTC()
	n := note{Spec: *c.spec, CreationID: atoll.NewID(), Created: now, State: atoll.StateCreating, LeaseExpires: now.Add(c.p.opts.leaseTTL), Volume: !c.p.opts.Ephemeral}
	if c.spec.TTL > 0 {
		n.Expires = now.Add(time.Duration(c.spec.TTL))
	}
	before, err := c.p.store.readLatest(ctx, subjectKey(kindSandbox, c.spec.ID))
	if err != nil {
		return err
	}
	if before != nil && !before.Deleted {
		left := c.p.decodeRecord(c.spec.ID, before)
		if !left.isAbandoned(time.Now()) {
			return c.idTaken()
		}
		if err := c.p.dropSandbox(ctx, left); err != nil {
			return err
		}
		if before, err = c.p.store.readLatest(ctx, subjectKey(kindSandbox, c.spec.ID)); err != nil {
			return err
		}
	}
	return runToEnd(ctx, func(ctx context.Context) error {
		at, err := c.p.store.writeNext(ctx, kindSandbox, c.spec.ID, before, &n)
		if errors.Is(err, errWrittenElsewhere) {
			return c.idTaken()
		}
		if err != nil {
			return err
		}
		c.r = &record{revision: at, note: n}
		c.r.ID = c.spec.ID
		return nil
	})
}

func (c *creation) idTaken() error {
	return atoll.Errorf("create", c.spec.ID, atoll.ErrAlreadyExists, "a sandbox with this id already exists")
}

// isAbandoned reports whether the creation of the sandbox was abandoned.
func (r *record) isAbandoned(now time.Time) bool {
	return r.note.State == atoll.StateCreating && now.After(r.note.LeaseExpires)
}

// isStarting reports whether a program holds the lease of a creation or a start.
func (r *record) isStarting() bool { return time.Now().Before(r.note.LeaseExpires) }

// claimName takes the sandbox's name. If another sandbox has it, the error names that one.
func (c *creation) claimName(ctx context.Context) error {
	if c.spec.Name == "" {
		return nil
	}
	key := nameKey(c.spec.Project, c.spec.Name)
	for {
		before, err := c.p.store.readLatest(ctx, subjectKey(kindName, key))
		if err != nil {
			return err
		}
		if holder, err := c.p.findNameHolder(ctx, before); holder != "" || err != nil {
			if err != nil {
				return err
			}
			return atoll.Errorf("create", c.spec.Name, atoll.ErrAlreadyExists, "sandbox %s already has the name", holder)
		}
		err = runToEnd(ctx, func(ctx context.Context) error {
			_, err := c.p.store.writeNext(ctx, kindName, key, before, &nameClaim{Sandbox: c.spec.ID, CreationID: c.r.note.CreationID})
			return err
		})
		if !errors.Is(err, errWrittenElsewhere) {
			return err
		}
	}
}

// startSandbox starts the sandbox, unless the spec says NoStart.
func (c *creation) startSandbox(ctx context.Context) error {
	if c.spec.NoStart {
		return nil
	}
	stop := c.p.keepLease(ctx, *c.r)
	defer stop()
	return c.p.launchSandbox(ctx, c.r)
}

// finishRecord records that the creation is complete.
func (c *creation) finishRecord(ctx context.Context) error {
	began := c.r.note
	return runToEnd(ctx, func(ctx context.Context) error {
		return c.p.updateRecord(ctx, c.r, func(n *note) error {
			n.LeaseExpires = time.Time{}
			if n.State = atoll.StateCreated; !c.spec.NoStart {
				n.markRunning(&began)
			}
			return nil
		})
	})
}
