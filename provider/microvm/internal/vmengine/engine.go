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
	"github.com/seed46cd37a8/atoll/server/api/client"
)

// A Plan holds what an engine needs to know of a sandbox besides the supervisor.Job.
type Plan struct {
	Kernel    string `json:"kernel,omitempty"` // empty, like the next two, if Root is an archive
	Initrd    string `json:"initrd,omitempty"`
	Formatter string `json:"formatter,omitempty"` // mke2fs
	Root      string `json:"root"`                // the disk or the archive with its root file system
	Driver    Driver `json:"driver"`
	Debug     bool   `json:"debug,omitempty"`    // the kernel logs verbosely
	Emulated  bool   `json:"emulated,omitempty"` // machines are emulated although the driver does not know; for tests

	Answer  atoll.Duration    `json:"answer,omitzero"`   // the time that the guest may take to answer; 0 means the default
	Init    *vm.Init          `json:"init,omitempty"`    // the system programs and disks of the machine
	Disks   map[string]string `json:"disks,omitempty"`   // paths, by id, of disks of Init that are not in Job.Dir
	Console string            `json:"console,omitempty"` // "" means in Job.Dir
}

// The names of files in Job.Dir.
const (
	upperName   = "upper.img"   // the disk with changes of the root file system
	workName    = "work.img"    // the disk with a work directory that is not shared
	jailedName  = "vm"          // the directory for the machine's sockets in a jail
	consoleName = "console.log" // the machine's output
)

// An engine is the supervisor.Engine over the machine that this process owns.
type engine struct {
	*supervisor.GuestProcesses // its processes are the guest's
	box                        *supervisor.Sandbox
	job                        *supervisor.Job
	plan                       Plan
	driver                     vm.Driver
	caps                       vm.Caps // capabilities of its machines

	machine vm.Machine // nil before it is started
	network *usernet.Network
	client  *client.Client
	exited  chan struct{} // closed when the machine has ended
	endErr  error         // the error of the machine's end
	frozen  atomic.Bool
	mounted []string // the mount points of mountShares

	resumes atomic.Int64 // the number of calls of Resume

	mu         sync.Mutex
	hangReason string // why pingGuest killed the machine; "" if it did not
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
		if e.hangReason != "" {
			return e.hangReason
		}
		if e.endErr != nil {
			return e.endErr.Error()
		}
		return "it has powered off"
	default:
		return ""
	}
}

// guestSandbox returns the sandbox as the guest serves it.
func (e *engine) guestSandbox() atoll.Sandbox { return e.client.Sandbox(e.box.ID()) }

// sendOrder sends the guest an order, and waits until it is done.
func (e *engine) sendOrder(ctx context.Context, op string, o guest.Order) (guest.Reply, error) {
	r, err := sendOrder(ctx, e.machine, o)
	if err != nil {
		return r, e.noAnswerError(op, err)
	}
	return r, r.Err(op, e.box.ID())
}

// sendOrder sends an order to the guest of m, and returns its reply.
func sendOrder(ctx context.Context, m vm.Machine, o guest.Order) (r guest.Reply, err error) {
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

// noAnswerError returns the error for a guest that has not answered: ErrStopped if the machine has
// ended.
func (e *engine) noAnswerError(op string, err error) error {
	if e.Ended() {
		return atoll.E(op, e.box.ID(), atoll.ErrStopped, nil)
	}
	return atoll.Errorf(op, e.box.ID(), atoll.ErrUnavailable, "the guest does not answer: %w", err)
}

// Exec implements supervisor.Engine.
func (e *engine) Exec(ctx context.Context, id string, cmd *atoll.Command) (atoll.Process, error) {
	if id == atoll.MainProcess {
		if _, err := e.sendOrder(ctx, "exec", guest.Order{Main: true}); err != nil {
			return nil, err
		}
		return e.Process(ctx, id)
	}
	if err := e.Awake("exec"); err != nil {
		return nil, err
	}
	p, err := e.guestSandbox().Exec(ctx, cmd)
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
	p, err := e.guestSandbox().Process(ctx, id)
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
	list, err := atoll.Processes(ctx, e.guestSandbox())
	return e.WrapList(ctx, list, err)
}

// Running implements supervisor.Engine.
func (e *engine) Running(ctx context.Context) (int, error) {
	if err := e.Awake("count"); err != nil {
		return 0, err
	}
	r, err := e.sendOrder(ctx, "count", guest.Order{Count: true})
	return r.Processes, err
}

// Files implements supervisor.Engine.
func (e *engine) Files() atoll.FS {
	return lazyfs.FS(func(ctx context.Context, op string, _ []string, fn func(context.Context, atoll.FS) error) error {
		if err := e.Awake(op); err != nil {
			return err
		}
		return e.Explain(ctx, op, fn(ctx, atoll.Files(e.guestSandbox())))
	})
}

// Dial implements supervisor.Engine.
func (e *engine) Dial(ctx context.Context, port int) (net.Conn, error) {
	if err := e.Awake("dial"); err != nil {
		return nil, err
	}
	conn, err := atoll.Dial(ctx, e.guestSandbox(), port)
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
	e.resumes.Add(1)
	e.frozen.Store(false)
	if _, err := e.sendOrder(ctx, "resume", guest.Order{Time: time.Now().UnixNano()}); err != nil {
		e.box.Log.Warn("the clock of the guest is late", "err", err)
	}
	return nil
}

// Frozen implements supervisor.Engine.
func (e *engine) Frozen() bool { return e.frozen.Load() }

// stalledMessage is the answer to requests while the machine waits for room.
const stalledMessage = "there is no room for what is written to its disk, and the machine stands still: make room on this one, and it goes on"

// Stalled implements supervisor.Staller.
func (e *engine) Stalled() string {
	if now, _ := e.stallState(); now {
		return stalledMessage
	}
	return ""
}

// stallState reports whether the machine is stopped for lack of room on the host, and how often it
// was.
func (e *engine) stallState() (now bool, times int) {
	if s, ok := e.machine.(vm.Staller); ok {
		return s.Stalled()
	}
	return false, 0
}

// Snapshot implements supervisor.Engine.
func (e *engine) Snapshot(context.Context, string, atoll.SnapshotOptions) error {
	return atoll.Errorf("snapshot", e.box.ID(), atoll.ErrUnsupported, "virtual machines have no snapshots")
}

// defaultAnswerTime bounds the guest's answer to orders that need no time, on a machine that is not
// emulated.
const defaultAnswerTime = 30 * time.Second

// answerTime returns the time that the guest may take to answer.
func (e *engine) answerTime() time.Duration {
	if d := time.Duration(e.plan.Answer); d > 0 {
		return d
	}
	return vm.Scale(e.caps, defaultAnswerTime)
}

// withAnswerTime bounds a call to the guest by answerTime and more.
func (e *engine) withAnswerTime(ctx context.Context, more time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, e.answerTime()+more)
}

// pingGuest asks the guest from time to time whether it is there, and tells it the time. It kills a
// machine whose guest does not answer: nothing else would end the calls that wait for it.
func (e *engine) pingGuest() {
	for {
		select {
		case <-e.exited:
			return
		case <-time.After(e.answerTime() / 2):
		}
		thaws := e.resumes.Load()
		full, stalls := e.stallState()
		if e.Frozen() || full {
			continue
		}
		ctx, cancel := e.withAnswerTime(context.Background(), 0)
		_, _ = e.sendOrder(ctx, "ask", guest.Order{Count: true, Now: time.Now().UnixNano()})
		silent := ctx.Err() != nil
		cancel()
		_, now := e.stallState()
		if !silent || e.Ended() || e.Frozen() || e.resumes.Load() != thaws || now != stalls {
			continue
		}
		e.mu.Lock()
		e.hangReason = fmt.Sprintf("the guest has not answered for %s", e.answerTime())
		e.mu.Unlock()
		e.Kill()
		return
	}
}

// Terminate implements supervisor.Engine.
func (e *engine) Terminate(grace time.Duration) error {
	if e.Frozen() { // programs have to run to end
		ctx, cancel := e.withAnswerTime(context.Background(), 0)
		defer cancel()
		if err := e.Resume(ctx); err != nil {
			return err
		}
	}
	if err := e.Awake("stop"); err != nil {
		return err
	}
	ctx, cancel := e.withAnswerTime(context.Background(), grace)
	defer cancel()
	g := atoll.Duration(grace)
	if _, err := e.sendOrder(ctx, "stop", guest.Order{Stop: &g}); err != nil {
		return err
	}
	return e.keepMain(ctx)
}

// keepMain copies the output and the exit of the main process from the guest.
func (e *engine) keepMain(ctx context.Context) error {
	if len(e.job.Spec.Cmd) == 0 {
		return nil
	}
	all, err := atoll.Processes(ctx, e.guestSandbox())
	if err != nil {
		return err
	}
	for _, st := range all {
		if st.ID != atoll.MainProcess {
			continue
		}
		p, err := e.guestSandbox().Process(ctx, st.ID)
		if err != nil {
			return err
		}
		var stdout, stderr bytes.Buffer
		err = p.Attach(ctx, &atoll.Attachment{Stdout: &stdout, Stderr: &stderr, StdoutFrom: st.Stdout.Oldest, StderrFrom: st.Stderr.Oldest, NoFollow: true})
		if err != nil {
			return err
		}
		e.Remember(process.Ended(st, stdout.Bytes(), stderr.Bytes()))
	}
	return nil
}

// Keep implements supervisor.Engine: it powers the machine off, which writes its disks.
func (e *engine) Keep() error {
	ctx, cancel := e.withAnswerTime(context.Background(), 0)
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
	if e.Left() == nil { // the processes died with the machine
		e.Remember(process.NewTable())
	}
	return err
}

// SaveMain implements supervisor.Engine.
func (e *engine) SaveMain(path string) error { return e.Left().Save(path, atoll.MainProcess) }

// Unmount implements supervisor.Engine.
func (e *engine) Unmount() error {
	var errs []error
	for _, dir := range slices.Backward(e.mounted) {
		if err := detachMount(dir); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

// consolePath returns the file with the machine's output.
func (e *engine) consolePath() string {
	return cmp.Or(e.plan.Console, filepath.Join(e.job.Dir, consoleName))
}

// machineDir returns the directory for the machine's sockets. With a jail it is a link to a
// directory on the file system of the machine's disks, which have to appear in the jail.
func (e *engine) machineDir() (string, error) {
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
