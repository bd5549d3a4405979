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
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/sandboxnet"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
	"github.com/seed46cd37a8/atoll/server/api/client"
)

// The resources of a sandbox whose spec has none.
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
		{Name: "directories", Do: e.mountShares},
		{Name: "machine", Do: e.bootMachine},
		{Name: "guest", Do: e.setUpGuest},
	}
}

// Steps returns the names of the steps in which a supervisor starts a sandbox, in order.
func Steps() []string { return supervisor.Steps((&engine{}).Steps()) }

// openDriver opens the driver of the plan.
func (e *engine) openDriver(ctx context.Context, _ *supervisor.Undo) error {
	d, err := e.plan.Driver.Open(ctx, e.plan.Kernel, e.box.Log)
	if err != nil {
		return err
	}
	e.driver, e.caps = d, d.Caps()
	e.caps.Emulated = e.caps.Emulated || e.plan.Emulated
	return nil
}

// ownDisks returns the disks of a sandbox: one for changes of its root file system, and one for a
// work directory that is not shared.
func (e *engine) ownDisks() (list []vm.Disk) {
	if e.plan.Init != nil {
		return nil
	}
	if !e.job.Spec.ReadOnlyRoot {
		list = append(list, vm.Disk{ID: upperDisk, Path: filepath.Join(e.job.Dir, upperName)})
	}
	elsewhere := func(m supervisor.Mount) bool { return m.Target == atoll.DefaultWorkdir }
	if !e.sharesDirs() && !slices.ContainsFunc(e.job.Mounts, elsewhere) {
		list = append(list, vm.Disk{ID: workDisk, Path: filepath.Join(e.job.Dir, workName)})
	}
	return list
}

// The guest's names of disks.
const (
	rootDisk  = "root"
	upperDisk = "upper"
	workDisk  = "work"
)

// makeDisks creates the disks for data that the machine retains: those of a sandbox, or those of
// the plan's Init. With an Init, changes of the root file system stay in memory.
func (e *engine) makeDisks(ctx context.Context, undo *supervisor.Undo) error {
	for _, d := range e.ownDisks() {
		if err := e.makeDisk(ctx, undo, d.Path); err != nil {
			return err
		}
	}
	if e.plan.Init == nil {
		return nil
	}
	if e.caps.Root { // it retains its data in its Home
		return os.MkdirAll(filepath.Dir(e.consolePath()), 0o700)
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
	return os.MkdirAll(filepath.Dir(e.consolePath()), 0o700)
}

// initDisk returns the path of a disk of the plan's Init.
func (e *engine) initDisk(id string) string {
	return cmp.Or(e.plan.Disks[id], filepath.Join(e.job.Dir, id+".img"))
}

// makeDisk creates a disk, unless an earlier run has: then it grows to a larger limit. The disk
// takes no space until something is written to it.
func (e *engine) makeDisk(ctx context.Context, undo *supervisor.Undo, path string) error {
	size := e.job.Spec.Resources.Disk
	if size == atoll.Unlimited {
		size = unlimitedDisk
	}
	if info, err := os.Stat(path); err == nil {
		if e.plan.Init != nil && info.Size() < int64(size) {
			err = os.Truncate(path, int64(size)) // the guest grows the file system
		}
		return errors.Join(err, e.chownToJail(path))
	}
	made := path + ".new" // until it has a file system
	undo.Add(func() { _ = os.Remove(path) })
	defer os.Remove(made)
	if err := e.formatDisk(ctx, made, int64(size)); err != nil {
		return err
	}
	return os.Rename(made, path)
}

// formatDisk creates a file of that size with an ext4 file system, by mke2fs with these options.
func (e *engine) formatDisk(ctx context.Context, path string, size int64, options ...string) error {
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
	return e.chownToJail(path)
}

// chownToJail makes the user of the hypervisor own a disk, if that is another user.
func (e *engine) chownToJail(path string) error {
	if j := e.plan.Driver.Jail; j != nil {
		return os.Chown(path, j.UID, j.GID)
	}
	return nil
}

// sharedDir returns the directory that is shared for a mount, and whether the mount is of the only
// file in it.
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

// sharesDirs reports whether directories of the host are shared with the machine. That was decided
// when the sandbox was created, since its data was put there then.
func (e *engine) sharesDirs() bool { return e.job.Caps.Volumes }

// mountShares mounts what cannot be shared directly, in the mount namespace of this process:
// read-only directories on read-only mounts, since the guest decides how it mounts a share, and not
// every virtiofsd can refuse writes; and files in directories of their own.
func (e *engine) mountShares(_ context.Context, undo *supervisor.Undo) error {
	undo.Add(func() { _ = e.Unmount() })
	for i, m := range e.job.Mounts {
		at, file := e.sharedDir(i)
		if m.Source == "" || at == m.Source {
			continue
		}
		if err := os.MkdirAll(at, 0o700); err != nil {
			return err
		}
		if file { // the guest can change only the file
			if err := os.WriteFile(filepath.Join(at, guest.SharedFile), nil, 0o600); err != nil {
				return err
			}
			if err := e.bindMount(at, at, true); err != nil {
				return err
			}
			at = filepath.Join(at, guest.SharedFile)
		}
		if err := e.bindMount(m.Source, at, m.ReadOnly); err != nil {
			return err
		}
	}
	return nil
}

// bindMount mounts source at another place, and records that for Unmount.
func (e *engine) bindMount(source, at string, readOnly bool) error {
	if err := bindMount(source, at); err != nil {
		return fmt.Errorf("mount %s: %w", source, err)
	}
	e.mounted = append(e.mounted, at)
	if !readOnly {
		return nil
	}
	if err := makeReadOnly(at); err != nil {
		return fmt.Errorf("mount %s read-only: %w", source, err)
	}
	return nil
}

// unlimitedDisk is the size of the disk of a sandbox without a limit.
const unlimitedDisk atoll.Bytes = 1 << 40

// memorySize returns the memory of the machine, in whole MiB.
func (e *engine) memorySize() atoll.Bytes {
	m := e.job.Spec.Resources.Memory
	if m == atoll.Unlimited {
		m = vm.MaxMemory
	}
	const unit = 1 << 20
	return (m + unit - 1) / unit * unit
}

// cpuCount returns the number of CPUs of the machine. The cgroup limits it to a fraction.
func (e *engine) cpuCount() int {
	n := e.job.Spec.Resources.CPUs
	if n < 0 {
		return vm.MaxCPUs
	}
	return int(math.Ceil(n))
}

// machineHardware returns the hardware of the machine.
func (e *engine) machineHardware() (*vm.Hardware, error) {
	dir, err := e.machineDir()
	if err != nil {
		return nil, err
	}
	if e.caps.Root {
		return &vm.Hardware{ID: e.box.ID(), Dir: dir, Console: e.consolePath(), Root: e.plan.Root, Home: e.homeDir(), Ports: guestPorts}, nil
	}
	h := &vm.Hardware{
		ID: e.box.ID(), Dir: dir, Console: e.consolePath(), CPUs: e.cpuCount(), Memory: e.memorySize(),
		Kernel: e.plan.Kernel, Initrd: e.plan.Initrd,
		Disks: append([]vm.Disk{{ID: rootDisk, Path: e.plan.Root, ReadOnly: true}}, e.ownDisks()...),
		Ports: guestPorts,
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

// guestPorts are the ports of the guest that this package dials.
var guestPorts = []uint32{vm.PortControl, vm.PortAPI, vm.PortPowerOff}

// homeDir returns the directory with the data of a machine without disks, at the path that a disk
// of the Init would have.
func (e *engine) homeDir() string {
	for _, d := range e.plan.Init.Disks {
		return e.initDisk(d.ID)
	}
	return ""
}

// shareTag returns the tag of the share for a mount.
func (e *engine) shareTag(i int) string {
	if e.job.Mounts[i].Source == e.metadataDir() {
		return vm.MetadataTag
	}
	return "mount" + strconv.Itoa(i)
}

// connectTimeout bounds the boot of a guest that is not emulated. The seed had the same number.
const connectTimeout = 10 * time.Second

// bootMachine starts the machine, and waits for its guest. It tries once more if the guest does not
// come up in time.
func (e *engine) bootMachine(ctx context.Context, undo *supervisor.Undo) error {
	err := e.bootOnce(ctx, undo)
	if errors.Is(err, context.DeadlineExceeded) {
		e.box.Log.Warn("the guest does not come up; trying once more", "console", vm.LastWords(e.consolePath(), 0))
		err = e.bootOnce(ctx, undo)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return atoll.Errorf("start", e.box.ID(), atoll.ErrTimeout, "the guest did not come up within %s, twice; its console is %s", vm.Scale(e.caps, connectTimeout), e.consolePath())
	}
	if err == nil {
		e.box.Watch()
	}
	return err
}

func (e *engine) bootOnce(ctx context.Context, undo *supervisor.Undo) (err error) {
	h, err := e.machineHardware()
	if err != nil {
		return err
	}
	var network *usernet.Network
	if e.hasNetwork() && !e.caps.Frames {
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
	ctx, cancel := context.WithTimeout(ctx, vm.Scale(e.caps, connectTimeout))
	defer cancel()
	conn, err := m.Dial(ctx, vm.PortControl)
	if err != nil {
		if died := m.Wait(canceledContext()); died != nil && !errors.Is(died, context.Canceled) {
			err = died
		} else if ctx.Err() != nil {
			err = ctx.Err() // drivers report it in different ways
		}
		if s, ok := m.(vm.Staller); ok {
			if full, _ := s.Stalled(); full {
				err = atoll.Errorf("start", e.box.ID(), atoll.ErrExhausted, "%s", stalledMessage)
			}
		}
		_ = m.Kill()
		return err
	}
	conn.Close()
	e.machine, e.network = m, network
	go func() {
		e.endErr = m.Wait(context.Background())
		close(e.exited)
	}()
	undo.Add(func() { _ = e.Destroy() })
	return nil
}

// canceledContext returns a context that has ended.
func canceledContext() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// setUpGuest sends the guest its setup, and waits until it has applied it.
func (e *engine) setUpGuest(ctx context.Context, _ *supervisor.Undo) error {
	ctx, cancel := e.withAnswerTime(ctx, 0)
	defer cancel()
	setup := e.guestSetup()
	var err error
	if setup.Trust, err = sandboxnet.Certificate(e.job); err != nil {
		return err
	}
	for {
		_, err := e.sendOrder(ctx, "start", guest.Order{Setup: setup})
		if err == nil {
			break
		}
		// Before the guest listens, Apple's hypervisor may take a connection, and hang up
		// without having read what it was sent.
		if !errors.Is(err, syscall.ECONNRESET) || ctx.Err() != nil || e.Ended() {
			return err
		}
	}
	if e.hasNetwork() && e.caps.Frames {
		if err := e.dialNetwork(ctx); err != nil {
			return err
		}
	}
	info := atoll.Info{Name: "microvm", Isolation: atoll.IsolationVM, Caps: e.job.Caps}
	dial := func(ctx context.Context) (net.Conn, error) {
		conn, err := e.machine.Dial(ctx, vm.PortAPI)
		if err != nil {
			return nil, e.noAnswerError("dial", err)
		}
		return conn, nil
	}
	if e.client, err = client.New(ctx, client.Options{Info: &info, Dial: dial}); err != nil {
		return err
	}
	if _, err = e.guestSandbox().Status(ctx); err != nil { // the ping
		return err
	}
	go e.pingGuest()
	return nil
}

// guestSetup returns the setup of the guest.
func (e *engine) guestSetup() *guest.Setup {
	spec := &e.job.Spec
	s := &guest.Setup{
		Config: guest.Config{
			ID: e.box.ID(), Workdir: spec.Workdir, User: cmp.Or(spec.User, e.job.Record.User), Env: slices.Concat(e.job.Record.Env, spec.Environ()),
			Cmd: spec.Cmd, TTY: spec.TTY, OpenStdin: spec.OpenStdin, Held: spec.AutoRemove,
		},
		Hostname: hostName(spec), Time: time.Now().UnixNano(), Entropy: make([]byte, 64),
		Root: guest.Root{Disk: rootDisk, Upper: upperDisk},
	}
	_, _ = rand.Read(s.Entropy) // never fails
	switch {
	case e.caps.Root: // the guest has its root already
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
		if d.ID == workDisk { // mount a directory of it: the top has files of ext4 itself
			s.Mounts = append(s.Mounts, guest.MachineDir{Target: workMount, Disk: d.ID}, guest.MachineDir{Target: atoll.DefaultWorkdir, Bind: workMount + "/files"})
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
	if dir := e.workspaceDir(); dir != "" {
		s.Mounts = append(s.Mounts, guest.MachineDir{Target: vm.WorkspaceOrigin, Bind: dir})
	}
	s.Bridges = []guest.Bridge{{Port: vm.PortAgent, Network: "tcp", Address: net.JoinHostPort("127.0.0.1", strconv.Itoa(int(vm.PortAgent)))}}
	if e.hasNetwork() {
		s.Network = &guest.Interface{
			Addresses: []string{usernet.Guest.String(), usernet.Guest6.String()},
			Gateways:  []string{usernet.Gateway.Addr().String(), usernet.Gateway6.Addr().String()},
			DNS:       []string{usernet.Gateway.Addr().String()}, MTU: e.networkMTU(),
		}
		if e.caps.Frames {
			s.Network.MAC = usernet.GuestMAC.String()
		}
	}
	return s
}

// workMount is the guest's mount point of the disk of the work directory.
const workMount = "/run/atoll/work"

// hostName returns the host name of a sandbox.
func hostName(spec *atoll.Spec) string {
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
