package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	table "github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/provider/internal/steps"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
)

// Create implements atoll.Provider.
func (p *Provider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	spec, err := spec.Complete(info.Name)
	if err != nil {
		return nil, err
	}
	if err := spec.CheckCaps("docker", p.Info().Caps, advice); err != nil {
		return nil, err
	}
	if err := volume.CheckMounts(spec); err != nil {
		return nil, err
	}
	keys := []string{spec.ID}
	if spec.Name != "" {
		keys = append(keys, nameLockKey(spec))
	}
	for _, key := range keys {
		lock, err := p.acquireLock(ctx, "create", key)
		if err != nil {
			return nil, err
		}
		defer lock.Release()
	}
	c := &creation{p: p, spec: spec, plain: p.opts.Plain}
	if err := c.runSteps(ctx); err != nil {
		c.undoSteps()
		return nil, p.wrapError(ctx, "create", cmp.Or(spec.Name, spec.ID), err)
	}
	p.events.publishOwnChange(ctx, spec.ID)
	p.sweeper.Wake() // it may have a TTL
	return &sandbox{p, spec.ID}, nil
}

// nameLockKey returns the key of the lock on a name. A creation holds it, so that two creations
// cannot both find the name free.
func nameLockKey(spec *atoll.Spec) string { return "name-" + spec.Project + "." + spec.Name }

// advice says what to do without a cap.
var advice = map[string]string{
	"idle_stop":  "it needs the guest, which plain sandboxes do not have",
	"cache":      "it needs the guest, which plain sandboxes do not have",
	"network_on": "containers could reach the host; name one of the engine's networks",
	"egress":     "containers could reach the host; name one of the engine's networks",
}

// A creation is the creation of one sandbox. If it fails, undoSteps removes what it has created
// so far.
type creation struct {
	p    *Provider
	spec *atoll.Spec

	image       *image
	container   string
	volumes     []string     // that this creation made
	volumesLock *fsutil.Lock // on the project's volumes, held until the container mounts them
	plain       bool
}

func (c *creation) runSteps(ctx context.Context) error {
	return steps.Run(ctx, c.p.opts.step,
		steps.Step{Name: "id", Do: c.clearAbandoned},
		steps.Step{Name: "name", Do: c.checkName},
		steps.Step{Name: "network", Do: c.prepareNetwork},
		steps.Step{Name: "image", Do: c.fetchImage},
		steps.Step{Name: "data volume", Do: c.createDataVolume},
		steps.Step{Name: "volumes", Do: c.createVolumes},
		steps.Step{Name: "container", Do: c.createContainer},
		steps.Step{Name: "preparation", Do: c.prepareContainer},
		steps.Step{Name: "start", Do: c.startSandbox},
	)
}

// runToEnd calls do with a ctx that outlasts the caller's: the engine may do what its client no
// longer waits for, and then nobody would know of it.
func (p *Provider) runToEnd(ctx context.Context, do func(context.Context) error) error {
	return steps.RunDetached(ctx, p.slowFactor(ctx)*cleanupTimeout, do)
}

// undoSteps removes what the creation has made, last things first.
func (c *creation) undoSteps() {
	if c.container != "" {
		c.p.connections.Disconnect(c.spec.ID)
		c.p.dropContainer(c.container)
	}
	if len(c.volumes) == 0 {
		c.unlockVolumes()
		return
	}
	ctx, cancel := c.p.detachContext(context.Background())
	defer cancel()
	if err := c.lockVolumes(ctx); err != nil {
		c.p.log.Error("create: undo", "volumes", c.volumes, "err", err)
		return
	}
	defer c.unlockVolumes()
	for i := len(c.volumes) - 1; i >= 0; i-- {
		_, err := c.p.engine.VolumeRemove(ctx, c.volumes[i], client.VolumeRemoveOptions{})
		if err != nil && !cerrdefs.IsNotFound(err) && !cerrdefs.IsConflict(err) { // another sandbox may use it by now
			c.p.log.Error("create: undo", "volume", c.volumes[i], "err", err)
		}
	}
}

// clearAbandoned returns an error if a sandbox has this id. It removes the remains of an
// unfinished creation: the caller holds the lock of the id, so no creation of it is in progress.
func (c *creation) clearAbandoned(ctx context.Context) error {
	r, err := c.p.findRecord(ctx, "create", c.spec.ID)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return c.p.clearMarkers(ctx, c.spec.ID)
	}
	if err != nil {
		return err
	}
	if r.State != atoll.StateCreating {
		return atoll.Errorf("create", c.spec.ID, atoll.ErrAlreadyExists, "a sandbox with this id already exists")
	}
	c.p.dropContainer(r.container)
	return c.p.clearMarkers(ctx, c.spec.ID)
}

// checkName returns an error if another sandbox has the name.
func (c *creation) checkName(ctx context.Context) error {
	if c.spec.Name == "" {
		return nil
	}
	owner, err := c.p.Resolve(ctx, c.spec.Project, c.spec.Name)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	return atoll.Errorf("create", c.spec.Name, atoll.ErrAlreadyExists, "sandbox %s already has the name", owner)
}

func (c *creation) fetchImage(ctx context.Context) (err error) {
	c.image, err = c.p.ensureImage(ctx, c.spec, nil)
	return err
}

func (c *creation) createDataVolume(ctx context.Context) error {
	return c.createVolume(ctx, c.p.names.dataVolumeName(c.spec.ID), map[string]string{labelSession: c.spec.ID})
}

// lockVolumes locks the volumes of the project, if the spec mounts any that sandboxes share:
// nobody removes them meanwhile, or mounts one that this creation removes again if it fails. A
// second call does nothing.
func (c *creation) lockVolumes(ctx context.Context) (err error) {
	volumes := c.spec.Cache || slices.ContainsFunc(c.spec.Mounts, func(m atoll.Mount) bool { return m.Type == atoll.MountVolume })
	if volumes && c.volumesLock == nil {
		c.volumesLock, err = c.p.acquireLock(ctx, "create", volumesLockKey(c.spec.Project))
	}
	return err
}

func (c *creation) unlockVolumes() {
	c.volumesLock.Release()
	c.volumesLock = nil
}

// volumesLockKey returns the key of the lock on the volumes of a project.
func volumesLockKey(project string) string { return "volumes-" + project }

func (c *creation) createVolumes(ctx context.Context) error {
	if err := c.lockVolumes(ctx); err != nil {
		return err
	}
	if c.spec.Cache {
		if err := c.createVolume(ctx, c.p.names.cacheVolumeName(c.spec.Project), map[string]string{labelVolume: atoll.CacheVolume}); err != nil {
			return err
		}
	}
	for _, m := range c.spec.Mounts {
		if m.Type != atoll.MountVolume {
			continue
		}
		if err := c.createVolume(ctx, c.p.names.volumeName(c.spec.Project, m.Source), map[string]string{labelVolume: m.Source}); err != nil {
			return err
		}
	}
	return nil
}

// createVolume creates a volume unless it exists.
func (c *creation) createVolume(ctx context.Context, name string, labels map[string]string) error {
	found, err := c.p.engine.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
	if of := found.Volume.Labels[labelProject]; err == nil && of != "" && of != c.spec.Project { // possible for data volumes only: the names of all others include the project
		return atoll.Errorf("create", c.spec.ID, atoll.ErrConflict, "the data volume of this id belongs to project %s: remove that, or use another id", of)
	}
	if err == nil || !cerrdefs.IsNotFound(err) {
		return err
	}
	all := c.p.names.projectLabels(c.spec.Project)
	for k, v := range labels {
		all[k] = v
	}
	return c.p.runToEnd(ctx, func(ctx context.Context) error {
		_, err := c.p.engine.VolumeCreate(ctx, client.VolumeCreateOptions{Name: name, Labels: all})
		if err == nil {
			c.volumes = append(c.volumes, name)
		}
		return err
	})
}

func (c *creation) createContainer(ctx context.Context) error {
	defer c.unlockVolumes()
	config, err := c.containerConfig()
	if err != nil {
		return err
	}
	host, err := c.hostConfig(ctx)
	if err != nil {
		return err
	}
	caller := ctx
	return c.p.runToEnd(ctx, func(ctx context.Context) error {
		made, err := c.createRetrying(ctx, caller, client.ContainerCreateOptions{Name: c.p.names.sandboxName(c.spec.ID), Config: config, HostConfig: host})
		switch {
		case nameTaken(err):
			return atoll.Errorf("create", c.spec.ID, atoll.ErrAlreadyExists, "a container with this name already exists: %w", err)
		case err != nil && c.plain && strings.Contains(err.Error(), "not a directory"):
			return atoll.Errorf("create", c.spec.ID, atoll.ErrInvalid, "cannot create workdir %q in the sandbox: %w", c.spec.Workdir, err)
		case err != nil:
			return c.p.containerError(ctx, c.spec, err)
		}
		c.container = made.ID
		return nil
	})
}

// prepareContainer makes the changes to the new container that its guest cannot make, or that a
// sandbox without a guest needs.
func (c *creation) prepareContainer(ctx context.Context) error {
	if err := c.openRootDir(ctx); err != nil {
		return err
	}
	if !c.plain {
		return nil
	}
	r, err := c.p.findRecord(ctx, "create", c.spec.ID)
	if err != nil {
		return err
	}
	return c.p.preparePlain(ctx, r, slices.Contains(c.volumes, c.p.names.dataVolumeName(c.spec.ID)))
}

// containerConfig returns the configuration of the container: it runs the guest as root, and the
// guest runs every process as the sandbox's user.
func (c *creation) containerConfig() (*container.Config, error) {
	s := c.spec
	labels, err := c.p.names.sandboxLabels(s, c.image.name, c.image.user)
	if err != nil {
		return nil, err
	}
	if c.plain {
		return c.plainConfig(labels), nil
	}
	g := guest.Config{
		ID: s.ID, Self: guestPath, Workdir: s.Workdir, User: cmp.Or(s.User, c.image.user),
		Home: table.Lookup(slices.Concat(c.image.env, s.Environ()), "HOME") != "",
		Cmd:  s.Cmd, TTY: s.TTY, OpenStdin: s.OpenStdin, Held: s.AutoRemove, IdleStop: max(cmp.Or(s.IdleStop, atoll.DefaultIdleStop), 0),
	}
	if s.Cache {
		g.Cache, g.CachePaths = cacheDir, s.CachePaths
	}
	guestConfig, err := json.Marshal(g)
	if err != nil {
		return nil, err
	}
	return &container.Config{
		Image: c.image.id, Labels: labels, Hostname: hostnameOf(s), Env: s.Environ(),
		Entrypoint: []string{guestPath, "init", string(guestConfig)}, Cmd: []string{},
		User: "0:0", WorkingDir: "/", ExposedPorts: exposedPorts(s),
	}, nil
}

// plainConfig returns the configuration of a container without a guest. It runs the main
// process, or a shell that only waits.
func (c *creation) plainConfig(labels map[string]string) *container.Config {
	s := c.spec
	labels[labelPlain] = "true"
	run := s.Cmd
	if len(run) == 0 {
		run = []string{shellPath, "-c", idleScript}
	}
	return &container.Config{
		Image: c.image.id, Labels: labels, Hostname: hostnameOf(s), Env: table.Environ(s.Environ()),
		Entrypoint: run, Cmd: []string{}, User: s.User, WorkingDir: s.Workdir,
		Tty: s.TTY != nil, OpenStdin: s.OpenStdin || s.TTY != nil, StdinOnce: s.OpenStdin,
	}
}

// hostnameOf returns the sandbox's name if it is a valid hostname, and the beginning of its id
// otherwise.
func hostnameOf(s *atoll.Spec) string {
	if s.Name != "" && !strings.Contains(s.Name, "_") && len(s.Name) < 64 {
		return s.Name
	}
	return s.ID[:12]
}

// guestCaps are the capabilities of the guest. With them it acts as the users whose processes
// and files it handles, and takes all capabilities from its children.
var guestCaps = []string{"CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETPCAP", "SETUID"}

// hostConfig returns the limits, mounts and network of the container.
func (c *creation) hostConfig(ctx context.Context) (*container.HostConfig, error) {
	engine, err := c.p.engineInfo(ctx)
	if err != nil {
		return nil, err
	}
	s := c.spec
	r, err := engine.enforceableLimits(s)
	if err != nil {
		return nil, err
	}
	data := c.p.names.dataVolumeName(s.ID)
	h := &container.HostConfig{
		NetworkMode:    c.p.networkMode(s),
		PortBindings:   portBindings(s),
		CapDrop:        []string{"ALL"},
		SecurityOpt:    []string{"no-new-privileges"},
		ReadonlyRootfs: s.ReadOnlyRoot,
		Runtime:        c.p.opts.Runtime,
		LogConfig:      container.LogConfig{Type: engine.logDriver()},
		Mounts: []mount.Mount{
			{Type: mount.TypeVolume, Source: data, Target: dataDir, VolumeOptions: &mount.VolumeOptions{NoCopy: true}},
			{Type: mount.TypeVolume, Source: data, Target: atoll.DefaultWorkdir, VolumeOptions: &mount.VolumeOptions{NoCopy: true}},
		},
	}
	if c.plain {
		h.Init = &c.plain // the engine's init reaps orphans and forwards signals
	} else if err := c.addGuest(ctx, h); err != nil {
		return nil, err
	}
	if r.Memory > 0 {
		h.Memory, h.MemorySwap = int64(r.Memory), int64(r.Memory)
		h.ShmSize = int64(r.Memory) / 2 // of /dev/shm: as on Linux, half of the memory
	}
	if r.CPUs > 0 {
		h.NanoCPUs = int64(r.CPUs * 1e9)
	}
	if r.Processes > 0 {
		n := int64(r.Processes) + guestThreads
		h.PidsLimit = &n
	}
	if s.Cache {
		h.Mounts = append(h.Mounts, mount.Mount{
			Type: mount.TypeVolume, Source: c.p.names.cacheVolumeName(s.Project), Target: cacheDir, VolumeOptions: &mount.VolumeOptions{NoCopy: true},
		})
	}
	for _, m := range s.Mounts {
		h.Mounts = append(h.Mounts, c.engineMount(m))
	}
	if h.DeviceRequests, err = deviceRequests(s); err != nil {
		return nil, err
	}
	if err := c.p.checkPodmanSupport(engine, s); err != nil {
		return nil, err
	}
	return h, engine.adaptMounts(h)
}

// dataDir is the second mount point of the data volume.
const dataDir = "/.data"

// cacheDir is the mount point of the project's cache. It must not be on a volume: a program
// could put a link in its place, and the engine would mount the cache wherever that leads.
const cacheDir = "/.atoll-cache"

// addGuest mounts the guest's program and adds the capabilities that it needs.
func (c *creation) addGuest(ctx context.Context, h *container.HostConfig) error {
	program, err := c.p.guestVolume(ctx, c.image.id)
	if err != nil {
		return err
	}
	h.CapAdd = guestCaps
	h.Mounts = append(h.Mounts, mount.Mount{
		Type: mount.TypeVolume, Source: program, Target: guestDir, ReadOnly: true, VolumeOptions: &mount.VolumeOptions{NoCopy: true},
	})
	return nil
}

// guestThreads is the number of threads on top of the process limit: those of the guest, of its
// connections, and of the engine's runtime when it executes a command. The engine counts threads
// as processes.
const guestThreads = guest.Threads + 24

// tmpfsSize is the default size of a tmpfs, in bytes.
const tmpfsSize = 64 << 20

func (c *creation) engineMount(m atoll.Mount) mount.Mount {
	out := mount.Mount{Target: m.Target, ReadOnly: m.ReadOnly}
	switch m.Type {
	case atoll.MountBind:
		out.Type, out.Source = mount.TypeBind, m.Source
	case atoll.MountVolume:
		out.Type, out.Source = mount.TypeVolume, c.p.names.volumeName(c.spec.Project, m.Source)
		out.VolumeOptions = &mount.VolumeOptions{NoCopy: true}
	case atoll.MountTmpfs:
		out.Type = mount.TypeTmpfs
		out.TmpfsOptions = &mount.TmpfsOptions{SizeBytes: int64(cmp.Or(m.Size, tmpfsSize)), Mode: 0o1777}
	}
	return out
}

// startSandbox starts the sandbox, unless the spec says NoStart.
func (c *creation) startSandbox(ctx context.Context) error {
	if c.spec.NoStart {
		return nil
	}
	return c.p.launchSandbox(ctx, c.spec, c.container)
}

// launchSandbox starts a container, and returns when its guest answers or its main process has
// run and ended.
func (p *Provider) launchSandbox(ctx context.Context, spec *atoll.Spec, container string) error {
	id := spec.ID
	r, err := p.findRecord(ctx, "start", id)
	if err != nil {
		return err
	}
	engine, err := p.engineInfo(ctx)
	if err == nil {
		err = p.checkPodmanSupport(engine, spec)
	}
	if err != nil {
		return p.wrapError(ctx, "start", id, err)
	}
	p.dismissCaretaker(id)
	if err := p.checkTargets(ctx, spec, r); err != nil {
		return err
	}
	if r.plain {
		return p.launchPlain(ctx, r)
	}
	err = p.runToEnd(ctx, func(ctx context.Context) error {
		_, err := p.engine.ContainerStart(ctx, container, client.ContainerStartOptions{})
		return err
	})
	if err != nil {
		return p.wrapError(ctx, "start", id, p.containerError(ctx, spec, err))
	}
	p.connections.Disconnect(id) // the connection to the last run
	_, err = p.reachGuest(ctx, "start", id)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, atoll.ErrStopped) { // it has already ended
		return p.startFailure(ctx, id, container)
	}
	return err
}

// startFailure returns why an ended sandbox never began to run; nil if it ran, even if only for
// a moment.
func (p *Provider) startFailure(ctx context.Context, id, container string) error {
	r, err := p.readReport(ctx, container)
	if err != nil || r.Kind == "" {
		return p.wrapError(ctx, "start", id, err)
	}
	return atoll.Errorf("start", id, r.Kind, "%s", r.Message)
}
