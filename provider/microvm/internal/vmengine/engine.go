package vmengine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/lazyfs"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/internal/usernet"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
	"github.com/seed46cd37a8/atoll/server/api"
)

// A Plan is what a job says of a sandbox in a machine besides.
type Plan struct {
	Kernel    string `json:"kernel,omitempty"` // this and the next two not where Root is an archive
	Initrd    string `json:"initrd,omitempty"`
	Formatter string `json:"formatter,omitempty"` // mke2fs
	Root      string `json:"root"`                // the disk of its root file system, or an archive of that
	Driver    Driver `json:"driver"`
	Debug     bool   `json:"debug,omitempty"`    // the kernel says all that it does
	Emulated  bool   `json:"emulated,omitempty"` // and the driver does not know: for tests

	Answer  atoll.Duration    `json:"answer,omitzero"`   // how long the guest may take to answer; 0 is the default
	Init    *vm.Init          `json:"init,omitempty"`    // what runs of the machine's own
	Disks   map[string]string `json:"disks,omitempty"`   // paths, by id, of disks of Init that are not in Job.Dir
	Console string            `json:"console,omitempty"` // "" means in Job.Dir
}

// Names of files in Job.Dir.
const (
	upperName   = "upper.img"   // the disk with what was changed in the root file system
	workName    = "work.img"    // the disk with the work directory, where that is not the host's
	jailedName  = "vm"          // the directory for the machine's sockets, where there is a jail
	consoleName = "console.log" // what the machine prints
)

// An engine is the supervisor.Engine over the machine that this process owns.
type engine struct {
	*supervisor.GuestProcesses // its processes are the guest's
	box                        *supervisor.Sandbox
	job                        *supervisor.Job
	plan                       Plan
	driver                     vm.Driver
	caps                       vm.Caps // of its machines

	machine  vm.Machine // nil before it is started
	network  *usernet.Network
	client   *api.Client
	exited   chan struct{} // closed when the machine has ended
	fate     error         // of that
	frozen   atomic.Bool
	arranged []string // where something is mounted for it to be shared

	thaws atomic.Int64 // how often it was resumed

	mu   sync.Mutex
	hung string // why the machine was killed, "" if it was not for that
}

func newEngine(b *supervisor.Sandbox, _ io.Writer) (supervisor.Engine, error) {
	exited := make(chan struct{})
	e := &engine{GuestProcesses: supervisor.NewGuestProcesses(b, exited), box: b, job: b.Job, exited: exited}
	if err := json.Unmarshal(b.Job.Engine, &e.plan); err != nil {
		return nil, fmt.Errorf("read job: %w", err)
	}
	e.addMetadata()
	return e, nil
}

// Name implements supervisor.Engine.
func (e *engine) Name() string { return "the virtual machine" }

// Exited implements supervisor.Engine.
func (e *engine) Exited() <-chan struct{} {
	if e.machine == nil {
		return nil
	}
	return e.exited
}

// DeathReason implements supervisor.Engine.
func (e *engine) DeathReason() string {
	select {
	case <-e.exited:
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.hung != "" {
			return e.hung
		}
		if e.fate != nil {
			return e.fate.Error()
		}
		return "it has powered off"
	default:
		return ""
	}
}

// sandbox is the one inside, as the guest serves it.
func (e *engine) sandbox() atoll.Sandbox { return e.client.Sandbox(e.box.ID()) }

// order asks the guest for something, and waits until that is done.
func (e *engine) order(ctx context.Context, op string, o guest.Order) (guest.Reply, error) {
	r, err := order(ctx, e.machine, o)
	if err != nil {
		return r, e.whatFor(op, err)
	}
	return r, r.Err(op, e.box.ID())
}

func order(ctx context.Context, m vm.Machine, o guest.Order) (r guest.Reply, err error) {
	conn, err := m.Dial(ctx, vm.PortControl)
	if err != nil {
		return r, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err = json.NewEncoder(conn).Encode(o); err == nil {
		err = json.NewDecoder(conn).Decode(&r)
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return r, err
}

// whatFor is what it means that the guest has not answered.
func (e *engine) whatFor(op string, err error) error {
	if e.Ended() {
		return atoll.E(op, e.box.ID(), atoll.ErrStopped, nil)
	}
	return atoll.Errorf(op, e.box.ID(), atoll.ErrUnavailable, "the guest does not answer: %w", err)
}

// Exec implements supervisor.Engine.
func (e *engine) Exec(ctx context.Context, id string, cmd *atoll.Command) (atoll.Process, error) {
	if id == atoll.MainProcess {
		if _, err := e.order(ctx, "exec", guest.Order{Main: true}); err != nil {
			return nil, err
		}
		return e.Process(ctx, id)
	}
	if err := e.Awake("exec"); err != nil {
		return nil, err
	}
	p, err := e.sandbox().Exec(ctx, cmd)
	if err != nil {
		return nil, e.Explain(ctx, "exec", err)
	}
	return e.WrapProcess(p), nil
}

// Process implements supervisor.Engine.
func (e *engine) Process(ctx context.Context, id string) (atoll.Process, error) {
	if left := e.Left(); left != nil {
		return left.Get(id)
	}
	if err := e.Awake("process"); err != nil {
		return nil, err
	}
	p, err := e.sandbox().Process(ctx, id)
	if err != nil {
		return nil, e.Explain(ctx, "process", err)
	}
	return e.WrapProcess(p), nil
}

// Processes implements supervisor.Engine.
func (e *engine) Processes(ctx context.Context) ([]atoll.ProcessStatus, error) {
	if left := e.Left(); left != nil {
		return left.List(), nil
	}
	if err := e.Awake("processes"); err != nil {
		return nil, err
	}
	list, err := atoll.Processes(ctx, e.sandbox())
	return e.WrapList(ctx, list, err)
}

// Running implements supervisor.Engine.
func (e *engine) Running(ctx context.Context) (int, error) {
	if err := e.Awake("count"); err != nil {
		return 0, err
	}
	r, err := e.order(ctx, "count", guest.Order{Count: true})
	return r.Processes, err
}

// Files implements supervisor.Engine.
func (e *engine) Files() atoll.FS {
	return lazyfs.FS(func(ctx context.Context, op string, _ []string, fn func(context.Context, atoll.FS) error) error {
		if err := e.Awake(op); err != nil {
			return err
		}
		return e.Explain(ctx, op, fn(ctx, atoll.Files(e.sandbox())))
	})
}

// Dial implements supervisor.Engine.
func (e *engine) Dial(ctx context.Context, port int) (net.Conn, error) {
	if err := e.Awake("dial"); err != nil {
		return nil, err
	}
	conn, err := atoll.Dial(ctx, e.sandbox(), port)
	return conn, e.Explain(ctx, "dial", err)
}

// Pause implements supervisor.Engine.
func (e *engine) Pause(ctx context.Context) error {
	if err := e.machine.Pause(ctx); err != nil {
		return err
	}
	e.frozen.Store(true)
	return nil
}

// Resume implements supervisor.Engine.
func (e *engine) Resume(ctx context.Context) error {
	if err := e.machine.Resume(ctx); err != nil {
		return err
	}
	e.thaws.Add(1)
	e.frozen.Store(false)
	if _, err := e.order(ctx, "resume", guest.Order{Time: time.Now().UnixNano()}); err != nil {
		e.box.Log.Warn("the clock inside is late", "err", err)
	}
	return nil
}

// Frozen implements supervisor.Engine.
func (e *engine) Frozen() bool { return e.frozen.Load() }

// stalled is what who asks what is inside is told while the machine waits for room.
const stalled = "there is no room for what is written to its disk, and the machine stands still: make room on this one, and it goes on"

// Stalled implements supervisor.Staller.
func (e *engine) Stalled() string {
	if now, _ := e.stalls(); now {
		return stalled
	}
	return ""
}

// stalls reports whether the machine stands still for want of room, and how often it has.
func (e *engine) stalls() (now bool, times int) {
	if s, ok := e.machine.(vm.Staller); ok {
		return s.Stalled()
	}
	return false, 0
}

// Snapshot implements supervisor.Engine.
func (e *engine) Snapshot(context.Context, string) error {
	return atoll.Errorf("snapshot", e.box.ID(), atoll.ErrUnsupported, "virtual machines have no snapshots")
}

// answering is how long the guest may take for what is done at once on a machine that is
// not emulated.
const answering = 30 * time.Second

func (e *engine) answering() time.Duration {
	if d := time.Duration(e.plan.Answer); d > 0 {
		return d
	}
	return vm.Scale(e.caps, answering)
}

// answer bounds a call to the guest.
func (e *engine) answer(ctx context.Context, more time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, e.answering()+more)
}

// mind asks the guest from time to time whether it is there, and tells it what time it is. A machine whose guest does not
// answer has hung, and is killed: then whoever waits for something in it knows, and nothing
// else would tell.
func (e *engine) mind() {
	for {
		select {
		case <-e.exited:
			return
		case <-time.After(e.answering() / 2):
		}
		thaws := e.thaws.Load()
		full, stalls := e.stalls()
		if e.Frozen() || full {
			continue
		}
		ctx, cancel := e.answer(context.Background(), 0)
		_, _ = e.order(ctx, "ask", guest.Order{Count: true, Now: time.Now().UnixNano()})
		silent := ctx.Err() != nil
		cancel()
		_, now := e.stalls()
		if !silent || e.Ended() || e.Frozen() || e.thaws.Load() != thaws || now != stalls {
			continue
		}
		e.mu.Lock()
		e.hung = fmt.Sprintf("the guest has not answered for %s", e.answering())
		e.mu.Unlock()
		e.Kill()
		return
	}
}

// Terminate implements supervisor.Engine.
func (e *engine) Terminate(grace time.Duration) error {
	if e.Frozen() { // what is to end has to run
		ctx, cancel := e.answer(context.Background(), 0)
		defer cancel()
		if err := e.Resume(ctx); err != nil {
			return err
		}
	}
	if err := e.Awake("stop"); err != nil {
		return err
	}
	ctx, cancel := e.answer(context.Background(), grace)
	defer cancel()
	g := atoll.Duration(grace)
	if _, err := e.order(ctx, "stop", guest.Order{Stop: &g}); err != nil {
		return err
	}
	return e.keepMain(ctx)
}

// keepMain gets from the guest what the main process has printed, and how it ended.
func (e *engine) keepMain(ctx context.Context) error {
	if len(e.job.Spec.Cmd) == 0 {
		return nil
	}
	all, err := atoll.Processes(ctx, e.sandbox())
	if err != nil {
		return err
	}
	for _, st := range all {
		if st.ID != atoll.MainProcess {
			continue
		}
		p, err := e.sandbox().Process(ctx, st.ID)
		if err != nil {
			return err
		}
		var stdout, stderr bytes.Buffer
		err = p.Attach(ctx, &atoll.Attachment{Stdout: &stdout, Stderr: &stderr, StdoutFrom: st.Stdout.Kept, StderrFrom: st.Stderr.Kept, NoFollow: true})
		if err != nil {
			return err
		}
		e.Remember(process.Ended(st, stdout.Bytes(), stderr.Bytes()))
	}
	return nil
}

// Keep implements supervisor.Engine: the machine is powered off, which writes its disks.
func (e *engine) Keep() error {
	ctx, cancel := e.answer(context.Background(), 0)
	defer cancel()
	if err := e.machine.Stop(ctx); err != nil && !e.Lost(err) {
		return err
	}
	return nil
}

// Kill implements supervisor.Engine.
func (e *engine) Kill() { _ = e.machine.Kill() }

// Destroy implements supervisor.Engine.
func (e *engine) Destroy() error {
	if e.machine == nil {
		return nil
	}
	err := e.machine.Kill()
	<-e.exited
	if e.client != nil {
		err = errors.Join(err, e.client.Close())
	}
	if e.network != nil {
		err = errors.Join(err, e.network.Close())
	}
	if e.Left() == nil { // it has died with the machine, unheard
		e.Remember(process.NewTable())
	}
	return err
}

// SaveMain implements supervisor.Engine.
func (e *engine) SaveMain(path string) error { return e.Left().Save(path, atoll.MainProcess) }

// Unmount implements supervisor.Engine.
func (e *engine) Unmount() error {
	var errs []error
	for _, dir := range slices.Backward(e.arranged) {
		if err := unmount(dir); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

// console is the file of what the machine prints.
func (e *engine) console() string {
	return cmp.Or(e.plan.Console, filepath.Join(e.job.Dir, consoleName))
}

// run is the directory for the machine's sockets. That of a jail, in which its disks are
// to appear, is on their file system: it leads there.
func (e *engine) run() (string, error) {
	dir := filepath.Join(e.job.Run, "vm")
	if e.plan.Driver.Jail == nil {
		return dir, os.MkdirAll(dir, 0o700)
	}
	jailed := filepath.Join(e.job.Dir, jailedName)
	if err := os.MkdirAll(jailed, 0o700); err != nil {
		return "", err
	}
	if err := os.Symlink(jailed, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return dir, nil
}

var _ supervisor.Engine = (*engine)(nil)
