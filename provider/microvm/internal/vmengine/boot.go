package vmengine

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/usernet"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
	"github.com/seed46cd37a8/atoll/server/api"
)

// What a sandbox has whose spec does not say otherwise.
const (
	DefaultMemory atoll.Bytes = 256 << 20
	DefaultCPUs               = 2
)

// Steps implements supervisor.Engine.
func (e *engine) Steps() []supervisor.Step {
	return []supervisor.Step{
		{Name: "driver", Do: e.openDriver},
		{Name: "disk", Do: e.makeDisks},
		{Name: "metadata", Do: e.writeMetadata},
		{Name: "directories", Do: e.arrange},
		{Name: "machine", Do: e.boot},
		{Name: "guest", Do: e.tell},
	}
}

// Steps are the names of what a keeper does to start a sandbox, in their order.
func Steps() []string { return supervisor.Steps((&engine{}).Steps()) }

// openDriver makes the driver of the plan.
func (e *engine) openDriver(ctx context.Context, _ *supervisor.Undo) error {
	d, err := e.plan.Driver.Open(ctx, e.plan.Kernel, e.box.Log)
	if err != nil {
		return err
	}
	e.driver, e.caps = d, d.Caps()
	e.caps.Emulated = e.caps.Emulated || e.plan.Emulated
	return nil
}

// ownDisks are those of a sandbox, by their ids: for what changes in its root file system,
// and for its work directory where that is not shared.
func (e *engine) ownDisks() (list []vm.Disk) {
	if e.plan.Init != nil {
		return nil
	}
	if !e.job.Spec.ReadOnlyRoot {
		list = append(list, vm.Disk{ID: upperDisk, Path: filepath.Join(e.job.Dir, upperName)})
	}
	elsewhere := func(m supervisor.Mount) bool { return m.Target == atoll.DefaultWorkdir }
	if !e.shares() && !slices.ContainsFunc(e.job.Mounts, elsewhere) {
		list = append(list, vm.Disk{ID: workDisk, Path: filepath.Join(e.job.Dir, workName)})
	}
	return list
}

// What the guest calls disks.
const (
	rootDisk  = "root"
	upperDisk = "upper"
	workDisk  = "work"
)

// makeDisks makes the disks for what the machine keeps: those of a sandbox; of a machine
// that has something to run what that has a disk for, and changes in the root file system
// are in memory.
func (e *engine) makeDisks(ctx context.Context, undo *supervisor.Undo) error {
	for _, d := range e.ownDisks() {
		if err := e.makeDisk(ctx, undo, d.Path); err != nil {
			return err
		}
	}
	if e.plan.Init == nil {
		return nil
	}
	if e.caps.Root { // what it keeps is in its Home
		return os.MkdirAll(filepath.Dir(e.console()), 0o700)
	}
	for _, d := range e.plan.Init.Disks {
		path := e.initDisk(d.ID)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := e.makeDisk(ctx, undo, path); err != nil {
			return err
		}
	}
	return os.MkdirAll(filepath.Dir(e.console()), 0o700)
}

// initDisk is the path of a disk of what the machine has to run.
func (e *engine) initDisk(id string) string {
	return cmp.Or(e.plan.Disks[id], filepath.Join(e.job.Dir, id+".img"))
}

// makeDisk makes a disk, unless there is one of a life before, which grows if it is to be
// larger than it was. It takes no space before something is written to it.
func (e *engine) makeDisk(ctx context.Context, undo *supervisor.Undo, path string) error {
	size := e.job.Spec.Resources.Disk
	if size == atoll.Unlimited {
		size = unlimitedDisk
	}
	if info, err := os.Stat(path); err == nil {
		if e.plan.Init != nil && info.Size() < int64(size) {
			err = os.Truncate(path, int64(size)) // the guest sees to the file system
		}
		return errors.Join(err, e.give(path))
	}
	made := path + ".new" // until it has a file system
	undo.Add(func() { _ = os.Remove(path) })
	defer os.Remove(made)
	if err := e.format(ctx, made, int64(size)); err != nil {
		return err
	}
	return os.Rename(made, path)
}

// format makes a file of that size with an ext4 in it, by mke2fs with these options.
func (e *engine) format(ctx context.Context, path string, size int64, options ...string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return err
	}
	args := append([]string{"-q", "-F", "-t", "ext4", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0"}, options...)
	out, err := exec.CommandContext(ctx, e.plan.Formatter, append(args, path)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("make a file system on %s: %w: %s", path, err, bytes.TrimSpace(out))
	}
	return e.give(path)
}

// give makes a disk over to who runs the hypervisor, where that is another user.
func (e *engine) give(path string) error {
	if j := e.plan.Driver.Jail; j != nil {
		return os.Chown(path, j.UID, j.GID)
	}
	return nil
}

// sharedDir is the directory that is shared for a mount, and whether that has one file only,
// which is what is mounted.
func (e *engine) sharedDir(i int) (dir string, file bool) {
	m := e.job.Mounts[i]
	file = isFile(m.Source)
	if m.ReadOnly || file {
		return filepath.Join(e.job.Run, "mount"+strconv.Itoa(i)), file
	}
	return m.Source, false
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// shares reports whether directories of the host are shared with the machine. That was
// settled when the sandbox was made: what it keeps is where it was put then.
func (e *engine) shares() bool { return e.job.Caps.Volumes }

// arrange mounts what cannot be shared as it is, in the mount namespace of this process:
// directories that are not to be changed where nobody can change them, since it is the guest
// that decides how it mounts what it is given, and not every virtiofsd can refuse; and files
// in directories with nothing else.
func (e *engine) arrange(_ context.Context, undo *supervisor.Undo) error {
	undo.Add(func() { _ = e.Unmount() })
	for i, m := range e.job.Mounts {
		at, file := e.sharedDir(i)
		if m.Source == "" || at == m.Source {
			continue
		}
		if err := os.MkdirAll(at, 0o700); err != nil {
			return err
		}
		if file { // which is all that can be changed
			if err := os.WriteFile(filepath.Join(at, guest.SharedFile), nil, 0o600); err != nil {
				return err
			}
			if err := e.bind(at, at, true); err != nil {
				return err
			}
			at = filepath.Join(at, guest.SharedFile)
		}
		if err := e.bind(m.Source, at, m.ReadOnly); err != nil {
			return err
		}
	}
	return nil
}

func (e *engine) bind(source, at string, readOnly bool) error {
	if err := bind(source, at); err != nil {
		return fmt.Errorf("mount %s: %w", source, err)
	}
	e.arranged = append(e.arranged, at)
	if !readOnly {
		return nil
	}
	if err := seal(at); err != nil {
		return fmt.Errorf("mount %s read-only: %w", source, err)
	}
	return nil
}

// unlimitedDisk is the disk of a sandbox without a limit.
const unlimitedDisk atoll.Bytes = 1 << 40

// memory is how much the machine has.
func (e *engine) memory() atoll.Bytes {
	m := e.job.Spec.Resources.Memory
	if m == atoll.Unlimited {
		m = vm.MaxMemory
	}
	const unit = 1 << 20
	return (m + unit - 1) / unit * unit
}

// cpus is how many the machine has: what a fraction of one is held to is the cgroup's
// business.
func (e *engine) cpus() int {
	n := e.job.Spec.Resources.CPUs
	if n < 0 {
		return vm.MaxCPUs
	}
	return int(math.Ceil(n))
}

// hardware is what the machine is made of.
func (e *engine) hardware() (*vm.Hardware, error) {
	dir, err := e.run()
	if err != nil {
		return nil, err
	}
	if e.caps.Root {
		return &vm.Hardware{ID: e.box.ID(), Dir: dir, Console: e.console(), Root: e.plan.Root, Home: e.home(), Ports: ports}, nil
	}
	h := &vm.Hardware{
		ID: e.box.ID(), Dir: dir, Console: e.console(), CPUs: e.cpus(), Memory: e.memory(),
		Kernel: e.plan.Kernel, Initrd: e.plan.Initrd,
		Disks: append([]vm.Disk{{ID: rootDisk, Path: e.plan.Root, ReadOnly: true}}, e.ownDisks()...),
		Ports: ports,
	}
	if e.caps.Vsock {
		h.CID = vm.MinCID
	}
	if !e.plan.Debug {
		h.Cmdline = append(h.Cmdline, "quiet")
	}
	if e.plan.Init != nil {
		for _, d := range e.plan.Init.Disks {
			h.Disks = append(h.Disks, vm.Disk{ID: d.ID, Path: e.initDisk(d.ID)})
		}
	}
	if path := e.metadataDisk(); path != "" {
		h.Disks = append(h.Disks, vm.Disk{ID: vm.MetadataTag, Path: path, ReadOnly: true})
	}
	for i, m := range e.job.Mounts {
		if m.Source != "" {
			dir, _ := e.sharedDir(i)
			h.Shares = append(h.Shares, vm.Share{Tag: e.shareTag(i), Dir: dir, ReadOnly: m.ReadOnly})
		}
	}
	return h, nil
}

// ports are those of the guest that are dialled.
var ports = []uint32{vm.PortControl, vm.PortAPI, vm.PortPowerOff}

// home is the directory of a machine that has no disks, in place of the one on which it
// would keep what it has to run.
func (e *engine) home() string {
	for _, d := range e.plan.Init.Disks {
		return e.initDisk(d.ID)
	}
	return ""
}

// shareTag is what the guest calls what is shared for a mount.
func (e *engine) shareTag(i int) string {
	if e.job.Mounts[i].Source == e.metadataDir() {
		return vm.MetadataTag
	}
	return "mount" + strconv.Itoa(i)
}

// connectTime is how long a guest may take to come up, where it is not emulated. The
// number is that of the seed.
const connectTime = 10 * time.Second

// boot starts the machine, and waits for its guest. One that does not come up in time is
// tried once more.
func (e *engine) boot(ctx context.Context, undo *supervisor.Undo) error {
	err := e.bootOnce(ctx, undo)
	if errors.Is(err, context.DeadlineExceeded) {
		e.box.Log.Warn("the guest does not come up, and is tried once more", "console", vm.LastWords(e.console(), 0))
		err = e.bootOnce(ctx, undo)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return atoll.Errorf("start", e.box.ID(), atoll.ErrTimeout, "the guest did not come up within %s, twice; its console is %s", vm.Scale(e.caps, connectTime), e.console())
	}
	if err == nil {
		e.box.Watch()
	}
	return err
}

func (e *engine) bootOnce(ctx context.Context, undo *supervisor.Undo) (err error) {
	h, err := e.hardware()
	if err != nil {
		return err
	}
	var network *usernet.Network
	if e.online() && !e.caps.Frames {
		if network, err = e.newNetwork(h); err != nil {
			return err
		}
	}
	defer func() {
		if err != nil && network != nil {
			_ = network.Close()
		}
	}()
	m, err := e.driver.New(h)
	if err != nil {
		return err
	}
	if err := m.Start(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, vm.Scale(e.caps, connectTime))
	defer cancel()
	conn, err := m.Dial(ctx, vm.PortControl)
	if err != nil {
		if died := m.Wait(ended()); died != nil && !errors.Is(died, context.Canceled) {
			err = died
		} else if ctx.Err() != nil {
			err = ctx.Err() // however the driver puts it
		}
		if s, ok := m.(vm.Staller); ok {
			if full, _ := s.Stalled(); full {
				err = atoll.Errorf("start", e.box.ID(), atoll.ErrExhausted, "%s", stalled)
			}
		}
		_ = m.Kill()
		return err
	}
	conn.Close()
	e.machine, e.network = m, network
	go func() {
		e.fate = m.Wait(context.Background())
		close(e.exited)
	}()
	undo.Add(func() { _ = e.Destroy() })
	return nil
}

// ended is a context that has.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// tell tells the guest what it is, and waits until it is that.
func (e *engine) tell(ctx context.Context, _ *supervisor.Undo) error {
	ctx, cancel := e.answer(ctx, 0)
	defer cancel()
	for {
		_, err := e.order(ctx, "start", guest.Order{Setup: e.setup()})
		if err == nil {
			break
		}
		// Before the guest listens, Apple's hypervisor may take a connection, and hang up
		// without having read what it was sent.
		if !errors.Is(err, syscall.ECONNRESET) || ctx.Err() != nil || e.Ended() {
			return err
		}
	}
	if e.online() && e.caps.Frames {
		if err := e.dialNetwork(ctx); err != nil {
			return err
		}
	}
	info := atoll.Info{Name: "microvm", Isolation: atoll.IsolationVM, Caps: e.job.Caps}
	dial := func(ctx context.Context) (net.Conn, error) {
		conn, err := e.machine.Dial(ctx, vm.PortAPI)
		if err != nil {
			return nil, e.whatFor("dial", err)
		}
		return conn, nil
	}
	var err error
	if e.client, err = api.NewClient(ctx, api.ClientOptions{Info: &info, Dial: dial}); err != nil {
		return err
	}
	if _, err = e.sandbox().Status(ctx); err != nil { // the ping
		return err
	}
	go e.mind()
	return nil
}

// setup is what the guest is told.
func (e *engine) setup() *guest.Setup {
	spec := &e.job.Spec
	s := &guest.Setup{
		Config: guest.Config{
			ID: e.box.ID(), Workdir: spec.Workdir, User: cmp.Or(spec.User, e.job.Record.User), Env: append(append([]string(nil), e.job.Record.Env...), spec.Env...),
			Cmd: spec.Cmd, TTY: spec.TTY, OpenStdin: spec.OpenStdin, Held: spec.AutoRemove,
		},
		Hostname: hostname(spec), Time: time.Now().UnixNano(), Entropy: make([]byte, 64),
		Root: guest.Root{Disk: rootDisk, Upper: upperDisk},
	}
	_, _ = rand.Read(s.Entropy) // never fails
	switch {
	case e.caps.Root: // it is there already
		s.Root, s.Init = guest.Root{}, e.plan.Init
	case e.plan.Init != nil:
		s.Root, s.Init = guest.Root{Disk: rootDisk}, e.plan.Init
	case spec.ReadOnlyRoot:
		s.Root = guest.Root{Disk: rootDisk, Fixed: true}
	}
	if n := spec.Resources.Processes; n > 0 && !e.caps.Sizeless {
		s.Processes = n
	}
	if e.metadataDisk() != "" {
		s.Mounts = append(s.Mounts, guest.MachineDir{Target: vm.MetadataDir, Disk: vm.MetadataTag, ReadOnly: true})
	}
	for _, d := range e.ownDisks() {
		if d.ID == workDisk { // of which a directory is shown: at the top are files of ext4's own
			s.Mounts = append(s.Mounts, guest.MachineDir{Target: workAt, Disk: d.ID}, guest.MachineDir{Target: atoll.DefaultWorkdir, Bind: workAt + "/files"})
		}
	}
	for i, m := range e.job.Mounts {
		d := guest.MachineDir{Target: m.Target, Size: m.Size, ReadOnly: m.ReadOnly}
		if m.Source != "" {
			d.Share = e.shareTag(i)
			_, d.File = e.sharedDir(i)
		}
		s.Mounts = append(s.Mounts, d)
	}
	if dir := e.workspace(); dir != "" {
		s.Mounts = append(s.Mounts, guest.MachineDir{Target: vm.WorkspaceOrigin, Bind: dir})
	}
	s.Bridges = []guest.Bridge{{Port: vm.PortAgent, Network: "tcp", Address: net.JoinHostPort("127.0.0.1", strconv.Itoa(int(vm.PortAgent)))}}
	if e.online() {
		s.Network = &guest.Interface{
			Addresses: []string{usernet.Guest.String(), usernet.Guest6.String()},
			Gateways:  []string{usernet.Gateway.Addr().String(), usernet.Gateway6.Addr().String()},
			DNS:       []string{usernet.Gateway.Addr().String()}, MTU: e.mtu(),
		}
		if e.caps.Frames {
			s.Network.MAC = usernet.GuestMAC.String()
		}
	}
	return s
}

// workAt is where the guest has the disk of the work directory.
const workAt = "/run/atoll/work"

// hostname is what a sandbox calls itself.
func hostname(spec *atoll.Spec) string {
	if spec.Name == "" {
		return spec.ID[:12]
	}
	name := []byte(spec.Name)
	for i, c := range name {
		if c == '_' {
			name[i] = '-'
		}
	}
	return string(name[:min(len(name), 63)])
}
