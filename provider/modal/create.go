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
	p.sweeper.Rouse() // its time may be limited
	return p.newHandle(spec.ID), nil
}

// minMemory is what a sandbox of Modal's has at least.
const minMemory = 128 << 20

// checkSupport says what of the spec cannot be had.
func (p *Provider) checkSupport(spec *atoll.Spec) error {
	caps, r := p.opts.caps(), spec.Resources
	for _, wish := range []struct {
		asked bool
		what  string
	}{
		{spec.Network.Mode == atoll.NetworkNamed, "networks by name"},
		{spec.Network.Mode == atoll.NetworkOn && len(spec.Network.Allow) > 0, "what else may be reached with network mode on: it is what Modal lets sandboxes reach"},
		{spec.Publishes() && !caps.Publish, "published ports, unless they may be tunnels, which are public: set modal.tunnels"},
		{choosesHostPort(spec), "ports of one's choice: Modal chooses"},
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
		return atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "memory %s: Modal has no less than %s", r.Memory, atoll.Bytes(minMemory))
	}
	for _, m := range spec.Mounts {
		if settings.OverGuest(m.Target) {
			return atoll.Errorf("create", spec.Name, atoll.ErrInvalid, "mount %s: Atoll's program for sandboxes is there: mount it elsewhere", m.Target)
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

// allowedNetworks are the networks that a sandbox may reach.
func allowedNetworks(spec *atoll.Spec) (list []string, err error) {
	for _, word := range spec.Network.Allow {
		if prefix, err := netip.ParsePrefix(word); err == nil {
			list = append(list, prefix.Masked().String())
			continue
		}
		addr, err := netip.ParseAddr(word)
		if err != nil {
			return nil, atoll.Errorf("create", spec.Name, atoll.ErrUnsupported, "network.allow %q: the modal provider knows no host names there, but networks like 192.0.2.0/24", word)
		}
		list = append(list, netip.PrefixFrom(addr, addr.BitLen()).String())
	}
	return list, nil
}

// A creation is a sandbox on its way. What has been made so far is taken back when it
// fails.
type creation struct {
	p    *Provider
	spec *atoll.Spec
	r    *record // once it is written
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

// undoSteps takes back what has been made, last things first.
func (c *creation) undoSteps() {
	if c.r == nil {
		return
	}
	err := runCleanup(func(ctx context.Context) error {
		err := c.p.dropSandbox(ctx, c.r)
		for i := len(c.made) - 1; i >= 0; i-- {
			err = errors.Join(err, c.made[i].undoCreate(ctx, c.p, c.r.note.Made))
		}
		return err
	})
	if err != nil {
		c.p.opts.Log.Error("create: undo", "sandbox", c.spec.ID, "err", err)
	}
}

// writeRecord writes down that the sandbox is being made. Kinds: ErrAlreadyExists.
func (c *creation) writeRecord(ctx context.Context) error {
	now := time.Now().UTC()
	n := note{Spec: *c.spec, Made: atoll.NewID(), Created: now, State: atoll.StateCreating, Until: now.Add(c.p.opts.leaseTTL), Volume: !c.p.opts.Ephemeral}
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
		c.r = &record{page: at, note: n}
		c.r.ID = c.spec.ID
		return nil
	})
}

func (c *creation) idTaken() error {
	return atoll.Errorf("create", c.spec.ID, atoll.ErrAlreadyExists, "a sandbox with this id is there already")
}

// isAbandoned reports whether nobody goes on making the sandbox.
func (r *record) isAbandoned(now time.Time) bool {
	return r.note.State == atoll.StateCreating && now.After(r.note.Until)
}

// isStarting reports whether somebody is making the sandbox, or starting it.
func (r *record) isStarting() bool { return time.Now().Before(r.note.Until) }

// claimName takes the sandbox's name, or says whose it is.
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
			return atoll.Errorf("create", c.spec.Name, atoll.ErrAlreadyExists, "the name is that of sandbox %s", holder)
		}
		err = runToEnd(ctx, func(ctx context.Context) error {
			_, err := c.p.store.writeNext(ctx, kindName, key, before, &nameClaim{Sandbox: c.spec.ID, Made: c.r.note.Made})
			return err
		})
		if !errors.Is(err, errWrittenElsewhere) {
			return err
		}
	}
}

// startSandbox starts the sandbox, unless it is only to be made.
func (c *creation) startSandbox(ctx context.Context) error {
	if c.spec.NoStart {
		return nil
	}
	stop := c.p.keepLease(ctx, *c.r)
	defer stop()
	return c.p.launchSandbox(ctx, c.r)
}

// finishRecord writes down that the sandbox is made.
func (c *creation) finishRecord(ctx context.Context) error {
	began := c.r.note
	return runToEnd(ctx, func(ctx context.Context) error {
		return c.p.updateRecord(ctx, c.r, func(n *note) error {
			n.Until = time.Time{}
			if n.State = atoll.StateCreated; !c.spec.NoStart {
				n.markRunning(&began)
			}
			return nil
		})
	})
}
